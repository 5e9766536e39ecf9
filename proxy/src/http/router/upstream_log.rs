//! `upstream_log`: a record for each attempt beside the one for the stream.
//!
//! What is told of an attempt lies in it while it is under way, and goes to the [`AttemptLog`] when it is over, however
//! it ends: when it is dropped. It is written when the next attempt has its connection, or when the stream ends.

use std::cell::RefCell;
use std::mem::swap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use nuncio_api::supports;
use nuncio_core::access_log::{LogContext, LogType};
use nuncio_core::http::{RequestHead, ResponseHead, StreamControl};
use nuncio_core::stream_info::StreamInfo;
use nuncio_core::upstream::Host;
use tokio::time::Instant;

use super::failure::{Failure, Reset};
use crate::http::conn_manager::HttpConnectionManager;

supports!(pub(super) OPTIONS = "envoy.extensions.filters.http.router.v3.Router.UpstreamAccessLogOptions" {
    flush_upstream_log_on_upstream_stream,
});

/// Attempts of one stream that are over.
#[derive(Clone, Default)]
pub(super) struct AttemptLog(Rc<RefCell<Vec<Told>>>);

impl AttemptLog {
    /// An attempt begins.
    pub fn begin(&self, start: Instant, start_wall: SystemTime) -> AttemptRecord {
        AttemptRecord { told: Told { info: StreamInfo::new(start_wall, start), response: None }, over: self.clone() }
    }

    /// Writes what there is to write.
    pub fn write(&self, request: &RequestHead, control: &StreamControl, manager: &HttpConnectionManager) {
        self.0.take().iter_mut().for_each(|told| told.write(LogType::UpstreamEnd, request, control, manager));
    }
}

/// What is told of an attempt that is under way.
pub(super) struct AttemptRecord {
    told: Told,
    over: AttemptLog,
}

impl Drop for AttemptRecord {
    fn drop(&mut self) {
        // Without a host nobody was asked.
        if self.told.info.upstream_host.is_some() {
            self.told.info.timings.end = Some(Instant::now());
            let nothing =
                Told { info: StreamInfo::new(self.told.info.start_wall, self.told.info.start), response: None };
            self.over.0.borrow_mut().push(std::mem::replace(&mut self.told, nothing));
        }
    }
}

impl AttemptRecord {
    pub fn asks(&mut self, host: &Arc<Host>) {
        self.told.info.upstream_host = Some(host.clone());
    }

    /// It has a connection, as the record of the stream says.
    pub fn opened(&mut self, stream: &StreamInfo) {
        let info = &mut self.told.info;
        info.upstream_connection_id = stream.upstream_connection_id;
        info.upstream_local_address = stream.upstream_local_address.clone();
        info.upstream_protocol = stream.upstream_protocol;
        info.protocol = stream.upstream_protocol;
        info.upstream_tls = stream.upstream_tls.clone();
    }

    /// For `flush_upstream_log_on_upstream_stream`.
    pub fn write_opened(&mut self, request: &RequestHead, control: &StreamControl, manager: &HttpConnectionManager) {
        self.told.write(LogType::UpstreamPoolReady, request, control, manager);
    }

    pub fn sent_head(&mut self, bytes: u64, now: Instant) {
        self.told.info.timings.first_upstream_tx = Some(now);
        self.told.info.upstream_header_bytes_sent = bytes;
    }

    pub fn sent(&mut self, bytes: usize) {
        self.told.info.bytes_sent += bytes as u64;
    }

    pub fn answered(&mut self, head: &ResponseHead, now: Instant) {
        let info = &mut self.told.info;
        info.timings.first_upstream_rx = Some(now);
        info.response_code = Some(head.status);
        info.upstream_header_bytes_received = head.headers.byte_size() as u64;
        self.told.response = Some(head.clone());
    }

    pub fn received(&mut self, bytes: usize) {
        self.told.info.bytes_received += bytes as u64;
    }

    pub fn failed(&mut self, failure: &Failure) {
        // As Envoy: the route's time is the stream's affair.
        if failure.reset != Reset::ResponseTimeout {
            self.told.info.flags.insert(failure.flag());
        }
        self.told.info.upstream_transport_failure = failure.transport.clone();
    }
}

/// An attempt as a stream of its own.
struct Told {
    info: StreamInfo,
    response: Option<ResponseHead>,
}

impl Told {
    fn write(
        &mut self,
        kind: LogType,
        request: &RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) {
        self.change_places(&mut control.info_mut());
        {
            let (info, connection, route) = (control.info(), control.connection(), control.route());
            let record = LogContext {
                request: Some(request),
                response: self.response.as_ref(),
                connection: connection.as_deref(),
                log_type: kind,
                route: route.as_deref(),
                rng: Some(&manager.worker.context.rng),
                ..LogContext::new(&info)
            };
            manager.upstream_loggers.iter().for_each(|logger| logger.log(&record));
        }
        self.change_places(&mut control.info_mut());
    }

    /// What the attempt has of its own; the rest is as the stream has it. Done twice, all is as before.
    fn change_places(&mut self, stream: &mut StreamInfo) {
        let own = &mut self.info;
        swap(&mut own.start_wall, &mut stream.start_wall);
        swap(&mut own.start, &mut stream.start);
        swap(&mut own.protocol, &mut stream.protocol);
        swap(&mut own.response_code, &mut stream.response_code);
        swap(&mut own.response_code_details, &mut stream.response_code_details);
        swap(&mut own.flags, &mut stream.flags);
        swap(&mut own.bytes_received, &mut stream.bytes_received);
        swap(&mut own.bytes_sent, &mut stream.bytes_sent);
        swap(&mut own.upstream_header_bytes_received, &mut stream.upstream_header_bytes_received);
        swap(&mut own.upstream_header_bytes_sent, &mut stream.upstream_header_bytes_sent);
        swap(&mut own.timings, &mut stream.timings);
        swap(&mut own.attempt_count, &mut stream.attempt_count);
        swap(&mut own.upstream_host, &mut stream.upstream_host);
        swap(&mut own.upstream_local_address, &mut stream.upstream_local_address);
        swap(&mut own.upstream_connection_id, &mut stream.upstream_connection_id);
        swap(&mut own.upstream_protocol, &mut stream.upstream_protocol);
        swap(&mut own.upstream_transport_failure, &mut stream.upstream_transport_failure);
        swap(&mut own.upstream_tls, &mut stream.upstream_tls);
        swap(&mut own.earlier_attempts, &mut stream.earlier_attempts);
    }
}
