//! The clients. Bounded in connections and time; every response is checked for status and length.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::LoadArgs;
use crate::latency::Latency;

/// What the clients saw.
#[derive(Clone, Default)]
pub struct Outcome {
    pub requests: u64,
    pub errors: u64,
    /// Answers that began and did not end: nobody can repeat those for the client.
    pub cut: u64,
    pub latency: Latency,
    pub took: Duration,
}

/// Sends to `target` until the time is up.
pub async fn run(target: SocketAddr, args: &LoadArgs, duration: Duration) -> Outcome {
    let started = Instant::now();
    let end = started + duration;
    let request: Rc<[u8]> = request(args).into();
    let local = tokio::task::LocalSet::new();
    let mut outcome = Outcome::default();
    let outcomes = local
        .run_until(async {
            let tasks: Vec<_> = (0..args.connections)
                .map(|n| {
                    let (args, request) = (args.clone(), request.clone());
                    tokio::task::spawn_local(async move { client(target, &args, &request, n, started, end).await })
                })
                .collect();
            let mut all = Vec::new();
            for task in tasks {
                all.extend(task.await.ok());
            }
            all
        })
        .await;
    for one in outcomes {
        outcome.requests += one.requests;
        outcome.errors += one.errors;
        outcome.cut += one.cut;
        outcome.latency.merge(&one.latency);
    }
    outcome.took = started.elapsed();
    outcome
}

fn request(args: &LoadArgs) -> Vec<u8> {
    let connection = if args.close { "connection: close\r\n" } else { "" };
    let method = if args.body == 0 { "GET" } else { "POST" };
    let length = if args.body == 0 { String::new() } else { format!("content-length: {}\r\n", args.body) };
    let fail = if args.failing { "&fail" } else { "" };
    let mut out = format!(
        "{method} /load?size={}{fail} HTTP/1.1\r\nhost: bench.example.com\r\nuser-agent: nuncio-benches\r\naccept: */*\r\n{connection}{length}\r\n",
        args.response
    )
    .into_bytes();
    out.resize(out.len() + args.body as usize, b'x');
    out
}

async fn client(
    target: SocketAddr,
    args: &LoadArgs,
    request: &[u8],
    number: u32,
    started: Instant,
    end: Instant,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut connection: Option<TcpStream> = None;
    let mut buffer = vec![0u8; 128 * 1024];
    // At a fixed rate each connection has its share of the slots, and latency counts from the slot:
    // a slow answer delays those behind it, and that is part of the truth.
    let step = args.rate.map(|rate| Duration::from_secs_f64(f64::from(args.connections) / f64::from(rate.max(1))));
    let mut slot =
        started + step.map_or(Duration::ZERO, |s| s.mul_f64(f64::from(number) / f64::from(args.connections)));
    while Instant::now() < end {
        let from = match step {
            Some(step) => {
                if slot >= end {
                    break;
                }
                tokio::time::sleep_until(slot).await;
                let due = slot;
                slot += step;
                due
            }
            None => Instant::now(),
        };
        match exchange(&mut connection, target, request, &mut buffer, args).await {
            Ok(()) => {
                outcome.requests += 1;
                outcome.latency.record(from.elapsed());
                if args.close {
                    connection = None;
                }
            }
            Err(error) => {
                let cut = error.kind() == io::ErrorKind::ConnectionAborted;
                *if cut { &mut outcome.cut } else { &mut outcome.errors } += 1;
                connection = None;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    outcome
}

async fn exchange(
    connection: &mut Option<TcpStream>,
    target: SocketAddr,
    request: &[u8],
    buffer: &mut [u8],
    args: &LoadArgs,
) -> io::Result<()> {
    let stream = match connection {
        Some(stream) => stream,
        None => {
            let stream = TcpStream::connect(target).await?;
            stream.set_nodelay(true)?;
            connection.insert(stream)
        }
    };
    stream.write_all(request).await?;
    let mut filled = 0;
    loop {
        let n = stream.read(&mut buffer[filled..]).await?;
        if n == 0 {
            let cut = filled > 0;
            return Err(if cut { io::ErrorKind::ConnectionAborted } else { io::ErrorKind::UnexpectedEof }.into());
        }
        filled += n;
        let Some(head) = buffer[..filled].windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let wanted = if args.failing { b"HTTP/1.1 503" } else { b"HTTP/1.1 200" };
        if !buffer.starts_with(wanted) {
            return Err(io::Error::other("another status"));
        }
        let mut rest = (head + 4 + args.response as usize).saturating_sub(filled);
        if filled > head + 4 + args.response as usize {
            return Err(io::Error::other("more than was asked for"));
        }
        while rest > 0 {
            let n = stream.read(buffer).await?;
            if n == 0 {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if n > rest {
                return Err(io::Error::other("more than was asked for"));
            }
            rest -= n;
        }
        return Ok(());
    }
}
