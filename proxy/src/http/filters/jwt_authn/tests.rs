use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nuncio_core::http::ResponseHead;
use nuncio_core::upstream::client::{AsyncFailure, AsyncResponse};
use serde_json::{Value, json};

use super::super::testing::{Bench, FILTERS, Scripted};

const SECRET: &[u8] = b"a shared secret of thirty-two b.";
const OTHER: &[u8] = b"another secret of thirty-two byt";

fn token(secret: &[u8], claims: &Value) -> String {
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#),
        URL_SAFE_NO_PAD.encode(claims.to_string())
    );
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

fn jwks(secret: &[u8]) -> String {
    json!({"keys": [{"kty": "oct", "k": URL_SAFE_NO_PAD.encode(secret)}]}).to_string()
}

fn manager(providers: &str, rules: &str, more: &str) -> String {
    let local = format!("local_jwks: {{inline_string: '{}'}}", jwks(SECRET));
    let filter = format!(
        r#"{{name: j, typed_config: {{"@type": {FILTERS}.jwt_authn.v3.JwtAuthentication, providers: {{{providers}}}, rules: [{rules}] {more}}}}}"#
    )
    .replace("LOCAL", &local);
    format!(
        "{{stat_prefix: in, http_filters: [{filter}, ROUTER], route_config: {{virtual_hosts: [{{name: v, domains: ['*'], \
         routes: [{{match: {{prefix: /}}, route: {{cluster: c}}}}]}}]}}}}"
    )
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

// Expected: recorded from Envoy 1.40 (filter_jwt_authn).
#[tokio::test(flavor = "local", start_paused = true)]
async fn a_good_token_becomes_headers_and_the_rest_is_refused() {
    let provider = "a: {issuer: i, audiences: [one], LOCAL, forward_payload_header: x-payload, claim_to_headers: \
                    [{header_name: x-sub, claim_name: sub}, {header_name: x-deep, claim_name: a.b}, \
                    {header_name: x-list, claim_name: list}, {header_name: x-num, claim_name: num}, \
                    {header_name: x-bad, claim_name: bad}]}";
    let rules = "{match: {prefix: /open}}, {match: {prefix: /}, requires: {provider_name: a}}";
    let bench = Bench::with(&manager(provider, rules, ""));
    let claims = json!({"iss": "i", "aud": "one", "exp": 100, "sub": "al", "a": {"b": true}, "list": ["x", "y"],
        "num": 7, "bad": "a\r\nx-evil: 1"});
    let good = token(SECRET, &claims);
    let spoofed = format!("{}x-sub: spoof\r\nx-payload: spoof\r\nx-bad: spoof\r\n", bearer(&good));
    let answer = bench.get("/", &spoofed).await;
    assert_eq!(answer.status(), "200");
    let names = ["x-sub", "x-deep", "x-list", "x-num", "x-bad", "x-evil", "authorization"];
    let got = names.map(|name| answer.upstream_field(name));
    assert_eq!(got, [Some("al"), Some("true"), Some("WyJ4IiwieSJd"), Some("7"), None, None, None]);
    assert_eq!(answer.upstream_field("x-payload"), good.split('.').nth(1));
    let by_query = bench.get(&format!("/q?a=1&access_token={good}&b=2"), "").await;
    assert!(by_query.upstream.starts_with("GET /q?a=1&b=2 "), "{by_query:?}");

    let refused = bench.get("/x", "").await;
    assert_eq!((refused.status(), refused.body()), ("401", "Jwt is missing"));
    assert_eq!(refused.field("www-authenticate"), Some("Bearer realm=\"http://web.test/x\""));
    let with = |change: Value| {
        let mut claims = claims.clone();
        change.as_object().unwrap().iter().for_each(|(k, v)| claims[k] = v.clone());
        token(SECRET, &claims)
    };
    for (what, token, status, text) in [
        ("another's signature", token(OTHER, &claims), "401", "Jwt verification fails"),
        ("issuer", with(json!({"iss": "x"})), "401", "Jwt issuer is not configured"),
        ("audience", with(json!({"aud": ["x"]})), "403", "Audiences in Jwt are not allowed"),
        ("future", with(json!({"nbf": 61})), "401", "Jwt not yet valid"),
        ("two parts", "a.b".into(), "401", super::Status::BadFormat.text()),
        ("five parts", format!("{good}.x.y"), "401", super::Status::BadFormat.text()),
        ("no JSON", "YQ.YQ.YQ".into(), "401", "Jwt header is an invalid JSON"),
        ("number", with(json!({"sub": 1})), "401", "Jwt payload [sub] field is not a string"),
    ] {
        let answer = bench.get("/", &bearer(&token)).await;
        assert_eq!((answer.status(), answer.body(), &*answer.upstream), (status, text, ""), "{what}");
        let realm = "Bearer realm=\"http://web.test/\", error=\"invalid_token\"";
        assert_eq!(answer.field("www-authenticate"), Some(realm), "{what}");
    }
    assert_eq!(bench.get("/", &bearer(&with(json!({"nbf": 60})))).await.status(), "200");
    assert_eq!(bench.get("/open", "").await.status(), "200");
    tokio::time::advance(Duration::from_secs(160)).await;
    assert_eq!(bench.get("/", &bearer(&good)).await.status(), "200");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(bench.get("/", &bearer(&good)).await.body(), "Jwt is expired");
    let stats = ["allowed", "denied"].map(|s| bench.stat(&format!("http.in.jwt_authn.{s}")));
    assert_eq!(stats, [5, 10]);
}

// Expected: recorded from Envoy 1.40.
#[tokio::test(flavor = "local", start_paused = true)]
async fn requirements_combine_as_their_names_say() {
    let rule = |path: &str, requires: &str| format!("{{match: {{prefix: /{path}}}, requires: {{{requires}}}}}, ");
    let list = |kind: &str, second: &str| format!("{kind}: {{requirements: [{{provider_name: a}}, {{{second}}}]}}");
    let rules = [
        rule("any", &list("requires_any", "provider_name: b")),
        rule("all", &list("requires_all", "provider_name: b")),
        rule("miss", "allow_missing: {}"),
        rule("fail", "allow_missing_or_failed: {}"),
        rule("omiss", &list("requires_any", "allow_missing: {}")),
        rule("ofail", &list("requires_any", "allow_missing_or_failed: {}")),
    ];
    let providers = "a: {issuer: a, LOCAL, forward: true}, b: {issuer: b, LOCAL, forward: true}";
    let bench = Bench::with(&manager(providers, &rules.concat(), ""));
    let of = |issuer: &str, exp: u64| bearer(&token(SECRET, &json!({"iss": issuer, "exp": exp})));
    tokio::time::advance(Duration::from_secs(1_000)).await;
    let tokens = [
        ("none", String::new()),
        ("a", of("a", 2_000)),
        ("b", of("b", 2_000)),
        ("c", of("c", 2_000)),
        ("junk", bearer("junk")),
        ("a expired", of("a", 5)),
        ("b expired", of("b", 5)),
    ];
    let (missing, issuer, expired) = ("Jwt is missing", "Jwt issuer is not configured", "Jwt is expired");
    let form = super::Status::BadFormat.text();
    for (path, texts) in [
        ("/any", [missing, "ok", "ok", issuer, form, expired, expired]),
        ("/all", [missing, issuer, issuer, issuer, form, expired, issuer]),
        ("/miss", ["ok", "ok", "ok", issuer, form, expired, expired]),
        ("/fail", ["ok"; 7]),
        ("/omiss", ["ok", "ok", issuer, issuer, form, expired, issuer]),
        ("/ofail", ["ok"; 7]),
    ] {
        for ((what, fields), text) in tokens.iter().zip(texts) {
            assert_eq!(bench.get(path, fields).await.body(), text, "{path}, token {what}");
        }
    }
}

fn answer(status: u16, body: String) -> Result<AsyncResponse, AsyncFailure> {
    Ok(AsyncResponse { head: ResponseHead::new(status), body: body.into(), trailers: None })
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn published_keys_are_fetched_kept_and_fetched_again_when_they_are_old() {
    let now = Rc::new(RefCell::new(answer(503, jwks(SECRET))));
    let said = now.clone();
    let server = Scripted::new(move |_| said.borrow().clone());
    let provider = "a: {issuer: a, forward: true, remote_jwks: {http_uri: {uri: 'https://keys.test/jwks?x', cluster: k, \
                    timeout: 1s}, cache_duration: 60s}}";
    let rules = "{match: {prefix: /}, requires: {provider_name: a}}";
    let bench = Bench::calling(&manager(provider, rules, ""), Some(server.clone()));
    let good = bearer(&token(SECRET, &json!({"iss": "a"})));
    let away = "Jwks remote fetch is failed";
    let broken = [answer(503, jwks(SECRET)), answer(200, "junk".into()), Err(AsyncFailure::Timeout)];
    for said in broken {
        *now.borrow_mut() = said;
        assert_eq!(bench.get("/", &good).await.body(), away);
    }
    *now.borrow_mut() = answer(200, jwks(OTHER));
    assert_eq!(bench.get("/", &good).await.body(), "Jwt verification fails");
    // Rotated, but what is known is good for a minute.
    *now.borrow_mut() = answer(200, jwks(SECRET));
    assert_eq!(bench.get("/", &good).await.body(), "Jwt verification fails");
    assert_eq!(server.calls.borrow().len(), 4);
    tokio::time::advance(Duration::from_secs(60)).await;
    // Two at once share one fetch.
    let (one, two) = tokio::join!(bench.get("/", &good), bench.get("/", ""));
    assert_eq!((one.body(), two.body()), ("ok", "Jwt is missing"));
    assert_eq!(bench.get("/", &good).await.body(), "ok");
    let calls = server.calls.borrow();
    assert_eq!((calls.len(), &*calls[0].0), (5, "k"));
    let head = &calls[0].1.head;
    assert_eq!((head.path(), head.authority()), (Some(&b"/jwks?x"[..]), Some(&b"keys.test"[..])));
    let stats = ["jwks_fetch_failed", "jwks_fetch_success"].map(|s| bench.stat(&format!("http.in.jwt_authn.{s}")));
    assert_eq!(stats, [3, 2]);
}

// As Envoy 1.40, with a `set_filter_state` before the filter: a value that is not listed, or none, requires nothing.
#[test]
fn what_is_required_may_depend_on_what_filters_before_said() {
    use super::{FilterState, StateRules, pb};
    use pb::jwt_requirement::RequiresType;
    let requires = |requires_type| pb::JwtRequirement { requires_type: Some(requires_type) };
    let listed = [
        ("one".to_owned(), requires(RequiresType::ProviderName("p".into()))),
        ("two".to_owned(), requires(RequiresType::AllowMissing(Default::default()))),
    ];
    let rule = pb::FilterStateRule { name: "tenant".into(), requires: listed.into() };
    let rules = StateRules::new(&rule, &[("p".to_owned(), 0)].into()).unwrap();
    let state = |value: &str| {
        let mut state = FilterState::default();
        state.set("tenant", std::sync::Arc::new(value.to_owned()));
        state
    };
    let (none, one, two) = (FilterState::default(), state("one"), state("two"));
    let found = |stream: &FilterState, connection| rules.find(stream, connection).map(std::ptr::from_ref);
    assert!(found(&one, None).is_some() && found(&two, None).is_some() && found(&one, None) != found(&two, None));
    assert_eq!((found(&state("three"), None), found(&none, None)), (None, None));
    assert_eq!(found(&none, Some(&one)), found(&one, None), "the connection's, where the stream has none");
    assert_eq!(found(&two, Some(&one)), found(&two, None));
    let wrong = StateRules::new(&rule, &Default::default()).err().unwrap().to_string();
    assert!(wrong.starts_with("requires[one]"), "{wrong}");
}
