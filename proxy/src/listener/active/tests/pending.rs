//! The way of a socket to its terminal filter: listener filters and their time, hand-off, handshakes that never end.

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::core::v3::Node;
use nuncio_api::pb::envoy::config::listener::v3 as pb;
use nuncio_api::{Format, LoadOptions, Source, load_message};
use nuncio_core::extension::FactoryContext;
use nuncio_core::net::Io;
use nuncio_core::network::{DownstreamTransportSocket, TransportFailure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::access_log::file::{FlushPolicy, LogWriter};
use crate::listener::config::SocketPolicy;

/// Listeners of one worker, and connections in memory.
struct Listeners {
    house: House,
    worker: Rc<Worker>,
    active: ActiveListeners,
}

impl Listeners {
    /// Each in YAML, named `l1`, `l2`, …; echo is their last filter.
    fn new(messages: &[&str]) -> Self {
        let house = House::new(Cluster::default(), 1);
        let worker = house.worker();
        let mut active = ActiveListeners::new(worker.clone(), policy());
        for (i, message) in messages.iter().enumerate() {
            let config = check(&house, &format!("l{}", i + 1), message);
            active.apply(ListenerCommand::Start { id: ListenerId(i as u64), config, sockets: Vec::new() });
        }
        Self { house, worker, active }
    }

    /// A connection that the first listener accepts.
    fn connect(&self) -> DuplexStream {
        let (io, client) = memory();
        let address = |port| Address::Ip(([127, 0, 0, 1], port).into());
        let info = ConnectionInfo::new(self.worker.connection_ids.next(), address(9), address(15001));
        self.active.active[&ListenerId(0)].serving.take(io, Vec::new(), info, Instant::now(), true);
        client
    }

    fn stat(&self, name: &str) -> u64 {
        self.house.store.borrow_mut().value(&format!("listener.{name}")).unwrap()
    }
}

fn check(house: &House, name: &str, message: &str) -> Arc<ListenerConfig> {
    const FILTERS: &str = "type.googleapis.com/envoy.extensions.filters";
    let text = message
        .replace(
            "ECHO",
            &format!("filters: [{{name: e, typed_config: {{\"@type\": {FILTERS}.network.echo.v3.Echo}}}}]"),
        )
        .replace(
            "PROXY",
            &format!("{{name: p, typed_config: {{\"@type\": {FILTERS}.listener.proxy_protocol.v3.ProxyProtocol}}}}"),
        )
        .replace(
            "TLS",
            &format!("{{name: t, typed_config: {{\"@type\": {FILTERS}.listener.tls_inspector.v3.TlsInspector}}}}"),
        );
    let loaded = load_message::<pb::Listener>(Source::text("test", Format::Yaml, text), &LoadOptions::default());
    let message = loaded.unwrap_or_else(|problems| panic!("{problems:#?}")).message;
    let (warnings, scopes, node) = (RefCell::default(), RefCell::default(), Arc::new(Node::default()));
    let context = FactoryContext {
        name: "",
        stat_prefix: "",
        has_cluster: &|_| false,
        warnings: &warnings,
        node: &node,
        stats: &house.store,
        log_files: &LogWriter::new(FlushPolicy::default()),
        formats: &crate::format::Formats,
        scopes: &scopes,
    };
    let sockets = SocketPolicy { workers: 1, share: false };
    let extensions = crate::extensions::standard().network;
    let config = ListenerConfig::check(&message, name, &extensions, sockets, &context);
    Arc::new(config.unwrap_or_else(|errors| panic!("{errors:#?}")))
}

/// What comes back of `text`; empty: the proxy closed.
async fn echo(client: &mut DuplexStream, text: &str) -> String {
    let _ = client.write_all(text.as_bytes()).await;
    let mut buf = [0; 64];
    let n = client.read(&mut buf).await.unwrap_or(0);
    String::from_utf8_lossy(&buf[..n]).into_owned()
}

const HEADER: &str = "PROXY TCP4 203.0.113.9 198.51.100.1 5555 443\r\n";

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_silent_client_is_closed_when_the_listener_filters_time_is_up_or_goes_on_if_that_was_asked_for() {
    for (goes_on, more) in [(false, ""), (true, ", continue_on_listener_filters_timeout: true")] {
        let listeners = Listeners::new(&[&format!(
            "{{stat_prefix: a, address: {{socket_address: {{address: 127.0.0.1, port_value: 15001}}}}, listener_filters: [TLS], \
             listener_filters_timeout: 0.3s{more}, filter_chains: [{{ECHO}}]}}"
        )]);
        let mut client = listeners.connect();
        settle().await;
        assert_eq!((listeners.stat("a.downstream_pre_cx_active"), listeners.stat("a.downstream_cx_total")), (1, 0));
        tokio::time::sleep(Duration::from_millis(299)).await;
        assert_eq!(listeners.stat("a.downstream_pre_cx_timeout"), 0);
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(listeners.stat("a.downstream_pre_cx_timeout"), 1);
        assert_eq!(listeners.stat("a.downstream_cx_total"), u64::from(goes_on));
        assert_eq!(echo(&mut client, "hi").await, if goes_on { "hi" } else { "" });
        assert_eq!(listeners.stat("a.downstream_pre_cx_active"), 0);
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn what_a_listener_filter_read_and_did_not_take_is_the_first_that_the_connection_reads() {
    let listeners = Listeners::new(&[
        "{stat_prefix: a, address: {socket_address: {address: 127.0.0.1, port_value: 15001}}, listener_filters: [PROXY, TLS], \
         filter_chains: [{ECHO}]}",
    ]);
    let mut client = listeners.connect();
    assert_eq!(echo(&mut client, &format!("{HEADER}GET /")).await, "GET /");
    let mut gone = listeners.connect();
    gone.write_all(b"PROX").await.unwrap();
    settle().await;
    drop(gone);
    settle().await;
    assert_eq!(listeners.stat("a.downstream_listener_filter_remote_close"), 1);
    assert_eq!(listeners.stat("a.downstream_pre_cx_active"), 0);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_connection_goes_to_the_listener_that_its_client_meant() {
    let first = "{stat_prefix: a, use_original_dst: true, listener_filters: [PROXY], filter_chains: [{ECHO}], \
                 address: {socket_address: {address: 127.0.0.1, port_value: 15001}}}";
    let other = |prefix: &str, address: &str, port: u16| {
        format!(
            "{{stat_prefix: {prefix}, bind_to_port: false, filter_chains: [{{ECHO}}], \
             address: {{socket_address: {{address: {address}, port_value: {port}}}}}}}"
        )
    };
    let mut listeners = Listeners::new(&[first, &other("any", "0.0.0.0", 443), &other("exact", "198.51.100.1", 443)]);
    let totals =
        |listeners: &Listeners| ["a", "any", "exact"].map(|p| listeners.stat(&format!("{p}.downstream_cx_total")));
    let mut client = listeners.connect();
    assert_eq!(echo(&mut client, &format!("{HEADER}x")).await, "x");
    assert_eq!(totals(&listeners), [0, 0, 1]);
    listeners.active.apply(ListenerCommand::Stop { id: ListenerId(2), drain: false });
    let mut client = listeners.connect();
    assert_eq!(echo(&mut client, &format!("{HEADER}y")).await, "y");
    assert_eq!(totals(&listeners), [0, 1, 1], "one that accepts no more takes nobody over");
    let mut client = listeners.connect();
    assert_eq!(echo(&mut client, &format!("{}z", HEADER.replace("443", "80"))).await, "z");
    assert_eq!(totals(&listeners), [1, 1, 1], "nobody has that address");
}

/// A client that never shakes hands.
struct Hang;

impl DownstreamTransportSocket for Hang {
    fn accept<'a>(
        &'a self,
        io: Io,
        _: Vec<u8>,
        _: &'a mut ConnectionInfo,
    ) -> LocalBoxFuture<'a, Result<Io, TransportFailure>> {
        Box::pin(async move {
            let _held = io;
            std::future::pending().await
        })
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_handshake_has_its_deadline_and_a_thousand_of_them_hold_up_nobody() {
    let mut bench = Bench::new();
    let serving = Rc::get_mut(&mut bench.serving).unwrap();
    let plain = serving.chains.default.take().unwrap();
    serving.chains.default = Some(Rc::new(FilterChain {
        name: "tls".into(),
        metadata: None,
        transport_socket: Some(Rc::new(Hang)),
        transport_socket_connect_timeout: Some(Duration::from_secs(5)),
        filters: Vec::new(),
        terminal: plain.terminal.clone(),
    }));
    let socket = Socket::default();
    socket.0.borrow_mut().extend([Ok(()); 1000]);
    let task = tokio::task::spawn_local(bench.serving.clone().run(socket.clone()));
    settle().await;
    task.abort();
    assert_eq!((bench.stat("downstream_cx_active"), bench.served.get()), (1000, 0));
    tokio::time::sleep(Duration::from_millis(5001)).await;
    settle().await;
    assert_eq!(bench.stat("downstream_cx_transport_socket_connect_timeout"), 1000);
    assert_eq!((bench.stat("downstream_cx_active"), bench.served.get()), (0, 0));
}
