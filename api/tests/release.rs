//! The descriptors are let go after the start: their memory comes back, and everything works without them, or with
//! new ones where they are needed. One test, for the memory that is counted is the whole process's.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use nuncio_api::dump::json_value;
use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::{
    FieldMask, Format, LoadOptions, LoadedBootstrap, Source, check_bytes, load_bootstrap, pack, release_pool, unpack,
};
use serde_json::json;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BOOTSTRAP: &str = r#"
static_resources:
  listeners:
  - name: l
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: s
          codec_type: http1
          route_config: {virtual_hosts: [{name: v, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: c}}]}]}
          http_filters:
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - {name: c, connect_timeout: 1s, type: STATIC, lb_policy: least_request}
"#;

fn load(text: &str) -> Result<LoadedBootstrap, String> {
    let source = Source::text("test", Format::Yaml, text);
    load_bootstrap(vec![source], &LoadOptions::default()).map_err(|all| all[0].to_string())
}

fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

#[test]
fn descriptors_are_let_go_and_made_again() {
    let before = live();
    let first = load(BOOTSTRAP).unwrap();
    let with_descriptors = live();
    assert!(release_pool());
    assert!(!release_pool(), "they are gone");
    let kept = live() - before;
    // One descriptor that is held somewhere would keep all of them.
    assert!(kept < 1 << 20, "{kept} bytes stay");
    assert!(with_descriptors - live() > 5 << 20, "{} bytes were freed", with_descriptors - live());

    // Types that were met need no descriptors, neither to read, nor to refuse, nor to print.
    assert_eq!(load(BOOTSTRAP).unwrap().whole(), first.whole());
    let wrong = load(&BOOTSTRAP.replace("least_request", "no_such_policy")).unwrap_err();
    assert!(
        wrong.contains("unknown value `no_such_policy` for enum envoy.config.cluster.v3.Cluster.LbPolicy"),
        "{wrong}"
    );
    let wrong = load(&BOOTSTRAP.replace("domains: [\"*\"]", "domains: []")).unwrap_err();
    assert!(wrong.ends_with("must have at least 1 item, has 0 (VirtualHostValidationError.Domains)"), "{wrong}");
    let any = pack(&first.clusters[0].decode().unwrap());
    let cluster = json_value(&any.type_url, &any.value);
    assert_eq!(cluster, json!({"name": "c", "connect_timeout": "1s", "type": "STATIC", "lb_policy": "LEAST_REQUEST"}));
    assert!(FieldMask::parse("connect_timeout").fits("envoy.config.cluster.v3.Cluster", &cluster));
    assert!(check_bytes(&any.type_url, &any.value, &LoadOptions::default()).errors.is_empty());
    assert_eq!(unpack::<Cluster>(&any).unwrap().name, "c");
    assert!(!release_pool(), "nothing of this needed descriptors");

    // New types do, and so do the names near one that is not there.
    let node = json!({"id": "n"});
    assert_eq!(json_value("envoy.config.core.v3.Node", b"\x0a\x01n"), node);
    assert!(release_pool());
    assert_eq!(json_value("envoy.config.core.v3.Node", b"\x0a\x01n"), node);
    let unknown = check_bytes("t/envoy.config.cluster.v3.Clustr", b"", &LoadOptions::default());
    assert!(
        unknown.errors[0].text.ends_with("did you mean `envoy.config.cluster.v3.Cluster`?"),
        "{:?}",
        unknown.errors
    );
    assert!(release_pool());
    // A field that came in parts is joined by its descriptor.
    let parts = [any.value.as_slice(), b"\x22\x02\x08\x02", b"\x22\x02\x10\x03"].concat();
    assert!(check_bytes(&any.type_url, &parts, &LoadOptions::default()).errors.is_empty());
    assert!(release_pool());
    let kept = live() - before;
    assert!(kept < 1 << 20, "{kept} bytes stay");
}
