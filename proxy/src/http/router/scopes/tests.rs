//! Expected values are those of Envoy 1.40, asked with the same headers.

use nuncio_api::pb::envoy::config::route::v3 as route_pb;
use nuncio_core::stats::{Store, lists};
use pb::scope_key_builder::FragmentBuilder;
use pb::scope_key_builder::fragment_builder::header_value_extractor::KvElement;

use super::*;
use crate::http::router::BuildContext;

fn part(name: &str, separator: &str, take: Option<ExtractType>) -> FragmentBuilder {
    let (name, element_separator) = (name.into(), separator.into());
    let extractor = HeaderValueExtractor { name, element_separator, extract_type: take };
    FragmentBuilder { r#type: Some(Type::HeaderValueExtractor(extractor)) }
}

fn element(key: &str, separator: &str) -> Option<ExtractType> {
    Some(ExtractType::Element(KvElement { key: key.into(), separator: separator.into() }))
}

fn builder(fragments: Vec<FragmentBuilder>) -> Result<ScopeKeyBuilder, String> {
    ScopeKeyBuilder::from_proto(&pb::ScopeKeyBuilder { fragments }).map_err(|e| e.to_string())
}

/// `vip` of `x-scope: a=b;vip=c`, and the second of `x-two: d,e`.
fn vip_and_second() -> ScopeKeyBuilder {
    let second = Some(ExtractType::Index(1));
    builder(vec![part("X-Scope", ";", element("vip", "=")), part("x-two", ",", second)]).unwrap()
}

fn routes(name: &str) -> RouteSource {
    let message = route_pb::RouteConfiguration { name: name.into(), ..Default::default() };
    let context = BuildContext {
        has_cluster: &|_| true,
        validate_clusters: true,
        filter_config: &|_, _| Ok(None),
        scope: &|name| Store::new().scope(&lists::vhost::SCOPE, &name.into()),
    };
    RouteSource::Inline(Arc::new(RouteConfig::from_proto(&message, &context).unwrap()))
}

fn table(scopes: &[(&str, &[&str])]) -> ScopeTable {
    let mut table = ScopeTable::default();
    for (name, key) in scopes {
        let key: Vec<&[u8]> = key.iter().map(|part| part.as_bytes()).collect();
        table.insert(&key, routes(name));
    }
    table
}

fn found(table: &ScopeTable, builder: &ScopeKeyBuilder, headers: &[(&str, &str)]) -> Option<String> {
    let head = RequestHead { headers: headers.iter().copied().collect(), ..Default::default() };
    match table.find(builder, &head)? {
        RouteSource::Inline(config) => Some(config.name().to_string()),
        RouteSource::Discovered(_) => None,
    }
}

#[test]
fn a_key_is_made_of_the_headers_as_envoy_makes_it() {
    let scopes: &[(&str, &[&str])] = &[
        ("one", &["10.0.0.1", "p"]),
        ("two", &["10.0.0.2", "p"]),
        ("empty", &["", ""]),
        ("eq", &["x=y", "p"]),
        ("sp", &[" s ", " p"]),
    ];
    let (table, builder) = (table(scopes), vip_and_second());
    let ask = |scope: &str, two: &str| found(&table, &builder, &[("x-scope", scope), ("x-two", two)]);
    assert_eq!(ask("a=1;vip=10.0.0.1;b=2", "o,p").as_deref(), Some("one"));
    assert_eq!(ask("vip=10.0.0.2", "o,p,q").as_deref(), Some("two"));
    assert_eq!(ask("vip=10.0.0.3", "o,p,q"), None);
    assert_eq!(ask("vip=10.0.0.1", "o"), None, "there is no second element");
    assert_eq!(ask("vip=10.0.0.1;vip=10.0.0.2", "o,p").as_deref(), Some("one"), "the first of that key");
    assert_eq!(ask("vip;vip=10.0.0.1", "o,p"), None, "without a separator the value is empty");
    assert_eq!(ask("vip=", "o,").as_deref(), Some("empty"));
    assert_eq!(ask("vip", ",").as_deref(), Some("empty"));
    assert_eq!(ask("vip=x=y", "o,p").as_deref(), Some("eq"), "the first separator counts");
    assert_eq!(ask("vip= s ;", "o, p").as_deref(), Some("sp"), "nothing is trimmed");
    assert_eq!(ask("a; vip=10.0.0.1", "o,p"), None, "keys neither");
    assert_eq!(ask("", ""), None);
    assert_eq!(found(&table, &builder, &[("x-scope", "vip=10.0.0.1")]), None);
    assert_eq!(found(&table, &builder, &[]), None);
}

#[test]
fn of_repeated_headers_the_first_counts() {
    let (table, builder) = (table(&[("one", &["1", "p"]), ("two", &["2", "p"])]), vip_and_second());
    let ask = |first: &str, second: &str| {
        found(&table, &builder, &[("x-scope", first), ("x-scope", second), ("x-two", "o,p")])
    };
    assert_eq!(ask("vip=1", "vip=2").as_deref(), Some("one"));
    assert_eq!(ask("z=1", "vip=2"), None);
}

#[test]
fn without_a_separator_the_value_is_one_element() {
    let whole = builder(vec![part("x", "", Some(ExtractType::Index(0)))]).unwrap();
    let pair = builder(vec![part("x", "", element("k", ":="))]).unwrap();
    let table = table(&[("whole", &["a,b"]), ("pair", &["v;k=w"])]);
    assert_eq!(found(&table, &whole, &[("x", "a,b")]).as_deref(), Some("whole"));
    assert_eq!(found(&table, &pair, &[("x", "k:=v;k=w")]).as_deref(), Some("pair"));
}

#[test]
fn keys_of_other_lengths_are_of_no_request() {
    let table = table(&[("short", &["1"]), ("long", &["1", "p", "q"])]);
    assert_eq!(found(&table, &vip_and_second(), &[("x-scope", "vip=1"), ("x-two", "o,p")]), None);
}

#[test]
fn the_last_scope_of_a_key_counts() {
    let mut table = table(&[("first", &["1"])]);
    assert!(table.insert(&[b"1"], routes("last")).is_some());
    let whole = builder(vec![part("x", "", Some(ExtractType::Index(0)))]).unwrap();
    assert_eq!(found(&table, &whole, &[("x", "1")]).as_deref(), Some("last"));
}

#[test]
fn what_no_header_can_be_taken_apart_by_is_refused() {
    let error = |fragment| builder(vec![fragment]).unwrap_err();
    assert_eq!(
        error(part("x", "", Some(ExtractType::Index(1)))),
        "fragments[0].header_value_extractor.index: Index > 0 for empty string element separator."
    );
    assert_eq!(
        error(part("x", ",", None)),
        "fragments[0].header_value_extractor: HeaderValueExtractor extract_type not set."
    );
}
