//! The sections of a dump, their lists, and how one element of a list is printed.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use nuncio_api::dump::JsonWriter;
use nuncio_api::wire::{Wire, fields};

use super::{Chunks, Configs, Dump, DynamicResource, DynamicScopes, endpoints, pass_on};
use crate::calendar::Date;
use crate::tls::secret::SecretView;
use crate::upstream::ClusterSnapshot;

/// One message of `envoy.admin.v3`.
pub(super) struct Section {
    name: &'static str,
    /// Whether it is printed although nobody asked for it and there is nothing of its kind.
    always: bool,
    /// Repeated fields, and the name of their elements' message.
    pub(super) lists: &'static [(&'static str, &'static str)],
    /// Other fields.
    pub(super) single: &'static [&'static str],
}

const ENDPOINTS: &str = "EndpointsConfigDump";
const ECDS: &str = "EcdsConfigDump";

/// In Envoy's order.
pub(super) static SECTIONS: [Section; 8] = [
    Section { name: "BootstrapConfigDump", always: true, lists: &[], single: &["bootstrap", "last_updated"] },
    Section {
        name: "ClustersConfigDump",
        always: true,
        lists: &[
            ("static_clusters", "StaticCluster"),
            ("dynamic_active_clusters", "DynamicCluster"),
            ("dynamic_warming_clusters", "DynamicCluster"),
        ],
        single: &["version_info"],
    },
    Section {
        name: ENDPOINTS,
        always: false,
        lists: &[
            ("static_endpoint_configs", "StaticEndpointConfig"),
            ("dynamic_endpoint_configs", "DynamicEndpointConfig"),
        ],
        single: &[],
    },
    Section { name: ECDS, always: false, lists: &[("ecds_filters", "EcdsFilterConfig")], single: &[] },
    Section {
        name: "ListenersConfigDump",
        always: true,
        lists: &[("static_listeners", "StaticListener"), ("dynamic_listeners", "DynamicListener")],
        single: &["version_info"],
    },
    Section {
        name: "ScopedRoutesConfigDump",
        always: true,
        lists: &[
            ("inline_scoped_route_configs", "InlineScopedRouteConfigs"),
            ("dynamic_scoped_route_configs", "DynamicScopedRouteConfigs"),
        ],
        single: &[],
    },
    Section {
        name: "RoutesConfigDump",
        always: true,
        lists: &[("static_route_configs", "StaticRouteConfig"), ("dynamic_route_configs", "DynamicRouteConfig")],
        single: &[],
    },
    Section {
        name: "SecretsConfigDump",
        always: true,
        lists: &[
            ("static_secrets", "StaticSecret"),
            ("dynamic_active_secrets", "DynamicSecret"),
            ("dynamic_warming_secrets", "DynamicSecret"),
        ],
        single: &[],
    },
];

/// A resource: encoded bytes, or hosts as they are now.
pub(super) enum Element<'c> {
    Cluster(&'c [u8]),
    Endpoints(&'c ClusterSnapshot),
    Listener(&'c [u8]),
    Route(&'c [u8]),
    Secret(&'c [u8]),
    /// What it is, and its message's type.
    Dynamic(&'static str, &'static str, &'c DynamicResource),
    DynamicListener(&'c DynamicResource),
    DynamicSecret(&'c SecretView),
    /// A connection manager's `scoped_routes`.
    Scopes(&'c [u8]),
    DynamicScopes(&'c DynamicScopes),
}

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const ROUTE: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
const SCOPE: &str = "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration";
const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
const BOOTSTRAP: &str = "envoy.config.bootstrap.v3.Bootstrap";
const MANAGER: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

// === impl Section ===

impl Section {
    pub(super) fn message(&self) -> String {
        format!("envoy.admin.v3.{}", self.name)
    }

    pub(super) fn type_url(&self) -> String {
        format!("type.googleapis.com/{}", self.message())
    }

    /// Of the last answer that was taken whole.
    pub(super) fn version<'d>(&self, dump: &'d Dump) -> Option<&'d str> {
        let version = match self.name {
            "ClustersConfigDump" => &dump.dynamic.clusters_version,
            "ListenersConfigDump" => &dump.dynamic.listeners_version,
            _ => return None,
        };
        Some(&**version).filter(|version| !version.is_empty())
    }

    pub(super) fn is_there(&self, dump: &Dump, endpoints: bool) -> bool {
        self.always || (self.name == ENDPOINTS && endpoints) || (self.name == ECDS && dump.dynamic.filters.is_some())
    }

    pub(super) fn is_bootstrap(&self) -> bool {
        self.single.contains(&"bootstrap")
    }
}

// === impl Element ===

impl Element<'_> {
    pub(super) fn name(&self) -> Cow<'_, str> {
        match self {
            Element::Endpoints(cluster) => Cow::Borrowed(endpoints::name(cluster)),
            Element::DynamicSecret(view) => Cow::Borrowed(&view.name),
            Element::DynamicScopes(scopes) => Cow::Borrowed(&scopes.name),
            // The first field of all these messages.
            Element::Cluster(bytes)
            | Element::Listener(bytes)
            | Element::Route(bytes)
            | Element::Scopes(bytes)
            | Element::Secret(bytes) => first_text(bytes),
            Element::Dynamic(_, _, resource) | Element::DynamicListener(resource) => first_text(&resource.bytes),
        }
    }

    /// Inside the element's object, which is open.
    pub(super) fn write_fields(&self, dump: &Dump, json: &mut JsonWriter) {
        match self {
            Element::Cluster(bytes) => write_dated("cluster", CLUSTER, bytes, dump, json),
            Element::Listener(bytes) => write_dated("listener", LISTENER, bytes, dump, json),
            Element::Route(bytes) => write_dated("route_config", ROUTE, bytes, dump, json),
            Element::Scopes(bytes) => {
                json.key("name");
                json.string(&self.name());
                write_scopes(inline_scopes(bytes), dump.configs.loaded, json);
            }
            Element::DynamicScopes(scopes) => {
                json.key("name");
                json.string(&scopes.name);
                write_version(&scopes.version, json);
                write_scopes(scopes.scopes.iter().map(AsRef::as_ref), scopes.updated, json);
            }
            Element::Endpoints(cluster) => {
                json.key("endpoint_config");
                json.value(&endpoints::assignment(cluster));
            }
            Element::Dynamic(key, url, resource) => write_versioned(key, url, resource, json),
            Element::DynamicListener(resource) => {
                json.key("name");
                json.string(&self.name());
                json.key("active_state");
                json.begin_object();
                write_versioned("listener", LISTENER, resource, json);
                json.end_object();
            }
            Element::DynamicSecret(view) => {
                json.key("name");
                json.string(&view.name);
                write_version(&view.version, json);
                if let Some(since) = view.updated.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok()) {
                    write_time(since, json);
                }
                if let Some(secret) = &view.secret {
                    json.key("secret");
                    json.any(SECRET, secret);
                }
            }
            // Envoy prints no time for static secrets.
            Element::Secret(bytes) => {
                json.key("name");
                json.string(&self.name());
                json.key("secret");
                json.any(SECRET, bytes);
            }
        }
    }
}

fn first_text(bytes: &[u8]) -> Cow<'_, str> {
    payloads(bytes, 1).last().map_or(Cow::Borrowed(""), String::from_utf8_lossy)
}

fn write_versioned(key: &str, url: &str, resource: &DynamicResource, json: &mut JsonWriter) {
    write_version(&resource.version, json);
    json.key(key);
    json.any(url, &resource.bytes);
    write_time(resource.updated, json);
}

fn write_version(version: &str, json: &mut JsonWriter) {
    if !version.is_empty() {
        json.key("version_info");
        json.string(version);
    }
}

fn write_time(updated: Duration, json: &mut JsonWriter) {
    json.key("last_updated");
    json.string(&Date::new(updated).rfc3339());
}

fn write_scopes<'s>(scopes: impl Iterator<Item = &'s [u8]>, updated: Duration, json: &mut JsonWriter) {
    json.key("scoped_route_configs");
    json.begin_list();
    scopes.for_each(|scope| json.any(SCOPE, scope));
    json.end_list();
    write_time(updated, json);
}

fn write_dated(key: &str, url: &str, bytes: &[u8], dump: &Dump, json: &mut JsonWriter) {
    json.key(key);
    json.any(url, bytes);
    write_time(dump.configs.loaded, json);
}

// === impl Dump ===

impl Dump {
    /// What a list holds.
    pub(super) fn elements(&self, list: &str) -> Vec<Element<'_>> {
        let configs = &self.configs;
        let endpoints = |added_via_api: bool| {
            let clusters = self.clusters.iter().filter(|c| c.config.info.added_via_api == added_via_api);
            clusters.map(|cluster| Element::Endpoints(cluster)).collect()
        };
        match list {
            "static_clusters" => configs.clusters.iter().map(|bytes| Element::Cluster(bytes)).collect(),
            "static_endpoint_configs" => endpoints(false),
            "dynamic_endpoint_configs" => endpoints(true),
            "static_listeners" => configs.listeners.iter().map(|bytes| Element::Listener(bytes)).collect(),
            "static_route_configs" => {
                let managers = configs.listeners.iter().flat_map(|bytes| managers(bytes));
                managers.flat_map(|manager| payloads(manager, ROUTE_CONFIG)).map(Element::Route).collect()
            }
            "inline_scoped_route_configs" => {
                let managers = configs.listeners.iter().flat_map(|bytes| managers(bytes));
                let scoped = managers.flat_map(|manager| payloads(manager, SCOPED_ROUTES));
                scoped.filter(|scoped| inline_scopes(scoped).next().is_some()).map(Element::Scopes).collect()
            }
            "dynamic_scoped_route_configs" => self.dynamic.scopes.iter().map(Element::DynamicScopes).collect(),
            "dynamic_active_clusters" => versioned("cluster", CLUSTER, &self.dynamic.clusters),
            "dynamic_warming_clusters" => versioned("cluster", CLUSTER, &self.dynamic.warming_clusters),
            "dynamic_route_configs" => versioned("route_config", ROUTE, &self.dynamic.routes),
            "ecds_filters" => versioned("ecds_filter", EXTENSION, self.dynamic.filters.as_deref().unwrap_or_default()),
            "dynamic_listeners" => self.dynamic.listeners.iter().map(Element::DynamicListener).collect(),
            "dynamic_active_secrets" | "dynamic_warming_secrets" => {
                let active = list == "dynamic_active_secrets";
                let shown = self.dynamic.secrets.iter().filter(|view| view.secret.is_some() == active);
                shown.map(Element::DynamicSecret).collect()
            }
            "static_secrets" => configs.secrets.iter().map(|bytes| Element::Secret(bytes)).collect(),
            _ => Vec::new(),
        }
    }
}

fn versioned<'d>(key: &'static str, url: &'static str, list: &'d [DynamicResource]) -> Vec<Element<'d>> {
    list.iter().map(|resource| Element::Dynamic(key, url, resource)).collect()
}

// === impl Configs ===

impl Configs {
    /// The fields of `BootstrapConfigDump`: the node, the lists that are kept apart, the rest.
    pub(super) fn write_bootstrap(&self, json: &mut JsonWriter, out: &mut Option<&mut Chunks>) -> fmt::Result {
        const STATIC_RESOURCES: u32 = 2;
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (number, _, whole) in fields(&self.bootstrap).flatten() {
            match number.cmp(&STATIC_RESOURCES) {
                std::cmp::Ordering::Less => before.extend_from_slice(whole),
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => after.extend_from_slice(whole),
            }
        }
        json.key("bootstrap");
        json.begin_object();
        json.fields(BOOTSTRAP, &before);
        let lists = [
            ("listeners", LISTENER, &self.listeners),
            ("clusters", CLUSTER, &self.clusters),
            ("secrets", SECRET, &self.secrets),
        ];
        if lists.iter().any(|(_, _, elements)| !elements.is_empty()) {
            json.key("static_resources");
            json.begin_object();
            for (key, name, elements) in lists.iter().filter(|(_, _, elements)| !elements.is_empty()) {
                json.key(key);
                json.begin_list();
                for element in elements.iter() {
                    json.message(name, element);
                    if let Some(out) = out {
                        pass_on(json, out)?;
                    }
                }
                json.end_list();
            }
            json.end_object();
        }
        json.fields(BOOTSTRAP, &after);
        json.end_object();
        write_time(self.loaded, json);
        Ok(())
    }
}

/// The payloads of one length-delimited field, in order.
fn payloads(bytes: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    fields(bytes).flatten().filter_map(move |(n, value, _)| match value {
        Wire::Bytes(payload) if n == number => Some(payload),
        _ => None,
    })
}

/// Fields of a connection manager.
const ROUTE_CONFIG: u32 = 4;
const SCOPED_ROUTES: u32 = 31;

/// The connection managers of a listener: `filter_chains` and `default_filter_chain`, their `filters`, the
/// `typed_config` of those.
fn managers(listener: &[u8]) -> Vec<&[u8]> {
    let chains = payloads(listener, 3).chain(payloads(listener, 25));
    let configs = chains.flat_map(|chain| payloads(chain, 3)).flat_map(|filter| payloads(filter, 4));
    let is_manager = |any: &&[u8]| payloads(any, 1).any(|url| url.ends_with(MANAGER.as_bytes()));
    configs.filter(is_manager).flat_map(|any| payloads(any, 2)).collect()
}

/// The `scoped_route_configurations` of the `scoped_route_configurations_list` of `scoped_routes`.
fn inline_scopes(scoped: &[u8]) -> impl Iterator<Item = &[u8]> {
    payloads(scoped, 4).flat_map(|list| payloads(list, 1))
}
