//! What is known of a request, or of a connection, when a policy is asked.

use std::net::IpAddr;

use nuncio_core::http::{HeaderMap, RequestHead, StreamControl};
use nuncio_core::metadata::Metadata;
use nuncio_core::net::{Address, ConnectionInfo};
use nuncio_core::stream_info::FilterState;

/// Borrowed for one decision. A connection without a request has no headers, no path and no route.
pub(crate) struct Attributes<'a> {
    pub(crate) connection: &'a ConnectionInfo,
    pub(crate) headers: Option<&'a HeaderMap>,
    /// With its query; `None` for CONNECT.
    pub(crate) path: Option<&'a [u8]>,
    /// The client, as a trusted x-forwarded-for may tell.
    pub(crate) remote: &'a Address,
    pub(crate) metadata: &'a Metadata,
    pub(crate) route_metadata: Option<&'a Metadata>,
    /// Of the stream, then of its connection.
    pub(crate) filter_state: [Option<&'a FilterState>; 2],
}

impl Attributes<'_> {
    /// Runs `use_it` with what is known of a request. Without a connection nothing can be known: `None`.
    pub(crate) fn of_request<T>(
        head: &RequestHead,
        stream: &StreamControl,
        use_it: impl FnOnce(&Attributes<'_>) -> T,
    ) -> Option<T> {
        let connection = stream.connection()?;
        let route = stream.route();
        let info = stream.info();
        let of_connection = connection.filter_state.borrow();
        Some(use_it(&Attributes {
            connection: &connection,
            headers: Some(&head.headers),
            path: head.path(),
            remote: info.remote_address.as_ref().unwrap_or(&connection.remote),
            metadata: &info.dynamic_metadata,
            route_metadata: route.as_ref().map(|route| route.metadata()),
            filter_state: [Some(&info.filter_state), Some(&of_connection)],
        }))
    }

    /// Runs `use_it` with what is known of a connection.
    pub(crate) fn of_connection<T>(connection: &ConnectionInfo, use_it: impl FnOnce(&Attributes<'_>) -> T) -> T {
        let metadata = connection.metadata.borrow();
        let filter_state = connection.filter_state.borrow();
        use_it(&Attributes {
            connection,
            headers: None,
            path: None,
            remote: &connection.remote,
            metadata: &metadata,
            route_metadata: None,
            filter_state: [None, Some(&filter_state)],
        })
    }

    pub(crate) fn ip(&self, which: AddressOf) -> Option<IpAddr> {
        match which {
            AddressOf::Connection => self.connection.remote.ip(),
            AddressOf::Direct => self.connection.direct_remote.ip(),
            AddressOf::Client => self.remote.ip(),
            AddressOf::Destination => self.connection.local.ip(),
        }
    }
}

/// Whose address a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressOf {
    /// The connection's source, as the PROXY protocol may tell.
    Connection,
    /// The socket's peer.
    Direct,
    /// The client behind trusted proxies.
    Client,
    Destination,
}
