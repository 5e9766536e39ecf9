//! Where an intercepted connection was meant to go before the packet filter of the kernel sent it here.

use std::net::SocketAddr;

use nuncio_core::net::Io;
use socket2::SockRef;

/// The destination before REDIRECT (`SO_ORIGINAL_DST`, or its twin for IPv6), or the socket's own local address if the
/// kernel handed it over transparently (TPROXY): that is where the client meant to go, although nothing was changed.
/// `None`: nobody changed it, as far as the kernel knows.
pub fn original_dst(io: &Io) -> Option<SocketAddr> {
    let Io::Tcp(stream) = io else { return None };
    let socket = SockRef::from(stream);
    let local = stream.local_addr().ok()?;
    // An IPv4 connection to a socket of both families has its IPv4 record.
    let redirected = match local.ip().to_canonical().is_ipv4() {
        true => socket.original_dst_v4(),
        false => socket.original_dst_v6(),
    };
    let changed = redirected.ok().and_then(|address| address.as_socket()).filter(|found| *found != local);
    let transparent = || socket.ip_transparent_v4().is_ok_and(|on| on).then_some(local);
    changed.or_else(transparent)
}

/// Whether a connection can be made to that address by its bytes alone: it is no group, not unspecified, and does not
/// depend on an interface. The kernel says the interface of a link-local destination only if the client's address is a
/// link-local one too.
pub fn is_of_a_host(address: SocketAddr) -> bool {
    let scoped = matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0 || v6.ip().is_unicast_link_local());
    !scoped && super::proxy_protocol::is_of_a_host(address.ip().to_canonical())
}
