//! Configurations of HTTP filters that come by themselves (`config_discovery`, ECDS). A [`DiscoveredFilter`] stands in a
//! connection manager's list of filters; a follower on the main thread brings its configuration, and workers make their
//! filters anew for the streams that begin after it. Streams that run keep theirs.
//!
//! Without any configuration, and without a default one, requests are answered 500 with the flag NFCF, as by Envoy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use nuncio_api::any::type_name;
use nuncio_api::pb::envoy::config::core::v3::{ExtensionConfigSource, TypedExtensionConfig};
use nuncio_api::pb::google::protobuf::Any;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, FilterHalves, HttpFilter, LocalReply, MakeFilter, RequestHead, Step, StreamControl,
};
use nuncio_core::stats::lists::subscription as stat;
use nuncio_core::stats::{Scope, Stats};
use nuncio_core::stream_info::ResponseFlag;
use nuncio_discovery::xds::{ConfigSource, Decoded};

use super::discovered::{Asked, Counted, Followed};
use super::filters::HttpFilters;

supports!(pub(super) SOURCE = "envoy.config.core.v3.ExtensionConfigSource" {
    config_source, default_config, apply_default_config_without_warming, type_urls,
});
supports!(pub(super) RESOURCE = "envoy.config.core.v3.TypedExtensionConfig" { name, typed_config });

/// A filter of one connection manager whose configuration is not in the manager's. Read by all workers, written by main.
pub struct DiscoveredFilter {
    asked: Asked,
    /// What it may be: full names of messages.
    types: Vec<String>,
    default: Option<Arc<dyn HttpFilter>>,
    /// Nobody waits for the first answer.
    pub without_warming: bool,
    current: ArcSwapOption<Arc<dyn HttpFilter>>,
    /// How often `current` changed.
    version: AtomicU64,
}

impl DiscoveredFilter {
    pub fn from_proto(
        message: &ExtensionConfigSource,
        filters: &Arc<HttpFilters>,
        context: &FactoryContext<'_>,
    ) -> Result<Self, ConfigError> {
        let source = match &message.config_source {
            Some(source) => ConfigSource::from_proto(source),
            None => Err(ConfigError::new("", "value is required")),
        };
        for (i, url) in message.type_urls.iter().enumerate() {
            if filters.find(url).is_none() {
                let reason = format!("Error: no factory found for a required type URL {}.", type_name(url));
                return Err(ConfigError::new(format!("type_urls[{i}]"), reason));
            }
        }
        let source = source.map_err(|e| e.within("config_source"))?;
        let mut filter = Self {
            asked: Asked::new(source, context.name, context.stat_prefix, filters),
            types: message.type_urls.iter().map(|url| type_name(url).to_owned()).collect(),
            default: None,
            without_warming: message.apply_default_config_without_warming,
            current: ArcSwapOption::empty(),
            version: AtomicU64::new(0),
        };
        if let Some(config) = &message.default_config {
            filter.default = Some(filter.create(config, context).map_err(|e| e.within("default_config"))?);
        } else if filter.without_warming {
            let reason =
                format!("Error: filter config {} applied without warming but has no default config.", context.name);
            return Err(ConfigError::new("apply_default_config_without_warming", reason));
        }
        Ok(filter)
    }

    fn create(&self, config: &Any, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let is = type_name(&config.type_url);
        if !self.types.iter().any(|wanted| wanted == is) {
            let wanted = self.types.join(", ");
            return Err(ConfigError::new("", format!("Error: filter config has type URL {is} but expect {wanted}.")));
        }
        let missing = || ConfigError::new("", format!("Error: no factory found for a required type URL {is}."));
        self.asked.filters.find(is).ok_or_else(missing)?.create(config, context)
    }

    /// Another number, another configuration.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

impl HttpFilter for DiscoveredFilter {
    /// Of the configuration that there is now.
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        match (&*self.current.load(), &self.default) {
            (Some(current), _) => current.on_worker(worker),
            (None, Some(default)) => default.on_worker(worker),
            (None, None) => Box::new(|| FilterHalves { decode: Some(Box::new(Missing)), encode: None }),
        }
    }
}

/// Stands where there is no configuration.
struct Missing;

impl DecodeFilter for Missing {
    fn decode_headers(&mut self, _head: &mut RequestHead, _end: bool, _stream: &StreamControl) -> Step {
        // Envoy gives no details.
        Step::respond(LocalReply::new(500, "").flag(ResponseFlag::NoFilterConfigFound))
    }

    fn reset(&mut self) {}
}

impl Followed for DiscoveredFilter {
    type Resource = TypedExtensionConfig;
    type Made = Arc<dyn HttpFilter>;
    type Counts = stat::Extension;
    const SCOPE: &'static Scope = &stat::HTTP_FILTER_SCOPE;

    fn asked(&self) -> &Asked {
        &self.asked
    }

    fn stat_name(&self) -> String {
        self.asked.name.clone()
    }

    fn described(&self) -> String {
        format!("the settings of the filter '{}'", self.asked.name)
    }

    fn absent(&self, resources: &[Decoded<TypedExtensionConfig>]) -> Option<String> {
        Some(match resources {
            [other] => format!("Unexpected resource name in ExtensionConfigDS response: {}", other.message.name),
            all => format!("Unexpected number of resources in ExtensionConfigDS response: {}", all.len()),
        })
    }

    fn build(
        &self,
        message: &TypedExtensionConfig,
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn HttpFilter>, Vec<ConfigError>> {
        let Some(config) = &message.typed_config else {
            return Err(vec![ConfigError::new("typed_config", "value is required")]);
        };
        let context = FactoryContext { name: &self.asked.name, ..*context };
        self.create(config, &context).map_err(|e| vec![e.within("typed_config")])
    }

    fn publish(&self, made: Arc<dyn HttpFilter>) {
        self.current.store(Some(Arc::new(made)));
        self.version.fetch_add(1, Ordering::Release);
    }

    fn count(counts: &Stats<stat::Extension>, counted: Counted) {
        match counted {
            Counted::Reload(_) => counts.inc(stat::EXTENSION_RELOAD),
            Counted::Failed => counts.inc(stat::CONFIG_FAIL),
            Counted::Empty => {}
        }
    }
}
