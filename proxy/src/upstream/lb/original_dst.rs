//! The balancer of ORIGINAL_DST clusters: the host is where the client wanted to go.
//!
//! Asked in this order, as in Envoy: the filter state of the request and of its connection, dynamic metadata, a header
//! if that was opted into, and the connection's local address if a listener filter restored it. A header that is no
//! address counts as `original_dst_host_invalid` and as absent. A destination that is a listener of ours is refused, and so
//! is, whoever named it, one that is no address of a host: unspecified, a group, or bound to an interface (`fe80::1%2`).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::google::protobuf::{Value, value::Kind};
use nuncio_core::metadata::Metadata;
use nuncio_core::net::ConnectionInfo;
use nuncio_core::stream_info::FilterState;
use nuncio_core::upstream::{Choice, LbContext, LoadBalancer, PrioritySet};

use super::Surroundings;
use crate::net::original_dst::is_of_a_host;
use crate::upstream::original_dst::{Destination, Destinations, OriginalDstConfig, OwnListeners};

/// The object of the filter state that names a destination.
const FILTER_STATE: &str = "envoy.network.transport_socket.original_dst_address";

/// `%RESPONSE_CODE_DETAILS%` of a request that would come back to us.
const OWN_LISTENER: &str = "original_dst_is_own_listener";

/// The same of one that nobody can have sent to an address of a host.
const NO_HOST: &str = "original_dst_is_no_host";

pub(super) struct OriginalDst {
    cluster: Arc<str>,
    config: Arc<OriginalDstConfig>,
    all: Arc<Destinations>,
    /// Those that this worker met.
    known: HashMap<SocketAddr, Arc<Destination>>,
    around: Surroundings,
    own: Rc<OwnListeners>,
}

impl OriginalDst {
    pub fn new(config: &Arc<OriginalDstConfig>, all: &Arc<Destinations>, around: &Surroundings) -> Self {
        Self {
            cluster: around.observer.cluster(),
            config: config.clone(),
            all: all.clone(),
            known: HashMap::new(),
            own: around.observer.own_listeners(),
            around: around.clone(),
        }
    }

    fn destination(&self, context: &LbContext<'_>) -> Option<SocketAddr> {
        let connection_of_stream = context.stream.and_then(|stream| stream.connection());
        let connection = context.connection.or(connection_of_stream.as_deref());
        let found = self.named(context, connection).or_else(|| {
            let restored = connection.filter(|connection| connection.local_restored);
            restored.and_then(|connection| connection.local.socket())
        })?;
        Some(match self.config.port {
            Some(port) => SocketAddr::new(found.ip(), port),
            None => found,
        })
    }

    /// By somebody other than the connection itself.
    fn named(&self, context: &LbContext<'_>, connection: Option<&ConnectionInfo>) -> Option<SocketAddr> {
        let in_state = |state: &FilterState| state.get(FILTER_STATE)?.text()?.parse().ok();
        if let Some(stream) = context.stream
            && let Some(address) = in_state(&stream.info().filter_state)
        {
            return Some(address);
        }
        if let Some(address) = connection.and_then(|connection| in_state(&connection.filter_state.borrow())) {
            return Some(address);
        }
        if let Some((namespace, path)) = &self.config.metadata {
            let of = |metadata: &Metadata| address_in(metadata.get(namespace, path)?);
            let streams = context.stream.and_then(|stream| of(&stream.info().dynamic_metadata));
            let found = streams.or_else(|| connection.and_then(|connection| of(&connection.metadata.borrow())));
            if found.is_some() {
                return found;
            }
        }
        let value = context.headers?.get(self.config.header.as_deref()?)?;
        let address = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        if address.is_none() {
            self.around.observer.invalid_destination();
        }
        address
    }
}

/// A text, or the first of a list of texts.
fn address_in(value: &Value) -> Option<SocketAddr> {
    match value.kind.as_ref()? {
        Kind::StringValue(text) => text.parse().ok(),
        Kind::ListValue(list) => address_in(list.values.first()?),
        _ => None,
    }
}

impl LoadBalancer for OriginalDst {
    fn choose_host(&mut self, context: &LbContext<'_>) -> Choice {
        let Some(address) = self.destination(context) else { return Choice::None };
        if !is_of_a_host(address) {
            self.around.observer.invalid_destination();
            return Choice::Refused(NO_HOST);
        }
        if self.own.contains(address) {
            return Choice::Refused(OWN_LISTENER);
        }
        if let Some(known) = self.known.get(&address).filter(|known| !known.host.is_removed()) {
            known.mark_used();
            return Choice::Host(known.host.clone());
        }
        let Some(met) = self.all.of(address, &self.cluster) else { return Choice::None };
        let host = met.host.clone();
        self.known.insert(address, met);
        Choice::Host(host)
    }

    fn hosts_changed(&mut self, _hosts: &Arc<PrioritySet>) {
        self.known.retain(|_, known| !known.host.is_removed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    use crate::upstream::lb::Observer;
    use nuncio_api::pb::google::protobuf::{ListValue, Struct};
    use nuncio_core::http::HeaderMap;
    use nuncio_core::net::Address;
    use nuncio_core::random::Rng;

    #[derive(Default)]
    struct Seen {
        invalid: Cell<u32>,
        own: Rc<OwnListeners>,
    }

    impl Observer for Seen {
        fn cluster(&self) -> Arc<str> {
            "c".into()
        }

        fn own_listeners(&self) -> Rc<OwnListeners> {
            self.own.clone()
        }

        fn invalid_destination(&self) {
            self.invalid.set(self.invalid.get() + 1);
        }
    }

    fn bench(header: bool, port: Option<u16>) -> (OriginalDst, Rc<Seen>) {
        let seen = Rc::<Seen>::default();
        let config = OriginalDstConfig {
            header: header.then(|| "x-envoy-original-dst-host".into()),
            metadata: Some(("my.ns".into(), vec!["addr".into()])),
            port,
            cleanup_interval: Default::default(),
        };
        let around = Surroundings { rng: Rng::with_seed(1), observer: seen.clone() };
        (OriginalDst::new(&Arc::new(config), &Arc::default(), &around), seen)
    }

    fn connection(restored: bool) -> ConnectionInfo {
        let at = |text: &str| Address::Ip(text.parse().unwrap());
        let mut info = ConnectionInfo::new(0, at("192.0.2.9:9"), at("10.0.0.1:80"));
        info.local_restored = restored;
        info
    }

    fn chosen(choice: Choice) -> String {
        match choice {
            Choice::Host(host) => host.address_text().to_string(),
            Choice::Refused(why) => why.to_owned(),
            Choice::None => "none".to_owned(),
            Choice::Wait(_) => "wait".to_owned(),
        }
    }

    #[test]
    fn only_a_restored_address_is_a_destination() {
        let (mut balancer, _) = bench(false, None);
        let mut ask = |restored| {
            let connection = connection(restored);
            chosen(balancer.choose_host(&LbContext { connection: Some(&connection), ..LbContext::default() }))
        };
        assert_eq!((ask(true), ask(false)), ("10.0.0.1:80".to_owned(), "none".to_owned()));
    }

    #[test]
    fn a_header_is_believed_only_if_that_was_opted_into_and_must_be_an_address() {
        for (value, opted, expected, invalid) in [
            ("10.0.0.7:70", true, "10.0.0.7:70", 0),
            ("10.0.0.7:70", false, "10.0.0.1:80", 0),
            ("localhost:80", true, "10.0.0.1:80", 1),
            ("10.0.0.7:99999", true, "10.0.0.1:80", 1),
            ("10.0.0.7", true, "10.0.0.1:80", 1),
            ("fe80::1%1", true, "10.0.0.1:80", 1),
        ] {
            let (mut balancer, seen) = bench(opted, None);
            let mut headers = HeaderMap::new();
            headers.append("x-envoy-original-dst-host", value);
            let connection = connection(true);
            let context = LbContext { headers: Some(&headers), connection: Some(&connection), ..LbContext::default() };
            assert_eq!(chosen(balancer.choose_host(&context)), expected, "{value}");
            assert_eq!(seen.invalid.get(), invalid, "{value}");
        }
    }

    #[test]
    fn metadata_comes_before_the_header_and_the_port_is_overridden() {
        let (mut balancer, _) = bench(true, Some(8080));
        let text = |text: &str| Value { kind: Some(Kind::StringValue(text.into())) };
        let list = Value { kind: Some(Kind::ListValue(ListValue { values: vec![text("10.0.0.5:50"), text("x")] })) };
        let connection = connection(true);
        connection.metadata.borrow_mut().merge("my.ns", Struct { fields: [("addr".to_owned(), list)].into() });
        let mut headers = HeaderMap::new();
        headers.append("x-envoy-original-dst-host", "10.0.0.7:70");
        let context = LbContext { headers: Some(&headers), connection: Some(&connection), ..LbContext::default() };
        assert_eq!(chosen(balancer.choose_host(&context)), "10.0.0.5:8080");
    }

    // reliability.md P14: CVE-2026-26310, CVE-2026-73549.
    #[test]
    fn a_destination_that_is_no_host_is_refused_whoever_named_it() {
        for address in [
            "0.0.0.0:80",
            "[::]:80",
            "[::ffff:0.0.0.0]:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
            "[ff02::1]:80",
            "[fe80::1%2]:80",
            "[fe80::1]:80",
        ] {
            let (mut balancer, seen) = bench(true, None);
            let mut restored = connection(true);
            restored.local = Address::Ip(address.parse().unwrap());
            let context = LbContext { connection: Some(&restored), ..LbContext::default() };
            assert_eq!(chosen(balancer.choose_host(&context)), NO_HOST, "restored: {address}");
            let mut headers = HeaderMap::new();
            headers.append("x-envoy-original-dst-host", address);
            let usual = connection(true);
            let context = LbContext { headers: Some(&headers), connection: Some(&usual), ..LbContext::default() };
            assert_eq!(chosen(balancer.choose_host(&context)), NO_HOST, "header: {address}");
            let text = Value { kind: Some(Kind::StringValue(address.into())) };
            usual.metadata.borrow_mut().merge("my.ns", Struct { fields: [("addr".to_owned(), text)].into() });
            let context = LbContext { connection: Some(&usual), ..LbContext::default() };
            assert_eq!(chosen(balancer.choose_host(&context)), NO_HOST, "metadata: {address}");
            assert_eq!(seen.invalid.get(), 3, "{address}");
        }
    }

    #[test]
    fn what_would_come_back_to_us_is_refused_at_once() {
        let (mut balancer, seen) = bench(false, None);
        seen.own.add(([10, 0, 0, 1], 80).into());
        let connection = connection(true);
        let context = LbContext { connection: Some(&connection), ..LbContext::default() };
        assert_eq!(chosen(balancer.choose_host(&context)), OWN_LISTENER);
    }
}
