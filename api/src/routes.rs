//! Inline routes without the message of all of them: a typed `Route` is two kilobytes, so ten thousand of them would
//! be the peak of a start. A route configuration stays encoded; its virtual hosts, and their routes, are decoded one
//! at a time.

use prost::Message;
use prost::bytes::Bytes;

use crate::any::{decode, open_as};
use crate::diag::ConfigError;
use crate::pb::envoy::config::route::v3::{Route, RouteConfiguration, VirtualHost};
use crate::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use crate::pb::google::protobuf::Any;
use crate::wire::{put, split};

/// HttpConnectionManager.route_config, RouteConfiguration.virtual_hosts, VirtualHost.routes: a test compares them with
/// the descriptors.
const ROUTE_CONFIG: u32 = 4;
const VIRTUAL_HOSTS: u32 = 2;
const ROUTES: u32 = 3;

/// A route configuration, its virtual hosts still encoded.
#[derive(Debug, Clone)]
pub struct HttpRoutes {
    /// Without virtual hosts.
    pub config: RouteConfiguration,
    hosts: Vec<Bytes>,
}

/// One virtual host, its routes still encoded.
#[derive(Debug, Clone)]
pub struct HostRoutes {
    /// Without routes.
    pub host: VirtualHost,
    routes: Vec<Bytes>,
}

impl HttpRoutes {
    /// An `HttpConnectionManager` without its inline routes, and these. (In what is left `route_config` is set and
    /// empty: it says that the routes are inline.)
    pub fn unpack(any: &Any) -> Result<(HttpConnectionManager, Option<Self>), ConfigError> {
        let bytes = open_as::<HttpConnectionManager>(any)?;
        let (mut rest, parts) = split(&bytes, &[ROUTE_CONFIG]).map_err(malformed)?;
        if parts.is_empty() {
            return Ok((decode(&rest)?, None));
        }
        put(&mut rest, ROUTE_CONFIG, &[]);
        let mut config = Vec::with_capacity(parts.iter().map(|(_, part)| part.len()).sum());
        for (_, part) in parts {
            config.extend_from_slice(part);
        }
        Ok((decode(&rest)?, Some(Self::new(Bytes::from(config))?)))
    }

    /// From an encoded `RouteConfiguration`, as it comes by RDS.
    pub fn new(bytes: Bytes) -> Result<Self, ConfigError> {
        let (rest, parts) = split(&bytes, &[VIRTUAL_HOSTS]).map_err(malformed)?;
        Ok(Self { config: decode(&rest)?, hosts: parts.iter().map(|(_, host)| bytes.slice_ref(host)).collect() })
    }

    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Virtual hosts in order.
    pub fn virtual_hosts(&self) -> impl Iterator<Item = Result<HostRoutes, ConfigError>> {
        self.hosts.iter().map(|bytes| HostRoutes::new(bytes.clone()))
    }
}

impl HostRoutes {
    /// From an encoded `VirtualHost`, as it comes by VHDS.
    pub fn new(bytes: Bytes) -> Result<Self, ConfigError> {
        let (rest, parts) = split(&bytes, &[ROUTES]).map_err(malformed)?;
        Ok(Self { host: decode(&rest)?, routes: parts.iter().map(|(_, route)| bytes.slice_ref(route)).collect() })
    }

    pub fn len(&self) -> usize {
        self.routes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// Routes in order, each decoded when it is asked for.
    pub fn routes(&self) -> impl Iterator<Item = Result<Route, ConfigError>> {
        self.routes.iter().map(|bytes| Route::decode(&**bytes).map_err(malformed))
    }
}

fn malformed(error: impl std::fmt::Display) -> ConfigError {
    ConfigError::new("", error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::pack;
    use crate::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
    use crate::shape::shape_named;

    #[test]
    fn the_numbers_are_those_of_the_descriptors() {
        let number = |message: &str, field: &str| {
            let shape = shape_named(message).unwrap();
            shape.fields[shape.field_named(field).unwrap()].number
        };
        let hcm = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
        assert_eq!(number(hcm, "route_config"), ROUTE_CONFIG);
        assert_eq!(number("envoy.config.route.v3.RouteConfiguration", "virtual_hosts"), VIRTUAL_HOSTS);
        assert_eq!(number("envoy.config.route.v3.VirtualHost", "routes"), ROUTES);
    }

    #[test]
    fn routes_come_one_by_one_and_the_manager_keeps_the_rest() {
        let route = |name: &str| Route { name: name.to_owned(), ..Route::default() };
        let host = |name: &str| VirtualHost {
            name: name.to_owned(),
            domains: vec!["*".to_owned()],
            routes: vec![route("a"), route("b")],
            ..VirtualHost::default()
        };
        let config = RouteConfiguration {
            name: "r".to_owned(),
            virtual_hosts: vec![host("v"), host("w")],
            ..Default::default()
        };
        let manager = HttpConnectionManager {
            stat_prefix: "s".to_owned(),
            route_specifier: Some(RouteSpecifier::RouteConfig(config)),
            ..Default::default()
        };
        let (rest, routes) = HttpRoutes::unpack(&pack(&manager)).unwrap();
        assert_eq!(rest.stat_prefix, "s");
        assert_eq!(rest.route_specifier, Some(RouteSpecifier::RouteConfig(RouteConfiguration::default())));
        let routes = routes.unwrap();
        assert_eq!((routes.config.name.as_str(), routes.len()), ("r", 2));
        let hosts: Vec<HostRoutes> = routes.virtual_hosts().map(Result::unwrap).collect();
        assert_eq!((hosts[1].host.name.as_str(), hosts[1].host.domains.len()), ("w", 1));
        let names: Vec<String> = hosts[1].routes().map(|r| r.unwrap().name).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn a_manager_with_discovered_routes_has_none_of_its_own() {
        let manager = HttpConnectionManager { stat_prefix: "s".to_owned(), ..Default::default() };
        assert!(HttpRoutes::unpack(&pack(&manager)).unwrap().1.is_none());
    }
}
