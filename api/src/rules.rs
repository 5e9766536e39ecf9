//! The annotations of Envoy's messages (`validate.rules`): what a field must hold beyond its type. Compiled once per
//! message type; the check itself is the walk over the encoded message (`walk.rs`), which asks here about one value
//! at a time. All kinds of rules that the annotation language has are known, used by Envoy today or not.

mod bounds;
mod compile;
mod formats;
mod text;

use crate::shape::FieldKind;
use crate::wire::Wire;

pub(crate) use bounds::{Bounds, Number, whole};
pub(crate) use compile::{compile, deprecated, message_unchecked, oneof_required, sensitive};
pub(crate) use text::{BytesRule, TextRule};

/// What one field must hold.
pub(crate) struct FieldRules {
    /// A message field must be set.
    pub(crate) required: bool,
    /// The rules inside the message are not checked.
    pub(crate) skip: bool,
    pub(crate) rule: Rule,
}

pub(crate) enum Rule {
    None,
    Number(Number),
    Bool(bool),
    Text(Box<TextRule>),
    Bytes(Box<BytesRule>),
    Enum(EnumRule),
    List(Box<ListRule>),
    Map(Box<MapRule>),
    Any(AnyRule),
    Duration(Bounds<i128>),
    Timestamp(TimestampRule),
}

pub(crate) struct EnumRule {
    pub(crate) bounds: Bounds<i128>,
    pub(crate) defined_only: bool,
}

pub(crate) struct ListRule {
    pub(crate) min: Option<u64>,
    pub(crate) max: Option<u64>,
    pub(crate) unique: bool,
    pub(crate) ignore_empty: bool,
    pub(crate) items: Option<FieldRules>,
}

pub(crate) struct MapRule {
    pub(crate) min: Option<u64>,
    pub(crate) max: Option<u64>,
    pub(crate) ignore_empty: bool,
    pub(crate) keys: Option<FieldRules>,
    pub(crate) values: Option<FieldRules>,
}

#[derive(Default)]
pub(crate) struct AnyRule {
    pub(crate) of: Vec<String>,
    pub(crate) not_of: Vec<String>,
}

pub(crate) struct TimestampRule {
    pub(crate) bounds: Bounds<i128>,
    pub(crate) lt_now: bool,
    pub(crate) gt_now: bool,
    pub(crate) within: Option<i128>,
}

impl FieldRules {
    /// What is wrong with a scalar, in a sentence that follows the field's path.
    pub(crate) fn scalar(&self, value: Wire<'_>, kind: &FieldKind) -> Option<String> {
        match (&self.rule, value) {
            (Rule::Number(number), value) => number.check(value, kind),
            (Rule::Bool(must), Wire::Varint(is)) => ((is != 0) != *must).then(|| format!("must be {must}")),
            (Rule::Text(rule), Wire::Bytes(text)) => rule.check(&String::from_utf8_lossy(text)),
            (Rule::Bytes(rule), Wire::Bytes(bytes)) => rule.check(bytes),
            (Rule::Enum(rule), Wire::Varint(n)) => rule.check(n as i64 as i32, kind),
            _ => None,
        }
    }

    /// The default of a scalar that is not on the wire.
    pub(crate) fn scalar_default(&self, kind: &FieldKind) -> Option<String> {
        let zero = match self.rule {
            Rule::Text(_) | Rule::Bytes(_) => Wire::Bytes(&[]),
            _ => match kind.wire_type() {
                prost::encoding::WireType::SixtyFourBit => Wire::Fixed64(0),
                prost::encoding::WireType::ThirtyTwoBit => Wire::Fixed32(0),
                _ => Wire::Varint(0),
            },
        };
        self.scalar(zero, kind)
    }

    /// What is wrong with a duration or a time, given in nanoseconds.
    pub(crate) fn nanos(&self, nanos: i128, now: Option<i128>) -> Option<String> {
        match &self.rule {
            Rule::Duration(bounds) => bounds.check(nanos, |n| seconds_text(*n)),
            Rule::Timestamp(rule) => rule.check(nanos, now),
            _ => None,
        }
    }

    pub(crate) fn any_type(&self, url: &str) -> Option<String> {
        let Rule::Any(rule) = &self.rule else { return None };
        if !rule.of.is_empty() && !rule.of.iter().any(|u| u == url) {
            return Some(format!("must be one of the types {}", rule.of.join(", ")));
        }
        rule.not_of.iter().any(|u| u == url).then(|| format!("must not be a {url}"))
    }

    /// What is wrong with the number of items of a list or map.
    pub(crate) fn count(&self, count: u64) -> Option<String> {
        let (min, max, ignore_empty, what) = match &self.rule {
            Rule::List(rule) => (rule.min, rule.max, rule.ignore_empty, "item"),
            Rule::Map(rule) => (rule.min, rule.max, rule.ignore_empty, "entry"),
            _ => return None,
        };
        if ignore_empty && count == 0 {
            return None;
        }
        let many = |n: u64| if n == 1 { format!("1 {what}") } else { format!("{n} {}", plural(what)) };
        match (min, max) {
            (Some(min), _) if count < min => Some(format!("must have at least {}, has {count}", many(min))),
            (_, Some(max)) if count > max => Some(format!("must have at most {}, has {count}", many(max))),
            _ => None,
        }
    }
}

fn plural(what: &str) -> &str {
    if what == "item" { "items" } else { "entries" }
}

impl EnumRule {
    fn check(&self, number: i32, kind: &FieldKind) -> Option<String> {
        let FieldKind::Enum(of) = kind else { return None };
        let name = |n: &i128| {
            let value = i32::try_from(*n).ok().and_then(|n| of.name_of(n));
            value.map_or_else(|| n.to_string(), str::to_owned)
        };
        if self.defined_only && of.name_of(number).is_none() {
            return Some(format!("must be a value that {} has, is {number}", of.name()));
        }
        self.bounds.check(i128::from(number), name)
    }
}

impl TimestampRule {
    fn check(&self, nanos: i128, now: Option<i128>) -> Option<String> {
        if let Some(now) = now {
            if self.lt_now && nanos >= now {
                return Some("must be in the past".to_owned());
            }
            if self.gt_now && nanos <= now {
                return Some("must be in the future".to_owned());
            }
            if self.within.is_some_and(|w| (nanos - now).abs() > w) {
                return Some(format!("must be within {} of now", seconds_text(self.within.unwrap_or(0))));
            }
        }
        self.bounds.check(nanos, |n| seconds_text(*n))
    }
}

/// Nanoseconds as configuration writes durations.
pub(crate) fn seconds_text(nanos: i128) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let (seconds, rest) = (nanos.unsigned_abs() / 1_000_000_000, nanos.unsigned_abs() % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests;
