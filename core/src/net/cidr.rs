//! Ranges of addresses, as in `core.v3.CidrRange`.

use std::fmt;
use std::net::IpAddr;

/// An address prefix. Bits beyond `len` are cleared; a `len` beyond the family's width means one
/// address, as Envoy takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CidrRange {
    base: IpAddr,
    len: u8,
}

impl CidrRange {
    pub fn new(address: IpAddr, len: u8) -> Self {
        match address {
            IpAddr::V4(a) => {
                let len = len.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                Self { base: IpAddr::V4((u32::from(a) & mask).into()), len }
            }
            IpAddr::V6(a) => {
                let len = len.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                Self { base: IpAddr::V6((u128::from(a) & mask).into()), len }
            }
        }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        // An IPv4 address mapped into IPv6 is the IPv4 address.
        let address = address.to_canonical();
        address.is_ipv4() == self.base.is_ipv4() && Self::new(address, self.len).base == self.base
    }

    pub fn prefix_len(&self) -> u8 {
        self.len
    }

    pub fn address(&self) -> IpAddr {
        self.base
    }
}

impl fmt::Display for CidrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn contains_exactly_the_addresses_with_the_prefix() {
        let range = CidrRange::new(ip("10.1.2.3"), 16);
        assert_eq!(range.to_string(), "10.1.0.0/16");
        assert!(range.contains(ip("10.1.255.255")));
        assert!(range.contains(ip("::ffff:10.1.0.1")));
        assert!(!range.contains(ip("10.2.0.0")));
        assert!(!range.contains(ip("::1")));
        assert!(CidrRange::new(ip("1.2.3.4"), 0).contains(ip("9.9.9.9")));
        assert!(CidrRange::new(ip("1.2.3.4"), 40).contains(ip("1.2.3.4")));
        assert!(CidrRange::new(ip("2001:db8::"), 32).contains(ip("2001:db8:1::1")));
    }
}
