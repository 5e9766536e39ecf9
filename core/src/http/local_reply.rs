//! An answer that the proxy makes itself.

use std::borrow::Cow;

use bytes::Bytes;

use crate::stream_info::ResponseFlag;

/// What the client gets instead of an upstream's response. The manager adds `content-length`,
/// `content-type`, `date` and `server`, and turns it into a gRPC status for gRPC requests.
#[derive(Debug, Clone)]
pub struct LocalReply {
    pub status: u16,
    pub body: Bytes,
    pub flag: Option<ResponseFlag>,
    /// `%RESPONSE_CODE_DETAILS%`.
    pub details: Cow<'static, str>,
    /// Set on the answer: each name's values replace what the manager would say.
    pub headers: Vec<(Cow<'static, str>, Bytes)>,
    /// Instead of the status mapped from `status`.
    pub grpc_status: Option<u32>,
}

impl LocalReply {
    pub fn new(status: u16, details: impl Into<Cow<'static, str>>) -> Self {
        Self { status, body: Bytes::new(), flag: None, details: details.into(), headers: Vec::new(), grpc_status: None }
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub fn flag(mut self, flag: ResponseFlag) -> Self {
        self.flag = Some(flag);
        self
    }

    pub fn header(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn grpc_status(mut self, status: u32) -> Self {
        self.grpc_status = Some(status);
        self
    }
}
