//! A configuration, from its text to the objects it describes: the same road for `--mode validate`
//! and for serving, up to the point where sockets are bound.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::config::bootstrap::v3::Bootstrap;
use nuncio_api::pb::envoy::config::core::v3::{Locality, Node};
use nuncio_api::pb::envoy::config::listener::v3::Listener;
use nuncio_api::pb::envoy::config::metrics::v3 as metrics;
use nuncio_api::support::Entry;
use nuncio_api::{
    ConfigError, Diagnostic, Element, Format, LoadOptions, LoadedBootstrap, ReadLimits, Severity, Support,
};
use nuncio_api::{Source, UnknownFields, load_bootstrap, supports};
use nuncio_core::access_log::{LogFiles, LogTarget};
use nuncio_core::dns::IpFamily;
use nuncio_core::extension::FactoryContext;
use nuncio_core::random::Rng;
use nuncio_core::runtime::Runtime;
use nuncio_core::stats::Store;
use nuncio_core::time::WallClock;
use nuncio_discovery::assignment::read_locality;
use nuncio_discovery::dns::{ResolverConfig, SharedResolvers};
use nuncio_discovery::xds::Files;
use nuncio_discovery::{HostSourceFactory, SourceContext};

use super::Options;
use super::main_thread::dynamic::Sources;
use super::overload::OverloadConfig;
use super::runtime::LayeredRuntime;
use crate::access_log::file::{FlushPolicy, LogWriter};
use crate::admin::{AdminConfig, Configs};
use crate::extensions::Extensions;
use crate::listener::config::SocketPolicy;
use crate::listener::{ListenerManager, Origin};
use crate::net::{Sockets, has_address};
use crate::stats_sink::StatsConfig;
use crate::subscription::Strictness;
use crate::tls::Secrets;
use crate::upstream::async_client::ClusterClient;
use crate::upstream::circuit_breaker::Thresholds;
use crate::upstream::lb_config::Local;
use crate::upstream::thread_local::ClusterContext;
use crate::upstream::worker::ConnectionIds;
use crate::upstream::{ClusterDefaults, ClusterManager, Clusters};

supports!(BOOTSTRAP = "envoy.config.bootstrap.v3.Bootstrap" {
    node, static_resources, admin, cluster_manager, stats_config, stats_flush_interval, stats_flush_on_admin,
    layered_runtime, dynamic_resources, overload_manager,
    typed_dns_resolver_config, dns_resolution_config, use_tcp_for_dns_lookups
});
supports!(STATIC_RESOURCES = "envoy.config.bootstrap.v3.Bootstrap.StaticResources" { listeners, clusters, secrets });
supports!(NODE = "envoy.config.core.v3.Node" {
    id, cluster, metadata, locality, dynamic_parameters, user_agent_name, user_agent_version,
    user_agent_build_version, extensions, client_features, listening_addresses
});
supports!(LOCALITY = "envoy.config.core.v3.Locality" { region, zone, sub_zone });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&BOOTSTRAP, &STATIC_RESOURCES, &NODE, &LOCALITY];

/// Everything a configuration describes, checked; no socket is open yet.
pub struct Assembly {
    pub options: Options,
    pub bootstrap: Bootstrap,
    pub node: Arc<Node>,
    pub store: Rc<RefCell<Store>>,
    pub clusters: ClusterManager,
    /// The clusters as the main thread uses them, for polls of its own.
    pub own_clusters: Rc<Clusters>,
    pub connection_ids: ConnectionIds,
    pub listeners: ListenerManager,
    pub secrets: Secrets,
    /// Of clusters and listeners that come while it runs.
    pub sources: Sources,
    pub overload: OverloadConfig,
    /// The bootstrap without its lists, to tell whether the rest of it changes.
    pub bytes: Vec<u8>,
    pub source_context: SourceContext,
    pub strictness: Strictness,
    pub log_files: Rc<LogWriter>,
    pub admin: Option<AdminConfig>,
    pub stats: Arc<StatsConfig>,
    pub runtime: Rc<LayeredRuntime>,
    /// For `/config_dump`.
    pub configs: Arc<Configs>,
    /// What the operator should hear.
    pub warnings: Vec<Diagnostic>,
    pub unknown_fields: u64,
}

/// Reads the files and texts of the command line. Everything that is wrong with them at once.
pub fn load(options: &Options, extensions: &Extensions) -> Result<LoadedBootstrap, Vec<Diagnostic>> {
    load_with(options, &extensions.support)
}

/// The same, with the table of what is implemented.
pub fn load_with(options: &Options, support: &Support) -> Result<LoadedBootstrap, Vec<Diagnostic>> {
    let limits = ReadLimits::default();
    let mut sources = Vec::new();
    if !options.config_path.is_empty() {
        sources.push(Source::file(Path::new(&options.config_path), &limits).map_err(|e| vec![e])?);
    }
    if !options.config_yaml.is_empty() {
        sources.push(Source::text("--config-yaml", Format::Yaml, options.config_yaml.as_str()));
    }
    if sources.is_empty() {
        let text = "At least one of --config-path or --config-yaml or Options::configProto() should be non-empty";
        return Err(vec![plain(text)]);
    }
    load_bootstrap(
        sources,
        &LoadOptions {
            unknown: UnknownFields::of_static(options.allow_unknown_static_fields),
            support: Some(support),
            allow_unsupported: options.allow_unsupported,
            limits,
            ..LoadOptions::default()
        },
    )
}

/// From the command line to checked objects. Everything that is wrong, at once: where something is
/// not implemented, the rest is still read for what else is wrong with it.
pub fn check(mut options: Options, extensions: Extensions) -> Result<Assembly, Vec<Diagnostic>> {
    let mut problems = match load(&options, &extensions) {
        Ok(loaded) => return assemble(loaded, options, extensions),
        Err(problems) => problems,
    };
    options.allow_unsupported = true;
    if let Ok(loaded) = load(&options, &extensions)
        && let Err(more) = assemble(loaded, options, extensions)
    {
        let known = |d: &Diagnostic| d.text.starts_with("Didn't find a registered implementation");
        let told = |d: &Diagnostic| problems.iter().any(|p| p.line == d.line && p.text == d.text);
        let more: Vec<_> = more.into_iter().filter(|d| d.is_error() && !known(d) && !told(d)).collect();
        problems.extend(more);
        problems.sort_by_key(|d| (d.file.clone(), d.line, d.column));
    }
    Err(problems)
}

/// An error without a place.
fn plain(text: &str) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        file: "".into(),
        line: 0,
        column: 0,
        path: String::new(),
        text: text.into(),
    }
}

/// Makes the objects, in Envoy's order: stats, clusters, listeners. All errors at once.
pub fn assemble(
    loaded: LoadedBootstrap,
    options: Options,
    extensions: Extensions,
) -> Result<Assembly, Vec<Diagnostic>> {
    let node = Arc::new(node(loaded.bootstrap.node.clone().unwrap_or_default(), &options));
    let store = Rc::new(RefCell::new(Store::new()));
    let flush = FlushPolicy { interval: options.file_flush_interval, min_size: options.file_flush_min_size };
    let log_files = Rc::new(LogWriter::new(flush));
    let sockets = SocketPolicy { workers: options.concurrency as usize, share: options.restart_epoch > 0 };
    let mut listeners = ListenerManager::new(extensions.network, sockets, &mut store.borrow_mut());
    let mut report = Report { loaded: &loaded, errors: Vec::new(), warnings: loaded.warnings.clone() };
    let (rng, connection_ids) = (Rng::from_os(), ConnectionIds::default());
    let layered = loaded.bootstrap.layered_runtime.as_ref();
    let runtime = LayeredRuntime::new(layered, &node.cluster, &mut store.borrow_mut());
    let runtime = runtime.map_err(|error| report.refuse(error));
    let read_runtime: Rc<dyn Runtime> = Rc::new(runtime.as_ref().map(|runtime| runtime.handle()).unwrap_or_default());
    let context = ClusterContext {
        connect: Rc::new(Sockets::default()),
        buffers: Rc::default(),
        rng: rng.clone(),
        stats: store.borrow().main().clone(),
        connection_ids: connection_ids.clone(),
        own_listeners: Rc::default(),
    };
    let own_clusters = Clusters::with_runtime(context, read_runtime.clone());
    let resolver = ResolverConfig::from_bootstrap(&loaded.bootstrap).unwrap_or_else(|error| {
        report.refuse(error);
        Rc::default()
    });
    let sources = SourceContext {
        rng,
        clock: WallClock::System,
        dns: Rc::new(SharedResolvers::new(resolver, &store, |family| has_address(family == IpFamily::V4))),
        client: Rc::new(ClusterClient::new(&own_clusters)),
        node: node.clone(),
        files: Files::default(),
    };
    let secrets = extensions.secrets;
    for element in &loaded.secrets {
        let added = element.decode().and_then(|message| secrets.add_static(message));
        added.unwrap_or_else(|e| report.fail(element, vec![e]));
    }
    let source_context = sources.clone();
    let with = (sources, secrets.clone(), read_runtime);
    let (clusters, refused) = clusters(&loaded, extensions.host_sources, with, &store, &log_files, &mut report);
    let (warnings, scopes) = (RefCell::default(), RefCell::default());
    let context = FactoryContext {
        name: "",
        stat_prefix: "",
        has_cluster: &|name| clusters.contains(name) || refused.contains(name),
        warnings: &warnings,
        node: &node,
        stats: &store,
        log_files: &*log_files,
        formats: &crate::format::Formats,
        scopes: &scopes,
    };
    for element in &loaded.listeners {
        add_listener(element, &mut listeners, &context, &mut report);
        report.warn(element, warnings.take());
    }
    let admin = match loaded.bootstrap.admin.as_ref().map(|admin| AdminConfig::from_proto(admin, &context)) {
        Some(Ok(admin)) => admin,
        Some(Err(errors)) => {
            errors.into_iter().for_each(|e| report.refuse(e.within("admin")));
            None
        }
        None => None,
    };
    let dynamic = Sources::from_proto(loaded.bootstrap.dynamic_resources.as_ref()).unwrap_or_else(|error| {
        report.refuse(error);
        Sources::default()
    });
    let overload = OverloadConfig::from_proto(loaded.bootstrap.overload_manager.as_ref()).unwrap_or_else(|error| {
        report.refuse(error.within("overload_manager"));
        OverloadConfig::default()
    });
    let stats = StatsConfig::from_proto(&stats_config(&loaded.bootstrap, &options));
    let (stats, runtime) = match (stats, runtime) {
        (Ok(stats), Ok(runtime)) if report.errors.is_empty() => (Arc::new(stats), runtime),
        (Err(e), _) => {
            report.refuse(e.within("stats_config"));
            return Err(report.errors);
        }
        _ => return Err(report.errors),
    };
    let strictness = Strictness {
        support: Rc::new(extensions.support),
        unknown: UnknownFields::of_dynamic(
            options.reject_unknown_dynamic_fields,
            options.ignore_unknown_dynamic_fields,
        ),
        allow_unsupported: options.allow_unsupported,
    };
    let warnings = report.warnings;
    let configs = Arc::new(super::admin::configs(&loaded, &node, WallClock::System));
    let LoadedBootstrap { bootstrap, bytes, unknown_fields, .. } = loaded;
    Ok(Assembly {
        options,
        bootstrap,
        node,
        store,
        clusters,
        own_clusters,
        connection_ids,
        listeners,
        secrets,
        sources: dynamic,
        overload,
        bytes,
        source_context,
        strictness,
        log_files,
        admin,
        stats,
        runtime,
        configs,
        warnings,
        unknown_fields,
    })
}

/// The clusters, and the names of those that are refused: a route to one of them is not another mistake.
fn clusters(
    loaded: &LoadedBootstrap,
    sources: Vec<Box<dyn HostSourceFactory>>,
    (context, secrets, runtime): (SourceContext, Secrets, Rc<dyn Runtime>),
    store: &Rc<RefCell<Store>>,
    log_files: &Rc<LogWriter>,
    report: &mut Report<'_>,
) -> (ClusterManager, HashSet<String>) {
    let manager = loaded.bootstrap.cluster_manager.as_ref();
    let bind = manager.and_then(|manager| manager.upstream_bind_config.clone());
    let outlier = manager.and_then(|manager| manager.outlier_detection.as_ref());
    let outlier_log = outlier.filter(|outlier| !outlier.event_log_path.is_empty()).and_then(|outlier| {
        let opened = log_files.open(&LogTarget::Path(outlier.event_log_path.clone()));
        let path = "cluster_manager.outlier_detection.event_log_path";
        opened.map_err(|error| report.refuse(error.within(path))).ok()
    });
    let local_name = manager.map_or("", |manager| manager.local_cluster_name.as_str());
    let local = (!local_name.is_empty()).then(|| {
        let locality = (*read_locality(context.node.locality.as_ref())).clone();
        Arc::new(Local { cluster: local_name.into(), locality })
    });
    let log_files: Option<Rc<dyn LogFiles>> = Some(log_files.clone());
    let defaults = ClusterDefaults { bind, local, secrets, log_files, outlier_log, runtime };
    let clusters = ClusterManager::new(store, sources, defaults, context);
    let mut refused = HashSet::new();
    for element in &loaded.clusters {
        let message = match element.decode() {
            Ok(message) => message,
            Err(e) => {
                report.fail(element, vec![e]);
                continue;
            }
        };
        let breakers = message.circuit_breakers.as_ref();
        report.warn(element, breakers.map(Thresholds::warnings).unwrap_or_default());
        if let Err(errors) = clusters.add_static(&message, element.bytes.clone()) {
            report.fail(element, errors);
            refused.insert(message.name);
        }
    }
    if !local_name.is_empty() && !clusters.contains(local_name) && !refused.contains(local_name) {
        let reason = format!("local cluster '{local_name}' must be defined");
        report.refuse(ConfigError::new("cluster_manager.local_cluster_name", reason));
    }
    let decoded = || loaded.clusters.iter().filter_map(|element| Some((element, element.decode().ok()?)));
    for (name, error) in clusters.check_asked(|asked| refused.contains(asked)) {
        if let Some((element, _)) = decoded().find(|(_, message)| *message.name == *name) {
            report.fail(element, vec![error]);
        }
        refused.insert(name.to_string());
    }
    (clusters, refused)
}

fn add_listener(
    element: &Element<Listener>,
    listeners: &mut ListenerManager,
    context: &FactoryContext<'_>,
    report: &mut Report<'_>,
) {
    let prepared = match element.decode().map_err(|e| vec![e]) {
        Ok(message) => listeners.check(&message, Origin { bytes: element.bytes.clone(), ..Origin::default() }, context),
        Err(errors) => Err(errors),
    };
    match prepared.and_then(|p| listeners.add_static(p).map_err(|e| vec![e])) {
        Ok(true) => {}
        Ok(false) => context.warn("name", "a listener of this name stands before it, and this one is ignored"),
        Err(errors) => report.fail(element, errors),
    }
}

/// With the tags of the command line, which every stat has.
fn stats_config(bootstrap: &Bootstrap, options: &Options) -> metrics::StatsConfig {
    let mut config = bootstrap.stats_config.clone().unwrap_or_default();
    config.stats_tags.extend(options.stats_tags.iter().map(|(name, value)| metrics::TagSpecifier {
        tag_name: name.clone(),
        tag_value: Some(metrics::tag_specifier::TagValue::FixedValue(value.clone())),
    }));
    config
}

/// The command line wins over the file, as in Envoy.
fn node(mut node: Node, options: &Options) -> Node {
    let set = |from: &str, to: &mut String| {
        if !from.is_empty() {
            from.clone_into(to);
        }
    };
    set(&options.service_node, &mut node.id);
    set(&options.service_cluster, &mut node.cluster);
    if !options.service_zone.is_empty() {
        let locality = node.locality.get_or_insert_with(Locality::default);
        options.service_zone.clone_into(&mut locality.zone);
    }
    super::admin::user_agent(&mut node);
    node
}

struct Report<'l> {
    loaded: &'l LoadedBootstrap,
    errors: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
}

impl Report<'_> {
    fn fail<T>(&mut self, element: &Element<T>, errors: Vec<ConfigError>) {
        let place = |e| self.loaded.positions.element_error(element, e);
        self.errors.extend(errors.into_iter().map(place));
    }

    /// Of the bootstrap itself.
    fn refuse(&mut self, error: ConfigError) {
        self.errors.push(self.loaded.positions.error(&error));
    }

    fn warn<T>(&mut self, element: &Element<T>, warnings: Vec<ConfigError>) {
        let place = |e| self.loaded.positions.element_warning(element, e);
        self.warnings.extend(warnings.into_iter().map(place));
    }
}
