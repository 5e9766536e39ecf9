//! A cluster whose hosts are discovered by a real source, out of a world that is written here: name servers and management
//! servers that say which hosts there are, and hosts that answer checks as they are told to.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::net::IpAddr;

use nuncio_core::dns::{DnsAnswer, DnsFailure, DnsResolver, IpFamily};
use nuncio_core::http::ResponseHead;
use nuncio_core::net::{Connect, ConnectOptions, Connected};
use nuncio_core::upstream::{AsyncClient, AsyncFailure, AsyncRequest, AsyncResponse, Host};
use nuncio_discovery::dns::{DnsResolvers, ResolverConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::upstream::dial::DialContext;
use crate::upstream::testing::memory;

/// Host 2 is 127.0.0.2:80.
fn ip(host: u16) -> IpAddr {
    let [high, low] = host.to_be_bytes();
    IpAddr::from([127, 0, high, low])
}

fn number(address: &Address) -> u16 {
    match address.socket().map(|socket| socket.ip()) {
        Some(IpAddr::V4(v4)) => u16::from_be_bytes([v4.octets()[2], v4.octets()[3]]),
        other => panic!("{other:?} is no host of this town"),
    }
}

/// How a host answers checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Well,
    Failing,
    Silent,
    Refusing,
    Degraded,
    /// A good head, and a body that never ends its ten megabytes in time.
    Dripping,
    /// Ten megabytes at once.
    Huge,
    Noise,
    /// The first bytes of a TLS alert.
    Tls,
    /// Half a head, then the end.
    Half,
}

/// Hosts by their number, which change their ways.
#[derive(Clone, Default)]
pub(super) struct Peers {
    ways: Rc<RefCell<HashMap<u16, Way>>>,
    pub(super) asked: Rc<Cell<usize>>,
}

impl Peers {
    pub(super) fn way(&self, host: u16) -> Way {
        self.ways.borrow().get(&host).copied().unwrap_or(Way::Well)
    }

    pub(super) fn set(&self, host: u16, way: Way) {
        self.ways.borrow_mut().insert(host, way);
    }

    async fn serve(self, host: u16, mut far: tokio::io::DuplexStream) {
        let mut head = Vec::new();
        while let Ok(byte) = far.read_u8().await {
            head.push(byte);
            if !head.ends_with(b"\r\n\r\n") {
                continue;
            }
            head.clear();
            self.asked.set(self.asked.get() + 1);
            let told = match self.way(host) {
                Way::Well => far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await,
                Way::Failing => far.write_all(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").await,
                Way::Degraded => {
                    far.write_all(b"HTTP/1.1 200 OK\r\nx-envoy-degraded: 1\r\ncontent-length: 0\r\n\r\n").await
                }
                Way::Silent => std::future::pending().await,
                Way::Refusing => return,
                Way::Dripping => loop {
                    if head.is_empty() {
                        head.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n");
                        far.write_all(&head).await.unwrap();
                    }
                    if far.write_all(b"x").await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                },
                Way::Huge => {
                    let sent = far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n").await;
                    sent.and(far.write_all(&vec![b'x'; 10_000_000]).await)
                }
                Way::Noise => far.write_all(&[0xff, 0, 0x80, 7, b'\n', 1, 2, 3]).await,
                Way::Tls => far.write_all(&[0x15, 3, 1, 0, 2, 2, 10]).await,
                Way::Half => {
                    let _ = far.write_all(b"HTTP/1.1 200 OK\r\nconte").await;
                    return;
                }
            };
            if told.is_err() {
                return;
            }
        }
    }
}

impl Connect for Peers {
    fn connect(&self, address: &Address, _: &ConnectOptions) -> LocalBoxFuture<'static, std::io::Result<Connected>> {
        let (peers, remote) = (self.clone(), address.clone());
        Box::pin(async move {
            let host = number(&remote);
            if peers.way(host) == Way::Refusing {
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            let (io, far) = memory();
            tokio::task::spawn_local(peers.serve(host, far));
            Ok(Connected { io, local: None, remote })
        })
    }
}

/// The discovery types that can drop a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Eds,
    Sds,
    StrictDns,
}

pub(super) const KINDS: [Kind; 3] = [Kind::Eds, Kind::Sds, Kind::StrictDns];

impl Kind {
    /// What makes a cluster one of this type.
    fn yaml(self) -> &'static str {
        match self {
            Self::Eds => {
                "type: EDS, eds_cluster_config: {eds_config: {resource_api_version: V3, api_config_source: {api_type: \
                 REST, transport_api_version: V3, cluster_names: [xds], refresh_delay: 0.3s, request_timeout: 1s}}}"
            }
            Self::Sds => {
                "cluster_type: {name: nuncio.clusters.sds, typed_config: {'@type': \
                 type.googleapis.com/nuncio.extensions.clusters.sds.v1.SdsCluster, sds_cluster: registry, \
                 refresh_delay: 0.3s}}"
            }
            Self::StrictDns => {
                "type: STRICT_DNS, dns_lookup_family: V4_ONLY, dns_refresh_rate: 0.3s, load_assignment: {cluster_name: \
                 c, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: web.test, port_value: \
                 80}}}}]}]}"
            }
        }
    }
}

/// Whoever is asked which hosts there are.
#[derive(Clone, Default)]
struct Authority(Rc<Listed>);

#[derive(Default)]
struct Listed {
    hosts: RefCell<BTreeSet<u16>>,
    /// Those that EDS calls unhealthy.
    failed: RefCell<BTreeSet<u16>>,
}

impl Authority {
    fn eds(&self) -> String {
        let failed = self.0.failed.borrow();
        let hosts = self.0.hosts.borrow();
        let each = hosts.iter().map(|host| {
            let health = if failed.contains(host) { "UNHEALTHY" } else { "UNKNOWN" };
            format!(
                r#"{{"endpoint":{{"address":{{"socket_address":{{"address":"{}","port_value":80}}}}}},"health_status":"{health}"}}"#,
                ip(*host)
            )
        });
        let each: Vec<_> = each.collect();
        format!(
            r#"{{"version_info":"{hosts:?}{failed:?}","resources":[{{"@type":"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment","cluster_name":"c","endpoints":[{{"lb_endpoints":[{}]}}]}}]}}"#,
            each.join(",")
        )
    }

    fn sds(&self) -> String {
        let mut text = r#"{"hosts":["#.to_owned();
        for (at, host) in self.0.hosts.borrow().iter().enumerate() {
            let joint = if at > 0 { "," } else { "" };
            write!(text, r#"{joint}{{"ip_address":"{}","port":80,"tags":{{"az":"a"}}}}"#, ip(*host)).unwrap();
        }
        text + "]}"
    }
}

impl AsyncClient for Authority {
    fn call(&self, to: &str, _: AsyncRequest) -> LocalBoxFuture<'static, Result<AsyncResponse, AsyncFailure>> {
        let body = if to == "xds" { self.eds() } else { self.sds() };
        let head = ResponseHead { status: 200, ..Default::default() };
        Box::pin(std::future::ready(Ok(AsyncResponse { head, body: body.into_bytes().into(), trailers: None })))
    }
}

impl DnsResolver for Authority {
    fn resolve(
        &self,
        _: &Arc<str>,
        _: IpFamily,
        _: Duration,
    ) -> LocalBoxFuture<'static, Result<Arc<DnsAnswer>, DnsFailure>> {
        let addresses = self.0.hosts.borrow().iter().map(|host| ip(*host)).collect();
        Box::pin(std::future::ready(Ok(Arc::new(DnsAnswer { addresses, ttl: None }))))
    }
}

impl DnsResolvers for Authority {
    fn resolver(&self, _: Option<&Rc<ResolverConfig>>) -> Rc<dyn DnsResolver> {
        Rc::new(self.clone())
    }
}

pub(super) struct Town {
    pub(super) main: Main,
    pub(super) peers: Peers,
    authority: Authority,
}

impl Town {
    /// A cluster `c` with these hosts, with or without checks; `more` is YAML of its fields.
    pub(super) fn new(kind: Kind, hosts: &[u16], checks: bool, more: &str) -> Self {
        let peers = Peers::default();
        Self::with(peers, kind, hosts, checks, more)
    }

    /// Whose peers are what they are from the beginning.
    pub(super) fn with(peers: Peers, kind: Kind, hosts: &[u16], checks: bool, more: &str) -> Self {
        let checks = if checks {
            "health_checks: [{timeout: 3s, interval: 5s, no_traffic_interval: 5s, unhealthy_threshold: 1, \
             healthy_threshold: 1, http_health_check: {path: /hc}}],"
        } else {
            ""
        };
        let yaml = format!(
            "{{name: c, {}, {checks} {more} common_lb_config: {{update_merge_window: 0s, healthy_panic_threshold: \
             {{value: 0}}}}}}",
            kind.yaml()
        );
        let source = nuncio_api::Source::text("test", nuncio_api::Format::Yaml, yaml);
        let loaded = nuncio_api::load_message::<pb::Cluster>(source, &nuncio_api::LoadOptions::default());
        let message = loaded.unwrap_or_else(|problems| panic!("{problems:#?}")).message;
        let authority = Authority::default();
        authority.0.hosts.borrow_mut().extend(hosts);
        let main = Main::in_world(Rc::new(authority.clone()), Rc::new(authority.clone()));
        let dial = DialContext { connect: Rc::new(peers.clone()), buffers: Rc::default(), rng: Rng::with_seed(1) };
        main.manager.probe_with(dial);
        main.add(&message).unwrap();
        main.start();
        Self { main, peers, authority }
    }

    /// These hosts there are, and the source has heard of it.
    pub(super) async fn discover(&self, hosts: &[u16]) {
        self.discover_failed(hosts, &[]).await;
    }

    /// As that; of some of them EDS says that they are not well.
    pub(super) async fn discover_failed(&self, hosts: &[u16], failed: &[u16]) {
        *self.authority.0.hosts.borrow_mut() = hosts.iter().copied().collect();
        *self.authority.0.failed.borrow_mut() = failed.iter().copied().collect();
        // The longest that a poll may be away.
        tokio::time::sleep(Duration::from_millis(650)).await;
        settle().await;
    }

    /// Long enough for every check that is due in it to end.
    pub(super) async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        settle().await;
    }

    pub(super) fn host(&self, host: u16) -> Option<Arc<Host>> {
        let clusters = self.main.manager.active();
        clusters.iter().flat_map(|cluster| cluster.hosts.hosts()).find(|h| number(h.address()) == host).cloned()
    }

    /// Its flags; none if it is gone.
    pub(super) fn flags(&self, host: u16) -> Option<String> {
        self.host(host).map(|host| host.flags().to_string())
    }

    /// Where a worker sends requests to.
    pub(super) fn routed(&self) -> BTreeSet<u16> {
        let Some(cluster) = self.main.worker.clusters.get("c") else { return BTreeSet::new() };
        let chosen = (0..40).filter_map(|_| match cluster.choose(&LbContext::default()) {
            Choice::Host(host) => Some(number(host.address())),
            _ => None,
        });
        chosen.collect()
    }

    pub(super) fn last_reason(&self) -> String {
        self.main.manager.transitions().first().map(|transition| transition.reason.to_string()).unwrap_or_default()
    }
}
