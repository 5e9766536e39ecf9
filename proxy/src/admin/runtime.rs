//! `/runtime` and `/runtime_modify`: as in an Envoy without `layered_runtime`, since no layer can be configured yet.

use http::StatusCode;
use serde_json::json;

use super::{Answer, Page};

pub(super) fn pages() -> Vec<Page> {
    vec![
        Page::new("/runtime", "print runtime values", |_| Answer::json(&json!({"entries": {}, "layers": []}))),
        Page::act(
            "/runtime_modify",
            "change runtime values, as ?key=value; an empty value removes the change",
            |query| {
                if query.is_empty() {
                    let usage = "usage: /runtime_modify?key1=value1&key2=value2&keyN=valueN\n\
                             \x20      or send the parameters as form values\n\
                             use an empty value to remove a previously added override";
                    return Answer::error(StatusCode::BAD_REQUEST, usage);
                }
                Answer::error(StatusCode::SERVICE_UNAVAILABLE, "No admin layer specified")
            },
        ),
    ]
}
