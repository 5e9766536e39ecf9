//! A listening socket on a worker.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::task::{Context, Poll, ready};

use nuncio_core::net::{Accept, Address, Connected, Io};
use tokio::net::{TcpListener, UnixListener};

use super::bind::ListeningSocket;

/// Takes connections from a [`ListeningSocket`] by the runtime of the thread it was made on.
pub struct Acceptor {
    socket: Kind,
    local: Address,
    /// Each connection must be asked for the address it was made to.
    wildcard: bool,
}

enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    pub fn new(listening: ListeningSocket) -> io::Result<Self> {
        let wildcard = listening.is_wildcard();
        let ListeningSocket { socket, local, .. } = listening;
        let socket = match local {
            Address::Ip(_) => Kind::Tcp(TcpListener::from_std(socket.into())?),
            _ => Kind::Unix(UnixListener::from_std(socket.into())?),
        };
        Ok(Self { socket, local, wildcard })
    }
}

impl Accept for Acceptor {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Connected>> {
        Poll::Ready(match &self.socket {
            Kind::Tcp(listener) => {
                let (stream, remote) = ready!(listener.poll_accept(cx))?;
                let local = if self.wildcard { Address::Ip(stream.local_addr()?) } else { self.local.clone() };
                Ok(Connected { io: Io::Tcp(stream), local: Some(local), remote: Address::Ip(remote) })
            }
            Kind::Unix(listener) => {
                let (stream, remote) = ready!(listener.poll_accept(cx))?;
                let path = remote.as_pathname().and_then(|p| p.to_str()).unwrap_or_default();
                let remote = Address::Pipe(path.into());
                Ok(Connected { io: Io::Unix(stream), local: Some(self.local.clone()), remote })
            }
        })
    }

    fn local_address(&self) -> &Address {
        &self.local
    }
}

/// The number of a connection's descriptor, if it has one.
pub fn descriptor(io: &Io) -> Option<RawFd> {
    match io {
        Io::Tcp(s) => Some(s.as_raw_fd()),
        Io::Unix(s) => Some(s.as_raw_fd()),
        Io::Other(_) => None,
    }
}
