//! `type.matcher.v3.MetadataMatcher` and `FilterStateMatcher`.

use nuncio_api::pb::envoy::r#type::matcher::v3::{
    self as pb, filter_state_matcher, metadata_matcher::path_segment::Segment,
};
use nuncio_api::supports;

use super::cidr::CidrList;
use super::string::StringMatcher;
use super::value::ValueMatcher;
use crate::error::ConfigError;
use crate::metadata::Metadata;
use crate::stream_info::FilterState;

supports!(pub(super) METADATA = "envoy.type.matcher.v3.MetadataMatcher" { filter, path, value, invert });
supports!(pub(super) SEGMENT = "envoy.type.matcher.v3.MetadataMatcher.PathSegment" { key });
supports!(pub(super) FILTER_STATE = "envoy.type.matcher.v3.FilterStateMatcher" { key, string_match, address_match });

/// A test of the value at a path inside one namespace of structured metadata.
#[derive(Debug, Clone)]
pub struct MetadataMatcher {
    filter: String,
    path: Vec<String>,
    value: ValueMatcher,
    invert: bool,
}

impl MetadataMatcher {
    pub fn from_proto(message: &pb::MetadataMatcher) -> Result<Self, ConfigError> {
        let Some(value) = &message.value else { return Err(ConfigError::new("value", "value is required")) };
        let path = message
            .path
            .iter()
            .enumerate()
            .map(|(i, segment)| match &segment.segment {
                Some(Segment::Key(key)) => Ok(key.clone()),
                None => Err(ConfigError::new(format!("path[{i}]"), "value is required")),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            filter: message.filter.clone(),
            path,
            value: ValueMatcher::from_proto(value).map_err(|e| e.within("value"))?,
            invert: message.invert,
        })
    }

    pub fn matches(&self, metadata: &Metadata) -> bool {
        self.value.matches(metadata.get(&self.filter, &self.path)) != self.invert
    }
}

/// A test of the text of an object in the filter state, or of an address it holds.
#[derive(Debug, Clone)]
pub struct FilterStateMatcher {
    key: String,
    test: FilterStateTest,
}

#[derive(Debug, Clone)]
enum FilterStateTest {
    Text(StringMatcher),
    Address(CidrList),
}

impl FilterStateMatcher {
    pub fn from_proto(message: &pb::FilterStateMatcher) -> Result<Self, ConfigError> {
        let test = match &message.matcher {
            Some(filter_state_matcher::Matcher::StringMatch(m)) => {
                FilterStateTest::Text(StringMatcher::from_proto(m).map_err(|e| e.within("string_match"))?)
            }
            Some(filter_state_matcher::Matcher::AddressMatch(m)) => {
                FilterStateTest::Address(CidrList::from_address_matcher(m).map_err(|e| e.within("address_match"))?)
            }
            None => return Err(ConfigError::new("matcher", "value is required")),
        };
        Ok(Self { key: message.key.clone(), test })
    }

    pub fn matches(&self, state: &FilterState) -> bool {
        let Some(text) = state.get(&self.key).and_then(|object| object.text()) else { return false };
        match &self.test {
            FilterStateTest::Text(m) => m.matches(text.as_bytes()),
            FilterStateTest::Address(list) => text.parse().is_ok_and(|ip| list.matches(ip)),
        }
    }
}

#[cfg(test)]
mod tests {
    use nuncio_api::pb::envoy::r#type::matcher::v3::{metadata_matcher::PathSegment, value_matcher::MatchPattern};
    use nuncio_api::pb::google::protobuf::{ListValue, Struct, Value, value::Kind};

    use super::*;

    fn matcher(key: &str, pattern: MatchPattern, invert: bool) -> MetadataMatcher {
        MetadataMatcher::from_proto(&pb::MetadataMatcher {
            filter: "ns".into(),
            path: vec![PathSegment { segment: Some(Segment::Key(key.into())) }],
            value: Some(pb::ValueMatcher { match_pattern: Some(pattern) }),
            invert,
        })
        .unwrap()
    }

    fn metadata() -> Metadata {
        let value = |kind| Value { kind: Some(kind) };
        let list = ListValue { values: vec![value(Kind::NumberValue(1.0)), value(Kind::StringValue("x".into()))] };
        let fields = [
            ("n".to_owned(), value(Kind::NumberValue(5.0))),
            ("b".to_owned(), value(Kind::BoolValue(true))),
            ("l".to_owned(), value(Kind::ListValue(list))),
            ("null".to_owned(), value(Kind::NullValue(0))),
        ];
        let mut all = Metadata::default();
        all.merge("ns", Struct { fields: fields.into_iter().collect() });
        all
    }

    #[test]
    fn kinds_must_agree_and_ranges_are_half_open() {
        use nuncio_api::pb::envoy::r#type::v3::DoubleRange;
        let double = |p| MatchPattern::DoubleMatch(pb::DoubleMatcher { match_pattern: Some(p) });
        let range = |start, end| double(pb::double_matcher::MatchPattern::Range(DoubleRange { start, end }));
        let all = metadata();
        assert!(matcher("n", range(5.0, 6.0), false).matches(&all));
        assert!(!matcher("n", range(4.0, 5.0), false).matches(&all));
        assert!(matcher("n", double(pb::double_matcher::MatchPattern::Exact(5.0)), false).matches(&all));
        assert!(!matcher("b", range(0.0, 9.0), false).matches(&all));
        assert!(matcher("b", MatchPattern::BoolMatch(true), false).matches(&all));
        assert!(matcher("null", MatchPattern::NullMatch(Default::default()), false).matches(&all));
    }

    #[test]
    fn one_element_of_a_list_and_one_alternative_are_enough() {
        let text = pb::ValueMatcher {
            match_pattern: Some(MatchPattern::StringMatch(pb::StringMatcher {
                match_pattern: Some(pb::string_matcher::MatchPattern::Exact("x".into())),
                ignore_case: false,
            })),
        };
        let list = MatchPattern::ListMatch(Box::new(pb::ListMatcher {
            match_pattern: Some(pb::list_matcher::MatchPattern::OneOf(Box::new(text.clone()))),
        }));
        let either = pb::ValueMatcher { match_pattern: Some(MatchPattern::BoolMatch(true)) };
        let or = MatchPattern::OrMatch(pb::OrMatcher { value_matchers: vec![text, either] });
        assert!(matcher("l", list.clone(), false).matches(&metadata()));
        assert!(!matcher("n", list, false).matches(&metadata()));
        assert!(matcher("b", or, false).matches(&metadata()));
    }

    #[test]
    fn a_missing_value_matches_only_inverted() {
        let all = metadata();
        assert!(!matcher("missing", MatchPattern::PresentMatch(true), false).matches(&all));
        assert!(!matcher("missing", MatchPattern::PresentMatch(false), false).matches(&all));
        assert!(matcher("missing", MatchPattern::PresentMatch(true), true).matches(&all));
        assert!(matcher("n", MatchPattern::PresentMatch(true), false).matches(&all));
    }

    #[test]
    fn filter_state_is_compared_as_text_or_address() {
        let mut state = FilterState::default();
        state.set("who", std::sync::Arc::new("10.1.2.3".to_owned()));
        let address = pb::AddressMatcher {
            ranges: vec![nuncio_api::pb::xds::core::v3::CidrRange {
                address_prefix: "10.0.0.0".into(),
                prefix_len: Some(nuncio_api::pb::google::protobuf::UInt32Value { value: 8 }),
            }],
            invert_match: false,
        };
        let build = |key: &str| {
            FilterStateMatcher::from_proto(&pb::FilterStateMatcher {
                key: key.into(),
                matcher: Some(filter_state_matcher::Matcher::AddressMatch(address.clone())),
            })
            .unwrap()
        };
        assert!(build("who").matches(&state));
        assert!(!build("nobody").matches(&state));
    }
}
