//! `config.route.v3.RouteMatch`: whether a request fits a route.

use nuncio_api::pb::envoy::config::route::v3::{self as pb, route_match::PathSpecifier};
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;
use nuncio_core::matcher::path::without_query;
use nuncio_core::matcher::{
    CookieMatcher, FilterStateMatcher, HeaderMatcher, MetadataMatcher, QueryParameterMatcher, Regex, UriTemplate,
};
use nuncio_core::net::ConnectionInfo;
use nuncio_core::runtime::{Runtime, RuntimeFraction};
use nuncio_core::stream_info::StreamInfo;

supports!(pub(super) MATCH = "envoy.config.route.v3.RouteMatch" {
    prefix, path, safe_regex, connect_matcher, path_separated_prefix, path_match_policy, case_sensitive,
    runtime_fraction, headers, query_parameters, cookies, grpc, tls_context, dynamic_metadata, filter_state
});
supports!(pub(super) GRPC = "envoy.config.route.v3.RouteMatch.GrpcRouteMatchOptions" {});
supports!(pub(super) CONNECT = "envoy.config.route.v3.RouteMatch.ConnectMatcher" {});
supports!(pub(super) TLS = "envoy.config.route.v3.RouteMatch.TlsContextMatchOptions" { presented, validated });

/// What a match may look at beside the request.
#[derive(Clone, Copy)]
pub struct MatchContext<'a> {
    /// One number a stream: runtime fractions and weighted clusters see the same.
    pub random: u64,
    pub runtime: &'a dyn Runtime,
    pub connection: Option<&'a ConnectionInfo>,
    pub info: Option<&'a StreamInfo>,
}

/// A compiled match. Most routes have no conditions beside the path.
#[derive(Debug)]
pub(in crate::http) struct RouteMatch {
    path: PathMatch,
    conditions: Option<Box<Conditions>>,
}

#[derive(Debug)]
enum PathMatch {
    Exact(Box<str>),
    ExactIgnoringCase(Box<str>),
    Prefix(Box<str>),
    PrefixIgnoringCase(Box<str>),
    Separated(Box<str>),
    SeparatedIgnoringCase(Box<str>),
    Regex(Box<Regex>),
    Template(Box<UriTemplate>),
    Connect,
}

/// What an index may look a route up by.
pub(super) enum PathKey<'a> {
    Exact(&'a [u8]),
    Prefix(&'a [u8]),
    None,
}

/// How much of the path a `prefix_rewrite` replaces.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatchedPart(u32);

impl MatchedPart {
    pub(super) const WHOLE_PATH: Self = Self(u32::MAX);

    /// In a path of `len` bytes. A filter may have shortened it since it matched.
    pub(super) fn of(self, len: usize) -> usize {
        len.min(self.0 as usize)
    }
}

#[derive(Debug, Default)]
struct Conditions {
    runtime: Option<RuntimeFraction>,
    grpc: bool,
    headers: Box<[HeaderMatcher]>,
    query: Box<[QueryParameterMatcher]>,
    cookies: Box<[CookieMatcher]>,
    /// Whether a client certificate was presented, and passed every check.
    presented: Option<bool>,
    validated: Option<bool>,
    metadata: Box<[MetadataMatcher]>,
    filter_state: Box<[FilterStateMatcher]>,
}

impl RouteMatch {
    pub(in crate::http) fn from_proto(message: &pb::RouteMatch) -> Result<Self, ConfigError> {
        let strict = message.case_sensitive.is_none_or(|v| v.value);
        let pick = |strict_form: fn(Box<str>) -> PathMatch, other: fn(Box<str>) -> PathMatch, text: &String| {
            if strict { strict_form(text.as_str().into()) } else { other(text.as_str().into()) }
        };
        let path = match &message.path_specifier {
            Some(PathSpecifier::Prefix(p)) => pick(PathMatch::Prefix, PathMatch::PrefixIgnoringCase, p),
            Some(PathSpecifier::Path(p)) => pick(PathMatch::Exact, PathMatch::ExactIgnoringCase, p),
            Some(PathSpecifier::PathSeparatedPrefix(p)) => {
                pick(PathMatch::Separated, PathMatch::SeparatedIgnoringCase, p)
            }
            Some(PathSpecifier::SafeRegex(r)) => {
                PathMatch::Regex(Box::new(Regex::from_proto(r).map_err(|e| e.within("safe_regex"))?))
            }
            Some(PathSpecifier::ConnectMatcher(_)) => PathMatch::Connect,
            Some(PathSpecifier::PathMatchPolicy(extension)) => PathMatch::Template(Box::new(
                UriTemplate::from_extension(extension).map_err(|e| e.within("path_match_policy"))?,
            )),
            None => return Err(ConfigError::new("path_specifier", "value is required")),
        };
        Ok(Self { path, conditions: Conditions::from_proto(message)?.map(Box::new) })
    }

    pub(super) fn key(&self) -> PathKey<'_> {
        match &self.path {
            PathMatch::Exact(p) => PathKey::Exact(p.as_bytes()),
            PathMatch::Prefix(p) | PathMatch::Separated(p) => PathKey::Prefix(p.as_bytes()),
            _ => PathKey::None,
        }
    }

    pub(super) fn matched_part(&self) -> MatchedPart {
        match &self.path {
            PathMatch::Exact(p)
            | PathMatch::ExactIgnoringCase(p)
            | PathMatch::Prefix(p)
            | PathMatch::PrefixIgnoringCase(p)
            | PathMatch::Separated(p)
            | PathMatch::SeparatedIgnoringCase(p) => MatchedPart(p.len() as u32),
            PathMatch::Regex(_) | PathMatch::Connect | PathMatch::Template(_) => MatchedPart::WHOLE_PATH,
        }
    }

    pub(super) fn template(&self) -> Option<&UriTemplate> {
        match &self.path {
            PathMatch::Template(template) => Some(template),
            _ => None,
        }
    }

    /// `path` is without query (and without parameters, if those are ignored).
    #[inline]
    pub(in crate::http) fn matches(&self, path: &[u8], head: &RequestHead, context: &MatchContext<'_>) -> bool {
        self.path.matches(path, head) && self.conditions.as_ref().is_none_or(|c| c.hold(head, context))
    }
}

impl PathMatch {
    fn matches(&self, path: &[u8], head: &RequestHead) -> bool {
        if let Self::Connect = self {
            return head.method() == b"CONNECT";
        }
        // CONNECT has no path; then only the connect matcher can match.
        if head.path().is_none() {
            return false;
        }
        let starts = |p: &str| path.get(..p.len()).is_some_and(|start| start.eq_ignore_ascii_case(p.as_bytes()));
        let ends_there = |p: &str| path.get(p.len()).is_none_or(|b| *b == b'/');
        match self {
            Self::Exact(p) => path == p.as_bytes(),
            Self::ExactIgnoringCase(p) => path.eq_ignore_ascii_case(p.as_bytes()),
            Self::Prefix(p) => path.starts_with(p.as_bytes()),
            Self::PrefixIgnoringCase(p) => starts(p),
            Self::Separated(p) => path.starts_with(p.as_bytes()) && ends_there(p),
            Self::SeparatedIgnoringCase(p) => starts(p) && ends_there(p),
            Self::Regex(r) => r.matches(path),
            // Envoy leaves path parameters alone here.
            Self::Template(t) => t.matches(without_query(head.path().unwrap_or_default())),
            Self::Connect => false,
        }
    }
}

impl Conditions {
    fn from_proto(message: &pb::RouteMatch) -> Result<Option<Self>, ConfigError> {
        fn list<M, T>(
            field: &str,
            messages: &[M],
            compile: fn(&M) -> Result<T, ConfigError>,
        ) -> Result<Box<[T]>, ConfigError> {
            let each = |(i, m)| compile(m).map_err(|e: ConfigError| e.within(&format!("{field}[{i}]")));
            messages.iter().enumerate().map(each).collect()
        }
        let tls = message.tls_context.as_ref();
        let conditions = Self {
            runtime: message.runtime_fraction.as_ref().map(RuntimeFraction::from_proto),
            grpc: message.grpc.is_some(),
            headers: list("headers", &message.headers, HeaderMatcher::from_proto)?,
            query: list("query_parameters", &message.query_parameters, QueryParameterMatcher::from_proto)?,
            cookies: list("cookies", &message.cookies, CookieMatcher::from_proto)?,
            presented: tls.and_then(|t| t.presented).map(|v| v.value),
            validated: tls.and_then(|t| t.validated).map(|v| v.value),
            metadata: list("dynamic_metadata", &message.dynamic_metadata, MetadataMatcher::from_proto)?,
            filter_state: list("filter_state", &message.filter_state, FilterStateMatcher::from_proto)?,
        };
        Ok((!conditions.is_empty()).then_some(conditions))
    }

    fn is_empty(&self) -> bool {
        self.runtime.is_none()
            && !self.grpc
            && self.headers.is_empty()
            && self.query.is_empty()
            && self.cookies.is_empty()
            && self.presented.is_none()
            && self.validated.is_none()
            && self.metadata.is_empty()
            && self.filter_state.is_empty()
    }

    fn hold(&self, head: &RequestHead, context: &MatchContext<'_>) -> bool {
        let path = head.path().unwrap_or_default();
        self.runtime.as_ref().is_none_or(|r| r.enabled(context.runtime, context.random))
            && (!self.grpc || head.is_grpc())
            && self.headers.iter().all(|m| m.matches(&head.headers))
            && self.query.iter().all(|m| m.matches(path))
            && self.cookies.iter().all(|m| m.matches(&head.headers))
            && self.tls_agrees(context.connection)
            && self.metadata.iter().all(|m| context.info.is_some_and(|i| m.matches(&i.dynamic_metadata)))
            && self.filter_state.iter().all(|m| context.info.is_some_and(|i| m.matches(&i.filter_state)))
    }

    fn tls_agrees(&self, connection: Option<&ConnectionInfo>) -> bool {
        let tls = connection.and_then(|c| c.tls.as_ref());
        self.presented.is_none_or(|wanted| tls.is_some_and(|t| t.peer.is_some()) == wanted)
            && self.validated.is_none_or(|wanted| tls.is_some_and(|t| t.peer_validated) == wanted)
    }
}
