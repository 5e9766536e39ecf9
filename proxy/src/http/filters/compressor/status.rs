//! `x-envoy-compression-status` (`status_header_enabled`): what became of a response, told to its client. The reasons and
//! their order are Envoy's.

use nuncio_core::http::{HeaderMap, ResponseHead};

use super::{Settings, forbids_transformation};

const NAME: &str = "x-envoy-compression-status";

/// Of one response, as it was before anything was changed.
pub(super) struct Status {
    /// Why it is not compressed, whatever its client accepts.
    reason: Option<&'static str>,
    length: Option<String>,
}

impl Status {
    pub(super) fn of(settings: &Settings, head: &ResponseHead) -> Self {
        let length = head.headers.get_str("content-length").map(str::to_owned);
        Self { reason: reason(settings, head), length }
    }

    pub(super) fn compressed(&self, headers: &mut HeaderMap, encoding: &str) {
        let length = self.length.as_ref().map(|length| format!(";OriginalLength={length}")).unwrap_or_default();
        headers.append(NAME, format!("{encoding};Compressed{length}"));
    }

    pub(super) fn left_alone(&self, headers: &mut HeaderMap, encoding: &str) {
        if let Some(reason) = self.reason {
            headers.append(NAME, format!("{encoding};{reason}"));
        }
    }
}

fn reason(settings: &Settings, head: &ResponseHead) -> Option<&'static str> {
    let headers = &head.headers;
    if !settings.response.is_long_enough(headers) {
        return Some("ContentLengthTooSmall");
    }
    // These are the response's own wish.
    if forbids_transformation(headers) || headers.contains("content-encoding") {
        return None;
    }
    if !settings.response.allows_type(headers) {
        return Some("ContentTypeNotAllowed");
    }
    if settings.forbids_etag(head) {
        return Some("EtagNotAllowed");
    }
    settings.uncompressible.contains(&head.status).then_some("StatusCodeNotAllowed")
}
