//! Hashes modulo 1000 as Envoy 1.40 computed them: a route with 1000 weighted clusters and
//! `use_hash_policy` told which number it had chosen.

use nuncio_api::pb::envoy::config::route::v3::route_action::hash_policy::{
    ConnectionProperties, CookieAttribute, Header, QueryParameter,
};
use nuncio_api::pb::envoy::r#type::matcher::v3::{RegexMatchAndSubstitute, RegexMatcher};
use nuncio_api::pb::google::protobuf::Duration;

use super::*;

fn header(name: &str) -> PolicySpecifier {
    PolicySpecifier::Header(Header { header_name: name.into(), regex_rewrite: None })
}

fn query(name: &str) -> PolicySpecifier {
    PolicySpecifier::QueryParameter(QueryParameter { name: name.into() })
}

fn rule(specifier: PolicySpecifier) -> HashPolicyProto {
    HashPolicyProto { terminal: false, policy_specifier: Some(specifier) }
}

fn head(path: &str, fields: &[(&str, &str)]) -> RequestHead {
    let headers = [(":path", path)].iter().chain(fields).copied().collect();
    RequestHead { headers, ..Default::default() }
}

fn connection() -> ConnectionInfo {
    let address = |text: &str| Address::Ip(text.parse().unwrap());
    ConnectionInfo::new(1, address("127.0.0.1:40124"), address("127.0.0.1:18771"))
}

fn modulo(rules: &[HashPolicyProto], head: &RequestHead) -> Option<u64> {
    let connection = connection();
    let input = HashInput { head, connection: Some(&connection), info: None };
    HashPolicy::from_proto(rules).unwrap().hash(&input, None).map(|h| h % 1000)
}

#[test]
fn single_rules_hash_as_in_envoy() {
    let foo = head("/?k=foo", &[("x-k", "foo"), ("cookie", "s=\"foo\"")]);
    assert_eq!(modulo(&[rule(header("X-K"))], &foo), Some(719));
    assert_eq!(modulo(&[rule(query("k"))], &foo), Some(719));
    assert_eq!(modulo(&[rule(query("k"))], &head("/?k=bar", &[])), Some(25));
    let cookie = CookieProto { name: "s".into(), ..Default::default() };
    assert_eq!(modulo(&[rule(PolicySpecifier::Cookie(cookie))], &foo), Some(719));
    let client = PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip: true });
    assert_eq!(modulo(&[rule(client)], &foo), Some(471));
    let pattern = RegexMatcher { regex: "^u-([a-z]+).*$".into(), ..Default::default() };
    let rewrite = RegexMatchAndSubstitute { pattern: Some(pattern), substitution: r"\1".into() };
    let rewritten = PolicySpecifier::Header(Header { header_name: "x-k".into(), regex_rewrite: Some(rewrite) });
    assert_eq!(modulo(&[rule(rewritten)], &head("/", &[("x-k", "u-foo-9")])), Some(719));
}

#[test]
fn several_values_of_a_field_count_in_any_order() {
    for values in [["foo", "bar"], ["bar", "foo"]] {
        let two = head("/", &[("x-k", values[0]), ("x-k", values[1])]);
        assert_eq!(modulo(&[rule(header("x-k"))], &two), Some(751));
    }
}

#[test]
fn rules_combine_by_rotation_until_a_terminal_one_has_a_hash() {
    let three = [rule(header("x-k")), rule(query("k")), rule(header("x-l"))];
    assert_eq!(modulo(&three, &head("/?k=foo", &[("x-k", "bar")])), Some(21));
    assert_eq!(modulo(&three, &head("/?k=foo", &[("x-k", "bar"), ("x-l", "baz")])), Some(7));
    let terminal = [HashPolicyProto { terminal: true, ..rule(header("x-k")) }, rule(query("k"))];
    assert_eq!(modulo(&terminal, &head("/?k=foo", &[("x-k", "bar")])), Some(25));
    assert_eq!(modulo(&terminal, &head("/?k=foo", &[])), Some(719));
    assert_eq!(modulo(&terminal, &head("/", &[])), None);
}

#[test]
fn a_client_without_the_cookie_is_given_one_for_its_connection() {
    let attribute = |name: &str, value: &str| CookieAttribute { name: name.into(), value: value.into() };
    let cookie = CookieProto {
        name: "s".into(),
        ttl: Some(Duration { seconds: 90, nanos: 0 }),
        path: "/p".into(),
        attributes: vec![attribute("SameSite", "Lax"), attribute("Secure", "")],
    };
    let policy = HashPolicy::from_proto(&[rule(PolicySpecifier::Cookie(cookie))]).unwrap();
    let connection = connection();
    let without = head("/", &[]);
    let input = HashInput { head: &without, connection: Some(&connection), info: None };
    let mut cookies = Vec::new();
    let hash = policy.hash(&input, Some(&mut cookies));
    assert_eq!(cookies, ["s=\"e39bdbd898539071\"; Max-Age=90; Path=/p; SameSite=Lax; Secure; HttpOnly"]);
    let with = head("/", &[("cookie", "s=e39bdbd898539071")]);
    assert_eq!(policy.hash(&HashInput { head: &with, ..input }, Some(&mut cookies)), hash);
    assert_eq!(cookies.len(), 1);
    assert_eq!(policy.hash(&input, None), None);
}
