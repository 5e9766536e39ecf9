//! Listening sockets handed from one process to its successor over a unix socket that keeps messages apart: each
//! message is a label and the descriptors that it names.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::sys::own;

/// As many descriptors as the kernel passes in one message.
const MOST: usize = 253;

/// Labels are short.
const LABEL: usize = 4096;

/// How long a predecessor may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// One end of a conversation between two processes.
pub struct Line(Socket);

/// Where a successor finds this process.
pub struct Door(AsyncFd<Socket>);

impl Line {
    /// To the process that listens at `path`; none if nobody does.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        match socket.connect(&SockAddr::unix(path)?) {
            Ok(()) => Ok(Some(Self(socket))),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub fn send(&self, label: &str, descriptors: &[RawFd]) -> io::Result<()> {
        let text = [IoSlice::new(label.as_bytes())];
        let rights = [ControlMessage::ScmRights(&descriptors[..descriptors.len().min(MOST)])];
        let rights = if descriptors.is_empty() { &[][..] } else { &rights[..] };
        sendmsg::<()>(self.0.as_raw_fd(), &text, rights, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// The next message; none when the other process is gone.
    pub fn receive(&self) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
        let (mut text, mut space) = (vec![0; LABEL], nix::cmsg_space!([RawFd; MOST]));
        let mut parts = [IoSliceMut::new(&mut text)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
        let mut descriptors = Vec::new();
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(rights) = control {
                descriptors.extend(rights.into_iter().map(own));
            }
        }
        let length = message.bytes;
        if length == 0 {
            return Ok(None);
        }
        text.truncate(length);
        Ok(Some((String::from_utf8_lossy(&text).into_owned(), descriptors)))
    }

    /// Waits for the next message without holding the thread.
    pub async fn next(&self) -> io::Result<Option<String>> {
        // Deprecated for descriptors that somebody else could close; this one is closed with its owner.
        #[allow(deprecated)]
        let readable = AsyncFd::with_interest(self.0.try_clone()?, Interest::READABLE)?;
        loop {
            let mut guard = readable.readable().await?;
            match guard.try_io(|_| self.receive()) {
                Ok(received) => return Ok(received?.map(|(label, _)| label)),
                Err(_) => continue,
            }
        }
    }
}

impl Door {
    /// Takes the place of whatever was at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        socket.listen(4)?;
        // As above.
        #[allow(deprecated)]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(Self(socket))
    }

    pub async fn next(&self) -> io::Result<Line> {
        loop {
            let mut guard = self.0.readable().await?;
            match guard.try_io(|socket| socket.get_ref().accept()) {
                Ok(accepted) => {
                    let (socket, _) = accepted?;
                    socket.set_nonblocking(true)?;
                    return Ok(Line(socket));
                }
                Err(_) => continue,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[tokio::test(flavor = "local")]
    async fn a_listening_socket_goes_from_one_end_to_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("restart");
        assert!(Line::open(&path).unwrap().is_none());
        let door = Door::open(&path).unwrap();
        let child = Line::open(&path).unwrap().unwrap();
        let parent = door.next().await.unwrap();
        child.send("sockets", &[]).unwrap();
        assert_eq!(parent.next().await.unwrap().as_deref(), Some("sockets"));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        parent.send("in", &[listener.as_raw_fd()]).unwrap();
        let (label, mut sockets) = child.receive().unwrap().unwrap();
        assert_eq!((label.as_str(), sockets.len()), ("in", 1));
        drop(listener);
        let adopted = std::net::TcpListener::from(sockets.pop().unwrap());
        let mut client = std::net::TcpStream::connect(address).unwrap();
        let (mut accepted, _) = adopted.accept().unwrap();
        accepted.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
        drop(child);
        assert_eq!(parent.next().await.unwrap(), None);
    }
}
