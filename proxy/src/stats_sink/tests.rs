//! Rendered stats against what Envoy 1.40 answered for the same names and values.

use super::tags::{Extraction, Tags, push_sanitized};
use super::*;
use nuncio_api::pb::envoy::config::metrics::v3 as pb;
use nuncio_api::pb::envoy::config::metrics::v3::tag_specifier::TagValue;
use nuncio_api::pb::envoy::r#type::matcher::v3 as matcher;
use nuncio_core::stats::lists::{cluster, http, server};
use nuncio_core::stats::{CodeStats, Codes, Kind, Stats, Store};
use std::sync::Arc;

fn query(text: &str) -> StatsQuery {
    try_query(text).expect("a good query")
}

fn try_query(text: &str) -> Result<StatsQuery, BadQuery> {
    let parameters = text.split('&').filter(|part| !part.is_empty());
    let parameters: Vec<(&str, &str)> = parameters.map(|part| part.split_once('=').unwrap_or((part, ""))).collect();
    StatsQuery::parse(false, parameters.iter().copied())
}

fn rendered_with(store: &mut Store, config: &StatsConfig, text: &str) -> String {
    let mut out = Vec::new();
    render(&store.view(), config, &query(text), &mut |chunk| {
        assert!(chunk.len() <= CHUNK);
        out.extend(chunk);
        true
    });
    String::from_utf8(out).expect("text")
}

fn rendered(store: &mut Store, text: &str) -> String {
    rendered_with(store, &StatsConfig::from_proto(&pb::StatsConfig::default()).expect("defaults"), text)
}

/// Requests of 0, 1, 42 and 170 ms to my-cl, one of them failed; and a cluster with a dot in its name.
fn store_with_traffic() -> (Store, Stats<cluster::Membership>) {
    let mut store = Store::new();
    let my = store.scope(&cluster::SCOPE, &Arc::from("my-cl"));
    store.scope(&cluster::SCOPE, &Arc::from("dot.ted"));
    let worker = store.main().clone();
    let times = Stats::<cluster::ResponseTime>::new(&worker, my);
    let codes = CodeStats::new(&worker, my, Codes::Cluster);
    let traffic = Stats::<cluster::Traffic>::new(&worker, my);
    for (time, code) in [(0, 200), (1, 500), (42, 200), (170, 200)] {
        times.record(cluster::UPSTREAM_RQ_TIME, time);
        codes.charge(code);
        traffic.inc(cluster::UPSTREAM_RQ_TOTAL);
    }
    let members = Stats::<cluster::Membership>::new(&worker, my);
    members.set(cluster::MEMBERSHIP_TOTAL, 1);
    members.set(cluster::MEMBERSHIP_DEGRADED, 0);
    // The first flush makes the histograms, the second an empty interval.
    store.flush();
    store.flush();
    (store, members)
}

#[test]
fn tags_and_labels_are_those_of_envoy() {
    let tags = Tags::new(&pb::StatsConfig::default()).expect("defaults");
    let mut found = Extraction::default();
    for line in include_str!("../../tests/golden/stat_tags.txt").lines() {
        let (name, expected) = line.split_once('\t').expect("name, tab, metric");
        let (mut rest, mut out) = (String::new(), String::from("envoy_"));
        tags.extract(name, &mut found);
        found.push_rest(name, &mut rest);
        push_sanitized(&rest, &mut out);
        out.push('{');
        tags.push_labels(name, &found, &mut out);
        out.push('}');
        assert_eq!(out, expected, "{name}");
    }
}

#[test]
fn text_is_sorted_numbers_first_then_histograms() {
    let (mut store, _members) = store_with_traffic();
    assert_eq!(
        rendered(&mut store, "filter=my-cl.*(rq_time|rq_[25]|membership_total)"),
        "cluster.my-cl.membership_total: 1\n\
         cluster.my-cl.upstream_rq_200: 3\n\
         cluster.my-cl.upstream_rq_2xx: 3\n\
         cluster.my-cl.upstream_rq_500: 1\n\
         cluster.my-cl.upstream_rq_5xx: 1\n\
         cluster.my-cl.upstream_rq_timeout: 0\n\
         cluster.my-cl.upstream_rq_time: P0(nan,0) P25(nan,0) P50(nan,1.05) P75(nan,42.5) P90(nan,175) P95(nan,175) \
         P99(nan,175) P99.5(nan,175) P99.9(nan,175) P100(nan,175)\n"
    );
    assert_eq!(
        rendered(&mut store, "filter=my-cl.upstream_cx_length"),
        "cluster.my-cl.upstream_cx_length_ms: No recorded values\n"
    );
}

#[test]
fn names_are_in_the_order_of_bytes_across_scopes() {
    let mut store = Store::new();
    let worker = store.main().clone();
    let scopes = ["b", "a-b", "a", "a.b"].map(|name| store.scope(&cluster::SCOPE, &Arc::from(name)));
    let keep: Vec<_> = scopes.iter().map(|scope| worker.named(*scope, "x", Kind::Counter)).collect();
    let text = rendered(&mut store, "filter=x$");
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_suffix(": 0")).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(names, sorted);
    assert!(names.contains(&"cluster.a.b.x"));
    drop(keep);
    let all = rendered(&mut store, "type=Counters");
    let names: Vec<&str> = all.lines().map(|line| line.split(": ").next().expect("a name")).collect();
    assert!(names.is_sorted());
}

#[test]
fn histogram_buckets_are_shown_as_asked() {
    let (mut store, _members) = store_with_traffic();
    let filter = "filter=my-cl.upstream_rq_time$&histogram_buckets=";
    assert_eq!(
        rendered(&mut store, &format!("{filter}cumulative")),
        "cluster.my-cl.upstream_rq_time: B0.5(0,1) B1(0,2) B5(0,2) B10(0,2) B25(0,2) B50(0,3) B100(0,3) B250(0,4) \
         B500(0,4) B1000(0,4) B2500(0,4) B5000(0,4) B10000(0,4) B30000(0,4) B60000(0,4) B300000(0,4) B600000(0,4) \
         B1.8e+06(0,4) B3.6e+06(0,4)\n"
    );
    assert!(rendered(&mut store, &format!("{filter}disjoint")).contains(" B1(0,1) B5(0,0) "));
    assert_eq!(
        rendered(&mut store, &format!("{filter}detailed")),
        "cluster.my-cl.upstream_rq_time:\n  totals=0,0:1, 1,0.1:1, 42,1:1, 170,10:1\n  intervals=\n  \
         summary=P0(nan,0) P25(nan,0) P50(nan,1.05) P75(nan,42.5) P90(nan,175) P95(nan,175) P99(nan,175) \
         P99.5(nan,175) P99.9(nan,175) P100(nan,175)\n"
    );
}

#[test]
fn json_has_envoys_shape() {
    let (mut store, _members) = store_with_traffic();
    assert_eq!(rendered(&mut store, "format=json&filter=nothing"), "{\"stats\":[]}");
    assert_eq!(
        rendered(&mut store, "format=json&filter=my-cl.upstream_rq_time"),
        "{\"stats\":[{\"name\":\"cluster.my-cl.upstream_rq_timeout\",\"value\":0},{\"histograms\":{\
         \"supported_quantiles\":[0,25,50,75,90,95,99,99.5,99.9,100],\"computed_quantiles\":[{\
         \"name\":\"cluster.my-cl.upstream_rq_time\",\"values\":[{\"cumulative\":0,\"interval\":null},\
         {\"cumulative\":0,\"interval\":null},{\"cumulative\":1.05,\"interval\":null},\
         {\"cumulative\":42.5,\"interval\":null},{\"cumulative\":175,\"interval\":null},\
         {\"cumulative\":175,\"interval\":null},{\"cumulative\":175,\"interval\":null},\
         {\"cumulative\":175,\"interval\":null},{\"cumulative\":175,\"interval\":null},\
         {\"cumulative\":175,\"interval\":null}]}]}}]}"
    );
    let detailed = rendered(&mut store, "format=json&filter=my-cl.upstream_rq_time$&histogram_buckets=detailed");
    assert!(detailed.starts_with(
        "{\"stats\":[{\"histograms\":{\"supported_percentiles\":[0,25,50,75,90,95,99,99.5,99.9,100],\"details\":[{\
         \"name\":\"cluster.my-cl.upstream_rq_time\",\"totals\":[{\"lower_bound\":0,\"width\":0,\"count\":1},\
         {\"lower_bound\":1,\"width\":0.1,\"count\":1},{\"lower_bound\":42,\"width\":1,\"count\":1},\
         {\"lower_bound\":170,\"width\":10,\"count\":1}],\"intervals\":[],\"percentiles\":[{\"cumulative\":0,"
    ));
    let buckets = rendered(&mut store, "format=json&filter=my-cl.upstream_rq_time$&histogram_buckets=cumulative");
    assert!(buckets.starts_with(
        "{\"stats\":[{\"histograms\":[{\"name\":\"cluster.my-cl.upstream_rq_time\",\"buckets\":[{\
         \"upper_bound\":0.5,\"interval\":0,\"cumulative\":1},"
    ));
    assert!(buckets.ends_with("{\"upper_bound\":3600000,\"interval\":0,\"cumulative\":4}]}]}]}"));
    for text in [detailed, buckets, rendered(&mut store, "format=json")] {
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
    }
}

#[test]
fn prometheus_groups_by_name_without_tags() {
    let (mut store, _members) = store_with_traffic();
    assert_eq!(
        rendered(&mut store, "format=prometheus&filter=cluster.*upstream_rq_(200|500|.xx|total)|dot.*membership_total"),
        "# TYPE envoy_cluster_ted_upstream_rq_total counter\n\
         envoy_cluster_ted_upstream_rq_total{envoy_cluster_name=\"dot\"} 0\n\
         # TYPE envoy_cluster_upstream_rq counter\n\
         envoy_cluster_upstream_rq{envoy_response_code=\"200\",envoy_cluster_name=\"my-cl\"} 3\n\
         envoy_cluster_upstream_rq{envoy_response_code=\"500\",envoy_cluster_name=\"my-cl\"} 1\n\
         # TYPE envoy_cluster_upstream_rq_total counter\n\
         envoy_cluster_upstream_rq_total{envoy_cluster_name=\"my-cl\"} 4\n\
         # TYPE envoy_cluster_upstream_rq_xx counter\n\
         envoy_cluster_upstream_rq_xx{envoy_response_code_class=\"2\",envoy_cluster_name=\"my-cl\"} 3\n\
         envoy_cluster_upstream_rq_xx{envoy_response_code_class=\"5\",envoy_cluster_name=\"my-cl\"} 1\n\
         # TYPE envoy_cluster_ted_membership_total gauge\n\
         envoy_cluster_ted_membership_total{envoy_cluster_name=\"dot\"} 0\n"
    );
}

#[test]
fn prometheus_histograms_have_buckets_sum_and_count() {
    let (mut store, _members) = store_with_traffic();
    let text = rendered(&mut store, "format=prometheus&filter=my-cl.upstream_rq_time$");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "# TYPE envoy_cluster_upstream_rq_time histogram");
    assert_eq!(lines[1], "envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name=\"my-cl\",le=\"0.5\"} 1");
    assert_eq!(lines[19], "envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name=\"my-cl\",le=\"3600000\"} 4");
    assert_eq!(lines[20], "envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name=\"my-cl\",le=\"+Inf\"} 4");
    assert_eq!(
        lines[21],
        "envoy_cluster_upstream_rq_time_sum{envoy_cluster_name=\"my-cl\"} 218.39887955182072687421168666333"
    );
    assert_eq!(lines[22], "envoy_cluster_upstream_rq_time_count{envoy_cluster_name=\"my-cl\"} 4");
    let text = rendered(&mut store, "format=prometheus&filter=my-cl.upstream_rq_time$&histogram_buckets=summary");
    assert!(text.starts_with(
        "# TYPE envoy_cluster_upstream_rq_time summary\n\
         envoy_cluster_upstream_rq_time{envoy_cluster_name=\"my-cl\",quantile=\"0\"} 0\n"
    ));
    assert!(text.contains("quantile=\"0.995\"} 175\n"));
}

#[test]
fn two_objects_of_one_name_are_one_stat() {
    let mut store = Store::new();
    let worker = store.main().clone();
    // `a:b` and `a_b` are the same name once colons are gone, as are two managers' with one prefix.
    let scopes = [store.scope(&http::SCOPE, &Arc::from("in")), store.scope(&http::ADMIN_SCOPE, &Arc::from("in"))];
    let keep: Vec<_> = scopes.iter().map(|scope| Stats::<http::Hcm>::new(&worker, *scope)).collect();
    keep.iter().for_each(|stats| stats.add(http::DOWNSTREAM_RQ_TOTAL, 2));
    assert_eq!(rendered(&mut store, "filter=downstream_rq_total"), "http.in.downstream_rq_total: 4\n");
    assert_eq!(
        rendered(&mut store, "format=prometheus&filter=downstream_rq_total"),
        "# TYPE envoy_http_downstream_rq_total counter\n\
         envoy_http_downstream_rq_total{envoy_http_conn_manager_prefix=\"in\"} 4\n"
    );
}

#[test]
fn usedonly_shows_what_was_ever_written() {
    let (mut store, _members) = store_with_traffic();
    let text = rendered(&mut store, "usedonly&filter=cluster");
    let names: Vec<&str> = text.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(
        names,
        [
            "cluster.my-cl.membership_degraded",
            "cluster.my-cl.membership_total",
            "cluster.my-cl.upstream_rq_200",
            "cluster.my-cl.upstream_rq_2xx",
            "cluster.my-cl.upstream_rq_500",
            "cluster.my-cl.upstream_rq_5xx",
            "cluster.my-cl.upstream_rq_completed",
            "cluster.my-cl.upstream_rq_total",
            "cluster.my-cl.upstream_rq_time",
        ]
    );
}

#[test]
fn types_and_inverted_filters_select() {
    let (mut store, _members) = store_with_traffic();
    assert_eq!(rendered(&mut store, "type=Gauges&filter=my-cl.membership_t"), "cluster.my-cl.membership_total: 1\n");
    assert_eq!(rendered(&mut store, "type=Counters&filter=my-cl.membership_total"), "");
    assert!(!rendered(&mut store, "filter=my-cl&invert_filter").contains("my-cl"));
    assert_eq!(rendered(&mut store, "hidden=only"), "");
}

#[test]
fn texts_come_first_and_are_a_gauge_in_prometheus_if_asked_for() {
    let mut store = Store::new();
    let id = store.scope(&server::SCOPE, &Arc::from(""));
    store.set_text(id, "motto", Some(Arc::from("say \"hi\"")));
    assert!(rendered(&mut store, "").starts_with("server.motto: \"say \"hi\"\"\nserver.compilation_settings"));
    assert!(
        rendered(&mut store, "format=json")
            .starts_with("{\"stats\":[{\"name\":\"server.motto\",\"value\":\"say \\\"hi\\\"\"},")
    );
    assert_eq!(rendered(&mut store, "format=prometheus&filter=motto"), "");
    assert_eq!(
        rendered(&mut store, "format=prometheus&filter=motto&text_readouts"),
        "# TYPE envoy_server_motto gauge\nenvoy_server_motto{text_value=\"say \\\"hi\\\"\"} 0\n"
    );
}

#[test]
fn bad_parameters_get_envoys_answers() {
    for (text, answer) in [
        ("format=xml", "usage: /stats?format=(html|active-html|json|prometheus|text)\n\n"),
        ("type=gauges", "invalid &type= param"),
        ("hidden=x", "usage: /stats?hidden=(include|only|exclude)\n\n"),
        ("filter=(", "Invalid re2 regex: missing ): ("),
        ("filter=[a", "Invalid re2 regex: missing ]: [a"),
        ("filter=*a", "Invalid re2 regex: no argument for repetition operator: *"),
        (
            "histogram_buckets=lots",
            "usage: /stats?histogram_buckets=(cumulative|disjoint|detailed|summary|prometheusnative)\n",
        ),
        ("histogram_buckets=prometheusnative", "Invalid histogram_buckets type for non prometheus stats type"),
        ("format=prometheus&histogram_buckets=disjoint", "unsupported prometheus histogram bucket mode"),
    ] {
        assert_eq!(try_query(text).expect_err(text), BadQuery(answer.to_owned()), "{text}");
    }
    assert_eq!(query("format=json").format.content_type(), "application/json");
}

fn tag(name: &str, value: Option<TagValue>) -> pb::TagSpecifier {
    pb::TagSpecifier { tag_name: name.to_owned(), tag_value: value }
}

fn regex(text: &str) -> Option<TagValue> {
    Some(TagValue::Regex(text.to_owned()))
}

#[test]
fn configured_tags_are_found_beside_the_defaults() {
    let (mut store, _members) = store_with_traffic();
    let config = pb::StatsConfig {
        stats_tags: vec![
            tag("team", regex(r"^cluster\.((my)-cl\.)")),
            tag("nopre", regex("(upstream_(rq))")),
            tag("site", Some(TagValue::FixedValue("lab".to_owned()))),
            tag("opt", regex("_total(x)?$")),
        ],
        ..Default::default()
    };
    let config = StatsConfig::from_proto(&config).expect("good");
    assert_eq!(
        rendered_with(&mut store, &config, "format=prometheus&filter=my-cl.upstream_rq_(total|2xx)"),
        "# TYPE envoy_cluster__total counter\n\
         envoy_cluster__total{nopre=\"rq\",site=\"lab\",opt=\"\",envoy_cluster_name=\"my-cl\",team=\"my\"} 4\n\
         # TYPE envoy_cluster__xx counter\n\
         envoy_cluster__xx{envoy_response_code_class=\"2\",nopre=\"rq\",site=\"lab\",envoy_cluster_name=\"my-cl\",team=\"my\"} 3\n"
    );
}

#[test]
fn defaults_may_be_off_and_picked_by_name() {
    let (mut store, _members) = store_with_traffic();
    let config = pb::StatsConfig {
        use_all_default_tags: Some(nuncio_api::pb::google::protobuf::BoolValue { value: false }),
        stats_tags: vec![tag("envoy.cluster_name", None)],
        ..Default::default()
    };
    let config = StatsConfig::from_proto(&config).expect("good");
    assert_eq!(
        rendered_with(&mut store, &config, "format=prometheus&filter=my-cl.upstream_rq_2xx"),
        "# TYPE envoy_cluster_upstream_rq_2xx counter\nenvoy_cluster_upstream_rq_2xx{envoy_cluster_name=\"my-cl\"} 3\n"
    );
    let unknown = pb::StatsConfig { stats_tags: vec![tag("nope", None)], ..Default::default() };
    let error = StatsConfig::from_proto(&unknown).expect_err("no default");
    assert_eq!(
        error.to_string(),
        "stats_tags[0]: No regex specified for tag specifier and no default regex for name: 'nope'"
    );
    let broken = pb::StatsConfig { stats_tags: vec![tag("x.y", regex("("))], ..Default::default() };
    assert_eq!(StatsConfig::from_proto(&broken).expect_err("unclosed").path, "stats_tags[0].regex");
}

#[test]
fn inclusion_lists_and_own_buckets_are_obeyed() {
    let (mut store, _members) = store_with_traffic();
    let string = |pattern| matcher::StringMatcher { match_pattern: Some(pattern), ignore_case: false };
    let patterns = vec![string(matcher::string_matcher::MatchPattern::Suffix("upstream_rq_time".to_owned()))];
    let config = pb::StatsConfig {
        stats_matcher: Some(pb::StatsMatcher {
            stats_matcher: Some(pb::stats_matcher::StatsMatcher::InclusionList(matcher::ListStringMatcher {
                patterns: patterns.clone(),
            })),
        }),
        histogram_bucket_settings: vec![pb::HistogramBucketSettings {
            r#match: patterns.first().cloned(),
            buckets: vec![1000.0, 1.0, 500.5],
            ..Default::default()
        }],
        ..Default::default()
    };
    let config = StatsConfig::from_proto(&config).expect("good");
    assert_eq!(
        rendered_with(&mut store, &config, "histogram_buckets=cumulative"),
        "cluster.my-cl.upstream_rq_time: B1(0,2) B500.5(0,4) B1000(0,4)\n"
    );
}

#[test]
fn large_answers_leave_in_bounded_chunks_and_stop_with_the_reader() {
    let mut store = Store::new();
    for i in 0..500 {
        store.scope(&cluster::SCOPE, &Arc::from(format!("cluster-{i:04}")));
    }
    for format in ["text", "json", "prometheus", "html"] {
        let text = rendered(&mut store, &format!("format={format}"));
        assert!(text.len() > 40 * CHUNK, "{format} {}", text.len());
    }
    let config = StatsConfig::from_proto(&pb::StatsConfig::default()).expect("defaults");
    let mut chunks = 0;
    render(&store.view(), &config, &query(""), &mut |_| {
        chunks += 1;
        chunks < 3
    });
    assert_eq!(chunks, 3);
}
