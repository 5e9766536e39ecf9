//! Real sockets on the loopback, real clock: a name server that says what it is told to say.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, CNAME};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use super::*;

/// What a server does with questions of one name.
#[derive(Clone)]
enum Act {
    Records(Vec<(&'static str, u32, RData)>),
    Code(ResponseCode),
    Silence,
    /// Over UDP nothing but the bit that says so.
    Truncated(Vec<(&'static str, u32, RData)>),
    WrongId,
    WrongQuestion,
}

struct Server {
    address: SocketAddr,
    acts: Arc<Mutex<HashMap<&'static str, Act>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// UDP and TCP on the same port.
    async fn start() -> Self {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let server = Self { address: udp.local_addr().unwrap(), acts: Arc::default(), asked: Arc::default() };
        let (acts, asked) = (server.acts.clone(), server.asked.clone());
        tokio::task::spawn_local(async move {
            let mut bytes = [0; 4096];
            while let Ok((n, peer)) = udp.recv_from(&mut bytes).await {
                if let Some(answer) = answer(&acts, &asked, &bytes[..n], true) {
                    udp.send_to(&answer, peer).await.unwrap();
                }
            }
        });
        let (acts, asked) = (server.acts.clone(), server.asked.clone());
        tokio::task::spawn_local(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                let length = stream.read_u16().await.unwrap();
                let mut bytes = vec![0; length.into()];
                stream.read_exact(&mut bytes).await.unwrap();
                if let Some(answer) = answer(&acts, &asked, &bytes, false) {
                    stream.write_u16(answer.len().try_into().unwrap()).await.unwrap();
                    stream.write_all(&answer).await.unwrap();
                }
            }
        });
        server
    }

    fn on(&self, name: &'static str, act: Act) {
        self.acts.lock().unwrap().insert(name, act);
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    fn resolver(&self) -> Resolver {
        Resolver::new(Rc::new(ResolverConfig {
            servers: vec![self.address],
            no_search_domain: true,
            query_timeout: Duration::from_millis(400),
            query_tries: 1,
            ..ResolverConfig::default()
        }))
    }
}

fn answer(
    acts: &Mutex<HashMap<&'static str, Act>>,
    asked: &Mutex<Vec<String>>,
    bytes: &[u8],
    udp: bool,
) -> Option<Vec<u8>> {
    let question = Message::from_vec(bytes).unwrap();
    let query = question.queries[0].clone();
    let name = query.name().to_lowercase().to_string();
    asked.lock().unwrap().push(format!("{name} {}", if udp { "udp" } else { "tcp" }));
    let mut answer = Message::response(question.id, question.op_code);
    answer.add_query(query.clone());
    let records = |answer: &mut Message, records: &[(&str, u32, RData)]| {
        for (owner, ttl, data) in records {
            let owner = if *owner == "@" { query.name().clone() } else { Name::from_ascii(owner).unwrap() };
            if data.record_type() == query.query_type() || data.record_type() == RecordType::CNAME {
                answer.add_answer(Record::from_rdata(owner, *ttl, data.clone()));
            }
        }
    };
    let act = acts.lock().unwrap().get(name.as_str()).cloned();
    match act.unwrap_or(Act::Code(ResponseCode::NXDomain)) {
        Act::Records(all) => records(&mut answer, &all),
        Act::Code(code) => answer.metadata.response_code = code,
        Act::Silence => return None,
        Act::Truncated(_) if udp => answer.metadata.truncation = true,
        Act::Truncated(all) => records(&mut answer, &all),
        Act::WrongId => {
            answer.metadata.id ^= 1;
            records(&mut answer, &[("@", 9, a(9))]);
        }
        Act::WrongQuestion => {
            answer.queries.clear();
            answer.add_query(Query::query(Name::from_ascii("other.test.").unwrap(), query.query_type()));
            records(&mut answer, &[("other.test.", 9, a(9))]);
        }
    }
    Some(answer.to_vec().unwrap())
}

fn a(last: u8) -> RData {
    RData::A(A::new(10, 0, 0, last))
}

fn alias(name: &str) -> RData {
    RData::CNAME(CNAME(Name::from_ascii(name).unwrap()))
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
    let server = Server::start().await;
    server.on("a.test.", Act::Records(vec![("@", 30, a(2)), ("@", 20, a(1))]));
    let resolver = server.resolver();
    assert_eq!(ask(&resolver, "a.test").await, found(&["10.0.0.2", "10.0.0.1"], 20));
    let v6 = Act::Records(vec![("@", 5, RData::AAAA(AAAA::new(0, 0, 0, 0, 0, 0, 0, 1)))]);
    server.on("v6.test.", v6);
    let answer = resolver.resolve(&"v6.test".into(), IpFamily::V6, Duration::ZERO).await.unwrap();
    assert_eq!(answer.addresses, ["::1".parse::<IpAddr>().unwrap()]);
}

#[tokio::test(flavor = "local")]
async fn no_such_name_and_no_such_records_are_answers_and_all_else_is_a_failure() {
    let server = Server::start().await;
    let resolver = server.resolver();
    let none = Ok((Vec::new(), None));
    assert_eq!(ask(&resolver, "missing.test").await, none);
    server.on("empty.test.", Act::Records(Vec::new()));
    assert_eq!(ask(&resolver, "empty.test").await, none);
    for code in [ResponseCode::ServFail, ResponseCode::Refused, ResponseCode::FormErr, ResponseCode::NotImp] {
        server.on("bad.test.", Act::Code(code));
        let failed = ask(&resolver, "bad.test").await;
        assert!(matches!(failed, Err(DnsFailure::Server(_))), "{code}: {failed:?}");
    }
    for act in [Act::Silence, Act::WrongId, Act::WrongQuestion] {
        server.on("bad.test.", act);
        assert!(ask(&resolver, "bad.test").await.is_err());
    }
    // Records of another name say nothing of this one.
    server.on("bad.test.", Act::Records(vec![("other.test.", 9, a(9))]));
    assert!(ask(&resolver, "bad.test").await.is_err());
}

#[tokio::test(flavor = "local")]
async fn the_least_time_to_live_of_a_chain_counts_and_endless_chains_are_failures() {
    let server = Server::start().await;
    let resolver = server.resolver();
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
    let server = Server::start().await;
    server.on("big.test.", Act::Truncated((0..200).map(|i| ("@", 7, a(i))).collect()));
    let (addresses, _) = ask(&server.resolver(), "big.test").await.unwrap();
    assert_eq!(addresses.len(), 200);
    assert!(server.asked.lock().unwrap().contains(&"big.test. tcp".to_owned()));
}

#[tokio::test(flavor = "local")]
async fn too_many_addresses_are_cut() {
    let server = Server::start().await;
    let many = (0..2000u32).map(|i| ("@", 7, RData::A(A(std::net::Ipv4Addr::from(0x0a00_0000 + i)))));
    server.on("huge.test.", Act::Truncated(many.collect()));
    let (addresses, _) = ask(&server.resolver(), "huge.test").await.unwrap();
    assert_eq!(addresses.len(), MOST_ADDRESSES);
}

#[tokio::test(flavor = "local")]
async fn only_tcp_if_told_so() {
    let server = Server::start().await;
    server.on("a.test.", Act::Records(vec![("@", 30, a(2))]));
    let config = ResolverConfig { tcp: true, ..(*server.resolver().config).clone() };
    assert_eq!(ask(&Resolver::new(Rc::new(config)), "a.test").await, found(&["10.0.0.2"], 30));
    assert_eq!(*server.asked.lock().unwrap(), ["a.test. tcp"]);
}

#[tokio::test(flavor = "local")]
async fn after_silence_the_next_question_gets_fresh_sockets() {
    let server = Server::start().await;
    server.on("a.test.", Act::Silence);
    let resolver = server.resolver();
    assert_eq!(ask(&resolver, "a.test").await, Err(DnsFailure::Timeout));
    assert!(resolver.channel.borrow().is_none());
    server.on("a.test.", Act::Records(vec![("@", 30, a(2))]));
    assert_eq!(ask(&resolver, "a.test").await, found(&["10.0.0.2"], 30));
}

#[tokio::test(flavor = "local")]
async fn the_loopback_name_is_not_asked_for() {
    let server = Server::start().await;
    let answer = server.resolver().resolve(&"localhost".into(), IpFamily::V4, Duration::ZERO).await.unwrap();
    assert_eq!(answer.addresses, [IpAddr::from([127, 0, 0, 1])]);
    assert_eq!(server.asked(), 0);
}
