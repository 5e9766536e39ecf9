//! `config.route.v3.RateLimit`: what routes and virtual hosts want to be limited, as descriptors of one
//! request. Who counts them, a service or a bucket here, is the business of the filters.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use nuncio_api::pb::envoy::config::route::v3::rate_limit::action::{ActionSpecifier, meta_data};
use nuncio_api::pb::envoy::config::route::v3::rate_limit::{Action as ActionProto, r#override::OverrideSpecifier};
use nuncio_api::pb::envoy::config::route::v3::{RateLimit as Proto, RouteAction, VirtualHost};
use nuncio_api::pb::envoy::extensions::common::ratelimit::v3 as pb;
use nuncio_api::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use nuncio_api::pb::envoy::r#type::metadata::v3::{MetadataKey, metadata_key::path_segment::Segment};
use nuncio_api::pb::google::protobuf::{Value, value::Kind};
use nuncio_api::support::Entry as SupportEntry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::http::{RequestHead, StreamControl};
use nuncio_core::matcher::{CidrList, HeaderMatcher, QueryParameterMatcher, query_parameter};
use nuncio_core::net::Address;
use nuncio_core::runtime::{FractionalPercent, Runtime};

supports!(LIMIT = "envoy.config.route.v3.RateLimit" { stage, disable_key, actions, limit } noop {
    hits_addend: "as in Envoy, only that of a filter's own per-route rate_limits counts"
});
supports!(ACTION = "envoy.config.route.v3.RateLimit.Action" {
    source_cluster, destination_cluster, request_headers, query_parameters, remote_address, generic_key,
    header_value_match, dynamic_metadata, metadata, masked_remote_address, query_parameter_value_match,
    remote_address_match
});
supports!(SOURCE = "envoy.config.route.v3.RateLimit.Action.SourceCluster" {});
supports!(DESTINATION = "envoy.config.route.v3.RateLimit.Action.DestinationCluster" {});
supports!(HEADERS = "envoy.config.route.v3.RateLimit.Action.RequestHeaders" {
    header_name, descriptor_key, skip_if_absent
});
supports!(PARAMETERS = "envoy.config.route.v3.RateLimit.Action.QueryParameters" {
    query_parameter_name, descriptor_key, skip_if_absent
});
supports!(REMOTE = "envoy.config.route.v3.RateLimit.Action.RemoteAddress" {});
supports!(MASKED = "envoy.config.route.v3.RateLimit.Action.MaskedRemoteAddress" {
    v4_prefix_mask_len, v6_prefix_mask_len
});
supports!(GENERIC = "envoy.config.route.v3.RateLimit.Action.GenericKey" { descriptor_value, descriptor_key });
supports!(HEADER_MATCH = "envoy.config.route.v3.RateLimit.Action.HeaderValueMatch" {
    descriptor_value, descriptor_key, expect_match, headers
});
supports!(QUERY_MATCH = "envoy.config.route.v3.RateLimit.Action.QueryParameterValueMatch" {
    descriptor_value, descriptor_key, expect_match, query_parameters
});
supports!(ADDRESS_MATCH = "envoy.config.route.v3.RateLimit.Action.RemoteAddressMatch" {
    descriptor_value, descriptor_key, address_matcher
});
supports!(DYNAMIC = "envoy.config.route.v3.RateLimit.Action.DynamicMetaData" {
    descriptor_key, metadata_key, default_value
});
supports!(METADATA = "envoy.config.route.v3.RateLimit.Action.MetaData" {
    descriptor_key, metadata_key, default_value, skip_if_absent
} values {
    source: ["DYNAMIC", "ROUTE_ENTRY"]
});
supports!(OVERRIDE = "envoy.config.route.v3.RateLimit.Override" { dynamic_metadata, rate_limit });
supports!(OVERRIDE_FIXED = "envoy.config.route.v3.RateLimit.Override.RateLimitOverride" { requests_per_unit, unit });
supports!(OVERRIDE_DYNAMIC = "envoy.config.route.v3.RateLimit.Override.DynamicMetadata" { metadata_key });
supports!(KEY = "envoy.type.metadata.v3.MetadataKey" { key, path });
supports!(SEGMENT = "envoy.type.metadata.v3.MetadataKey.PathSegment" { key });
supports!(ROUTE = "envoy.config.route.v3.RouteAction" { rate_limits, include_vh_rate_limits });
supports!(HOST = "envoy.config.route.v3.VirtualHost" { rate_limits });
/// What is honoured of the messages read here.
pub static SUPPORTED: &[&SupportEntry] = &[
    &LIMIT,
    &ACTION,
    &SOURCE,
    &DESTINATION,
    &HEADERS,
    &PARAMETERS,
    &REMOTE,
    &MASKED,
    &GENERIC,
    &HEADER_MATCH,
    &QUERY_MATCH,
    &ADDRESS_MATCH,
    &DYNAMIC,
    &METADATA,
    &OVERRIDE,
    &OVERRIDE_FIXED,
    &OVERRIDE_DYNAMIC,
    &KEY,
    &SEGMENT,
    &ROUTE,
    &HOST,
];

/// Under this name a route's table of per-filter configurations holds what route and virtual host want.
pub const LIMITS: &str = "envoy.config.route.v3.RateLimit";

/// The limits of a virtual host.
pub struct OfVirtualHost(pub RateLimits);

/// The limits of a route.
pub struct OfRoute {
    pub limits: RateLimits,
    /// The virtual host's count too.
    pub include_virtual_host: bool,
}

impl OfVirtualHost {
    pub fn read(message: &VirtualHost) -> Result<Option<Arc<dyn Any + Send + Sync>>, ConfigError> {
        if message.rate_limits.is_empty() {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self(RateLimits::new(&message.rate_limits)?))))
    }
}

impl OfRoute {
    #[allow(deprecated)]
    pub fn read(message: &RouteAction) -> Result<Option<Arc<dyn Any + Send + Sync>>, ConfigError> {
        let include_virtual_host = message.include_vh_rate_limits.is_some_and(|v| v.value);
        if message.rate_limits.is_empty() && !include_virtual_host {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self { limits: RateLimits::new(&message.rate_limits)?, include_virtual_host })))
    }
}

/// Which of a virtual host's limits count beside a route's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VirtualHostLimits {
    /// If the route has none.
    Override,
    Include,
    Ignore,
}

/// What one list of limits asks for.
#[derive(Debug, Default)]
pub struct RateLimits(Vec<RateLimit>);

#[derive(Debug)]
struct RateLimit {
    stage: u32,
    disable_key: String,
    actions: Vec<Action>,
    limit: Option<Override>,
    hits: Option<u64>,
}

/// A limit that the service is told, instead of its own.
#[derive(Debug)]
enum Override {
    Metadata(MetadataPath),
    Fixed(RateLimitOverride),
}

#[derive(Debug)]
enum Action {
    SourceCluster,
    DestinationCluster,
    Header { name: String, key: String, skip: bool },
    Parameter { name: String, key: String, skip: bool },
    RemoteAddress,
    Masked { v4: u8, v6: u8 },
    Fixed { key: String, value: String },
    HeaderMatch { key: String, value: String, expect: bool, headers: Vec<HeaderMatcher> },
    QueryMatch { key: String, value: String, expect: bool, parameters: Vec<QueryParameterMatcher> },
    AddressMatch { key: String, value: String, addresses: CidrList },
    Metadata { key: String, path: MetadataPath, of_route: bool, default: String, skip: bool },
}

#[derive(Debug)]
struct MetadataPath {
    namespace: String,
    path: Vec<String>,
}

/// What the actions look at.
pub struct Asked<'a> {
    pub head: &'a RequestHead,
    pub stream: &'a StreamControl,
    /// The `node.cluster` of this proxy.
    pub service_cluster: &'a str,
    pub runtime: &'a dyn Runtime,
    pub random: u64,
}

/// What an action came to: an entry, nothing, or the end of its descriptor.
enum Came {
    Entry(String, String),
    Skipped,
    Failed,
}

impl RateLimits {
    pub fn new(list: &[Proto]) -> Result<Self, ConfigError> {
        let limits = list
            .iter()
            .enumerate()
            .map(|(i, limit)| RateLimit::new(limit).map_err(|e| e.within(&format!("rate_limits[{i}]"))));
        Ok(Self(limits.collect::<Result<_, _>>()?))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a descriptor for each limit of that stage whose actions all found something.
    pub fn describe(&self, stage: u32, asked: &Asked<'_>, own_hits: bool, out: &mut Vec<pb::RateLimitDescriptor>) {
        for limit in self.0.iter().filter(|limit| limit.stage == stage) {
            if limit.disabled(asked) {
                continue;
            }
            if let Some(entries) = limit.entries(asked) {
                out.push(pb::RateLimitDescriptor {
                    entries,
                    limit: limit.limit.as_ref().and_then(|limit| limit.of(asked)),
                    hits_addend: limit
                        .hits
                        .filter(|_| own_hits)
                        .map(|value| nuncio_api::pb::google::protobuf::UInt64Value { value }),
                    ..Default::default()
                });
            }
        }
    }
}

impl RateLimit {
    fn new(proto: &Proto) -> Result<Self, ConfigError> {
        let actions = proto
            .actions
            .iter()
            .enumerate()
            .map(|(i, action)| Action::new(action).map_err(|e| e.within(&format!("actions[{i}]"))));
        let limit = match proto.limit.as_ref().and_then(|limit| limit.override_specifier.as_ref()) {
            Some(OverrideSpecifier::DynamicMetadata(metadata)) => {
                Some(Override::Metadata(MetadataPath::new(metadata.metadata_key.as_ref())?))
            }
            Some(OverrideSpecifier::RateLimit(limit)) => {
                let limit = RateLimitOverride { requests_per_unit: limit.requests_per_unit, unit: limit.unit };
                Some(Override::Fixed(limit))
            }
            None => None,
        };
        Ok(Self {
            stage: proto.stage.map_or(0, |v| v.value),
            disable_key: proto.disable_key.clone(),
            actions: actions.collect::<Result<_, _>>()?,
            limit,
            hits: proto.hits_addend.as_ref().and_then(|hits| hits.number).map(|v| v.value),
        })
    }

    fn disabled(&self, asked: &Asked<'_>) -> bool {
        if self.disable_key.is_empty() {
            return false;
        }
        let key = format!("ratelimit.{}.http_filter_enabled", self.disable_key);
        !asked.runtime.fraction(&key).unwrap_or(FractionalPercent::ALL).includes(asked.random)
    }

    fn entries(&self, asked: &Asked<'_>) -> Option<Vec<Entry>> {
        let mut entries = Vec::with_capacity(self.actions.len());
        for action in &self.actions {
            match action.look(asked) {
                Came::Entry(key, value) => entries.push(Entry { key, value }),
                Came::Skipped => {}
                Came::Failed => return None,
            }
        }
        Some(entries)
    }
}

impl Action {
    #[allow(deprecated)]
    fn new(proto: &ActionProto) -> Result<Self, ConfigError> {
        let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
        Ok(match &proto.action_specifier {
            Some(ActionSpecifier::SourceCluster(_)) => Self::SourceCluster,
            Some(ActionSpecifier::DestinationCluster(_)) => Self::DestinationCluster,
            Some(ActionSpecifier::RequestHeaders(a)) => Self::Header {
                name: a.header_name.to_ascii_lowercase(),
                key: a.descriptor_key.clone(),
                skip: a.skip_if_absent,
            },
            Some(ActionSpecifier::QueryParameters(a)) => Self::Parameter {
                name: a.query_parameter_name.clone(),
                key: a.descriptor_key.clone(),
                skip: a.skip_if_absent,
            },
            Some(ActionSpecifier::RemoteAddress(_)) => Self::RemoteAddress,
            Some(ActionSpecifier::MaskedRemoteAddress(a)) => Self::Masked {
                v4: a.v4_prefix_mask_len.map_or(32, |v| v.value.min(32) as u8),
                v6: a.v6_prefix_mask_len.map_or(128, |v| v.value.min(128) as u8),
            },
            Some(ActionSpecifier::GenericKey(a)) => {
                Self::Fixed { key: or(&a.descriptor_key, "generic_key"), value: a.descriptor_value.clone() }
            }
            Some(ActionSpecifier::HeaderValueMatch(a)) => Self::HeaderMatch {
                key: or(&a.descriptor_key, "header_match"),
                value: a.descriptor_value.clone(),
                expect: a.expect_match.is_none_or(|v| v.value),
                headers: HeaderMatcher::list(&a.headers).map_err(|e| e.within("headers"))?,
            },
            Some(ActionSpecifier::QueryParameterValueMatch(a)) => Self::QueryMatch {
                key: or(&a.descriptor_key, "query_match"),
                value: a.descriptor_value.clone(),
                expect: a.expect_match.is_none_or(|v| v.value),
                parameters: a
                    .query_parameters
                    .iter()
                    .map(QueryParameterMatcher::from_proto)
                    .collect::<Result<_, _>>()
                    .map_err(|e| e.within("query_parameters"))?,
            },
            Some(ActionSpecifier::RemoteAddressMatch(a)) => Self::AddressMatch {
                key: or(&a.descriptor_key, "remote_address_match"),
                value: a.descriptor_value.clone(),
                addresses: CidrList::from_address_matcher(a.address_matcher.as_ref().unwrap_or(&Default::default()))
                    .map_err(|e| e.within("address_matcher"))?,
            },
            Some(ActionSpecifier::DynamicMetadata(a)) => Self::Metadata {
                key: a.descriptor_key.clone(),
                path: MetadataPath::new(a.metadata_key.as_ref())?,
                of_route: false,
                default: a.default_value.clone(),
                skip: false,
            },
            Some(ActionSpecifier::Metadata(a)) => Self::Metadata {
                key: a.descriptor_key.clone(),
                path: MetadataPath::new(a.metadata_key.as_ref())?,
                of_route: a.source() == meta_data::Source::RouteEntry,
                default: a.default_value.clone(),
                skip: a.skip_if_absent,
            },
            Some(ActionSpecifier::Extension(_)) => return Err(ConfigError::new("extension", "is not implemented")),
            None => return Err(ConfigError::new("action_specifier", "value is required")),
        })
    }

    fn look(&self, asked: &Asked<'_>) -> Came {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let found = |key: &str, value: Option<&[u8]>, skip: bool| match value {
            Some(value) => Came::Entry(key.to_owned(), text(value)),
            None if skip => Came::Skipped,
            None => Came::Failed,
        };
        let matched = |key: &str, value: &str, matches: bool| match matches {
            true => Came::Entry(key.to_owned(), value.to_owned()),
            false => Came::Failed,
        };
        match self {
            Self::SourceCluster => Came::Entry("source_cluster".into(), asked.service_cluster.to_owned()),
            Self::DestinationCluster => {
                let route = asked.stream.route();
                let name = route.as_ref().and_then(|route| route.cluster_name());
                found("destination_cluster", name.map(str::as_bytes), false)
            }
            Self::Header { name, key, skip } => found(key, asked.head.headers.get_joined(name, ",").as_deref(), *skip),
            Self::Parameter { name, key, skip } => {
                let value = asked.head.path().and_then(|path| query_parameter(path, name.as_bytes()));
                found(key, value, *skip)
            }
            Self::RemoteAddress => match client(asked.stream) {
                Some(ip) => Came::Entry("remote_address".into(), ip.to_string()),
                None => Came::Failed,
            },
            Self::Masked { v4, v6 } => match client(asked.stream) {
                Some(ip) => Came::Entry("masked_remote_address".into(), masked(ip, *v4, *v6)),
                None => Came::Failed,
            },
            Self::Fixed { key, value } => Came::Entry(key.clone(), value.clone()),
            Self::HeaderMatch { key, value, expect, headers } => {
                matched(key, value, headers.iter().all(|m| m.matches(&asked.head.headers)) == *expect)
            }
            Self::QueryMatch { key, value, expect, parameters } => {
                let path = asked.head.path().unwrap_or_default();
                matched(key, value, parameters.iter().all(|m| m.matches(path)) == *expect)
            }
            Self::AddressMatch { key, value, addresses } => {
                matched(key, value, client(asked.stream).is_some_and(|ip| addresses.matches(ip)))
            }
            Self::Metadata { key, path, of_route, default, skip } => {
                let value = path.text(asked, *of_route).filter(|text| !text.is_empty());
                let default = Some(default).filter(|default| !default.is_empty());
                found(key, value.or_else(|| default.cloned()).as_deref().map(str::as_bytes), *skip)
            }
        }
    }
}

/// The address of the client, as far as it is known to be true.
fn client(stream: &StreamControl) -> Option<IpAddr> {
    let info = stream.info();
    let connection = stream.connection();
    match info.remote_address.as_ref().or(connection.as_ref().map(|connection| &connection.remote))? {
        Address::Ip(address) => Some(address.ip()),
        _ => None,
    }
}

fn masked(ip: IpAddr, v4: u8, v6: u8) -> String {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(v4)).unwrap_or(0);
            format!("{}/{v4}", std::net::Ipv4Addr::from(u32::from(ip) & mask))
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(v6)).unwrap_or(0);
            format!("{}/{v6}", std::net::Ipv6Addr::from(u128::from(ip) & mask))
        }
    }
}

impl Override {
    fn of(&self, asked: &Asked<'_>) -> Option<RateLimitOverride> {
        match self {
            Self::Metadata(path) => path.limit(asked),
            Self::Fixed(limit) => Some(*limit),
        }
    }
}

impl MetadataPath {
    fn new(proto: Option<&MetadataKey>) -> Result<Self, ConfigError> {
        let proto = proto.ok_or_else(|| ConfigError::new("metadata_key", "value is required"))?;
        let path = proto.path.iter().map(|segment| match &segment.segment {
            Some(Segment::Key(key)) => Ok(key.clone()),
            _ => Err(ConfigError::new("metadata_key.path", "only keys are implemented")),
        });
        Ok(Self { namespace: proto.key.clone(), path: path.collect::<Result<_, _>>()? })
    }

    fn with<T>(&self, asked: &Asked<'_>, of_route: bool, look: impl FnOnce(&Value) -> Option<T>) -> Option<T> {
        if of_route {
            return look(asked.stream.route()?.metadata().get(&self.namespace, &self.path)?);
        }
        look(asked.stream.info().dynamic_metadata.get(&self.namespace, &self.path)?)
    }

    fn text(&self, asked: &Asked<'_>, of_route: bool) -> Option<String> {
        self.with(asked, of_route, |value| match &value.kind {
            Some(Kind::StringValue(text)) => Some(text.clone()),
            _ => None,
        })
    }

    /// `{requests_per_unit: 10, unit: SECOND}`, as metadata.
    fn limit(&self, asked: &Asked<'_>) -> Option<RateLimitOverride> {
        self.with(asked, false, |value| {
            let Some(Kind::StructValue(fields)) = &value.kind else { return None };
            let field = |name: &str| fields.fields.get(name)?.kind.clone();
            let (Kind::NumberValue(requests), Kind::StringValue(unit)) = (field("requests_per_unit")?, field("unit")?)
            else {
                return None;
            };
            let unit = nuncio_api::pb::envoy::r#type::v3::RateLimitUnit::from_str_name(&unit)?;
            Some(RateLimitOverride { requests_per_unit: requests as u32, unit: unit.into() })
        })
    }
}

/// The descriptors of a request, as its route and virtual host want them. `beside`: what a filter's own
/// configuration for the route says of the virtual host's.
pub fn of_route(asked: &Asked<'_>, stage: u32, beside: VirtualHostLimits) -> Vec<pb::RateLimitDescriptor> {
    let mut out = Vec::new();
    let Some(route) = asked.stream.route() else { return out };
    let configs = route.filter_configs(LIMITS);
    let own = configs.iter().rev().find_map(|config| config.downcast_ref::<OfRoute>());
    let host = configs.iter().rev().find_map(|config| config.downcast_ref::<OfVirtualHost>());
    if let Some(own) = own {
        own.limits.describe(stage, asked, false, &mut out);
    }
    let included = match beside {
        _ if own.is_some_and(|own| own.include_virtual_host) => true,
        VirtualHostLimits::Include => true,
        VirtualHostLimits::Override => own.is_none_or(|own| own.limits.is_empty()),
        VirtualHostLimits::Ignore => false,
    };
    if let Some(OfVirtualHost(limits)) = host.filter(|_| included) {
        limits.describe(stage, asked, false, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_masked_at_any_length() {
        let v4: IpAddr = "10.9.8.7".parse().unwrap();
        assert_eq!(masked(v4, 16, 0), "10.9.0.0/16");
        assert_eq!(masked(v4, 0, 0), "0.0.0.0/0");
        assert_eq!(masked(v4, 32, 0), "10.9.8.7/32");
        let v6: IpAddr = "2001:db8::ff".parse().unwrap();
        assert_eq!(masked(v6, 0, 64), "2001:db8::/64");
        assert_eq!(masked(v6, 0, 128), "2001:db8::ff/128");
        assert_eq!(masked(v6, 0, 0), "::/0");
    }
}
