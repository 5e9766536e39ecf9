//! Changes to the set of listeners, with real sockets.

use std::cell::RefCell;
use std::net::TcpStream;

use nuncio_api::pb::envoy::config::core::v3 as core;
use nuncio_api::pb::google::protobuf::{Any, UInt32Value};

use super::*;
use crate::access_log::file::{FlushPolicy, LogWriter};
use crate::network;

struct Bench {
    store: RefCell<Store>,
    manager: ListenerManager,
}

fn listener(name: &str, port: u16) -> pb::Listener {
    let port = core::socket_address::PortSpecifier::PortValue(port.into());
    let socket = core::SocketAddress { address: "127.0.0.1".into(), port_specifier: Some(port), ..Default::default() };
    let echo = Any {
        type_url: "type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo".into(),
        ..Default::default()
    };
    let filter = pb::Filter { name: "echo".into(), config_type: Some(pb::filter::ConfigType::TypedConfig(echo)) };
    pb::Listener {
        name: name.into(),
        address: Some(core::Address { address: Some(core::address::Address::SocketAddress(socket)) }),
        filter_chains: vec![pb::FilterChain { filters: vec![filter], ..Default::default() }],
        ..Default::default()
    }
}

impl Bench {
    fn new() -> Self {
        let mut store = Store::new();
        let sockets = SocketPolicy { workers: 2, share: false };
        let extensions = NetworkExtensions { terminal: network::factories(), ..Default::default() };
        let manager = ListenerManager::new(extensions, sockets, &mut store);
        Self { store: RefCell::new(store), manager }
    }

    fn prepare(&self, message: &pb::Listener, digest: u64) -> Prepared {
        let context = FactoryContext {
            name: "",
            stat_prefix: "",
            has_cluster: &|_| true,
            warnings: &RefCell::default(),
            node: &Arc::default(),
            stats: &self.store,
            log_files: &LogWriter::new(FlushPolicy::default()),
            formats: &crate::format::Formats,
            scopes: &RefCell::default(),
        };
        let origin = Origin { bytes: digest.to_string().into(), version: Some("".into()), updated: None };
        self.manager.check(message, origin, &context).unwrap()
    }

    fn update(&mut self, message: &pb::Listener, digest: u64) -> Result<Vec<Change>, ConfigError> {
        let prepared = self.prepare(message, digest);
        let changes = self.manager.update(prepared)?;
        for change in &changes {
            change.commands(2).unwrap();
        }
        Ok(changes)
    }

    fn address(&self) -> Address {
        self.manager.active()[0].local_addresses()[0].clone()
    }

    fn stats<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        names.map(|name| self.store.borrow_mut().value(&format!("listener_manager.{name}")).unwrap())
    }
}

fn is_open(address: &Address) -> bool {
    TcpStream::connect(address.socket().unwrap()).is_ok()
}

#[test]
fn a_changed_listener_keeps_its_socket_and_the_old_one_drains() {
    let mut bench = Bench::new();
    bench.update(&listener("in", 0), 1).unwrap();
    let address = bench.address();
    let port = address.port().unwrap();
    // From here on the port is known, as in any real configuration.
    let named = listener("in", port);
    bench.update(&named, 2).unwrap();
    let waiting = TcpStream::connect(address.socket().unwrap()).unwrap();
    let changed = pb::Listener { per_connection_buffer_limit_bytes: Some(UInt32Value { value: 5 }), ..named };
    let changes = bench.update(&changed, 3).unwrap();
    assert!(matches!(changes[..], [Change::Start { .. }, Change::Drain { .. }]), "the new one first");
    let Change::Start { config, bound, .. } = &changes[0] else { unreachable!() };
    assert_eq!((config.info.buffer_limit, bound[0].local()), (5, &address));
    drop(waiting);
    assert!(is_open(&address));
    assert_eq!(bench.stats(["listener_added", "listener_modified", "total_listeners_draining"]), [1, 2, 2]);
}

#[test]
fn other_socket_options_mean_another_socket_on_the_same_port() {
    let mut bench = Bench::new();
    bench.update(&listener("in", 0), 1).unwrap();
    let port = bench.address().port().unwrap();
    let other = pb::Listener { tcp_backlog_size: Some(UInt32Value { value: 5 }), ..listener("in", port) };
    let changes = bench.update(&other, 2).unwrap();
    assert_eq!(changes.len(), 2);
    assert!(is_open(&bench.address()));
}

#[test]
fn the_same_listener_again_changes_nothing() {
    let mut bench = Bench::new();
    assert_eq!(bench.update(&listener("in", 0), 7).unwrap().len(), 1);
    assert_eq!(bench.update(&listener("in", 0), 7).unwrap().len(), 0);
    assert_eq!(bench.stats(["listener_added", "listener_modified"]), [1, 0]);
}

#[test]
fn a_removed_listener_takes_no_more_and_its_stats_go_with_it() {
    let mut bench = Bench::new();
    bench.update(&listener("in", 0), 1).unwrap();
    let (id, address) = (bench.manager.active()[0].id, bench.address());
    bench.manager.retire(|entry| entry.config.name() == "in");
    assert!(matches!(bench.manager.retired()[..], [Change::Drain { id: drained }] if drained == id));
    assert!(!is_open(&address));
    assert!(bench.store.borrow_mut().value("listener.127.0.0.1_0.downstream_cx_total").is_some());
    bench.manager.closed(id, &mut bench.store.borrow_mut());
    assert!(bench.store.borrow_mut().value("listener.127.0.0.1_0.downstream_cx_total").is_none());
    assert_eq!(bench.stats(["listener_removed", "total_listeners_active", "total_listeners_draining"]), [1, 0, 0]);
}

#[test]
fn an_address_that_is_taken_is_refused_and_the_rest_stays() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut bench = Bench::new();
    bench.update(&listener("in", 0), 1).unwrap();
    let error = bench.update(&listener("other", port), 1).err().unwrap();
    assert!(error.reason.contains(&format!("cannot bind '127.0.0.1:{port}'")), "{error}");
    let port = bench.address().port().unwrap();
    bench.update(&listener("in", port), 2).unwrap();
    let error = bench.update(&listener("twin", port), 1).err().unwrap();
    assert!(error.reason.contains(&format!("'twin' has duplicate address '127.0.0.1:{port}'")), "{error}");
    assert_eq!(bench.stats(["total_listeners_active", "listener_create_failure"]), [1, 1]);
}
