//! `envoy.filters.network.direct_response`: writes a fixed text to every client and closes.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::config::core::v3::{DataSource, data_source::Specifier};
use nuncio_api::pb::envoy::extensions::filters::network::direct_response::v3 as pb;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use tokio::task::AbortHandle;

use super::{Connection, ListenerInfo, TerminalFilter, TerminalFilterConfig, TerminalFilterFactory};
use crate::upstream::Worker;

supports!(pub(super) SUPPORTED = "envoy.extensions.filters.network.direct_response.v3.Config" { response });
supports!(pub(super) DATA_SOURCE = "envoy.config.core.v3.DataSource" {
    inline_string, inline_bytes, filename, environment_variable
});

/// How long a client has to close after the response.
const LINGER: Duration = Duration::from_secs(1);

pub struct Factory;

struct Config {
    response: Arc<[u8]>,
}

struct DirectResponse {
    worker: Rc<Worker>,
    response: Arc<[u8]>,
}

impl TerminalFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.network.direct_response"
    }

    fn message(&self) -> &'static str {
        "envoy.extensions.filters.network.direct_response.v3.Config"
    }

    fn check(
        &self,
        config: &[u8],
        _listener: &Arc<ListenerInfo>,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn TerminalFilterConfig>, Vec<ConfigError>> {
        let config = nuncio_api::any::decode::<pb::Config>(config).map_err(|e| vec![e])?;
        let response = config.response.as_ref().map_or(Ok(Vec::new()), read);
        response.map(|bytes| Arc::new(Config { response: bytes.into() }) as _).map_err(|e| vec![e.within("response")])
    }
}

/// The bytes of a `DataSource`, read now: a later change of the file has no effect, as in Envoy.
fn read(source: &DataSource) -> Result<Vec<u8>, ConfigError> {
    match &source.specifier {
        Some(Specifier::InlineString(text)) => Ok(text.clone().into_bytes()),
        Some(Specifier::InlineBytes(bytes)) => Ok(bytes.clone()),
        Some(Specifier::Filename(path)) => {
            std::fs::read(path).map_err(|e| ConfigError::new("filename", format!("unable to read file: {path}: {e}")))
        }
        Some(Specifier::EnvironmentVariable(name)) => std::env::var(name).map(String::into_bytes).map_err(|_| {
            ConfigError::new("environment_variable", format!("Environment variable doesn't exist: {name}"))
        }),
        None => Ok(Vec::new()),
    }
}

impl TerminalFilterConfig for Config {
    fn instantiate(&self, worker: &Rc<Worker>) -> Rc<dyn TerminalFilter> {
        Rc::new(DirectResponse { worker: worker.clone(), response: self.response.clone() })
    }
}

impl TerminalFilter for DirectResponse {
    fn serve(&self, connection: Connection) -> AbortHandle {
        let (worker, response) = (self.worker.clone(), self.response.clone());
        self.worker.spawn(connection.info.id, async move { respond(&worker, connection, &response).await })
    }
}

/// Closing over unread bytes resets the connection, and the client might lose the response: what it
/// sends is read and thrown away for a moment after the FIN.
async fn respond(worker: &Worker, mut connection: Connection, response: &[u8]) {
    if super::write_all(&mut connection.io, response).await.is_err() {
        return;
    }
    let _ = std::future::poll_fn(|cx| connection.io.poll_shutdown(cx)).await;
    let unread = async {
        while let Ok(bytes) = super::read_some(worker, &mut connection.io).await
            && !bytes.is_empty()
        {
            worker.buffers.give(bytes);
        }
    };
    let _ = tokio::time::timeout(LINGER, unread).await;
}
