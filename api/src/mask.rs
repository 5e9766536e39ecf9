//! Field masks over messages in their JSON form: which parts of a dump somebody wants to see.
//!
//! A path names fields by their proto names; it may lead through messages and into an `Any`, not through lists and
//! maps. What it means follows the trimming of Envoy's `/config_dump`.

use serde_json::Value;

use crate::any;
use crate::shape::{FieldKind, Repeat, Shape, shape_named};

/// `a.b,c`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldMask {
    paths: Vec<Vec<String>>,
}

const ANY: &str = "google.protobuf.Any";

impl FieldMask {
    pub fn parse(text: &str) -> Self {
        let path = |path: &str| path.split('.').map(str::to_owned).collect();
        Self { paths: text.split(',').map(path).collect() }
    }

    /// Whether every path leads to a field of the message. `value` is its JSON form: it says what an `Any` holds.
    pub fn fits(&self, full_name: &str, value: &Value) -> bool {
        let Some(shape) = shape_named(full_name) else { return false };
        self.paths.iter().all(|path| fits(shape, value, path, true))
    }

    /// Takes everything away that no path leads to, but for the types of what remains.
    pub fn trim(&self, value: &mut Value) {
        let paths: Vec<&[String]> = self.paths.iter().map(Vec::as_slice).collect();
        trim(value, &paths);
    }
}

fn fits(shape: &Shape, value: &Value, path: &[String], outermost: bool) -> bool {
    let Some((name, rest)) = path.split_first() else { return true };
    let field = shape.field_named(name).map(|at| &shape.fields[at]).filter(|f| f.name() == name);
    let Some(field) = field else { return false };
    let FieldKind::Message(inner) = &field.kind else { return rest.is_empty() };
    if rest.is_empty() {
        // The resource itself is an Any in a dump, and a mask must say what of it.
        return !(outermost && **inner == *ANY && field.repeat != Repeat::List);
    }
    if field.repeat != Repeat::One {
        return false;
    }
    let value = value.get(name).unwrap_or(&Value::Null);
    if **inner != *ANY {
        return field.message().is_some_and(|inner| fits(inner, value, rest, false));
    }
    // An unset Any holds no field that could be missed.
    let Some(url) = value.get("@type").and_then(Value::as_str) else { return true };
    shape_named(any::type_name(url)).is_some_and(|held| fits(held, value, rest, false))
}

fn trim(value: &mut Value, paths: &[&[String]]) {
    let Value::Object(members) = value else { return };
    members.retain(|name, _| name == "@type" || paths.iter().any(|path| path.first().is_some_and(|p| p == name)));
    for (name, member) in members {
        let below: Vec<&[String]> =
            paths.iter().filter(|path| path.first().is_some_and(|p| p == name)).map(|path| &path[1..]).collect();
        // A path that ends here wants all of it.
        if !below.iter().any(|path| path.is_empty()) {
            trim(member, &below);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const STATIC_CLUSTER: &str = "envoy.admin.v3.ClustersConfigDump.StaticCluster";

    fn cluster() -> Value {
        json!({
            "cluster": {
                "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
                "name": "a",
                "connect_timeout": "1s",
                "load_assignment": {"cluster_name": "a", "endpoints": [{}]},
            },
            "last_updated": "2026-11-29T22:39:30.036Z",
        })
    }

    #[test]
    fn paths_fit_as_in_envoy() {
        // What Envoy 1.40 takes and refuses for /config_dump?resource=static_clusters&mask=…
        for (mask, fits) in [
            ("cluster.name", true),
            ("cluster.name,last_updated", true),
            ("cluster.load_assignment.endpoints", true),
            ("cluster.load_assignment.cluster_name", true),
            ("cluster.name,cluster.nope", false),
            ("cluster.load_assignment.endpoints.lb_endpoints", false),
            ("cluster", false),
            ("bad.mask", false),
        ] {
            assert_eq!(FieldMask::parse(mask).fits(STATIC_CLUSTER, &cluster()), fits, "{mask}");
        }
    }

    #[test]
    fn what_no_path_leads_to_is_gone() {
        let trimmed = |mask: &str| {
            let mut value = cluster();
            FieldMask::parse(mask).trim(&mut value);
            value
        };
        let url = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
        assert_eq!(trimmed("cluster.name"), json!({"cluster": {"@type": url, "name": "a"}}));
        assert_eq!(
            trimmed("cluster.load_assignment.cluster_name,cluster.load_assignment.endpoints"),
            json!({"cluster": {"@type": url, "load_assignment": {"cluster_name": "a", "endpoints": [{}]}}})
        );
        assert_eq!(trimmed("last_updated"), json!({"last_updated": "2026-11-29T22:39:30.036Z"}));
    }
}
