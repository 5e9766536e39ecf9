//! What RFC 9113 and RFC 7541 demand of a server, section by section: the questions that public
//! conformance suites ask, against a running proxy. A case is some bytes and what must come of them.
//!
//! Where the RFC asks for a stream error, a connection error with the same code passes too (§5.4.2
//! leaves the choice, and Envoy makes it for malformed messages). Where it asks for a connection
//! error, only GOAWAY with that code and then the end of the connection pass.

mod exchanges;
mod frames;
mod generic;
mod hpack;
mod messages;
mod states;

use nuncio_testkit::http2::frame::kind::*;
use nuncio_testkit::http2::frame::{flag, frame};
use nuncio_testkit::http2::hpack::block;
use nuncio_testkit::http2::{Client, Ended};
use tokio::net::TcpStream;

use crate::running::RunningProxy;
use crate::stage::{Upstream, configuration, connect, within};

/// What a client does, in order.
#[derive(Debug, Clone)]
enum Step {
    Say(Vec<u8>),
    /// Waits for a whole response.
    Answered(u32),
    /// Waits until the proxy has read everything.
    Seen,
}

#[derive(Debug, Clone)]
enum Want {
    Connection(&'static [u32]),
    Stream(&'static [u32]),
    /// 200 on that stream.
    Answer(u32),
    /// 404: it is a good request for which there is no route.
    NoRoute(u32),
    /// It is ignored, and the connection goes on.
    Nothing,
}

#[derive(Clone)]
struct Case {
    section: &'static str,
    what: &'static str,
    steps: Vec<Step>,
    want: Want,
}

/// Says all of it at once.
fn case(section: &'static str, what: &'static str, says: &[Vec<u8>], want: Want) -> Case {
    Case { section, what, steps: vec![Step::Say(says.concat())], want }
}

fn steps(section: &'static str, what: &'static str, steps: &[Step], want: Want) -> Case {
    Case { section, what, steps: steps.to_vec(), want }
}

/// A whole request for this path.
fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, flag::WHOLE, stream, &head("GET", path))
}

/// A request whose body is still to come.
fn post(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, flag::END_HEADERS, stream, &head("POST", path))
}

fn head(method: &str, path: &str) -> Vec<u8> {
    block(&[(":method", method), (":scheme", "http"), (":authority", "a"), (":path", path)])
}

impl Case {
    async fn run(&self, client: &mut Client<TcpStream>) -> Result<(), String> {
        for step in &self.steps {
            match step {
                Step::Say(bytes) => drop(client.write(bytes).await),
                Step::Answered(stream) => status(client, *stream, 200).await?,
                Step::Seen => client.ping(*b"seen yet").await.map_err(|e| format!("{e:?} before the case"))?,
            }
        }
        match &self.want {
            Want::Answer(stream) => status(client, *stream, 200).await,
            Want::NoRoute(stream) => status(client, *stream, 404).await,
            Want::Nothing if client.is_alive().await => Ok(()),
            Want::Nothing => Err("the connection ended".into()),
            Want::Connection(codes) => ended(client, codes).await,
            Want::Stream(codes) => {
                // Whatever it is, it is said before the PING's answer.
                let pinged = client.ping(*b"and then").await;
                let complaint = client.complaint().await.map(|frame| (frame.kind, frame.code()));
                match (complaint, pinged) {
                    (Some((RST_STREAM, code)), _) if codes.contains(&code) => Ok(()),
                    (None, Err(Ended::GoAway(code))) | (Some((GOAWAY, code)), _) if codes.contains(&code) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            }
        }
    }
}

async fn status(client: &mut Client<TcpStream>, stream: u32, wanted: u16) -> Result<(), String> {
    match client.answer(stream).await {
        Ok(answer) if answer.status == wanted => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// GOAWAY with one of the codes, and then the end.
async fn ended(client: &mut Client<TcpStream>, codes: &[u32]) -> Result<(), String> {
    client.stop_answering();
    loop {
        let Some(frame) = client.read().await else { return Err("closed without GOAWAY".into()) };
        match (frame.kind == GOAWAY).then(|| frame.code()) {
            Some(code) if codes.contains(&code) => break,
            Some(code) => return Err(format!("GOAWAY {code}")),
            None if frame.kind == RST_STREAM => return Err(format!("RST_STREAM {}", frame.code())),
            None => {}
        }
    }
    while client.read().await.is_some() {}
    Ok(())
}

#[tokio::test(flavor = "local")]
async fn what_the_rfcs_demand_of_a_server_holds_section_by_section() {
    let upstream = Upstream::start();
    let proxy = RunningProxy::start(&configuration(upstream.address, "", ""), 1);
    let mut wrong = Vec::new();
    let cases = [generic::cases(), frames::cases(), states::cases(), messages::cases(), hpack::cases()].concat();
    let total = cases.len();
    for case in cases {
        let mut client = connect(&proxy).await;
        let verdict = tokio::time::timeout(std::time::Duration::from_secs(3), async {
            client.shake_hands(&[]).await;
            case.run(&mut client).await
        });
        let verdict = verdict.await.unwrap_or_else(|_| Err("nothing happened".into()));
        if let Err(why) = verdict {
            wrong.push(format!("{} {}: {why}", case.section, case.what));
        }
    }
    assert!(wrong.is_empty(), "{} of {total}:\n{}", wrong.len(), wrong.join("\n"));
    // And it still serves.
    let mut client = connect(&proxy).await;
    client.shake_hands(&[]).await;
    client.write(&get(1, "/")).await;
    assert_eq!(within("a last request", client.answer(1)).await.map(|a| a.status), Ok(200));
    let mut broken = upstream.broken();
    // Bodies that the client never ended.
    broken.retain(|what| !what.starts_with("ended"));
    assert_eq!(broken, Vec::<String>::new(), "what went upstream is HTTP/1");
}
