//! What the manager does to every request before any filter sees it, and to every response before
//! it leaves: whose word is trusted, which headers are ours alone to set.
//!
//! The trust rules are Envoy's: nobody is internal unless `internal_address_config` says so; with
//! `use_remote_address` the peer is the client and what it says of itself is replaced.

use std::net::IpAddr;

use nuncio_core::http::header_map::NameList;
use nuncio_core::http::{RequestHead, ResponseHead};
use nuncio_core::net::{Address, CidrRange, ConnectionInfo};
use nuncio_core::random::Rng;

use super::config::{Identity, ServerHeader};
use super::origin::{Detected, from_xff};

/// What only this proxy, or a peer it calls internal, may say.
static INTERNAL_ONLY: NameList = NameList::new(&[
    "x-envoy-internal",
    "x-envoy-retriable-status-codes",
    "x-envoy-retriable-header-names",
    "x-envoy-retry-on",
    "x-envoy-retry-grpc-on",
    "x-envoy-max-retries",
    "x-envoy-upstream-alt-stat-name",
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-upstream-rq-timeout-alt-response",
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-force-trace",
    "x-envoy-ip-tags",
    "x-envoy-original-url",
    "x-envoy-hedge-on-per-try-timeout",
]);

/// What an edge client must not say either.
static EDGE_ONLY: NameList = NameList::new(&[
    "x-envoy-decorator-operation",
    "x-envoy-downstream-service-cluster",
    "x-envoy-downstream-service-node",
    "x-envoy-original-path",
]);

/// Nor where it wants to go, unless that was opted into: a proxy further on may have been told to believe it.
static DESTINATION: NameList = NameList::new(&["x-envoy-original-dst-host"]);

/// What the manager knows beside its configuration.
pub struct Surroundings<'a> {
    /// Of this machine.
    pub local_ip: Option<IpAddr>,
    pub rng: &'a Rng,
    /// Some cluster goes where a request's header says.
    pub headers_name_destinations: bool,
}

/// What was decided about a request's origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `x-envoy-*` request controls are honoured.
    pub internal: bool,
    /// The client as understood after trusted hops: `%DOWNSTREAM_REMOTE_ADDRESS%`.
    pub remote: Option<Address>,
}

/// The status of the answer to a request whose origin must be known and is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginUnknown(pub u16);

/// Makes a request's identity headers trustworthy.
pub fn mutate_request(
    head: &mut RequestHead,
    connection: &ConnectionInfo,
    identity: &Identity,
    around: &Surroundings<'_>,
) -> Result<Origin, OriginUnknown> {
    let headers = &mut head.headers;
    let secure = is_secure(connection, identity);
    let mut remote = None;
    let mut trusted = false;
    if identity.use_remote_address {
        trusted = !headers.contains("x-forwarded-for");
        remote = connection.remote.ip();
        if identity.xff_num_trusted_hops > 0
            && let Some(ip) = from_xff(headers.get("x-forwarded-for"), identity.xff_num_trusted_hops - 1)
        {
            remote = Some(ip);
        }
        if !identity.skip_xff_append {
            append_xff(head, connection, around.local_ip);
        }
        let headers = &mut head.headers;
        if identity.xff_num_trusted_hops == 0 || !headers.contains("x-forwarded-proto") {
            headers.set("x-forwarded-proto", scheme(secure));
        }
        if identity.append_x_forwarded_port
            && (identity.xff_num_trusted_hops == 0 || !headers.contains("x-forwarded-port"))
            && let Some(port) = connection.local.port()
        {
            headers.set_u64("x-forwarded-port", port.into());
        }
    } else {
        let mut append = false;
        for detection in &identity.detections {
            match detection.detect(headers, connection.remote.ip()) {
                Detected::Nothing => {}
                Detected::Append => append = true,
                Detected::Address { ip, trusted: lone, skip_append } => {
                    (remote, trusted, append) = (Some(ip), lone, !skip_append);
                    break;
                }
                Detected::Rejected(status) => return Err(OriginUnknown(status)),
            }
        }
        if append {
            append_xff(head, connection, around.local_ip);
        }
    }
    let headers = &mut head.headers;
    if !headers.contains("x-forwarded-proto") {
        headers.set("x-forwarded-proto", scheme(secure));
    }
    set_scheme(head, secure, identity.scheme);

    let headers = &mut head.headers;
    let internal =
        trusted && remote.is_some_and(|ip| identity.internal_ranges.iter().any(|r: &CidrRange| r.contains(ip)));
    let edge = !internal && identity.use_remote_address;
    if edge {
        headers.remove_all(&EDGE_ONLY);
        if !around.headers_name_destinations {
            headers.remove_all(&DESTINATION);
        }
        if let Some(ip) = remote {
            set_ip(head, "x-envoy-external-address", ip);
        }
    }
    let headers = &mut head.headers;
    if internal {
        headers.set("x-envoy-internal", "true");
    } else {
        headers.remove_all(&INTERNAL_ONLY);
    }
    if let Some(agent) = &identity.add_user_agent {
        headers.set("x-envoy-downstream-service-cluster", agent.cluster.as_bytes());
        if !headers.contains("user-agent") {
            headers.append("user-agent", agent.cluster.as_bytes());
        }
        if !agent.node.is_empty() {
            headers.set("x-envoy-downstream-service-node", agent.node.as_bytes());
        }
    }
    if identity.generate_request_id
        && (!headers.contains("x-request-id") || (edge && !identity.preserve_external_request_id))
    {
        headers.set("x-request-id", around.rng.uuid_v4());
    }
    identity.client_cert.apply(headers, connection);
    if let Some(via) = &identity.via {
        headers.append_to_value("via", ", ", via.as_bytes());
    }
    Ok(Origin { internal, remote: remote.map(|ip| address(ip, connection)) })
}

/// The address as the connection's own when it is the same: that keeps the port.
fn address(ip: IpAddr, connection: &ConnectionInfo) -> Address {
    if connection.remote.ip() == Some(ip) {
        return connection.remote.clone();
    }
    Address::Ip((ip, 0).into())
}

/// Whether the client speaks TLS: to us, or, where a PROXY header says which port it came to, to whoever wrote that.
fn is_secure(connection: &ConnectionInfo, identity: &Identity) -> bool {
    let ports = identity.forward_proto.as_ref().filter(|_| connection.local_restored);
    let said = ports.zip(connection.local.port()).and_then(|(ports, port)| {
        if ports.https.contains(&port) {
            return Some(true);
        }
        ports.http.contains(&port).then_some(false)
    });
    said.unwrap_or(connection.tls.is_some())
}

fn scheme(secure: bool) -> &'static str {
    if secure { "https" } else { "http" }
}

/// What the request itself says (HTTP/2, an absolute URL) stays, else `:scheme` follows x-forwarded-proto where that is
/// a scheme, else the connection.
fn set_scheme(head: &mut RequestHead, secure: bool, overwrite: Option<&'static str>) {
    if let Some(scheme) = overwrite {
        return head.headers.set(":scheme", scheme);
    }
    if let Some(scheme) = head.headers.get(":scheme") {
        let said = ["http", "https"].into_iter().find(|known| scheme.eq_ignore_ascii_case(known.as_bytes()));
        if let Some(said) = said {
            if scheme != said.as_bytes() {
                head.headers.set(":scheme", said);
            }
            return;
        }
    }
    let https = match head.headers.get("x-forwarded-proto") {
        Some(proto) if proto.eq_ignore_ascii_case(b"https") => true,
        Some(proto) if proto.eq_ignore_ascii_case(b"http") => false,
        _ => secure,
    };
    head.headers.set(":scheme", scheme(https));
}

fn set_ip(head: &mut RequestHead, name: &'static str, ip: IpAddr) {
    let mut text = IpText::new();
    head.headers.set(name, text.write(ip));
}

/// Joined with a bare comma, as Envoy does. A loopback peer is told as this machine's own address,
/// since nobody further up could make sense of 127.0.0.1.
fn append_xff(head: &mut RequestHead, connection: &ConnectionInfo, local_ip: Option<IpAddr>) {
    let Some(mut ip) = connection.remote.ip() else { return };
    if ip.is_loopback()
        && let Some(local) = local_ip
    {
        ip = local;
    }
    let mut text = IpText::new();
    head.headers.append_to_value("x-forwarded-for", ",", text.write(ip));
}

/// An address as text, without allocating.
struct IpText {
    bytes: [u8; 40],
    len: usize,
}

impl IpText {
    fn new() -> Self {
        Self { bytes: [0; 40], len: 0 }
    }

    fn write(&mut self, ip: IpAddr) -> &[u8] {
        if let IpAddr::V4(v4) = ip {
            self.len = dotted(v4.octets(), &mut self.bytes);
            return &self.bytes[..self.len];
        }
        use std::io::Write;
        let mut rest = &mut self.bytes[..];
        let before = rest.len();
        // 39 characters are the longest IPv6 text that Display makes without a zone.
        let _ = write!(rest, "{ip}");
        self.len = before - rest.len();
        &self.bytes[..self.len]
    }
}

/// Most requests have such a text made, and the formatter costs more than the rest of a head's upkeep.
fn dotted(octets: [u8; 4], out: &mut [u8; 40]) -> usize {
    let mut at = 0;
    for (i, octet) in octets.into_iter().enumerate() {
        if i > 0 {
            out[at] = b'.';
            at += 1;
        }
        for (digit, leading) in [(octet / 100, 100), (octet / 10 % 10, 10), (octet % 10, 1)] {
            if octet >= leading || leading == 1 {
                out[at] = b'0' + digit;
                at += 1;
            }
        }
    }
    at
}

/// Completes a response's head before it leaves.
pub fn mutate_response(head: &mut ResponseHead, request: &RequestHead, identity: &Identity, date: &[u8]) {
    let headers = &mut head.headers;
    for name in ["keep-alive", "proxy-connection", "transfer-encoding"] {
        headers.remove(name);
    }
    if head.status != 101 {
        headers.remove("connection");
    }
    match identity.server_header {
        ServerHeader::Overwrite => headers.set("server", identity.server_name.as_bytes()),
        ServerHeader::AppendIfAbsent if !headers.contains("server") => {
            headers.append("server", identity.server_name.as_bytes());
        }
        ServerHeader::AppendIfAbsent | ServerHeader::PassThrough => {}
    }
    if !headers.contains("date") {
        headers.append_lower("date", date);
    }
    if identity.always_set_request_id_in_response
        && let Some(id) = request.headers.get("x-request-id")
    {
        headers.set("x-request-id", id);
    }
    if let Some(via) = &identity.via {
        headers.append_to_value("via", ", ", via.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::ForwardProto;
    use super::*;

    fn connection(peer: &str) -> ConnectionInfo {
        ConnectionInfo::new(1, Address::Ip(peer.parse().unwrap()), Address::Ip("10.0.0.1:80".parse().unwrap()))
    }

    fn request(fields: &[(&str, &str)]) -> RequestHead {
        RequestHead { headers: fields.iter().copied().collect(), ..Default::default() }
    }

    fn run(head: &mut RequestHead, peer: &str, identity: &Identity) -> Origin {
        run_beside(head, peer, identity, false)
    }

    fn run_beside(head: &mut RequestHead, peer: &str, identity: &Identity, headers_name_destinations: bool) -> Origin {
        let (local_ip, rng) = (Some("192.0.2.9".parse().unwrap()), &Rng::with_seed(1));
        let around = Surroundings { local_ip, rng, headers_name_destinations };
        mutate_request(head, &connection(peer), identity, &around).unwrap()
    }

    fn edge() -> Identity {
        Identity { use_remote_address: true, ..Identity::default() }
    }

    #[test]
    fn addresses_are_written_as_display_writes_them() {
        for ip in ["0.0.0.0", "9.10.99.100", "255.255.255.255", "1.20.101.110", "::1", "2001:db8::ffff:ffff"] {
            assert_eq!(IpText::new().write(ip.parse().unwrap()), ip.as_bytes());
        }
    }

    // Expected values: recorded from Envoy 1.40 (hcm_forwarding_headers).
    #[test]
    fn at_the_edge_the_peer_is_the_client() {
        let mut head =
            request(&[("x-forwarded-for", "1.2.3.4"), ("x-forwarded-proto", "https"), ("x-envoy-retry-on", "5xx")]);
        let origin = run(&mut head, "127.0.0.1:9", &edge());
        assert_eq!(head.headers.get_str("x-forwarded-for"), Some("1.2.3.4,192.0.2.9"));
        assert_eq!(head.headers.get_str("x-forwarded-proto"), Some("http"));
        assert_eq!(head.headers.get_str("x-envoy-external-address"), Some("127.0.0.1"));
        assert!(!head.headers.contains("x-envoy-retry-on"));
        assert_eq!(origin, Origin { internal: false, remote: Some(Address::Ip("127.0.0.1:9".parse().unwrap())) });
    }

    #[test]
    fn a_peer_in_a_configured_range_without_xff_is_internal() {
        let identity = Identity { internal_ranges: vec![CidrRange::new("127.0.0.0".parse().unwrap(), 8)], ..edge() };
        let mut head = request(&[
            ("x-envoy-internal", "true"),
            ("x-envoy-external-address", "9.9.9.9"),
            ("x-envoy-upstream-rq-timeout-ms", "777"),
        ]);
        assert!(run(&mut head, "127.0.0.1:9", &identity).internal);
        assert_eq!(head.headers.get_str("x-envoy-external-address"), Some("9.9.9.9"));
        assert!(head.headers.contains("x-envoy-upstream-rq-timeout-ms"));
        let mut head = request(&[("x-forwarded-for", "1.2.3.4")]);
        assert!(!run(&mut head, "127.0.0.1:9", &identity).internal);
        assert_eq!(head.headers.get_str("x-envoy-external-address"), Some("127.0.0.1"));
    }

    // reliability.md R50: Envoy passes it on.
    #[test]
    fn a_client_names_its_destination_only_where_that_was_opted_into() {
        let passes = |peer: &str, identity: &Identity, opted: bool| {
            let mut head = request(&[("x-envoy-original-dst-host", "169.254.169.254:80")]);
            run_beside(&mut head, peer, identity, opted);
            head.headers.contains("x-envoy-original-dst-host")
        };
        let internal = Identity { internal_ranges: vec![CidrRange::new("10.0.0.0".parse().unwrap(), 8)], ..edge() };
        assert!(!passes("203.0.113.1:9", &edge(), false) && passes("203.0.113.1:9", &edge(), true));
        assert!(passes("10.1.1.1:9", &internal, false));
        assert!(passes("203.0.113.1:9", &Identity::default(), false));
    }

    #[test]
    fn without_use_remote_address_the_headers_stay_but_nobody_is_internal_by_default() {
        let mut head = request(&[
            ("x-forwarded-for", "10.1.1.1"),
            ("x-envoy-retry-on", "5xx"),
            ("x-envoy-decorator-operation", "op"),
            ("x-envoy-internal", "true"),
        ]);
        let origin = run(&mut head, "10.9.9.9:1", &Identity::default());
        assert!(!origin.internal);
        assert_eq!(head.headers.get_str("x-forwarded-for"), Some("10.1.1.1"));
        assert!(!head.headers.contains("x-envoy-retry-on") && !head.headers.contains("x-envoy-internal"));
        assert!(head.headers.contains("x-envoy-decorator-operation"));
    }

    #[test]
    fn request_ids_are_made_kept_or_replaced() {
        let mut head = request(&[("x-request-id", "mine")]);
        run(&mut head, "1.1.1.1:1", &Identity::default());
        assert_eq!(head.headers.get_str("x-request-id"), Some("mine"));
        run(&mut head, "1.1.1.1:1", &edge());
        assert_ne!(head.headers.get_str("x-request-id"), Some("mine"));
        let mut head = request(&[]);
        run(&mut head, "1.1.1.1:1", &Identity { generate_request_id: false, ..Identity::default() });
        assert!(!head.headers.contains("x-request-id"));
    }

    // Expected values: Envoy 1.40 behind PROXY headers.
    #[test]
    fn the_port_of_a_proxy_header_tells_the_protocol_where_that_was_configured() {
        let forward_proto = Some(ForwardProto { https: vec![443], http: vec![80] });
        let identity = Identity { forward_proto, ..Identity::default() };
        let proto = |port: u16, restored: bool, said: &[(&str, &str)]| {
            let mut head = request(said);
            let mut connection = connection("10.0.0.1:5");
            connection.local = Address::Ip(([10, 0, 0, 2], port).into());
            connection.local_restored = restored;
            let around = Surroundings { local_ip: None, rng: &Rng::with_seed(1), headers_name_destinations: false };
            mutate_request(&mut head, &connection, &identity, &around).unwrap();
            head.headers.get_str("x-forwarded-proto").map(str::to_owned).unwrap()
        };
        assert_eq!([443, 80, 8080].map(|port| proto(port, true, &[])), ["https", "http", "http"]);
        assert_eq!(proto(443, false, &[]), "http");
        assert_eq!(proto(443, true, &[("x-forwarded-proto", "http")]), "http");
    }

    // Expected values: Envoy 1.40 with absolute URLs and x-forwarded-proto.
    #[test]
    fn the_scheme_that_a_request_says_stays() {
        let scheme = |fields: &[(&str, &str)], identity: &Identity| {
            let mut head = request(fields);
            run(&mut head, "1.1.1.1:1", identity);
            head.headers.get_str(":scheme").map(str::to_owned)
        };
        let plain = Identity::default();
        assert_eq!(scheme(&[(":scheme", "https"), ("x-forwarded-proto", "http")], &plain).as_deref(), Some("https"));
        assert_eq!(scheme(&[("x-forwarded-proto", "https")], &plain).as_deref(), Some("https"));
        assert_eq!(scheme(&[("x-forwarded-proto", "ftp")], &plain).as_deref(), Some("http"));
        let fixed = Identity { scheme: Some("https"), ..Identity::default() };
        assert_eq!(scheme(&[(":scheme", "http")], &fixed).as_deref(), Some("https"));
    }
}
