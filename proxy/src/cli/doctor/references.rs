//! Who asks whom: the filters of a configuration that call an authorization service.

use nuncio_api::LoadedBootstrap;
use nuncio_api::pb::envoy::config::core::v3::{GrpcService, grpc_service::TargetSpecifier, http_uri::HttpUpstreamType};
use nuncio_api::pb::envoy::config::listener::v3::{FilterChain, Listener, filter::ConfigType as FilterConfig};
use nuncio_api::pb::envoy::config::route::v3::RouteConfiguration;
use nuncio_api::pb::envoy::extensions::filters::http::ext_authz::v3 as http;
use nuncio_api::pb::envoy::extensions::filters::network::ext_authz::v3 as network;
use nuncio_api::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager::RouteSpecifier, http_filter::ConfigType as HttpFilterConfig,
};
use nuncio_api::pb::google::protobuf::Any;
use nuncio_api::prost::{Message, Name};

/// One filter, or one route, and the service that it asks.
#[derive(Debug, PartialEq)]
pub(super) struct Reference {
    /// In words.
    pub(super) place: String,
    pub(super) cluster: String,
    pub(super) service: Service,
}

#[derive(Debug, PartialEq)]
pub(super) enum Service {
    Grpc(Box<GrpcService>),
    Http(Box<http::HttpService>),
}

/// All of a configuration, in its order.
pub(super) fn of(loaded: &LoadedBootstrap) -> Vec<Reference> {
    let mut found = Vec::new();
    for element in &loaded.listeners {
        let Ok(listener) = Listener::decode(element.bytes.clone()) else { continue };
        for chain in listener.filter_chains.iter().chain(&listener.default_filter_chain) {
            of_chain(&format!("listener '{}'", listener.name), chain, &mut found);
        }
    }
    found
}

fn of_chain(place: &str, chain: &FilterChain, found: &mut Vec<Reference>) {
    for filter in &chain.filters {
        let Some(FilterConfig::TypedConfig(config)) = &filter.config_type else { continue };
        let place = format!("{place}, network filter '{}'", filter.name);
        if let Some(ext_authz) = message::<network::ExtAuthz>(config) {
            found.extend(ext_authz.grpc_service.and_then(|service| grpc(place, service)));
        } else if let Some(manager) = message::<HttpConnectionManager>(config) {
            of_manager(&place, &manager, found);
        }
    }
}

fn of_manager(place: &str, manager: &HttpConnectionManager, found: &mut Vec<Reference>) {
    for filter in &manager.http_filters {
        let Some(HttpFilterConfig::TypedConfig(config)) = &filter.config_type else { continue };
        let Some(ext_authz) = message::<http::ExtAuthz>(config) else { continue };
        let place = format!("{place}, HTTP filter '{}'", filter.name);
        found.extend(match ext_authz.services {
            Some(http::ext_authz::Services::GrpcService(service)) => grpc(place, service),
            Some(http::ext_authz::Services::HttpService(service)) => http(place, service),
            None => None,
        });
        if let Some(RouteSpecifier::RouteConfig(routes)) = &manager.route_specifier {
            of_routes(&filter.name, routes, found);
        }
    }
}

/// Routes and virtual hosts with a service of their own.
fn of_routes(filter: &str, routes: &RouteConfiguration, found: &mut Vec<Reference>) {
    let mut own = |place: String, config: Option<&Any>| {
        let Some(settings) = config.and_then(message::<http::ExtAuthzPerRoute>) else { return };
        let Some(http::ext_authz_per_route::Override::CheckSettings(settings)) = settings.r#override else { return };
        found.extend(match settings.service_override {
            Some(http::check_settings::ServiceOverride::GrpcService(service)) => grpc(place, service),
            Some(http::check_settings::ServiceOverride::HttpService(service)) => http(place, service),
            None => None,
        });
    };
    for host in &routes.virtual_hosts {
        let place = format!("virtual host '{}' of '{}'", host.name, routes.name);
        own(place.clone(), host.typed_per_filter_config.get(filter));
        for (i, route) in host.routes.iter().enumerate() {
            own(format!("route {i} of {place}"), route.typed_per_filter_config.get(filter));
        }
    }
}

fn grpc(place: String, service: GrpcService) -> Option<Reference> {
    let Some(TargetSpecifier::EnvoyGrpc(target)) = &service.target_specifier else { return None };
    Some(Reference { place, cluster: target.cluster_name.clone(), service: Service::Grpc(Box::new(service)) })
}

fn http(place: String, service: http::HttpService) -> Option<Reference> {
    let Some(HttpUpstreamType::Cluster(cluster)) = service.server_uri.as_ref()?.http_upstream_type.clone() else {
        return None;
    };
    Some(Reference { place, cluster, service: Service::Http(Box::new(service)) })
}

fn message<M: Message + Name + Default>(any: &Any) -> Option<M> {
    any.type_url.ends_with(&M::full_name()).then(|| M::decode(&*any.value).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::{Format, LoadOptions, Source, load_bootstrap};

    #[test]
    fn filters_and_routes_that_ask_are_found() {
        let example = include_str!("../../../../configs/ext-authz.yaml");
        let extra =
            "check_settings: {context_extensions: {service: web}, grpc_service: {envoy_grpc: {cluster_name: other}}}";
        let text = example.replace("check_settings: {context_extensions: {service: web}}", extra);
        let loaded = load_bootstrap(vec![Source::text("x", Format::Yaml, text)], &LoadOptions::default());
        let found = of(&loaded.unwrap_or_else(|problems| panic!("{problems:#?}")));
        let told: Vec<_> = found.iter().map(|r| (&*r.place, &*r.cluster)).collect();
        let filter = "listener 'web', network filter 'envoy.filters.network.http_connection_manager', HTTP filter \
                      'envoy.filters.http.ext_authz'";
        assert_eq!(told, [(filter, "authz"), ("route 1 of virtual host 'all' of 'web'", "other")]);
    }
}
