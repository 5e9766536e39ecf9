//! Expected values are those of Envoy 1.40, asked with these trees as `forward_client_cert_matcher`.

use std::sync::Arc;

use nuncio_api::pb::google::protobuf::StringValue;
use nuncio_api::pb::xds::r#type::matcher::v3::string_matcher::MatchPattern;
use nuncio_core::net::{Address, TlsInfo};
use pb::matcher::matcher_list::predicate::PredicateList;
use pb::matcher::matcher_tree::MatchMap;
use pb::matcher::{MatcherList, MatcherTree};

use super::*;

fn any<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

fn extension<M: Message + Name>(message: &M) -> Option<TypedExtensionConfig> {
    Some(TypedExtensionConfig { name: "any".into(), typed_config: Some(any(message)) })
}

fn header(name: &str) -> Option<TypedExtensionConfig> {
    extension(&HttpRequestHeaderMatchInput { header_name: name.into() })
}

fn value(input: Option<TypedExtensionConfig>, pattern: MatchPattern) -> PredicateProto {
    let matcher = pb::StringMatcher { match_pattern: Some(pattern), ignore_case: false };
    let matcher = Some(single_predicate::Matcher::ValueMatch(matcher));
    PredicateProto { match_type: Some(MatchType::SinglePredicate(SinglePredicate { input, matcher })) }
}

fn exact(name: &str, text: &str) -> PredicateProto {
    value(header(name), MatchPattern::Exact(text.into()))
}

fn prefix(name: &str, text: &str) -> PredicateProto {
    value(header(name), MatchPattern::Prefix(text.into()))
}

fn leaf(name: &str) -> OnMatchProto {
    let action = extension(&StringValue { value: name.into() });
    OnMatchProto { keep_matching: false, on_match: action.map(on_match::OnMatch::Action) }
}

fn below(tree: pb::Matcher) -> OnMatchProto {
    OnMatchProto { keep_matching: false, on_match: Some(on_match::OnMatch::Matcher(Box::new(tree))) }
}

fn list(fields: Vec<(PredicateProto, OnMatchProto)>, otherwise: Option<OnMatchProto>) -> pb::Matcher {
    let field = |(predicate, branch)| matcher_list::FieldMatcher { predicate: Some(predicate), on_match: Some(branch) };
    let matchers = fields.into_iter().map(field).collect();
    let matcher_type = Some(MatcherType::MatcherList(MatcherList { matchers }));
    pb::Matcher { matcher_type, on_no_match: otherwise.map(Box::new) }
}

fn map(
    tree: fn(MatchMap) -> TreeType,
    fields: Vec<(&str, OnMatchProto)>,
    otherwise: Option<OnMatchProto>,
) -> pb::Matcher {
    let map = fields.into_iter().map(|(key, branch)| (key.to_owned(), branch)).collect();
    let tree = MatcherTree { input: header("x"), tree_type: Some(tree(MatchMap { map })) };
    pb::Matcher { matcher_type: Some(MatcherType::MatcherTree(tree)), on_no_match: otherwise.map(Box::new) }
}

fn compile(message: &pb::Matcher) -> Result<MatchTree<String>, String> {
    let action = |config: &Any| unpack::<StringValue>(config).map(|text| text.value);
    MatchTree::from_proto(message, &action).map_err(|e| e.to_string())
}

fn connection(peer: Option<PeerCertificate>) -> ConnectionInfo {
    let address = || Address::Ip("10.0.0.1:80".parse().unwrap());
    let mut connection = ConnectionInfo::new(1, address(), address());
    connection.tls = Some(TlsInfo { peer: peer.map(Arc::new), ..TlsInfo::default() });
    connection
}

/// What the tree says of requests with `x` and `y`; "" is without the header.
fn found(message: &pb::Matcher, requests: &[(&str, &str)]) -> Vec<String> {
    let (tree, connection) = (compile(message).unwrap(), connection(None));
    let one = |(x, y): &(&str, &str)| {
        let fields = [("x", *x), ("y", *y)].into_iter().filter(|(_, value)| !value.is_empty());
        let headers = fields.collect();
        let leaf = tree.find(Matched { headers: &headers, connection: &connection });
        leaf.cloned().unwrap_or_default()
    };
    requests.iter().map(one).collect()
}

#[test]
fn what_leads_nowhere_is_as_if_it_had_not_matched() {
    let inner = list(vec![(exact("y", "b"), leaf("both"))], None);
    let tree = list(
        vec![(prefix("x", "a"), below(inner.clone())), (prefix("x", "ab"), leaf("second"))],
        Some(leaf("otherwise")),
    );
    let requests = [("a", ""), ("ab", ""), ("a", "b"), ("ab", "b"), ("", "b"), ("", "")];
    assert_eq!(found(&tree, &requests), ["otherwise", "second", "both", "both", "otherwise", "otherwise"]);
    let tree =
        map(TreeType::ExactMatchMap, vec![("a", leaf("a")), ("ab", below(inner.clone()))], Some(leaf("otherwise")));
    let requests = [("a", ""), ("ab", ""), ("ab", "b"), ("abc", "b"), ("", "")];
    assert_eq!(found(&tree, &requests), ["a", "otherwise", "both", "otherwise", "otherwise"]);
    let tree = map(TreeType::PrefixMatchMap, vec![("a", leaf("a")), ("ab", leaf("ab")), ("abc", below(inner))], None);
    let requests = [("a", ""), ("ab", ""), ("abc", ""), ("abc", "b"), ("b", ""), ("", "b")];
    assert_eq!(found(&tree, &requests), ["a", "ab", "ab", "both", "", ""]);
}

#[test]
fn predicates_are_joined_and_turned_round() {
    let two = || PredicateList { predicate: vec![prefix("x", "a"), prefix("y", "b")] };
    let of = |match_type| list(vec![(PredicateProto { match_type: Some(match_type) }, leaf("hit"))], None);
    let requests = [("a", ""), ("", "b"), ("a", "b"), ("", "")];
    assert_eq!(found(&of(MatchType::AndMatcher(two())), &requests), ["", "", "hit", ""]);
    assert_eq!(found(&of(MatchType::OrMatcher(two())), &requests), ["hit", "hit", "hit", ""]);
    let not = MatchType::NotMatcher(Box::new(exact("x", "a")));
    assert_eq!(found(&of(not), &requests), ["", "hit", "", "hit"], "also where there is no such header");
}

#[test]
fn several_headers_are_one_value() {
    let tree = compile(&list(vec![(exact("X", "a,b"), leaf("hit"))], None)).unwrap();
    let headers = [("x", "a"), ("x", "b")].into_iter().collect();
    assert!(tree.find(Matched { headers: &headers, connection: &connection(None) }).is_some());
}

#[test]
fn the_client_s_certificate_is_looked_at() {
    let peer = PeerCertificate { subject: "CN=c".into(), dns_sans: vec!["a".into(), "b".into()], ..Default::default() };
    let with = |input, text: &str| {
        let tree = compile(&list(vec![(value(input, MatchPattern::Exact(text.into())), leaf("hit"))], None)).unwrap();
        let find = |peer| tree.find(Matched { headers: &HeaderMap::new(), connection: &connection(peer) }).is_some();
        (find(Some(peer.clone())), find(None))
    };
    assert_eq!(with(extension(&SubjectInput {}), "CN=c"), (true, false));
    assert_eq!(with(extension(&DnsSanInput {}), "a,b"), (true, false));
    assert_eq!(with(extension(&UriSanInput {}), ""), (false, false), "there is none");
}

#[test]
fn what_is_not_known_is_named() {
    let unknown = value(extension(&StringValue::default()), MatchPattern::Exact("a".into()));
    assert_eq!(
        compile(&list(vec![(unknown, leaf("a"))], None)).unwrap_err(),
        "matcher_list.matchers[0].predicate.single_predicate.input.typed_config: the input google.protobuf.StringValue is \
         not implemented"
    );
}
