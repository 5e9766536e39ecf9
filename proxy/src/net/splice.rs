//! Bytes from socket to socket without passing through this process: splice(2) by way of a pipe.
//!
//! Worth it for bulk only. On small messages it costs two system calls more than reading and
//! writing, so the TCP proxy copies until reads fill its buffer, and HTTP/1 looks at the length of
//! a body.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::task::{Context, Poll, ready};

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::sys::socket::{MsgFlags, send};
use nuncio_core::net::Io;
use tokio::io::Interest;

use super::limits::DescriptorLimit;

/// A pipe's room. 64 KiB, the system's default, is too small to be worth the calls.
pub const CAPACITY: usize = 256 * 1024;

/// Pipes that a worker keeps for the next connection.
const KEPT: usize = 4;

/// A pipe and how many bytes are in it.
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    filled: usize,
}

/// A worker's spare pipes.
#[derive(Default)]
pub struct Pipes {
    kept: RefCell<Vec<Pipe>>,
    descriptors: Cell<DescriptorLimit>,
}

/// Whether both connections are sockets that the kernel can splice.
pub fn possible(from: &Io, to: &Io) -> bool {
    let plain = |io: &Io| matches!(io, Io::Tcp(_) | Io::Unix(_));
    plain(from) && plain(to)
}

impl Pipe {
    fn new(limit: DescriptorLimit) -> io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)?;
        if limit.is_reserve(write.as_raw_fd()) {
            return Err(io::Error::from_raw_os_error(nix::libc::EMFILE));
        }
        // Refused when the user's pipes hold too much already: then it stays at the default.
        let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(i32::try_from(CAPACITY).unwrap_or(i32::MAX)));
        Ok(Self { read, write, filled: 0 })
    }

    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Takes what the connection has, and no more than `most`; 0 is its end. Only into an empty pipe: a
    /// full one would look like a connection without bytes.
    pub fn poll_fill(&mut self, from: &Io, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        debug_assert_eq!(self.filled, 0, "a pipe is filled when it is empty");
        let moved = ready!(poll_call(from, Interest::READABLE, cx, |socket| {
            splice(socket, None, &self.write, None, most, flags())
        }))?;
        self.filled = moved;
        Poll::Ready(Ok(moved))
    }

    /// Gives the connection what it takes.
    pub fn poll_drain(&mut self, to: &Io, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let moved = ready!(poll_call(to, Interest::WRITABLE, cx, |socket| {
            splice(&self.read, None, socket, None, self.filled, flags())
        }))?;
        self.filled -= moved;
        Poll::Ready(Ok(moved))
    }
}

/// Writes what goes before a pipe's bytes, which must follow: the kernel may wait for them, so that the peer is woken
/// once.
pub fn poll_write_ahead(to: &Io, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    let more = MsgFlags::from_bits_retain(nix::libc::MSG_MORE) | MsgFlags::MSG_NOSIGNAL;
    poll_call(to, Interest::WRITABLE, cx, |socket| send(socket.as_raw_fd(), bytes, more))
}

fn flags() -> SpliceFFlags {
    SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK
}

fn poll_call(
    io: &Io,
    interest: Interest,
    cx: &mut Context<'_>,
    mut call: impl FnMut(std::os::fd::BorrowedFd<'_>) -> nix::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        let result = match io {
            Io::Tcp(s) => {
                ready!(if interest.is_readable() { s.poll_read_ready(cx) } else { s.poll_write_ready(cx) })?;
                s.try_io(interest, || Ok(call(s.as_fd())?))
            }
            Io::Unix(s) => {
                ready!(if interest.is_readable() { s.poll_read_ready(cx) } else { s.poll_write_ready(cx) })?;
                s.try_io(interest, || Ok(call(s.as_fd())?))
            }
            Io::Other(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        match result {
            // It was not ready after all; that is noted now, and the next round waits.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            other => return Poll::Ready(other),
        }
    }
}

impl Pipes {
    /// From now on no pipe takes a descriptor of the reserve.
    pub fn spare(&self, reserve: DescriptorLimit) {
        self.descriptors.set(reserve);
    }

    pub fn take(&self) -> io::Result<Pipe> {
        let kept = self.kept.borrow_mut().pop();
        kept.map_or_else(|| Pipe::new(self.descriptors.get()), Ok)
    }

    /// A pipe with bytes in it is closed: nobody wants them.
    pub fn give(&self, pipe: Pipe) {
        let mut kept = self.kept.borrow_mut();
        if pipe.filled == 0 && kept.len() < KEPT {
            kept.push(pipe);
        }
    }
}
