use nuncio_core::net::Address;

use super::*;
use crate::testing::{World, message};

fn filter(world: &World, more: &str) -> Box<dyn NetworkFilter> {
    let proto: pb::Rbac = message(&format!(
        "{{stat_prefix: 'tcp.', rules: {{policies: {{ok: {{permissions: [{{any: true}}], principals: [{{direct_remote_ip: \
         {{address_prefix: 127.0.0.8, prefix_len: 32}}}}]}}}}}}, shadow_rules: {{action: DENY, policies: {{sh: {{permissions: \
         [{{any: true}}], principals: [{{any: true}}]}}}}}}, shadow_rules_stat_prefix: sp_ {more}}}"
    ));
    let config = world.configure(|context| Factory.check(&proto.encode_to_vec(), context));
    config.unwrap_or_else(|e| panic!("{e:?}")).on_worker(&world.worker)()
}

fn connection(last: u8) -> Rc<ConnectionInfo> {
    let ip = |last: u8| Address::Ip(([127, 0, 0, last], 80).into());
    Rc::new(ConnectionInfo::new(1, ip(last), ip(1)))
}

// Recorded from Envoy 1.40.
#[tokio::test(flavor = "local", start_paused = true)]
async fn the_first_bytes_of_a_connection_decide() {
    let world = World::new(&[]);
    let good = connection(8);
    let mut passing = filter(&world, "");
    assert!(matches!(passing.on_new_connection(&good), NetworkStep::Continue) && passing.reads_data());
    assert!(matches!(passing.on_data(b"ping", false, &good), NetworkStep::Continue) && !passing.reads_data());
    let bad = connection(9);
    let NetworkStep::Close(close) = filter(&world, "").on_data(b"", true, &bad) else { panic!("passes") };
    assert_eq!((&*close.reason, close.flag), ("rbac_deny_close", None));
    assert_eq!(close.termination_details.as_deref(), Some("rbac_access_denied_matched_policy[none]"));
    let stats = ["rbac.allowed", "rbac.denied", "rbac.sp_.shadow_allowed", "rbac.sp_.shadow_denied"];
    assert_eq!(stats.map(|name| world.stat(&format!("tcp.{name}"))), [1, 1, 0, 2].map(Some));
    let metadata = bad.metadata.borrow();
    let told: Vec<_> = metadata.0["envoy.filters.network.rbac"].fields.keys().cloned().collect();
    assert_eq!(told.len(), 2);
    assert!(metadata.get("envoy.filters.network.rbac", &["sp_shadow_effective_policy_id"]).is_some());
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_denial_may_be_late_and_repeated() {
    let world = World::new(&[]);
    let mut filter = filter(&world, ", delay_deny: 0.3s, enforcement_type: CONTINUOUS");
    let began = tokio::time::Instant::now();
    let NetworkStep::Later(wait) = filter.on_data(b"x", false, &connection(9)) else { panic!("at once") };
    assert!(matches!(wait.await, NetworkVerdict::Close(_)));
    assert_eq!(began.elapsed(), Duration::from_millis(300));
    assert!(filter.reads_data());
    assert!(matches!(filter.on_data(b"xy", false, &connection(8)), NetworkStep::Continue));
}
