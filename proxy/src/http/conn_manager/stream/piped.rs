//! Bodies that go from one connection to the other by a pipe.

use super::*;
use crate::codec::http1::Piped;

impl ActiveStream {
    /// Moves a piece of the request's body, if nobody has to see it. Whatever came of that, it is dealt with; false: the
    /// piece is to be read.
    pub(super) fn pipe_request(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
    ) -> bool {
        let Some(client) = down.http1().filter(|_| self.decode_chain.is_idle()) else { return false };
        match self.router.pipe_request(client, cx, &manager.worker.buffers, limit(manager)) {
            Piped::Not => return false,
            Piped::Unread(error) => self.request_broken(error, down, manager),
            Piped::Read { bytes, sent } => {
                self.control.info_mut().bytes_received += bytes as u64;
                if let Err(failure) = sent {
                    self.upstream_failed(failure, manager);
                }
            }
        }
        true
    }

    /// The same with the response's.
    pub(super) fn pipe_response(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
    ) -> bool {
        let Some(client) = down.http1().filter(|_| self.encode_chain.is_idle()) else { return false };
        match self.router.pipe_response(client, cx, &manager.worker.buffers, limit(manager)) {
            Piped::Not => return false,
            Piped::Unread(failure) => self.upstream_failed(failure, manager),
            Piped::Read { bytes, sent } => {
                self.control.info_mut().bytes_sent += bytes as u64;
                if let Err(error) = sent {
                    self.not_sent(cx, &error, down, manager);
                }
            }
        }
        true
    }
}

/// How much of a body a connection may hold.
fn limit(manager: &HttpConnectionManager) -> usize {
    match manager.config.buffer_limit {
        0 => usize::MAX,
        limit => limit as usize,
    }
}
