//! `envoy.filters.listener.proxy_protocol`: the addresses of a connection as the proxy in front of us tells them.
//!
//! Config: `envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol`. Stats: `proxy_proto.[<stat_prefix>.]` and
//! `downstream_cx_proxy_proto_error`. TLVs with a rule become dynamic metadata of the connection; those that
//! `pass_through_tlvs` names are sent on by an upstream that speaks the protocol. Who may send a header is the
//! business of whoever configures the listener: anybody who can connect.

use std::rc::Rc;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine};
use nuncio_api::pb::envoy::config::core::v3::proxy_protocol_config::Version as ConfigVersion;
use nuncio_api::pb::envoy::config::core::v3::proxy_protocol_pass_through_tl_vs::PassTlVsMatchType;
use nuncio_api::pb::envoy::extensions::filters::listener::proxy_protocol::v3 as pb;
use nuncio_api::pb::google::protobuf::{Struct, Value, value::Kind};
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::{Address, ConnectionInfo, Io};
use nuncio_core::network::{
    ListenerFilter, ListenerFilterConfig, ListenerFilterFactory, ListenerStep, MakeListenerFilter,
};
use nuncio_core::stats::{List, Scope, ScopeId, Stats};

use crate::net::proxy_protocol::{Header, MAX_LENGTH, ProxyProtocolData, Read, Tlv, Version, read};

supports!(PROXY_PROTOCOL = "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol" {
    rules, allow_requests_without_proxy_protocol, pass_through_tlvs, disallowed_versions, stat_prefix
} values {
    tlv_location: ["DYNAMIC_METADATA"]
});
supports!(RULE = "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol.Rule" {
    tlv_type, on_tlv_present
});
supports!(KEY_VALUE = "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol.KeyValuePair" {
    metadata_namespace, key, value_string_encoding
});
supports!(PASS_THROUGH = "envoy.config.core.v3.ProxyProtocolPassThroughTLVs" { match_type, tlv_type });

pub(super) static SUPPORTED: &[&Entry] = &[&PROXY_PROTOCOL, &RULE, &KEY_VALUE, &PASS_THROUGH];

static SCOPE: Scope = Scope { root: "proxy_proto.", lists: &[ProxyProto::descriptors] };
static ERRORS_SCOPE: Scope = Scope { root: "", lists: &[ProxyProtoErrors::descriptors] };

nuncio_core::stats! {
    pub ProxyProto {
        counter NOT_FOUND_ALLOWED;
        counter NOT_FOUND_DISALLOWED;
        counter V1_DISALLOWED = "versions.v1.disallowed";
        counter V1_ERROR = "versions.v1.error";
        counter V1_FOUND = "versions.v1.found";
        counter V2_DISALLOWED = "versions.v2.disallowed";
        counter V2_ERROR = "versions.v2.error";
        counter V2_FOUND = "versions.v2.found";
    }
}
nuncio_core::stats! {
    /// Older than the others, and of all listeners together.
    pub ProxyProtoErrors {
        counter DOWNSTREAM_CX_PROXY_PROTO_ERROR;
    }
}

/// Where TLVs go unless a rule says otherwise.
const NAMESPACE: &str = "envoy.filters.listener.proxy_protocol";

pub struct Factory;

struct Config {
    scope: ScopeId,
    errors_scope: ScopeId,
    rules: Vec<Rule>,
    allow_without: bool,
    pass: Pass,
    disallowed: Vec<Version>,
}

struct Rule {
    kind: u8,
    namespace: String,
    key: String,
    base64: bool,
}

enum Pass {
    None,
    All,
    These(Vec<u8>),
}

struct Shared(Arc<Config>);

/// On one worker.
struct OnWorker {
    config: Arc<Config>,
    stats: Stats<ProxyProto>,
    errors: Stats<ProxyProtoErrors>,
}

struct Filter(Rc<OnWorker>);

impl ListenerFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.listener.proxy_protocol"
    }

    fn message(&self) -> &'static str {
        "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol"
    }

    fn check(
        &self,
        config: &[u8],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn ListenerFilterConfig>, Vec<ConfigError>> {
        let message = nuncio_api::any::decode::<pb::ProxyProtocol>(config).map_err(|e| vec![e])?;
        let rules = message.rules.iter().filter_map(Rule::read).collect();
        let pass = match &message.pass_through_tlvs {
            None => Pass::None,
            Some(tlvs) if tlvs.match_type() == PassTlVsMatchType::IncludeAll => Pass::All,
            Some(tlvs) => Pass::These(tlvs.tlv_type.iter().filter_map(|kind| u8::try_from(*kind).ok()).collect()),
        };
        let version = |v| if v == ConfigVersion::V1 { Version::V1 } else { Version::V2 };
        Ok(Arc::new(Shared(Arc::new(Config {
            scope: context.scope(&SCOPE, &message.stat_prefix.as_str().into()),
            errors_scope: context.scope(&ERRORS_SCOPE, &"".into()),
            rules,
            allow_without: message.allow_requests_without_proxy_protocol,
            pass,
            disallowed: message.disallowed_versions().map(version).collect(),
        }))))
    }
}

impl ListenerFilterConfig for Shared {
    fn on_worker(&self, worker: &WorkerContext) -> MakeListenerFilter {
        let shared = Rc::new(OnWorker {
            config: self.0.clone(),
            stats: Stats::new(&worker.stats, self.0.scope),
            errors: Stats::new(&worker.stats, self.0.errors_scope),
        });
        Box::new(move || Box::new(Filter(shared.clone())))
    }
}

// === impl Rule ===

impl Rule {
    /// A rule without a place to write to does nothing.
    fn read(message: &pb::proxy_protocol::Rule) -> Option<Self> {
        use pb::proxy_protocol::key_value_pair::ValueStringEncoding;
        let pair = message.on_tlv_present.as_ref()?;
        let namespace = if pair.metadata_namespace.is_empty() { NAMESPACE } else { &pair.metadata_namespace };
        Some(Self {
            kind: u8::try_from(message.tlv_type).ok()?,
            namespace: namespace.to_owned(),
            key: pair.key.clone(),
            base64: pair.value_string_encoding() == ValueStringEncoding::Base64,
        })
    }

    fn text(&self, value: &[u8]) -> String {
        if self.base64 { BASE64_STANDARD.encode(value) } else { sanitized(value) }
    }
}

/// As Envoy makes a string of bytes: a `!` for each byte that is no UTF-8.
fn sanitized(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| '!'));
    }
    out
}

// === impl Filter ===

impl ListenerFilter for Filter {
    fn max_read_bytes(&self) -> usize {
        MAX_LENGTH
    }

    fn on_accept(&mut self, _io: &Io, _connection: &mut ConnectionInfo) -> ListenerStep {
        ListenerStep::NeedData
    }

    fn on_data(&mut self, data: &[u8], connection: &mut ConnectionInfo) -> ListenerStep {
        let OnWorker { config, stats, errors } = &*self.0;
        match read(data, !config.allow_without) {
            Read::NeedMore => ListenerStep::NeedData,
            Read::Absent => {
                stats.inc(NOT_FOUND_ALLOWED);
                ListenerStep::Continue { consumed: 0 }
            }
            Read::Invalid(version) => {
                stats.inc(if version == Version::V1 { V1_ERROR } else { V2_ERROR });
                errors.inc(DOWNSTREAM_CX_PROXY_PROTO_ERROR);
                tracing::debug!(conn = connection.id, "a PROXY header ({version:?}) that is none; the connection ends");
                ListenerStep::Close
            }
            Read::Header(header) => {
                let (found, disallowed) = match header.version {
                    Version::V1 => (V1_FOUND, V1_DISALLOWED),
                    Version::V2 => (V2_FOUND, V2_DISALLOWED),
                };
                stats.inc(found);
                if config.disallowed.contains(&header.version) {
                    stats.inc(disallowed);
                    return ListenerStep::Close;
                }
                let consumed = header.length;
                take(config, header, connection);
                ListenerStep::Continue { consumed }
            }
        }
    }
}

/// Writes down what the header tells. A proxy that speaks for itself tells nothing.
fn take(config: &Config, header: Header, connection: &mut ConnectionInfo) {
    let Some((source, destination)) = header.addresses else { return };
    connection.remote = Address::Ip(source);
    let local = Address::Ip(destination);
    if connection.local != local {
        connection.local = local;
        connection.local_restored = true;
    }
    let metadata = connection.metadata.get_mut();
    for rule in &config.rules {
        for tlv in header.tlvs.iter().filter(|tlv| tlv.kind == rule.kind) {
            let value = Value { kind: Some(Kind::StringValue(rule.text(&tlv.value))) };
            metadata.merge(&rule.namespace, Struct { fields: [(rule.key.clone(), value)].into() });
        }
    }
    let passes = |tlv: &Tlv| match &config.pass {
        Pass::None => false,
        Pass::All => true,
        Pass::These(kinds) => kinds.contains(&tlv.kind),
    };
    let tlvs = header.tlvs.into_iter().filter(passes).collect();
    let data = ProxyProtocolData { source, destination, tlvs };
    connection.filter_state.get_mut().set(ProxyProtocolData::KEY, Arc::new(data));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::filters::testing::Bench;

    const V1: &[u8] = b"PROXY TCP4 203.0.113.9 198.51.100.1 5555 443\r\nGET";
    const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x17\xcb\x00\x71\x09\xc6\x33\x64\x01\x15\xb3\x01\xbb\x04\0\x02ab\x05\0\x03x\xffyGET";

    fn bench(config: &str) -> Bench {
        Bench::new(&Factory, config)
    }

    #[test]
    fn the_header_is_taken_away_and_its_addresses_are_the_connections() {
        for bytes in [V1, V2] {
            let bench = bench("{}");
            let (step, info) = bench.byte_by_byte(bytes);
            assert_eq!(step, Some(ListenerStep::Continue { consumed: bytes.len() - 3 }));
            assert_eq!(
                (info.remote.to_string(), info.local.to_string()),
                ("203.0.113.9:5555".into(), "198.51.100.1:443".into())
            );
            assert!(info.local_restored);
            assert_eq!(info.direct_remote.to_string(), "127.0.0.1:1");
        }
    }

    /// Seen at Envoy 1.40, the exclamation mark too.
    #[test]
    fn tlvs_with_a_rule_become_metadata_and_others_may_pass() {
        let bench = bench(
            "{rules: [{tlv_type: 4, on_tlv_present: {key: four}}, {tlv_type: 5, on_tlv_present: {metadata_namespace: ns, key: five}}], \
             pass_through_tlvs: {match_type: INCLUDE, tlv_type: [5]}}",
        );
        let (_, info) = bench.byte_by_byte(V2);
        let text = |namespace, key: &str| match &info.metadata.borrow().get(namespace, &[key]).unwrap().kind {
            Some(Kind::StringValue(text)) => text.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!((text(NAMESPACE, "four"), text("ns", "five")), ("ab".into(), "x!y".into()));
        let state = info.filter_state.borrow();
        let data: &dyn std::any::Any = &**state.get(ProxyProtocolData::KEY).unwrap();
        let tlvs = &data.downcast_ref::<ProxyProtocolData>().unwrap().tlvs;
        assert_eq!(*tlvs, [Tlv { kind: 5, value: b"x\xffy".to_vec() }]);
    }

    #[test]
    fn connections_without_header_are_taken_only_if_that_is_allowed() {
        let strict = bench("{stat_prefix: px}");
        assert_eq!(strict.byte_by_byte(b"GET / HTTP/1.1").0, Some(ListenerStep::Close));
        assert_eq!(strict.stat("proxy_proto.px.versions.v1.error"), 1);
        assert_eq!(strict.stat("downstream_cx_proxy_proto_error"), 1);
        let open = bench("{allow_requests_without_proxy_protocol: true}");
        let (step, info) = open.byte_by_byte(b"GET / HTTP/1.1");
        assert_eq!(step, Some(ListenerStep::Continue { consumed: 0 }));
        assert_eq!((info.local_restored, open.stat("proxy_proto.not_found_allowed")), (false, 1));
        assert_eq!(
            open.byte_by_byte(b"PROXY TCP4 x\r\n").0,
            Some(ListenerStep::Close),
            "a bad header is no other protocol"
        );
    }

    #[test]
    fn a_version_may_be_refused() {
        let bench = bench("{disallowed_versions: [V1]}");
        assert_eq!(bench.byte_by_byte(V1).0, Some(ListenerStep::Close));
        assert!(matches!(bench.byte_by_byte(V2).0, Some(ListenerStep::Continue { .. })));
        let stats = ["v1.found", "v1.disallowed", "v1.error", "v2.found", "v2.disallowed"];
        assert_eq!(stats.map(|s| bench.stat(&format!("proxy_proto.versions.{s}"))), [1, 1, 0, 1, 0]);
    }
}
