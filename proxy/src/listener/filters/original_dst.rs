//! `envoy.filters.listener.original_dst`: an intercepted connection's local address is the one that its client meant.
//!
//! Config: `envoy.extensions.filters.listener.original_dst.v3.OriginalDst`, which has no fields. A connection that nobody
//! intercepted keeps its address and counts as not restored, so that an ORIGINAL_DST cluster does not send it back here.

use std::sync::Arc;

use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::{Address, ConnectionInfo, Io};
use nuncio_core::network::{
    ListenerFilter, ListenerFilterConfig, ListenerFilterFactory, ListenerStep, MakeListenerFilter,
};

use crate::net::original_dst::original_dst;

supports!(ORIGINAL_DST = "envoy.extensions.filters.listener.original_dst.v3.OriginalDst" {});

pub(super) static SUPPORTED: &[&Entry] = &[&ORIGINAL_DST];

pub struct Factory;

struct OriginalDst;

impl ListenerFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.listener.original_dst"
    }

    fn message(&self) -> &'static str {
        "envoy.extensions.filters.listener.original_dst.v3.OriginalDst"
    }

    fn check(
        &self,
        _config: &[u8],
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn ListenerFilterConfig>, Vec<ConfigError>> {
        Ok(Arc::new(OriginalDst))
    }
}

impl ListenerFilterConfig for OriginalDst {
    fn on_worker(&self, _worker: &WorkerContext) -> MakeListenerFilter {
        Box::new(|| Box::new(OriginalDst))
    }
}

impl ListenerFilter for OriginalDst {
    fn on_accept(&mut self, io: &Io, connection: &mut ConnectionInfo) -> ListenerStep {
        if let Some(meant) = original_dst(io).map(Address::Ip) {
            connection.local = meant;
            connection.local_restored = true;
        }
        ListenerStep::Continue { consumed: 0 }
    }
}
