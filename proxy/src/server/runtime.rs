//! `layered_runtime`: values that an operator may change while the server runs, in layers of which
//! the last one that has a key decides. Main owns the layers; workers read a snapshot.
//!
//! A static layer is part of the bootstrap, a disk layer is a folder behind a symbolic link (read
//! anew when the link is turned), the admin layer is what `/runtime_modify` said.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use nuncio_api::pb::envoy::config::bootstrap::v3::{LayeredRuntime as Proto, runtime_layer::LayerSpecifier};
use nuncio_api::pb::google::protobuf::{Struct, value::Kind};
use nuncio_api::support::Entry as SupportEntry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::runtime::{FractionalPercent, Runtime};
use nuncio_core::stats::lists::server::{self as stat, RUNTIME_SCOPE, Runtime as RuntimeList};
use nuncio_core::stats::{Stats, Store};
use tokio::task::AbortHandle;

use crate::admin::RuntimeLayers;

supports!(LAYERED = "envoy.config.bootstrap.v3.LayeredRuntime" { layers });
supports!(LAYER = "envoy.config.bootstrap.v3.RuntimeLayer" { name, static_layer, disk_layer, admin_layer });
supports!(DISK = "envoy.config.bootstrap.v3.RuntimeLayer.DiskLayer" {
    symlink_root, subdirectory, append_service_cluster
});
supports!(ADMIN = "envoy.config.bootstrap.v3.RuntimeLayer.AdminLayer" {});
pub static SUPPORTED: &[&SupportEntry] = &[&LAYERED, &LAYER, &DISK, &ADMIN];

/// How often it is looked whether a disk layer's link was turned: one lstat, on any file system.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Folders of a disk layer may be this deep, its files and their number this large.
const MAX_DEPTH: usize = 16;
const MAX_FILE: u64 = 64 * 1024;
const MAX_KEYS: usize = 100_000;

/// One value: its text, and what numbers it can be read as.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    text: String,
    integer: Option<u64>,
    fraction: Option<FractionalPercent>,
}

impl Entry {
    fn parse(text: &str) -> Self {
        let number: Option<f64> = text.trim().parse().ok().filter(|n: &f64| n.is_finite());
        let integer = number.filter(|n| *n >= 0.0).map(|n| n as u64);
        let fraction = match integer {
            Some(n) => Some(FractionalPercent { numerator: n.min(u64::from(u32::MAX)) as u32, denominator: 100 }),
            None => serde_json::from_str(text).ok().and_then(|value| fraction(&value)),
        };
        Self { text: text.to_owned(), integer, fraction }
    }
}

/// `FractionalPercent` as an object.
fn fraction(value: &serde_json::Value) -> Option<FractionalPercent> {
    let object = value.as_object()?;
    if !object.contains_key("numerator") && !object.contains_key("denominator") {
        return None;
    }
    let numerator = object.get("numerator").map_or(Some(0.0), serde_json::Value::as_f64)?;
    let denominator = match object.get("denominator") {
        None => 100,
        Some(name) => match name.as_str()? {
            "HUNDRED" => 100,
            "TEN_THOUSAND" => 10_000,
            "MILLION" => 1_000_000,
            _ => return None,
        },
    };
    Some(FractionalPercent { numerator: numerator as u32, denominator })
}

type Values = BTreeMap<String, Entry>;

struct Layer {
    name: String,
    values: Values,
    disk: Option<PathBuf>,
    admin: bool,
}

/// What workers read.
type Snapshot = HashMap<String, Entry>;

/// A worker's way to the values; may be sent to its thread.
#[derive(Clone, Default)]
pub struct RuntimeHandle(Arc<ArcSwap<Snapshot>>);

impl Runtime for RuntimeHandle {
    fn fraction(&self, key: &str) -> Option<FractionalPercent> {
        self.0.load().get(key)?.fraction
    }

    fn integer(&self, key: &str) -> Option<u64> {
        self.0.load().get(key)?.integer
    }

    fn boolean(&self, key: &str) -> Option<bool> {
        match self.0.load().get(key)?.text.trim() {
            text if text.eq_ignore_ascii_case("true") => Some(true),
            text if text.eq_ignore_ascii_case("false") => Some(false),
            _ => None,
        }
    }
}

/// All layers, on the main thread.
pub struct LayeredRuntime {
    layers: RefCell<Vec<Layer>>,
    handle: RuntimeHandle,
    stats: Stats<RuntimeList>,
    watch: RefCell<Option<AbortHandle>>,
}

impl LayeredRuntime {
    /// Reads the layers; a disk layer that is not there is empty. `service_cluster` is `--service-cluster`.
    pub fn new(proto: Option<&Proto>, service_cluster: &str, store: &mut Store) -> Result<Rc<Self>, ConfigError> {
        let mut layers = Vec::<Layer>::new();
        for (i, layer) in proto.map_or(&[][..], |p| &p.layers).iter().enumerate() {
            let refuse = |reason: String| Err(ConfigError::new(format!("layered_runtime.layers[{i}]"), reason));
            if layers.iter().any(|l| l.name == layer.name) {
                return refuse(format!("Duplicate layer name: {}", layer.name));
            }
            let mut made = Layer { name: layer.name.clone(), values: Values::new(), disk: None, admin: false };
            match &layer.layer_specifier {
                Some(LayerSpecifier::StaticLayer(values)) => {
                    if let Err(reason) = flatten("", values, &mut made.values) {
                        return refuse(reason);
                    }
                }
                Some(LayerSpecifier::DiskLayer(disk)) => {
                    let mut path = Path::new(&disk.symlink_root).join(&disk.subdirectory);
                    if disk.append_service_cluster {
                        path = path.join(service_cluster);
                    }
                    made.disk = Some(path);
                }
                Some(LayerSpecifier::AdminLayer(_)) if layers.iter().any(|l| l.admin) => {
                    return refuse(
                        "Too many admin layers specified in LayeredRuntime, at most one may be specified".to_owned(),
                    );
                }
                Some(LayerSpecifier::AdminLayer(_)) => made.admin = true,
                _ => return refuse("layer_specifier: only static, disk and admin layers are implemented".to_owned()),
            }
            layers.push(made);
        }
        let scope = store.scope(&RUNTIME_SCOPE, &"".into());
        let stats = Stats::new(store.main(), scope);
        let runtime = Rc::new(Self {
            layers: RefCell::new(layers),
            handle: RuntimeHandle::default(),
            stats,
            watch: RefCell::default(),
        });
        runtime.load();
        Ok(runtime)
    }

    pub fn handle(&self) -> RuntimeHandle {
        self.handle.clone()
    }

    /// Watches the links of disk layers from now on.
    pub fn watch(self: &Rc<Self>, proto: Option<&Proto>) {
        let roots: Vec<PathBuf> = proto
            .map_or(&[][..], |p| &p.layers)
            .iter()
            .filter_map(|layer| match &layer.layer_specifier {
                Some(LayerSpecifier::DiskLayer(disk)) => Some(PathBuf::from(&disk.symlink_root)),
                _ => None,
            })
            .collect();
        if roots.is_empty() {
            return;
        }
        let state = move || roots.iter().map(|root| std::fs::read_link(root).ok()).collect::<Vec<_>>();
        let this = Rc::downgrade(self);
        let task = tokio::task::spawn_local(async move {
            let mut seen = state();
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let now = state();
                let Some(runtime) = this.upgrade() else { return };
                if now != seen {
                    seen = now;
                    runtime.load();
                }
            }
        });
        *self.watch.borrow_mut() = Some(task.abort_handle());
    }

    /// Reads the disk layers and publishes what now holds.
    fn load(&self) {
        for layer in &mut *self.layers.borrow_mut() {
            let Some(path) = &layer.disk else { continue };
            if !path.is_dir() {
                self.stats.inc(stat::OVERRIDE_DIR_NOT_EXISTS);
                layer.values.clear();
                continue;
            }
            self.stats.inc(stat::OVERRIDE_DIR_EXISTS);
            let mut values = Values::new();
            match read_folder(path, "", 0, &mut values) {
                Ok(()) => layer.values = values,
                Err(e) => {
                    tracing::warn!(target: "runtime", "{}: {e}; its last values stay", path.display());
                    self.stats.inc(stat::LOAD_ERROR);
                }
            }
        }
        self.publish();
        self.stats.inc(stat::LOAD_SUCCESS);
    }

    fn publish(&self) {
        let layers = self.layers.borrow();
        let mut snapshot = Snapshot::new();
        for layer in &*layers {
            snapshot.extend(layer.values.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
        self.stats.set(stat::NUM_KEYS, snapshot.len() as u64);
        self.stats.set(stat::NUM_LAYERS, layers.len() as u64);
        let overridden = layers.iter().any(|l| l.admin && !l.values.is_empty());
        self.stats.set(stat::ADMIN_OVERRIDES_ACTIVE, overridden.into());
        self.handle.0.store(Arc::new(snapshot));
    }
}

impl Drop for LayeredRuntime {
    fn drop(&mut self) {
        if let Some(task) = self.watch.get_mut().take() {
            task.abort();
        }
    }
}

impl RuntimeLayers for LayeredRuntime {
    fn names(&self) -> Vec<String> {
        self.layers.borrow().iter().map(|l| l.name.clone()).collect()
    }

    fn entries(&self) -> BTreeMap<String, Vec<String>> {
        let layers = self.layers.borrow();
        let mut entries = BTreeMap::<String, Vec<String>>::new();
        for (i, layer) in layers.iter().enumerate() {
            for (key, value) in &layer.values {
                let texts = entries.entry(key.clone()).or_insert_with(|| vec![String::new(); layers.len()]);
                texts[i].clone_from(&value.text);
            }
        }
        entries
    }

    fn modify(&self, changes: &[(&str, &str)]) -> bool {
        {
            let mut layers = self.layers.borrow_mut();
            let Some(layer) = layers.iter_mut().find(|l| l.admin) else { return false };
            for (key, value) in changes {
                if value.is_empty() {
                    layer.values.remove(*key);
                } else if layer.values.len() < MAX_KEYS {
                    layer.values.insert((*key).to_owned(), Entry::parse(value));
                }
            }
        }
        self.publish();
        true
    }
}

/// Dotted keys of nested objects. An object that is a fraction is a value.
fn flatten(prefix: &str, values: &Struct, out: &mut Values) -> Result<(), String> {
    for (name, value) in &values.fields {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let text = match &value.kind {
            Some(Kind::StructValue(inner))
                if !inner.fields.contains_key("numerator") && !inner.fields.contains_key("denominator") =>
            {
                flatten(&key, inner, out)?;
                continue;
            }
            Some(Kind::StructValue(inner)) => {
                let json = inner.fields.iter().filter_map(|(k, v)| match &v.kind {
                    Some(Kind::NumberValue(n)) => Some((k.clone(), serde_json::json!(n))),
                    Some(Kind::StringValue(s)) => Some((k.clone(), serde_json::json!(s))),
                    _ => None,
                });
                serde_json::Value::Object(json.collect()).to_string()
            }
            Some(Kind::NumberValue(n)) => n.to_string(),
            Some(Kind::BoolValue(b)) => b.to_string(),
            Some(Kind::StringValue(s)) => s.clone(),
            Some(Kind::ListValue(_) | Kind::NullValue(_)) | None => {
                return Err(format!("Invalid runtime entry value for {key}"));
            }
        };
        out.insert(key, Entry::parse(&text));
    }
    Ok(())
}

/// Files are values, folders are parts of keys; lines that begin with `#` are comments.
fn read_folder(path: &Path, prefix: &str, depth: usize, out: &mut Values) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("more than {MAX_DEPTH} folders deep"));
    }
    for item in std::fs::read_dir(path).map_err(|e| e.to_string())? {
        let item = item.map_err(|e| e.to_string())?;
        let name = item.file_name().to_string_lossy().into_owned();
        let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        let about = std::fs::metadata(item.path()).map_err(|e| format!("{key}: {e}"))?;
        if about.is_dir() {
            read_folder(&item.path(), &key, depth + 1, out)?;
        } else if about.is_file() {
            if about.len() > MAX_FILE || out.len() >= MAX_KEYS {
                return Err(format!("{key}: too large"));
            }
            let text = std::fs::read_to_string(item.path()).map_err(|e| format!("{key}: {e}"))?;
            let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
            out.insert(key, Entry::parse(lines.join("\n").trim_end()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
