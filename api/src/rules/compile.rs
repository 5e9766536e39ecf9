//! From the options of a descriptor to rules.

use prost_reflect::{DynamicMessage, FieldDescriptor, MessageDescriptor, OneofDescriptor, ReflectMessage, Value};

use super::bounds::{Bounds, Number};
use super::text::{BytesRule, Format, Pattern, TextRule};
use super::{AnyRule, EnumRule, FieldRules, ListRule, MapRule, Rule, TimestampRule};
use crate::shape::Deprecated;

fn extension(options: &DynamicMessage, name: &str) -> Option<Value> {
    let descriptor = options.descriptor();
    let extension = descriptor.parent_pool().get_extension_by_name(name)?;
    options.has_extension(&extension).then(|| options.get_extension(&extension).into_owned())
}

fn flag(options: &DynamicMessage, name: &str) -> bool {
    extension(options, name).and_then(|v| v.as_bool()).unwrap_or(false)
}

/// `option (validate.required) = true` on a oneof.
pub(crate) fn oneof_required(desc: &OneofDescriptor) -> bool {
    flag(&desc.options(), "validate.required")
}

pub(crate) fn message_unchecked(desc: &MessageDescriptor) -> bool {
    let options = desc.options();
    flag(&options, "validate.disabled") || flag(&options, "validate.ignored")
}

pub(crate) fn deprecated(desc: &FieldDescriptor) -> Deprecated {
    if desc.field_descriptor_proto().options.is_none() {
        return Deprecated::No;
    }
    let options = desc.options();
    if flag(&options, "envoy.annotations.disallowed_by_default") {
        Deprecated::Refused
    } else if options.get_field_by_name("deprecated").and_then(|v| v.as_bool()) == Some(true) {
        Deprecated::Warned
    } else {
        Deprecated::No
    }
}

pub(crate) fn sensitive(desc: &FieldDescriptor) -> bool {
    desc.field_descriptor_proto().options.is_some() && flag(&desc.options(), "udpa.annotations.sensitive")
}

/// The rules of a field, if it has any.
pub(crate) fn compile(desc: &FieldDescriptor) -> Option<FieldRules> {
    desc.field_descriptor_proto().options.as_ref()?;
    match extension(&desc.options(), "validate.rules")? {
        Value::Message(rules) => Some(field_rules(&rules)),
        _ => None,
    }
}

pub(super) fn field_rules(rules: &DynamicMessage) -> FieldRules {
    let mut out = FieldRules { required: false, skip: false, rule: Rule::None };
    for (field, value) in rules.fields() {
        let Value::Message(of) = value else { continue };
        match field.name() {
            "message" => {
                out.required = yes(of, "required");
                out.skip = yes(of, "skip");
            }
            "float" | "double" => out.rule = Rule::Number(Number::Float(bounds(of, float))),
            "bool" => out.rule = get(of, "const").and_then(|v| v.as_bool()).map_or(Rule::None, Rule::Bool),
            "string" => out.rule = Rule::Text(Box::new(text(of))),
            "bytes" => out.rule = Rule::Bytes(Box::new(bytes(of))),
            "enum" => {
                out.rule = Rule::Enum(EnumRule { bounds: bounds(of, whole), defined_only: yes(of, "defined_only") });
            }
            "repeated" => {
                out.rule = Rule::List(Box::new(ListRule {
                    min: number(of, "min_items"),
                    max: number(of, "max_items"),
                    unique: yes(of, "unique"),
                    ignore_empty: yes(of, "ignore_empty"),
                    items: inner(of, "items"),
                }));
            }
            "map" => {
                out.rule = Rule::Map(Box::new(MapRule {
                    min: number(of, "min_pairs"),
                    max: number(of, "max_pairs"),
                    ignore_empty: yes(of, "ignore_empty"),
                    keys: inner(of, "keys"),
                    values: inner(of, "values"),
                }));
            }
            "any" => {
                out.required |= yes(of, "required");
                out.rule = Rule::Any(AnyRule { of: texts(of, "in"), not_of: texts(of, "not_in") });
            }
            "duration" => {
                out.required |= yes(of, "required");
                out.rule = Rule::Duration(bounds(of, nanos));
            }
            "timestamp" => {
                out.required |= yes(of, "required");
                out.rule = Rule::Timestamp(TimestampRule {
                    bounds: bounds(of, nanos),
                    lt_now: yes(of, "lt_now"),
                    gt_now: yes(of, "gt_now"),
                    within: get(of, "within").as_ref().and_then(nanos),
                });
            }
            _ => out.rule = Rule::Number(Number::Whole(bounds(of, whole))),
        }
    }
    out
}

fn get(of: &DynamicMessage, name: &str) -> Option<Value> {
    of.has_field_by_name(name).then(|| of.get_field_by_name(name).map(|v| v.into_owned()))?
}

fn yes(of: &DynamicMessage, name: &str) -> bool {
    get(of, name).and_then(|v| v.as_bool()).unwrap_or(false)
}

fn number(of: &DynamicMessage, name: &str) -> Option<u64> {
    get(of, name)?.as_u64()
}

fn one_text(of: &DynamicMessage, name: &str) -> Option<String> {
    Some(get(of, name)?.as_str()?.to_owned())
}

fn texts(of: &DynamicMessage, name: &str) -> Vec<String> {
    list(of, name).iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn list(of: &DynamicMessage, name: &str) -> Vec<Value> {
    match get(of, name) {
        Some(Value::List(items)) => items,
        _ => Vec::new(),
    }
}

fn inner(of: &DynamicMessage, name: &str) -> Option<FieldRules> {
    match get(of, name)? {
        Value::Message(rules) => Some(field_rules(&rules)),
        _ => None,
    }
}

fn whole(value: &Value) -> Option<i128> {
    Some(match value {
        Value::I32(n) | Value::EnumNumber(n) => (*n).into(),
        Value::I64(n) => (*n).into(),
        Value::U32(n) => (*n).into(),
        Value::U64(n) => (*n).into(),
        _ => return None,
    })
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::F32(n) => Some((*n).into()),
        Value::F64(n) => Some(*n),
        _ => None,
    }
}

/// A `Duration` or `Timestamp`.
fn nanos(value: &Value) -> Option<i128> {
    let message = value.as_message()?;
    let seconds = message.get_field_by_name("seconds")?.as_i64()?;
    let nanos = message.get_field_by_name("nanos")?.as_i32()?;
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
}

fn bounds<T>(of: &DynamicMessage, read: fn(&Value) -> Option<T>) -> Bounds<T> {
    let one = |name: &str| get(of, name).as_ref().and_then(read);
    let many = |name: &str| list(of, name).iter().filter_map(read).collect();
    Bounds {
        equal: one("const"),
        lt: one("lt"),
        lte: one("lte"),
        gt: one("gt"),
        gte: one("gte"),
        of: many("in"),
        not_of: many("not_in"),
        ignore_empty: yes(of, "ignore_empty"),
    }
}

fn text(of: &DynamicMessage) -> TextRule {
    TextRule {
        equal: one_text(of, "const"),
        len: number(of, "len"),
        min_len: number(of, "min_len"),
        max_len: number(of, "max_len"),
        len_bytes: number(of, "len_bytes"),
        min_bytes: number(of, "min_bytes"),
        max_bytes: number(of, "max_bytes"),
        pattern: one_text(of, "pattern").map(Pattern::new),
        prefix: one_text(of, "prefix"),
        suffix: one_text(of, "suffix"),
        contains: one_text(of, "contains"),
        not_contains: one_text(of, "not_contains"),
        of: texts(of, "in"),
        not_of: texts(of, "not_in"),
        format: format(of),
        ignore_empty: yes(of, "ignore_empty"),
    }
}

fn format(of: &DynamicMessage) -> Option<Format> {
    let named = [
        ("email", Format::Email),
        ("hostname", Format::Hostname),
        ("ip", Format::Ip),
        ("ipv4", Format::Ipv4),
        ("ipv6", Format::Ipv6),
        ("uri", Format::Uri),
        ("uri_ref", Format::UriRef),
        ("address", Format::Address),
        ("uuid", Format::Uuid),
    ];
    if let Some((_, format)) = named.into_iter().find(|(name, _)| yes(of, name)) {
        return Some(format);
    }
    // `strict` is a proto2 field whose default is true.
    let strict = get(of, "strict").and_then(|v| v.as_bool()).unwrap_or(true);
    match get(of, "well_known_regex")?.as_enum_number()? {
        1 | 2 if !strict => Some(Format::NoLineBreaks),
        1 => Some(Format::HeaderName),
        2 => Some(Format::HeaderValue),
        _ => None,
    }
}

fn bytes(of: &DynamicMessage) -> BytesRule {
    let one = |name: &str| get(of, name).and_then(|v| v.as_bytes().map(|b| b.to_vec()));
    let many = |name: &str| list(of, name).iter().filter_map(|v| v.as_bytes().map(|b| b.to_vec())).collect();
    let ip_len: [(&str, &'static [usize]); 3] = [("ip", &[4, 16]), ("ipv4", &[4]), ("ipv6", &[16])];
    BytesRule {
        equal: one("const"),
        len: number(of, "len"),
        min_len: number(of, "min_len"),
        max_len: number(of, "max_len"),
        pattern: one_text(of, "pattern").map(Pattern::new),
        prefix: one("prefix"),
        suffix: one("suffix"),
        contains: one("contains"),
        of: many("in"),
        not_of: many("not_in"),
        ip_len: ip_len.into_iter().find(|(name, _)| yes(of, name)).map(|(_, lengths)| lengths),
        ignore_empty: yes(of, "ignore_empty"),
    }
}
