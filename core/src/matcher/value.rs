//! `type.matcher.v3.ValueMatcher`: a test of one structured value.

use nuncio_api::pb::envoy::r#type::matcher::v3::{
    self as pb, double_matcher, list_matcher, value_matcher::MatchPattern,
};
use nuncio_api::pb::google::protobuf::{Value, value::Kind};
use nuncio_api::supports;

use super::string::StringMatcher;
use crate::error::ConfigError;

supports!(pub(super) VALUE = "envoy.type.matcher.v3.ValueMatcher" {
    null_match, double_match, string_match, bool_match, present_match, list_match, or_match
});
supports!(pub(super) NULL = "envoy.type.matcher.v3.ValueMatcher.NullMatch" {});
supports!(pub(super) DOUBLE = "envoy.type.matcher.v3.DoubleMatcher" { range, exact });
supports!(pub(super) DOUBLE_RANGE = "envoy.type.v3.DoubleRange" { start, end });
supports!(pub(super) LIST = "envoy.type.matcher.v3.ListMatcher" { one_of });
supports!(pub(super) OR = "envoy.type.matcher.v3.OrMatcher" { value_matchers });

/// How deep lists and alternatives may nest in a configuration.
const MAX_DEPTH: usize = 16;

#[derive(Debug, Clone)]
pub enum ValueMatcher {
    Null,
    /// Half open, as in Envoy.
    DoubleRange(f64, f64),
    Double(f64),
    String(StringMatcher),
    Bool(bool),
    Present(bool),
    /// Some element of a list.
    ListElement(Box<ValueMatcher>),
    Or(Vec<ValueMatcher>),
}

impl ValueMatcher {
    pub fn from_proto(message: &pb::ValueMatcher) -> Result<Self, ConfigError> {
        Self::at_depth(message, 0)
    }

    fn at_depth(message: &pb::ValueMatcher, depth: usize) -> Result<Self, ConfigError> {
        if depth > MAX_DEPTH {
            return Err(ConfigError::new("", "value matchers are nested too deeply"));
        }
        Ok(match &message.match_pattern {
            Some(MatchPattern::NullMatch(_)) => Self::Null,
            Some(MatchPattern::DoubleMatch(m)) => match &m.match_pattern {
                Some(double_matcher::MatchPattern::Range(r)) => Self::DoubleRange(r.start, r.end),
                Some(double_matcher::MatchPattern::Exact(v)) => Self::Double(*v),
                None => return Err(ConfigError::new("double_match", "value is required")),
            },
            Some(MatchPattern::StringMatch(m)) => {
                Self::String(StringMatcher::from_proto(m).map_err(|e| e.within("string_match"))?)
            }
            Some(MatchPattern::BoolMatch(b)) => Self::Bool(*b),
            Some(MatchPattern::PresentMatch(b)) => Self::Present(*b),
            Some(MatchPattern::ListMatch(m)) => match &m.match_pattern {
                Some(list_matcher::MatchPattern::OneOf(inner)) => Self::ListElement(Box::new(
                    Self::at_depth(inner, depth + 1).map_err(|e| e.within("list_match.one_of"))?,
                )),
                None => return Err(ConfigError::new("list_match", "value is required")),
            },
            Some(MatchPattern::OrMatch(m)) => Self::Or(
                m.value_matchers
                    .iter()
                    .enumerate()
                    .map(|(i, inner)| {
                        Self::at_depth(inner, depth + 1).map_err(|e| e.within(&format!("or_match.value_matchers[{i}]")))
                    })
                    .collect::<Result<_, _>>()?,
            ),
            None => return Err(ConfigError::new("match_pattern", "value is required")),
        })
    }

    /// `None` is a value that is not there: nothing but an alternative can match it.
    pub fn matches(&self, value: Option<&Value>) -> bool {
        let kind = value.and_then(|v| v.kind.as_ref());
        match (self, kind) {
            (Self::Null, Some(Kind::NullValue(_))) => true,
            (Self::DoubleRange(start, end), Some(Kind::NumberValue(n))) => (*start..*end).contains(n),
            (Self::Double(wanted), Some(Kind::NumberValue(n))) => wanted == n,
            (Self::String(m), Some(Kind::StringValue(s))) => m.matches(s.as_bytes()),
            (Self::Bool(wanted), Some(Kind::BoolValue(b))) => wanted == b,
            (Self::Present(wanted), Some(_)) => *wanted,
            (Self::ListElement(m), Some(Kind::ListValue(list))) => list.values.iter().any(|v| m.matches(Some(v))),
            (Self::Or(matchers), _) => matchers.iter().any(|m| m.matches(value)),
            _ => false,
        }
    }
}
