//! For tests of sources: an ear at the sink, a world without a network, and clusters.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_api::pb::envoy::config::endpoint::v3 as ep;
use nuncio_api::pb::google::protobuf::Duration;
use nuncio_core::http::ResponseHead;
use nuncio_core::random::Rng;
use nuncio_core::time::WallClock;
use nuncio_core::upstream::{AsyncClient, AsyncFailure, AsyncRequest, AsyncResponse, HostSpec};

use crate::dns::scripted::Scripted;
use crate::xds::Files;
use crate::{Assignment, HostUpdates, SourceContext, UpdateEvent};

/// What a source said.
#[derive(Default)]
pub(crate) struct Heard {
    said: RefCell<Vec<Assignment>>,
    failed: RefCell<Vec<String>>,
    rejected: RefCell<Vec<String>>,
    events: Cell<(u32, u32, u32)>,
}

impl Heard {
    /// Name and address of the hosts there are now.
    pub(crate) fn last(&self) -> Vec<String> {
        self.hosts().iter().map(|host| format!("{} {}", host.hostname, host.address)).collect()
    }

    pub(crate) fn hosts(&self) -> Vec<HostSpec> {
        self.said.borrow().last().map(|said| said.hosts.clone()).unwrap_or_default()
    }

    pub(crate) fn spoken(&self) -> usize {
        self.said.borrow().len()
    }

    pub(crate) fn failures(&self) -> usize {
        self.failed.borrow().len()
    }

    pub(crate) fn rejections(&self) -> usize {
        self.rejected.borrow().len()
    }

    /// Attempts, successes, empty answers.
    pub(crate) fn counts(&self) -> (u32, u32, u32) {
        self.events.get()
    }
}

impl HostUpdates for Heard {
    fn replace(&self, assignment: Assignment) {
        self.said.borrow_mut().push(assignment);
    }

    fn failed(&self, reason: String) {
        self.failed.borrow_mut().push(reason);
    }

    fn rejected(&self, reason: String) {
        self.rejected.borrow_mut().push(reason);
    }

    fn version(&self, _: &str) {}

    fn count(&self, event: UpdateEvent) {
        let (mut attempts, mut successes, mut empty) = self.events.get();
        match event {
            UpdateEvent::Attempt => attempts += 1,
            UpdateEvent::Success => successes += 1,
            UpdateEvent::Empty => empty += 1,
            UpdateEvent::InitFetchTimeout | UpdateEvent::Stale => {}
        }
        self.events.set((attempts, successes, empty));
    }
}

pub(crate) fn context(names: &Scripted) -> SourceContext {
    context_with(names, &Answers::default())
}

pub(crate) fn context_with(names: &Scripted, answers: &Answers) -> SourceContext {
    SourceContext {
        rng: Rng::with_seed(1),
        clock: WallClock::fixed(UNIX_EPOCH),
        dns: Rc::new(names.clone()),
        client: Rc::new(answers.clone()),
        node: Arc::new(pb::Node { id: "n".into(), cluster: "c".into(), ..Default::default() }),
        files: Files::default(),
    }
}

/// Answers every call alike, and remembers the calls.
#[derive(Clone, Default)]
pub(crate) struct Answers(Rc<Script>);

#[derive(Default)]
struct Script {
    answer: RefCell<Option<Result<AsyncResponse, AsyncFailure>>>,
    asked: RefCell<Vec<(String, String)>>,
}

impl Answers {
    pub(crate) fn set(&self, status: u16, body: &str) {
        let head = ResponseHead { status, ..Default::default() };
        let body = body.as_bytes().to_vec().into();
        self.0.answer.replace(Some(Ok(AsyncResponse { head, body, trailers: None })));
    }

    pub(crate) fn fail(&self, failure: AsyncFailure) {
        self.0.answer.replace(Some(Err(failure)));
    }

    /// Of each call: the cluster with method, path, authority and content type, and the body.
    pub(crate) fn asked(&self) -> Vec<(String, String)> {
        self.0.asked.borrow().clone()
    }
}

impl AsyncClient for Answers {
    fn call(
        &self,
        cluster: &str,
        request: AsyncRequest,
    ) -> LocalBoxFuture<'static, Result<AsyncResponse, AsyncFailure>> {
        let header = |name| request.head.headers.get_str(name).unwrap_or_default().to_owned();
        let words =
            [cluster.to_owned(), header(":method"), header(":path"), header(":authority"), header("content-type")];
        let body = String::from_utf8_lossy(&request.body).into_owned();
        self.0.asked.borrow_mut().push((words.join(" ").trim_end().to_owned(), body));
        let answer = self.0.answer.borrow().clone().unwrap_or(Err(AsyncFailure::NoHealthyHost));
        Box::pin(std::future::ready(answer))
    }
}

pub(crate) fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}

/// IPv4 only, refreshed every five seconds.
pub(crate) fn dns_cluster(targets: &[(&str, u32)]) -> Cluster {
    let endpoint = |(name, port): &(&str, u32)| {
        let socket = pb::SocketAddress {
            address: (*name).into(),
            port_specifier: Some(pb::socket_address::PortSpecifier::PortValue(*port)),
            ..Default::default()
        };
        let address = pb::Address { address: Some(pb::address::Address::SocketAddress(socket)) };
        let endpoint = ep::Endpoint { address: Some(address), ..Default::default() };
        ep::LbEndpoint {
            host_identifier: Some(ep::lb_endpoint::HostIdentifier::Endpoint(endpoint)),
            ..Default::default()
        }
    };
    let group = ep::LocalityLbEndpoints { lb_endpoints: targets.iter().map(endpoint).collect(), ..Default::default() };
    let assignment = ep::ClusterLoadAssignment { endpoints: vec![group], ..Default::default() };
    #[allow(deprecated)]
    Cluster { load_assignment: Some(assignment), dns_lookup_family: 1, ..Default::default() }
}

/// The first endpoint's address.
pub(crate) fn socket(cluster: &mut Cluster) -> &mut pb::SocketAddress {
    let group = &mut cluster.load_assignment.as_mut().unwrap().endpoints[0];
    let Some(ep::lb_endpoint::HostIdentifier::Endpoint(endpoint)) = &mut group.lb_endpoints[0].host_identifier else {
        panic!("no endpoint")
    };
    match &mut endpoint.address.as_mut().unwrap().address {
        Some(pb::address::Address::SocketAddress(socket)) => socket,
        other => panic!("{other:?}"),
    }
}
