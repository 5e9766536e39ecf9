//! `envoy.filters.http.rbac`: lets requests pass by policies (`envoy.extensions.filters.http.rbac.v3.RBAC`, per route
//! `RBACPerRoute`, which replaces the filter's rules).
//!
//! Paths and headers are those that the router matches: normalised once by the manager. Without `rules` everything
//! passes; shadow rules only count and leave their verdict in the dynamic metadata `envoy.filters.http.rbac`. No
//! response flag; details `rbac_access_denied_matched_policy[<policy or none>]`; stats `http.<prefix>.rbac.…`. The forms
//! `matcher` and `shadow_matcher` and conditions in CEL are not implemented.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::filters::http::rbac::v3 as pb;
use nuncio_api::pb::google::protobuf::{Any as ProtoAny, Struct, Value, value::Kind};
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, FilterHalves, HttpFilter, HttpFilterFactory, LocalReply, MakeFilter, RequestHead, Step, StreamControl,
};
use nuncio_core::stats::Scope;

use crate::rbac::{Attributes, Engines, Scopes, Tally, scopes, told};

supports!(CONFIG = "envoy.extensions.filters.http.rbac.v3.RBAC" {
    rules, rules_stat_prefix, shadow_rules, shadow_rules_stat_prefix, track_per_rule_stats
});
supports!(ROUTE = "envoy.extensions.filters.http.rbac.v3.RBACPerRoute" { rbac });
pub(crate) static SUPPORTED: &[&Entry] = &[&CONFIG, &ROUTE];

/// Where verdicts are left, whatever the filter is called.
const NAMESPACE: &str = "envoy.filters.http.rbac";

static SCOPES: [Scope; 2] = scopes("http.");

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        NAMESPACE
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(ROUTE.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let engines = engines(unpack(config)?)?;
        let [enforced, shadow] = &SCOPES;
        let scopes =
            Scopes::new([enforced, shadow], context.stat_prefix, &engines.prefix, &engines.shadow_prefix, context);
        Ok(Arc::new(Config { name: context.name.into(), scopes, engines: Arc::new(engines) }))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        let route: pb::RbacPerRoute = unpack(config)?;
        Ok(Arc::new(engines(route.rbac.unwrap_or_default()).map_err(|e| e.within("rbac"))?))
    }
}

fn engines(proto: pb::Rbac) -> Result<Engines, ConfigError> {
    Ok(Engines {
        prefix: proto.rules_stat_prefix,
        shadow_prefix: proto.shadow_rules_stat_prefix,
        per_policy: proto.track_per_rule_stats,
        ..Engines::new(proto.rules.as_ref(), proto.shadow_rules.as_ref())?
    })
}

struct Config {
    name: Arc<str>,
    scopes: Scopes,
    engines: Arc<Engines>,
}

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let tally = Rc::new(Tally::new(worker, self.scopes));
        let (name, engines) = (self.name.clone(), self.engines.clone());
        Box::new(move || {
            let filter = Filter { name: name.clone(), engines: engines.clone(), tally: tally.clone() };
            FilterHalves { decode: Some(Box::new(filter)), encode: None }
        })
    }
}

struct Filter {
    name: Arc<str>,
    engines: Arc<Engines>,
    tally: Rc<Tally>,
}

impl DecodeFilter for Filter {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        let of_route = stream.route_config::<Engines>(&self.name);
        let engines = of_route.as_deref().unwrap_or(&self.engines);
        if let Some(engine) = &engines.shadow {
            let Some(decision) = Attributes::of_request(head, stream, |attributes| engine.decide(attributes)) else {
                return unknown();
            };
            self.tally.shadow(decision, engines.per_policy);
            let told = told(&engines.shadow_prefix, "shadow", decision);
            stream.info_mut().dynamic_metadata.merge(NAMESPACE, told);
        }
        let Some(engine) = &engines.enforced else { return Step::CONTINUE };
        let Some(decision) = Attributes::of_request(head, stream, |attributes| engine.decide(attributes)) else {
            return unknown();
        };
        self.tally.enforced(decision, engines.per_policy);
        let mut info = stream.info_mut();
        info.dynamic_metadata.merge(NAMESPACE, told(&engines.prefix, "enforced", decision));
        if engine.is_for_logs() {
            let hint = Value { kind: Some(Kind::BoolValue(decision.policy.is_some())) };
            let hint = Struct { fields: [("access_log_hint".to_owned(), hint)].into_iter().collect() };
            info.dynamic_metadata.merge("envoy.common", hint);
        }
        match decision.allowed {
            true => Step::CONTINUE,
            false => Step::respond(LocalReply::new(403, decision.details()).body("RBAC: access denied")),
        }
    }

    fn reset(&mut self) {}
}

/// Nothing is known of who asks.
fn unknown() -> Step {
    Step::respond(LocalReply::new(403, "rbac_access_denied_matched_policy[none]").body("RBAC: access denied"))
}
