//! Clients in numbers that do next to nothing, with what must hold for those that do something: 10,000 idle connections
//! are held, 1,000 that send a byte each five seconds cost a normal client little, and when descriptors run out the proxy
//! neither spins nor stays away.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::generator::{self, Outcome};
use crate::site::Site;
use crate::{LoadArgs, machine};

const IDLE: usize = 10_000;
const SLOW: usize = 1_000;
const BYTE_EACH: Duration = Duration::from_secs(5);
/// Of the proxy that runs out of them.
const DESCRIPTORS: u32 = 200;

/// All three, one after the other.
pub fn run(args: &LoadArgs) -> anyhow::Result<()> {
    println!("{}", machine::describe());
    nuncio::net::limits::raise_descriptor_limit();
    let args = LoadArgs { rate: args.rate.or(Some(500)), connections: args.connections.min(16), ..args.clone() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        idle(&args).await?;
        slow(&args).await?;
        descriptors(&args).await
    })
}

async fn normal(site: &Site, args: &LoadArgs, what: &str) -> anyhow::Result<(Duration, Outcome)> {
    let outcome = generator::run(site.plain(), args, args.duration()).await;
    let p99 = outcome.latency.quantile(0.99);
    println!("{what}: {} requests, {} errors, p99 {:.2} ms", outcome.requests, outcome.errors, p99.as_secs_f64() * 1e3);
    ensure!(outcome.errors + outcome.cut == 0, "a normal client saw errors");
    Ok((p99, outcome))
}

async fn open(to: SocketAddr, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let mut all = Vec::with_capacity(count);
    for n in 0..count {
        all.push(TcpStream::connect(to).await.with_context(|| format!("connection {n}"))?);
    }
    Ok(all)
}

async fn idle(args: &LoadArgs) -> anyhow::Result<()> {
    let site = Site::new()?;
    let proxy = site.start(None)?;
    normal(&site, args, "quiet").await?;
    let before = proxy.memory();
    let mut crowd = open(site.plain(), IDLE).await?;
    // Each has had a request: its buffers have been there.
    for stream in &mut crowd {
        stream.write_all(b"GET /load?size=64 HTTP/1.1\r\nhost: a\r\n\r\n").await?;
        let mut answer = [0; 1024];
        ensure!(stream.read(&mut answer).await? > 0, "a connection of the crowd was closed");
    }
    let active = site.admin().stat("http.in.downstream_cx_active")?;
    let each = proxy.memory().saturating_sub(before) / IDLE as u64;
    println!("idle: {active} connections are held, {each} bytes of RSS each");
    ensure!(active >= IDLE as u64, "connections were not held");
    normal(&site, args, "with them").await?;
    let mut byte = [0];
    let gone = crowd.iter_mut().filter(|stream| stream.try_read(&mut byte).is_ok_and(|n| n == 0)).count();
    ensure!(gone == 0, "{gone} connections were closed");
    println!("holds: {IDLE} idle connections are held");
    Ok(())
}

async fn slow(args: &LoadArgs) -> anyhow::Result<()> {
    let site = Site::new()?;
    let _proxy = site.start(None)?;
    let (quiet, _) = normal(&site, args, "quiet").await?;
    let crowd: Vec<_> = (0..SLOW).map(|n| tokio::task::spawn_local(crawl(site.plain(), n))).collect();
    // All have begun.
    site.wait_for_at_least("http.in.downstream_cx_active", SLOW as u64).await?;
    let long = LoadArgs { seconds: args.seconds.max(15), ..args.clone() };
    let (slow, _) = normal(&site, &long, "with 1,000 slow clients").await?;
    let ended: u64 = site.admin().stat("http.in.downstream_rq_header_timeout")?
        + site.admin().stat("http.in.downstream_cx_destroy")?;
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
    println!("slow: {ended} connections were ended by the deadline for a head");
    ensure!(slow <= quiet.max(Duration::from_millis(1)) * 5, "p99 is more than five times the quiet one");
    println!("holds: with slow clients p99 is at most 5 times the quiet one (from 1 ms on)");
    Ok(())
}

/// A request a byte at a time, for ever: who is cut off comes again.
async fn crawl(to: SocketAddr, n: usize) {
    // They do not all send at once.
    tokio::time::sleep(BYTE_EACH * n as u32 / SLOW as u32 / 5).await;
    loop {
        let Ok(mut stream) = TcpStream::connect(to).await else { continue };
        for byte in b"GET /slow HTTP/1.1\r\nhost: slow.example.com\r\nuser-agent: slow\r\n\r\n" {
            if stream.write_all(&[*byte]).await.is_err() {
                break;
            }
            let mut answer = [0; 512];
            if tokio::time::timeout(BYTE_EACH, stream.read(&mut answer)).await.is_ok_and(|n| n.is_ok()) {
                break;
            }
        }
    }
}

async fn descriptors(args: &LoadArgs) -> anyhow::Result<()> {
    let site = Site::new()?;
    let proxy = site.start(Some(DESCRIPTORS))?;
    normal(&site, args, "quiet").await?;
    // More than it can take; the rest waits in the queue of the socket.
    let crowd = open(site.plain(), 2 * DESCRIPTORS as usize).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (before, from) = (proxy.cpu(), Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let share = (proxy.cpu() - before).as_secs_f64() / from.elapsed().as_secs_f64();
    site.admin().ask("GET", "/ready").context("the admin is reached while descriptors are out")?;
    println!("out of descriptors: {:.2} % of a core, the admin answers", share * 100.0);
    ensure!(share <= 0.1, "it spins");
    drop(crowd);
    let from = Instant::now();
    let mut stream = TcpStream::connect(site.plain()).await?;
    stream.write_all(b"GET /load?size=64 HTTP/1.1\r\nhost: a\r\n\r\n").await?;
    ensure!(stream.read(&mut [0; 512]).await? > 0, "no answer afterwards");
    let took = from.elapsed();
    println!("after the crowd has gone: answered after {:.1} ms", took.as_secs_f64() * 1e3);
    ensure!(took <= Duration::from_secs(1), "it stays away too long");
    println!("holds: out of descriptors at most 10 % of a core, back within 1 s");
    Ok(())
}
