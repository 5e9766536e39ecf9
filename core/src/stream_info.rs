//! The record of one stream: what access logs, formatters and filters read and write.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

use crate::http::Version;
use crate::metadata::Metadata;
use crate::net::{Address, CloseType, TlsInfo};
use crate::upstream::{ClusterInfo, Host};

macro_rules! response_flags {
    ($($(#[$doc:meta])* $name:ident $short:literal $long:literal,)*) => {
        /// Why a response is not simply the upstream's. In the order of Envoy's numbers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ResponseFlag { $($(#[$doc])* $name,)* }

        impl ResponseFlag {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code in access logs, e.g. `UH`.
            pub fn short(self) -> &'static str { match self { $(Self::$name => $short,)* } }

            /// `%RESPONSE_FLAGS_LONG%`.
            pub fn long(self) -> &'static str { match self { $(Self::$name => $long,)* } }

            pub fn from_short(text: &str) -> Option<Self> { match text { $($short => Some(Self::$name),)* _ => None } }
        }
    };
}

response_flags! {
    FailedLocalHealthCheck "LH" "FailedLocalHealthCheck",
    NoHealthyUpstream "UH" "NoHealthyUpstream",
    UpstreamRequestTimeout "UT" "UpstreamRequestTimeout",
    LocalReset "LR" "LocalReset",
    UpstreamRemoteReset "UR" "UpstreamRemoteReset",
    UpstreamConnectionFailure "UF" "UpstreamConnectionFailure",
    UpstreamConnectionTermination "UC" "UpstreamConnectionTermination",
    UpstreamOverflow "UO" "UpstreamOverflow",
    NoRouteFound "NR" "NoRouteFound",
    DelayInjected "DI" "DelayInjected",
    FaultInjected "FI" "FaultInjected",
    RateLimited "RL" "RateLimited",
    UnauthorizedExternalService "UAEX" "UnauthorizedExternalService",
    RateLimitServiceError "RLSE" "RateLimitServiceError",
    DownstreamConnectionTermination "DC" "DownstreamConnectionTermination",
    UpstreamRetryLimitExceeded "URX" "UpstreamRetryLimitExceeded",
    StreamIdleTimeout "SI" "StreamIdleTimeout",
    InvalidEnvoyRequestHeaders "IH" "InvalidEnvoyRequestHeaders",
    DownstreamProtocolError "DPE" "DownstreamProtocolError",
    UpstreamMaxStreamDurationReached "UMSDR" "UpstreamMaxStreamDurationReached",
    ResponseFromCacheFilter "RFCF" "ResponseFromCacheFilter",
    NoFilterConfigFound "NFCF" "NoFilterConfigFound",
    DurationTimeout "DT" "DurationTimeout",
    UpstreamProtocolError "UPE" "UpstreamProtocolError",
    NoClusterFound "NC" "NoClusterFound",
    OverloadManagerTerminated "OM" "OverloadManagerTerminated",
    DnsResolutionFailed "DF" "DnsResolutionFailed",
    DropOverload "DO" "DropOverload",
    DownstreamRemoteReset "DR" "DownstreamRemoteReset",
    UnconditionalDropOverload "UDO" "UnconditionalDropOverload",
}

/// A set of [`ResponseFlag`]s. Prints comma-joined in the order in which they were set, or `-`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResponseFlags {
    set: u64,
    /// One more than each flag's number, the first in the lowest byte. A stream that gathers more than eight flags
    /// shows the first eight.
    order: u64,
}

impl ResponseFlags {
    pub fn insert(&mut self, flag: ResponseFlag) {
        if self.contains(flag) {
            return;
        }
        self.set |= 1 << flag as u8;
        let used = (u64::BITS - self.order.leading_zeros()).next_multiple_of(8);
        if used < u64::BITS {
            self.order |= (flag as u64 + 1) << used;
        }
    }

    pub fn contains(self, flag: ResponseFlag) -> bool {
        self.set & (1 << flag as u8) != 0
    }

    pub fn is_empty(self) -> bool {
        self.set == 0
    }

    pub fn iter(self) -> impl Iterator<Item = ResponseFlag> {
        let numbers = self.order.to_le_bytes().into_iter().take_while(|number| *number > 0);
        numbers.filter_map(|number| ResponseFlag::ALL.get(usize::from(number) - 1).copied())
    }
}

impl fmt::Display for ResponseFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("-");
        }
        for (i, flag) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(flag.short())?;
        }
        Ok(())
    }
}

/// Typed objects that filters leave for others under a name.
#[derive(Default)]
pub struct FilterState(Vec<(String, Arc<dyn FilterStateObject>)>);

/// One such object. `text` is what logs and matchers see.
pub trait FilterStateObject: Any {
    fn text(&self) -> Option<String>;

    /// For logs, if it is more than a text.
    fn json(&self) -> Option<String> {
        None
    }

    /// One of its values by name.
    fn field(&self, _name: &str) -> Option<String> {
        None
    }
}

impl FilterStateObject for String {
    fn text(&self) -> Option<String> {
        Some(self.clone())
    }
}

impl FilterState {
    pub fn get(&self, name: &str) -> Option<&Arc<dyn FilterStateObject>> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, o)| o)
    }

    pub fn set(&mut self, name: &str, object: Arc<dyn FilterStateObject>) {
        match self.0.iter_mut().find(|(n, _)| n == name) {
            Some((_, o)) => *o = object,
            None => self.0.push((name.to_owned(), object)),
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for FilterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(n, _)| n)).finish()
    }
}

/// Moments of a stream, all on the monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timings {
    pub last_downstream_rx: Option<Instant>,
    pub first_upstream_tx: Option<Instant>,
    pub last_upstream_tx: Option<Instant>,
    pub first_upstream_rx: Option<Instant>,
    pub last_upstream_rx: Option<Instant>,
    pub first_downstream_tx: Option<Instant>,
    pub last_downstream_tx: Option<Instant>,
    /// The upstream connection of this stream was asked for / was ready.
    pub upstream_connect_start: Option<Instant>,
    pub upstream_connect_end: Option<Instant>,
    /// The connect of the upstream connection that carries this stream, however many carried it
    /// before, and the end of its TLS handshake.
    pub upstream_cx_begin: Option<Instant>,
    pub upstream_cx_end: Option<Instant>,
    pub upstream_handshake_end: Option<Instant>,
    pub first_upstream_rx_body: Option<Instant>,
    pub end: Option<Instant>,
}

/// A try at an upstream host, over a connection that was made, which a retry has superseded.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub host: Arc<Host>,
    pub connection_id: u64,
}

/// Everything that is known of a stream (or of a TCP session).
#[derive(Debug)]
pub struct StreamInfo {
    pub start_wall: SystemTime,
    pub start: Instant,
    /// Number of this stream in the process; ext_authz' request id.
    pub stream_id: u64,
    /// The name of a TCP session in logs, `%STREAM_ID%`. HTTP streams have their request id for that.
    pub uuid: Option<[u8; 36]>,
    /// The client as a trusted x-forwarded-for or a detection extension tells, if it is not the
    /// connection's `remote`.
    pub remote_address: Option<Address>,
    pub protocol: Option<Version>,
    pub response_code: Option<u16>,
    pub response_code_details: Option<Cow<'static, str>>,
    pub flags: ResponseFlags,
    /// Body bytes from and to the client.
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// Header bytes as counted by Envoy's `%DOWNSTREAM_HEADER_BYTES_…%`; wire bytes include framing.
    pub downstream_header_bytes_received: u64,
    pub downstream_header_bytes_sent: u64,
    pub downstream_wire_bytes_received: u64,
    pub downstream_wire_bytes_sent: u64,
    pub upstream_header_bytes_received: u64,
    pub upstream_header_bytes_sent: u64,
    pub upstream_wire_bytes_received: u64,
    pub upstream_wire_bytes_sent: u64,
    pub timings: Timings,
    pub attempt_count: u32,
    pub upstream_host: Option<Arc<Host>>,
    pub upstream_cluster: Option<Arc<ClusterInfo>>,
    pub upstream_local_address: Option<Address>,
    /// The peer of the upstream connection, if it is not the host's main address.
    pub upstream_remote_address: Option<Address>,
    pub upstream_connection_id: Option<u64>,
    pub upstream_protocol: Option<Version>,
    pub upstream_transport_failure: Option<Cow<'static, str>>,
    pub upstream_tls: Option<Arc<TlsInfo>>,
    pub upstream_close_type: Option<CloseType>,
    pub upstream_local_close_reason: Option<Cow<'static, str>>,
    /// Pushed when a retry replaces `upstream_host`, if that had a connection; the last try is
    /// `upstream_host` itself.
    pub earlier_attempts: Vec<Attempt>,
    pub route_name: Option<Arc<str>>,
    pub virtual_host_name: Option<Arc<str>>,
    pub virtual_cluster_name: Option<Arc<str>>,
    pub filter_chain_name: Option<Arc<str>>,
    /// A health check, by the health_check filter: filters of logs ask.
    pub is_health_check: bool,
    pub dynamic_metadata: Metadata,
    pub filter_state: FilterState,
}

impl StreamInfo {
    pub fn new(start_wall: SystemTime, start: Instant) -> Self {
        Self {
            start_wall,
            start,
            stream_id: 0,
            uuid: None,
            remote_address: None,
            protocol: None,
            response_code: None,
            response_code_details: None,
            flags: ResponseFlags::default(),
            bytes_received: 0,
            bytes_sent: 0,
            downstream_header_bytes_received: 0,
            downstream_header_bytes_sent: 0,
            downstream_wire_bytes_received: 0,
            downstream_wire_bytes_sent: 0,
            upstream_header_bytes_received: 0,
            upstream_header_bytes_sent: 0,
            upstream_wire_bytes_received: 0,
            upstream_wire_bytes_sent: 0,
            timings: Timings::default(),
            attempt_count: 0,
            upstream_host: None,
            upstream_cluster: None,
            upstream_local_address: None,
            upstream_remote_address: None,
            upstream_connection_id: None,
            upstream_protocol: None,
            upstream_transport_failure: None,
            upstream_tls: None,
            upstream_close_type: None,
            upstream_local_close_reason: None,
            earlier_attempts: Vec::new(),
            route_name: None,
            virtual_host_name: None,
            virtual_cluster_name: None,
            filter_chain_name: None,
            is_health_check: false,
            dynamic_metadata: Metadata::default(),
            filter_state: FilterState::default(),
        }
    }

    pub fn set_details(&mut self, details: impl Into<Cow<'static, str>>) {
        self.response_code_details = Some(details.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_print_in_the_order_in_which_they_were_set() {
        let mut flags = ResponseFlags::default();
        assert_eq!(flags.to_string(), "-");
        // Envoy 1.40 writes URX,UF for HTTP and UF,URX for TCP.
        flags.insert(ResponseFlag::UpstreamRetryLimitExceeded);
        flags.insert(ResponseFlag::UpstreamConnectionFailure);
        flags.insert(ResponseFlag::UpstreamRetryLimitExceeded);
        assert_eq!(flags.to_string(), "URX,UF");
        ResponseFlag::ALL.iter().for_each(|flag| flags.insert(*flag));
        assert!(ResponseFlag::ALL.iter().all(|flag| flags.contains(*flag)));
        assert_eq!(flags.iter().count(), 8);
        assert_eq!(ResponseFlag::from_short("UAEX"), Some(ResponseFlag::UnauthorizedExternalService));
    }
}
