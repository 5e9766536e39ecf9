//! This machine's own addresses and name.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

/// The name of this host, as the system has it.
pub fn hostname() -> Option<std::ffi::OsString> {
    nix::unistd::gethostname().ok()
}

/// Whether there is an address of that family, IPv4 or else IPv6, that is no loopback's.
pub fn has_address(v4: bool) -> bool {
    let Ok(mut interfaces) = getifaddrs() else { return true };
    interfaces.any(|interface| {
        let Some(address) = interface.address else { return false };
        if v4 {
            address.as_sockaddr_in().is_some_and(|a| !a.ip().is_loopback())
        } else {
            address.as_sockaddr_in6().is_some_and(|a| !a.ip().is_loopback())
        }
    })
}

/// Whether it is an address of this machine.
pub fn is_own(ip: IpAddr) -> bool {
    if ip.is_loopback() {
        return true;
    }
    let Ok(mut interfaces) = getifaddrs() else { return false };
    interfaces.any(|interface| {
        let Some(address) = interface.address else { return false };
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip()))) == Some(ip)
    })
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
