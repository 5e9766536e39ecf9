//! `envoy.filters.network.ext_authz`: asks an authorization service about each connection
//! (`envoy.extensions.filters.network.ext_authz.v3.ExtAuthz`).
//!
//! As in Envoy it asks at the client's first byte (or its end), so a server that speaks first may be heard before; the
//! bytes wait for the answer. A no, or an error without `failure_mode_allow`, closes the connection with flag `UAEX`.
//! Stats `ext_authz.<stat_prefix>.…`; metadata `envoy.filters.network.ext_authz`.

use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::config::core::v3::{ApiVersion, Metadata as ProtoMetadata};
use nuncio_api::pb::envoy::extensions::filters::network::ext_authz::v3 as pb;
use nuncio_api::pb::envoy::service::auth::v3::{CheckRequest, CheckResponse};
use nuncio_api::prost::Message;
use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::matcher::MetadataMatcher;
use nuncio_core::net::ConnectionInfo;
use nuncio_core::network::{
    MakeNetworkFilter, NetworkClose, NetworkFilter, NetworkFilterConfig, NetworkFilterFactory, NetworkStep,
    NetworkVerdict,
};
use nuncio_core::stats::{List, Scope, ScopeId, Stats};
use nuncio_core::stream_info::{ResponseFlag, StreamInfo};
use nuncio_core::upstream::{GrpcFailure, GrpcService};
use tokio::time::Instant;

use super::check_request::{self, Telling};
use super::config::{DEFAULT_TIMEOUT, labels};
use super::grpc_client::CHECK;

supports!(pub(super) CONFIG = "envoy.extensions.filters.network.ext_authz.v3.ExtAuthz" {
    stat_prefix, grpc_service, failure_mode_allow, include_peer_certificate, transport_api_version,
    filter_enabled_metadata, bootstrap_metadata_labels_key, include_tls_session, metadata_context_namespaces
} noop {
    typed_metadata_context_namespaces: "no filter here writes typed metadata"
});

nuncio_core::stats! {
    /// `ext_authz.<stat_prefix>.`
    pub NetworkExtAuthz {
        counter CX_CLOSED;
        counter DENIED;
        counter DISABLED;
        counter ERROR;
        counter FAILURE_MODE_ALLOWED;
        counter OK;
        counter TOTAL;
        gauge ACTIVE;
    }
}

static SCOPE: Scope = Scope { root: "ext_authz.", lists: &[NetworkExtAuthz::descriptors] };

const NAMESPACE: &str = "envoy.filters.network.ext_authz";

pub struct Factory;

struct Config {
    service: GrpcService,
    failure_mode_allow: bool,
    telling: Telling,
    enabled_metadata: Option<MetadataMatcher>,
    scope: ScopeId,
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
        let proto = pb::ExtAuthz::decode(config).map_err(|e| vec![ConfigError::new("", e.to_string())])?;
        Ok(Arc::new(Checked(Arc::new(Config::new(proto, context).map_err(|e| vec![e])?))))
    }
}

impl Config {
    fn new(proto: pb::ExtAuthz, context: &FactoryContext<'_>) -> Result<Self, ConfigError> {
        if proto.transport_api_version() != ApiVersion::V3 {
            let reason = "V2 (and AUTO) transport protocol versions are deprecated";
            return Err(ConfigError::new("transport_api_version", reason));
        }
        let service =
            proto.grpc_service.as_ref().ok_or_else(|| ConfigError::new("grpc_service", "value is required"))?;
        let service = GrpcService::from_proto(service, Some(DEFAULT_TIMEOUT), context);
        let enabled_metadata = proto.filter_enabled_metadata.as_ref().map(MetadataMatcher::from_proto).transpose();
        Ok(Self {
            service: service.map_err(|e| e.within("grpc_service"))?,
            failure_mode_allow: proto.failure_mode_allow,
            telling: Telling {
                peer_certificate: proto.include_peer_certificate,
                tls_session: proto.include_tls_session,
                labels: labels(&proto.bootstrap_metadata_labels_key, context),
                namespaces: proto.metadata_context_namespaces,
                route_namespaces: Vec::new(),
            },
            enabled_metadata: enabled_metadata.map_err(|e| e.within("filter_enabled_metadata"))?,
            scope: context.scope(&SCOPE, &proto.stat_prefix.as_str().into()),
        })
    }
}

struct Checked(Arc<Config>);

impl NetworkFilterConfig for Checked {
    fn on_worker(&self, worker: &WorkerContext) -> MakeNetworkFilter {
        let shared = Rc::new(Shared {
            config: self.0.clone(),
            stats: Stats::new(&worker.stats, self.0.scope),
            worker: worker.clone(),
        });
        Box::new(move || Box::new(Filter { shared: shared.clone(), asked: false }))
    }
}

struct Shared {
    config: Arc<Config>,
    stats: Stats<NetworkExtAuthz>,
    worker: WorkerContext,
}

struct Filter {
    shared: Rc<Shared>,
    asked: bool,
}

impl NetworkFilter for Filter {
    fn on_data(&mut self, _data: &[u8], _end_stream: bool, connection: &Rc<ConnectionInfo>) -> NetworkStep {
        if std::mem::replace(&mut self.asked, true) {
            return NetworkStep::Continue;
        }
        let shared = self.shared.clone();
        let config = &*shared.config;
        if config.enabled_metadata.as_ref().is_some_and(|matcher| !matcher.matches(&connection.metadata.borrow())) {
            shared.stats.inc(DISABLED);
            return NetworkStep::Continue;
        }
        shared.stats.inc(TOTAL);
        let active = shared.stats.gauge(ACTIVE);
        let call = shared.ask(connection);
        let connection = connection.clone();
        NetworkStep::Later(Box::pin(async move {
            let answer = call.await;
            drop(active);
            shared.decide(answer, &connection)
        }))
    }

    fn reads_data(&self) -> bool {
        !self.asked
    }
}

impl Shared {
    fn ask(&self, connection: &ConnectionInfo) -> impl Future<Output = Result<CheckResponse, GrpcFailure>> + use<> {
        let config = &*self.config;
        let mut attributes = check_request::of_connection(&config.telling, Some(connection), String::new());
        let known = connection.metadata.borrow();
        let found = |name: &String| Some((name.clone(), known.0.get(name)?.clone()));
        let filter_metadata = config.telling.namespaces.iter().filter_map(found).collect();
        attributes.metadata_context = Some(ProtoMetadata { filter_metadata, ..ProtoMetadata::default() });
        let question = CheckRequest { attributes: Some(attributes) };
        let info = StreamInfo::new(self.worker.clock.now(), Instant::now());
        let told = LogContext { connection: Some(connection), rng: Some(&self.worker.rng), ..LogContext::new(&info) };
        config.service.call::<CheckResponse>(CHECK, &question, &told, &self.worker)
    }

    fn decide(&self, answer: Result<CheckResponse, GrpcFailure>, connection: &ConnectionInfo) -> NetworkVerdict {
        let details = match answer {
            Ok(message) => {
                let code = message.status.as_ref().map_or(0, |status| status.code);
                if let Some(metadata) = message.dynamic_metadata.filter(|metadata| !metadata.fields.is_empty()) {
                    connection.metadata.borrow_mut().merge(NAMESPACE, metadata);
                }
                if code == 0 {
                    self.stats.inc(OK);
                    return NetworkVerdict::Continue;
                }
                self.stats.inc(DENIED);
                "ext_authz_denied"
            }
            Err(failure) => {
                tracing::debug!(target: "ext_authz", "the check of a connection failed: {failure}");
                self.stats.inc(ERROR);
                if self.config.failure_mode_allow {
                    self.stats.inc(FAILURE_MODE_ALLOWED);
                    return NetworkVerdict::Continue;
                }
                "ext_authz_error"
            }
        };
        self.stats.inc(CX_CLOSED);
        NetworkVerdict::Close(NetworkClose {
            code_details: Some(details.into()),
            flag: Some(ResponseFlag::UnauthorizedExternalService),
            ..NetworkClose::new("ext_authz_close")
        })
    }
}

#[cfg(test)]
mod tests;
