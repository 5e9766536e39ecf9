//! `proxy_status_config`: responses tell in `proxy-status` (RFC 9209) what went wrong between the proxy and its upstream.
//!
//! Which error a response flag is, the words and the recommended codes are Envoy's. A flag that is no error of the proxy
//! (a fault that was injected, an authorizer's no) adds nothing.

use std::borrow::Cow;
use std::fmt::Write;

use nuncio_api::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::{
    ProxyStatusConfig as Proto, proxy_status_config::ProxyName,
};
use nuncio_api::supports;
use nuncio_core::http::ResponseHead;
use nuncio_core::net::ConnectionInfo;
use nuncio_core::stream_info::{ResponseFlag, StreamInfo};

supports!(pub(super) CONFIG =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.ProxyStatusConfig" {
    remove_details, remove_connection_termination_details, remove_response_flags, set_recommended_response_code,
    use_node_id, literal_proxy_name,
});

/// What a manager says of itself and how much of what went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyStatus {
    name: Box<str>,
    details: bool,
    termination_details: bool,
    flags: bool,
    sets_code: bool,
}

/// The first flag of this list that is set says the error, and the status that RFC 9209 recommends for it.
const ERRORS: &[(ResponseFlag, &str, Option<u16>)] = &[
    (ResponseFlag::FailedLocalHealthCheck, "destination_unavailable", Some(503)),
    (ResponseFlag::NoHealthyUpstream, "destination_unavailable", Some(503)),
    (ResponseFlag::UpstreamRequestTimeout, "http_response_timeout", Some(504)),
    (ResponseFlag::LocalReset, "connection_timeout", Some(504)),
    (ResponseFlag::UpstreamRemoteReset, "connection_terminated", Some(502)),
    (ResponseFlag::UpstreamConnectionFailure, "connection_refused", Some(502)),
    (ResponseFlag::UpstreamConnectionTermination, "connection_terminated", Some(502)),
    (ResponseFlag::UpstreamOverflow, "connection_limit_reached", Some(503)),
    (ResponseFlag::NoRouteFound, "destination_not_found", Some(500)),
    (ResponseFlag::RateLimited, "connection_limit_reached", Some(503)),
    (ResponseFlag::RateLimitServiceError, "connection_limit_reached", Some(503)),
    (ResponseFlag::UpstreamRetryLimitExceeded, "destination_unavailable", Some(503)),
    (ResponseFlag::StreamIdleTimeout, "http_response_timeout", Some(504)),
    (ResponseFlag::InvalidEnvoyRequestHeaders, "http_request_error", None),
    (ResponseFlag::DownstreamProtocolError, "http_request_error", None),
    (ResponseFlag::UpstreamMaxStreamDurationReached, "http_response_timeout", Some(504)),
    (ResponseFlag::NoFilterConfigFound, "proxy_configuration_error", Some(500)),
    (ResponseFlag::UpstreamProtocolError, "http_protocol_error", Some(502)),
    (ResponseFlag::NoClusterFound, "destination_unavailable", Some(503)),
    (ResponseFlag::DnsResolutionFailed, "dns_error", Some(502)),
];

impl ProxyStatus {
    pub fn from_proto(proto: &Proto, node_id: &str, server_name: &str) -> Self {
        let name = match &proto.proxy_name {
            Some(ProxyName::UseNodeId(true)) => node_id,
            Some(ProxyName::LiteralProxyName(name)) => name,
            Some(ProxyName::UseNodeId(false)) | None => server_name,
        };
        Self {
            name: name.into(),
            details: !proto.remove_details,
            termination_details: !proto.remove_connection_termination_details,
            flags: !proto.remove_response_flags,
            sets_code: proto.set_recommended_response_code,
        }
    }

    /// Adds the field, if there is an error to tell, behind what proxies further up said.
    pub fn apply(&self, head: &mut ResponseHead, info: &StreamInfo, connection: Option<&ConnectionInfo>) {
        let Some((_, error, code)) = ERRORS.iter().find(|(flag, ..)| info.flags.contains(*flag)) else { return };
        let mut text = format!("{}; error={error}", self.name);
        let details = self.details_of(info, connection);
        if !details.is_empty() {
            // Writing to a string does not fail.
            let _ = write!(text, "; details=\"{}\"", details.escape_default());
        }
        head.headers.append_to_value("proxy-status", ", ", text.as_bytes());
        if let Some(code) = code.filter(|_| self.sets_code) {
            head.status = code;
        }
    }

    fn details_of(&self, info: &StreamInfo, connection: Option<&ConnectionInfo>) -> String {
        if !self.details {
            return String::new();
        }
        let mut parts: Vec<Cow<'_, str>> = Vec::new();
        parts.extend(info.response_code_details.as_deref().map(Cow::from));
        if self.termination_details {
            let told = connection.and_then(|connection| connection.termination_details.borrow().clone());
            parts.extend(told.map(Cow::from));
        }
        if self.flags {
            parts.push(info.flags.to_string().into());
        }
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::time::Instant;

    use super::*;

    /// Status and field of a 503 of that kind.
    fn told(proto: &Proto, flag: ResponseFlag, details: &'static str, before: &str) -> (u16, Option<String>) {
        let mut info = StreamInfo::new(SystemTime::UNIX_EPOCH, Instant::now());
        info.flags.insert(flag);
        info.set_details(details);
        let mut head = ResponseHead::new(503);
        if !before.is_empty() {
            head.headers.append("proxy-status", before);
        }
        ProxyStatus::from_proto(proto, "no de", "envoy").apply(&mut head, &info, None);
        (head.status, head.headers.get_str("proxy-status").map(str::to_owned))
    }

    // Expected values: Envoy 1.40 with these settings.
    #[test]
    fn a_failure_is_told_with_its_details_and_flags_as_far_as_they_are_wanted() {
        use ResponseFlag::{FaultInjected, NoHealthyUpstream, UpstreamConnectionTermination, UpstreamRequestTimeout};
        let reset = "upstream_reset_before_response_started{connection_termination}";
        let (plain, name) = (Proto::default(), |name| Proto { proxy_name: Some(name), ..Proto::default() });
        let literal = name(ProxyName::LiteralProxyName("my proxy".into()));
        let recommended = Proto { set_recommended_response_code: true, ..literal };
        let bare = Proto { remove_details: true, ..Proto::default() };
        let brief =
            Proto { remove_connection_termination_details: true, remove_response_flags: true, ..Proto::default() };
        for (proto, flag, details, status, expected) in [
            (
                &plain,
                UpstreamRequestTimeout,
                "response_timeout",
                503,
                "envoy; error=http_response_timeout; details=\"response_timeout; UT\"",
            ),
            (
                &name(ProxyName::UseNodeId(true)),
                NoHealthyUpstream,
                "no_healthy_upstream",
                503,
                "no de; error=destination_unavailable; details=\"no_healthy_upstream; UH\"",
            ),
            (
                &recommended,
                UpstreamConnectionTermination,
                reset,
                502,
                "my proxy; error=connection_terminated; details=\"upstream_reset_before_response_started{connection_termination}; UC\"",
            ),
            (&bare, UpstreamConnectionTermination, reset, 503, "envoy; error=connection_terminated"),
            (
                &brief,
                UpstreamRequestTimeout,
                "response_timeout",
                503,
                "envoy; error=http_response_timeout; details=\"response_timeout\"",
            ),
        ] {
            assert_eq!(told(proto, flag, details, ""), (status, Some(expected.to_owned())));
        }
        assert_eq!(told(&recommended, FaultInjected, "fault_filter_abort", ""), (503, None));
    }

    // RFC 9209, 2: proxies append to what is there.
    #[test]
    fn what_a_proxy_further_up_said_stays_in_front() {
        let (_, field) = told(&Proto::default(), ResponseFlag::UpstreamProtocolError, "a\"b", "up; error=dns_error");
        assert_eq!(
            field.as_deref(),
            Some("up; error=dns_error, envoy; error=http_protocol_error; details=\"a\\\"b; UPE\"")
        );
    }
}
