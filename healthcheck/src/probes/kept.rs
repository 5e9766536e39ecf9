//! An HTTP connection that is kept from one check to the next, if it may be.

use std::sync::Arc;

use bytes::Bytes;
use nuncio_core::http::{RequestHead, Version};
use nuncio_core::upstream::{DialFailure, Host, HttpAnswer, HttpCall, HttpConn};

use crate::probe::ProbeContext;

fn scheme(conn: &dyn HttpConn) -> &'static str {
    if conn.is_secure() { "https" } else { "http" }
}

pub struct KeptConn {
    context: ProbeContext,
    version: Version,
    /// Between checks. Taken during one, so that it goes with a check that is given up.
    conn: Option<Box<dyn HttpConn>>,
}

impl KeptConn {
    pub fn new(context: ProbeContext, version: Version) -> Self {
        Self { context, version, conn: None }
    }

    /// One exchange. A kept connection that turns out to have been closed is replaced once: that says nothing of the
    /// host, which may close what lies idle.
    pub async fn exchange(
        &mut self,
        host: &Arc<Host>,
        head: &mut RequestHead,
        body: &Bytes,
        keep: usize,
    ) -> Result<HttpAnswer, DialFailure> {
        if let Some(mut conn) = self.conn.take()
            && conn.is_reusable()
        {
            head.headers.set(":scheme", scheme(&*conn));
            match conn.exchange(HttpCall { head, body: body.clone(), keep }).await {
                Err(DialFailure::Closed { answered: false }) => {}
                other => return self.keep(conn, other),
            }
        }
        let mut conn = self.context.dialer.http(host, self.version).await?;
        head.headers.set(":scheme", scheme(&*conn));
        let answer = conn.exchange(HttpCall { head, body: body.clone(), keep }).await;
        self.keep(conn, answer)
    }

    fn keep(
        &mut self,
        conn: Box<dyn HttpConn>,
        answer: Result<HttpAnswer, DialFailure>,
    ) -> Result<HttpAnswer, DialFailure> {
        if answer.is_ok() && self.context.reuse_connection {
            self.conn = Some(conn);
        }
        answer
    }
}
