//! `envoy.filters.network.direct_response`: writes a fixed text to every client and closes.

use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::config::core::v3::{DataSource, data_source::Specifier};
use nuncio_api::pb::envoy::extensions::filters::network::direct_response::v3 as pb;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use tokio::task::AbortHandle;

use super::{Connection, ListenerInfo, NetworkFilter, NetworkFilterConfig, NetworkFilterFactory};
use crate::upstream::Worker;

supports!(pub(super) SUPPORTED = "envoy.extensions.filters.network.direct_response.v3.Config" { response });
supports!(pub(super) DATA_SOURCE = "envoy.config.core.v3.DataSource" {
    inline_string, inline_bytes, filename, environment_variable
});

pub struct Factory;

struct Config {
    response: Arc<[u8]>,
}

struct DirectResponse {
    worker: Rc<Worker>,
    response: Arc<[u8]>,
}

impl NetworkFilterFactory for Factory {
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
    ) -> Result<Arc<dyn NetworkFilterConfig>, Vec<ConfigError>> {
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

impl NetworkFilterConfig for Config {
    fn instantiate(&self, worker: &Rc<Worker>) -> Rc<dyn NetworkFilter> {
        Rc::new(DirectResponse { worker: worker.clone(), response: self.response.clone() })
    }
}

impl NetworkFilter for DirectResponse {
    fn serve(&self, mut connection: Connection) -> AbortHandle {
        let response = self.response.clone();
        self.worker.spawn(connection.info.id, async move {
            if super::write_all(&mut connection.io, &response).await.is_ok() {
                // FIN before the drop: with unread bytes of the client a bare close would reset
                // the connection, and the client might lose the response.
                let _ = std::future::poll_fn(|cx| connection.io.poll_shutdown(cx)).await;
            }
        })
    }
}
