//! Listening sockets: bound on the main thread before any worker starts, one for each worker with
//! SO_REUSEPORT, one shared otherwise.
//!
//! Linux lets any process of the same user join a SO_REUSEPORT group, so two proxies started by
//! mistake on one port would split its connections in silence. The first socket is therefore bound
//! without the option, which fails if anybody listens there, and gets the option afterwards so that
//! its siblings may join.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;

use nuncio_core::net::Address;
use nuncio_core::net::connect::{Keepalive, SocketOption, SocketState};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::options::{apply, apply_keepalive};

/// What a listener asks of its sockets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// A socket for each worker.
    pub reuse_port: bool,
    /// Join whoever listens on the address already (a predecessor in a hot restart).
    pub share: bool,
    pub freebind: bool,
    pub transparent: bool,
    /// An IPv6 address that takes IPv4 clients as well.
    pub ipv4_compat: bool,
    /// Unset: the system's own limit.
    pub backlog: Option<u32>,
    pub fast_open_queue: Option<u32>,
    pub keepalive: Option<Keepalive>,
    pub socket_options: Vec<SocketOption>,
    /// Permission bits of a unix socket's file; 0 leaves them.
    pub pipe_mode: u32,
}

/// The sockets of one address. Closed when the last listener that uses them is gone; a worker
/// holds a duplicate.
#[derive(Debug)]
pub struct BoundAddress {
    local: Address,
    sockets: Vec<Socket>,
    options: BindOptions,
}

/// A worker's own descriptor of a listening socket.
#[derive(Debug)]
pub struct ListeningSocket {
    pub(super) socket: Socket,
    pub(super) local: Address,
    pub(super) transparent: bool,
}

impl BoundAddress {
    /// Binds without listening. The error says which address, and in words if it is taken.
    pub fn bind(address: &Address, options: BindOptions, workers: usize) -> io::Result<Self> {
        let result = match address {
            Address::Ip(ip) => Self::bind_ip(*ip, options, workers),
            Address::Pipe(path) => Self::bind_pipe(path, options),
            Address::Internal { .. } => Err(io::ErrorKind::Unsupported.into()),
        };
        result.map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => {
                io::Error::new(e.kind(), format!("cannot bind '{address}': Address already in use by another socket"))
            }
            kind => io::Error::new(kind, format!("cannot bind '{address}': {e}")),
        })
    }

    fn bind_ip(address: SocketAddr, options: BindOptions, workers: usize) -> io::Result<Self> {
        let first = ip_socket(address, &options, options.reuse_port && options.share)?;
        let local = first.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidData)?;
        let mut sockets = vec![first];
        if options.reuse_port {
            sockets[0].set_reuse_port(true)?;
            for _ in 1..workers {
                sockets.push(ip_socket(local, &options, true)?);
            }
        }
        Ok(Self { local: Address::Ip(local), sockets, options })
    }

    fn bind_pipe(path: &str, options: BindOptions) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        apply(&socket, &options.socket_options, SocketState::PreBind)?;
        if let Some(name) = path.strip_prefix('@') {
            socket.bind(&SockAddr::unix(format!("\0{name}"))?)?;
        } else {
            // A file left behind by a dead process would refuse the bind; Envoy removes it too.
            match std::fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => socket.bind(&SockAddr::unix(path)?)?,
            }
            if options.pipe_mode != 0 {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(options.pipe_mode))?;
            }
        }
        apply(&socket, &options.socket_options, SocketState::Bound)?;
        Ok(Self { local: Address::Pipe(path.into()), sockets: vec![socket], options })
    }

    /// Sockets that another process bound and listens on. Workers that they are too few for get more of them.
    pub fn adopt(address: &Address, sockets: Vec<OwnedFd>, options: BindOptions, workers: usize) -> io::Result<Self> {
        let mut sockets: Vec<Socket> = sockets.into_iter().map(Socket::from).collect();
        let first = sockets.first().ok_or(io::ErrorKind::InvalidInput)?;
        let local = first.local_addr()?.as_socket().map_or_else(|| address.clone(), Address::Ip);
        if let (Address::Ip(ip), true) = (&local, options.reuse_port) {
            while sockets.len() < workers {
                sockets.push(ip_socket(*ip, &options, true)?);
            }
        }
        Ok(Self { local, sockets, options })
    }

    pub fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.sockets.iter()
    }

    /// Begins to take connections.
    pub fn listen(&self) -> io::Result<()> {
        let backlog = self.options.backlog.map_or(i32::MAX, |n| i32::try_from(n).unwrap_or(i32::MAX));
        for socket in &self.sockets {
            socket.listen(backlog).map_err(|e| match e.kind() {
                io::ErrorKind::AddrInUse => {
                    let text = format!("cannot listen on '{}': Address already in use by another socket", self.local);
                    io::Error::new(e.kind(), text)
                }
                kind => io::Error::new(kind, format!("cannot listen on '{}': {e}", self.local)),
            })?;
            apply(socket, &self.options.socket_options, SocketState::Listening)?;
        }
        Ok(())
    }

    /// The descriptor for a worker.
    pub fn socket(&self, worker: usize) -> io::Result<ListeningSocket> {
        let socket = self.sockets.get(worker).unwrap_or(&self.sockets[0]).try_clone()?;
        Ok(ListeningSocket { socket, local: self.local.clone(), transparent: self.options.transparent })
    }

    /// The descriptors for one of so many workers: more than one where the sockets are more than the workers.
    pub fn sockets_of(&self, worker: usize, workers: usize) -> io::Result<Vec<ListeningSocket>> {
        let own = (worker + workers..self.sockets.len()).step_by(workers.max(1));
        std::iter::once(worker).chain(own).map(|at| self.socket(at)).collect()
    }

    /// With the port that the system chose for port 0.
    pub fn local(&self) -> &Address {
        &self.local
    }

    pub fn options(&self) -> &BindOptions {
        &self.options
    }
}

fn ip_socket(address: SocketAddr, options: &BindOptions, reuse_port: bool) -> io::Result<Socket> {
    let v6 = address.is_ipv6();
    let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    // Connections of a predecessor in TIME_WAIT do not keep the address.
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    if v6 {
        socket.set_only_v6(!options.ipv4_compat)?;
    }
    if options.freebind {
        if v6 { socket.set_freebind_v6(true) } else { socket.set_freebind_v4(true) }?;
    }
    if options.transparent {
        set_transparent(&socket, v6)?;
    }
    // Accepted sockets inherit both, which saves two system calls for each connection.
    socket.set_tcp_nodelay(true)?;
    if let Some(keepalive) = &options.keepalive {
        apply_keepalive(&socket, keepalive)?;
    }
    apply(&socket, &options.socket_options, SocketState::PreBind)?;
    socket.bind(&address.into())?;
    if let Some(queue) = options.fast_open_queue {
        let queue = i32::try_from(queue).unwrap_or(i32::MAX);
        super::sys::set_socket_option(&socket, nix::libc::IPPROTO_TCP, nix::libc::TCP_FASTOPEN, &queue.to_ne_bytes())?;
    }
    apply(&socket, &options.socket_options, SocketState::Bound)?;
    Ok(socket)
}

fn set_transparent(socket: &Socket, v6: bool) -> io::Result<()> {
    if v6 {
        let one = 1i32.to_ne_bytes();
        return super::sys::set_socket_option(socket, nix::libc::SOL_IPV6, nix::libc::IPV6_TRANSPARENT, &one);
    }
    socket.set_ip_transparent_v4(true)
}

impl ListeningSocket {
    pub fn local(&self) -> &Address {
        &self.local
    }

    /// A connection's own local address may differ from the socket's.
    pub(super) fn is_wildcard(&self) -> bool {
        self.transparent || matches!(self.local.ip(), Some(ip) if is_unspecified(ip))
    }
}

fn is_unspecified(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_unspecified() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_unspecified()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;

    use super::*;

    fn loopback() -> Address {
        Address::Ip("127.0.0.1:0".parse().unwrap())
    }

    fn reuse() -> BindOptions {
        BindOptions { reuse_port: true, ..Default::default() }
    }

    #[test]
    fn every_worker_has_a_socket_on_the_port_the_first_one_got() {
        let bound = BoundAddress::bind(&loopback(), reuse(), 4).unwrap();
        bound.listen().unwrap();
        assert_eq!(bound.sockets.len(), 4);
        let ports: Vec<_> = bound.sockets.iter().map(|s| s.local_addr().unwrap().as_socket().unwrap().port()).collect();
        assert!(ports[0] != 0 && ports.iter().all(|p| *p == ports[0]));
        assert_eq!(bound.local().port(), Some(ports[0]));
    }

    #[test]
    fn a_port_somebody_listens_on_is_refused_unless_told_to_share() {
        let first = BoundAddress::bind(&loopback(), reuse(), 2).unwrap();
        first.listen().unwrap();
        let error = BoundAddress::bind(first.local(), reuse(), 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let port = first.local().port().unwrap();
        assert_eq!(
            error.to_string(),
            format!("cannot bind '127.0.0.1:{port}': Address already in use by another socket")
        );
        let shared = BindOptions { share: true, ..reuse() };
        BoundAddress::bind(first.local(), shared, 2).unwrap().listen().unwrap();
    }

    #[test]
    fn two_that_bound_at_the_same_moment_do_not_both_listen() {
        let first = BoundAddress::bind(&loopback(), BindOptions::default(), 1).unwrap();
        let second = BoundAddress::bind(first.local(), BindOptions::default(), 1).unwrap();
        first.listen().unwrap();
        assert_eq!(second.listen().unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_unix_socket_replaces_the_file_of_a_dead_process_and_gets_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "").unwrap();
        let address = Address::Pipe(path.to_str().unwrap().into());
        let options = BindOptions { pipe_mode: 0o600, ..Default::default() };
        let bound = BoundAddress::bind(&address, options, 2).unwrap();
        bound.listen().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::net::UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn an_abstract_name_leaves_no_file() {
        let name = format!("@nuncio-test-{}", std::process::id());
        let bound = BoundAddress::bind(&Address::Pipe(name.as_str().into()), BindOptions::default(), 1).unwrap();
        bound.listen().unwrap();
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name[1..]).unwrap();
        std::os::unix::net::UnixStream::connect_addr(&address).unwrap();
    }

    #[test]
    fn options_are_applied_in_their_state() {
        // SOL_SOCKET, SO_RCVBUF: the kernel doubles the value it is given.
        let option = SocketOption {
            level: nix::libc::SOL_SOCKET,
            name: nix::libc::SO_RCVBUF,
            value: 8192i32.to_ne_bytes().to_vec(),
            state: SocketState::PreBind,
        };
        let options = BindOptions { socket_options: vec![option], ..Default::default() };
        let bound = BoundAddress::bind(&loopback(), options, 1).unwrap();
        assert_eq!(bound.sockets[0].recv_buffer_size().unwrap(), 16384);
        let nonsense = SocketOption { level: 1, name: 9999, value: vec![0; 4], state: SocketState::Bound };
        let options = BindOptions { socket_options: vec![nonsense], ..Default::default() };
        let error = BoundAddress::bind(&loopback(), options, 1).unwrap_err().to_string();
        assert!(error.contains("level 1 name 9999"), "{error}");
    }
}
