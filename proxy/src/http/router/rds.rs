//! Routes that come by themselves (RDS). A connection manager asks its [`DiscoveredRoutes`] for every request; a
//! follower on the main thread brings them.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use nuncio_api::pb::envoy::config::route::v3::RouteConfiguration;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::stats::lists::subscription as stat;
use nuncio_core::stats::{Scope, Stats};
use nuncio_discovery::xds::{ConfigSource, Decoded};

use super::RouteConfig;
use super::routes::compile;
use crate::http::discovered::{Asked, Counted, Followed};
use crate::http::filters::HttpFilters;

/// Routes of one connection manager that are not in its configuration. Read by all workers, written by main.
pub struct DiscoveredRoutes {
    asked: Asked,
    /// None until the first good answer: nothing is found.
    current: ArcSwapOption<RouteConfig>,
}

impl DiscoveredRoutes {
    pub fn new(source: ConfigSource, name: &str, stat_prefix: &str, filters: &Arc<HttpFilters>) -> Self {
        Self { asked: Asked::new(source, name, stat_prefix, filters), current: ArcSwapOption::empty() }
    }

    pub fn current(&self) -> Guard<Option<Arc<RouteConfig>>> {
        self.current.load()
    }
}

impl Followed for DiscoveredRoutes {
    type Resource = RouteConfiguration;
    type Made = RouteConfig;
    type Counts = stat::Routes;
    const SCOPE: &'static Scope = &stat::RDS_SCOPE;

    fn asked(&self) -> &Asked {
        &self.asked
    }

    fn stat_name(&self) -> String {
        format!("{}.rds.{}", self.asked.stat_prefix, self.asked.name)
    }

    fn described(&self) -> String {
        format!("the routes '{}'", self.asked.name)
    }

    fn absent(&self, resources: &[Decoded<RouteConfiguration>]) -> Option<String> {
        match resources {
            [] => None,
            [other] => {
                let (wanted, got) = (&self.asked.name, &other.message.name);
                Some(format!("Unexpected RDS configuration (expecting {wanted}): {got}"))
            }
            many => Some(format!("Unexpected RDS resource length: {}", many.len())),
        }
    }

    fn build(
        &self,
        message: &RouteConfiguration,
        context: &FactoryContext<'_>,
    ) -> Result<RouteConfig, Vec<ConfigError>> {
        compile(message, &self.asked.filters, false, context)
    }

    fn publish(&self, made: RouteConfig) {
        self.current.store(Some(Arc::new(made)));
    }

    fn count(counts: &Stats<stat::Routes>, counted: Counted) {
        match counted {
            Counted::Reload(at) => {
                counts.inc(stat::CONFIG_RELOAD);
                counts.set(stat::CONFIG_RELOAD_TIME_MS, at);
            }
            Counted::Empty => counts.inc(stat::UPDATE_EMPTY),
            Counted::Failed => {}
        }
    }
}
