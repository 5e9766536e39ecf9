//! `envoy.filters.network.rbac`: lets connections pass by policies (`envoy.extensions.filters.network.rbac.v3.RBAC`).
//!
//! As in Envoy it decides at the client's first byte (or its end), so a server that speaks first may be heard before;
//! with CONTINUOUS it decides at each piece of data. Shadow rules only count, and leave their verdict in the metadata
//! `envoy.filters.network.rbac`. A connection that is denied closes, after `delay_deny` if there is one, with the
//! reason `rbac_deny_close`. Stats `<stat_prefix>.rbac.…`. The forms `matcher` and `shadow_matcher` are not implemented.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::extensions::filters::network::rbac::v3 as pb;
use nuncio_api::prost::Message;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::ConnectionInfo;
use nuncio_core::network::{
    MakeNetworkFilter, NetworkClose, NetworkFilter, NetworkFilterConfig, NetworkFilterFactory, NetworkStep,
    NetworkVerdict,
};
use nuncio_core::stats::Scope;

use crate::rbac::{Attributes, Engines, Scopes, Tally, scopes, told};

supports!(CONFIG = "envoy.extensions.filters.network.rbac.v3.RBAC" {
    rules, shadow_rules, shadow_rules_stat_prefix, stat_prefix, enforcement_type, delay_deny
});
pub(crate) static SUPPORTED: &[&Entry] = &[&CONFIG];

const NAMESPACE: &str = "envoy.filters.network.rbac";

static SCOPES: [Scope; 2] = scopes("");

pub struct Factory;

struct Config {
    engines: Engines,
    continuous: bool,
    delay: Option<Duration>,
}

impl NetworkFilterFactory for Factory {
    fn name(&self) -> &'static str {
        NAMESPACE
    }

    fn message(&self) -> &'static str {
        CONFIG.message
    }

    fn check(
        &self,
        config: &[u8],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn NetworkFilterConfig>, Vec<ConfigError>> {
        let proto = pb::Rbac::decode(config).map_err(|e| vec![ConfigError::new("", e.to_string())])?;
        let engines = Engines::new(proto.rules.as_ref(), proto.shadow_rules.as_ref()).map_err(|e| vec![e])?;
        let engines = Engines { shadow_prefix: proto.shadow_rules_stat_prefix.clone(), ..engines };
        let [enforced, shadow] = &SCOPES;
        let scopes = Scopes::new([enforced, shadow], &proto.stat_prefix, "", &engines.shadow_prefix, context);
        let delay = proto.delay_deny.as_ref().map(nuncio_core::time::duration);
        let config = Config {
            engines,
            continuous: proto.enforcement_type() == pb::rbac::EnforcementType::Continuous,
            delay: delay.filter(|delay| !delay.is_zero()),
        };
        Ok(Arc::new(Checked { config: Arc::new(config), scopes }))
    }
}

struct Checked {
    config: Arc<Config>,
    scopes: Scopes,
}

impl NetworkFilterConfig for Checked {
    fn on_worker(&self, worker: &WorkerContext) -> MakeNetworkFilter {
        let tally = Rc::new(Tally::new(worker, self.scopes));
        let config = self.config.clone();
        Box::new(move || Box::new(Filter { config: config.clone(), tally: tally.clone(), decided: false }))
    }
}

struct Filter {
    config: Arc<Config>,
    tally: Rc<Tally>,
    decided: bool,
}

impl NetworkFilter for Filter {
    fn on_data(&mut self, _data: &[u8], _end_stream: bool, connection: &Rc<ConnectionInfo>) -> NetworkStep {
        if self.decided && !self.config.continuous {
            return NetworkStep::Continue;
        }
        self.decided = true;
        let engines = &self.config.engines;
        if let Some(engine) = &engines.shadow {
            let decision = Attributes::of_connection(connection, |attributes| engine.decide(attributes));
            self.tally.shadow(decision, false);
            connection.metadata.borrow_mut().merge(NAMESPACE, told(&engines.shadow_prefix, "shadow", decision));
        }
        let Some(engine) = &engines.enforced else { return NetworkStep::Continue };
        let decision = Attributes::of_connection(connection, |attributes| engine.decide(attributes));
        self.tally.enforced(decision, false);
        if decision.allowed {
            return NetworkStep::Continue;
        }
        let close =
            NetworkClose { termination_details: Some(decision.details()), ..NetworkClose::new("rbac_deny_close") };
        match self.config.delay {
            None => NetworkStep::Close(close),
            Some(delay) => NetworkStep::Later(Box::pin(async move {
                tokio::time::sleep(delay).await;
                NetworkVerdict::Close(close)
            })),
        }
    }

    fn reads_data(&self) -> bool {
        self.config.continuous || !self.decided
    }
}

#[cfg(test)]
mod tests;
