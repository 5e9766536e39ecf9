//! Why an upstream stream gave no (whole) response, and how that is told to the client, the log and
//! the counters.

use std::borrow::Cow;

use nuncio_core::http::LocalReply;
use nuncio_core::stream_info::ResponseFlag;

/// What ended the upstream stream. The texts are Envoy's: clients and log parsers know them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// Connecting failed on our side (no route, no address).
    LocalConnectionFailure,
    /// Connecting was refused.
    RemoteConnectionFailure,
    ConnectionTimeout,
    /// The connection closed under the request.
    ConnectionTermination,
    LocalReset,
    RemoteReset,
    RemoteRefusedStream,
    /// A circuit breaker is open.
    Overflow,
    NoHealthyHost,
    ProtocolError,
    /// The route's own timeout: told apart from resets in every text.
    ResponseTimeout,
    PerTryTimeout,
    PerTryIdleTimeout,
    /// The cluster's limit on the whole upstream stream.
    MaxStreamDuration,
}

impl Reset {
    /// As in the body of the local reply.
    pub fn text(self) -> &'static str {
        match self {
            Self::LocalConnectionFailure => "local connection failure",
            Self::RemoteConnectionFailure => "remote connection failure",
            Self::ConnectionTimeout => "connection timeout",
            Self::ConnectionTermination => "connection termination",
            Self::LocalReset => "local reset",
            Self::RemoteReset => "remote reset",
            Self::RemoteRefusedStream => "remote refused stream reset",
            Self::Overflow => "overflow",
            Self::NoHealthyHost => "no healthy upstream",
            Self::ProtocolError => "protocol error",
            Self::ResponseTimeout => "response timeout",
            Self::PerTryTimeout => "per try timeout",
            Self::PerTryIdleTimeout => "per try idle timeout",
            Self::MaxStreamDuration => "max stream duration",
        }
    }
}

/// One failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub reset: Reset,
    /// What the transport said: `delayed connect error: Connection refused`.
    pub transport: Option<Cow<'static, str>>,
    /// Nothing of the response was seen, and the connection had served others before: it may have
    /// been closing as the request was sent.
    pub stale_connection: bool,
    /// The upstream closed what was upgraded, which counts as a failure and is none: nothing is missing.
    pub tunnel_closed: bool,
}

impl Failure {
    pub fn new(reset: Reset) -> Self {
        Self { reset, transport: None, stale_connection: false, tunnel_closed: false }
    }

    pub fn flag(&self) -> ResponseFlag {
        match self.reset {
            Reset::LocalConnectionFailure | Reset::RemoteConnectionFailure | Reset::ConnectionTimeout => {
                ResponseFlag::UpstreamConnectionFailure
            }
            Reset::ConnectionTermination => ResponseFlag::UpstreamConnectionTermination,
            Reset::LocalReset => ResponseFlag::LocalReset,
            Reset::RemoteReset | Reset::RemoteRefusedStream => ResponseFlag::UpstreamRemoteReset,
            Reset::Overflow => ResponseFlag::UpstreamOverflow,
            Reset::NoHealthyHost => ResponseFlag::NoHealthyUpstream,
            Reset::ProtocolError => ResponseFlag::UpstreamProtocolError,
            Reset::ResponseTimeout | Reset::PerTryTimeout | Reset::PerTryIdleTimeout => {
                ResponseFlag::UpstreamRequestTimeout
            }
            Reset::MaxStreamDuration => ResponseFlag::UpstreamMaxStreamDurationReached,
        }
    }

    pub fn is_timeout(&self) -> bool {
        matches!(self.reset, Reset::ResponseTimeout | Reset::PerTryTimeout | Reset::PerTryIdleTimeout)
    }

    /// `prefix{reason|transport failure}`, blanks as underscores: one word in a log line.
    pub fn details(&self, prefix: &str) -> String {
        match self.reset {
            Reset::ResponseTimeout => return "response_timeout".to_owned(),
            Reset::PerTryTimeout => return "upstream_per_try_timeout".to_owned(),
            Reset::PerTryIdleTimeout => return "upstream_per_try_idle_timeout".to_owned(),
            Reset::MaxStreamDuration => return "upstream_max_stream_duration_reached".to_owned(),
            _ => {}
        }
        let mut text = format!("{prefix}{{{}", self.reset.text());
        if let Some(transport) = &self.transport {
            text.push('|');
            text.push_str(transport);
        }
        text.push('}');
        text.replace(' ', "_")
    }

    /// What the client gets when no attempt is left.
    pub fn reply(&self, retried: bool) -> LocalReply {
        let details = self.details("upstream_reset_before_response_started");
        if self.is_timeout() {
            return LocalReply::new(504, details).body("upstream request timeout").flag(self.flag());
        }
        match self.reset {
            Reset::MaxStreamDuration => {
                return LocalReply::new(504, details).body("upstream max stream duration reached").flag(self.flag());
            }
            Reset::NoHealthyHost => {
                // A refusal has a name of its own.
                let details = self.transport.clone().unwrap_or("no_healthy_upstream".into());
                return LocalReply::new(503, details).body("no healthy upstream").flag(self.flag());
            }
            _ => {}
        }
        let status = if self.reset == Reset::ProtocolError { 502 } else { 503 };
        let body = format!(
            "upstream connect error or disconnect/reset before headers. {}reset reason: {}",
            if retried { "retried and the latest " } else { "" },
            self.reset.text(),
        );
        let reply = LocalReply::new(status, details).body(body).flag(self.flag());
        if self.reset == Reset::Overflow { reply.header("x-envoy-overloaded", "true") } else { reply }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Texts recorded from Envoy 1.40 (router_upstream_failures).
    #[test]
    fn a_refused_connection_is_told_as_envoy_tells_it() {
        let failure = Failure {
            transport: Some("delayed connect error: Connection refused".into()),
            ..Failure::new(Reset::RemoteConnectionFailure)
        };
        let reply = failure.reply(false);
        assert_eq!(reply.status, 503);
        assert_eq!(
            reply.body,
            "upstream connect error or disconnect/reset before headers. reset reason: remote connection failure"
        );
        assert_eq!(
            reply.details,
            "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_Connection_refused}"
        );
        assert_eq!(reply.flag, Some(ResponseFlag::UpstreamConnectionFailure));
    }

    #[test]
    fn an_open_breaker_says_that_we_are_overloaded() {
        let reply = Failure::new(Reset::Overflow).reply(false);
        assert_eq!(reply.headers[0], ("x-envoy-overloaded".into(), "true".into()));
        assert_eq!(reply.flag, Some(ResponseFlag::UpstreamOverflow));
    }

    #[test]
    fn a_broken_answer_is_a_bad_gateway() {
        assert_eq!(Failure::new(Reset::ProtocolError).reply(false).status, 502);
        assert_eq!(Failure::new(Reset::ResponseTimeout).reply(true).body, "upstream request timeout");
    }
}
