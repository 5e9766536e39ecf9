//! A body that goes from socket to socket by a pipe, without passing through this process.
//!
//! Only one that both sides frame by its length: nothing of it has to be seen then, and what follows it on its
//! connection, which is the next message, stays there. What goes another way, or is not worth a pipe, or waits for its
//! sender, is read and written as usual: that may change with every piece.

use std::io;
use std::task::{Context, Poll};

use nuncio_core::net::counted;

use super::{HEAD_READ, NextHead, Wire};
use crate::codec::Buffers;
use crate::codec::http1::body::Incoming;
use crate::codec::http1::encode::Outgoing;
use crate::codec::http1::socket::Socket;
use crate::net::splice::{self, CAPACITY};

/// A smaller piece is copied in less time than the system calls take that would save its copies (measured: both cost the
/// same at about 40 KiB).
const WORTH_IT: usize = 48 * 1024;

/// A body that comes in smaller pieces than this is read until a read brings more. Lower than [`WORTH_IT`]: what its sender
/// writes while it moves is found in the middle of a write.
const TRICKLE: usize = 16 * 1024;

/// What became of a piece of a body that was to go by a pipe.
#[derive(Debug)]
pub enum Piped<R, W> {
    /// Nothing: it is to be read and written.
    Not,
    /// It could not be read.
    Unread(R),
    /// So many bytes were read, and are written or wait in their order.
    Read { bytes: usize, sent: Result<(), W> },
}

impl<R, W> Piped<R, W> {
    pub fn map_unread<T>(self, told: impl FnOnce(R) -> T) -> Piped<T, W> {
        match self {
            Self::Not => Piped::Not,
            Self::Unread(error) => Piped::Unread(told(error)),
            Self::Read { bytes, sent } => Piped::Read { bytes, sent },
        }
    }

    pub fn map_unsent<T>(self, told: impl FnOnce(W) -> T) -> Piped<R, T> {
        match self {
            Self::Not => Piped::Not,
            Self::Unread(error) => Piped::Unread(error),
            Self::Read { bytes, sent } => Piped::Read { bytes, sent: sent.map_err(told) },
        }
    }
}

/// The connection that a body comes from.
pub(in crate::codec::http1) struct Source<'c> {
    pub wire: &'c mut Wire,
    pub incoming: &'c mut Incoming,
}

/// The connection that it goes to.
pub(in crate::codec::http1) struct Sink<'c> {
    pub socket: &'c Socket,
    pub outgoing: &'c mut Outgoing,
    /// Set after an error.
    pub broken: &'c mut bool,
}

impl Source<'_> {
    /// Moves what is there, and what came with the head before it. `limit` is how much may be held for the sink.
    pub fn pipe(
        self,
        to: Sink<'_>,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        limit: usize,
    ) -> Piped<io::Error, io::Error> {
        let (Incoming::Length(unread), Outgoing::Length(unsent)) = (&mut *self.incoming, &mut *to.outgoing) else {
            return Piped::Not;
        };
        let from = self.wire;
        let ahead = from.pending().len();
        let most = usize::try_from(*unread).unwrap_or(usize::MAX).saturating_sub(ahead).min(limit).min(CAPACITY);
        if unread != unsent || to.socket.has_pipe() || !splice::possible(&from.socket.io(), &to.socket.io()) {
            return Piped::Not;
        }
        // The next one like it shall stay in its socket, where this one may have been read with its head.
        if *unread >= (HEAD_READ + WORTH_IT) as u64 {
            from.next_head = NextHead::Alone;
        }
        if most < WORTH_IT || ahead > HEAD_READ || from.trickles || from.eof {
            return Piped::Not;
        }
        // No descriptor is left: copying needs none.
        let Ok(mut pipe) = buffers.pipes.take() else { return Piped::Not };
        let read = pipe.poll_fill(&from.socket.io(), cx, most);
        let read = counted(cx, read);
        from.note_piece(&read);
        let read = match read {
            Poll::Ready(Ok(n)) if n > 0 => n,
            other => {
                buffers.pipes.give(pipe);
                // The end, too, is found where the body is read.
                return if let Poll::Ready(Err(e)) = other { Piped::Unread(e) } else { Piped::Not };
            }
        };
        from.received += read as u64;
        // Whether there is more only another read can tell.
        from.full = true;
        let sent = to.socket.send_pipe(cx, buffers, from.pending(), pipe);
        *to.broken |= sent.is_err();
        from.consume(ahead);
        let bytes = ahead + read;
        *unread -= bytes as u64;
        *unsent -= bytes as u64;
        if *unread == 0 {
            (*self.incoming, *to.outgoing) = (Incoming::Done, Outgoing::Done);
        }
        Piped::Read { bytes, sent }
    }
}

impl Wire {
    /// What reading a piece of a body brought.
    pub(super) fn note_piece(&mut self, read: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(n)) = read {
            self.trickles = *n < TRICKLE;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use nuncio_core::net::Io;
    use tokio::task::coop;

    use super::*;
    use crate::net::limits::DescriptorLimit;

    /// A connection, and its peer's end.
    fn wire() -> (Wire, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (Wire::new(Io::Unix(tokio::net::UnixStream::from_std(near).unwrap()), Vec::new()), far)
    }

    struct Pair {
        from: Wire,
        sender: UnixStream,
        to: Wire,
        receiver: UnixStream,
        incoming: Incoming,
        outgoing: Outgoing,
        buffers: Buffers,
    }

    impl Pair {
        /// With a body of so many bytes.
        fn new(length: u64) -> Self {
            let ((from, sender), (to, receiver)) = (wire(), wire());
            let (incoming, outgoing) = (Incoming::Length(length), Outgoing::Length(length));
            Self { from, sender, to, receiver, incoming, outgoing, buffers: Buffers::default() }
        }

        /// The bytes that moved, if they went by a pipe.
        fn pipe(&mut self, cx: &mut Context<'_>) -> Option<usize> {
            let source = Source { wire: &mut self.from, incoming: &mut self.incoming };
            let sink = Sink { socket: &self.to.socket, outgoing: &mut self.outgoing, broken: &mut false };
            match source.pipe(sink, cx, &self.buffers, usize::MAX) {
                Piped::Read { bytes, sent: Ok(()) } => Some(bytes),
                Piped::Not => None,
                failed => panic!("{failed:?}"),
            }
        }

        /// The same, once both sockets are known to be ready.
        async fn piped(&mut self) -> Option<usize> {
            poll_fn(|cx| self.from.socket.io().poll_read_ready(cx)).await.unwrap();
            poll_fn(|cx| Poll::Ready(self.pipe(cx))).await
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_follows_a_body_stays_where_it_is() {
        let body = [b'x'; WORTH_IT];
        let mut pair = Pair::new(WORTH_IT as u64 + 5);
        pair.from.keep(&pair.buffers, b"ahead");
        pair.to.socket.output(&pair.buffers).extend_from_slice(b"head ");
        pair.sender.write_all(&[&body[..], b"next"].concat()).unwrap();
        assert_eq!(pair.piped().await, Some(WORTH_IT + 5));
        assert!(pair.incoming.is_done() && pair.outgoing == Outgoing::Done);
        let mut got = vec![0; WORTH_IT + 10];
        pair.receiver.read_exact(&mut got).unwrap();
        assert!(got == [b"head ahead", &body[..]].concat());
        assert!(pair.from.pending().is_empty() && !pair.from.is_quiet(), "whether there is more is not known");
        let mut scratch = [0; 10];
        let n = poll_fn(|cx| pair.from.poll_read(cx, &mut scratch)).await.unwrap();
        assert_eq!(&scratch[..n], b"next");
        assert_eq!((pair.from.totals().0, pair.to.totals().1), (WORTH_IT as u64 + 4, WORTH_IT as u64 + 10));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_comes_in_small_pieces_is_read() {
        let mut pair = Pair::new(1 << 20);
        pair.sender.write_all(b"little").unwrap();
        assert_eq!(pair.piped().await, Some(6));
        pair.sender.write_all(&[b'x'; 2 * WORTH_IT]).unwrap();
        assert_eq!(pair.piped().await, None);
        // A read that brings much shows that there is bulk again.
        let mut scratch = [0; WORTH_IT];
        assert_eq!(poll_fn(|cx| pair.from.poll_fill(cx, &mut scratch, WORTH_IT)).await.unwrap(), WORTH_IT);
        assert_eq!(pair.piped().await, Some(WORTH_IT));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn where_no_descriptor_is_left_it_is_read() {
        let mut pair = Pair::new(1 << 20);
        pair.sender.write_all(&[b'x'; 2 * WORTH_IT]).unwrap();
        pair.buffers.pipes.spare(DescriptorLimit::new(0));
        assert_eq!(pair.piped().await, None);
        pair.buffers.pipes.spare(DescriptorLimit::default());
        assert_eq!(pair.piped().await, Some(2 * WORTH_IT));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_turn_moves_so_many_bytes() {
        let mut pair = Pair::new(1 << 40);
        pair.receiver.set_nonblocking(true).unwrap();
        pair.sender.write_all(&[b'x'; 2 * WORTH_IT]).unwrap();
        assert!(pair.piped().await.is_some());
        tokio::task::yield_now().await;
        let mut moved = 0;
        poll_fn(|cx| {
            while coop::has_budget_remaining() {
                pair.sender.write_all(&[b'x'; 2 * WORTH_IT]).unwrap();
                moved += pair.pipe(cx).unwrap_or_default();
                while pair.receiver.read(&mut [0; WORTH_IT]).is_ok() {}
            }
            Poll::Ready(())
        })
        .await;
        assert!((1 << 19..3 << 20).contains(&moved), "{moved}");
    }
}
