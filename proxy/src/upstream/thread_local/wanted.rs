//! What sets the connections for one request apart from others to the same host: the name in the handshake, the client that
//! a PROXY header tells of, the address that they come from. Equal wishes are one object, by which pools are found.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use nuncio_core::net::{ConnectionInfo, OriginalSource};

use super::ThreadLocalCluster;
use crate::net::proxy_protocol::ProxyProtocolData;
use crate::tls::ServerWanted;
use crate::upstream::transport::TransportSockets;

/// As many as there are pools, and some that had one: these are looked for whenever the list would grow, so that ten
/// thousand clients with a pool each are not walked for every new one.
#[derive(Default)]
pub(super) struct Known {
    by_name: RefCell<HashMap<Box<str>, Rc<ServerWanted>>>,
    /// Those of one client alone.
    of_clients: RefCell<HashSet<Rc<ServerWanted>>>,
}

impl ThreadLocalCluster {
    /// What a request to `authority` wants, if the cluster makes it depend on that or on whose request it is; `header` is
    /// the request's value of the header that counts instead.
    pub fn wanted(
        &self,
        authority: &[u8],
        header: Option<&[u8]>,
        connection: Option<&ConnectionInfo>,
        source: Option<OriginalSource>,
    ) -> Option<Rc<ServerWanted>> {
        let by_name = !self.local.config.http.names.is_nothing();
        let client = self.told_client(connection);
        if !by_name && client.is_none() && source.is_none() {
            return None;
        }
        let name = std::str::from_utf8(header.unwrap_or(authority)).ok().filter(|_| by_name);
        let known = &self.local.tls().wanted;
        if client.is_none() && source.is_none() {
            return name.map(|name| known.by_name(name, || self.wanted_by_name(name)));
        }
        let named = name.map(|name| self.wanted_by_name(name)).unwrap_or_default();
        Some(known.of_client(ServerWanted { client: client.map(Arc::new), source, ..named }))
    }

    fn wanted_by_name(&self, name: &str) -> ServerWanted {
        let options = &self.local.config.http.names;
        let host = host_of(name);
        let is_address = host.parse::<std::net::IpAddr>().is_ok();
        ServerWanted {
            server_name: (options.auto_sni && !is_address).then(|| host.into()),
            subject_names: if options.auto_san_validation { vec![host.into()] } else { Vec::new() },
            ..ServerWanted::default()
        }
    }

    /// The same for a connection of bytes, which asks for no name.
    pub fn wanted_by_connection(&self, connection: &ConnectionInfo) -> Option<Rc<ServerWanted>> {
        let (client, source) = (self.told_client(Some(connection)), connection.original_source);
        if client.is_none() && source.is_none() {
            return None;
        }
        Some(Rc::new(ServerWanted { client: client.map(Arc::new), source, ..ServerWanted::default() }))
    }

    /// Of a cluster whose hosts are told whose connections they get.
    fn told_client(&self, connection: Option<&ConnectionInfo>) -> Option<ProxyProtocolData> {
        let tells = self.local.config.transport().is_some_and(TransportSockets::tells_clients);
        ProxyProtocolData::of(connection.filter(|_| tells)?)
    }

    /// The header that counts instead of the host.
    pub fn wanted_header(&self) -> Option<&str> {
        self.local.config.http.names.override_header.as_deref()
    }
}

impl Known {
    fn by_name(&self, name: &str, make: impl FnOnce() -> ServerWanted) -> Rc<ServerWanted> {
        let mut known = self.by_name.borrow_mut();
        if let Some(wanted) = known.get(name) {
            return wanted.clone();
        }
        if known.len() == known.capacity() {
            known.retain(|_, wanted| Rc::strong_count(wanted) > 1);
        }
        let wanted = Rc::new(make());
        known.insert(name.into(), wanted.clone());
        wanted
    }

    fn of_client(&self, wanted: ServerWanted) -> Rc<ServerWanted> {
        let mut known = self.of_clients.borrow_mut();
        if let Some(same) = known.get(&wanted) {
            return same.clone();
        }
        if known.len() == known.capacity() {
            known.retain(|wanted| Rc::strong_count(wanted) > 1);
        }
        let wanted = Rc::new(wanted);
        known.insert(wanted.clone());
        wanted
    }
}

/// The host of an authority, without port and brackets.
fn host_of(authority: &str) -> &str {
    if let Some(bracketed) = authority.strip_prefix('[') {
        return bracketed.split(']').next().unwrap_or(bracketed);
    }
    match authority.split_once(':') {
        // More than one colon is an address without a port.
        Some((host, port)) if !port.contains(':') => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_that_nobody_holds_are_forgotten_and_those_of_pools_stay() {
        let known = Known::default();
        let of = |n: u32| ServerWanted { server_name: Some(format!("{n}.test").into()), ..ServerWanted::default() };
        let held: Vec<_> = (0..100).map(|n| known.of_client(of(n))).collect();
        let named: Vec<_> = (0..100).map(|n| known.by_name(&format!("{n}.test"), || of(n))).collect();
        for n in 100..10_000 {
            known.of_client(of(n));
            known.by_name(&format!("{n}.test"), || of(n));
        }
        assert!(known.of_clients.borrow().len() < 512 && known.by_name.borrow().len() < 512);
        for n in 0..100 {
            assert!(Rc::ptr_eq(&held[n as usize], &known.of_client(of(n))));
            assert!(Rc::ptr_eq(&named[n as usize], &known.by_name(&format!("{n}.test"), || of(n))));
        }
    }
}
