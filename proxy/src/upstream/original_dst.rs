//! The hosts of ORIGINAL_DST clusters: nobody lists them, requests bring them.
//!
//! One destination is one [`Host`], whichever worker meets it first, so a cluster's hosts stand behind a lock: the one
//! lock of the data path, taken only for a destination that a worker does not know yet. Main hears of new hosts, shows
//! them, and every `cleanup_interval` drops those that nobody used since the last time and that have no connection.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::net::Address;
use nuncio_core::time::duration;
use nuncio_core::upstream::{Host, HostSpec};
use tokio::sync::Notify;

use crate::net::interfaces;

supports!(ORIGINAL_DST_LB = "envoy.config.cluster.v3.Cluster.OriginalDstLbConfig" {
    use_http_header, http_header_name, upstream_port_override, metadata_key
});
supports!(METADATA_KEY = "envoy.type.metadata.v3.MetadataKey" { key, path });
supports!(PATH_SEGMENT = "envoy.type.metadata.v3.MetadataKey.PathSegment" { key });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&ORIGINAL_DST_LB, &METADATA_KEY, &PATH_SEGMENT];

/// Envoy's default of `http_header_name`.
const HEADER: &str = "x-envoy-original-dst-host";

/// Envoy's default of `cleanup_interval`.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(5);

/// So many destinations a cluster has at most: with a header, clients say what they are.
const MAX_DESTINATIONS: usize = 1 << 16;

/// How a cluster is told its destinations.
#[derive(Debug, Clone, PartialEq)]
pub struct OriginalDstConfig {
    /// A header that is believed.
    pub header: Option<Arc<str>>,
    /// Namespace and path.
    pub metadata: Option<(String, Vec<String>)>,
    pub port: Option<u16>,
    pub cleanup_interval: Duration,
}

impl OriginalDstConfig {
    /// Whether it believes the header that Envoy has for that.
    pub fn believes_headers(&self) -> bool {
        self.header.as_deref() == Some(HEADER)
    }

    pub(super) fn from_cluster(message: &pb::Cluster) -> Self {
        use nuncio_api::pb::envoy::r#type::metadata::v3::metadata_key::path_segment::Segment;
        let detail = match &message.lb_config {
            Some(pb::cluster::LbConfig::OriginalDstLbConfig(detail)) => detail.clone(),
            _ => Default::default(),
        };
        let name = if detail.http_header_name.is_empty() { HEADER } else { &detail.http_header_name };
        let key = detail.metadata_key.map(|key| {
            let path = key.path.into_iter().filter_map(|segment| match segment.segment {
                Some(Segment::Key(key)) => Some(key),
                Some(Segment::Index(_)) | None => None,
            });
            (key.key, path.collect())
        });
        Self {
            header: detail.use_http_header.then(|| name.to_ascii_lowercase().into()),
            metadata: key,
            port: detail.upstream_port_override.and_then(|port| u16::try_from(port.value).ok()),
            cleanup_interval: message.cleanup_interval.as_ref().map_or(CLEANUP_INTERVAL, duration),
        }
    }
}

/// A host, and whether requests went to it since the last clean-up.
#[derive(Debug)]
pub struct Destination {
    pub host: Arc<Host>,
    used: AtomicBool,
}

impl Destination {
    pub fn mark_used(&self) {
        self.used.store(true, Relaxed);
    }
}

/// The destinations of one cluster.
#[derive(Debug, Default)]
pub struct Destinations {
    known: Mutex<HashMap<SocketAddr, Arc<Destination>>>,
    /// There are new ones.
    news: Notify,
}

impl Destinations {
    /// The destination of that address, which exists from now on. `None`: there are too many.
    pub fn of(&self, address: SocketAddr, cluster: &str) -> Option<Arc<Destination>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(&address) {
            found.mark_used();
            return Some(found.clone());
        }
        if known.len() >= MAX_DESTINATIONS {
            return None;
        }
        let hostname = format!("{cluster}{address}").into();
        let host = Arc::new(Host::new(HostSpec { hostname, ..HostSpec::new(Address::Ip(address)) }));
        let made = Arc::new(Destination { host, used: AtomicBool::new(true) });
        known.insert(address, made.clone());
        drop(known);
        self.news.notify_one();
        Some(made)
    }

    /// Drops what was not used since the last time and has no connection; true if that was any.
    pub fn clean_up(&self) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.len();
        known.retain(|_, destination| {
            let counts = destination.host.load.counts();
            let held = counts.cx_active + counts.rq_active + counts.rq_pending_active > 0;
            // Whoever takes it at this moment has a host that is removed: its requests end in peace.
            destination.used.swap(false, Relaxed) || held
        });
        known.len() < before
    }

    pub fn hosts(&self) -> Vec<Arc<Host>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().map(|destination| destination.host.clone()).collect()
    }

    /// Resolves when there is a destination that was not there before.
    pub async fn changed(&self) {
        self.news.notified().await;
    }
}

/// Where this worker's listeners accept: a connection that is sent there would come back for ever.
#[derive(Debug, Default)]
pub struct OwnListeners(RefCell<Vec<SocketAddr>>);

impl OwnListeners {
    pub fn add(&self, address: SocketAddr) {
        self.0.borrow_mut().push(address);
    }

    pub fn remove(&self, address: SocketAddr) {
        let mut all = self.0.borrow_mut();
        if let Some(at) = all.iter().position(|own| *own == address) {
            all.swap_remove(at);
        }
    }

    pub fn contains(&self, address: SocketAddr) -> bool {
        let all = self.0.borrow();
        let here = |own: &SocketAddr| own.port() == address.port() && own.ip().is_unspecified();
        all.contains(&address) || all.iter().any(here) && interfaces::is_own(address.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    #[test]
    fn one_destination_is_one_host() {
        let all = Destinations::default();
        let first = all.of(address(1), "c").unwrap();
        assert!(Arc::ptr_eq(&first.host, &all.of(address(1), "c").unwrap().host));
        assert_eq!((first.host.hostname(), all.hosts().len()), ("c10.0.0.1:1", 1));
    }

    #[test]
    fn a_host_stays_while_it_is_used_or_connected() {
        let all = Destinations::default();
        let connected = all.of(address(1), "c").unwrap();
        all.of(address(2), "c").unwrap();
        connected.host.load.active_connections.fetch_add(1, Relaxed);
        assert!(!all.clean_up(), "both were used just now");
        assert!(all.clean_up());
        assert_eq!(all.hosts().len(), 1);
        assert!(!all.clean_up());
        connected.host.load.active_connections.fetch_sub(1, Relaxed);
        assert!(all.clean_up());
    }

    #[test]
    fn destinations_are_bounded() {
        let all = Destinations::default();
        let ip = |n: u32| SocketAddr::from((std::net::Ipv4Addr::from(n), 1));
        for n in 0..MAX_DESTINATIONS as u32 {
            assert!(all.of(ip(n), "").is_some());
        }
        assert!(all.of(ip(u32::MAX), "").is_none());
        assert!(all.of(ip(0), "").is_some(), "those that are known stay");
    }

    #[test]
    fn a_listener_on_all_addresses_is_met_at_each_of_this_machine() {
        let own = OwnListeners::default();
        own.add(([0, 0, 0, 0], 15001).into());
        own.add(([127, 0, 0, 1], 15000).into());
        assert!(own.contains(([127, 0, 0, 1], 15001).into()));
        assert!(own.contains(([127, 0, 0, 1], 15000).into()));
        assert!(!own.contains(([127, 0, 0, 1], 80).into()));
        assert!(!own.contains(([192, 0, 2, 1], 15001).into()));
        own.remove(([127, 0, 0, 1], 15000).into());
        assert!(!own.contains(([127, 0, 0, 1], 15000).into()));
    }
}
