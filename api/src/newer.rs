//! What Envoy 1.40 knows and the pinned `envoy-types` does not yet have: facts (message, field, number, type). The
//! fields are added to the descriptors by the build script, so that a configuration that sets one is told "not
//! implemented" and not "unknown field". Entries that the package has learnt meanwhile are skipped.

/// A field to add to a message of the descriptor set.
pub struct NewerField {
    pub message: &'static str,
    pub name: &'static str,
    pub number: u32,
    pub repeated: bool,
    /// A scalar's protobuf name, or a message's full name with a dot before it.
    pub kind: &'static str,
}

const fn field(message: &'static str, name: &'static str, number: u32, kind: &'static str) -> NewerField {
    NewerField { message, name, number, repeated: false, kind }
}

const fn list(message: &'static str, name: &'static str, number: u32, kind: &'static str) -> NewerField {
    NewerField { message, name, number, repeated: true, kind }
}

/// In the order of the messages' names. Enums stand as `int32`, which they are on the wire, and messages that the
/// package has not at all as `Struct`: none of these fields is implemented, so only its name matters.
#[rustfmt::skip]
pub const FIELDS: &[NewerField] = &[
    field("envoy.config.core.v3.HealthCheck", "name", 27, "string"),
    field("envoy.config.core.v3.HealthCheck.HttpHealthCheck", "use_alpn_protocol", 15, "bool"),
    field("envoy.config.metrics.v3.DogStatsdSink", "scale_histogram_units_to_milliseconds", 5, "bool"),
    field("envoy.config.metrics.v3.StatsdSink", "scale_histogram_units_to_milliseconds", 4, "bool"),
    field("envoy.extensions.bootstrap.reverse_tunnel.downstream_socket_interface.v3.DownstreamReverseConnectionSocketInterface.HttpHandshakeConfig", "handshake_timeout", 5, ".google.protobuf.Duration"),
    field("envoy.extensions.clusters.mcp_multicluster.v3.ClusterConfig.McpBackend", "header_forwarding", 3, ".google.protobuf.Struct"),
    field("envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride", "unit_multiplier", 3, ".google.protobuf.UInt32Value"),
    field("envoy.extensions.filters.http.basic_auth.v3.BasicAuth", "realm", 6, "string"),
    field("envoy.extensions.filters.http.basic_auth.v3.BasicAuthPerRoute", "realm", 2, "string"),
    list("envoy.extensions.filters.http.ext_authz.v3.ExtAuthz", "clear_route_cache_headers", 34, "string"),
    list("envoy.extensions.filters.http.gcp_authn.v3.Audience.AccessToken", "scopes", 1, "string"),
    list("envoy.extensions.filters.http.gcp_authn.v3.Audience.BoundAccessToken", "scopes", 1, "string"),
    list("envoy.extensions.filters.http.header_mutation.v3.Mutations", "formatters", 6, ".envoy.config.core.v3.TypedExtensionConfig"),
    field("envoy.extensions.filters.http.lua.v3.Lua", "shared_vm_id", 9, "string"),
    field("envoy.extensions.filters.http.lua.v3.LuaPerRoute", "shared_vm_id", 7, "string"),
    field("envoy.extensions.filters.http.mcp.v3.Mcp", "max_supported_protocol_version", 11, ".google.protobuf.StringValue"),
    field("envoy.extensions.filters.http.mcp_json_rest_bridge.v3.ServerInfo", "server_discovery_cache_config", 4, ".google.protobuf.Struct"),
    field("envoy.extensions.filters.http.mcp_router.v3.McpRouter.McpBackend", "header_forwarding", 3, ".google.protobuf.Struct"),
    field("envoy.extensions.filters.http.oauth2.v3.OAuth2Config", "token_cookie_chunking", 34, ".google.protobuf.Struct"),
    field("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "record_route_resolution_stats", 63, "bool"),
    field("envoy.extensions.filters.network.reverse_tunnel.v3.ReverseTunnel", "handshake_timeout", 11, ".google.protobuf.Duration"),
    list("envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig.UdpTunnelingConfig", "formatters", 12, ".envoy.config.core.v3.TypedExtensionConfig"),
    field("envoy.extensions.http.ai_filters.request_info.v3.RequestInfo", "token_estimation", 2, ".google.protobuf.Struct"),
    field("envoy.extensions.load_balancing_policies.load_aware_locality.v3.LoadAwareLocality", "oob_reporting_config", 10, ".envoy.extensions.load_balancing_policies.common.v3.OrcaOobReportingConfig"),
    field("envoy.extensions.stat_sinks.graphite_statsd.v3.GraphiteStatsdSink", "scale_histogram_units_to_milliseconds", 5, "bool"),
    field("envoy.type.tracing.v3.CustomTag", "value_type", 7, "int32"),
];
