//! `envoy.filters.network.echo`: sends back what it gets, for tests and for a first look.

use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use tokio::task::AbortHandle;

use super::{Connection, ListenerInfo, TerminalFilter, TerminalFilterConfig, TerminalFilterFactory};
use crate::upstream::Worker;

supports!(pub(super) SUPPORTED = "envoy.extensions.filters.network.echo.v3.Echo" {});

pub struct Factory;

/// It has nothing to configure.
struct Config;

struct Echo {
    worker: Rc<Worker>,
}

impl TerminalFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.network.echo"
    }

    fn message(&self) -> &'static str {
        "envoy.extensions.filters.network.echo.v3.Echo"
    }

    fn check(
        &self,
        _config: &[u8],
        _listener: &Arc<ListenerInfo>,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn TerminalFilterConfig>, Vec<ConfigError>> {
        Ok(Arc::new(Config))
    }
}

impl TerminalFilterConfig for Config {
    fn instantiate(&self, worker: &Rc<Worker>) -> Rc<dyn TerminalFilter> {
        Rc::new(Echo { worker: worker.clone() })
    }
}

impl TerminalFilter for Echo {
    fn serve(&self, connection: Connection) -> AbortHandle {
        let worker = self.worker.clone();
        self.worker.spawn(connection.info.id, async move { run(worker, connection).await })
    }
}

/// Until the client closes. Bytes are read only when those before are written.
async fn run(worker: Rc<Worker>, mut connection: Connection) {
    let mut pending = std::mem::take(&mut connection.preread);
    loop {
        if super::write_all(&mut connection.io, &pending).await.is_err() {
            return;
        }
        worker.buffers.give(std::mem::take(&mut pending));
        match super::read_some(&worker, &mut connection.io).await {
            Ok(read) if !read.is_empty() => pending = read,
            Ok(_) | Err(_) => return,
        }
    }
}
