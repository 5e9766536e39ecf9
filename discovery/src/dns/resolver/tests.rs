//! Real sockets on the loopback, real clock, and a name server that says what it is told to say.

use nuncio_testkit::dns::{Act, Data, NameServer, ResponseCode, a};

use super::*;

fn resolver(server: &NameServer) -> Resolver {
    Resolver::new(Rc::new(ResolverConfig {
        servers: vec![server.address],
        no_search_domain: true,
        query_timeout: Duration::from_millis(400),
        query_tries: 1,
        ..ResolverConfig::default()
    }))
}

fn alias(name: &'static str) -> Data {
    Data::Alias(name)
}

async fn ask(resolver: &Resolver, name: &str) -> Result<(Vec<String>, Option<u64>), DnsFailure> {
    let answer = resolver.resolve(&name.into(), IpFamily::V4, Duration::ZERO).await?;
    let addresses = answer.addresses.iter().map(ToString::to_string).collect();
    Ok((addresses, answer.ttl.map(|ttl| ttl.as_secs())))
}

fn found(addresses: &[&str], ttl: u64) -> Result<(Vec<String>, Option<u64>), DnsFailure> {
    Ok((addresses.iter().map(|&a| a.to_owned()).collect(), Some(ttl)))
}

#[tokio::test(flavor = "local")]
async fn records_come_in_the_order_of_the_answer_with_their_time_to_live() {
    let server = NameServer::start().await.unwrap();
    server.on("a.test.", Act::Records(vec![("@", 30, a(2)), ("@", 20, a(1))]));
    let resolver = resolver(&server);
    assert_eq!(ask(&resolver, "a.test").await, found(&["10.0.0.2", "10.0.0.1"], 20));
    let v6 = Act::Records(vec![("@", 5, Data::Address(IpAddr::from(std::net::Ipv6Addr::LOCALHOST)))]);
    server.on("v6.test.", v6);
    let answer = resolver.resolve(&"v6.test".into(), IpFamily::V6, Duration::ZERO).await.unwrap();
    assert_eq!(answer.addresses, ["::1".parse::<IpAddr>().unwrap()]);
}

#[tokio::test(flavor = "local")]
async fn no_such_name_and_no_such_records_are_answers_and_all_else_is_a_failure() {
    let server = NameServer::start().await.unwrap();
    let resolver = resolver(&server);
    let none = Ok((Vec::new(), None));
    assert_eq!(ask(&resolver, "missing.test").await, none);
    server.on("empty.test.", Act::Records(Vec::new()));
    assert_eq!(ask(&resolver, "empty.test").await, none);
    for code in [ResponseCode::ServFail, ResponseCode::Refused, ResponseCode::FormErr, ResponseCode::NotImp] {
        server.on("bad.test.", Act::Code(code));
        let failed = ask(&resolver, "bad.test").await;
        assert!(matches!(failed, Err(DnsFailure::Server(_))), "{code}: {failed:?}");
    }
    let bad = [
        Act::Silence,
        Act::WrongId(vec![("@", 9, a(9))]),
        Act::WrongQuestion,
        Act::Garbage(vec![0xff; 40]),
        Act::Garbage(Vec::new()),
        Act::Half((0..100).map(|i| ("@", 7, a(i))).collect()),
    ];
    for act in bad {
        server.on("bad.test.", act);
        assert!(ask(&resolver, "bad.test").await.is_err());
    }
    // Records of another name say nothing of this one.
    server.on("bad.test.", Act::Records(vec![("other.test.", 9, a(9))]));
    assert!(ask(&resolver, "bad.test").await.is_err());
}

#[tokio::test(flavor = "local")]
async fn the_least_time_to_live_of_a_chain_counts_and_endless_chains_are_failures() {
    let server = NameServer::start().await.unwrap();
    let resolver = resolver(&server);
    // envoy#28925: only the address record's counted once.
    server.on("a.test.", Act::Records(vec![("@", 3, alias("b.test.")), ("b.test.", 60, a(1))]));
    assert_eq!(ask(&resolver, "a.test").await, found(&["10.0.0.1"], 3));
    // The rest of the chain is not in the answer.
    server.on("c.test.", Act::Records(vec![("@", 90, alias("d.test."))]));
    server.on("d.test.", Act::Records(vec![("@", 4, a(2))]));
    assert_eq!(ask(&resolver, "c.test").await, found(&["10.0.0.2"], 4));
    // An alias of nothing: that is an answer.
    server.on("e.test.", Act::Records(vec![("@", 90, alias("missing.test."))]));
    assert_eq!(ask(&resolver, "e.test").await, Ok((Vec::new(), None)));
    server.on("loop.test.", Act::Records(vec![("@", 1, alias("pool.test.")), ("pool.test.", 1, alias("loop.test."))]));
    assert!(ask(&resolver, "loop.test").await.is_err());
    server.on("f.test.", Act::Records(vec![("@", 1, alias("g.test."))]));
    server.on("g.test.", Act::Records(vec![("@", 1, alias("f.test."))]));
    assert!(ask(&resolver, "f.test").await.is_err());
}

#[tokio::test(flavor = "local")]
async fn a_truncated_answer_is_asked_for_over_tcp() {
    let server = NameServer::start().await.unwrap();
    server.on("big.test.", Act::Truncated((0..200).map(|i| ("@", 7, a(i))).collect()));
    let (addresses, _) = ask(&resolver(&server), "big.test").await.unwrap();
    assert_eq!(addresses.len(), 200);
    assert!(server.asked().contains(&"big.test. tcp".to_owned()));
}

#[tokio::test(flavor = "local")]
async fn too_many_addresses_are_cut() {
    let server = NameServer::start().await.unwrap();
    server.on("huge.test.", Act::Truncated((0..4000).map(|i| ("@", 7, a(i))).collect()));
    let (addresses, _) = ask(&resolver(&server), "huge.test").await.unwrap();
    assert_eq!(addresses.len(), MOST_ADDRESSES);
}

#[tokio::test(flavor = "local")]
async fn only_tcp_if_told_so() {
    let server = NameServer::start().await.unwrap();
    server.on("a.test.", Act::Records(vec![("@", 30, a(2))]));
    let config = ResolverConfig { tcp: true, ..(*resolver(&server).config).clone() };
    assert_eq!(ask(&Resolver::new(Rc::new(config)), "a.test").await, found(&["10.0.0.2"], 30));
    assert_eq!(server.asked(), ["a.test. tcp"]);
}

#[tokio::test(flavor = "local")]
async fn after_silence_the_next_question_gets_fresh_sockets() {
    let server = NameServer::start().await.unwrap();
    server.on("a.test.", Act::Silence);
    let resolver = resolver(&server);
    assert_eq!(ask(&resolver, "a.test").await, Err(DnsFailure::Timeout));
    assert!(resolver.channel.borrow().is_none());
    server.on("a.test.", Act::Records(vec![("@", 30, a(2))]));
    assert_eq!(ask(&resolver, "a.test").await, found(&["10.0.0.2"], 30));
}

#[tokio::test(flavor = "local")]
async fn the_loopback_name_is_not_asked_for() {
    let server = NameServer::start().await.unwrap();
    let answer = resolver(&server).resolve(&"localhost".into(), IpFamily::V4, Duration::ZERO).await.unwrap();
    assert_eq!(answer.addresses, [IpAddr::from([127, 0, 0, 1])]);
    assert!(server.asked().is_empty());
}

// resolv.conf(5): search, ndots.
#[test]
fn search_domains_come_before_or_behind_the_name_itself_by_its_dots() {
    let search = ["ns.svc.cluster.local", "cluster.local"].map(|domain| Name::from_utf8(domain).unwrap());
    let asked = |name: &str, ndots| {
        let all = candidates(Name::from_utf8(name).unwrap(), &search, ndots);
        all.iter().map(|name| name.to_utf8().trim_end_matches('.').to_owned()).collect::<Vec<_>>()
    };
    let with = |name: &str| [format!("{name}.ns.svc.cluster.local"), format!("{name}.cluster.local")];
    assert_eq!(asked("web", 1), [&with("web")[..], &["web".to_owned()]].concat());
    assert_eq!(asked("web.other", 5), [&with("web.other")[..], &["web.other".to_owned()]].concat());
    assert_eq!(asked("web.other", 1), [&["web.other".to_owned()], &with("web.other")[..]].concat());
    assert_eq!(asked("web.", 5), ["web"]);
}
