//! Pieces of bodies that go by a pipe between the client's connection and an attempt's.

use std::io;
use std::task::Context;

use super::super::failure::Failure;
use super::Router;
use crate::codec::Buffers;
use crate::codec::http1::{BodyError, Piped, ServerConn};

impl Router {
    /// A piece of the request's, if nobody else here wants it: no retry, no redirect, no mirror. `limit`: so much may be
    /// held.
    pub fn pipe_request(
        &mut self,
        from: &mut ServerConn,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        limit: usize,
    ) -> Piped<BodyError, Failure> {
        let wanted = self.kept.is_wanted() || !self.copies.is_empty();
        let Some(to) = self.upstream.http1().filter(|_| !wanted) else { return Piped::Not };
        let piped = from.pipe_body(to, cx, buffers, limit);
        if let Piped::Read { bytes, .. } = piped {
            self.kept.miss();
            if let Some(record) = &mut self.upstream.record {
                record.sent(bytes);
            }
        }
        piped.map_unsent(|_| self.upstream.cut())
    }

    /// A piece of the response's.
    pub fn pipe_response(
        &mut self,
        to: &mut ServerConn,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        limit: usize,
    ) -> Piped<Failure, io::Error> {
        let Some(from) = self.upstream.http1() else { return Piped::Not };
        let piped = from.pipe_body(to, cx, buffers, limit);
        if let Piped::Read { bytes, .. } = piped {
            self.upstream.timers.progress();
            if let Some(record) = &mut self.upstream.record {
                record.received(bytes);
            }
        }
        piped.map_unread(|error| self.upstream.broken(error.into()))
    }
}
