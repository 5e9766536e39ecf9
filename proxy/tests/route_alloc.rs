//! A compiled route table is small, and matching in it allocates nothing.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use nuncio::http::router::{
    BuildContext, MatchContext, RouteConfig, RouteConfigBuilder, RouteSource, Routes, ScopeKeyBuilder, ScopeTable,
    ScopedRoutes, Scopes,
};
use nuncio_api::pb::envoy::config::route::v3 as pb;
use nuncio_api::pb::google::protobuf::UInt32Value;
use nuncio_core::http::RequestHead;
use nuncio_core::runtime::NoRuntime;
use nuncio_core::stats::{Store, lists};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// What the system allocator takes for a request of that size: its header, rounded up.
fn taken(size: usize) -> usize {
    (size + 8).next_multiple_of(16).max(32)
}

// SAFETY: hands every call to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_add(taken(layout.size())));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_sub(taken(layout.size())));
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HOSTS: usize = 100;
const ROUTES: usize = 10_000;

fn action(specifier: pb::route_action::ClusterSpecifier) -> Option<pb::route::Action> {
    Some(pb::route::Action::Route(pb::RouteAction { cluster_specifier: Some(specifier), ..Default::default() }))
}

fn route(path: String, action: Option<pb::route::Action>) -> pb::Route {
    let path_specifier = Some(pb::route_match::PathSpecifier::Prefix(path));
    pb::Route { r#match: Some(pb::RouteMatch { path_specifier, ..Default::default() }), action, ..Default::default() }
}

fn table() -> RouteConfig {
    let context = BuildContext {
        has_cluster: &|_| true,
        validate_clusters: true,
        filter_config: &|_, _| Ok(None),
        scope: &|name| Store::new().scope(&lists::vhost::SCOPE, &name.into()),
    };
    let mut builder = RouteConfigBuilder::new(&pb::RouteConfiguration::default(), &context).unwrap();
    for host in 0..HOSTS {
        let domains = vec![format!("host-{host}.example.com")];
        builder.virtual_host(&pb::VirtualHost { domains, ..Default::default() }).unwrap();
        for number in host * ROUTES / HOSTS..(host + 1) * ROUTES / HOSTS {
            let cluster = pb::route_action::ClusterSpecifier::Cluster(format!("cluster-{number}"));
            builder.route(&route(format!("/service-{number}/"), action(cluster))).unwrap();
        }
    }
    let weight = |name: &str| pb::weighted_cluster::ClusterWeight {
        name: name.into(),
        weight: Some(UInt32Value { value: 1 }),
        ..Default::default()
    };
    let weighted = pb::WeightedCluster { clusters: vec![weight("a"), weight("b")], ..Default::default() };
    builder.virtual_host(&pb::VirtualHost { domains: vec!["*".into()], ..Default::default() }).unwrap();
    let specifier = pb::route_action::ClusterSpecifier::WeightedClusters(weighted);
    builder.route(&route("/".into(), action(specifier))).unwrap();
    builder.finish()
}

fn head(authority: &str, path: &str) -> RequestHead {
    let fields = [(":method", "GET"), (":path", path), (":authority", authority), (":scheme", "http")];
    RequestHead { headers: fields.into_iter().collect(), ..Default::default() }
}

#[test]
fn a_simple_route_takes_at_most_300_bytes() {
    let before = LIVE_BYTES.get();
    let table = table();
    let each = LIVE_BYTES.get().wrapping_sub(before) / ROUTES;
    assert!(each <= 300, "{each} bytes a route");
    drop(table);
}

#[test]
fn finding_a_route_and_its_cluster_allocates_nothing() {
    let table = table();
    let requests = [head("HOST-42.example.com", "/service-4242/x?y"), head("elsewhere", "/")];
    let context = MatchContext { random: 1, runtime: &NoRuntime, connection: None, info: None };
    let before = ALLOCATIONS.get();
    let found = requests.each_ref().map(|head| {
        let route = table.find(head, &context).cloned().unwrap();
        route.cluster(head).unwrap().len()
    });
    assert_eq!(ALLOCATIONS.get(), before);
    assert_eq!(found, ["cluster-4242".len(), "b".len()]);
}

#[test]
fn finding_the_scope_of_a_request_allocates_nothing() {
    use nuncio_api::pb::envoy::extensions::filters::network::http_connection_manager::v3::scoped_routes as scopes;
    use part::header_value_extractor::{ExtractType, KvElement};
    use scopes::scope_key_builder::{FragmentBuilder, fragment_builder as part};
    let fragment = |name: &str, take| FragmentBuilder {
        r#type: Some(part::Type::HeaderValueExtractor(part::HeaderValueExtractor {
            name: name.into(),
            element_separator: ";".into(),
            extract_type: Some(take),
        })),
    };
    let id = KvElement { key: "id".into(), separator: "=".into() };
    let fragments = vec![fragment("x-tenant", ExtractType::Element(id)), fragment("x-stage", ExtractType::Index(1))];
    let builder = ScopeKeyBuilder::from_proto(&scopes::ScopeKeyBuilder { fragments }).unwrap();
    let mut scopes = ScopeTable::default();
    scopes.insert(&[b"blue", b"prod"], RouteSource::Inline(table().into()));
    let routes = Routes::Scoped(Box::new(ScopedRoutes { builder, scopes: Scopes::Inline(scopes) }));
    let mut request = head("host-42.example.com", "/service-4242/x");
    request.headers.append("x-tenant", "v=1;id=blue");
    request.headers.append("x-stage", "x;prod");
    let context = MatchContext { random: 1, runtime: &NoRuntime, connection: None, info: None };
    let before = ALLOCATIONS.get();
    routes.clean_external(&mut request);
    let route = routes.find(&request, &context);
    assert_eq!(ALLOCATIONS.get(), before);
    assert_eq!(route.unwrap().cluster(&request), Some("cluster-4242"));
}
