//! `/certs`: the certificates in use. No TLS context can be configured yet, so none are.

use serde_json::json;

use super::{Answer, Page};

pub(super) fn pages() -> Vec<Page> {
    vec![Page::new("/certs", "print certs on machine", |_| Answer::json(&json!({"certificates": []})))]
}
