//! This machine's own addresses and name.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

/// The name of this host, as the system has it.
pub fn hostname() -> Option<std::ffi::OsString> {
    nix::unistd::gethostname().ok()
}

/// The first address of an interface that is up and no loopback, IPv4 before IPv6: what a loopback
/// peer is called in `x-forwarded-for`.
pub fn first_local_ip() -> Option<IpAddr> {
    let mut six = None;
    for interface in getifaddrs().ok()? {
        let Some(address) = interface.address else { continue };
        if let Some(v4) = address.as_sockaddr_in().map(|a| a.ip())
            && !v4.is_loopback()
        {
            return Some(v4.into());
        }
        if let Some(v6) = address.as_sockaddr_in6().map(|a| a.ip())
            && !v6.is_loopback()
        {
            six.get_or_insert(IpAddr::from(v6));
        }
    }
    six
}
