//! What an access log is told of an admin request.

use std::rc::Rc;

use nuncio_core::access_log::{AccessLog, LogContext, LogType};
use nuncio_core::http::{RequestHead, ResponseHead, Version};
use nuncio_core::net::ConnectionInfo;
use nuncio_core::stream_info::StreamInfo;
use nuncio_core::time::WallClock;
use tokio::time::Instant;

/// One request on its way to the log.
pub(super) struct LogRecord {
    request: RequestHead,
    response: ResponseHead,
    info: StreamInfo,
    connection: Rc<ConnectionInfo>,
}

// === impl LogRecord ===

impl LogRecord {
    pub(super) fn begin<B>(request: &http::Request<B>, connection: Rc<ConnectionInfo>, clock: &WallClock) -> LogRecord {
        let mut head = RequestHead::default();
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        head.headers.append(":method", request.method().as_str());
        head.headers.append(":path", target);
        head.headers.append(":scheme", "http");
        for (name, value) in request.headers() {
            let name = if *name == http::header::HOST { ":authority" } else { name.as_str() };
            head.headers.append(name, value.as_bytes());
        }
        let mut info = StreamInfo::new(clock.now(), Instant::now());
        let version = if request.version() < http::Version::HTTP_11 { Version::Http10 } else { Version::Http11 };
        info.protocol = Some(version);
        head.version = version;
        LogRecord { request: head, response: ResponseHead::default(), info, connection }
    }

    pub(super) fn answered<B>(mut self, response: &http::Response<B>) -> LogRecord {
        self.response.status = response.status().as_u16();
        for (name, value) in response.headers() {
            self.response.headers.append(name.as_str(), value.as_bytes());
        }
        self.info.response_code = Some(self.response.status);
        self.info.set_details("admin_filter_response");
        self
    }

    pub(super) fn write(mut self, sent: u64, logs: &[Box<dyn AccessLog>]) {
        self.info.bytes_sent = sent;
        self.info.timings.end = Some(Instant::now());
        let record = LogContext {
            request: Some(&self.request),
            response: Some(&self.response),
            connection: Some(&self.connection),
            log_type: LogType::DownstreamEnd,
            ..LogContext::new(&self.info)
        };
        logs.iter().for_each(|log| log.log(&record));
    }
}
