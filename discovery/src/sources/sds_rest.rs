//! Polled SDS, the REST service discovery API that preceded EDS: `GET /v1/registration/<service>` answers with the
//! hosts there are. An empty list is an answer like any other. Everything else that is wrong keeps the hosts, and the
//! log says what was asked, what came, and how old the last good answer is.

mod answer;

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use nuncio_api::any::unpack;
use nuncio_api::own::SdsCluster;
use nuncio_api::pb::envoy::config::cluster::v3::{Cluster, cluster::ClusterDiscoveryType};
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;
use nuncio_core::time::duration;
use nuncio_core::upstream::AsyncRequest;
use tokio::time::Instant;

use self::answer::Registered;
use crate::source::Needs;
use crate::xds::{once_the_cluster_is_there, polite_delay};
use crate::{HostSink, HostSource, HostSourceFactory, SourceContext, UpdateEvent};

supports!(SDS = "nuncio.extensions.clusters.sds.v1.SdsCluster" {
    service_name, sds_cluster, refresh_delay, request_timeout
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&SDS];

/// A longer answer is a failure.
const MOST_BYTES: usize = 64 << 20;

pub struct Factory;

impl HostSourceFactory for Factory {
    fn name(&self) -> &'static str {
        "nuncio.clusters.sds"
    }

    fn message(&self) -> Option<&'static str> {
        Some("nuncio.extensions.clusters.sds.v1.SdsCluster")
    }

    fn check(&self, cluster: &Cluster) -> Result<Box<dyn HostSource>, Vec<ConfigError>> {
        check(cluster).map(|sds| Box::new(sds) as Box<dyn HostSource>).map_err(|e| vec![e])
    }
}

const CONFIG: &str = "cluster_type.typed_config";

fn check(cluster: &Cluster) -> Result<Sds, ConfigError> {
    if cluster.load_assignment.is_some() {
        return Err(ConfigError::new("load_assignment", "load_assignment set in an SDS cluster"));
    }
    let any = match &cluster.cluster_discovery_type {
        Some(ClusterDiscoveryType::ClusterType(custom)) => custom.typed_config.as_ref(),
        _ => None,
    };
    let message: SdsCluster = any.map(unpack).transpose().map_err(|e| e.within(CONFIG))?.unwrap_or_default();
    if message.sds_cluster.is_empty() {
        return Err(ConfigError::new("sds_cluster", "a cluster that serves the API must be given").within(CONFIG));
    }
    let service = if message.service_name.is_empty() { &cluster.name } else { &message.service_name };
    let delay = message.refresh_delay.as_ref().map_or(Duration::from_secs(30), duration);
    let timeout = message.request_timeout.as_ref().map_or(Duration::from_secs(1), duration);
    for (field, value) in [("refresh_delay", delay), ("request_timeout", timeout)] {
        if value.is_zero() {
            return Err(ConfigError::new(field, "value must be greater than 0s").within(CONFIG));
        }
    }
    Ok(Sds { path: path(service), cluster: message.sds_cluster, refresh_delay: delay, request_timeout: timeout })
}

/// RFC 3986, 2.3: what is not unreserved is written in percent signs.
fn path(service: &str) -> String {
    let mut path = "/v1/registration/".to_owned();
    for byte in service.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => path.push(byte.into()),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

struct Sds {
    path: String,
    cluster: String,
    refresh_delay: Duration,
    request_timeout: Duration,
}

/// Why there is no new list.
enum Fault {
    /// Nobody answered, or with an error.
    Failure(String),
    /// The answer is not a list of hosts.
    Rejected(String),
}

impl HostSource for Sds {
    fn needs(&self) -> Needs {
        Needs { node: false, cluster: Some((format!("{CONFIG}.sds_cluster"), self.cluster.clone())) }
    }

    fn who(&self) -> Option<String> {
        Some(format!("sds GET {}{}", self.cluster, self.path))
    }

    fn run(self: Box<Self>, context: SourceContext, sink: HostSink) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            let mut last_good: Option<Instant> = None;
            loop {
                sink.count(UpdateEvent::Attempt);
                let age = match last_good {
                    Some(at) => format!("the last good answer is {} s old", at.elapsed().as_secs()),
                    None => "there was no good answer yet".to_owned(),
                };
                let asked = format!("GET {}{}", self.cluster, self.path);
                match self.ask(&context).await {
                    Ok(Registered { hosts, version }) => {
                        last_good = Some(Instant::now());
                        sink.count(UpdateEvent::Success);
                        if let Some(version) = version {
                            sink.version(&version);
                        }
                        sink.replace(hosts);
                    }
                    Err(Fault::Failure(reason)) => sink.failed(format_args!("{asked}: {reason}; {age}")),
                    Err(Fault::Rejected(reason)) => sink.rejected(format_args!("{asked}: {reason}; {age}")),
                }
                tokio::time::sleep(polite_delay(self.refresh_delay, &context.rng)).await;
            }
        })
    }
}

impl Sds {
    async fn ask(&self, context: &SourceContext) -> Result<Registered, Fault> {
        let mut head = RequestHead::default();
        let headers = [(":method", "GET"), (":path", &self.path), (":scheme", "http"), (":authority", &self.cluster)];
        headers.into_iter().for_each(|(name, value)| head.headers.append(name, value));
        let request = AsyncRequest {
            head,
            body: Bytes::new(),
            timeout: Some(self.request_timeout),
            max_response_bytes: MOST_BYTES,
            hash: None,
            send_xff: true,
        };
        let answer = once_the_cluster_is_there(|| context.client.call(&self.cluster, request.clone())).await;
        let answer = answer.map_err(|failure| Fault::Failure(failure.to_string()))?;
        if answer.head.status != 200 {
            return Err(Fault::Failure(format!("answered {}", answer.head.status)));
        }
        answer::read(&answer.body).map_err(Fault::Rejected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::scripted::Scripted;
    use crate::sources::testing::{Answers, Heard, context_with};
    use nuncio_api::pb::envoy::config::cluster::v3::cluster::CustomClusterType;
    use std::rc::Rc;

    /// The shape in which the public reference server of the API answers.
    const REFERENCE: &str = r#"{"env":"production","hosts":[
        {"ip_address":"10.0.0.1","last_check_in":"2026-01-01T00:00:00+00:00","port":8080,"revision":"abc",
         "service":"web","service_repo_name":"repo",
         "tags":{"az":"us-east-1a","instance_id":"i-1","region":"us-east-1","load_balancing_weight":50,"canary":true}},
        {"ip_address":"10.0.0.2","last_check_in":"2026-01-01T00:00:00+00:00","port":8080,"revision":"abc",
         "service":"web","service_repo_name":"repo","tags":{"az":"us-east-1b","instance_id":"i-2","region":"us-east-1"}}
        ],"service":"web"}"#;

    fn cluster(message: &SdsCluster) -> Cluster {
        let custom = CustomClusterType {
            name: "nuncio.clusters.sds".into(),
            typed_config: Some(nuncio_api::any::pack(message)),
        };
        Cluster {
            name: "web shop".into(),
            cluster_discovery_type: Some(ClusterDiscoveryType::ClusterType(custom)),
            ..Default::default()
        }
    }

    fn start(answers: &Answers) -> Rc<Heard> {
        let heard = Rc::new(Heard::default());
        let message = SdsCluster { sds_cluster: "registry".into(), ..Default::default() };
        let source = Factory.check(&cluster(&message)).unwrap_or_else(|e| panic!("{e:?}"));
        let context = context_with(&Scripted::default(), answers);
        tokio::task::spawn_local(source.run(context, HostSink::new(heard.clone())));
        heard
    }

    async fn pass(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn the_reference_servers_answer_is_understood() {
        let answers = Answers::default();
        answers.set(200, REFERENCE);
        let heard = start(&answers);
        pass(1).await;
        assert_eq!(answers.asked()[0].0, "registry GET /v1/registration/web%20shop registry");
        let hosts = heard.hosts();
        assert_eq!(heard.last(), [" 10.0.0.1:8080", " 10.0.0.2:8080"]);
        assert_eq!((hosts[0].weight, hosts[0].canary, &*hosts[0].locality.zone), (50, true, "us-east-1a"));
        assert_eq!((hosts[1].weight, hosts[1].canary, &*hosts[1].locality.region), (1, false, "us-east-1"));
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn polls_come_after_the_delay_and_before_twice_the_delay() {
        let answers = Answers::default();
        answers.set(200, REFERENCE);
        let _heard = start(&answers);
        pass(30).await;
        assert_eq!(answers.asked().len(), 1);
        pass(30).await;
        assert_eq!(answers.asked().len(), 2);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn only_a_good_answer_changes_the_hosts_and_an_empty_one_is_good() {
        let answers = Answers::default();
        answers.set(200, REFERENCE);
        let heard = start(&answers);
        pass(1).await;
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"hosts":{}}"#,
            r#"{"hosts":[1]}"#,
            r#"{"hosts":[{"ip_address":"name.test","port":1}]}"#,
            r#"{"hosts":[{"ip_address":"10.0.0.1","port":0}]}"#,
            r#"{"hosts":[{"ip_address":"10.0.0.1","port":"80"}]}"#,
            r#"{"hosts":[{"ip_address":"10.0.0.1","port":80,"tags":[]}]}"#,
            r#"{"hosts":[{"ip_address":"10.0.0.1","port":80,"tags":{"load_balancing_weight":101}}]}"#,
            r#"{"hosts":[{"ip_address":"10.0.0.1","port":80,"tags":{"canary":"yes"}}]}"#,
            r#"{"hosts":[{"ip_address":"10.0.0.9","port":80},{"port":80}]}"#,
            r#"{"hosts":[{"ip_address":"10.0.0.9","port":80}"#,
        ] {
            answers.set(200, bad);
            let before = heard.rejections();
            pass(60).await;
            assert!(heard.rejections() > before && heard.spoken() == 1, "{bad}");
        }
        answers.set(503, REFERENCE);
        pass(60).await;
        assert!(heard.failures() >= 1 && heard.spoken() == 1);
        answers.set(200, r#"{"hosts":[]}"#);
        pass(60).await;
        assert!(heard.last().is_empty() && heard.spoken() >= 2);
    }

    #[test]
    fn what_is_asked_must_be_named() {
        let Err(errors) = Factory.check(&cluster(&SdsCluster::default())) else { panic!("accepted") };
        let text = errors[0].to_string();
        assert_eq!(text, "cluster_type.typed_config.sds_cluster: a cluster that serves the API must be given");
    }
}
