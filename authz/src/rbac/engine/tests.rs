use nuncio_core::http::RequestHead;
use nuncio_core::net::{Address, PeerCertificate, TlsInfo};
use nuncio_core::{http::StreamControl, net::ConnectionInfo, stream_info::StreamInfo};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::time::Instant;

use super::*;
use crate::testing::message;

fn engine(action: &str, permission: &str, principal: &str) -> Engine {
    let text =
        format!("{{action: {action}, policies: {{p: {{permissions: [{permission}], principals: [{principal}]}}}}}}");
    Engine::from_proto(&message(&text)).unwrap()
}

fn allows(engine: &Engine, head: &[(&str, &str)], change: impl FnOnce(&mut ConnectionInfo)) -> bool {
    let stream = StreamControl::new(StreamInfo::new(SystemTime::UNIX_EPOCH, Instant::now()));
    let ip = |last: u8, port: u16| Address::Ip(([127, 0, 0, last], port).into());
    let mut connection = ConnectionInfo::new(1, ip(8, 1000), ip(1, 80));
    change(&mut connection);
    stream.state().connection.replace(Some(Rc::new(connection)));
    let head = RequestHead { headers: head.iter().copied().collect(), ..RequestHead::default() };
    Attributes::of_request(&head, &stream, |attributes| engine.decide(attributes).allowed).unwrap()
}

const ANY: &str = "{any: true}";

/// Headers; whether the denying and the allowing policy let them pass.
type Case = (&'static [(&'static str, &'static str)], bool, bool);

// By the table of Envoy 1.40: each value is tested on its own.
#[test]
fn each_line_of_a_header_is_tested_by_itself() {
    let deny = engine("DENY", ANY, "{header: {name: x-role, string_match: {exact: admin}}}");
    let allow = engine("ALLOW", ANY, "{header: {name: x-role, string_match: {exact: user}}}");
    let cases: [Case; 4] = [
        (&[("x-role", "user"), ("x-role", "admin")], false, true),
        (&[("x-role", "admin"), ("x-role", "user")], false, true),
        (&[("x-role", "user,admin")], true, false),
        (&[], true, false),
    ];
    for (head, past_deny, past_allow) in cases {
        assert_eq!((allows(&deny, head, |_| ()), allows(&allow, head, |_| ())), (past_deny, past_allow), "{head:?}");
    }
}

#[test]
fn a_request_without_a_path_has_no_path_to_match() {
    let path = "{url_path: {path: {prefix: /}}}";
    let connect = [(":method", "CONNECT"), (":authority", "h:1")];
    assert!(!allows(&engine("ALLOW", path, ANY), &connect, |_| ()));
    assert!(allows(&engine("ALLOW", path, ANY), &[(":path", "/x?y")], |_| ()));
    assert!(!allows(&engine("ALLOW", "{url_path: {path: {exact: '/x?y'}}}", ANY), &[(":path", "/x?y")], |_| ()));
    assert!(allows(&engine("ALLOW", "{not_rule: {url_path: {path: {prefix: /}}}}", ANY), &connect, |_| ()));
}

#[test]
fn addresses_are_told_apart() {
    let at = |which: &str, last: u8| {
        engine("ALLOW", ANY, &format!("{{{which}: {{address_prefix: 127.0.0.{last}, prefix_len: 32}}}}"))
    };
    let proxied = |connection: &mut ConnectionInfo| connection.remote = Address::Ip(([127, 0, 0, 9], 1).into());
    assert!(allows(&at("direct_remote_ip", 8), &[], proxied) && allows(&at("remote_ip", 9), &[], proxied));
    assert!(!allows(&at("remote_ip", 8), &[], proxied) && allows(&at("source_ip", 9), &[], proxied));
    let pipe = |connection: &mut ConnectionInfo| connection.remote = Address::Pipe("/s".into());
    assert!(!allows(&at("remote_ip", 8), &[], pipe));
    assert!(allows(
        &engine("ALLOW", "{destination_ip: {address_prefix: 127.0.0.1, prefix_len: 32}}", ANY),
        &[],
        |_| ()
    ));
    assert!(allows(&engine("ALLOW", "{destination_port_range: {start: 80, end: 81}}", ANY), &[], |_| ()));
    assert!(!allows(&engine("ALLOW", "{destination_port_range: {start: 79, end: 80}}", ANY), &[], |_| ()));
}

/// A client of TLS that showed a certificate with those names, or none.
fn shown(sans: Option<&[&str]>, peer_validated: bool) -> impl Fn(&mut ConnectionInfo) {
    let peer = sans.map(|sans| {
        let uri_sans = sans.iter().map(|san| (*san).to_owned()).collect();
        Arc::new(PeerCertificate { subject: "CN=x".into(), uri_sans, ..PeerCertificate::default() })
    });
    move |connection| {
        connection.tls = Some(TlsInfo { peer: peer.clone(), peer_validated, ..TlsInfo::default() });
    }
}

// Read off Envoy 1.40, as what follows.
#[test]
fn whom_tls_let_pass_is_authenticated_and_has_the_names_of_the_certificate() {
    let named = |name: &str| engine("ALLOW", ANY, &format!("{{authenticated: {{{name}}}}}"));
    let (anybody, all, some) = (
        named(""),
        named("principal_name: {safe_regex: {regex: '.*'}}"),
        named("principal_name: {safe_regex: {regex: '.+'}}"),
    );
    let somebody = named("principal_name: {exact: 'spiffe://a'}");
    for engine in [&anybody, &all, &some] {
        assert!(!allows(engine, &[], |_| ()));
        assert!(allows(engine, &[], shown(Some(&[]), true)));
    }
    let nobody = shown(None, false);
    assert!(allows(&anybody, &[], &nobody) && allows(&all, &[], &nobody) && !allows(&some, &[], &nobody));
    assert!(allows(&somebody, &[], shown(Some(&["spiffe://b", "spiffe://a"]), true)));
    assert!(!allows(&somebody, &[], shown(Some(&["x"]), true)));
}

#[test]
fn a_verified_client_needs_a_certificate_that_was_verified() {
    let config = "\"@type\": type.googleapis.com/envoy.extensions.rbac.principals.mtls_authenticated.v3.Config";
    let mtls = |rest: &str| format!("{{custom: {{name: m, typed_config: {{{config}, {rest}}}}}}}");
    let any = engine("ALLOW", ANY, &mtls("any_validated_client_certificate: true"));
    let name = "san_matcher: {san_type: URI, matcher: {prefix: 'spiffe://a'}}";
    let named = engine("ALLOW", ANY, &mtls(name));
    let both = engine("ALLOW", ANY, &mtls(&format!("any_validated_client_certificate: true, {name}")));
    let cases = [
        (None, false, [false; 3]),
        (Some(&["spiffe://a/b"][..]), false, [false; 3]),
        (Some(&["spiffe://b"][..]), true, [true, false, false]),
        (Some(&["spiffe://a/b"][..]), true, [true; 3]),
    ];
    for (sans, validated, expected) in cases {
        let got = [&any, &named, &both].map(|engine| allows(engine, &[], shown(sans, validated)));
        assert_eq!(got, expected, "{sans:?} {validated}");
    }
    assert!(!allows(&any, &[], |_| ()));
    let policy = format!("{{policies: {{p: {{permissions: [{ANY}], principals: [{}]}}}}}}", mtls(""));
    let error = Engine::from_proto(&message(&policy)).unwrap_err();
    assert_eq!(error.path, "policies[\"p\"].principals[0].custom.typed_config");
}

#[test]
fn a_template_matches_the_path_without_its_query() {
    let config = "\"@type\": type.googleapis.com/envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig";
    let template =
        |text: &str| format!("{{uri_template: {{name: t, typed_config: {{{config}, path_template: '{text}'}}}}}}");
    let cases = [
        ("/a/{x}/c", [true, true, false, false, false, false]),
        ("/foo/*/bar/**", [false, false, false, true, true, false]),
        ("/**", [true; 6]),
    ];
    let paths = ["/a/b/c", "/a/b/c?q=/x", "/a//c", "/foo/x/bar/", "/foo/x/bar/y/z", "/foo/x/bar"];
    for (text, expected) in cases {
        let engine = engine("ALLOW", &template(text), ANY);
        assert_eq!(paths.map(|path| allows(&engine, &[(":path", path)], |_| ())), expected, "{text}");
        assert!(!allows(&engine, &[(":method", "CONNECT")], |_| ()));
    }
    let policy = format!("{{policies: {{p: {{permissions: [{}], principals: [{ANY}]}}}}}}", template("/{x}/{x}"));
    let error = Engine::from_proto(&message(&policy)).unwrap_err();
    assert_eq!(error.path, "policies[\"p\"].permissions[0].uri_template.typed_config.path_template");
}

#[test]
fn the_first_policy_by_name_is_told() {
    let all = "{permissions: [{any: true}], principals: [{any: true}]}";
    let text = format!("{{action: DENY, policies: {{'z 1': {all}, 'a b': {all}}}}}");
    let engine = Engine::from_proto(&message(&text)).unwrap();
    let connection = ConnectionInfo::new(1, Address::Pipe("/a".into()), Address::Pipe("/b".into()));
    let decision = Attributes::of_connection(&connection, |attributes| engine.decide(attributes));
    assert_eq!(decision.policy, Some("a b"));
    assert_eq!(decision.details(), "rbac_access_denied_matched_policy[a_b]");
    let nobody = Engine::from_proto(&message("{action: ALLOW}")).unwrap();
    let decision = Attributes::of_connection(&connection, |attributes| nobody.decide(attributes));
    assert_eq!(decision.details(), "rbac_access_denied_matched_policy[none]");
}

#[test]
fn what_cannot_be_read_says_where() {
    let text = "{policies: {p: {permissions: [{not_rule: {url_path: {path: {safe_regex: {regex: '('}}}}}], \
                principals: [{any: true}]}}}";
    let error = Engine::from_proto(&message(text)).unwrap_err();
    assert!(
        error.path.starts_with("policies[\"p\"].permissions[0].not_rule[0].url_path.path.safe_regex"),
        "{}",
        error.path
    );
}
