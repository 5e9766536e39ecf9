//! Outgoing connections over real sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use futures_util::future::LocalBoxFuture;
use nuncio_core::net::connect::SocketState;
use nuncio_core::net::{Address, Connect, ConnectOptions, Connected, Io};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, UnixStream};

use super::limits::DescriptorLimit;
use super::options::{apply, apply_keepalive};

/// The system's sockets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sockets {
    /// A worker leaves the last descriptors to the main thread.
    pub descriptors: DescriptorLimit,
}

impl Connect for Sockets {
    fn connect(&self, address: &Address, options: &ConnectOptions) -> LocalBoxFuture<'static, io::Result<Connected>> {
        match address {
            Address::Ip(remote) => {
                let remote = *remote;
                // Made before the future is polled: nothing of the options need be kept.
                let socket = tcp_socket(remote, options, self.descriptors);
                Box::pin(async move {
                    let stream = socket?.connect(remote).await?;
                    let local = stream.local_addr().ok().map(Address::Ip);
                    Ok(Connected { io: Io::Tcp(stream), local, remote: Address::Ip(remote) })
                })
            }
            Address::Pipe(path) => {
                let path = path.clone();
                Box::pin(async move {
                    let stream = match path.strip_prefix('@') {
                        // Tokio reads a leading zero byte as the abstract namespace.
                        Some(name) => UnixStream::connect(format!("\0{name}")).await?,
                        None => UnixStream::connect(&*path).await?,
                    };
                    Ok(Connected { io: Io::Unix(stream), local: None, remote: Address::Pipe(path) })
                })
            }
            Address::Internal { .. } => Box::pin(async { Err(io::ErrorKind::Unsupported.into()) }),
        }
    }
}

fn tcp_socket(remote: SocketAddr, options: &ConnectOptions, limit: DescriptorLimit) -> io::Result<TcpSocket> {
    let domain = if remote.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if limit.is_reserve(socket.as_raw_fd()) {
        return Err(io::Error::from_raw_os_error(nix::libc::EMFILE));
    }
    socket.set_tcp_nodelay(true)?;
    if let Some(keepalive) = &options.keepalive {
        apply_keepalive(&socket, keepalive)?;
    }
    apply(&socket, &options.socket_options, SocketState::PreBind)?;
    if let Some(source) = options.source.as_ref().and_then(Address::socket) {
        if source.port() == 0 && !source.is_ipv6() {
            // The port is chosen at connect, so that two destinations may share one.
            let one = 1i32.to_ne_bytes();
            let name = nix::libc::IP_BIND_ADDRESS_NO_PORT;
            super::sys::set_socket_option(&socket, nix::libc::IPPROTO_IP, name, &one)?;
        }
        socket.bind(&source.into())?;
    }
    apply(&socket, &options.socket_options, SocketState::Bound)?;
    Ok(TcpSocket::from_std_stream(socket.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "local")]
    async fn the_last_descriptors_are_not_for_connections() {
        let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Ip(host.local_addr().unwrap());
        let connected = Sockets::default().connect(&address, &ConnectOptions::default()).await.unwrap();
        assert_eq!(connected.remote, address);
        // Standard input, output and error alone are more than two.
        let none_left = Sockets { descriptors: DescriptorLimit::new(2) };
        let error = none_left.connect(&address, &ConnectOptions::default()).await.err().unwrap();
        assert_eq!(error.raw_os_error(), Some(nix::libc::EMFILE));
    }
}
