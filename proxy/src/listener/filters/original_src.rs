//! `envoy.filters.listener.original_src`: upstream connections on a connection's behalf come from its client's address
//! instead of the proxy's.
//!
//! Config: `envoy.extensions.filters.listener.original_src.v3.OriginalSrc`. The client is who the filters before this one
//! say it is: behind `proxy_protocol` the one of the header. Each client has upstream connections of its own. Needs
//! CAP_NET_ADMIN, and routes that bring the answers back here; `mark` is what routing rules know the connections by.

use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::filters::listener::original_src::v3 as pb;
use nuncio_api::prost::Message;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::{ConnectionInfo, Io, OriginalSource};
use nuncio_core::network::{
    ListenerFilter, ListenerFilterConfig, ListenerFilterFactory, ListenerStep, MakeListenerFilter,
};

use crate::net::capabilities;

supports!(ORIGINAL_SRC = "envoy.extensions.filters.listener.original_src.v3.OriginalSrc" {
    mark
} values {
    bind_port: ["false"],
});

pub(super) static SUPPORTED: &[&Entry] = &[&ORIGINAL_SRC];

pub struct Factory;

#[derive(Clone, Copy)]
struct OriginalSrc {
    mark: u32,
}

impl ListenerFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.listener.original_src"
    }

    fn message(&self) -> &'static str {
        ORIGINAL_SRC.message
    }

    fn check(
        &self,
        config: &[u8],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn ListenerFilterConfig>, Vec<ConfigError>> {
        let message = pb::OriginalSrc::decode(config).map_err(|e| vec![ConfigError::new("", e.to_string())])?;
        capabilities::warn_without_net_admin(context);
        Ok(Arc::new(OriginalSrc { mark: message.mark }))
    }
}

impl ListenerFilterConfig for OriginalSrc {
    fn on_worker(&self, _worker: &WorkerContext) -> MakeListenerFilter {
        let this = *self;
        Box::new(move || Box::new(this))
    }
}

impl ListenerFilter for OriginalSrc {
    fn on_accept(&mut self, _io: &Io, connection: &mut ConnectionInfo) -> ListenerStep {
        connection.original_source = OriginalSource::of(&connection.remote, self.mark);
        ListenerStep::Continue { consumed: 0 }
    }
}
