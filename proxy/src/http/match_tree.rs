//! Trees of matchers (`xds.type.matcher.v3.Matcher`): what is to be done with a request, by what its head and its
//! client's certificate say. As Envoy: whatever leads nowhere is as if it had not matched, and the next is tried.

use std::borrow::Cow;
use std::collections::HashMap;

use nuncio_api::any::{type_name, unpack};
use nuncio_api::pb::envoy::extensions::matching::common_inputs::ssl::v3::{DnsSanInput, SubjectInput, UriSanInput};
use nuncio_api::pb::envoy::r#type::matcher::v3::{HttpRequestHeaderMatchInput, StringMatcher as StringMatcherProto};
use nuncio_api::pb::google::protobuf::Any;
use nuncio_api::pb::xds::core::v3::TypedExtensionConfig;
use nuncio_api::pb::xds::r#type::matcher::v3 as pb;
use nuncio_api::prost::{Message, Name};
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::http::HeaderMap;
use nuncio_core::matcher::StringMatcher;
use nuncio_core::net::{ConnectionInfo, PeerCertificate};
use pb::matcher::matcher_list::predicate::{MatchType, SinglePredicate, single_predicate};
use pb::matcher::matcher_list::{self, Predicate as PredicateProto};
use pb::matcher::matcher_tree::TreeType;
use pb::matcher::{MatcherType, OnMatch as OnMatchProto, on_match};

supports!(MATCHER = "xds.type.matcher.v3.Matcher" { matcher_list, matcher_tree, on_no_match });
supports!(ON_MATCH = "xds.type.matcher.v3.Matcher.OnMatch" { matcher, action });
supports!(LIST = "xds.type.matcher.v3.Matcher.MatcherList" { matchers });
supports!(FIELD = "xds.type.matcher.v3.Matcher.MatcherList.FieldMatcher" { predicate, on_match });
supports!(PREDICATE = "xds.type.matcher.v3.Matcher.MatcherList.Predicate" {
    single_predicate, or_matcher, and_matcher, not_matcher,
});
supports!(PREDICATES = "xds.type.matcher.v3.Matcher.MatcherList.Predicate.PredicateList" { predicate });
supports!(SINGLE = "xds.type.matcher.v3.Matcher.MatcherList.Predicate.SinglePredicate" { input, value_match });
supports!(TREE = "xds.type.matcher.v3.Matcher.MatcherTree" { input, exact_match_map, prefix_match_map });
supports!(MAP = "xds.type.matcher.v3.Matcher.MatcherTree.MatchMap" { map });
supports!(STRING = "xds.type.matcher.v3.StringMatcher" { exact, prefix, suffix, safe_regex, contains, ignore_case });
supports!(REGEX = "xds.type.matcher.v3.RegexMatcher" { regex, google_re2 });
supports!(RE2 = "xds.type.matcher.v3.RegexMatcher.GoogleRE2" {});
supports!(EXTENSION = "xds.core.v3.TypedExtensionConfig" { name, typed_config });
supports!(HEADER = "envoy.type.matcher.v3.HttpRequestHeaderMatchInput" { header_name });
supports!(URI = "envoy.extensions.matching.common_inputs.ssl.v3.UriSanInput" {});
supports!(DNS = "envoy.extensions.matching.common_inputs.ssl.v3.DnsSanInput" {});
supports!(SUBJECT = "envoy.extensions.matching.common_inputs.ssl.v3.SubjectInput" {});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[
    &MATCHER,
    &ON_MATCH,
    &LIST,
    &FIELD,
    &PREDICATE,
    &PREDICATES,
    &SINGLE,
    &TREE,
    &MAP,
    &STRING,
    &REGEX,
    &RE2,
    &EXTENSION,
    &HEADER,
    &URI,
    &DNS,
    &SUBJECT,
];

/// Reads what a leaf of a tree asks for.
type ReadAction<'r, T> = &'r dyn Fn(&Any) -> Result<T, ConfigError>;

/// A compiled tree whose leaves are `T`.
#[derive(Debug, Clone)]
pub struct MatchTree<T> {
    branches: Branches<T>,
    otherwise: Option<Box<Branch<T>>>,
}

#[derive(Debug, Clone)]
enum Branches<T> {
    /// The first that leads somewhere.
    List(Vec<(Predicate, Branch<T>)>),
    Exact(Input, HashMap<Box<[u8]>, Branch<T>>),
    /// The longest first.
    Prefix(Input, Vec<(Box<[u8]>, Branch<T>)>),
}

#[derive(Debug, Clone)]
enum Branch<T> {
    Leaf(T),
    Tree(MatchTree<T>),
}

#[derive(Debug, Clone)]
enum Predicate {
    Value(Input, StringMatcher),
    All(Vec<Predicate>),
    Any(Vec<Predicate>),
    Not(Box<Predicate>),
}

/// Where a value comes from.
#[derive(Debug, Clone)]
enum Input {
    Header(Box<str>),
    Uris,
    DnsNames,
    Subject,
}

/// What a tree looks at.
#[derive(Clone, Copy)]
pub struct Matched<'a> {
    pub headers: &'a HeaderMap,
    pub connection: &'a ConnectionInfo,
}

impl<T> MatchTree<T> {
    pub fn from_proto(message: &pb::Matcher, action: ReadAction<'_, T>) -> Result<Self, ConfigError> {
        let branches = match &message.matcher_type {
            Some(MatcherType::MatcherList(list)) => {
                let each = list.matchers.iter().enumerate();
                let read = |(i, field)| Self::field(field, action).map_err(|e| e.within(&format!("matchers[{i}]")));
                Branches::List(each.map(read).collect::<Result<_, _>>().map_err(|e| e.within("matcher_list"))?)
            }
            Some(MatcherType::MatcherTree(tree)) => Self::tree(tree, action).map_err(|e| e.within("matcher_tree"))?,
            // Everything is otherwise.
            None => Branches::List(Vec::new()),
        };
        let otherwise = message.on_no_match.as_ref().map(|branch| Branch::from_proto(branch, action));
        let otherwise = otherwise.transpose().map_err(|e| e.within("on_no_match"))?.map(Box::new);
        Ok(Self { branches, otherwise })
    }

    fn field(
        message: &matcher_list::FieldMatcher,
        action: ReadAction<'_, T>,
    ) -> Result<(Predicate, Branch<T>), ConfigError> {
        let (Some(predicate), Some(branch)) = (&message.predicate, &message.on_match) else {
            return Err(ConfigError::new("", "predicate and on_match are required"));
        };
        let predicate = Predicate::from_proto(predicate).map_err(|e| e.within("predicate"))?;
        Ok((predicate, Branch::from_proto(branch, action).map_err(|e| e.within("on_match"))?))
    }

    fn tree(message: &pb::matcher::MatcherTree, action: ReadAction<'_, T>) -> Result<Branches<T>, ConfigError> {
        let input = Input::from_proto(message.input.as_ref())?;
        let read = |field: &str, map: &HashMap<String, OnMatchProto>| {
            let each = map.iter().map(|(key, branch)| {
                let at = |e: ConfigError| e.within(&format!("{field}.map[{key}]"));
                Ok((key.as_bytes().into(), Branch::from_proto(branch, action).map_err(at)?))
            });
            each.collect::<Result<Vec<(Box<[u8]>, Branch<T>)>, ConfigError>>()
        };
        match &message.tree_type {
            Some(TreeType::ExactMatchMap(exact)) => {
                Ok(Branches::Exact(input, read("exact_match_map", &exact.map)?.into_iter().collect()))
            }
            Some(TreeType::PrefixMatchMap(prefixes)) => {
                let mut prefixes = read("prefix_match_map", &prefixes.map)?;
                prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
                Ok(Branches::Prefix(input, prefixes))
            }
            Some(TreeType::CustomMatch(_)) => Err(ConfigError::new("custom_match", "is not implemented")),
            None => Err(ConfigError::new("tree_type", "value is required")),
        }
    }

    /// The leaf for a request, if any.
    pub fn find(&self, matched: Matched<'_>) -> Option<&T> {
        let found = match &self.branches {
            Branches::List(list) => {
                let hits = list.iter().filter(|(predicate, _)| predicate.matches(matched));
                hits.map(|(_, branch)| branch).find_map(|branch| branch.find(matched))
            }
            Branches::Exact(input, map) => {
                let branch = input.value(matched).and_then(|value| map.get(&*value));
                branch.and_then(|branch| branch.find(matched))
            }
            Branches::Prefix(input, prefixes) => input.value(matched).and_then(|value| {
                let hits = prefixes.iter().filter(|(prefix, _)| value.starts_with(prefix));
                hits.map(|(_, branch)| branch).find_map(|branch| branch.find(matched))
            }),
        };
        found.or_else(|| self.otherwise.as_ref()?.find(matched))
    }
}

impl<T> Branch<T> {
    fn from_proto(message: &OnMatchProto, action: ReadAction<'_, T>) -> Result<Self, ConfigError> {
        match &message.on_match {
            Some(on_match::OnMatch::Matcher(tree)) => {
                MatchTree::from_proto(tree, action).map(Self::Tree).map_err(|e| e.within("matcher"))
            }
            Some(on_match::OnMatch::Action(extension)) => {
                let config = extension.typed_config.as_ref().ok_or_else(|| ConfigError::new("", "value is required"));
                config.and_then(action).map(Self::Leaf).map_err(|e| e.within("typed_config").within("action"))
            }
            None => Err(ConfigError::new("on_match", "value is required")),
        }
    }

    fn find(&self, matched: Matched<'_>) -> Option<&T> {
        match self {
            Self::Leaf(leaf) => Some(leaf),
            Self::Tree(tree) => tree.find(matched),
        }
    }
}

impl Predicate {
    fn from_proto(message: &PredicateProto) -> Result<Self, ConfigError> {
        let all = |field: &str, list: &[PredicateProto]| {
            let each = list.iter().enumerate();
            let read = |(i, one)| Self::from_proto(one).map_err(|e| e.within(&format!("{field}.predicate[{i}]")));
            each.map(read).collect::<Result<Vec<_>, _>>()
        };
        match &message.match_type {
            Some(MatchType::SinglePredicate(single)) => Self::single(single).map_err(|e| e.within("single_predicate")),
            Some(MatchType::OrMatcher(list)) => all("or_matcher", &list.predicate).map(Self::Any),
            Some(MatchType::AndMatcher(list)) => all("and_matcher", &list.predicate).map(Self::All),
            Some(MatchType::NotMatcher(not)) => {
                Self::from_proto(not).map(|not| Self::Not(Box::new(not))).map_err(|e| e.within("not_matcher"))
            }
            None => Err(ConfigError::new("match_type", "value is required")),
        }
    }

    fn single(message: &SinglePredicate) -> Result<Self, ConfigError> {
        let input = Input::from_proto(message.input.as_ref())?;
        match &message.matcher {
            Some(single_predicate::Matcher::ValueMatch(value)) => {
                // The two messages have the same fields.
                let same = StringMatcherProto::decode(&*value.encode_to_vec());
                let same = same.map_err(|e| ConfigError::new("value_match", e.to_string()))?;
                let matcher = StringMatcher::from_proto(&same).map_err(|e| e.within("value_match"))?;
                Ok(Self::Value(input, matcher))
            }
            Some(single_predicate::Matcher::CustomMatch(_)) => {
                Err(ConfigError::new("custom_match", "is not implemented"))
            }
            None => Err(ConfigError::new("matcher", "value is required")),
        }
    }

    fn matches(&self, matched: Matched<'_>) -> bool {
        match self {
            Self::Value(input, matcher) => input.value(matched).is_some_and(|value| matcher.matches(&value)),
            Self::All(list) => list.iter().all(|one| one.matches(matched)),
            Self::Any(list) => list.iter().any(|one| one.matches(matched)),
            Self::Not(one) => !one.matches(matched),
        }
    }
}

impl Input {
    fn from_proto(message: Option<&TypedExtensionConfig>) -> Result<Self, ConfigError> {
        let at = |e: ConfigError| e.within("typed_config").within("input");
        let Some(config) = message.and_then(|message| message.typed_config.as_ref()) else {
            return Err(at(ConfigError::new("", "value is required")));
        };
        let name = type_name(&config.type_url);
        if name == HttpRequestHeaderMatchInput::full_name() {
            let header = unpack::<HttpRequestHeaderMatchInput>(config).map_err(at)?;
            return Ok(Self::Header(header.header_name.to_ascii_lowercase().into()));
        }
        let certificate = [
            (UriSanInput::full_name(), Self::Uris),
            (DnsSanInput::full_name(), Self::DnsNames),
            (SubjectInput::full_name(), Self::Subject),
        ];
        let found = certificate.into_iter().find(|(known, _)| known == name);
        let unknown = || at(ConfigError::new("", format!("the input {name} is not implemented")));
        found.map(|(_, input)| input).ok_or_else(unknown)
    }

    /// None: there is no such thing. Several are one, with commas.
    fn value<'a>(&'a self, matched: Matched<'a>) -> Option<Cow<'a, [u8]>> {
        let peer = || -> Option<&'a PeerCertificate> { matched.connection.tls.as_ref()?.peer.as_deref() };
        let joined = |names: &'a [String]| match names {
            [] => None,
            [one] => Some(Cow::Borrowed(one.as_bytes())),
            many => Some(Cow::Owned(many.join(",").into_bytes())),
        };
        match self {
            Self::Header(name) => matched.headers.get_joined(name, ","),
            Self::Uris => joined(&peer()?.uri_sans),
            Self::DnsNames => joined(&peer()?.dns_sans),
            Self::Subject => Some(Cow::Borrowed(peer()?.subject.as_bytes())).filter(|subject| !subject.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests;
