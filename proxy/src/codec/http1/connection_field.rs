//! `connection:` and the fields it nominates.
//!
//! Envoy removes nominated fields from a request (not from a response), refuses a request that
//! nominates the fields by which a proxy tells where it came from, and one with ten or more.

use nuncio_core::http::HeaderMap;

use super::error::RequestError;
use super::fields::tokens;

/// As Envoy: this many tokens are refused.
const TOO_MANY_TOKENS: usize = 10;
/// As Envoy: a nominated `te` this long is refused.
const MAX_TE: usize = 256;

/// What the lines of `connection` say.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionTokens {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
    /// Some token nominates a field.
    pub(super) nominates: bool,
    count: usize,
}

impl ConnectionTokens {
    /// Adds one line.
    pub(super) fn add(&mut self, line: &[u8]) {
        for token in tokens(line) {
            self.count += 1;
            let is = |name: &str| token.eq_ignore_ascii_case(name.as_bytes());
            if is("close") {
                self.close = true;
            } else if is("keep-alive") {
                self.keep_alive = true;
            } else if is("upgrade") {
                self.upgrade = true;
            } else {
                self.nominates = true;
            }
        }
    }

    pub(super) fn check(&self) -> Result<(), RequestError> {
        if self.count >= TOO_MANY_TOKENS { Err(RequestError::CONNECTION) } else { Ok(()) }
    }
}

/// Removes from `headers` what one line nominates.
pub(super) fn remove_nominated(line: &[u8], headers: &mut HeaderMap, te: &[u8]) -> Result<(), RequestError> {
    for token in tokens(line) {
        let is = |name: &str| token.eq_ignore_ascii_case(name.as_bytes());
        if is("x-forwarded-for") || is("x-forwarded-host") || is("x-forwarded-proto") || token[0] == b':' {
            return Err(RequestError::CONNECTION);
        }
        if is("close") || is("keep-alive") || is("upgrade") || is("http2-settings") || is("connection") {
            continue;
        }
        if is("te") {
            // Only `trailers` is left of it in any case.
            if te.len() >= MAX_TE {
                return Err(RequestError::CONNECTION);
            }
        } else if is("host") {
            return Err(RequestError::NO_HOST);
        } else if !is("content-length") {
            // The length stays for logs and matchers: the framing is decided already.
            headers.retain(|name, _| !name.eq_ignore_ascii_case(token));
        }
    }
    Ok(())
}
