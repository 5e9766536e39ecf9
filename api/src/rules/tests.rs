//! Rules as the annotation language defines them, each on a value that fits and on one that does not.

use prost_reflect::{DynamicMessage, Kind};

use super::compile::field_rules;
use super::*;

fn rules(text: &str) -> FieldRules {
    let desc = crate::pool::message("validate.FieldRules").unwrap();
    field_rules(&DynamicMessage::parse_text_format(desc, text).unwrap())
}

/// The sentence, or "" where the value fits.
fn text(rule: &str, value: &str) -> String {
    rules(&format!("string {{ {rule} }}")).scalar(Wire::Bytes(value.as_bytes()), &FieldKind::String).unwrap_or_default()
}

fn bytes(rule: &str, value: &[u8]) -> String {
    rules(&format!("bytes {{ {rule} }}")).scalar(Wire::Bytes(value), &FieldKind::Bytes).unwrap_or_default()
}

fn uint(rule: &str, value: u64) -> String {
    rules(&format!("uint32 {{ {rule} }}")).scalar(Wire::Varint(value), &FieldKind::Uint32).unwrap_or_default()
}

#[test]
fn numbers_are_held_to_their_bounds() {
    assert_eq!(uint("lte: 65535", 65535), "");
    assert_eq!(uint("lte: 65535", 70000), "must be <= 65535, is 70000");
    assert_eq!(uint("gt: 1 lt: 5", 1), "must be > 1 and < 5, is 1");
    assert_eq!(uint("gte: 10 lt: 5", 7), "must be >= 10 or < 5, is 7");
    assert_eq!(uint("gte: 10 lt: 5", 3), "");
    assert_eq!(uint("gte: 10 lt: 5", 10), "");
    assert_eq!(uint("const: 3", 4), "must be 3, is 4");
    assert_eq!(uint("in: [1, 2]", 2), "");
    assert_eq!(uint("in: [1, 2]", 3), "must be one of 1, 2, is 3");
    assert_eq!(uint("not_in: [1, 2]", 2), "must not be one of 1, 2");
    assert_eq!(uint("gte: 5 ignore_empty: true", 0), "");
    let signed = rules("int64 { lt: -1 }");
    assert!(signed.scalar(Wire::Varint(-1i64 as u64), &FieldKind::Int64).is_some());
    assert!(signed.scalar(Wire::Varint(-2i64 as u64), &FieldKind::Int64).is_none());
    let zigzag = rules("sint32 { gte: 0 }");
    assert!(zigzag.scalar(Wire::Varint(1), &FieldKind::Sint32).is_some(), "1 is -1 in zigzag");
    let float = rules("double { gte: 0 lte: 100 }");
    assert!(float.scalar(Wire::Fixed64(100.5f64.to_bits()), &FieldKind::Double).is_some());
    assert!(float.scalar(Wire::Fixed64(99.5f64.to_bits()), &FieldKind::Double).is_none());
    let float = rules("float { gt: 0 }");
    assert!(float.scalar_default(&FieldKind::Float).is_some());
    assert!(rules("bool { const: true }").scalar_default(&FieldKind::Bool).is_some());
}

#[test]
fn strings_are_held_to_lengths_and_parts() {
    assert_eq!(text("min_len: 1", ""), "must not be empty");
    assert_eq!(text("min_len: 2", "é"), "must be at least 2 characters long, is 1");
    assert_eq!(text("min_bytes: 2", "é"), "");
    assert_eq!(text("max_bytes: 1", "é"), "must be at most 1 byte long, is 2");
    assert_eq!(text("max_len: 1", "é"), "");
    assert_eq!(text("len: 3", "ab"), "must be 3 characters long, is 2");
    assert_eq!(text("len_bytes: 2", "é"), "");
    assert_eq!(text("const: \"a\"", "b"), "must be `a`, is `b`");
    assert_eq!(text("pattern: \"^[a-z]+$\"", "abc"), "");
    assert_eq!(text("pattern: \"^[a-z]+$\"", "a1"), "must match `^[a-z]+$`, is `a1`");
    assert_eq!(text("prefix: \"/\"", "x"), "must begin with `/`, is `x`");
    assert_eq!(text("suffix: \"/\"", "x"), "must end with `/`, is `x`");
    assert_eq!(text("contains: \"y\"", "x"), "must contain `y`, is `x`");
    assert_eq!(text("not_contains: \"x\"", "x"), "must not contain `x`, is `x`");
    assert_eq!(text("in: [\"\", \"a\"]", "b"), "must be one of ``, `a`, is `b`");
    assert_eq!(text("not_in: \"a\"", "a"), "must not be one of `a`");
    assert_eq!(text("min_len: 5 ignore_empty: true", ""), "");
}

#[test]
fn strings_are_held_to_named_forms() {
    for (form, good, bad) in [
        ("email: true", "a.b+c@example.com", "a@b@c"),
        ("email: true", "x@y", "x@-y"),
        ("hostname: true", "a-b.example.com.", "a_b.example.com"),
        ("ip: true", "::1", "1.2.3"),
        ("ipv4: true", "1.2.3.4", "::1"),
        ("ipv6: true", "::1", "1.2.3.4"),
        ("uri: true", "https://a/b?c#d", "/b"),
        ("uri_ref: true", "/b?c", "a b"),
        ("address: true", "1.2.3.4", "a b"),
        ("address: true", "host.test", "host test"),
        ("uuid: true", "12345678-1234-1234-1234-123456789abc", "12345678-1234"),
        ("well_known_regex: HTTP_HEADER_NAME", ":path", "a b"),
        ("well_known_regex: HTTP_HEADER_NAME", "x-y", ""),
        ("well_known_regex: HTTP_HEADER_VALUE", "a\tb", "a\u{1}b"),
        ("well_known_regex: HTTP_HEADER_NAME strict: false", "a b\u{1}", "a\nb"),
        ("well_known_regex: HTTP_HEADER_VALUE strict: false", "a\u{1}b", "a\rb"),
    ] {
        assert_eq!(text(form, good), "", "{form}");
        assert!(text(form, bad).starts_with("must be "), "{form} on {bad:?}: {}", text(form, bad));
    }
}

#[test]
fn bytes_are_held_to_lengths_and_parts() {
    assert_eq!(bytes("min_len: 2", b"a"), "must be at least 2 bytes long, is 1");
    assert_eq!(bytes("max_len: 2", b"abc"), "must be at most 2 bytes long, is 3");
    assert_eq!(bytes("len: 2", b"ab"), "");
    assert_eq!(bytes("ip: true", &[1, 2, 3, 4]), "");
    assert!(bytes("ip: true", &[1, 2, 3]).contains("IP address"));
    assert!(bytes("ipv6: true", &[1, 2, 3, 4]).contains("IP address"));
    for (rule, good, bad) in [
        ("prefix: \"a\"", &b"ab"[..], &b"ba"[..]),
        ("suffix: \"a\"", b"ba", b"ab"),
        ("contains: \"b\"", b"abc", b"ac"),
        ("pattern: \"^a+$\"", b"aa", b"ab"),
        ("in: \"a\"", b"a", b"b"),
        ("not_in: \"a\"", b"b", b"a"),
        ("const: \"a\"", b"a", b"b"),
        ("min_len: 3 ignore_empty: true", b"", b"ab"),
    ] {
        assert_eq!(bytes(rule, good), "", "{rule}");
        assert_ne!(bytes(rule, bad), "", "{rule}");
    }
}

#[test]
fn enums_durations_times_lists_maps_and_any_are_held_to_theirs() {
    let policy = crate::pool::pool().get_enum_by_name("envoy.config.cluster.v3.Cluster.LbPolicy").unwrap();
    let policy = FieldKind::new(&Kind::Enum(policy));
    let defined = rules("enum { defined_only: true }");
    assert_eq!(defined.scalar(Wire::Varint(1), &policy), None);
    assert!(defined.scalar(Wire::Varint(99), &policy).unwrap().ends_with("is 99"));
    let of = rules("enum { not_in: 1 }").scalar(Wire::Varint(1), &policy).unwrap();
    assert_eq!(of, "must not be one of LEAST_REQUEST");

    let duration = rules("duration { required: true gt {} lte { seconds: 5 } }");
    assert!(duration.required);
    assert_eq!(duration.nanos(1, None), None);
    assert_eq!(duration.nanos(0, None).unwrap(), "must be > 0s and <= 5s, is 0s");
    assert_eq!(duration.nanos(5_250_000_000, None).unwrap(), "must be > 0s and <= 5s, is 5.25s");

    let time = rules("timestamp { lt_now: true within { seconds: 10 } }");
    assert_eq!(time.nanos(5, Some(6)), None);
    assert_eq!(time.nanos(7, Some(6)).unwrap(), "must be in the past");
    assert_eq!(time.nanos(0, Some(11_000_000_000)).unwrap(), "must be within 10s of now");
    assert_eq!(time.nanos(7, None), None);
    assert!(rules("timestamp { gt_now: true }").nanos(5, Some(6)).is_some());

    let list = rules("repeated { min_items: 1 max_items: 2 unique: true items { string { min_len: 1 } } }");
    assert_eq!(list.count(0).unwrap(), "must have at least 1 item, has 0");
    assert_eq!(list.count(3).unwrap(), "must have at most 2 items, has 3");
    assert!(matches!(&list.rule, Rule::List(l) if l.unique && l.items.is_some()));
    assert_eq!(rules("repeated { min_items: 1 ignore_empty: true }").count(0), None);

    let map = rules("map { min_pairs: 2 keys { string { min_len: 1 } } values { string { min_len: 1 } } }");
    assert_eq!(map.count(1).unwrap(), "must have at least 2 entries, has 1");
    assert!(matches!(&map.rule, Rule::Map(m) if m.keys.is_some() && m.values.is_some()));

    let any = rules("any { required: true in: [\"t/a\", \"t/b\"] }");
    assert!(any.required);
    assert_eq!(any.any_type("t/a"), None);
    assert_eq!(any.any_type("t/c").unwrap(), "must be one of the types t/a, t/b");
    assert!(rules("any { not_in: \"t/a\" }").any_type("t/a").is_some());

    let message = rules("message { skip: true required: true }");
    assert!(message.skip && message.required);
}

/// Every message that configuration can name: its rules compile, and so do its patterns.
#[test]
fn every_rule_of_the_vocabulary_is_understood() {
    let mut rules = 0;
    for desc in crate::pool::pool().all_messages() {
        let shape = crate::shape::shape_named(desc.full_name()).unwrap();
        assert!(shape.fields.len() <= 256, "{}: the sets of seen fields have 256 places", shape.name());
        for found in shape.fields.iter().filter_map(|f| f.rules.as_deref()) {
            rules += 1;
            check_patterns(found, shape.name());
        }
    }
    assert!(rules > 1000, "{rules}");
}

fn check_patterns(rules: &FieldRules, name: &str) {
    match &rules.rule {
        Rule::Text(text) => assert!(text.pattern_compiles(), "{name}"),
        Rule::List(list) => list.items.iter().for_each(|r| check_patterns(r, name)),
        Rule::Map(map) => map.keys.iter().chain(&map.values).for_each(|r| check_patterns(r, name)),
        _ => {}
    }
}

#[test]
fn durations_are_written_as_configuration_has_them() {
    assert_eq!(seconds_text(250_000_000), "0.25s");
    assert_eq!(seconds_text(-1_000_000_000), "-1s");
    assert_eq!(seconds_text(0), "0s");
}
