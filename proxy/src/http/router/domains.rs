//! Which virtual host a request belongs to: the exact domain, else the longest `*suffix`, else
//! the longest `prefix*`, else `*`. Case does not matter; the port is part of the host.

use super::names::{Names, SEED, hash, step};
use nuncio_core::error::ConfigError;

#[derive(Debug, Default)]
pub(super) struct Domains {
    exact: Names,
    suffixes: Wildcards,
    prefixes: Wildcards,
    any: Option<u32>,
}

#[derive(Debug, Default)]
struct Wildcards {
    names: Names,
    /// The distinct lengths of the names, ascending.
    lengths: Vec<u32>,
}

/// Hosts up to this length are lower-cased on the stack.
const STACK_HOST: usize = 255;

impl Domains {
    /// Adds `domain` for virtual host number `host`. `config` is the name of the route
    /// configuration, for the messages, which are Envoy's.
    pub(super) fn insert(&mut self, domain: &str, host: u32, config: &str) -> Result<(), ConfigError> {
        let lower = domain.to_ascii_lowercase();
        let fresh = if lower == "*" {
            if self.any.is_some() {
                let reason = format!("Only a single wildcard domain is permitted in route {config}");
                return Err(ConfigError::new("", reason));
            }
            self.any = Some(host);
            true
        } else if let Some(suffix) = lower.strip_prefix('*') {
            self.suffixes.insert(hash(suffix.bytes().rev()), suffix.as_bytes(), host)
        } else if let Some(prefix) = lower.strip_suffix('*') {
            self.prefixes.insert(hash(prefix.bytes()), prefix.as_bytes(), host)
        } else {
            self.exact.insert(hash(lower.bytes()), lower.as_bytes(), host).is_ok()
        };
        if fresh {
            return Ok(());
        }
        let reason = format!(
            "Only unique values for domains are permitted. Duplicate entry of domain {lower} in route {config}"
        );
        Err(ConfigError::new("", reason))
    }

    pub(super) fn shrink(&mut self) {
        for names in [&mut self.exact, &mut self.suffixes.names, &mut self.prefixes.names] {
            names.shrink();
        }
    }

    /// The number of the virtual host for `authority`, which may be missing altogether.
    pub(super) fn find(&self, authority: Option<&[u8]>, ignore_port: bool) -> Option<u32> {
        if self.exact.is_empty() && self.suffixes.names.is_empty() && self.prefixes.names.is_empty() {
            return self.any;
        }
        let mut host = authority?;
        if ignore_port && let Some(colon) = port_start(host) {
            host = &host[..colon];
        }
        let mut stack = [0; STACK_HOST];
        if let Some(lower) = stack.get_mut(..host.len()) {
            lower.copy_from_slice(host);
            lower.make_ascii_lowercase();
            self.find_lower(lower)
        } else {
            self.find_lower(&host.to_ascii_lowercase())
        }
    }

    fn find_lower(&self, host: &[u8]) -> Option<u32> {
        let exact = if self.exact.is_empty() { None } else { self.exact.get(hash(host.iter().copied()), host) };
        exact
            .or_else(|| self.suffixes.longest(host, |i| host[host.len() - 1 - i], |len| &host[host.len() - len..]))
            .or_else(|| self.prefixes.longest(host, |i| host[i], |len| &host[..len]))
            .or(self.any)
    }
}

impl Wildcards {
    fn insert(&mut self, hash: u64, name: &[u8], value: u32) -> bool {
        if let Err(at) = self.lengths.binary_search(&(name.len() as u32)) {
            self.lengths.insert(at, name.len() as u32);
        }
        self.names.insert(hash, name, value).is_ok()
    }

    /// The value of the longest name that is shorter than `host` (`*.a.b` is not for `.a.b`).
    fn longest<'a>(&self, host: &'a [u8], byte: impl Fn(usize) -> u8, part: impl Fn(usize) -> &'a [u8]) -> Option<u32> {
        let (mut state, mut hashed, mut found) = (SEED, 0, None);
        for &len in &self.lengths {
            let len = len as usize;
            if len >= host.len() {
                break;
            }
            while hashed < len {
                state = step(state, byte(hashed));
                hashed += 1;
            }
            found = self.names.get(state, part(len)).or(found);
        }
        found
    }
}

/// Where the colon before the port is; colons inside `[…]` are part of an IPv6 address.
pub(super) fn port_start(host: &[u8]) -> Option<usize> {
    let colon = memchr::memrchr(b':', host)?;
    match memchr::memrchr(b']', host) {
        Some(bracket) if bracket > colon => None,
        _ => Some(colon),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table and answers of the oracle scenario `router_vhost_domains` on Envoy 1.40.
    #[test]
    fn domains_rank_as_in_envoy() {
        let hosts: [(&str, &[&str]); 7] = [
            ("any", &["*"]),
            ("suffix-short", &["*.test"]),
            ("suffix-long", &["*.shop.test"]),
            ("exact", &["cart.shop.test", "plain"]),
            ("prefix", &["api.*"]),
            ("ported", &["cart.shop.test:8080"]),
            ("dash", &["*-eu.shop.test"]),
        ];
        let mut domains = Domains::default();
        for (i, (_, names)) in hosts.iter().enumerate() {
            for name in *names {
                domains.insert(name, i as u32, "r").unwrap();
            }
        }
        for (host, expected) in [
            ("cart.shop.test", "exact"),
            ("CART.Shop.test", "exact"),
            ("cart.shop.test:8080", "ported"),
            ("cart.shop.test:80", "any"),
            ("x.shop.test", "suffix-long"),
            ("a.b.shop.test", "suffix-long"),
            ("shop.test", "suffix-short"),
            (".shop.test", "suffix-short"),
            ("w-eu.shop.test", "dash"),
            ("y.test", "suffix-short"),
            ("api.anything", "prefix"),
            ("api.v1.shop.test", "suffix-long"),
            ("api.", "any"),
            ("plain", "exact"),
            ("plain.", "any"),
            ("", "any"),
            ("[::1]:80", "any"),
        ] {
            let found = domains.find(Some(host.as_bytes()), false).unwrap();
            assert_eq!(hosts[found as usize].0, expected, "{host}");
        }
        assert_eq!(domains.find(Some(b"cart.shop.test:80"), true), Some(3));
        assert_eq!(domains.find(None, false), None);
        let long = [b"x".repeat(300), b".shop.test".to_vec()].concat();
        assert_eq!(domains.find(Some(&long), false), Some(2));
    }

    #[test]
    fn duplicates_are_refused_in_envoys_words() {
        let mut domains = Domains::default();
        for name in ["*", "a.test", "*.a", "a.*"] {
            domains.insert(name, 0, "r").unwrap();
        }
        let text = |e: ConfigError| e.reason;
        assert_eq!(
            text(domains.insert("A.test", 1, "r").unwrap_err()),
            "Only unique values for domains are permitted. Duplicate entry of domain a.test in route r"
        );
        assert_eq!(
            text(domains.insert("*", 1, "r").unwrap_err()),
            "Only a single wildcard domain is permitted in route r"
        );
        assert!(domains.insert("*.A", 1, "r").is_err());
        assert!(domains.insert("a.*", 1, "r").is_err());
    }

    #[test]
    fn only_a_catch_all_needs_no_host() {
        let mut domains = Domains::default();
        domains.insert("*", 0, "").unwrap();
        assert_eq!(domains.find(None, false), Some(0));
    }
}
