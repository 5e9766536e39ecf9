//! The compiled matcher against one that goes through the list of chains step by step, and Envoy's refusals.

use nuncio_api::pb::google::protobuf::UInt32Value;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

/// How well a chain fits at one step; `None`: not at all.
type Step<'a> = Box<dyn Fn(&FilterChainMatch) -> Option<usize> + 'a>;

/// Keeps at each step the chains that say it best.
fn naive(chains: &[FilterChainMatch], c: &ConnectionInfo) -> Option<usize> {
    let mut left: Vec<usize> = (0..chains.len()).collect();
    let steps: [Step<'_>; 8] = [
        Box::new(|m| listed(m.destination_port.as_ref().map(|p| p.value).as_slice(), |p| Some(*p) == port(&c.local))),
        Box::new(|m| longest(&m.prefix_ranges, &c.local)),
        Box::new(|m| name(&m.server_names, c.requested_server_name.as_deref().unwrap_or_default())),
        Box::new(|m| {
            let set =
                if m.transport_protocol.is_empty() { &[][..] } else { std::slice::from_ref(&m.transport_protocol) };
            listed(set, |t| t == c.transport_protocol)
        }),
        Box::new(|m| {
            let first = |p: &String| c.application_protocols.iter().position(|a| a == p.as_bytes());
            match m.application_protocols.is_empty() {
                true => Some(0),
                false => m.application_protocols.iter().filter_map(first).min().map(|at| 100 - at),
            }
        }),
        Box::new(|m| longest(&m.direct_source_prefix_ranges, &c.direct_remote)),
        Box::new(|m| {
            let local = c.remote.ip().unwrap().is_loopback() || c.remote.ip() == c.local.ip();
            match m.source_type {
                0 => Some(0),
                1 => local.then_some(1),
                _ => (!local).then_some(1),
            }
        }),
        Box::new(|m| longest(&m.source_prefix_ranges, &c.remote)),
    ];
    for step in steps {
        let best = left.iter().filter_map(|i| step(&chains[*i])).max()?;
        left.retain(|i| step(&chains[*i]) == Some(best));
    }
    let ports = |i: &usize| listed(&chains[*i].source_ports, |p| Some(*p) == port(&c.remote));
    let best = left.iter().filter_map(ports).max()?;
    left.into_iter().find(|i| ports(i) == Some(best))
}

fn port(address: &Address) -> Option<u32> {
    address.port().map(u32::from)
}

fn listed<T>(list: &[T], is: impl Fn(&T) -> bool) -> Option<usize> {
    if list.is_empty() { Some(0) } else { list.iter().any(is).then_some(1) }
}

fn longest(list: &[CidrMessage], address: &Address) -> Option<usize> {
    let ip = address.ip().unwrap();
    if list.is_empty() {
        return Some(0);
    }
    let ranges =
        list.iter().map(|r| CidrRange::new(r.address_prefix.parse().unwrap(), r.prefix_len.unwrap().value as u8));
    ranges.filter(|r| r.contains(ip)).map(|r| usize::from(r.prefix_len())).max()
}

fn name(list: &[String], asked: &str) -> Option<usize> {
    let fits = |pattern: &String| match pattern.strip_prefix('*') {
        Some(suffix) => (asked.len() > suffix.len() && asked.ends_with(suffix)).then_some(suffix.len()),
        None => (pattern == asked).then_some(1000),
    };
    if list.is_empty() { Some(0) } else { list.iter().filter_map(fits).max() }
}

fn cidrs(all: &'static [(&'static str, u32)]) -> impl Strategy<Value = Vec<CidrMessage>> {
    subsequence(all, 0..=2).prop_map(|list| {
        let range = |(address, len): (&str, u32)| CidrMessage {
            address_prefix: address.into(),
            prefix_len: Some(UInt32Value { value: len }),
        };
        list.into_iter().map(range).collect()
    })
}

fn texts(all: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    subsequence(all, 0..=2).prop_map(|list| list.into_iter().map(str::to_owned).collect())
}

const RANGES: &[(&str, u32)] =
    &[("10.0.0.0", 8), ("10.1.0.0", 16), ("10.1.2.3", 32), ("127.0.0.0", 8), ("2001:db8::", 32)];
const NAMES: &[&str] = &["a.b.c", "*.b.c", "*.c", "b.c"];
const PROTOCOLS: &[&str] = &["h2", "http/1.1", "istio"];
const ADDRESSES: &[&str] = &["10.1.2.3", "10.1.9.9", "10.9.9.9", "127.0.0.1", "192.0.2.1", "2001:db8::1", "::1"];

prop_compose! {
    fn chain()(
        port in prop_oneof![3 => Just(None), 1 => Just(Some(80)), 1 => Just(Some(443))],
        prefix_ranges in cidrs(RANGES),
        server_names in texts(NAMES),
        transport_protocol in select(&["", "", "tls", "raw_buffer"][..]),
        application_protocols in texts(PROTOCOLS),
        direct_source_prefix_ranges in cidrs(RANGES),
        source_type in 0..3i32,
        source_prefix_ranges in cidrs(RANGES),
        source_ports in subsequence(&[1000u32, 2000][..], 0..=2),
        general in 0..9u32,
    ) -> FilterChainMatch {
        let mut message = FilterChainMatch {
            destination_port: port.map(|value| UInt32Value { value }),
            prefix_ranges,
            server_names,
            transport_protocol: transport_protocol.into(),
            application_protocols,
            direct_source_prefix_ranges,
            source_type,
            source_prefix_ranges,
            source_ports,
            ..Default::default()
        };
        // With all criteria at once hardly any chain would ever match.
        if general != 0 { message.prefix_ranges.clear(); }
        if general != 1 { message.direct_source_prefix_ranges.clear(); }
        if general > 4 { message.source_prefix_ranges.clear(); message.source_ports.clear(); }
        if general > 6 { message.application_protocols.clear(); message.source_type = 0; }
        message
    }
}

prop_compose! {
    fn connection()(
        local in select(ADDRESSES), remote in select(ADDRESSES), direct in select(ADDRESSES),
        to in select(&[80u16, 443, 8080][..]), from in select(&[1000u16, 2000, 3000][..]),
        name in select(&["", "a.b.c", "x.b.c", "b.c", "y.c", "other"][..]),
        transport in select(&["tls", "raw_buffer"][..]),
        protocols in subsequence(PROTOCOLS, 0..=3).prop_shuffle(),
    ) -> ConnectionInfo {
        let at = |ip: &str, port| Address::Ip((ip.parse::<IpAddr>().unwrap(), port).into());
        let mut info = ConnectionInfo::new(0, at(remote, from), at(local, to));
        info.direct_remote = at(direct, 7);
        info.requested_server_name = Some(name.into());
        info.transport_protocol = transport;
        info.application_protocols = protocols.into_iter().map(|p| p.as_bytes().to_vec()).collect();
        info
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn the_compiled_matcher_takes_the_chain_that_a_step_by_step_search_takes(
        chains in proptest::collection::vec(chain(), 1..8),
        connections in proptest::collection::vec(connection(), 16),
    ) {
        let chains: Vec<FilterChain> =
            chains.into_iter().map(|m| FilterChain { filter_chain_match: Some(m), ..Default::default() }).collect();
        // Chains that overlap are refused; those before the first such one are a listener.
        let count = (0..=chains.len()).rev().find(|n| ChainMatcher::compile(&chains[..*n], "").is_ok()).unwrap();
        let matcher = ChainMatcher::compile(&chains[..count], "").unwrap();
        let matches: Vec<_> = chains[..count].iter().map(|c| c.filter_chain_match.clone().unwrap()).collect();
        for connection in &connections {
            prop_assert_eq!(matcher.find(connection), naive(&matches, connection));
        }
    }
}

fn refusal(chains: &[(&str, FilterChainMatch)]) -> String {
    let chain = |(name, m): &(&str, FilterChainMatch)| FilterChain {
        name: (*name).into(),
        filter_chain_match: Some(m.clone()),
        ..Default::default()
    };
    let chains: Vec<_> = chains.iter().map(chain).collect();
    ChainMatcher::compile(&chains, "127.0.0.1:19999").err().map_or(String::new(), |e| e[0].reason.clone())
}

fn names(list: &[&str]) -> FilterChainMatch {
    FilterChainMatch { server_names: list.iter().map(|n| (*n).to_owned()).collect(), ..Default::default() }
}

/// The words are Envoy 1.40's.
#[test]
fn chains_that_would_take_the_same_connections_are_refused_in_envoys_words() {
    let range = CidrMessage { address_prefix: "10.0.0.0".into(), prefix_len: Some(UInt32Value { value: 8 }) };
    let full = FilterChainMatch {
        destination_port: Some(UInt32Value { value: 80 }),
        prefix_ranges: vec![range],
        ..names(&["a.x", "b.x"])
    };
    assert_eq!(
        refusal(&[("a", full.clone()), ("b", full)]),
        "error adding listener '127.0.0.1:19999': filter chain 'b' has the same matching rules defined as 'a'. \
         duplicate matcher is: {\"prefix_ranges\":[{\"address_prefix\":\"10.0.0.0\",\"prefix_len\":8}],\
         \"destination_port\":80,\"server_names\":[\"a.x\",\"b.x\"]}"
    );
    assert!(refusal(&[("a", names(&[])), ("b", names(&[]))]).ends_with("duplicate matcher is: {}"));
    let overlapping =
        "error adding listener '127.0.0.1:19999': multiple filter chains with overlapping matching rules are defined";
    assert_eq!(refusal(&[("a", names(&["a.x", "b.x"])), ("b", names(&["b.x"]))]), overlapping);
    assert_eq!(refusal(&[("a", names(&["b.x", "b.x"]))]), overlapping);
    assert_eq!(refusal(&[("a", names(&["A.x"])), ("b", names(&["a.x"]))]), overlapping);
    let partial = "error adding listener '127.0.0.1:19999': partial wildcards are not supported in \"server_names\"";
    assert_eq!(refusal(&[("a", names(&["a*.x"]))]), partial);
    assert_eq!(refusal(&[("a", names(&["*"]))]), partial);
    assert_eq!(refusal(&[("a", names(&["*.a.*.x"]))]), "");
    let suffix = FilterChainMatch { suffix_len: Some(UInt32Value { value: 8 }), ..Default::default() };
    let unimplemented = "error adding listener '127.0.0.1:19999': filter chain 'a' contains unimplemented fields";
    assert_eq!(refusal(&[("a", suffix)]), unimplemented);
}
