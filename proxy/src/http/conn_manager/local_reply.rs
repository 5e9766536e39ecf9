//! How an answer of the proxy's own becomes a response head and body.

use bytes::Bytes;
use nuncio_core::http::{Framing, LocalReply, RequestHead, ResponseHead};

/// Writes `reply` into `head` and returns the body to send. For a request that came as gRPC the failure
/// becomes a trailers-only gRPC answer, whose HTTP status is always 200.
pub fn write(reply: &LocalReply, request: &RequestHead, grpc: bool, head: &mut ResponseHead) -> Bytes {
    head.clear();
    if grpc {
        head.status = 200;
        head.framing = Framing::None;
        head.headers.append("content-type", "application/grpc");
        head.headers.set_u64("grpc-status", u64::from(reply.grpc_status.unwrap_or_else(|| grpc_status(reply.status))));
        if !reply.body.is_empty() {
            head.headers.append("grpc-message", percent_encoded(&reply.body));
        }
        set_headers(reply, head);
        return Bytes::new();
    }
    head.status = reply.status;
    let bodiless = matches!(reply.status, 204 | 304) || (100..200).contains(&reply.status);
    if !bodiless {
        head.headers.set_u64("content-length", reply.body.len() as u64);
        if !reply.body.is_empty() {
            head.headers.append("content-type", "text/plain");
        }
    }
    set_headers(reply, head);
    if bodiless || reply.body.is_empty() || request.is_head() {
        // HEAD: the length stays as told, nothing follows.
        head.framing = if bodiless { Framing::None } else { Framing::Length(reply.body.len() as u64) };
        return Bytes::new();
    }
    head.framing = Framing::Length(reply.body.len() as u64);
    reply.body.clone()
}

fn set_headers(reply: &LocalReply, head: &mut ResponseHead) {
    for (name, _) in &reply.headers {
        head.headers.remove(name);
    }
    for (name, value) in &reply.headers {
        head.headers.append(name.as_bytes(), value);
    }
}

/// The gRPC status for an HTTP status, as gRPC's own mapping has it
/// (<https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>).
pub fn grpc_status(http: u16) -> u32 {
    match http {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => 14,
        _ => 2,
    }
}

/// `grpc-message` is percent-encoded outside printable ASCII (gRPC over HTTP/2, "Status-Message").
pub fn percent_encoded(text: &[u8]) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(text.len());
    for b in text {
        if (b' '..=b'~').contains(b) && *b != b'%' {
            out.push(*b);
        } else {
            out.extend([b'%', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_request_is_answered_by_status_and_message() {
        let request = RequestHead {
            headers: [("content-type", "application/grpc+proto")].into_iter().collect(),
            ..Default::default()
        };
        let mut head = ResponseHead::default();
        let body = write(&LocalReply::new(503, "x").body("no healthy\nupstream"), &request, true, &mut head);
        assert!(body.is_empty());
        assert_eq!(head.status, 200);
        assert_eq!(head.headers.get_str("grpc-status"), Some("14"));
        assert_eq!(head.headers.get_str("grpc-message"), Some("no healthy%0Aupstream"));
    }

    #[test]
    fn a_204_has_neither_body_nor_length() {
        let mut head = ResponseHead::default();
        let body = write(&LocalReply::new(204, "x").body("ignored"), &RequestHead::default(), false, &mut head);
        assert!(body.is_empty() && !head.headers.contains("content-length"));
    }
}
