//! Routes as messages, requests as heads. Expected values are those of Envoy 1.40 (oracle
//! scenarios `router_*`, `val_references`, or runs of their own where a comment says so).

use nuncio_api::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use nuncio_api::pb::envoy::config::core::v3::substitution_format_string::Format as BodyFormat;
use nuncio_api::pb::envoy::config::core::v3::{
    DataSource, HeaderValue, HeaderValueOption, SubstitutionFormatString, data_source,
};
use nuncio_api::pb::envoy::config::route::v3::redirect_action::{PathRewriteSpecifier, SchemeRewriteSpecifier};
use nuncio_api::pb::envoy::config::route::v3::route_action::HostRewriteSpecifier as HostRewriteProto;
use nuncio_api::pb::envoy::config::route::v3::route_match::PathSpecifier;
use nuncio_api::pb::envoy::config::route::v3::{DirectResponseAction, RedirectAction, WeightedCluster};
use nuncio_api::pb::envoy::r#type::matcher::v3::{RegexMatchAndSubstitute, RegexMatcher};
use nuncio_api::pb::google::protobuf::{BoolValue, UInt32Value};
use nuncio_core::access_log::LogContext;
use nuncio_core::http::{LocalReply, ResponseHead, RouteView};
use nuncio_core::runtime::NoRuntime;
use nuncio_core::stats::{Store, lists};
use nuncio_core::stream_info::StreamInfo;
use proptest::prelude::*;

use super::super::mutations::Scratch;
use super::*;

mod scan;

fn context() -> BuildContext<'static> {
    BuildContext {
        has_cluster: &|name| name != "nope",
        validate_clusters: true,
        filter_config: &|_, _| Ok(None),
        scope: &|name| Store::new().scope(&lists::vhost::SCOPE, &name.into()),
    }
}

fn matching(random: u64) -> MatchContext<'static> {
    MatchContext { random, runtime: &NoRuntime, connection: None, info: None }
}

fn build(hosts: Vec<pb::VirtualHost>) -> Result<RouteConfig, Vec<ConfigError>> {
    RouteConfig::from_proto(&RouteConfiguration { virtual_hosts: hosts, ..Default::default() }, &context())
}

fn host(routes: Vec<pb::Route>) -> pb::VirtualHost {
    pb::VirtualHost { name: "v".into(), domains: vec!["*".into()], routes, ..Default::default() }
}

fn config(routes: Vec<pb::Route>) -> RouteConfig {
    build(vec![host(routes)]).unwrap()
}

fn route(path: PathSpecifier, action: ActionProto) -> pb::Route {
    let r#match = Some(pb::RouteMatch { path_specifier: Some(path), ..Default::default() });
    pb::Route { r#match, action: Some(action), ..Default::default() }
}

fn prefix(path: &str) -> PathSpecifier {
    PathSpecifier::Prefix(path.into())
}

fn regex(pattern: &str) -> RegexMatcher {
    RegexMatcher { regex: pattern.into(), ..Default::default() }
}

fn substitute(pattern: &str, substitution: &str) -> RegexMatchAndSubstitute {
    RegexMatchAndSubstitute { pattern: Some(regex(pattern)), substitution: substitution.into() }
}

fn to_cluster(name: &str) -> ActionProto {
    ActionProto::Route(RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(name.into())),
        ..Default::default()
    })
}

fn forward(change: impl FnOnce(&mut RouteAction)) -> ActionProto {
    let ActionProto::Route(mut action) = to_cluster("a") else { unreachable!() };
    change(&mut action);
    ActionProto::Route(action)
}

fn info() -> StreamInfo {
    StreamInfo::new(std::time::UNIX_EPOCH, tokio::time::Instant::now())
}

fn get(path: &str, fields: &[(&str, &str)]) -> RequestHead {
    let mut head = RequestHead::default();
    let defaults = [
        (":method", "GET"),
        (":path", path),
        (":authority", "web.test"),
        (":scheme", "http"),
        ("x-forwarded-proto", "http"),
    ];
    for (name, value) in defaults.iter().chain(fields) {
        head.headers.set_given(name, value);
    }
    head
}

fn cluster_of(config: &RouteConfig, head: &RequestHead) -> Option<String> {
    config.find(head, &matching(0))?.cluster(head).map(str::to_owned)
}

fn location(reply: &LocalReply) -> String {
    let value = &reply.headers.iter().find(|(n, _)| n == "location").unwrap().1;
    String::from_utf8(value.to_vec()).unwrap()
}

#[test]
fn the_first_route_that_matches_is_taken_whatever_its_kind() {
    let insensitive = pb::RouteMatch {
        path_specifier: Some(PathSpecifier::Path("/EXACT2".into())),
        case_sensitive: Some(BoolValue { value: false }),
        ..Default::default()
    };
    let config = config(vec![
        route(PathSpecifier::Path("/exact".into()), to_cluster("a")),
        pb::Route { r#match: Some(insensitive), action: Some(to_cluster("a")), ..Default::default() },
        route(PathSpecifier::SafeRegex(regex("/item/[0-9]+")), to_cluster("a")),
        route(PathSpecifier::PathSeparatedPrefix("/sep".into()), to_cluster("a")),
        route(prefix("/api/v2"), to_cluster("b")),
        route(prefix("/api"), to_cluster("a")),
        route(prefix("/api/v2/never"), to_cluster("c")),
        route(PathSpecifier::ConnectMatcher(Default::default()), to_cluster("d")),
        route(prefix("/unused"), to_cluster("e")),
    ]);
    for (path, expected) in [
        ("/exact", "a"),
        ("/exact/", ""),
        ("/exact?q=1", "a"),
        ("/EXACT", ""),
        ("/exact2", "a"),
        ("/item/12", "a"),
        ("/item/12?x=y", "a"),
        ("/item/12a", ""),
        ("/x/item/12", ""),
        ("/sep", "a"),
        ("/sep/", "a"),
        ("/sep/x", "a"),
        ("/sepx", ""),
        ("/sep?a=b", "a"),
        ("/api", "a"),
        ("/apiary", "a"),
        ("/api/v2/x", "b"),
        ("/api/v2/never", "b"),
        ("/", ""),
    ] {
        assert_eq!(cluster_of(&config, &get(path, &[])).unwrap_or_default(), expected, "{path}");
    }
    let mut connect = get("/", &[(":method", "CONNECT")]);
    connect.headers.remove(":path");
    assert_eq!(cluster_of(&config, &connect).as_deref(), Some("d"));
}

#[test]
fn redirects_write_envoys_locations() {
    let redirect = |change: fn(&mut RedirectAction)| {
        let mut action = RedirectAction::default();
        change(&mut action);
        ActionProto::Redirect(action)
    };
    let config = config(vec![
        route(prefix("/host"), redirect(|r| r.host_redirect = "new.test".into())),
        route(prefix("/port"), redirect(|r| r.port_redirect = 8443)),
        route(
            prefix("/https"),
            redirect(|r| r.scheme_rewrite_specifier = Some(SchemeRewriteSpecifier::HttpsRedirect(true))),
        ),
        route(
            prefix("/path"),
            redirect(|r| r.path_rewrite_specifier = Some(PathRewriteSpecifier::PathRedirect("/moved".into()))),
        ),
        route(
            prefix("/qpath"),
            redirect(|r| {
                r.path_rewrite_specifier = Some(PathRewriteSpecifier::PathRedirect("/moved?fixed=1".into()));
                r.strip_query = true;
            }),
        ),
        route(
            prefix("/pre/"),
            redirect(|r| r.path_rewrite_specifier = Some(PathRewriteSpecifier::PrefixRewrite("/post/".into()))),
        ),
        route(
            prefix("/re/"),
            redirect(|r| {
                let rewrite = substitute("^/re/([a-z]+)/(.*)$", r"/\2/\1");
                r.path_rewrite_specifier = Some(PathRewriteSpecifier::RegexRewrite(rewrite));
            }),
        ),
        route(
            prefix("/bare"),
            redirect(|r| {
                r.path_rewrite_specifier = Some(PathRewriteSpecifier::PrefixRewrite("new".into()));
                r.strip_query = true;
            }),
        ),
        route(
            prefix("/all"),
            redirect(|r| {
                r.scheme_rewrite_specifier = Some(SchemeRewriteSpecifier::SchemeRedirect("https".into()));
                r.host_redirect = "h:99".into();
                r.port_redirect = 443;
                r.path_rewrite_specifier = Some(PathRewriteSpecifier::PathRedirect("nop".into()));
            }),
        ),
    ]);
    for (path, authority, expected, path_after) in [
        ("/host?a=b", "web.test", "http://new.test/host?a=b", "/host?a=b"),
        ("/port", "web.test", "http://web.test:8443/port", "/port"),
        ("/https", "web.test:80", "https://web.test/https", "/https"),
        ("/https", "web.test:8080", "https://web.test:8080/https", "/https"),
        ("/https", "[::1]:80", "https://[::1]/https", "/https"),
        ("/https", "h:443", "https://h:443/https", "/https"),
        ("/path?keep=1", "web.test", "http://web.test/moved?keep=1", "/path?keep=1"),
        ("/qpath?drop=1", "web.test", "http://web.test/moved?fixed=1", "/qpath?drop=1"),
        ("/pre/a/b?c", "web.test", "http://web.test/post/a/b?c", "/post/a/b?c"),
        ("/re/abc/rest?q=1", "web.test", "http://web.test/rest/abc?q=1", "/rest/abc?q=1"),
        ("/bare/p?q=2", "web.test", "http://web.test/new/p", "new/p?q=2"),
        ("/all?x=y", "web.test", "https://h:99:443/nop?x=y", "/all?x=y"),
    ] {
        let mut head = get(path, &[(":authority", authority)]);
        let found = config.find(&head, &matching(0)).unwrap();
        let reply = found.local_reply(&mut head, &LogContext::new(&info()), true, &mut Scratch::default()).unwrap();
        assert_eq!((reply.status, location(&reply).as_str(), &*reply.details), (301, expected, "direct_response"));
        assert_eq!(head.path(), Some(path_after.as_bytes()), "{path}");
    }
}

#[test]
fn plaintext_is_sent_to_https_where_tls_is_required() {
    let secure = pb::VirtualHost {
        require_tls: TlsRequirementType::All.into(),
        ..host(vec![route(prefix("/"), to_cluster("a"))])
    };
    let external = pb::VirtualHost {
        domains: vec!["ext".into()],
        require_tls: TlsRequirementType::ExternalOnly.into(),
        ..secure.clone()
    };
    let config = build(vec![secure, external]).unwrap();
    for authority in ["web.test", "web.test:8080"] {
        let mut head = get("/a?b", &[(":authority", authority)]);
        let reply = config.find(&head, &matching(0)).unwrap().local_reply(
            &mut head,
            &LogContext::new(&info()),
            true,
            &mut Scratch::default(),
        );
        assert_eq!(location(&reply.unwrap()), "https://web.test/a?b");
    }
    let over_tls = get("/a?b", &[("x-forwarded-proto", "https")]);
    assert_eq!(cluster_of(&config, &over_tls).as_deref(), Some("a"));
    let internal = get("/", &[(":authority", "ext"), ("x-envoy-internal", "true")]);
    assert_eq!(cluster_of(&config, &internal).as_deref(), Some("a"));
    assert_eq!(cluster_of(&config, &get("/", &[(":authority", "ext")])), None);
}

#[test]
fn direct_responses_keep_their_body_and_created_ones_have_a_location() {
    let inline = |text: &str| DataSource {
        specifier: Some(data_source::Specifier::InlineString(text.into())),
        ..Default::default()
    };
    let direct = |status, body: &str| {
        ActionProto::DirectResponse(DirectResponseAction { status, body: Some(inline(body)), body_format: None })
    };
    let config = config(vec![route(prefix("/d201"), direct(201, "")), route(prefix("/"), direct(418, "hello"))]);
    let mut head = get("/d201/x?y", &[]);
    let reply = config
        .find(&head, &matching(0))
        .unwrap()
        .local_reply(&mut head, &LogContext::new(&info()), true, &mut Scratch::default())
        .unwrap();
    assert_eq!((reply.status, location(&reply).as_str()), (201, "http://web.test/d201/x?y"));
    let mut head = get("/", &[]);
    let reply = config
        .find(&head, &matching(0))
        .unwrap()
        .local_reply(&mut head, &LogContext::new(&info()), true, &mut Scratch::default())
        .unwrap();
    assert_eq!((reply.status, &reply.body[..], reply.headers.len()), (418, &b"hello"[..], 0));

    let long = "x".repeat(4097);
    let errors = build(vec![host(vec![route(prefix("/"), direct(200, &long))])]).err().unwrap();
    assert_eq!(errors[0].path, "virtual_hosts[0].routes[0].direct_response.body");
    assert_eq!(errors[0].reason, "response body size is 4097 bytes; maximum is 4096");
}

fn rewritten(action: ActionProto, path: PathSpecifier, head: &mut RequestHead) -> Vec<(String, String)> {
    let config = config(vec![route(path, action)]);
    let before = head.headers.clone();
    let found = config.find(head, &matching(0)).unwrap().clone();
    found.finalize_request(head, &LogContext::new(&info()), true, &mut Scratch::default());
    let text = |v: &[u8]| String::from_utf8_lossy(v).into_owned();
    head.headers
        .iter()
        .filter(|(n, v)| before.get(std::str::from_utf8(n).unwrap()) != Some(v))
        .map(|(n, v)| (text(n), text(v)))
        .collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn rewrites_keep_the_query_and_the_originals() {
    let literal = forward(|a| {
        a.prefix_rewrite = "/x".into();
        a.host_rewrite_specifier = Some(HostRewriteProto::HostRewriteLiteral("new.host".into()));
        a.append_x_forwarded_host = true;
    });
    assert_eq!(
        rewritten(literal, prefix("/pre"), &mut get("/pre/a?b", &[])),
        pairs(&[
            (":path", "/x/a?b"),
            (":authority", "new.host"),
            ("x-forwarded-host", "web.test"),
            ("x-envoy-original-host", "web.test"),
            ("x-envoy-original-path", "/pre/a?b"),
        ])
    );
    let regexes = forward(|a| {
        a.regex_rewrite = Some(substitute("/hp/", "/zz/"));
        let host = substitute("^/hp/([a-z]+).*$", r"\1.example");
        a.host_rewrite_specifier = Some(HostRewriteProto::HostRewritePathRegex(host));
    });
    assert_eq!(
        rewritten(regexes, prefix("/hp"), &mut get("/hp/abc/hp/d?/hp/", &[])),
        pairs(&[
            (":path", "/zz/abc/zz/d?/hp/"),
            (":authority", "abc.example"),
            ("x-envoy-original-host", "web.test"),
            ("x-envoy-original-path", "/hp/abc/hp/d?/hp/"),
        ])
    );
    // Nothing is left: Envoy 1.40 leaves such a path as it is, with and without a query.
    for path in ["/re/", "/re/?q"] {
        let none = forward(|a| a.regex_rewrite = Some(substitute("^/re/", "")));
        assert_eq!(rewritten(none, prefix("/re"), &mut get(path, &[])), pairs(&[]), "{path}");
    }
    let whole = || forward(|a| a.prefix_rewrite = "/all".into());
    let everything = pairs(&[(":path", "/all?q"), ("x-envoy-original-path", "/sr/y?q")]);
    assert_eq!(rewritten(whole(), PathSpecifier::SafeRegex(regex("/sr/.*")), &mut get("/sr/y?q", &[])), everything);
    assert_eq!(rewritten(whole(), PathSpecifier::Path("/sr/y".into()), &mut get("/sr/y?q", &[])), everything);
}

#[test]
fn formats_make_paths_and_hosts_but_never_two_words_in_a_request_line() {
    let path = |text: &str| forward(|a| a.path_rewrite = text.into());
    let rewrite = |text: &str, value: &str| {
        let mut head = get("/pr/a?q", &[("x-c", value)]);
        rewritten(path(text), prefix("/pr"), &mut head);
        String::from_utf8(head.path().unwrap().to_vec()).unwrap()
    };
    assert_eq!(rewrite("/np%REQ(x-c)%", "/z"), "/np/z?q");
    assert_eq!(rewrite("/np%REQ(x-missing)%", ""), "/np?q");
    assert_eq!(rewrite("%REQ(x-missing)%", ""), "/pr/a?q");
    // Envoy sends the blank as it is.
    assert_eq!(rewrite("/np%REQ(x-c)%", "c d#f"), "/npc%20d%23f?q");
    let host = |a: &mut RouteAction| {
        a.host_rewrite_specifier = Some(HostRewriteProto::HostRewrite("prefix-%REQ(x-h)%".into()));
    };
    let missing = pairs(&[(":authority", "prefix--"), ("x-envoy-original-host", "web.test")]);
    assert_eq!(rewritten(forward(host), prefix("/"), &mut get("/", &[])), missing);
    let errors = build(vec![host_of(path("%NOPE%"))]).err().unwrap();
    assert_eq!(errors[0].reason, "Failed to create path rewrite formatter: Not supported field in StreamInfo: NOPE");
}

fn host_of(action: ActionProto) -> pb::VirtualHost {
    host(vec![route(prefix("/"), action)])
}

#[test]
fn redirects_and_bodies_are_formatted_anew_for_each_request() {
    let redirect = |text: &str, strip_query| {
        ActionProto::Redirect(RedirectAction {
            path_rewrite_specifier: Some(PathRewriteSpecifier::PathRewrite(text.into())),
            strip_query,
            ..Default::default()
        })
    };
    let send = |action: ActionProto, path: &str, value: &str| {
        let config = build(vec![host_of(action)]).unwrap();
        let mut head = get(path, &[("x-c", value)]);
        let route = config.find(&head, &matching(0)).unwrap();
        route.local_reply(&mut head, &LogContext::new(&info()), true, &mut Scratch::default()).unwrap()
    };
    let to = |text, strip, value| location(&send(redirect(text, strip), "/a?b", value));
    assert_eq!(to("/new/%REQ(x-c)%", true, "v2"), "http://web.test/new/v2");
    assert_eq!(to("/new/%REQ(x-c)%", true, "v2?y"), "http://web.test/new/v2?y");
    assert_eq!(to("%REQ(x-c)%", false, "v2"), "http://web.test/v2?b");
    assert_eq!(to("%REQ(x-none)%", false, ""), "http://web.test/a?b");

    let text = DataSource {
        specifier: Some(data_source::Specifier::InlineString("[%LOCAL_REPLY_BODY%] %REQ(:path)% %REQ(nope)%".into())),
        ..Default::default()
    };
    let body_format =
        SubstitutionFormatString { format: Some(BodyFormat::TextFormatSource(text)), ..Default::default() };
    let body =
        DataSource { specifier: Some(data_source::Specifier::InlineString("inner".into())), ..Default::default() };
    let action = DirectResponseAction { status: 200, body: Some(body), body_format: Some(body_format) };
    let reply = send(ActionProto::DirectResponse(action), "/bf", "");
    assert_eq!(&reply.body[..], b"[inner] /bf -");
    assert_eq!(reply.headers, [("content-type".into(), "text/plain".into())]);
}

#[test]
fn a_header_may_stand_for_the_host() {
    let named = |domain: &str, cluster: &str| pb::VirtualHost {
        domains: vec![domain.into()],
        ..host(vec![route(prefix("/"), to_cluster(cluster))])
    };
    let message = RouteConfiguration {
        virtual_hosts: vec![named("zz", "z"), named("*", "any")],
        vhost_header: "X-VH".into(),
        ..Default::default()
    };
    let config = RouteConfig::from_proto(&message, &context()).unwrap();
    assert_eq!(cluster_of(&config, &get("/", &[("x-vh", "ZZ")])).as_deref(), Some("z"));
    assert_eq!(cluster_of(&config, &get("/", &[("x-vh", "q")])).as_deref(), Some("any"));
    assert_eq!(cluster_of(&config, &get("/", &[(":authority", "zz")])), None);
}

#[test]
fn the_host_from_a_header_is_appended_once_and_only_if_it_is_there() {
    let action = || {
        forward(|a| {
            a.host_rewrite_specifier = Some(HostRewriteProto::HostRewriteHeader("X-H".into()));
            a.append_x_forwarded_host = true;
        })
    };
    assert_eq!(rewritten(action(), prefix("/"), &mut get("/", &[])), []);
    assert_eq!(
        rewritten(action(), prefix("/"), &mut get("/", &[("x-h", "hdr.host"), ("x-forwarded-host", "f.host")])),
        pairs(&[
            (":authority", "hdr.host"),
            ("x-forwarded-host", "f.host,web.test"),
            ("x-envoy-original-host", "web.test"),
        ])
    );
    assert_eq!(
        rewritten(action(), prefix("/"), &mut get("/", &[("x-h", "n.h"), ("x-forwarded-host", "web.test")])),
        pairs(&[(":authority", "n.h"), ("x-envoy-original-host", "web.test")])
    );
}

#[test]
fn weighted_clusters_split_by_weight_and_the_entry_rewrites_the_host_first() {
    let weight = |name: &str, value| ClusterWeight {
        name: name.into(),
        weight: Some(UInt32Value { value }),
        host_rewrite_specifier: Some(HostRewriteSpecifier::HostRewriteLiteral(format!("{name}.host"))),
        ..Default::default()
    };
    // Envoy 1.40 ignores the deprecated total_weight.
    let weighted =
        WeightedCluster { clusters: vec![weight("a", 3), weight("z", 0), weight("b", 1)], ..Default::default() };
    let action = |w: WeightedCluster| {
        forward(|a| {
            a.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(w));
            a.host_rewrite_specifier = Some(HostRewriteProto::HostRewriteLiteral("route.host".into()));
        })
    };
    let config = config(vec![route(prefix("/"), action(weighted.clone()))]);
    let head = get("/", &[]);
    let picked: Vec<_> = (0..8).map(|r| config.find(&head, &matching(r)).unwrap().cluster_name().unwrap()).collect();
    assert_eq!(picked, ["a", "a", "a", "b", "a", "a", "a", "b"]);
    let mut head = get("/", &[]);
    config.find(&head, &matching(0)).unwrap().finalize_request(
        &mut head,
        &LogContext::new(&info()),
        true,
        &mut Scratch::default(),
    );
    assert_eq!(head.authority(), Some(&b"route.host"[..]));
    assert_eq!(head.headers.get("x-envoy-original-host"), Some(&b"a.host"[..]));

    let none = WeightedCluster { clusters: vec![weight("a", 0)], ..weighted };
    let errors = build(vec![host(vec![route(prefix("/"), action(none))])]).err().unwrap();
    assert_eq!(errors[0].reason, "Sum of weights in the weighted_cluster must be greater than 0.");
}

#[test]
fn a_cluster_named_by_a_header_is_known_only_from_the_request() {
    let action = forward(|a| a.cluster_specifier = Some(ClusterSpecifier::ClusterHeader("X-C".into())));
    let config = config(vec![route(prefix("/"), action)]);
    assert_eq!(cluster_of(&config, &get("/", &[("x-c", "any")])).as_deref(), Some("any"));
    assert_eq!(cluster_of(&config, &get("/", &[])).as_deref(), Some(""));
    assert_eq!(config.find(&get("/", &[]), &matching(0)).unwrap().cluster_name(), None);
}

#[test]
fn unknown_clusters_are_refused_unless_told_otherwise() {
    let hosts = |action| vec![host(vec![route(prefix("/"), action)])];
    let errors = build(hosts(to_cluster("nope"))).err().unwrap();
    assert_eq!(errors[0].to_string(), "virtual_hosts[0].routes[0].route.cluster: route: unknown cluster 'nope'");
    let unchecked = RouteConfiguration {
        virtual_hosts: hosts(to_cluster("nope")),
        validate_clusters: Some(BoolValue { value: false }),
        ..Default::default()
    };
    assert!(RouteConfig::from_proto(&unchecked, &context()).is_ok());
    let mirror = pb::route_action::RequestMirrorPolicy { cluster: "nope".into(), ..Default::default() };
    let errors = build(hosts(forward(|a| a.request_mirror_policies.push(mirror)))).err().unwrap();
    assert_eq!(errors[0].reason, "route: unknown shadow cluster 'nope'");
}

#[test]
fn every_mistake_is_reported_with_its_place() {
    let bad = |pattern: &str| route(PathSpecifier::SafeRegex(regex(pattern)), to_cluster("a"));
    let first = host(vec![bad("("), route(prefix("/"), to_cluster("nope")), route(prefix("/"), to_cluster("a"))]);
    let second = host(vec![bad("[")]);
    let errors = build(vec![first, second]).err().unwrap();
    let paths: Vec<_> = errors.iter().map(|e| e.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "virtual_hosts[0].routes[0].match.safe_regex.regex",
            "virtual_hosts[0].routes[1].route.cluster",
            "virtual_hosts[1].domains[0]",
        ]
    );
}

#[test]
fn equal_policies_are_one_object_and_a_simple_route_is_small() {
    let config = config(vec![route(prefix("/a"), to_cluster("a")), route(prefix("/b"), to_cluster("b"))]);
    let find = |path| config.find(&get(path, &[]), &matching(0)).unwrap().policy().unwrap().clone();
    assert!(Arc::ptr_eq(&find("/a"), &find("/b")));
    assert!(size_of::<Entry>() + size_of::<Route>() + 16 <= 144, "{} {}", size_of::<Entry>(), size_of::<Route>());
}

fn add(key: &str, value: &str, action: HeaderAppendAction) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: key.into(), value: value.into(), ..Default::default() }),
        append_action: action.into(),
        ..Default::default()
    }
}

/// The levels of `router_header_formatters`, all saying something of one header.
fn leveled(action: HeaderAppendAction, most_specific_header_mutations_wins: bool) -> RouteConfig {
    let level = |value: &str| vec![add("x-lvl", value, action)];
    let weighted = ClusterWeight {
        name: "a".into(),
        weight: Some(UInt32Value { value: 1 }),
        request_headers_to_add: level("weighted"),
        response_headers_to_add: level("weighted"),
        ..Default::default()
    };
    let clusters = WeightedCluster { clusters: vec![weighted], ..Default::default() };
    let route = pb::Route {
        request_headers_to_add: level("route"),
        request_headers_to_remove: vec!["x-rm".into()],
        response_headers_to_add: level("route"),
        ..route(prefix("/"), forward(|a| a.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(clusters))))
    };
    let host = pb::VirtualHost {
        request_headers_to_add: level("vhost"),
        response_headers_to_add: level("vhost"),
        ..host(vec![route])
    };
    let message = RouteConfiguration {
        virtual_hosts: vec![host],
        request_headers_to_add: level("config"),
        response_headers_to_add: level("config"),
        most_specific_header_mutations_wins,
        ..Default::default()
    };
    RouteConfig::from_proto(&message, &context()).unwrap()
}

#[test]
fn headers_change_from_the_route_outwards_unless_the_most_specific_wins() {
    use HeaderAppendAction::{AppendIfExistsOrAdd, OverwriteIfExistsOrAdd};
    for (action, specific, expected) in [
        (AppendIfExistsOrAdd, false, "client weighted route vhost config"),
        (AppendIfExistsOrAdd, true, "client weighted config vhost route"),
        (OverwriteIfExistsOrAdd, false, "config"),
        (OverwriteIfExistsOrAdd, true, "route"),
    ] {
        let config = leveled(action, specific);
        let mut head = get("/", &[("x-lvl", "client"), ("x-rm", "1")]);
        let route = config.find(&head, &matching(0)).unwrap().clone();
        let (info, mut scratch) = (info(), Scratch::default());
        let context = LogContext::new(&info);
        route.finalize_request(&mut head, &context, true, &mut scratch);
        let all: Vec<_> = head.headers.get_all("x-lvl").map(|v| String::from_utf8_lossy(v)).collect();
        assert_eq!(all.join(" "), expected);
        assert!(!head.headers.contains("x-rm"));
        let mut response = ResponseHead::new(200);
        response.headers.append("x-lvl", "client");
        route.finalize_response(&mut response, &context, &mut scratch);
        let all: Vec<_> = response.headers.get_all("x-lvl").map(|v| String::from_utf8_lossy(v)).collect();
        assert_eq!(all.join(" "), expected);
    }
}

#[test]
fn a_bad_format_is_named_by_its_field() {
    let bad = vec![add("x", "%NOPE%", HeaderAppendAction::AppendIfExistsOrAdd)];
    let route = pb::Route { response_headers_to_add: bad, ..route(prefix("/"), to_cluster("a")) };
    let errors = build(vec![host(vec![route])]).err().unwrap();
    assert_eq!(errors[0].path, "virtual_hosts[0].routes[0].response_headers_to_add[0].header.value");
}

fn any_path() -> impl Strategy<Value = String> {
    "/[ab]{0,2}(/[abA]{0,2}){0,2}"
}

fn any_route() -> impl Strategy<Value = pb::Route> {
    let headers = prop_oneof![4 => Just(false), 1 => Just(true)];
    let kind = prop_oneof![3 => Just(0), 3 => Just(1), 2 => Just(2), 1 => Just(3), 1 => Just(4), 1 => Just(5)];
    (any_path(), kind, headers).prop_map(|(path, kind, conditional)| {
        let path = match kind {
            0 | 4 => PathSpecifier::Prefix(path),
            1 | 5 => PathSpecifier::Path(path),
            2 => PathSpecifier::PathSeparatedPrefix(path),
            _ => PathSpecifier::SafeRegex(regex(&format!("{path}.*"))),
        };
        let mut r#match = pb::RouteMatch { path_specifier: Some(path), ..Default::default() };
        if kind > 3 {
            r#match.case_sensitive = Some(BoolValue { value: false });
        }
        if conditional {
            r#match.headers = vec![pb::HeaderMatcher { name: "x-c".into(), ..Default::default() }];
        }
        pb::Route { r#match: Some(r#match), action: Some(to_cluster("a")), ..Default::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_index_finds_the_route_that_a_scan_in_order_finds(
        routes in prop::collection::vec(any_route(), 1..60),
        paths in prop::collection::vec((any_path(), "(\\?[ab/]{0,3})?", any::<bool>()), 20),
    ) {
        let routes: Vec<_> = routes
            .into_iter()
            .enumerate()
            .map(|(i, r)| pb::Route { name: i.to_string(), ..r })
            .collect();
        let config = config(routes);
        let in_order = &config.hosts[0].routes;
        for (path, query, with_header) in paths {
            let fields: &[_] = if with_header { &[("x-c", "1")] } else { &[] };
            let head = get(&format!("{path}{query}"), fields);
            let expected = in_order.iter().position(|e| e.matches.matches(path.as_bytes(), &head, &matching(0)));
            let found = config.find(&head, &matching(0)).map(|r| r.name().parse::<usize>().unwrap());
            prop_assert_eq!(found, expected, "{}", path);
        }
    }
}
