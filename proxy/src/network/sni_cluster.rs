//! `envoy.filters.network.sni_cluster`: the server name that the client asked for is the name of the cluster to which
//! tcp_proxy connects, whatever its own configuration says.
//!
//! Config: `envoy.extensions.filters.network.sni_cluster.v3.SniCluster`, which has no fields. Without a server name the
//! configured cluster stays.

use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::ConnectionInfo;
use nuncio_core::network::{MakeNetworkFilter, NetworkFilter, NetworkFilterConfig, NetworkFilterFactory, NetworkStep};

use super::tcp_proxy::PER_CONNECTION_CLUSTER;

supports!(pub(super) SUPPORTED = "envoy.extensions.filters.network.sni_cluster.v3.SniCluster" {});

pub struct Factory;

struct SniCluster;

impl NetworkFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.network.sni_cluster"
    }

    fn message(&self) -> &'static str {
        "envoy.extensions.filters.network.sni_cluster.v3.SniCluster"
    }

    fn check(
        &self,
        _config: &[u8],
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn NetworkFilterConfig>, Vec<ConfigError>> {
        Ok(Arc::new(SniCluster))
    }
}

impl NetworkFilterConfig for SniCluster {
    fn on_worker(&self, _worker: &WorkerContext) -> MakeNetworkFilter {
        Box::new(|| Box::new(SniCluster))
    }
}

impl NetworkFilter for SniCluster {
    fn on_new_connection(&mut self, connection: &Rc<ConnectionInfo>) -> NetworkStep {
        if let Some(name) = connection.requested_server_name.as_deref().filter(|name| !name.is_empty()) {
            connection.filter_state.borrow_mut().set(PER_CONNECTION_CLUSTER, Arc::new(name.to_owned()));
        }
        NetworkStep::Continue
    }
}
