//! What the doctor asks of the outside: a running proxy's admin, the hosts it names, and the service itself. All of it
//! goes over the same clusters, connections and TLS that the proxy has.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Request};
use nuncio_api::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest, CheckResponse};
use nuncio_core::access_log::LogContext;
use nuncio_core::extension::{FactoryContext, NoVitals, WorkerContext};
use nuncio_core::http::{Framing, RequestHead};
use nuncio_core::net::{Address, Connect, ConnectOptions};
use nuncio_core::random::Rng;
use nuncio_core::runtime::NoRuntime;
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::stats::{Store, WorkerStats};
use nuncio_core::stream_info::StreamInfo;
use nuncio_core::time::{WallClock, duration};
use nuncio_core::upstream::{AsyncFailure, AsyncRequest, GrpcService, Host, HostSet, HostSpec, PrioritySet};
use serde_json::Value;
use tokio::time::Instant;

use super::references::{Reference, Service};
use crate::access_log::file::{FlushPolicy, LogWriter};
use crate::codec::Buffers;
use crate::format::Formats;
use crate::net::Sockets;
use crate::upstream::thread_local::ClusterContext;
use crate::upstream::{ClusterClient, ClusterConfig, ClusterDefaults, ClusterSnapshot, ClusterUpdate, Clusters};

/// How long admin and hosts have.
const PATIENCE: Duration = Duration::from_secs(5);

/// The path of the gRPC check.
const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

/// A host as the running proxy sees it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HostStatus {
    pub(super) address: Address,
    /// Why it gets no requests.
    pub(super) sick: Option<String>,
}

/// One thread's clusters, made for one visit.
pub(super) struct Visit {
    store: RefCell<Store>,
    clusters: Rc<Clusters>,
    worker: WorkerContext,
}

impl Visit {
    pub(super) fn new() -> Self {
        let store = Store::new();
        let stats = WorkerStats::new(|_| ());
        let clusters = Clusters::new(ClusterContext {
            connect: Rc::new(Sockets::default()),
            buffers: Buffers::of_this_thread(),
            rng: Rng::from_os(),
            stats: stats.clone(),
            connection_ids: Default::default(),
            own_listeners: Default::default(),
        });
        let worker = WorkerContext {
            index: None,
            rng: Rng::from_os(),
            clock: WallClock::System,
            stats,
            client: Rc::new(ClusterClient::new(&clusters)),
            runtime: Rc::new(NoRuntime),
            vitals: Rc::new(NoVitals),
        };
        Self { store: RefCell::new(store), clusters, worker }
    }

    /// A cluster with these hosts.
    fn publish(&self, config: ClusterConfig, addresses: &[Address]) {
        let hosts = addresses.iter().map(|address| Arc::new(Host::new(HostSpec::new(address.clone())))).collect();
        let hosts =
            PrioritySet { priorities: vec![Arc::new(HostSet::new(hosts, |_| 0, 140))], ..PrioritySet::default() };
        let scope = self.store.borrow_mut().scope(&stat::SCOPE, config.name());
        let (config, hosts) = (Arc::new(config), Arc::new(hosts));
        let snapshot = ClusterSnapshot { config, breakers: Default::default(), shared: None, hosts, scope };
        self.clusters.apply(&[ClusterUpdate::Set(Arc::new(snapshot))]);
    }

    /// The hosts of `cluster`, as the admin tells; `None` if it has no such cluster.
    pub(super) async fn hosts(&self, admin: SocketAddr, cluster: &str) -> Result<Option<Vec<HostStatus>>, String> {
        let message = Cluster { name: "the admin".into(), ..Cluster::default() };
        let config = ClusterConfig::from_proto(&message, false, &ClusterDefaults::default());
        let config = config.map_err(|errors| format!("{errors:?}"))?;
        self.publish(config, &[Address::Ip(admin)]);
        let answer = self.worker.client.call("the admin", get("/clusters?format=json", "admin")).await;
        let answer = answer.map_err(|failure| format!("the admin at {admin} does not answer: {failure}"))?;
        let told: Value = serde_json::from_slice(&answer.body)
            .map_err(|error| format!("the admin at {admin} answered {} and no JSON: {error}", answer.head.status))?;
        Ok(hosts_of(&told, cluster))
    }

    /// Whether the service of `reference` answers at one of the addresses: what it said, and after how long.
    pub(super) async fn check(
        &self,
        reference: &Reference,
        config: ClusterConfig,
        addresses: &[Address],
    ) -> Result<(String, Duration), AsyncFailure> {
        self.publish(config, addresses);
        let began = Instant::now();
        let said = match &reference.service {
            Service::Grpc(service) => self.check_by_grpc(service).await?,
            Service::Http(service) => {
                let timeout = service.server_uri.as_ref().and_then(|uri| uri.timeout.as_ref()).map(duration);
                let mut request = get(&format!("{}/", service.path_prefix), "doctor.test");
                request.timeout = timeout.or(request.timeout);
                let answer = self.worker.client.call(&reference.cluster, request).await?;
                format!("it says {}", answer.head.status)
            }
        };
        Ok((said, began.elapsed()))
    }

    async fn check_by_grpc(
        &self,
        service: &nuncio_api::pb::envoy::config::core::v3::GrpcService,
    ) -> Result<String, AsyncFailure> {
        let nowhere = |error: String| AsyncFailure::Reset(error);
        let (warnings, node, scopes) = (RefCell::default(), Arc::default(), RefCell::default());
        let log_files = LogWriter::new(FlushPolicy::default());
        let context = FactoryContext {
            name: "doctor",
            stat_prefix: "doctor",
            has_cluster: &|_| true,
            warnings: &warnings,
            node: &node,
            stats: &self.store,
            log_files: &log_files,
            formats: &Formats,
            scopes: &scopes,
        };
        let service = GrpcService::from_proto(service, Some(Duration::from_millis(200)), &context);
        let service = service.map_err(|error| nowhere(format!("{}: {}", error.path, error.reason)))?;
        let http = HttpRequest {
            method: "GET".into(),
            path: "/".into(),
            host: "doctor.test".into(),
            scheme: "http".into(),
            protocol: "HTTP/1.1".into(),
            ..HttpRequest::default()
        };
        let request = Request { http: Some(http), ..Request::default() };
        let attributes = AttributeContext { request: Some(request), ..AttributeContext::default() };
        let question = CheckRequest { attributes: Some(attributes) };
        let info = StreamInfo::new(self.worker.clock.now(), Instant::now());
        let call = service.call::<CheckResponse>(CHECK, &question, &LogContext::new(&info), &self.worker);
        match call.await {
            Ok(answer) => Ok(match answer.status.map_or(0, |status| status.code) {
                0 => "it lets GET / pass".into(),
                code => format!("it refuses GET / with status {code}"),
            }),
            Err(failure) => Err(failure.transport.clone().unwrap_or_else(|| nowhere(failure.to_string()))),
        }
    }
}

fn get(path: &str, host: &str) -> AsyncRequest {
    let mut head = RequestHead { framing: Framing::None, ..RequestHead::default() };
    for (name, value) in [(":method", "GET"), (":path", path), (":scheme", "http"), (":authority", host)] {
        head.headers.append(name, value);
    }
    AsyncRequest {
        head,
        body: Bytes::new(),
        timeout: Some(PATIENCE),
        max_response_bytes: 64 << 20,
        hash: None,
        send_xff: false,
    }
}

/// Whether somebody listens there.
pub(super) async fn connect(address: &Address) -> io::Result<()> {
    let connecting = Sockets::default().connect(address, &ConnectOptions::default());
    tokio::time::timeout(PATIENCE, connecting).await.map_err(|_| io::ErrorKind::TimedOut)?.map(drop)
}

/// From `/clusters?format=json`.
fn hosts_of(told: &Value, cluster: &str) -> Option<Vec<HostStatus>> {
    let statuses = told["cluster_statuses"].as_array()?;
    let status = statuses.iter().find(|status| status["name"] == cluster)?;
    let hosts = status["host_statuses"].as_array().map_or(&[][..], Vec::as_slice);
    Some(hosts.iter().filter_map(host_of).collect())
}

fn host_of(host: &Value) -> Option<HostStatus> {
    let socket = &host["address"]["socket_address"];
    let address = match socket["address"].as_str() {
        Some(ip) => Address::Ip(SocketAddr::new(ip.parse().ok()?, u16::try_from(socket["port_value"].as_u64()?).ok()?)),
        None => Address::Pipe(host["address"]["pipe"]["path"].as_str()?.into()),
    };
    let health = host["health_status"].as_object();
    let mut failed =
        health.into_iter().flatten().filter(|(name, value)| name.starts_with("failed_") && **value == true);
    let discovered = host["health_status"]["eds_health_status"].as_str().unwrap_or("HEALTHY");
    let sick = failed.next().map(|(name, _)| name.replace('_', " "));
    let unwanted =
        matches!(discovered, "UNHEALTHY" | "DRAINING" | "TIMEOUT").then(|| format!("discovery says {discovered}"));
    Some(HostStatus { address, sick: sick.or(unwanted) })
}

#[cfg(test)]
mod tests {
    use super::*;

    // As Envoy 1.40 writes it.
    #[test]
    fn hosts_and_their_health_are_read_from_the_admin() {
        let told = serde_json::json!({"cluster_statuses": [{"name": "authz", "host_statuses": [
            {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 7}}, "health_status": {"eds_health_status": "HEALTHY"}},
            {"address": {"pipe": {"path": "/s"}}, "health_status": {"eds_health_status": "HEALTHY", "failed_active_health_check": true}},
            {"address": {"socket_address": {"address": "::1", "port_value": 8}}, "health_status": {"eds_health_status": "DRAINING"}},
        ]}, {"name": "empty"}]});
        let sick =
            |hosts: Vec<HostStatus>| hosts.into_iter().map(|h| (h.address.to_string(), h.sick)).collect::<Vec<_>>();
        let expected = [
            ("127.0.0.1:7".to_owned(), None),
            ("/s".to_owned(), Some("failed active health check".to_owned())),
            ("[::1]:8".to_owned(), Some("discovery says DRAINING".to_owned())),
        ];
        assert_eq!(hosts_of(&told, "authz").map(sick).unwrap(), expected);
        assert_eq!(hosts_of(&told, "empty"), Some(vec![]));
        assert_eq!(hosts_of(&told, "none"), None);
    }
}
