//! `ratelimit` for connections: asks a service whether a new one is too many
//! (`envoy.extensions.filters.network.ratelimit.v3.RateLimit`).
//!
//! The descriptors are those of the configuration. Without an answer the connection goes on, unless
//! `failure_mode_deny`. Stats `ratelimit.<stat_prefix>.…`.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::extensions::filters::network::ratelimit::v3 as pb;
use nuncio_api::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use nuncio_api::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use nuncio_api::prost::Message;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::ConnectionInfo;
use nuncio_core::network::{
    MakeNetworkFilter, NetworkClose, NetworkFilter, NetworkFilterConfig, NetworkFilterFactory, NetworkStep,
    NetworkVerdict,
};
use nuncio_core::runtime::FractionalPercent;
use nuncio_core::stats::{List, Scope, ScopeId, Stats};
use nuncio_core::stream_info::StreamInfo;
use nuncio_core::time::duration;
use nuncio_core::upstream::grpc::GrpcService;
use tokio::time::Instant;

supports!(CONFIG = "envoy.extensions.filters.network.ratelimit.v3.RateLimit" {
    stat_prefix, domain, descriptors, timeout, failure_mode_deny, rate_limit_service
});
supports!(DESCRIPTOR = "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor" { entries });
supports!(PAIR = "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry" { key, value });
supports!(SERVICE = "envoy.config.ratelimit.v3.RateLimitServiceConfig" { grpc_service, transport_api_version });
pub(super) static SUPPORTED: [&Entry; 4] = [&CONFIG, &DESCRIPTOR, &PAIR, &SERVICE];

nuncio_core::stats! {
    /// What became of connections.
    pub RateLimit {
        gauge ACTIVE;
        counter CX_CLOSED;
        counter ERROR;
        counter FAILURE_MODE_ALLOWED;
        counter OK;
        counter OVER_LIMIT;
        counter TOTAL;
    }
}

static SCOPE: Scope = Scope { root: "ratelimit.", lists: &[RateLimit::descriptors] };

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Envoy's.
const TIMEOUT: Duration = Duration::from_millis(20);

pub struct Factory;

impl NetworkFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.network.ratelimit"
    }

    fn message(&self) -> &'static str {
        CONFIG.message
    }

    fn check(
        &self,
        config: &[u8],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn NetworkFilterConfig>, Vec<ConfigError>> {
        let proto = pb::RateLimit::decode(config).map_err(|e| vec![ConfigError::new("", e.to_string())])?;
        let missing = || vec![ConfigError::new("rate_limit_service.grpc_service", "value is required")];
        let mut service = proto.rate_limit_service.and_then(|s| s.grpc_service).ok_or_else(missing)?;
        // The filter's own timeout is the call's.
        service.timeout = None;
        let timeout = proto.timeout.as_ref().map_or(TIMEOUT, duration);
        let service = GrpcService::from_proto(&service, Some(timeout), context);
        let question = RateLimitRequest { domain: proto.domain, descriptors: proto.descriptors, hits_addend: 0 };
        Ok(Arc::new(Config(Arc::new(Settings {
            scope: context.scope(&SCOPE, &proto.stat_prefix.as_str().into()),
            service: service.map_err(|e| vec![e.within("rate_limit_service")])?,
            question,
            deny_on_failure: proto.failure_mode_deny,
        }))))
    }
}

struct Settings {
    scope: ScopeId,
    service: GrpcService,
    question: RateLimitRequest,
    deny_on_failure: bool,
}

struct Config(Arc<Settings>);

impl NetworkFilterConfig for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeNetworkFilter {
        let (settings, worker) = (self.0.clone(), worker.clone());
        let stats = Rc::new(Stats::new(&worker.stats, settings.scope));
        Box::new(move || Box::new(Filter { settings: settings.clone(), worker: worker.clone(), stats: stats.clone() }))
    }
}

struct Filter {
    settings: Arc<Settings>,
    worker: WorkerContext,
    stats: Rc<Stats<RateLimit>>,
}

impl Filter {
    fn on(&self, key: &str) -> bool {
        let fraction = self.worker.runtime.fraction(key).unwrap_or(FractionalPercent::ALL);
        fraction.includes(self.worker.rng.u64())
    }
}

impl NetworkFilter for Filter {
    fn on_new_connection(&mut self, connection: &Rc<ConnectionInfo>) -> NetworkStep {
        if !self.on("ratelimit.tcp_filter_enabled") {
            return NetworkStep::Continue;
        }
        self.stats.inc(TOTAL);
        let info = StreamInfo::new(self.worker.clock.now(), Instant::now());
        let told = LogContext { connection: Some(connection), ..LogContext::new(&info) };
        let call =
            self.settings.service.call::<RateLimitResponse>(METHOD, &self.settings.question, &told, &self.worker);
        let enforcing = self.on("ratelimit.tcp_filter_enforcing");
        let (stats, deny) = (self.stats.clone(), self.settings.deny_on_failure);
        let active = self.stats.gauge(ACTIVE);
        NetworkStep::Later(Box::pin(async move {
            let answer = call.await;
            drop(active);
            let limited = match answer {
                Ok(answer) if answer.overall_code() == Code::OverLimit => {
                    stats.inc(OVER_LIMIT);
                    enforcing
                }
                Ok(_) => {
                    stats.inc(OK);
                    false
                }
                Err(_) => {
                    stats.inc(ERROR);
                    if !deny {
                        stats.inc(FAILURE_MODE_ALLOWED);
                    }
                    deny
                }
            };
            if !limited {
                return NetworkVerdict::Continue;
            }
            stats.inc(CX_CLOSED);
            NetworkVerdict::Close(NetworkClose::new("ratelimit_close"))
        }))
    }
}
