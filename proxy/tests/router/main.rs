//! The router through a whole proxy: what is tried again, and what large requests and
//! configurations may cost. Real sockets, real clock, free ports, no sleeps.

// What fails ends the test.
#![allow(clippy::unwrap_used)]

mod bounds;
mod mirrors;
mod races;
mod retries;
#[path = "../wire/running.rs"]
#[allow(dead_code)]
mod running;
#[path = "../http2/stage.rs"]
#[allow(dead_code)]
mod stage;
#[path = "../http2/strict.rs"]
#[allow(dead_code)]
mod strict;
mod upstream_log;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The answer to one request on a connection of its own, as text.
async fn ask(proxy: &running::RunningProxy, request: &str) -> String {
    let mut stream = TcpStream::connect(proxy.socket("in")).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stage::within("an answer", stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}
