//! A whole server of its own threads, from a YAML text to real sockets on free ports.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;

use nuncio::cli::{self, Request};
use nuncio::logging::{Level, Loggers, Settings};
use nuncio::server::main_thread::Started;
use nuncio::server::{bootstrap, main_thread};
use nuncio::{extensions, server::Options};
use nuncio_core::net::Address;
use nuncio_core::time::WallClock;
use tokio::sync::oneshot;

/// A configuration with a listener `in`, up to the fields of its connection manager: they follow, ten blanks before each.
pub const MANAGER: &str = r#"static_resources:
  listeners:
  - name: in
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
"#;

/// Ends when it is dropped, and fails the test if a connection's task panicked.
pub struct RunningProxy {
    listeners: Vec<(String, Vec<Address>)>,
    admin: Option<Address>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<u64>>,
}

impl RunningProxy {
    /// With `workers` threads. Panics with everything that is wrong with the configuration.
    pub fn start(yaml: &str, workers: u32) -> Self {
        let options = options(yaml, workers);
        let (end, ended) = oneshot::channel::<()>();
        let (started, starts) = mpsc::channel();
        let thread = std::thread::Builder::new().name("main".into()).spawn(move || serve(options, ended, started));
        let thread = thread.expect("a thread for the proxy");
        let Started { listeners, admin } = starts.recv().expect("the proxy starts");
        Self { listeners, admin, end: Some(end), thread: Some(thread) }
    }

    pub fn address(&self, listener: &str) -> Address {
        let found = self.listeners.iter().find(|(name, _)| name == listener);
        found.unwrap_or_else(|| panic!("no listener {listener}")).1[0].clone()
    }

    /// The admin listener's.
    pub fn admin(&self) -> SocketAddr {
        self.admin.as_ref().and_then(Address::socket).expect("an admin listener with an IP address")
    }

    pub fn socket(&self, listener: &str) -> SocketAddr {
        self.address(listener).socket().expect("an IP listener")
    }
}

/// A bootstrap with an admin listener and the HTTP listener `web`. `route` is what is done with every request; `filters`
/// (those before the router) and `clusters` are lists, at the margin.
pub fn web(route: &str, filters: &str, clusters: &str) -> String {
    let at = |margin: &str, list: &str| list.lines().map(|line| format!("{margin}{line}\n")).collect::<String>();
    let (filters, clusters) = (at("          ", filters), at("  ", clusters));
    format!(
        r#"
node: {{id: test, cluster: test}}
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
static_resources:
  listeners:
  - name: web
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          route_config: {{virtual_hosts: [{{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, {route}}}]}}]}}
          http_filters:
{filters}          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
{clusters}"#
    )
}

pub fn options(yaml: &str, workers: u32) -> Options {
    let args = ["nuncio", "--config-yaml", yaml, "--concurrency", &workers.to_string()];
    match cli::parse(args.into_iter().map(Into::into)) {
        Ok(Request::Serve(options)) => *options,
        _ => panic!("these flags ask to serve"),
    }
}

fn serve(options: Options, ended: oneshot::Receiver<()>, started: mpsc::Sender<Started>) -> u64 {
    let extensions = extensions::standard();
    let assembly = bootstrap::load(&options, &extensions)
        .and_then(|loaded| bootstrap::assemble(loaded, options, extensions))
        .unwrap_or_else(|problems| {
            problems.iter().for_each(|p| eprintln!("{p}"));
            panic!("the configuration is refused")
        });
    let ended = Box::new(|| {
        Ok(Box::pin(async {
            let _ = ended.await;
            "the test is over".to_owned()
        }) as _)
    });
    let settings = Settings { level: Level::Warning, component_levels: &[], format: "%v", escaped: false, path: "" };
    let loggers = Loggers::new(&settings, WallClock::System).into();
    main_thread::run(assembly, loggers, ended, |s| drop(started.send(s))).expect("serves to its end")
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        drop(self.end.take());
        let panics = self.thread.take().map(|t| t.join());
        if !std::thread::panicking() {
            assert!(matches!(panics, Some(Ok(0))), "connections panicked, or the server did: {panics:?}");
        }
    }
}
