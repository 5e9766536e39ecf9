//! The host as routes see it: without its port or its trailing dot, where that is configured.

use nuncio_core::http::RequestHead;

/// `strip_matching_host_port`, `strip_any_host_port`, `strip_trailing_host_dot`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostRules {
    pub port: StripPort,
    pub trailing_dot: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StripPort {
    #[default]
    Keep,
    /// If it is the port the connection was made to.
    Matching,
    Any,
}

impl HostRules {
    /// `local` is the port that the connection was made to.
    pub fn apply(self, head: &mut RequestHead, local: Option<u16>) {
        if self == Self::default() || head.method() == b"CONNECT" {
            return;
        }
        let Some(authority) = head.authority() else { return };
        let (host, port) = split(authority);
        let drop_port = match (self.port, port) {
            (StripPort::Keep, _) | (_, None) => false,
            (StripPort::Any, Some(_)) => true,
            (StripPort::Matching, Some(port)) => Some(port) == local,
        };
        let bare = if self.trailing_dot { host.strip_suffix(b".").unwrap_or(host) } else { host };
        let port_text = if drop_port { &[] } else { &authority[host.len()..] };
        if bare.len() + port_text.len() < authority.len() {
            let stripped = [bare, port_text].concat();
            head.headers.set(":authority", stripped);
        }
    }
}

/// The host, and the port if there is a whole one. A colon alone is part of the host.
fn split(authority: &[u8]) -> (&[u8], Option<u16>) {
    let whole = (authority, None);
    let Some(colon) = memchr::memrchr(b':', authority) else { return whole };
    let digits = &authority[colon + 1..];
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) || authority.ends_with(b"]") {
        return whole;
    }
    match std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()) {
        Some(port) => (&authority[..colon], Some(port)),
        None => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(rules: HostRules, authority: &str) -> String {
        let mut head = RequestHead::default();
        head.headers.set(":authority", authority);
        rules.apply(&mut head, Some(8080));
        head.headers.get_str(":authority").unwrap().to_owned()
    }

    // Expected: recorded from Envoy 1.40 (hcm_early_mutation_and_case).
    #[test]
    fn ports_and_trailing_dots_are_taken_away_as_configured() {
        let any = HostRules { port: StripPort::Any, trailing_dot: false };
        let matching = HostRules { port: StripPort::Matching, trailing_dot: false };
        let dot = HostRules { port: StripPort::Keep, trailing_dot: true };
        let both = HostRules { port: StripPort::Any, trailing_dot: true };
        for (rules, authority, expected) in [
            (any, "web.test:80", "web.test"),
            (any, "web.test.:80", "web.test."),
            (any, "[::1]:80", "[::1]"),
            (any, "[::1]", "[::1]"),
            (any, "web.test:", "web.test:"),
            (any, "1.2.3.4:5", "1.2.3.4"),
            (matching, "web.test:80", "web.test:80"),
            (matching, "web.test:8080", "web.test"),
            (dot, "web.test.", "web.test"),
            (dot, "web.test.:80", "web.test:80"),
            (dot, "web.test:", "web.test:"),
            (both, "web.test.:80", "web.test"),
        ] {
            assert_eq!(stripped(rules, authority), expected, "{authority}");
        }
    }
}
