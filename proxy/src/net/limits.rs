//! The limit of open descriptors.

use std::os::fd::RawFd;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Kept free of downstream connections, so that the admin listener, logs and health checks go on
/// while clients use up the rest.
const RESERVE: u64 = 32;

/// Raises the soft limit to the hard one and tells the result.
pub fn raise_descriptor_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return u64::MAX };
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft }
}

/// Says which new connections and pipes would eat into the reserve. The kernel gives the lowest free
/// number, so a descriptor's number tells how many are open, without counting.
#[derive(Debug, Clone, Copy)]
pub struct DescriptorLimit(u64);

impl Default for DescriptorLimit {
    /// No reserve at all.
    fn default() -> Self {
        Self(u64::MAX)
    }
}

impl DescriptorLimit {
    pub fn new(limit: u64) -> Self {
        // A limit as small as the reserve itself would leave nothing.
        Self(limit.saturating_sub(RESERVE.min(limit / 4)))
    }

    pub fn is_reserve(self, descriptor: RawFd) -> bool {
        u64::try_from(descriptor).is_ok_and(|n| n >= self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_numbers_are_the_reserve() {
        let limit = DescriptorLimit::new(1024);
        assert!(!limit.is_reserve(991));
        assert!(limit.is_reserve(992));
        assert!(!DescriptorLimit::new(64).is_reserve(47));
        assert!(!DescriptorLimit::new(u64::MAX).is_reserve(i32::MAX));
    }
}
