//! What Envoy 1.40 accepts and refuses in a configuration text, read from the binary's `--mode validate`, one small
//! file each. Only the reader and the annotations are concerned, not what clusters or filters make of it.

use nuncio_api::{Format, LoadOptions, Source, load_bootstrap};

fn accepted(format: Format, text: &str) -> bool {
    load_bootstrap(vec![Source::text("a", format, text)], &LoadOptions::default()).is_ok()
}

/// Each value in the place of `%`.
fn verdicts(format: Format, template: &str, yes: &[&str], no: &[&str]) {
    for (values, verdict) in [(yes, true), (no, false)] {
        for value in values {
            let text = template.replacen('%', value, 1);
            assert_eq!(accepted(format, &text), verdict, "{text}");
        }
    }
}

#[test]
fn integers() {
    verdicts(
        Format::Yaml,
        "admin: {address: {socket_address: {address: 127.0.0.1, port_value: %}}}",
        &[
            "80", "\"80\"", "0x50", "\"0x50\"", "0120", "\"0120\"", "80.0", "\"80.0\"", "8e1", "\"8e1\"", "+80",
            "\"+80\"", "!!int 80", "!!str 80", "! 80", "080",
        ],
        &[
            "\" 80\"",
            "80.5",
            "yes",
            "null",
            "\"null\"",
            "\"\"",
            "~",
            "[80]",
            "{}",
            "-1",
            "1_000",
            "0b1",
            "0o17",
            "99999",
            "4294967296",
        ],
    );
}

#[test]
fn booleans() {
    verdicts(
        Format::Yaml,
        "static_resources: {clusters: [{name: c, respect_dns_ttl: %}]}",
        &[
            "yes", "\"yes\"", "on", "y", "Y", "tRUE", "\"tRUE\"", "\"1\"", "t", "\"t\"", "f", "no", "NO", "nO", "True",
            "TRUE", "null", "~",
        ],
        &["1", "\"true \"", "0", "[true]", "\"\""],
    );
}

#[test]
fn strings() {
    verdicts(
        Format::Yaml,
        "static_resources: {clusters: [{name: %}]}",
        &[
            "1.5",
            "1e3",
            "nULL",
            ".inf",
            ".nan",
            "2001-01-01",
            "99999999999",
            "12345678901234567890123",
            "0o7",
            "0b1",
            "09",
            "1_0",
            "! 12",
            "!foo bar",
        ],
        &[
            "12", "yes", "n", "0x10", "~", "null", "Null", "+5", "-5", "012", "True", "{}", "[a]", "!!str 12", "\"\"",
            "- x",
        ],
    );
}

#[test]
fn enums() {
    verdicts(
        Format::Yaml,
        "static_resources: {clusters: [{name: c, lb_policy: %}]}",
        &["random", "RANDOM", "Random", "\"3\"", "3", "null"],
        &["99", "\"99\"", "3.0", "\"3.0\"", "-1", "true", "\"\"", "[RANDOM]", "ROUND-ROBIN"],
    );
    verdicts(
        Format::Json,
        "{\"static_resources\": {\"clusters\": [{\"name\": \"c\", \"type\": %}]}}",
        &["1", "1.0", "1e0"],
        &["01", "+1", ".5e1", "STATIC", "1.5"],
    );
}

#[test]
fn durations() {
    verdicts(
        Format::Yaml,
        "static_resources: {clusters: [{name: c, connect_timeout: %}]}",
        &["1s", "1.5s", "{seconds: 15}", "{seconds: 1, nanos: 5}", "{seconds: \"1\"}", "null", "0.5s", "00001s"],
        &[
            "1",
            "\"1\"",
            "1.s",
            ".5s",
            "0.0000000001s",
            "15ms",
            "{}",
            "-1s",
            "1S",
            "1 s",
            "\" 1s\"",
            "1e3s",
            "+1s",
            "315576000001s",
            "0s",
            "1.1234567891s",
            "10000000000000s",
        ],
    );
}

#[test]
fn wrappers_and_floats() {
    verdicts(
        Format::Yaml,
        "static_resources: {clusters: [{name: c, per_connection_buffer_limit_bytes: %}]}",
        &["1", "\"1\"", "{value: 2}", "{}", "null"],
        &["[]", "-1", "1.5", "true"],
    );
    verdicts(
        Format::Yaml,
        "static_resources: {clusters: [{name: c, common_lb_config: {healthy_panic_threshold: {value: %}}}]}",
        &["1", "1.5", "\"1.5\"", ".5", "\"1e1\"", "0x10", "\"0x10\"", "\" 1\"", "1.", "+1.5"],
        &["Infinity", "\"-Infinity\"", ".inf", "-1", "101", "\"inf\"", "yes", "1_0"],
    );
}

#[test]
fn bytes_of_base64() {
    verdicts(
        Format::Yaml,
        "static_resources: {secrets: [{name: a, generic_secret: {secret: {inline_bytes: %}}}]}",
        &["YQ==", "YQ", "\"-_-_\""],
        &["\"a*b\"", "\"YW Jj\"", "1234", "\"YWJjZ\""],
    );
}

#[test]
fn json_syntax() {
    verdicts(
        Format::Json,
        "%",
        &[
            "{}",
            " { } ",
            "{\"admin\": null}",
            "{'node': {id: 'a',},}",
            "{\"node\": {\"id\": \"\\ud83d\\ude00 \\/ a\tb\nc\"}}",
            "{\"node\": {\"id\": \"a\", \"id\": \"b\"}}",
            "{\"node\": {\"metadata\": {\"a\": {\"b\": [1, \"x\", null, true, {}]}}}}",
            "{\"static_resources\": {\"clusters\": {\"name\": \"c\"}}}",
        ],
        &[
            "",
            "[]",
            "null",
            "\"x\"",
            "{,}",
            "\u{feff}{}",
            "{\"admin\": 1.5}",
            "{\"node\": {\"id\": \"\\ud83d\"}}",
            "{\"node\": {\"id\": \"\\x41\"}}",
            "{\"node\": {\"metadata\": [1]}}",
            "{\"node\": {\"metadata\": {\"a\": NaN}}}",
            "{\"node\": {\"metadata\": {\"a\": 1e400}}}",
            "{\"node\": {\"metadata\": {a.b: 1}}}",
            "{\"node\": {\"id\": \"a\", /* c */ \"cluster\": \"b\"}}",
            "{\"node\": {\"id\": \"a\"}};",
            "{\"node\": {\"id\": \"a\"}",
            "{\"node\" {\"id\": \"a\"}}",
            "{\"static_resources\": {\"clusters\": [,]}}",
            "{\"static_resources\": {\"clusters\": [null]}}",
            "{\"static_resources\": {\"clusters\": [{\"name\": \"a\"} {\"name\": \"b\"}]}}",
        ],
    );
}

#[test]
fn yaml_syntax() {
    verdicts(
        Format::Yaml,
        "%",
        &[
            "node: {id: a}\n---\n{{{ ]: :",
            "node: {id: a}\n...\nfoo: 1",
            "!ignore x: {a: &a foo}\nnode: {id: *a}",
            "node: {id: b, !ignore foo: 1}",
            "node: {id: b, !<!ignore> foo: 1}",
            "node: {id: a, id: b}",
            "node:",
            "\u{feff}node: {id: a}",
            "%YAML 1.1\n---\nnode: {id: a}",
            "%TAG !e! tag:x,2000:\n---\nnode: {id: !e!foo a}",
            "node:\r\n  id: a\r\n",
            "node:\n  id: |\n    a\n    b\n  cluster: >-\n    x\n    z\n",
            "node: {client_features: abc}",
            "node: {client_features: [null, [a]]}",
            "node: {dynamic_parameters: {a: null, yes: {}}}",
            "node: {id: &a x, metadata: {*a : 1}}",
            "node: {userAgentName: x}",
            "stats_sinks: [{name: a, typed_config: {}}]",
            "typed_dns_resolver_config: {name: x, typed_config: {\"@type\": t/google.protobuf.Duration, value: 1s}}",
            "typed_dns_resolver_config: {name: x, typed_config: {\"@type\": t/google.protobuf.Empty}}",
            "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 1}, pipe: null}}",
        ],
        &[
            "",
            "# x\n",
            "---\n",
            "- a",
            "just text",
            "node: {client_features: 12}",
            "node: {dynamic_parameters: [{key: a}]}",
            "node: {metadata: {[a]: 1}}",
            "node: {id: *a}",
            "node: &a {metadata: {x: *a}}",
            "node:\n\tid: a",
            "node: {UserAgentName: x}",
            "static_resources: {clusters: [&b {name: one}, {<<: *b, name: two}]}",
            "stats_sinks: [{name: a, typed_config: x}]",
            "stats_sinks: [{name: a, typed_config: {\"@type\": envoy.config.metrics.v3.StatsdSink}}]",
            "stats_sinks: [{name: a, typed_config: {\"@type\": /envoy.config.metrics.v3.StatsdSink}}]",
            "admin: {address: {socket_address: {address: a, port_value: 1}, pipe: {path: x}}}",
            "admin: {address: {socket_address: {address: a, port_value: 1}, socketAddress: {address: a, port_value: 1}}}",
        ],
    );
}
