//! What large input may cost: time that grows with it and no faster, whatever the table looks like.

use nuncio::extensions;
use nuncio::server::bootstrap;
use tokio::time::{Duration, Instant};

use crate::ask;
use crate::running::{RunningProxy, options};
use crate::stage::{Upstream, configuration};

/// Without optimisation, on a machine that does other things too. With a cost that grows by the square, or with a
/// regular expression that tries again and again, these requests would take minutes.
const LONG: Duration = Duration::from_secs(5);

const ROUTES: &str = "routes: [{match: {prefix: \"/\"}, route: {cluster: c, timeout: 0s}}]";

/// A proxy with these routes before the one that takes all, and these fields of the virtual host.
fn proxy(upstream: &Upstream, routes: &str, host: &str) -> RunningProxy {
    let all = format!(
        "{host}\n              routes:{routes}\n              - {{match: {{prefix: \"/\"}}, route: {{cluster: c}}}}"
    );
    RunningProxy::start(&configuration(upstream.address, "", "").replace(ROUTES, &all), 1)
}

async fn timed(proxy: &RunningProxy, path: &str) -> (String, Duration) {
    let began = Instant::now();
    let answer = ask(proxy, &format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).await;
    (answer, began.elapsed())
}

#[tokio::test(flavor = "local")]
async fn paths_of_sixty_kilobytes_pass_tables_that_were_made_against_them() {
    let upstream = Upstream::start();
    let mut routes = String::new();
    for n in 0..100 {
        // Nested repetitions, near misses of long prefixes, templates and case-insensitive ones.
        for matcher in [
            format!("safe_regex: {{regex: \"(/?(a+)+)+b{n}\"}}"),
            format!("safe_regex: {{regex: \".*.*.*x{n}$\"}}"),
            format!("prefix: \"/{}{n}\"", "a".repeat(200)),
            format!("prefix: \"/{}{n}\", case_sensitive: false", "A".repeat(200)),
        ] {
            routes += &format!("\n              - {{match: {{{matcher}}}, direct_response: {{status: 418}}}}");
        }
    }
    let proxy = proxy(&upstream, &routes, "");
    for path in [
        format!("/{}", "a".repeat(60_000)),
        "/a".repeat(30_000),
        format!("/{}?{}", "a".repeat(30_000), "a=".repeat(14_000)),
    ] {
        let (answer, took) = timed(&proxy, &path).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(took < LONG, "{took:?}");
        assert_eq!(upstream.take()[0].target, path);
    }
    let (answer, _) = timed(&proxy, &format!("/{}", "a".repeat(70_000))).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test(flavor = "local")]
async fn a_hundred_query_parameters_meet_a_hundred_matchers() {
    let upstream = Upstream::start();
    let mut routes = String::new();
    for n in 0..100 {
        let matchers: Vec<_> = (0..100)
            .map(|p| format!("{{name: p{p}, string_match: {{exact: \"{}\"}}}}", if p == 99 { 1000 + n } else { p }))
            .collect();
        routes += &format!(
            "\n              - {{match: {{prefix: \"/\", query_parameters: [{}]}}, direct_response: {{status: 418}}}}",
            matchers.join(", ")
        );
    }
    let proxy = proxy(&upstream, &routes, "");
    let query: Vec<_> = (0..100).map(|p| format!("p{p}={p}")).collect();
    let (answer, took) = timed(&proxy, &format!("/?{}", query.join("&"))).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && took < LONG, "{took:?} {answer}");
    // The last matcher of the last route.
    let (answer, took) = timed(&proxy, &format!("/?{}&p99=1099", query[..99].join("&"))).await;
    assert!(answer.starts_with("HTTP/1.1 418 ") && took < LONG, "{took:?} {answer}");
}

#[tokio::test(flavor = "local")]
async fn a_megabyte_of_header_mutations_is_written_once() {
    let upstream = Upstream::start();
    let value = "v".repeat(1024);
    let one = |n: usize| format!("{{header: {{key: x-{n}, value: \"%REQ(:METHOD)%{value}\"}}}}");
    let all: Vec<_> = (0..1000).map(one).collect();
    let proxy = proxy(&upstream, "", &format!("request_headers_to_add: [{}]", all.join(", ")));
    let (answer, took) = timed(&proxy, "/").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && took < LONG, "{took:?} {answer}");
    let heard = upstream.take().remove(0);
    assert_eq!(heard.field("x-999").map(str::len), Some(3 + 1024));
    assert!(heard.fields.len() > 1000);
}

#[test]
fn a_regular_expression_that_explodes_is_refused_with_the_configuration() {
    let address = ([127, 0, 0, 1], 1).into();
    for regex in ["(((a{100}){100}){100})", "((((.{1,64}){1,64}){1,64}){1,64})", "(\\\\pL{1,200}){1,200}"] {
        let matcher = format!("match: {{safe_regex: {{regex: \"{regex}\"}}}}");
        let yaml = configuration(address, "", "").replace("match: {prefix: \"/\"}", &matcher);
        let began = Instant::now();
        let extensions = extensions::standard();
        let options = options(&yaml, 1);
        let problems = bootstrap::load(&options, &extensions)
            .and_then(|loaded| bootstrap::assemble(loaded, options, extensions))
            .err()
            .unwrap_or_else(|| panic!("{regex} was taken"));
        assert!(problems.iter().any(|p| p.to_string().contains("regex")), "{problems:?}");
        assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    }
}
