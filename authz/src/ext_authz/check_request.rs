//! The attributes of a request, as the authorization service is told them.

use std::collections::HashMap;
use std::time::SystemTime;

use nuncio_api::pb::envoy::config::core::v3::{
    Address as ProtoAddress, HeaderMap as ProtoHeaders, HeaderValue, Metadata as ProtoMetadata, Pipe, SocketAddress,
    address::Address as Kind, socket_address::PortSpecifier,
};
use nuncio_api::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Peer, Request, TlsSession};
use nuncio_api::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest};
use nuncio_api::pb::google::protobuf::Timestamp;
use nuncio_core::http::{RequestHead, StreamControl};
use nuncio_core::matcher::StringMatcher;
use nuncio_core::metadata::Metadata;
use nuncio_core::net::{Address, ConnectionInfo, PeerCertificate};

/// Says whether the body below is all of it.
pub(super) const PARTIAL_BODY: &str = "x-envoy-auth-partial-body";

/// What of a connection and its streams is told.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    pub(crate) peer_certificate: bool,
    pub(crate) tls_session: bool,
    /// Of this proxy.
    pub(crate) labels: HashMap<String, String>,
    pub(crate) namespaces: Vec<String>,
    pub(crate) route_namespaces: Vec<String>,
}

/// Which headers are told, and how.
#[derive(Debug, Default)]
pub(super) struct Headers {
    /// `None`: all.
    pub(super) allowed: Option<Vec<StringMatcher>>,
    pub(super) disallowed: Vec<StringMatcher>,
    /// Each line by itself, as it came.
    pub(super) raw: bool,
}

/// The body as far as it was collected, and whether that is all.
#[derive(Clone, Copy)]
pub(super) struct Collected<'a> {
    pub(super) body: &'a [u8],
    pub(super) complete: bool,
    pub(super) as_bytes: bool,
}

/// Builds the question about one request.
pub(super) fn of_request(
    telling: &Telling,
    headers: &Headers,
    head: &RequestHead,
    body: Option<Collected<'_>>,
    extensions: HashMap<String, String>,
    stream: &StreamControl,
) -> CheckRequest {
    let info = stream.info();
    let connection = stream.connection();
    let service = text(head.headers.get("x-envoy-downstream-service-cluster").unwrap_or_default());
    let mut attributes = of_connection(telling, connection.as_deref(), service);
    let text_of = |value: Option<&[u8]>| value.map(text).unwrap_or_default();
    let mut http = HttpRequest {
        id: info.stream_id.to_string(),
        method: text(head.method()),
        path: text_of(head.path()),
        host: text_of(head.authority()),
        scheme: text(head.scheme()),
        size: info.bytes_received as i64,
        protocol: info.protocol.unwrap_or(head.version).as_str().to_owned(),
        ..HttpRequest::default()
    };
    let partial = body.map(|body| if body.complete { "false" } else { "true" });
    headers.write(head, partial, &mut http);
    match body {
        Some(Collected { body, as_bytes: true, .. }) => http.raw_body = body.to_vec(),
        Some(Collected { body, .. }) => http.body = text(body),
        None => {}
    }
    attributes.request = Some(Request { time: Some(timestamp(info.start_wall)), http: Some(http) });
    attributes.context_extensions = extensions;
    let of_connection = connection.as_ref().map(|connection| connection.metadata.borrow());
    let of_connection = of_connection.as_deref();
    attributes.metadata_context = Some(metadata(&telling.namespaces, Some(&info.dynamic_metadata), of_connection));
    let route = stream.route();
    let of_route = route.as_ref().map(|route| route.metadata());
    attributes.route_metadata_context = Some(metadata(&telling.route_namespaces, of_route, None));
    CheckRequest { attributes: Some(attributes) }
}

/// What is known of both ends before anything was said.
pub(crate) fn of_connection(
    telling: &Telling,
    connection: Option<&ConnectionInfo>,
    service: String,
) -> AttributeContext {
    let Some(connection) = connection else { return AttributeContext::default() };
    let tls = connection.tls.as_ref();
    let peer = tls.and_then(|tls| tls.peer.as_deref());
    let source = Peer {
        address: Some(address(&connection.remote)),
        service,
        principal: peer.map(principal).unwrap_or_default(),
        certificate: peer.filter(|_| telling.peer_certificate).map(|peer| peer.pem.clone()).unwrap_or_default(),
        ..Peer::default()
    };
    let destination = Peer {
        address: Some(address(&connection.local)),
        principal: tls.and_then(|tls| tls.local.as_deref()).map(principal).unwrap_or_default(),
        labels: telling.labels.clone(),
        ..Peer::default()
    };
    // As Envoy also without TLS: an inspector may have found a name.
    let session = telling.tls_session.then(|| {
        let sni = connection.requested_server_name.as_deref().or(tls.and_then(|tls| tls.server_name.as_deref()));
        TlsSession { sni: sni.unwrap_or_default().to_owned() }
    });
    AttributeContext {
        source: Some(source),
        destination: Some(destination),
        tls_session: session,
        ..AttributeContext::default()
    }
}

impl Headers {
    fn write(&self, head: &RequestHead, partial: Option<&str>, http: &mut HttpRequest) {
        let told = head.headers.iter().filter(|(name, _)| self.tells(name));
        if self.raw {
            let value = |name: &[u8], value: &[u8]| HeaderValue {
                key: text(name),
                raw_value: value.to_vec(),
                ..HeaderValue::default()
            };
            let mut headers: Vec<_> = told.map(|(name, bytes)| value(name, bytes)).collect();
            headers.extend(partial.map(|partial| value(PARTIAL_BODY.as_bytes(), partial.as_bytes())));
            http.header_map = Some(ProtoHeaders { headers });
            return;
        }
        let headers = &mut http.headers;
        for (name, value) in told {
            let joined: &mut String = headers.entry(text(name)).or_default();
            if !joined.is_empty() {
                joined.push(',');
            }
            joined.push_str(&text(value));
        }
        if let Some(partial) = partial {
            headers.insert(PARTIAL_BODY.to_owned(), partial.to_owned());
        }
    }

    fn tells(&self, name: &[u8]) -> bool {
        // What the client says about the body is not what the filter says.
        name != PARTIAL_BODY.as_bytes()
            && self.allowed.as_ref().is_none_or(|list| list.iter().any(|m| m.matches(name)))
            && !self.disallowed.iter().any(|m| m.matches(name))
    }
}

/// Text as protobuf wants it: Envoy writes `!` for each byte that is not UTF-8.
fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let mut out = String::with_capacity(bytes.len());
            for chunk in bytes.utf8_chunks() {
                out.push_str(chunk.valid());
                out.extend(chunk.invalid().iter().map(|_| '!'));
            }
            out
        }
    }
}

fn principal(certificate: &PeerCertificate) -> String {
    let sans = certificate.uri_sans.first().or(certificate.dns_sans.first());
    sans.unwrap_or(&certificate.subject).clone()
}

fn address(address: &Address) -> ProtoAddress {
    let kind = match address {
        Address::Ip(ip) => Kind::SocketAddress(SocketAddress {
            address: ip.ip().to_string(),
            port_specifier: Some(PortSpecifier::PortValue(ip.port().into())),
            ..SocketAddress::default()
        }),
        other => Kind::Pipe(Pipe { path: other.to_string(), ..Pipe::default() }),
    };
    ProtoAddress { address: Some(kind) }
}

/// The listed namespaces; where the stream has none the connection's counts.
fn metadata(namespaces: &[String], stream: Option<&Metadata>, connection: Option<&Metadata>) -> ProtoMetadata {
    let found = |name: &String| {
        let of = |metadata: Option<&Metadata>| metadata.and_then(|m| m.0.get(name)).cloned();
        Some((name.clone(), of(stream).or_else(|| of(connection))?))
    };
    ProtoMetadata { filter_metadata: namespaces.iter().filter_map(found).collect(), ..ProtoMetadata::default() }
}

fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() as i32 }
}
