//! Random tables and random requests: the compiled table picks what reading the configuration from top to bottom picks.
//!
//! The reader here is written for the eye and shares no code with the matchers: it knows what each of them means, walks
//! the virtual hosts' domains in Envoy's order of precedence, and takes the first route that fits.

use std::sync::Arc;

use nuncio_api::pb::envoy::config::core::v3::{RuntimeFractionalPercent, TypedExtensionConfig};
use nuncio_api::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use nuncio_api::pb::envoy::config::route::v3::query_parameter_matcher::QueryParameterMatchSpecifier;
use nuncio_api::pb::envoy::config::route::v3::route_match::{
    ConnectMatcher, GrpcRouteMatchOptions, TlsContextMatchOptions,
};
use nuncio_api::pb::envoy::extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig;
use nuncio_api::pb::envoy::r#type::matcher::v3::metadata_matcher::{PathSegment, path_segment::Segment};
use nuncio_api::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use nuncio_api::pb::envoy::r#type::matcher::v3::{
    FilterStateMatcher, MetadataMatcher, StringMatcher, ValueMatcher, filter_state_matcher, value_matcher,
};
use nuncio_api::pb::envoy::r#type::v3::{FractionalPercent, Int64Range};
use nuncio_api::pb::google::protobuf::{Any, Struct, Value, value::Kind};
use nuncio_core::net::{Address, ConnectionInfo, TlsInfo};

use super::*;

/// Matchers of the whole path, and the same in Rust.
type Told = (&'static str, fn(&str) -> bool);
const REGEXES: [Told; 4] = [
    ("/a.*", |p| p.starts_with("/a")),
    (".*b", |p| p.ends_with('b')),
    ("/[ab]/.*", |p| p.starts_with("/a/") || p.starts_with("/b/")),
    (".*", |_| true),
];
const TEMPLATES: [Told; 3] = [
    ("/*", |p| segments(p).len() == 1 && !p.ends_with('/')),
    ("/a/**", |p| p.starts_with("/a/")),
    ("/{one}/b", |p| matches!(segments(p)[..], [one, "b"] if !one.is_empty())),
];
/// A domain and what is left of it without its `*`.
const DOMAINS: [&str; 9] = ["a.b", "B.a.b", "a.b:80", "*.b", "*.a.B", "*b", "a.*", "a.b.*", "*"];
const AUTHORITIES: [&str; 9] = ["a.b", "A.B:80", "b.a.b", "x.a.b", ".a.b", "a.b.a", "a.c", "c.b:80", "c"];

fn segments(path: &str) -> Vec<&str> {
    path[1..].split('/').collect()
}

#[derive(Debug, Clone)]
enum PathRule {
    Exact(String),
    Prefix(String),
    Separated(String),
    Regex(usize),
    Template(usize),
    Connect,
}

#[derive(Debug, Clone)]
enum Rule {
    /// The test's number, inverted, and a missing header taken as an empty one.
    Header(usize, bool, bool),
    /// Present, absent, or this value.
    Query(Result<String, bool>),
    Cookie(String, bool),
    Grpc,
    Percent(u32),
    Presented(bool),
    Validated(bool),
    Metadata(String, bool),
    FilterState(String),
}

#[derive(Debug, Clone)]
struct Line {
    path: PathRule,
    ignores_case: bool,
    rules: Vec<Rule>,
}

/// A request with all that a route can ask of it.
#[derive(Debug, Clone)]
struct Asked {
    authority: usize,
    connect: bool,
    path: String,
    query: Vec<(bool, String)>,
    headers: Vec<String>,
    cookies: Vec<(bool, String)>,
    grpc: bool,
    random: u64,
    tls: Option<(bool, bool)>,
    metadata: Option<String>,
    state: Option<String>,
}

// === the reader ===

/// What each header matcher says of one value.
fn header_value(test: usize, value: &str) -> bool {
    match test {
        2 => value == "1",
        3 => value.starts_with('1'),
        4 => value.ends_with('2'),
        5 => value.contains('2'),
        6 => value.parse().is_ok_and(|n: i64| (1..12).contains(&n)),
        7 => value.is_empty() || value == "1",
        _ => panic!("no such test"),
    }
}

impl Rule {
    fn holds(&self, asked: &Asked) -> bool {
        let first = |of: &[(bool, String)]| of.iter().find(|(named, _)| *named).map(|(_, value)| value.clone());
        match self {
            Self::Header(test @ 0..=1, invert, empty) => {
                let there = *empty || !asked.headers.is_empty();
                (there == (*test == 0)) != *invert
            }
            Self::Header(test, invert, true) if asked.headers.is_empty() => header_value(*test, "") != *invert,
            Self::Header(_, _, false) if asked.headers.is_empty() => false,
            Self::Header(test, invert, _) => asked.headers.iter().any(|v| header_value(*test, v)) != *invert,
            Self::Query(wanted) => match (wanted, asked.path_and_query().and(first(&asked.query))) {
                (Ok(wanted), value) => value.as_ref() == Some(wanted),
                (Err(wanted), value) => value.is_some() == *wanted,
            },
            Self::Cookie(wanted, invert) => (first(&asked.cookies).as_ref() == Some(wanted)) != *invert,
            Self::Grpc => asked.grpc,
            Self::Percent(percent) => asked.random % 100 < u64::from(*percent),
            Self::Presented(wanted) => asked.tls.is_some_and(|(presented, _)| presented) == *wanted,
            Self::Validated(wanted) => asked.tls.is_some_and(|(_, validated)| validated) == *wanted,
            Self::Metadata(wanted, invert) => (asked.metadata.as_ref() == Some(wanted)) != *invert,
            Self::FilterState(wanted) => asked.state.as_ref() == Some(wanted),
        }
    }
}

impl Line {
    fn fits(&self, asked: &Asked, without_parameters: bool) -> bool {
        if let PathRule::Connect = self.path {
            return asked.connect && self.rules.iter().all(|rule| rule.holds(asked));
        }
        if asked.connect {
            return false;
        }
        let whole = asked.path.as_str();
        let path = if without_parameters { whole.split(';').next().unwrap() } else { whole };
        let case = |text: &str| if self.ignores_case { text.to_lowercase() } else { text.to_owned() };
        let (cased, given) = (case(path), |text: &String| case(text));
        let fits = match &self.path {
            PathRule::Exact(text) => cased == given(text),
            PathRule::Prefix(text) => cased.starts_with(&given(text)),
            PathRule::Separated(text) => cased == given(text) || cased.starts_with(&(given(text) + "/")),
            PathRule::Regex(n) => REGEXES[*n].1(path),
            PathRule::Template(n) => TEMPLATES[*n].1(whole),
            PathRule::Connect => false,
        };
        fits && self.rules.iter().all(|rule| rule.holds(asked))
    }
}

/// Exact, then the longest suffix, then the longest prefix, then anything.
fn domain_for(authority: &str, ignore_port: bool, there: &[&'static str]) -> Option<&'static str> {
    let mut host = authority.to_lowercase();
    if ignore_port {
        host = host.split(':').next().unwrap().to_owned();
    }
    let longest = |fits: &dyn Fn(&str) -> bool| {
        let those = there.iter().filter(|d| **d != "*" && fits(&d.to_lowercase()) && d.len() <= host.len());
        those.max_by_key(|d| d.len()).copied()
    };
    longest(&|d| d == host)
        .or_else(|| longest(&|d| d.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix))))
        .or_else(|| longest(&|d| d.strip_suffix('*').is_some_and(|prefix| host.starts_with(prefix))))
        .or_else(|| there.contains(&"*").then_some("*"))
}

// === as messages ===

fn exactly(text: &str) -> StringMatcher {
    StringMatcher { match_pattern: Some(MatchPattern::Exact(text.into())), ignore_case: false }
}

#[allow(deprecated)]
fn header_matcher(test: usize) -> HeaderMatchSpecifier {
    match test {
        0 => HeaderMatchSpecifier::PresentMatch(true),
        1 => HeaderMatchSpecifier::PresentMatch(false),
        2 => HeaderMatchSpecifier::ExactMatch("1".into()),
        3 => HeaderMatchSpecifier::PrefixMatch("1".into()),
        4 => HeaderMatchSpecifier::SuffixMatch("2".into()),
        5 => HeaderMatchSpecifier::ContainsMatch("2".into()),
        6 => HeaderMatchSpecifier::RangeMatch(Int64Range { start: 1, end: 12 }),
        _ => HeaderMatchSpecifier::SafeRegexMatch(regex("1?")),
    }
}

impl Line {
    fn message(&self, name: String) -> pb::Route {
        let path_specifier = Some(match &self.path {
            PathRule::Exact(text) => PathSpecifier::Path(text.clone()),
            PathRule::Prefix(text) => PathSpecifier::Prefix(text.clone()),
            PathRule::Separated(text) => PathSpecifier::PathSeparatedPrefix(text.clone()),
            PathRule::Regex(n) => PathSpecifier::SafeRegex(regex(REGEXES[*n].0)),
            PathRule::Template(n) => {
                let config = UriTemplateMatchConfig { path_template: TEMPLATES[*n].0.into() };
                let name = "envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig";
                let any = Any { type_url: format!("type.googleapis.com/{name}"), value: config.encode_to_vec() };
                PathSpecifier::PathMatchPolicy(TypedExtensionConfig { name: "t".into(), typed_config: Some(any) })
            }
            PathRule::Connect => PathSpecifier::ConnectMatcher(ConnectMatcher {}),
        });
        let mut to = pb::RouteMatch { path_specifier, ..Default::default() };
        if self.ignores_case {
            to.case_sensitive = Some(BoolValue { value: false });
        }
        self.rules.iter().for_each(|rule| rule.add_to(&mut to));
        pb::Route { name, r#match: Some(to), action: Some(to_cluster("a")), ..Default::default() }
    }
}

impl Rule {
    fn add_to(&self, to: &mut pb::RouteMatch) {
        let tls = |to: &mut pb::RouteMatch, presented: Option<bool>, validated: Option<bool>| {
            let context = to.tls_context.get_or_insert_default();
            let value = |of: Option<bool>| of.map(|value| BoolValue { value });
            *context = TlsContextMatchOptions {
                presented: value(presented).or(context.presented),
                validated: value(validated).or(context.validated),
            };
        };
        match self {
            Self::Header(test, invert, empty) => to.headers.push(pb::HeaderMatcher {
                name: "X-C".into(),
                header_match_specifier: Some(header_matcher(*test)),
                invert_match: *invert,
                treat_missing_header_as_empty: *empty,
            }),
            Self::Query(wanted) => to.query_parameters.push(pb::QueryParameterMatcher {
                name: "q".into(),
                query_parameter_match_specifier: Some(match wanted {
                    Ok(text) => QueryParameterMatchSpecifier::StringMatch(exactly(text)),
                    Err(present) => QueryParameterMatchSpecifier::PresentMatch(*present),
                }),
            }),
            Self::Cookie(text, invert) => to.cookies.push(pb::CookieMatcher {
                name: "c".into(),
                string_match: Some(exactly(text)),
                invert_match: *invert,
            }),
            Self::Grpc => to.grpc = Some(GrpcRouteMatchOptions {}),
            Self::Percent(percent) => {
                let default_value = Some(FractionalPercent { numerator: *percent, denominator: 0 });
                to.runtime_fraction = Some(RuntimeFractionalPercent { default_value, runtime_key: String::new() });
            }
            Self::Presented(wanted) => tls(to, Some(*wanted), None),
            Self::Validated(wanted) => tls(to, None, Some(*wanted)),
            Self::Metadata(text, invert) => to.dynamic_metadata.push(MetadataMatcher {
                filter: "ns".into(),
                path: vec![PathSegment { segment: Some(Segment::Key("k".into())) }],
                value: Some(ValueMatcher {
                    match_pattern: Some(value_matcher::MatchPattern::StringMatch(exactly(text))),
                }),
                invert: *invert,
            }),
            Self::FilterState(text) => to.filter_state.push(FilterStateMatcher {
                key: "who".into(),
                matcher: Some(filter_state_matcher::Matcher::StringMatch(exactly(text))),
            }),
        }
    }
}

impl Asked {
    /// CONNECT has none.
    fn path_and_query(&self) -> Option<String> {
        let pairs: Vec<_> =
            self.query.iter().map(|(named, value)| format!("{}={value}", if *named { "q" } else { "qq" })).collect();
        let query = if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) };
        (!self.connect).then(|| self.path.clone() + &query)
    }

    fn head(&self) -> RequestHead {
        let path = self.path_and_query();
        let mut fields = vec![(":method", if self.connect { "CONNECT" } else { "GET" })];
        fields.extend(path.as_deref().map(|path| (":path", path)));
        fields.extend([(":authority", AUTHORITIES[self.authority]), (":scheme", "http")]);
        fields.extend(self.headers.iter().map(|value| ("x-c", value.as_str())));
        let cookies: Vec<_> =
            self.cookies.iter().map(|(named, value)| format!("{}={value}", if *named { "c" } else { "cc" })).collect();
        let cookies = cookies.join("; ");
        if !cookies.is_empty() {
            fields.push(("cookie", &cookies));
        }
        if self.grpc {
            fields.push(("content-type", "application/grpc"));
        }
        RequestHead { headers: fields.into_iter().collect(), ..RequestHead::default() }
    }

    fn connection(&self) -> ConnectionInfo {
        let address = Address::Ip(([127, 0, 0, 1], 1).into());
        let mut connection = ConnectionInfo::new(1, address.clone(), address);
        connection.tls = self.tls.map(|(presented, peer_validated)| TlsInfo {
            peer: presented.then(Arc::default),
            peer_validated,
            ..TlsInfo::default()
        });
        connection
    }

    fn info(&self) -> StreamInfo {
        let mut info = info();
        if let Some(text) = &self.metadata {
            let value = Value { kind: Some(Kind::StringValue(text.clone())) };
            info.dynamic_metadata.merge("ns", Struct { fields: [("k".to_owned(), value)].into() });
        }
        if let Some(text) = &self.state {
            info.filter_state.set("who", Arc::new(text.clone()));
        }
        info
    }
}

// === at random ===

fn any_rule() -> impl Strategy<Value = Rule> {
    let (flag, word) = (any::<bool>(), "[12]");
    prop_oneof![
        4 => (0..8usize, flag, flag).prop_map(|(test, invert, empty)| Rule::Header(test, invert, empty)),
        2 => prop_oneof![word.prop_map(Ok), flag.prop_map(Err)].prop_map(Rule::Query),
        1 => (word, flag).prop_map(|(text, invert)| Rule::Cookie(text, invert)),
        1 => Just(Rule::Grpc),
        1 => (0..=100u32).prop_map(Rule::Percent),
        1 => flag.prop_map(Rule::Presented),
        1 => flag.prop_map(Rule::Validated),
        1 => (word, flag).prop_map(|(text, invert)| Rule::Metadata(text, invert)),
        1 => word.prop_map(Rule::FilterState),
    ]
}

fn any_line() -> impl Strategy<Value = Line> {
    let path = prop_oneof![
        4 => any_path().prop_map(PathRule::Prefix),
        4 => any_path().prop_map(PathRule::Exact),
        // One that ends with a slash is refused.
        3 => "/[ab]{1,2}(/[abA]{1,2}){0,2}".prop_map(PathRule::Separated),
        2 => (0..REGEXES.len()).prop_map(PathRule::Regex),
        2 => (0..TEMPLATES.len()).prop_map(PathRule::Template),
        1 => Just(PathRule::Connect),
    ];
    let rules = prop_oneof![3 => prop::collection::vec(any_rule(), 0..1), 2 => prop::collection::vec(any_rule(), 1..3)];
    let ignores_case = prop_oneof![4 => Just(false), 1 => Just(true)];
    (path, ignores_case, rules).prop_map(|(path, ignores_case, mut rules)| {
        // Two of these would be one field of the message.
        let kind = |rule: &Rule| std::mem::discriminant(rule);
        let single = |rule: &Rule| matches!(rule, Rule::Percent(_) | Rule::Presented(_) | Rule::Validated(_));
        rules.dedup_by(|b, a| single(a) && kind(a) == kind(b));
        Line { path, ignores_case, rules }
    })
}

fn any_request() -> impl Strategy<Value = Asked> {
    let pairs = || prop::collection::vec((any::<bool>(), "[12]"), 0..3);
    let said = || prop::option::of("[12]");
    let path = (any_path(), "(;[ab/]{0,2})?").prop_map(|(path, parameters)| path + &parameters);
    let connect = prop_oneof![9 => Just(false), 1 => Just(true)];
    let headers = prop::collection::vec("(1|2|12|a|)", 0..3);
    (
        (0..AUTHORITIES.len(), connect, path, pairs(), headers, pairs()),
        (any::<bool>(), any::<u64>(), any::<Option<(bool, bool)>>(), said(), said()),
    )
        .prop_map(|((authority, connect, path, query, headers, cookies), (grpc, random, tls, metadata, state))| {
            Asked { authority, connect, path, query, headers, cookies, grpc, random, tls, metadata, state }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_compiled_table_picks_what_reading_from_the_top_picks(
        hosts in prop::collection::vec(prop::collection::vec(any_line(), 0..25), 3),
        placed in prop::collection::vec(prop::option::weighted(0.7, 0..3usize), DOMAINS.len()),
        (ignore_port, without_parameters) in any::<(bool, bool)>(),
        requests in prop::collection::vec(any_request(), 20),
    ) {
        let domains = |host: usize| DOMAINS.iter().zip(&placed).filter(move |(_, at)| **at == Some(host)).map(|(d, _)| *d);
        let message = RouteConfiguration {
            virtual_hosts: (0..hosts.len())
                .filter(|host| domains(*host).next().is_some())
                .map(|host| pb::VirtualHost {
                    name: host.to_string(),
                    domains: domains(host).map(str::to_owned).collect(),
                    routes: hosts[host].iter().enumerate().map(|(i, line)| line.message(format!("{host}.{i}"))).collect(),
                    ..Default::default()
                })
                .collect(),
            ignore_port_in_host_matching: ignore_port,
            ignore_path_parameters_in_path_matching: without_parameters,
            ..Default::default()
        };
        let config = RouteConfig::from_proto(&message, &context()).unwrap();
        let there: Vec<_> = DOMAINS.iter().zip(&placed).filter(|(_, at)| at.is_some()).map(|(d, _)| *d).collect();
        for asked in requests {
            let host = domain_for(AUTHORITIES[asked.authority], ignore_port, &there)
                .and_then(|domain| placed[DOMAINS.iter().position(|d| *d == domain).unwrap()]);
            let expected = host.and_then(|host| {
                let line = hosts[host].iter().position(|line| line.fits(&asked, without_parameters))?;
                Some(format!("{host}.{line}"))
            });
            let (connection, info) = (asked.connection(), asked.info());
            let context = MatchContext {
                random: asked.random,
                runtime: &NoRuntime,
                connection: Some(&connection),
                info: Some(&info),
            };
            let found = config.find(&asked.head(), &context).map(|route| route.name().to_owned());
            prop_assert_eq!(found, expected, "{:?}", asked);
        }
    }
}
