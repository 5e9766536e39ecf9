//! The admin interface's place in the server: its socket, its pages, and how what they ask for reaches main.
//!
//! Pages run on the main thread but do not hold what main owns. They read what main published last, and acts that
//! need main itself arrive in its loop one by one.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use nuncio_api::dump::json_value;
use nuncio_api::pb::envoy::config::core::v3::node::UserAgentVersionType;
use nuncio_api::pb::envoy::config::core::v3::{BuildVersion, Node};
use nuncio_api::pb::envoy::r#type::v3::SemanticVersion;
use nuncio_api::pb::google::protobuf::{self as wkt, value::Kind};
use nuncio_api::prost::Message;
use nuncio_api::wire::{put, split};
use nuncio_api::{Element, LoadedBootstrap};
use nuncio_core::extension::{NoVitals, WorkerContext};
use nuncio_core::net::Address;
use nuncio_core::random::Rng;
use nuncio_core::stats::Store;
use nuncio_core::time::WallClock;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::process_stats::Flusher;
use super::runtime::LayeredRuntime;
use super::worker::NoClusters;
use super::{Options, bootstrap};
use crate::admin::{
    self, Admin, AdminConfig, AdminStats, ClusterSource, ClusterViews, Configs, Dynamic, DynamicResource,
    DynamicScopes, EventLoops, Limits, ListenerDrain, ListenerView, Settings, Shown,
};
use crate::http::discovered::{self, DiscoveryManager};
use crate::lifecycle::Lifecycle;
use crate::logging::Loggers;
use crate::net::{Acceptor, BoundAddress};
use crate::stats_sink::StatsConfig;
use crate::tls::Secrets;
use crate::upstream::ClusterManager;
use crate::upstream::worker::ConnectionIds;
use crate::version;

/// What only main can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Quit,
    ReopenLogs,
    DrainListeners(ListenerDrain),
    Reload,
}

/// What pages are told of.
pub struct Facts<'a> {
    pub options: &'a Options,
    pub node: &'a Node,
    pub store: &'a Rc<RefCell<Store>>,
    pub stats: Arc<StatsConfig>,
    /// With `stats_flush_on_admin`.
    pub flush: Option<Rc<Flusher>>,
    pub configs: &'a Rc<RefCell<Arc<Configs>>>,
    pub clusters: &'a ClusterManager,
    pub secrets: &'a Secrets,
    pub connection_ids: &'a ConnectionIds,
    pub lifecycle: &'a Arc<Lifecycle>,
    pub loggers: &'a Arc<Loggers>,
    pub runtime: &'a Rc<LayeredRuntime>,
    /// What came while it runs.
    pub shown: &'a Rc<RefCell<Shown>>,
    pub discovery: &'a DiscoveryManager,
    pub loops: &'a EventLoops,
}

/// Main's end of the admin interface.
pub struct AdminInterface {
    /// Where it listens, if it does.
    pub address: Option<Address>,
    /// What was asked for.
    pub acts: UnboundedReceiver<Act>,
    listeners: Rc<RefCell<Vec<ListenerView>>>,
    bound: Option<BoundAddress>,
    /// What begins to answer once a predecessor has let the address go.
    waiting: Option<(Rc<Admin>, Settings)>,
    serving: Option<AbortHandle>,
}

// === impl AdminInterface ===

impl AdminInterface {
    /// Listens and answers from now on, if the bootstrap has an admin address.
    /// Over the socket of a predecessor, it answers from [`Self::open`] on.
    pub fn start(
        config: Option<AdminConfig>,
        inherited: Vec<OwnedFd>,
        facts: &Facts<'_>,
    ) -> io::Result<AdminInterface> {
        let (sender, acts) = unbounded_channel();
        let listeners = Rc::<RefCell<Vec<ListenerView>>>::default();
        let Some(config) = config else {
            return Ok(AdminInterface { address: None, acts, listeners, bound: None, waiting: None, serving: None });
        };
        let waits = !inherited.is_empty();
        let bound = match waits {
            true => BoundAddress::adopt(&config.address, inherited, config.options, 1)?,
            false => BoundAddress::bind(&config.address, config.options, 1)?,
        };
        bound.listen()?;
        let address = bound.local().clone();
        tracing::info!(target: "admin", "admin address: {address}");
        write_address(&facts.options.admin_address_path, &address);
        let act = Rc::new(move |act| {
            // If main is gone, so is what the act was about.
            let _ = sender.send(act);
        });
        let pages = pages(facts, &act, listeners.clone());
        let context = WorkerContext {
            index: None,
            rng: Rng::from_os(),
            clock: WallClock::System,
            stats: facts.store.borrow().main().clone(),
            client: Rc::new(NoClusters),
            runtime: Rc::new(facts.runtime.handle()),
            vitals: Rc::new(NoVitals),
        };
        let settings = Settings {
            limits: Limits::default(),
            clock: context.clock,
            stats: AdminStats::new(&mut facts.store.borrow_mut()),
            logs: config.logs.iter().map(|log| log.instantiate(&context)).collect(),
            connection_ids: facts.connection_ids.clone(),
        };
        let server = Rc::new(Admin::new(pages, config.allow));
        let waiting = Some((server, settings));
        let (address, bound) = (Some(address), Some(bound));
        let mut interface = AdminInterface { address, acts, listeners, bound, waiting, serving: None };
        if !waits {
            interface.open()?;
        }
        Ok(interface)
    }

    /// Answers from now on.
    pub fn open(&mut self) -> io::Result<()> {
        if let (Some(bound), Some((server, settings))) = (&self.bound, self.waiting.take()) {
            self.serving = Some(admin::serve(Box::new(Acceptor::new(bound.socket(0)?)?), server, settings));
        }
        Ok(())
    }

    /// Answers no more.
    pub fn close(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
        self.bound = None;
    }

    /// Of its listening socket.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.bound.as_ref()?.sockets().next().map(AsRawFd::as_raw_fd)
    }

    /// The listeners that are active now.
    pub fn publish_listeners(&self, listeners: Vec<ListenerView>) {
        self.listeners.replace(listeners);
    }
}

fn pages(
    facts: &Facts<'_>,
    act: &Rc<impl Fn(Act) + 'static>,
    listeners: Rc<RefCell<Vec<ListenerView>>>,
) -> Vec<admin::Page> {
    let identity =
        admin::Identity { started: Instant::now(), command_line: facts.options.to_json(), node: node_json(facts.node) };
    let (quit, reopen, drain) = (act.clone(), act.clone(), act.clone());
    let mut pages = admin::process_pages();
    let runtime: Rc<dyn admin::RuntimeLayers> = facts.runtime.clone();
    pages.extend(admin::runtime_pages(&runtime));
    pages.extend(admin::thread_pages(facts.loops.clone()));
    pages.extend(admin::server_info_pages(identity, facts.lifecycle));
    let cold = facts.clusters.clone();
    let awaited = move || cold.awaited();
    pages.extend(admin::lifecycle_pages(facts.lifecycle, awaited, Rc::new(move || quit(Act::Quit))));
    pages.extend(admin::logging_pages(facts.loggers, move || reopen(Act::ReopenLogs)));
    let clusters = facts.clusters.clone();
    let views = clusters.clone();
    let health: Rc<dyn admin::HealthSource> = Rc::new(clusters.clone());
    pages.extend(admin::health_pages(&health, WallClock::System));
    let clusters: ClusterSource = Rc::new(move || clusters.active());
    pages.extend(admin::cluster_pages(&(Rc::new(move || views.views()) as ClusterViews)));
    let known = facts.clusters.clone();
    pages.extend(admin::discovery_pages(Rc::new(move |wanted| known.provenance(wanted)), WallClock::System));
    pages.extend(admin::config_pages(facts.configs, &clusters, dynamic(facts)));
    let (reload, options) = (act.clone(), facts.options.clone());
    pages.push(admin::Page::act("/reload", "read the configuration again", move |_| {
        match bootstrap::check(options.clone(), crate::extensions::standard()) {
            Ok(_) => {
                reload(Act::Reload);
                admin::Answer::ok()
            }
            Err(problems) => {
                let lines: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
                admin::Answer::error(http::StatusCode::BAD_REQUEST, lines)
            }
        }
    }));
    let secrets = facts.secrets.clone();
    pages.extend(admin::certificate_pages(move || secrets.contexts(), WallClock::System));
    let flush = facts.flush.clone().map(|flusher| Rc::new(move || flusher.flush()) as Rc<dyn Fn()>);
    pages.extend(admin::stats_pages(facts.store, &facts.stats, flush));
    pages.extend(admin::listener_pages(
        move || listeners.borrow().clone(),
        Rc::new(move |asked| drain(Act::DrainListeners(asked))),
    ));
    pages
}

/// What `/config_dump` shows of what came while the server runs.
fn dynamic(facts: &Facts<'_>) -> Rc<dyn Fn() -> Dynamic> {
    let (clusters, shown, discovery) = (facts.clusters.clone(), facts.shown.clone(), facts.discovery.clone());
    let secrets = facts.secrets.clone();
    Rc::new(move || {
        let shown = shown.borrow();
        let mut dynamic = Dynamic {
            clusters_version: shown.clusters_version.clone(),
            listeners_version: shown.listeners_version.clone(),
            secrets: secrets.views(),
            ..Dynamic::default()
        };
        for status in clusters.statuses() {
            let Some(version) = status.version else { continue };
            let list = if status.warming { &mut dynamic.warming_clusters } else { &mut dynamic.clusters };
            list.push(DynamicResource { version, bytes: status.bytes, updated: since_epoch(status.last_updated) });
        }
        dynamic.listeners = shown
            .listeners
            .iter()
            .map(|listener| {
                let updated = listener.updated.map(since_epoch).unwrap_or_default();
                DynamicResource { version: listener.version.clone(), bytes: listener.bytes.clone(), updated }
            })
            .collect();
        dynamic.routes = resources(discovery.shown_routes());
        dynamic.filters = discovery.shown_filters().map(resources);
        dynamic.scopes = discovery
            .shown_scopes()
            .into_iter()
            .map(|shown| {
                let updated = since_epoch(shown.updated);
                DynamicScopes { name: shown.name, version: shown.version, scopes: shown.scopes, updated }
            })
            .collect();
        dynamic
    })
}

fn resources(shown: Vec<discovered::Shown>) -> Vec<DynamicResource> {
    let resource = |shown: discovered::Shown| DynamicResource {
        version: shown.version.into(),
        bytes: shown.bytes,
        updated: since_epoch(shown.updated),
    };
    shown.into_iter().map(resource).collect()
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// For whoever started us on port 0. As in Envoy, a file that cannot be written is no reason not to run.
fn write_address(path: &str, address: &Address) {
    if path.is_empty() {
        return;
    }
    if let Err(e) = std::fs::write(Path::new(path), address.to_string()) {
        tracing::error!(target: "admin", "cannot write the admin address to '{path}': {e}");
    }
}

/// What `/config_dump` shows of the bootstrap: with the node as the command line made it.
pub fn configs(loaded: &LoadedBootstrap, node: &Node, clock: WallClock) -> Configs {
    const NODE: u32 = 1;
    let mut bootstrap = Vec::with_capacity(loaded.bytes.len());
    put(&mut bootstrap, NODE, &node.encode_to_vec());
    // The bytes come from an encoder and cannot be malformed; if they were, the rest would be missing in a dump.
    let (rest, _) = split(&loaded.bytes, &[NODE]).unwrap_or_default();
    bootstrap.extend_from_slice(&rest);
    fn all<T>(elements: &[Element<T>]) -> Vec<Bytes> {
        elements.iter().map(|element| element.bytes.clone()).collect()
    }
    Configs {
        bootstrap: bootstrap.into(),
        clusters: all(&loaded.clusters),
        listeners: all(&loaded.listeners),
        secrets: all(&loaded.secrets),
        loaded: clock.since_epoch(),
    }
}

/// `envoy.config.core.v3.Node` as `/server_info` shows it: other than in dumps, single fields are there when they are
/// zero, and lists when they are empty.
fn node_json(node: &Node) -> Value {
    let mut json = json_value("envoy.config.core.v3.Node", &node.encode_to_vec());
    let mut shown = json!({"id": node.id, "cluster": node.cluster});
    if let Some(metadata) = json.get_mut("metadata") {
        shown["metadata"] = metadata.take();
    }
    if let Some(locality) = &node.locality {
        shown["locality"] = json!({"region": locality.region, "zone": locality.zone, "sub_zone": locality.sub_zone});
    }
    shown["user_agent_name"] = node.user_agent_name.as_str().into();
    if let Some(version) = json.get_mut("user_agent_build_version") {
        let numbers = version["version"].take();
        let number = |name: &str| numbers.get(name).cloned().unwrap_or_else(|| 0.into());
        version["version"] = json!({
            "major_number": number("major_number"),
            "minor_number": number("minor_number"),
            "patch": number("patch"),
        });
        shown["user_agent_build_version"] = version.take();
    }
    for (name, empty) in [
        ("extensions", json!([])),
        ("client_features", json!([])),
        ("listening_addresses", json!([])),
        ("dynamic_parameters", json!({})),
    ] {
        shown[name] = json.get_mut(name).map_or(empty, Value::take);
    }
    shown
}

/// What Envoy's node says of the program: its name stays Envoy's, because control planes look at it.
pub fn user_agent(node: &mut Node) {
    let mut numbers = version::NUMBER.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let mut number = || numbers.next().unwrap_or(0);
    let text = |value: &str| Kind::StringValue(value.to_owned());
    let metadata = [
        ("revision.sha", version::REVISION),
        ("revision.status", version::REVISION_STATUS),
        ("build.type", version::BUILD_TYPE),
        ("ssl.version", version::SSL),
    ];
    let fields = metadata.map(|(name, value)| (name.to_owned(), wkt::Value { kind: Some(text(value)) }));
    node.user_agent_name = "envoy".to_owned();
    node.user_agent_version_type = Some(UserAgentVersionType::UserAgentBuildVersion(BuildVersion {
        version: Some(SemanticVersion { major_number: number(), minor_number: number(), patch: number() }),
        metadata: Some(wkt::Struct { fields: fields.into_iter().collect() }),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_shown_with_its_zeros() {
        let mut node = Node { id: "nn".into(), locality: Some(Default::default()), ..Default::default() };
        user_agent(&mut node);
        let json = node_json(&node);
        // The keys of Envoy 1.40.
        let keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = "id cluster locality user_agent_name user_agent_build_version extensions client_features \
                        listening_addresses dynamic_parameters";
        assert_eq!(keys.join(" "), expected);
        assert_eq!(json["locality"], json!({"region": "", "zone": "", "sub_zone": ""}));
        assert_eq!(json["user_agent_build_version"]["version"]["patch"], 0);
        assert_eq!(json["user_agent_build_version"]["metadata"]["ssl.version"], version::SSL);
    }
}
