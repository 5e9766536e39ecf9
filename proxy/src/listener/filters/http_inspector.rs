//! `envoy.filters.listener.http_inspector`: whether a client speaks HTTP, and which, from its first line.
//!
//! Config: `envoy.extensions.filters.listener.http_inspector.v3.HttpInspector`, which has no fields. Stats:
//! `http_inspector.`. What it finds (`http/1.0`, `http/1.1`, `h2c`) is an application protocol for the choice of a filter
//! chain; it never closes a connection. A client that `tls_inspector` found to speak TLS is not asked.

use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::{ConnectionInfo, Io};
use nuncio_core::network::{
    ListenerFilter, ListenerFilterConfig, ListenerFilterFactory, ListenerStep, MakeListenerFilter,
};
use nuncio_core::stats::{List, Scope, ScopeId, Stats};

use crate::codec::http2::PREFACE;

supports!(HTTP_INSPECTOR = "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector" {});

pub(super) static SUPPORTED: &[&Entry] = &[&HTTP_INSPECTOR];

static SCOPE: Scope = Scope { root: "", lists: &[HttpInspector::descriptors] };

nuncio_core::stats! {
    pub HttpInspector at ["http_inspector."] {
        counter READ_ERROR;
        counter HTTP10_FOUND;
        counter HTTP11_FOUND;
        counter HTTP2_FOUND;
        counter HTTP_NOT_FOUND;
    }
}

/// A first line is looked for in so many bytes.
const MAX_INSPECTED: usize = 64 * 1024;

pub struct Factory;

struct Config(ScopeId);

struct Filter(Rc<Stats<HttpInspector>>);

impl ListenerFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.listener.http_inspector"
    }

    fn message(&self) -> &'static str {
        "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector"
    }

    fn check(
        &self,
        _config: &[u8],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn ListenerFilterConfig>, Vec<ConfigError>> {
        Ok(Arc::new(Config(context.scope(&SCOPE, &"".into()))))
    }
}

impl ListenerFilterConfig for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeListenerFilter {
        let stats = Rc::new(Stats::new(&worker.stats, self.0));
        Box::new(move || Box::new(Filter(stats.clone())))
    }
}

impl ListenerFilter for Filter {
    fn max_read_bytes(&self) -> usize {
        MAX_INSPECTED
    }

    fn on_accept(&mut self, _io: &Io, connection: &mut ConnectionInfo) -> ListenerStep {
        match connection.transport_protocol {
            "" | "raw_buffer" => ListenerStep::NeedData,
            _ => ListenerStep::Continue { consumed: 0 },
        }
    }

    fn on_data(&mut self, data: &[u8], connection: &mut ConnectionInfo) -> ListenerStep {
        let (stat, protocol) = match look(data) {
            Some(Found::Http10) => (HTTP10_FOUND, Some("http/1.0")),
            Some(Found::Http11) => (HTTP11_FOUND, Some("http/1.1")),
            Some(Found::Http2) => (HTTP2_FOUND, Some("h2c")),
            Some(Found::Nothing) => (HTTP_NOT_FOUND, None),
            None if data.len() < MAX_INSPECTED => return ListenerStep::NeedData,
            None => (HTTP_NOT_FOUND, None),
        };
        self.0.inc(stat);
        if let Some(protocol) = protocol {
            connection.application_protocols = vec![protocol.as_bytes().to_vec()];
        }
        ListenerStep::Continue { consumed: 0 }
    }

    fn on_close(&mut self) {
        self.0.inc(READ_ERROR);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Also every version that is not 1.1: what comes of it is the connection manager's business.
    Http10,
    Http11,
    Http2,
    Nothing,
}

/// `None`: more bytes are needed.
fn look(data: &[u8]) -> Option<Found> {
    let compared = data.len().min(PREFACE.len());
    if data[..compared] == PREFACE[..compared] {
        return (compared == PREFACE.len()).then_some(Found::Http2);
    }
    match memchr::memchr(b'\n', data) {
        Some(end) => Some(first_line(data[..end].strip_suffix(b"\r").unwrap_or(&data[..end]))),
        // What cannot begin a method is no HTTP, whatever follows.
        None => data.first().is_some_and(|first| !is_token(*first)).then_some(Found::Nothing),
    }
}

fn first_line(line: &[u8]) -> Found {
    let mut parts = line.split(|b| *b == b' ').filter(|part| !part.is_empty());
    let (method, target, version) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let Some(target) = target else { return Found::Nothing };
    let connect = method == b"CONNECT";
    let sound = line.first() != Some(&b' ') && method.iter().all(|b| is_token(*b)) && parts.next().is_none();
    if !sound || !(connect || is_target(target)) {
        return Found::Nothing;
    }
    match version {
        // HTTP/0.9.
        None => Found::Http10,
        Some(b"HTTP/1.1") => Found::Http11,
        Some([b'H', b'T', b'T', b'P', b'/', major, b'.', minor])
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Found::Http10
        }
        Some(_) => Found::Nothing,
    }
}

/// A path, all of the server, or a URL with its scheme.
fn is_target(target: &[u8]) -> bool {
    let scheme = target.iter().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')).count();
    matches!(target, [b'/' | b'*', ..]) || (scheme > 0 && target[scheme..].starts_with(b"://"))
}

/// RFC 9110 §5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::filters::testing::Bench;

    /// Found by Envoy 1.40.
    #[test]
    fn first_lines_are_told_apart_as_envoy_tells_them_apart() {
        let found = |text: &str| look(text.as_bytes());
        for line in [
            "GET / HTTP/1.1\r\n",
            "FOO / HTTP/1.1\r\n",
            "GET / HTTP/1.1\n",
            "get / HTTP/1.1\r\n",
            "GET  /  HTTP/1.1\r\n",
            "GET /\0 HTTP/1.1\r\n",
            "PRI * HTTP/1.1\r\n",
        ] {
            assert_eq!(found(line), Some(Found::Http11), "{line}");
        }
        for line in [
            "GET / HTTP/1.0\r\n",
            "GET / HTTP/1.2\r\n",
            "GET / HTTP/2.0\r\n",
            "GET /\r\n",
            "GET / HTTP/3.1\r\n",
            "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        ] {
            assert_eq!(found(line), Some(Found::Http10), "{line}");
        }
        for line in [
            "GET / HTTP/1.10\r\n",
            "\r\nGET / HTTP/1.1\r\n",
            "GET / a HTTP/1.1\r\n",
            "G@T / HTTP/1.1\r\n",
            "GET / http/1.1\r\n",
            "GET x HTTP/1.1\r\n",
            "HELO not http\r\n",
            "hello\r\n",
            "\0",
            "\u{16}",
        ] {
            assert_eq!(found(line), Some(Found::Nothing), "{line}");
        }
        for line in ["", "hel", "HELLO", "hello ", "PRI * HTTP/2.0\r\n", "GET / HTTP/1.1\r", "GET / HTTP/1.1"] {
            assert_eq!(found(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_found_is_the_connections_protocol_and_a_count() {
        let bench = Bench::new(&Factory, "{}");
        for (bytes, protocol) in [("GET / HTTP/1.1\r\n", "http/1.1"), ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "h2c")] {
            let (step, info) = bench.byte_by_byte(bytes.as_bytes());
            assert_eq!(step, Some(ListenerStep::Continue { consumed: 0 }));
            assert_eq!(info.application_protocols, [protocol.as_bytes()]);
        }
        let endless = vec![b'x'; MAX_INSPECTED + 10];
        assert_eq!(bench.at_once(&endless).0, Some(ListenerStep::Continue { consumed: 0 }), "it closes nothing");
        let stats = ["http10_found", "http11_found", "http2_found", "http_not_found"];
        assert_eq!(stats.map(|s| bench.stat(&format!("http_inspector.{s}"))), [0, 1, 1, 1]);
    }
}
