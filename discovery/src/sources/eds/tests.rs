use super::*;
use crate::dns::scripted::Scripted;
use crate::sources::testing::{Answers, Heard, context_with, seconds};
use nuncio_api::pb::envoy::config::core::v3 as core_pb;
use nuncio_core::upstream::AsyncFailure;
use std::rc::Rc;

fn cluster() -> Cluster {
    use core_pb::config_source::ConfigSourceSpecifier;
    let api = core_pb::ApiConfigSource {
        api_type: core_pb::api_config_source::ApiType::Rest.into(),
        cluster_names: vec!["xds".into()],
        refresh_delay: seconds(10),
        request_timeout: seconds(2),
        ..Default::default()
    };
    let source = core_pb::ConfigSource {
        config_source_specifier: Some(ConfigSourceSpecifier::ApiConfigSource(api)),
        ..Default::default()
    };
    let eds = nuncio_api::pb::envoy::config::cluster::v3::cluster::EdsClusterConfig {
        eds_config: Some(source),
        service_name: "svc".into(),
    };
    Cluster { name: "web".into(), eds_cluster_config: Some(eds), ..Default::default() }
}

fn answer(version: &str, service: &str, ports: &[u16], policy: &str) -> String {
    let endpoint = |port: &u16| {
        format!(r#"{{"endpoint":{{"address":{{"socket_address":{{"address":"127.0.0.1","port_value":{port}}}}}}}}}"#)
    };
    let endpoints: Vec<_> = ports.iter().map(endpoint).collect();
    format!(
        r#"{{"version_info":"{version}","resources":[{{"@type":"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name":"{service}",{policy}"endpoints":[{{"lb_endpoints":[{}]}}]}}]}}"#,
        endpoints.join(",")
    )
}

fn start(answers: &Answers) -> Rc<Heard> {
    let heard = Rc::new(Heard::default());
    let source = Factory.check(&cluster()).unwrap_or_else(|e| panic!("{e:?}"));
    let context = context_with(&Scripted::default(), answers);
    tokio::task::spawn_local(source.run(context, HostSink::new(heard.clone())));
    heard
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn polls_with_the_last_good_version_and_keeps_a_polite_distance() {
    let answers = Answers::default();
    answers.set(200, &answer("7", "svc", &[1, 2, 1], ""));
    let heard = start(&answers);
    pass(1).await;
    // The first of two with one address wins.
    assert_eq!(heard.last(), [" 127.0.0.1:1", " 127.0.0.1:2"]);
    assert_eq!(answers.asked()[0].0, "xds POST /v3/discovery:endpoints xds application/json");
    let first: serde_json::Value = serde_json::from_str(&answers.asked()[0].1).unwrap();
    assert_eq!(first["resource_names"], serde_json::json!(["svc"]));
    assert_eq!((&first["node"]["id"], first.get("version_info")), (&serde_json::json!("n"), None));
    pass(9).await;
    assert_eq!(answers.asked().len(), 1);
    pass(10).await;
    assert_eq!(answers.asked().len(), 2);
    let second: serde_json::Value = serde_json::from_str(&answers.asked()[1].1).unwrap();
    assert_eq!(second["version_info"], "7");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn nothing_but_a_good_answer_about_this_cluster_changes_the_hosts() {
    let answers = Answers::default();
    answers.set(200, &answer("1", "svc", &[1], ""));
    let heard = start(&answers);
    pass(1).await;
    for (status, body, failures, rejections) in [
        (500, "x".to_owned(), 1, 0),
        (304, String::new(), 0, 0),
        (200, "not json".to_owned(), 0, 1),
        (200, r#"{"resources":[{"@type":"nope"}]}"#.to_owned(), 0, 1),
        (200, answer("2", "other", &[2], ""), 0, 1),
        (200, answer("2", "svc", &[0], "").replace("127.0.0.1", "name.test"), 0, 1),
        (200, r#"{"version_info":"3","resources":[]}"#.to_owned(), 0, 0),
    ] {
        answers.set(status, &body);
        let before = (heard.failures(), heard.rejections(), answers.asked().len());
        pass(20).await;
        let polls = answers.asked().len() - before.2;
        assert!(polls >= 1);
        let counted = (heard.failures() - before.0, heard.rejections() - before.1);
        assert_eq!(counted, (failures * polls, rejections * polls), "{status} {body}");
        assert_eq!((heard.spoken(), heard.last()), (1, vec![" 127.0.0.1:1".to_owned()]), "{status} {body}");
    }
    answers.fail(AsyncFailure::Timeout);
    pass(20).await;
    assert!(heard.failures() >= 2 && heard.spoken() == 1);
    answers.set(200, &answer("4", "svc", &[], ""));
    pass(20).await;
    assert!(heard.last().is_empty());
}

// Envoy 1.40 takes gaps (its documentation forbids them), and refuses what is beyond 128.
#[tokio::test(flavor = "local", start_paused = true)]
async fn priorities_may_have_gaps_but_not_be_beyond_their_range() {
    let answers = Answers::default();
    let of = |version, priority: u32| {
        let text = answer(version, "svc", &[1], "");
        text.replace("[{\"lb_endpoints\"", &format!("[{{\"priority\":{priority},\"lb_endpoints\""))
    };
    answers.set(200, &of("1", 2));
    let heard = start(&answers);
    pass(1).await;
    assert_eq!(heard.hosts()[0].priority, 2);
    for beyond in [129, u32::MAX] {
        answers.set(200, &of("2", beyond));
        let (spoken, before) = (heard.spoken(), heard.rejections());
        pass(20).await;
        assert!(heard.spoken() == spoken && heard.rejections() > before, "{beyond}");
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_assignment_may_grow_stale() {
    let answers = Answers::default();
    answers.set(200, &answer("1", "svc", &[1], r#""policy":{"endpoint_stale_after":"60s"},"#));
    let heard = start(&answers);
    pass(1).await;
    answers.set(500, "");
    pass(58).await;
    assert_eq!(heard.last().len(), 1);
    pass(2).await;
    assert!(heard.last().is_empty());
}

#[test]
fn an_eds_cluster_needs_a_source_and_no_endpoints_of_its_own() {
    let refusal = |cluster: &Cluster| match Factory.check(cluster) {
        Ok(_) => panic!("accepted"),
        Err(errors) => errors[0].to_string(),
    };
    assert!(refusal(&Cluster::default()).contains("without an EDS config"));
    let both = Cluster { load_assignment: Some(Default::default()), ..cluster() };
    assert!(refusal(&both).starts_with("load_assignment: "));
}
