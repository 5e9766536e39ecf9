//! A name server that says what it is told to say, over UDP and TCP, also what no name server should. On real sockets of
//! the loopback, because the library that asks opens its own; so it belongs to tests on a real clock.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use hickory_resolver::proto::op::{Message, Query};
use hickory_resolver::proto::rr::rdata::{A, AAAA, CNAME};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

pub use hickory_resolver::proto::op::ResponseCode;

/// What a server does with the questions of one name.
#[derive(Clone, Debug)]
pub enum Act {
    Records(Vec<Entry>),
    Code(ResponseCode),
    Silence,
    /// Over UDP nothing but the bit that says so, over TCP the records.
    Truncated(Vec<Entry>),
    /// As the last, but over TCP only the first half of the answer.
    Half(Vec<Entry>),
    WrongId(Vec<Entry>),
    /// The records are of another name.
    WrongQuestion,
    /// Bytes that are no message, with the id of the question before them.
    Garbage(Vec<u8>),
}

/// A record: its owner (`@` is the name that was asked for), its time to live, and what it says.
pub type Entry = (&'static str, u32, Data);

#[derive(Clone, Copy, Debug)]
pub enum Data {
    Address(IpAddr),
    Alias(&'static str),
}

/// An address of the network 10.0.0.0/8, by its number.
pub fn a(number: u32) -> Data {
    Data::Address(Ipv4Addr::from(0x0a00_0000 + number).into())
}

/// Answers for as long as it lives.
pub struct NameServer {
    pub address: SocketAddr,
    script: Arc<Script>,
}

#[derive(Default)]
struct Script {
    acts: Mutex<HashMap<String, Act>>,
    asked: Mutex<Vec<String>>,
}

impl NameServer {
    /// On the local tasks of the test.
    pub async fn start() -> io::Result<Self> {
        let (udp, tcp) = sockets().await?;
        let (address, script) = (udp.local_addr()?, Arc::<Script>::default());
        tokio::task::spawn_local(over_udp(udp, script.clone()));
        tokio::task::spawn_local(over_tcp(tcp, script.clone()));
        Ok(Self { address, script })
    }

    /// On a thread of its own, for tests without an event loop.
    pub fn on_thread() -> io::Result<Self> {
        let (sender, started) = std::sync::mpsc::channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async move {
                let Ok((udp, tcp)) = sockets().await else { return };
                let (address, script) = (udp.local_addr(), Arc::<Script>::default());
                let Ok(address) = address else { return };
                let _ = sender.send(Self { address, script: script.clone() });
                tokio::join!(over_udp(udp, script.clone()), over_tcp(tcp, script));
            });
        };
        std::thread::Builder::new().name("names".into()).spawn(serve)?;
        started.recv().map_err(io::Error::other)
    }

    /// What happens with questions of that name, written with a dot at its end, from now on.
    pub fn on(&self, name: &str, act: Act) {
        self.script.acts.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), act);
    }

    /// Each question so far: the name and the transport.
    pub fn asked(&self) -> Vec<String> {
        self.script.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// UDP and TCP on the same port.
async fn sockets() -> io::Result<(UdpSocket, TcpListener)> {
    loop {
        let udp = UdpSocket::bind("127.0.0.1:0").await?;
        if let Ok(tcp) = TcpListener::bind(udp.local_addr()?).await {
            return Ok((udp, tcp));
        }
    }
}

async fn over_udp(socket: UdpSocket, script: Arc<Script>) {
    let mut bytes = [0; 4096];
    while let Ok((read, peer)) = socket.recv_from(&mut bytes).await {
        if let Some(answer) = script.answer(&bytes[..read], true) {
            let _ = socket.send_to(&answer, peer).await;
        }
    }
}

async fn over_tcp(listener: TcpListener, script: Arc<Script>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        // One question a connection; who breaks off gets no answer.
        let served = async {
            let length = stream.read_u16().await?;
            let mut bytes = vec![0; length.into()];
            stream.read_exact(&mut bytes).await?;
            let Some(answer) = script.answer(&bytes, false) else { return Ok(()) };
            stream.write_u16(answer.len().try_into().map_err(io::Error::other)?).await?;
            let whole = !script.halves(&bytes);
            stream.write_all(if whole { &answer } else { &answer[..answer.len() / 2] }).await
        };
        let _: io::Result<()> = served.await;
    }
}

impl Script {
    fn act(&self, question: &Message) -> Option<Act> {
        let name = question.queries.first()?.name().to_lowercase().to_string();
        self.acts.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned()
    }

    fn halves(&self, bytes: &[u8]) -> bool {
        let question = Message::from_vec(bytes).ok();
        matches!(question.and_then(|question| self.act(&question)), Some(Act::Half(_)))
    }

    fn answer(&self, bytes: &[u8], udp: bool) -> Option<Vec<u8>> {
        let question = Message::from_vec(bytes).ok()?;
        let query = question.queries.first()?.clone();
        let transport = if udp { "udp" } else { "tcp" };
        let line = format!("{} {transport}", query.name().to_lowercase());
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        let mut answer = Message::response(question.id, question.op_code);
        answer.add_query(query.clone());
        match self.act(&question).unwrap_or(Act::Code(ResponseCode::NXDomain)) {
            Act::Records(all) => add(&mut answer, &query, &all),
            Act::Code(code) => answer.metadata.response_code = code,
            Act::Silence => return None,
            Act::Truncated(_) | Act::Half(_) if udp => answer.metadata.truncation = true,
            Act::Truncated(all) if all.len() > MANY && query.query_type() == RecordType::A => {
                return many(&answer, &all);
            }
            Act::Truncated(all) | Act::Half(all) => add(&mut answer, &query, &all),
            Act::WrongId(all) => {
                answer.metadata.id ^= 1;
                add(&mut answer, &query, &all);
            }
            Act::WrongQuestion => {
                answer.queries.clear();
                answer.add_query(Query::query(Name::from_ascii("other.test.").ok()?, query.query_type()));
                add(&mut answer, &query, &[("other.test.", 9, a(9))]);
            }
            Act::Garbage(bytes) => return Some([&question.id.to_be_bytes()[..], &bytes].concat()),
        }
        answer.to_vec().ok()
    }
}

/// From this number on, owners must be written as pointers to the question, or the records do not fit into a message.
const MANY: usize = 1000;

/// The addresses of the name that was asked for, as few bytes as can be.
fn many(answer: &Message, all: &[Entry]) -> Option<Vec<u8>> {
    let mut bytes = answer.to_vec().ok()?;
    bytes[6..8].copy_from_slice(&u16::try_from(all.len()).ok()?.to_be_bytes());
    for (_, ttl, data) in all {
        let Data::Address(IpAddr::V4(address)) = data else { return None };
        bytes.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
        bytes.extend_from_slice(&ttl.to_be_bytes());
        bytes.extend_from_slice(&[0, 4]);
        bytes.extend_from_slice(&address.octets());
    }
    Some(bytes)
}

/// Those of the records that answer a question of that type.
fn add(answer: &mut Message, query: &Query, all: &[Entry]) {
    for (owner, ttl, data) in all {
        let owner = if *owner == "@" { Some(query.name().clone()) } else { Name::from_ascii(owner).ok() };
        let data = match data {
            Data::Address(IpAddr::V4(v4)) => Some(RData::A(A(*v4))),
            Data::Address(IpAddr::V6(v6)) => Some(RData::AAAA(AAAA(*v6))),
            Data::Alias(name) => Name::from_ascii(name).ok().map(|name| RData::CNAME(CNAME(name))),
        };
        let (Some(owner), Some(data)) = (owner, data) else { continue };
        if data.record_type() == query.query_type() || data.record_type() == RecordType::CNAME {
            answer.add_answer(Record::from_rdata(owner, *ttl, data));
        }
    }
}
