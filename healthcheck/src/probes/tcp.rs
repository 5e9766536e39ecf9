//! `tcp_health_check`: a connection, or bytes there and back.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::core::v3::health_check::TcpHealthCheck;
use nuncio_core::error::ConfigError;
use nuncio_core::net::Io;
use nuncio_core::upstream::Host;

use crate::judge::FailureType;
use crate::payload;
use crate::probe::{Answer, Probe, ProbeContext, target};

/// Of what came and did not match yet so much is kept; more than that cannot be what is waited for.
const MOST: usize = 64 * 1024;

/// What is sent, and what must come.
pub struct TcpCheck {
    send: Vec<u8>,
    receive: Vec<Vec<u8>>,
    /// How much may be looked at.
    keep: usize,
}

impl TcpCheck {
    pub fn from_proto(message: &TcpHealthCheck) -> Result<Self, ConfigError> {
        let send = message.send.as_ref().map(payload::read).transpose().map_err(|e| e.within("send"))?;
        let receive = payload::read_list(&message.receive, "receive")?;
        let keep = MOST.max(2 * receive.iter().map(Vec::len).sum::<usize>());
        Ok(Self { send: send.unwrap_or_default(), receive, keep })
    }
}

/// One host's.
pub struct TcpProbe {
    check: Rc<TcpCheck>,
    context: ProbeContext,
    /// Between checks.
    io: Option<Io>,
}

impl TcpProbe {
    pub fn new(check: Rc<TcpCheck>, context: ProbeContext) -> Self {
        Self { check, context, io: None }
    }

    async fn ask(&mut self, host: &Arc<Host>) -> Result<(), Answer> {
        let mut io = match self.io.take().filter(is_quiet) {
            Some(io) => io,
            None => self.context.dialer.tcp(host).await?,
        };
        // As Envoy: being connected is all that is asked, whatever there would be to send.
        if self.check.receive.is_empty() {
            return Ok(());
        }
        let mut sent = 0;
        let mut received = Vec::new();
        let check = &self.check;
        let talked = poll_fn(|cx| {
            while sent < check.send.len() {
                match io.poll_write(cx, &check.send[sent..]) {
                    Poll::Ready(Ok(n)) => sent += n,
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                    Poll::Pending => break,
                }
            }
            if let Poll::Ready(Err(e)) = io.poll_flush(cx) {
                return Poll::Ready(Err(e));
            }
            poll_expected(cx, &mut io, check, &mut received)
        });
        talked.await.map_err(|error| Answer::failed(FailureType::Network, describe(&error)))?;
        if self.context.reuse_connection {
            self.io = Some(io);
        }
        Ok(())
    }
}

fn poll_expected(cx: &mut Context<'_>, io: &mut Io, check: &TcpCheck, received: &mut Vec<u8>) -> Poll<io::Result<()>> {
    let mut buf = [0; 2048];
    loop {
        match ready!(io.poll_read(cx, &mut buf))? {
            0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            n => received.extend_from_slice(&buf[..n]),
        }
        if payload::matches(&check.receive, received) {
            return Poll::Ready(Ok(()));
        }
        if received.len() > check.keep {
            return Poll::Ready(Err(io::Error::other("more came than can be what is expected")));
        }
    }
}

/// Nobody closed it or spoke since it was used.
fn is_quiet(io: &Io) -> bool {
    // A probe that is polled once without a waker of its own: what came meanwhile is known to the system.
    match io {
        Io::Tcp(stream) => matches!(stream.try_read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock),
        Io::Unix(stream) => matches!(stream.try_read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock),
        Io::Other(_) => true,
    }
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "closed before the expected bytes".to_owned(),
        _ => error.to_string(),
    }
}

impl Probe for TcpProbe {
    fn check<'p>(&'p mut self, host: &'p Arc<Host>) -> LocalBoxFuture<'p, Answer> {
        Box::pin(async move {
            match self.ask(host).await {
                Ok(()) if self.check.receive.is_empty() => Answer::passed(false, "connected"),
                Ok(()) => Answer::passed(false, "the expected bytes"),
                Err(answer) => answer,
            }
        })
    }

    fn describe(&self, host: &Host) -> String {
        format!("tcp {}", target(host))
    }
}
