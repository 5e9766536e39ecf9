//! `/runtime` and `/runtime_modify`: the layers of runtime values, and changes of the admin layer.

use std::collections::BTreeMap;
use std::rc::Rc;

use http::StatusCode;
use serde_json::json;

use super::{Answer, Page};

const USAGE: &str = "usage: /runtime_modify?key1=value1&key2=value2&keyN=valueN\n       \
                     or send the parameters as form values\n\
                     use an empty value to remove a previously added override";

/// Who holds the layers.
pub trait RuntimeLayers {
    /// From the first to the one that decides.
    fn names(&self) -> Vec<String>;

    /// Every key with its text in each layer; empty where a layer does not have it.
    fn entries(&self) -> BTreeMap<String, Vec<String>>;

    /// Sets keys in the admin layer, or takes them away if the value is empty. False: there is no
    /// such layer.
    fn modify(&self, changes: &[(&str, &str)]) -> bool;
}

pub fn pages(layers: &Rc<dyn RuntimeLayers>) -> Vec<Page> {
    let (shown, modified) = (layers.clone(), layers.clone());
    vec![
        Page::new("/runtime", "print runtime values", move |_| {
            let entries: serde_json::Map<_, _> = shown
                .entries()
                .into_iter()
                .map(|(key, texts)| {
                    let last = texts.iter().rev().find(|text| !text.is_empty()).cloned().unwrap_or_default();
                    (key, json!({"layer_values": texts, "final_value": last}))
                })
                .collect();
            Answer::json(&json!({"layers": shown.names(), "entries": entries}))
        }),
        Page::act(
            "/runtime_modify",
            "change runtime values, as ?key=value; an empty value removes the change",
            move |query| {
                if query.is_empty() {
                    return Answer::error(StatusCode::BAD_REQUEST, USAGE);
                }
                if modified.modify(&query.iter().collect::<Vec<_>>()) {
                    return Answer::ok();
                }
                Answer::error(StatusCode::SERVICE_UNAVAILABLE, "No admin layer specified")
            },
        ),
    ]
}
