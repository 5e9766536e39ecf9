//! What is expected was recorded from Envoy 1.40 (runtime_layers).

use super::*;
use nuncio_api::{Format, LoadOptions, Source, load_message};

fn layers(yaml: &str) -> Proto {
    let source = Source::text("test", Format::Yaml, yaml);
    load_message::<Proto>(source, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e:?}")).message
}

#[test]
fn the_last_layer_that_has_a_key_decides_and_admin_may_be_undone() {
    let proto = layers(
        "layers: [{name: base, static_layer: {a.b: 1, deep: {er: {key: 9}}, half: 0.5, frac: {numerator: 3, \
         denominator: TEN_THOUSAND}, word: many}}, {name: adm, admin_layer: {}}]",
    );
    let mut store = Store::new();
    let runtime = LayeredRuntime::new(Some(&proto), "", &mut store).unwrap();
    let handle = runtime.handle();
    assert_eq!(
        (handle.integer("a.b"), handle.integer("deep.er.key"), handle.integer("half")),
        (Some(1), Some(9), Some(0))
    );
    assert_eq!(handle.fraction("frac"), Some(FractionalPercent { numerator: 3, denominator: 10_000 }));
    assert_eq!((handle.fraction("word"), handle.fraction("none")), (None, None));
    assert!(runtime.modify(&[("a.b", "77"), ("new", "{\"numerator\":0}")]));
    assert_eq!(handle.integer("a.b"), Some(77));
    assert_eq!(handle.fraction("new"), Some(FractionalPercent { numerator: 0, denominator: 100 }));
    assert_eq!(runtime.entries()["a.b"], ["1", "77"]);
    assert!(runtime.modify(&[("a.b", "")]));
    assert_eq!((handle.integer("a.b"), store.value("runtime.admin_overrides_active")), (Some(1), Some(1)));
    assert_eq!((store.value("runtime.num_layers"), store.value("runtime.num_keys")), (Some(2), Some(6)));
}

#[test]
fn without_an_admin_layer_nothing_is_modified() {
    let runtime = LayeredRuntime::new(None, "", &mut Store::new()).unwrap();
    assert!(!runtime.modify(&[("a", "1")]));
    assert!(runtime.names().is_empty());
}

#[tokio::test(flavor = "local")]
async fn a_turned_link_is_noticed_and_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (root, value) in [("one", "1"), ("two", "2")] {
        std::fs::create_dir_all(at(root).join("envoy/route")).unwrap();
        std::fs::write(at(root).join("envoy/route/disk"), format!("# a comment\n{value}\n")).unwrap();
    }
    std::os::unix::fs::symlink(at("one"), at("current")).unwrap();
    let proto = layers(&format!(
        "layers: [{{name: files, disk_layer: {{symlink_root: {}, subdirectory: envoy}}}}]",
        at("current").display()
    ));
    let runtime = LayeredRuntime::new(Some(&proto), "", &mut Store::new()).unwrap();
    runtime.watch(Some(&proto));
    assert_eq!(runtime.handle().integer("route.disk"), Some(1));
    tokio::task::yield_now().await;
    std::os::unix::fs::symlink(at("two"), at("next")).unwrap();
    std::fs::rename(at("next"), at("current")).unwrap();
    let changed = async {
        while runtime.handle().integer("route.disk") != Some(2) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), changed).await.unwrap();
}
