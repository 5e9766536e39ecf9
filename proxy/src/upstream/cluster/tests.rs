use super::super::http_options::UpstreamProtocol;
use super::*;
use nuncio_api::pb::envoy::extensions::load_balancing_policies::{least_request, random};
use nuncio_api::pb::envoy::extensions::upstreams::http::v3 as http;
use nuncio_api::pb::google::protobuf::{self as wkt, Any, UInt32Value};

fn named() -> pb::Cluster {
    pb::Cluster { name: "c".into(), ..Default::default() }
}

fn read(message: &pb::Cluster) -> Result<ClusterConfig, String> {
    let defaults = ClusterDefaults::default();
    ClusterConfig::from_proto(message, false, &defaults).map_err(|errors| errors[0].to_string())
}

fn seconds(seconds: i64) -> Option<wkt::Duration> {
    Some(wkt::Duration { seconds, nanos: 0 })
}

fn with_http(options: &http::HttpProtocolOptions) -> pb::Cluster {
    let key = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions".to_owned();
    pb::Cluster { typed_extension_protocol_options: [(key, nuncio_api::pack(options))].into(), ..named() }
}

fn explicit_http1() -> http::HttpProtocolOptions {
    use http::http_protocol_options::{ExplicitHttpConfig, UpstreamProtocolOptions, explicit_http_config};
    let config = explicit_http_config::ProtocolConfig::HttpProtocolOptions(Default::default());
    let explicit = ExplicitHttpConfig { protocol_config: Some(config) };
    let options = Some(UpstreamProtocolOptions::ExplicitHttpConfig(explicit));
    http::HttpProtocolOptions { upstream_protocol_options: options, ..Default::default() }
}

#[test]
fn an_unadorned_cluster_has_envoys_defaults_and_shares_them() {
    let (a, b) = (read(&named()).unwrap(), read(&named()).unwrap());
    assert_eq!(a.info.connect_timeout, Duration::from_secs(5));
    assert_eq!(a.info.per_connection_buffer_limit, 1 << 20);
    assert_eq!(&*a.info.observability_name, "c");
    assert_eq!((a.lb.policy, a.lb.panic_threshold), (LbPolicy::RoundRobin, 50));
    assert_eq!(a.http.idle_timeout, Some(Duration::from_secs(3600)));
    assert_eq!(a.update_merge_window(), Duration::from_secs(1));
    assert!(a.flags().wait_for_warm_on_init);
    assert!(Arc::ptr_eq(&a.http, &b.http));
    assert!(Arc::ptr_eq(&a.info.metadata, &b.info.metadata));
    assert!(a.rare.is_none() && a.thresholds.is_none() && a.connect.is_none());
}

#[test]
fn http_options_are_read_from_their_extension() {
    let common = core_pb::HttpProtocolOptions {
        idle_timeout: seconds(0),
        max_connection_duration: seconds(7),
        max_requests_per_connection: Some(UInt32Value { value: 2 }),
        ..Default::default()
    };
    let options = http::HttpProtocolOptions { common_http_protocol_options: Some(common), ..explicit_http1() };
    let read = read(&with_http(&options)).unwrap();
    assert_eq!(read.http.protocol, UpstreamProtocol::Http1);
    assert_eq!(read.http.idle_timeout, None);
    assert_eq!(read.http.max_connection_duration, Some(Duration::from_secs(7)));
    assert_eq!(read.http.max_requests_per_connection, Some(2));
}

#[test]
fn the_extension_wins_over_the_deprecated_fields() {
    #[allow(deprecated)]
    let old = pb::Cluster { http2_protocol_options: Some(Default::default()), ..named() };
    assert_eq!(read(&old).unwrap().http.protocol, UpstreamProtocol::Http2);
    let both = pb::Cluster {
        typed_extension_protocol_options: with_http(&explicit_http1()).typed_extension_protocol_options,
        ..old
    };
    assert_eq!(read(&both).unwrap().http.protocol, UpstreamProtocol::Http1);
}

#[test]
fn refusals_are_envoys() {
    // Each text as Envoy 1.40 --mode validate gives it.
    let key = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    assert_eq!(
        read(&with_http(&http::HttpProtocolOptions::default())).unwrap_err(),
        format!("typed_extension_protocol_options[\"{key}\"].upstream_protocol_options: is required")
    );
    let unknown =
        pb::Cluster { typed_extension_protocol_options: [("foo".to_owned(), Any::default())].into(), ..named() };
    assert!(read(&unknown).unwrap_err().ends_with(
        "Didn't find a registered network or http filter or protocol options implementation for name: 'foo'"
    ));
    let policy = |policy: pb::cluster::LbPolicy| pb::Cluster { lb_policy: policy.into(), ..named() };
    assert_eq!(
        read(&policy(pb::cluster::LbPolicy::LoadBalancingPolicyConfig)).unwrap_err(),
        "lb_policy: cluster: field load_balancing_policy need to be set"
    );
    assert_eq!(
        read(&policy(pb::cluster::LbPolicy::ClusterProvided)).unwrap_err(),
        "lb_policy: cluster manager: cluster provided LB specified but cluster 'c' did not provide one. \
         Check cluster documentation."
    );
    let source = core_pb::SocketAddress { address: "foo".into(), ..Default::default() };
    let bind = core_pb::BindConfig { source_address: Some(source), ..Default::default() };
    assert_eq!(
        read(&pb::Cluster { upstream_bind_config: Some(bind), ..named() }).unwrap_err(),
        "upstream_bind_config.source_address.address: malformed IP address: foo"
    );
}

fn policies(list: Vec<(&str, Any)>) -> pb::Cluster {
    let policy = |(name, any): (&str, Any)| pb::load_balancing_policy::Policy {
        typed_extension_config: Some(core_pb::TypedExtensionConfig { name: name.into(), typed_config: Some(any) }),
    };
    let policies = list.into_iter().map(policy).collect();
    pb::Cluster { load_balancing_policy: Some(pb::LoadBalancingPolicy { policies }), ..named() }
}

#[test]
fn the_first_known_policy_of_the_list_wins() {
    let unknown = Any { type_url: "type.googleapis.com/google.protobuf.Struct".into(), value: Vec::new() };
    let least = least_request::v3::LeastRequest { choice_count: Some(UInt32Value { value: 4 }), ..Default::default() };
    let list = vec![
        ("x", unknown.clone()),
        ("l", nuncio_api::pack(&least)),
        ("r", nuncio_api::pack(&random::v3::Random::default())),
    ];
    assert_eq!(
        read(&policies(list)).unwrap().lb.policy,
        LbPolicy::LeastRequest { choices: 4, bias: 1.0, full_scan: false }
    );
    assert_eq!(
        read(&policies(vec![("x", unknown.clone())])).unwrap_err(),
        "load_balancing_policy: cluster: didn't find a registered load balancer factory implementation for cluster: \
         'c' with names from [x]"
    );
    let subset = pb::Cluster { lb_subset_config: Some(Default::default()), ..policies(vec![("x", unknown)]) };
    assert!(read(&subset).unwrap_err().ends_with("load_balancing_policy cannot be combined with lb_subset_config"));
}

#[test]
fn the_bootstraps_source_address_is_for_clusters_without_their_own() {
    let bind = |address: &str| core_pb::BindConfig {
        source_address: Some(core_pb::SocketAddress { address: address.into(), ..Default::default() }),
        ..Default::default()
    };
    let defaults = ClusterDefaults { bind: Some(bind("127.0.0.7")), ..ClusterDefaults::default() };
    let source = |message: &pb::Cluster| {
        let config = ClusterConfig::from_proto(message, false, &defaults).unwrap();
        config.connect_options().source.clone().unwrap().to_string()
    };
    assert_eq!(source(&named()), "127.0.0.7:0");
    let own = pb::Cluster { upstream_bind_config: Some(bind("127.0.0.8")), ..named() };
    assert_eq!(source(&own), "127.0.0.8:0");
}

#[test]
fn a_host_that_a_filter_asks_for_must_be_in_an_admitted_state() {
    let flags = |flag| HealthFlags::default().with(flag);
    let default = HostStatuses::DEFAULT;
    assert!(default.admits(HealthFlags::default()) && default.admits(flags(HealthFlag::DegradedEdsHealth)));
    assert!(
        !default.admits(flags(HealthFlag::FailedActiveHc)) && !default.admits(flags(HealthFlag::EdsStatusDraining))
    );
    let statuses = vec![core_pb::HealthStatus::Draining.into()];
    let draining = HostStatuses::from_proto(&core_pb::HealthStatusSet { statuses });
    assert!(draining.admits(flags(HealthFlag::EdsStatusDraining)) && !draining.admits(HealthFlags::default()));
}
