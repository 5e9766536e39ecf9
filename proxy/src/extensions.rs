//! What is in the binary: one call for each room's list. Read it to know what this build can do.

use nuncio_api::Support;
use nuncio_api::support::Entry;
use nuncio_discovery::HostSourceFactory;

use crate::network::{self, NetworkExtensions};
use crate::tls::Secrets;
use crate::{access_log, admin, codec, format, http, listener, server, stats_sink, tls, upstream};

/// The extensions of one build.
pub struct Extensions {
    /// What listeners are made of.
    pub network: NetworkExtensions,
    /// What TLS contexts are made of.
    pub secrets: Secrets,
    /// Where the hosts of clusters come from.
    pub host_sources: Vec<Box<dyn HostSourceFactory>>,
    /// Which fields of which messages are honoured.
    pub support: Support,
}

/// Everything this source tree has.
pub fn standard() -> Extensions {
    let secrets = Secrets::default();
    let rooms = nuncio_authz::http_filters().into_iter().chain(nuncio_healthcheck::http_filters());
    let http_filters = http::filters::factories().into_iter().chain(rooms).collect();
    Extensions {
        network: NetworkExtensions {
            listener_filters: listener::filters::factories(),
            transport_sockets: tls::socket_factories(&secrets),
            filters: network::filter_factories().into_iter().chain(nuncio_authz::network_filters()).collect(),
            terminal: network::factories().into_iter().chain(http::factories(http_filters)).collect(),
        },
        secrets,
        host_sources: nuncio_discovery::sources::factories(),
        support: support(),
    }
}

/// What all rooms honour.
fn support() -> Support {
    let mut lists: Vec<&[&Entry]> = nuncio_discovery::sources::SUPPORTED.to_vec();
    lists.extend([
        nuncio_core::matcher::SUPPORTED,
        nuncio_core::runtime::SUPPORTED,
        nuncio_core::upstream::grpc::SUPPORTED,
        tls::SUPPORTED,
        upstream::cluster::SUPPORTED,
        upstream::circuit_breaker::SUPPORTED,
        upstream::http_options::SUPPORTED,
        upstream::dial::SUPPORTED,
        upstream::lb_config::SUPPORTED,
        upstream::original_dst::SUPPORTED,
        upstream::lb_config::SUPPORTED_POLICIES[0],
        upstream::lb_config::SUPPORTED_POLICIES[1],
        format::SUPPORTED,
        access_log::SUPPORTED,
        access_log::filter::SUPPORTED,
        admin::config::SUPPORTED,
        stats_sink::SUPPORTED,
        server::bootstrap::SUPPORTED,
        server::main_thread::dynamic::SUPPORTED,
        server::overload::SUPPORTED,
        server::runtime::SUPPORTED,
        listener::config::SUPPORTED,
        network::SUPPORTED,
        network::tcp_proxy::SUPPORTED,
        codec::http1::SUPPORTED,
        codec::http2::SUPPORTED,
        http::match_tree::SUPPORTED,
        http::rate_limits::SUPPORTED,
        http::router::SUPPORTED,
        http::conn_manager::SUPPORTED,
    ]);
    lists.extend(nuncio_healthcheck::SUPPORTED);
    lists.extend(http::filters::SUPPORTED);
    lists.extend(http::compression::SUPPORTED);
    lists.extend(nuncio_authz::SUPPORTED);
    lists.extend(listener::filters::SUPPORTED);
    Support::new(&lists)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_field_said_to_be_implemented_exists() {
        super::standard().support.check_names().unwrap();
    }
}
