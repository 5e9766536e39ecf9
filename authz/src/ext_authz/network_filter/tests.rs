use nuncio_core::net::Address;
use nuncio_core::upstream::AsyncFailure;

use super::*;
use crate::testing::{World, grpc, message};

fn filter(world: &World, more: &str) -> Box<dyn NetworkFilter> {
    let proto: pb::ExtAuthz = message(&format!(
        "{{stat_prefix: net, transport_api_version: V3, grpc_service: {{envoy_grpc: {{cluster_name: authz}}}} {more}}}"
    ));
    let config = world.configure(|context| Factory.check(&proto.encode_to_vec(), context));
    config.unwrap_or_else(|e| panic!("{e:?}")).on_worker(&world.worker)()
}

async fn verdict(filter: &mut dyn NetworkFilter) -> Option<NetworkClose> {
    let ip = |last: u8| Address::Ip(([127, 0, 0, last], 80).into());
    let connection = Rc::new(ConnectionInfo::new(1, ip(7), ip(1)));
    assert!(matches!(filter.on_new_connection(&connection), NetworkStep::Continue) && filter.reads_data());
    let NetworkStep::Later(wait) = filter.on_data(b"ping", false, &connection) else { panic!("decides at once") };
    assert!(!filter.reads_data());
    match wait.await {
        NetworkVerdict::Continue => None,
        NetworkVerdict::Close(close) => Some(close),
    }
}

// Expected: recorded from Envoy 1.40 (authz_network_basics).
#[tokio::test(flavor = "local", start_paused = true)]
async fn a_connection_waits_for_a_yes() {
    let world = World::new(&[]);
    world.answer(grpc(&CheckResponse::default()));
    assert!(verdict(&mut *filter(&world, "")).await.is_none());
    let asked = world.service.asked.borrow()[0].1.body.slice(5..);
    let expected: CheckRequest = message(
        "{attributes: {source: {address: {socket_address: {address: 127.0.0.7, port_value: 80}}}, destination: \
         {address: {socket_address: {address: 127.0.0.1, port_value: 80}}}, metadata_context: {}}}",
    );
    assert_eq!(CheckRequest::decode(asked).unwrap(), expected);
    world.answer(grpc(&message::<CheckResponse>("{status: {code: 7}}")));
    let close = verdict(&mut *filter(&world, "")).await.unwrap();
    assert_eq!(close.code_details.as_deref(), Some("ext_authz_denied"));
    assert_eq!(close.flag, Some(ResponseFlag::UnauthorizedExternalService));
    world.answer(Err(AsyncFailure::Timeout));
    let close = verdict(&mut *filter(&world, "")).await.unwrap();
    assert_eq!(close.code_details.as_deref(), Some("ext_authz_error"));
    world.answer(Err(AsyncFailure::Timeout));
    assert!(verdict(&mut *filter(&world, ", failure_mode_allow: true")).await.is_none());
    let stats = ["ok", "denied", "error", "cx_closed", "total", "failure_mode_allowed", "active", "disabled"];
    assert_eq!(stats.map(|name| world.stat(&format!("ext_authz.net.{name}"))), [1, 1, 2, 2, 4, 1, 0, 0].map(Some));
}
