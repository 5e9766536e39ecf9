//! A small authorizer for demonstrations and tests: rules on paths and headers, without a connection. Who serves it
//! carries the bytes.
//!
//! A path that is kept back is refused, unless the request carries the header that opens it. What passes gets a header
//! that says who let it pass. A check without a request, of a TCP connection, passes.

use std::fmt;
use std::str::FromStr;

use nuncio_api::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use nuncio_api::pb::envoy::service::auth::v3::attribute_context::HttpRequest;
use nuncio_api::pb::envoy::service::auth::v3::check_response::HttpResponse;
use nuncio_api::pb::envoy::service::auth::v3::{CheckRequest, CheckResponse, DeniedHttpResponse, OkHttpResponse};
use nuncio_api::pb::google::rpc::Status;
use nuncio_api::prost::Message;
use nuncio_api::prost::bytes::{BufMut, Bytes, BytesMut};

use crate::ext_authz::CHECK;

/// What passes, and what it gets.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Prefixes of paths that are kept back.
    pub deny: Vec<String>,
    /// Opens them.
    pub open: Field,
    /// Upstream of what passes.
    pub add: Field,
}

impl Default for Rules {
    fn default() -> Self {
        let field = |name: &str, value: &str| Field { name: name.to_owned(), value: value.to_owned() };
        Self {
            deny: vec!["/private".to_owned()],
            open: field("x-pass", "please"),
            add: field("x-authorized-by", "nuncio"),
        }
    }
}

/// A header and its value, written `name=value`.
#[derive(Debug, Clone)]
pub struct Field {
    /// In lower case.
    pub name: String,
    pub value: String,
}

impl FromStr for Field {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once('=').ok_or("NAME=VALUE is wanted")?;
        Ok(Self { name: name.to_ascii_lowercase(), value: value.to_owned() })
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// `PERMISSION_DENIED` of gRPC.
const PERMISSION_DENIED: i32 = 7;

impl Rules {
    pub fn check(&self, request: &CheckRequest) -> CheckResponse {
        let http = request.attributes.as_ref().and_then(|a| a.request.as_ref()).and_then(|r| r.http.as_ref());
        match http {
            Some(http) if self.keeps_back(http) => CheckResponse {
                status: Some(Status { code: PERMISSION_DENIED, ..Status::default() }),
                http_response: Some(HttpResponse::DeniedResponse(DeniedHttpResponse {
                    body: format!("{} is kept back; {}: {} opens it\n", path(http), self.open.name, self.open.value),
                    ..DeniedHttpResponse::default()
                })),
                ..CheckResponse::default()
            },
            _ => CheckResponse {
                status: Some(Status::default()),
                http_response: Some(HttpResponse::OkResponse(OkHttpResponse {
                    headers: vec![header(&self.add)],
                    ..OkHttpResponse::default()
                })),
                ..CheckResponse::default()
            },
        }
    }

    fn keeps_back(&self, http: &HttpRequest) -> bool {
        let opened = http.headers.get(&self.open.name).is_some_and(|value| *value == self.open.value);
        !opened && self.deny.iter().any(|prefix| path(http).starts_with(prefix))
    }

    /// Answers a unary gRPC call: the frame to send, or the status to end with.
    pub fn answer(&self, path: &str, body: &[u8]) -> Result<Bytes, i64> {
        const UNIMPLEMENTED: i64 = 12;
        const INVALID: i64 = 3;
        if path != CHECK {
            return Err(UNIMPLEMENTED);
        }
        let message = body.get(5..).filter(|_| body[0] == 0).ok_or(INVALID)?;
        let response = self.check(&CheckRequest::decode(message).map_err(|_| INVALID)?);
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(response.encoded_len() as u32);
        response.encode_raw(&mut frame);
        Ok(frame.freeze())
    }
}

fn path(http: &HttpRequest) -> &str {
    http.path.split(['?', '#']).next().unwrap_or_default()
}

fn header(Field { name, value }: &Field) -> HeaderValueOption {
    let header = HeaderValue { key: name.clone(), value: value.clone(), ..HeaderValue::default() };
    HeaderValueOption { header: Some(header), ..HeaderValueOption::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::message;

    fn asked(path: &str, headers: &str) -> CheckResponse {
        Rules::default().check(&message(&format!(
            "{{attributes: {{request: {{http: {{path: '{path}', headers: {{{headers}}}}}}}}}}}"
        )))
    }

    #[test]
    fn what_is_kept_back_passes_with_the_header_that_opens_it() {
        let code = |response: CheckResponse| response.status.unwrap().code;
        assert_eq!(code(asked("/private/x?y", "")), 7);
        assert_eq!(code(asked("/private", "x-pass: wrong")), 7);
        assert_eq!(code(asked("/private", "x-pass: please")), 0);
        assert_eq!(code(asked("/public?to=/private", "")), 0);
        assert_eq!(code(Rules::default().check(&CheckRequest::default())), 0);
    }

    #[test]
    fn what_is_no_check_is_told_so() {
        assert_eq!(Rules::default().answer("/other", b""), Err(12));
        assert_eq!(Rules::default().answer(CHECK, b"\0\0"), Err(3));
        assert_eq!(Rules::default().answer(CHECK, b"\0\0\0\0\x01\xff"), Err(3));
        let frame = Rules::default().answer(CHECK, b"\0\0\0\0\0").unwrap();
        assert_eq!(frame.len(), 5 + CheckResponse::decode(frame.slice(5..)).unwrap().encoded_len());
    }
}
