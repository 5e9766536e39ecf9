//! The system calls that no crate wraps: the one place of the proxy with `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;

/// `setsockopt` with a level and a name that come from configuration.
pub fn set_socket_option(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads `length` bytes at most.
    let result = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A descriptor that came with a message.
pub fn own(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the kernel made it for this process when the message was received, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Gives memory that was freed back to the system: after a large configuration was read, glibc
/// would keep its pages for ever.
pub fn trim_memory() {
    // SAFETY: no arguments that could be wrong, no memory of ours is touched.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
