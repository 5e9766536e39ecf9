//! `envoy.filters.listener.tls_inspector`: whether a client speaks TLS, which name it asks for and which protocols it
//! offers, from its ClientHello and before any handshake.
//!
//! Config: `envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector`. Stats: `tls_inspector.`.
//!
//! The hello may come in any pieces and records, and be as long as `max_client_hello_size` (16 KiB); a longer one is
//! counted and closes the connection. What begins as a TLS handshake and is no hello closes it too: it must never be
//! given, as if it were plain text, to a chain that asks no certificates. (Envoy does that only if it is asked to.)

mod client_hello;

use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::filters::listener::tls_inspector::v3 as pb;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::{ConnectionInfo, Io};
use nuncio_core::network::{
    ListenerFilter, ListenerFilterConfig, ListenerFilterFactory, ListenerStep, MakeListenerFilter,
};
use nuncio_core::stats::{List, Scope, ScopeId, Stats};

use client_hello::{Found, parse};

supports!(TLS_INSPECTOR = "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector" {
    max_client_hello_size
} noop {
    initial_read_buffer_size: "what is there is read at once",
    close_connection_on_client_hello_parsing_errors: "a bad hello always closes the connection"
} values {
    enable_ja3_fingerprinting: ["false"], enable_ja4_fingerprinting: ["false"]
});

pub(super) static SUPPORTED: &[&Entry] = &[&TLS_INSPECTOR];

static SCOPE: Scope = Scope { root: "", lists: &[TlsInspector::descriptors] };

nuncio_core::stats! {
    pub TlsInspector at ["tls_inspector."] {
        counter CLIENT_HELLO_TOO_LARGE;
        counter TLS_FOUND;
        counter TLS_NOT_FOUND;
        counter ALPN_FOUND;
        counter ALPN_NOT_FOUND;
        counter SNI_FOUND;
        counter SNI_NOT_FOUND;
        histogram(bytes) BYTES_PROCESSED;
    }
}

/// Envoy's default of `max_client_hello_size`, and the most it allows.
const MAX_CLIENT_HELLO: usize = 16 * 1024;

pub struct Factory;

struct Config {
    scope: ScopeId,
    max: usize,
}

struct OnWorker {
    stats: Stats<TlsInspector>,
    max: usize,
}

struct Filter(Rc<OnWorker>);

impl ListenerFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.listener.tls_inspector"
    }

    fn message(&self) -> &'static str {
        "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"
    }

    fn check(
        &self,
        config: &[u8],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn ListenerFilterConfig>, Vec<ConfigError>> {
        let message = nuncio_api::any::decode::<pb::TlsInspector>(config).map_err(|e| vec![e])?;
        let max = message.max_client_hello_size.as_ref().map_or(MAX_CLIENT_HELLO, |v| v.value as usize);
        Ok(Arc::new(Config { scope: context.scope(&SCOPE, &"".into()), max }))
    }
}

impl ListenerFilterConfig for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeListenerFilter {
        let shared = Rc::new(OnWorker { stats: Stats::new(&worker.stats, self.scope), max: self.max });
        Box::new(move || Box::new(Filter(shared.clone())))
    }
}

impl ListenerFilter for Filter {
    fn max_read_bytes(&self) -> usize {
        self.0.max
    }

    fn on_accept(&mut self, _io: &Io, _connection: &mut ConnectionInfo) -> ListenerStep {
        ListenerStep::NeedData
    }

    fn on_data(&mut self, data: &[u8], connection: &mut ConnectionInfo) -> ListenerStep {
        let stats = &self.0.stats;
        match parse(data, self.0.max) {
            Found::NeedMore if data.len() < self.0.max => return ListenerStep::NeedData,
            Found::NeedMore | Found::TooLarge => {
                stats.inc(CLIENT_HELLO_TOO_LARGE);
                tracing::debug!(conn = connection.id, "the ClientHello is longer than {} bytes", self.0.max);
                return ListenerStep::Close;
            }
            Found::NotTls => stats.inc(TLS_NOT_FOUND),
            Found::Malformed(reason) => {
                stats.inc(TLS_NOT_FOUND);
                tracing::debug!(
                    conn = connection.id,
                    "a TLS handshake that does not begin with a ClientHello: {reason}"
                );
                return ListenerStep::Close;
            }
            Found::Hello(hello) => {
                stats.inc(TLS_FOUND);
                connection.transport_protocol = "tls";
                stats.inc(if hello.server_name.is_some() { SNI_FOUND } else { SNI_NOT_FOUND });
                if let Some(name) = hello.server_name {
                    connection.requested_server_name = Some(name.to_ascii_lowercase().into());
                }
                stats.inc(if hello.protocols.is_empty() { ALPN_NOT_FOUND } else { ALPN_FOUND });
                if !hello.protocols.is_empty() {
                    connection.application_protocols = hello.protocols;
                }
            }
        }
        stats.record(BYTES_PROCESSED, data.len() as u64);
        ListenerStep::Continue { consumed: 0 }
    }
}

#[cfg(test)]
mod tests;
