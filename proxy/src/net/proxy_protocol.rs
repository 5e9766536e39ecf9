//! The PROXY protocol, versions 1 and 2: a header in front of a connection's bytes that tells whose connection it
//! really is. Read by the listener filter, written by the upstream transport socket.
//!
//! What is refused is what Envoy 1.40 refuses: addresses that are no host's, families other than IPv4 and IPv6, a
//! line without its CRLF within 108 bytes, TLVs that reach beyond the header.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};

use nuncio_core::net::ConnectionInfo;
use nuncio_core::stream_info::FilterStateObject;

/// The most a header can be: version 2 with the longest payload its length can say.
pub const MAX_LENGTH: usize = V2_FIXED + u16::MAX as usize;

const V1_SIGNATURE: &[u8] = b"PROXY ";
/// With its CRLF.
const V1_MAX: usize = 108;
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const V2_FIXED: usize = 16;

/// `core.v3.ProxyProtocolConfig.Version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// What the first bytes of a connection are.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    NeedMore,
    /// No header begins like this.
    Absent,
    Invalid(Version),
    Header(Header),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Header {
    pub version: Version,
    /// Bytes of the connection that belong to it.
    pub length: usize,
    /// From whom and to whom; `None`: the proxy in front speaks for itself.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    pub tlvs: Vec<Tlv>,
}

/// A type and its value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tlv {
    pub kind: u8,
    pub value: Vec<u8>,
}

/// Whose connection it is, for the header that is sent upstream. A connection's filter state keeps what its own header
/// told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProxyProtocolData {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub tlvs: Vec<Tlv>,
}

impl ProxyProtocolData {
    /// Its name in the filter state.
    pub const KEY: &'static str = "envoy.network.proxy_protocol_options";

    /// As its header told, or else as the connection is. `None`: it is none of IP.
    pub fn of(connection: &ConnectionInfo) -> Option<Self> {
        let state = connection.filter_state.borrow();
        let told: Option<&dyn Any> = state.get(Self::KEY).map(|object| &**object as &dyn Any);
        if let Some(told) = told.and_then(|object| object.downcast_ref::<Self>()) {
            return Some(told.clone());
        }
        let (source, destination) = (connection.remote.socket()?, connection.local.socket()?);
        Some(Self { source, destination, tlvs: Vec::new() })
    }
}

impl FilterStateObject for ProxyProtocolData {
    fn text(&self) -> Option<String> {
        None
    }
}

/// Reads what there is of a header. `strict`: everything must have one, so what does not begin like version 2 is a bad
/// version 1, as Envoy counts it.
pub fn read(bytes: &[u8], strict: bool) -> Read {
    if bytes.is_empty() {
        return Read::NeedMore;
    }
    if begins(bytes, V2_SIGNATURE) {
        return if bytes.len() < V2_FIXED { Read::NeedMore } else { read_v2(bytes) };
    }
    if begins(bytes, V1_SIGNATURE) {
        return if bytes.len() < V1_SIGNATURE.len() { Read::NeedMore } else { read_v1(bytes) };
    }
    if strict { Read::Invalid(Version::V1) } else { Read::Absent }
}

/// As far as both go.
fn begins(bytes: &[u8], signature: &[u8]) -> bool {
    let compared = bytes.len().min(signature.len());
    bytes[..compared] == signature[..compared]
}

fn read_v1(bytes: &[u8]) -> Read {
    let seen = &bytes[..bytes.len().min(V1_MAX)];
    let Some(end) = seen.windows(2).position(|two| two == b"\r\n") else {
        return if seen.len() < V1_MAX { Read::NeedMore } else { Read::Invalid(Version::V1) };
    };
    match v1_addresses(&seen[..end]) {
        Some(addresses) => Read::Header(Header { version: Version::V1, length: end + 2, addresses, tlvs: Vec::new() }),
        None => Read::Invalid(Version::V1),
    }
}

/// `None`: wrong. `Some(None)`: UNKNOWN.
fn v1_addresses(line: &[u8]) -> Option<Option<(SocketAddr, SocketAddr)>> {
    let parts: Vec<&str> = std::str::from_utf8(line).ok()?.split(' ').collect();
    if *parts.get(1)? == "UNKNOWN" {
        return Some(None);
    }
    let [_, family, source, destination, source_port, destination_port] = parts[..] else { return None };
    let pair = (v1_address(source, source_port)?, v1_address(destination, destination_port)?);
    let v4 = match family {
        "TCP4" => true,
        "TCP6" => false,
        _ => return None,
    };
    (pair.0.is_ipv4() == v4 && pair.1.is_ipv4() == v4).then_some(Some(pair))
}

fn v1_address(ip: &str, port: &str) -> Option<SocketAddr> {
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let address = SocketAddr::new(ip.parse().ok()?, port.parse().ok().filter(|_| digits)?);
    is_of_a_host(address.ip()).then_some(address)
}

/// Neither nobody, nor everybody, nor a group.
pub fn is_of_a_host(ip: IpAddr) -> bool {
    let all = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !ip.is_unspecified() && !ip.is_multicast() && !all
}

fn read_v2(bytes: &[u8]) -> Read {
    let length = V2_FIXED + usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    let (version, command, family) = (bytes[12] >> 4, bytes[12] & 0x0f, bytes[13]);
    let wrong = Read::Invalid(Version::V2);
    let addresses = match (version, command, family) {
        (2, 0, _) => 0,
        // Streams and datagrams, as in Envoy.
        (2, 1, 0x11 | 0x12) => 12,
        (2, 1, 0x21 | 0x22) => 36,
        _ => return wrong,
    };
    if length < V2_FIXED + addresses {
        return wrong;
    }
    if bytes.len() < length {
        return Read::NeedMore;
    }
    let (address, tlvs) = bytes[V2_FIXED..length].split_at(addresses);
    let header = |addresses, tlvs| Read::Header(Header { version: Version::V2, length, addresses, tlvs });
    if command == 0 {
        return header(None, Vec::new());
    }
    let Some(pair) = v2_addresses(address) else { return wrong };
    if !is_of_a_host(pair.0.ip()) || !is_of_a_host(pair.1.ip()) {
        return wrong;
    }
    match read_tlvs(tlvs) {
        Some(tlvs) => header(Some(pair), tlvs),
        None => wrong,
    }
}

fn v2_addresses(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let ip_len = (bytes.len() - 4) / 2;
    let ip = |at: usize| -> Option<IpAddr> {
        let raw = bytes.get(at..at + ip_len)?;
        let v4 = <[u8; 4]>::try_from(raw).ok().map(IpAddr::from);
        v4.or_else(|| <[u8; 16]>::try_from(raw).ok().map(IpAddr::from))
    };
    let port = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let (source, destination) = (ip(0)?, ip(ip_len)?);
    Some((SocketAddr::new(source, port(2 * ip_len)?), SocketAddr::new(destination, port(2 * ip_len + 2)?)))
}

fn read_tlvs(mut bytes: &[u8]) -> Option<Vec<Tlv>> {
    let mut tlvs = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(3)?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([head[1], head[2]])))?;
        tlvs.push(Tlv { kind: head[0], value: value.to_vec() });
        bytes = rest;
    }
    Some(tlvs)
}

/// A header of version 1. Mixed families and connections that are none of IP are `UNKNOWN`.
pub fn write_v1(addresses: Option<(SocketAddr, SocketAddr)>, out: &mut Vec<u8>) {
    let family = match addresses {
        Some((SocketAddr::V4(_), SocketAddr::V4(_))) => "TCP4",
        Some((SocketAddr::V6(_), SocketAddr::V6(_))) => "TCP6",
        _ => return out.extend_from_slice(b"PROXY UNKNOWN\r\n"),
    };
    if let Some((source, destination)) = addresses {
        let (from, to) = (source.ip(), destination.ip());
        let line = format!("PROXY {family} {from} {to} {} {}\r\n", source.port(), destination.port());
        out.extend_from_slice(line.as_bytes());
    }
}

/// A header of version 2; `None` is LOCAL. TLVs that would not fit are left out, the last ones first.
pub fn write_v2(addresses: Option<(SocketAddr, SocketAddr)>, tlvs: &[Tlv], out: &mut Vec<u8>) {
    let mut payload = Vec::new();
    let (command, family) = match addresses {
        Some((SocketAddr::V4(source), SocketAddr::V4(destination))) => {
            payload.extend_from_slice(&source.ip().octets());
            payload.extend_from_slice(&destination.ip().octets());
            (1, 0x11)
        }
        Some((SocketAddr::V6(source), SocketAddr::V6(destination))) => {
            payload.extend_from_slice(&source.ip().octets());
            payload.extend_from_slice(&destination.ip().octets());
            (1, 0x21)
        }
        _ => (0, 0),
    };
    if let (1, Some((source, destination))) = (command, addresses) {
        payload.extend_from_slice(&source.port().to_be_bytes());
        payload.extend_from_slice(&destination.port().to_be_bytes());
        for tlv in tlvs {
            let Ok(length) = u16::try_from(tlv.value.len()) else { continue };
            if payload.len() + 3 + tlv.value.len() > usize::from(u16::MAX) {
                break;
            }
            payload.push(tlv.kind);
            payload.extend_from_slice(&length.to_be_bytes());
            payload.extend_from_slice(&tlv.value);
        }
    }
    out.extend_from_slice(V2_SIGNATURE);
    out.extend_from_slice(&[0x20 | command, family]);
    out.extend_from_slice(&u16::try_from(payload.len()).unwrap_or_default().to_be_bytes());
    out.extend_from_slice(&payload);
}

#[cfg(test)]
mod tests;
