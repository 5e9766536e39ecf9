//! A connection manager of one worker in memory, for the tests of filters: a client's bytes go in,
//! what the upstream saw and what the client got come out. The clock is paused.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::cluster::v3 as cluster_pb;
use nuncio_api::pb::envoy::config::core::v3::Node;
use nuncio_api::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use nuncio_api::prost::Message;
use nuncio_api::{Format, LoadOptions, Source, load_message};
use nuncio_core::extension::FactoryContext;
use nuncio_core::http::HttpFilterFactory;
use nuncio_core::net::{Address, ConnectionInfo};
use nuncio_core::upstream::client::{AsyncClient, AsyncFailure, AsyncRequest, AsyncResponse};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::Instant;

use super::{HttpFilters, factories};
use crate::access_log::file::{FlushPolicy, LogWriter};
use crate::http::conn_manager::factory::Factory;
use crate::lifecycle::{Drain, DrainStrategy};
use crate::net::flusher;
use crate::network::{Connection, ListenerInfo, TerminalFilter, TerminalFilterFactory, TrafficDirection};
use crate::upstream::testing::{House, memory, settle};

const ROUTER: &str =
    r#"{name: router, typed_config: {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}"#;

/// The prefix of every type URL in tests.
pub(crate) const FILTERS: &str = "type.googleapis.com/envoy.extensions.filters.http";

pub(crate) struct Bench {
    pub(crate) house: House,
    filter: Rc<dyn TerminalFilter>,
}

/// What came of one request.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The request as the upstream got it; empty if it got none.
    pub(crate) upstream: String,
    /// The response as the client got it, to the close of its connection.
    pub(crate) client: String,
    /// Both as bytes.
    pub(crate) upstream_bytes: Vec<u8>,
    pub(crate) client_bytes: Vec<u8>,
    pub(crate) took: Duration,
}

impl Answer {
    pub(crate) fn status(&self) -> &str {
        self.client.split(' ').nth(1).unwrap_or_default()
    }

    pub(crate) fn body(&self) -> &str {
        self.client.split_once("\r\n\r\n").map_or("", |(_, body)| body)
    }

    /// The bytes behind the head of the response.
    pub(crate) fn body_bytes(&self) -> &[u8] {
        body_of(&self.client_bytes)
    }

    /// The bytes behind the head of the request, as the upstream got it.
    pub(crate) fn upstream_body(&self) -> &[u8] {
        body_of(&self.upstream_bytes)
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let (head, _) = self.client.split_once("\r\n\r\n")?;
        field(head, name)
    }

    pub(crate) fn upstream_field(&self, name: &str) -> Option<&str> {
        field(&self.upstream, name)
    }
}

type Answers = Box<dyn FnMut(&AsyncRequest) -> Result<AsyncResponse, AsyncFailure>>;

/// Says what the test wants to every call, and remembers the calls.
pub(crate) struct Scripted {
    pub(crate) answers: RefCell<Answers>,
    pub(crate) calls: RefCell<Vec<(String, AsyncRequest)>>,
}

impl Scripted {
    pub(crate) fn new(answers: impl FnMut(&AsyncRequest) -> Result<AsyncResponse, AsyncFailure> + 'static) -> Rc<Self> {
        Rc::new(Self { answers: RefCell::new(Box::new(answers)), calls: RefCell::default() })
    }
}

impl AsyncClient for Scripted {
    fn call(
        &self,
        cluster: &str,
        request: AsyncRequest,
    ) -> LocalBoxFuture<'static, Result<AsyncResponse, AsyncFailure>> {
        let answer = (self.answers.borrow_mut())(&request);
        self.calls.borrow_mut().push((cluster.to_owned(), request));
        Box::pin(async move {
            tokio::task::yield_now().await;
            answer
        })
    }
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().filter_map(|line| line.split_once(": ")).find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v)
}

fn end_of_head(message: &[u8]) -> Option<usize> {
    message.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4)
}

fn body_of(message: &[u8]) -> &[u8] {
    end_of_head(message).map_or(&[], |at| &message[at..])
}

/// A request, however its body is framed.
async fn read_request(stream: &mut DuplexStream) -> Vec<u8> {
    let mut message = Vec::new();
    loop {
        if let Some(at) = end_of_head(&message) {
            let head = String::from_utf8_lossy(&message[..at]);
            let length = field(&head, "content-length").map_or(0, |length| length.parse().unwrap());
            let chunked = field(&head, "transfer-encoding").is_some();
            if if chunked { message.ends_with(b"\r\n0\r\n\r\n") } else { message.len() >= at + length } {
                return message;
            }
        }
        // The end before the end: a filter gave the request up.
        if stream.read_buf(&mut message).await.unwrap_or(0) == 0 {
            return message;
        }
    }
}

impl Bench {
    /// A manager with these filters (YAML, a list) and the fields of `routes` in the routes of its only
    /// virtual host, all of them to one cluster.
    pub(crate) fn new(filters: &str, routes: &str) -> Self {
        Self::with(&format!(
            "{{stat_prefix: in, http_filters: [{filters}, {ROUTER}], route_config: {{virtual_hosts: [{{name: v, \
             domains: ['*'], routes: [{routes}]}}]}}}}"
        ))
    }

    /// A manager of this configuration (YAML); `ROUTER` in it is the router.
    pub(crate) fn with(manager: &str) -> Self {
        Self::made_of(manager, factories(), None)
    }

    /// The same with other filters than those of the proxy.
    pub(crate) fn with_filters(manager: &str, factories: Vec<Box<dyn HttpFilterFactory>>) -> Self {
        Self::made_of(manager, factories, None)
    }

    /// The same, with somebody who answers the calls that filters make.
    pub(crate) fn calling(manager: &str, client: Option<Rc<dyn AsyncClient>>) -> Self {
        Self::made_of(manager, factories(), client)
    }

    fn made_of(manager: &str, factories: Vec<Box<dyn HttpFilterFactory>>, client: Option<Rc<dyn AsyncClient>>) -> Self {
        let text = manager.replace("ROUTER", ROUTER);
        let source = Source::text("test", Format::Yaml, text);
        let loaded = load_message::<HttpConnectionManager>(source, &LoadOptions::default());
        let proto = loaded.unwrap_or_else(|problems| panic!("{problems:#?}")).message;
        let house = House::new(cluster_pb::Cluster::default(), 1);
        let listener = Arc::new(ListenerInfo {
            name: "in".into(),
            stat_name: "in".into(),
            buffer_limit: 1 << 20,
            direction: TrafficDirection::Unspecified,
            metadata: Default::default(),
        });
        let (warnings, scopes, node) = (RefCell::default(), RefCell::default(), Arc::new(Node::default()));
        let context = FactoryContext {
            name: "",
            stat_prefix: "",
            has_cluster: &|name| name == "c",
            warnings: &warnings,
            node: &node,
            stats: &house.store,
            log_files: &LogWriter::new(FlushPolicy::default()),
            formats: &crate::format::Formats,
            scopes: &scopes,
        };
        let factory = Factory::new(Arc::new(HttpFilters::new(factories)));
        let config = factory.check(&proto.encode_to_vec(), &listener, &context);
        let mut worker = house.worker();
        if let Some(client) = client {
            Rc::get_mut(&mut worker).expect("nobody else has it yet").context.client = client;
        }
        let filter = config.unwrap_or_else(|e| panic!("{e:?}")).instantiate(&worker);
        tokio::task::spawn_local(flusher::run());
        Self { house, filter }
    }

    /// A client's connection.
    pub(crate) fn connect(&self) -> DuplexStream {
        let (io, client) = memory();
        let address = |port: u16| Address::Ip(([127, 0, 0, 1], port).into());
        let drain = Drain::new(Arc::default(), true, DrainStrategy::Gradual, Duration::ZERO);
        let info = Rc::new(ConnectionInfo::new(1, address(1), address(2)));
        let guards = Box::new(());
        let drain = Rc::new(drain);
        self.filter.serve(Connection { io, info, preread: Vec::new(), drain, record: None, guards });
        client
    }

    /// Sends `request` on a connection of its own; the upstream, if it is asked, says `response`.
    pub(crate) async fn ask(&self, request: impl AsRef<[u8]>, response: impl AsRef<[u8]>) -> Answer {
        let mut client = self.connect();
        let began = Instant::now();
        let seen = Rc::new(RefCell::new(Vec::new()));
        let upstream = async {
            let mut far = self.house.net.next().await.into_stream();
            let request = read_request(&mut far).await;
            seen.replace(request);
            if far.write_all(response.as_ref()).await.is_ok() {
                far.shutdown().await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        client.write_all(request.as_ref()).await.unwrap();
        let mut got = Vec::new();
        tokio::select! {
            read = client.read_to_end(&mut got) => drop(read.unwrap()),
            () = upstream => {}
        }
        let took = began.elapsed();
        settle().await;
        let upstream_bytes = seen.take();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Answer { upstream: text(&upstream_bytes), client: text(&got), upstream_bytes, client_bytes: got, took }
    }

    /// `GET` with these header lines, each ended by CRLF; the upstream says `ok`.
    pub(crate) async fn get(&self, path: &str, fields: &str) -> Answer {
        self.request("GET", path, fields, "").await
    }

    pub(crate) async fn request(&self, method: &str, path: &str, fields: &str, body: &str) -> Answer {
        let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: web.test\r\nconnection: close\r\n{length}{fields}\r\n{body}");
        self.ask(&request, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await
    }

    pub(crate) fn stat(&self, name: &str) -> u64 {
        self.house.store.borrow_mut().value(name).unwrap_or_else(|| panic!("no stat {name}"))
    }
}
