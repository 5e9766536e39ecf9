//! Bytes from socket to socket without passing through this process: splice(2) by way of a pipe.
//!
//! Worth it for bulk only. On small messages it costs two system calls more than reading and
//! writing, so the TCP proxy copies until reads fill its buffer.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::task::{Context, Poll, ready};

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
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
    descriptors: DescriptorLimit,
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

    /// Takes what the connection has; 0 is its end. Only into an empty pipe: a full one would
    /// look like a connection without bytes.
    pub fn poll_fill(&mut self, from: &Io, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        debug_assert_eq!(self.filled, 0, "a pipe is filled when it is empty");
        let moved = ready!(poll_splice(from, Interest::READABLE, cx, |socket| {
            splice(socket, None, &self.write, None, CAPACITY, flags())
        }))?;
        self.filled = moved;
        Poll::Ready(Ok(moved))
    }

    /// Gives the connection what it takes.
    pub fn poll_drain(&mut self, to: &Io, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let moved = ready!(poll_splice(to, Interest::WRITABLE, cx, |socket| {
            splice(&self.read, None, socket, None, self.filled, flags())
        }))?;
        self.filled -= moved;
        Poll::Ready(Ok(moved))
    }
}

fn flags() -> SpliceFFlags {
    SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK
}

fn poll_splice(
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
    pub fn new(descriptors: DescriptorLimit) -> Self {
        Self { kept: RefCell::default(), descriptors }
    }

    pub fn take(&self) -> io::Result<Pipe> {
        let kept = self.kept.borrow_mut().pop();
        kept.map_or_else(|| Pipe::new(self.descriptors), Ok)
    }

    /// A pipe with bytes in it is closed: nobody wants them.
    pub fn give(&self, pipe: Pipe) {
        let mut kept = self.kept.borrow_mut();
        if pipe.filled == 0 && kept.len() < KEPT {
            kept.push(pipe);
        }
    }
}
