//! What happened to hosts, as lines of JSON: `envoy.data.core.v3.HealthCheckEvent` and
//! `envoy.data.cluster.v3.OutlierDetectionEvent`, with every field that Envoy prints, in its order.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::dump::json_value;
use nuncio_api::pb::google::protobuf::Timestamp;
use nuncio_core::access_log::{LogBuffer, LogFile};
use nuncio_core::net::Address;
use nuncio_core::time::WallClock;
use nuncio_core::upstream::Host;
use prost::Message;
use serde_json::{Map, Value, json};

use crate::judge::FailureType;
use crate::outlier::Ejection;

/// This thread's end of the files that events of one cluster go to.
pub struct EventLog {
    files: Vec<Rc<dyn LogBuffer>>,
    clock: WallClock,
    cluster: Arc<str>,
}

/// What an active check brought about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckEvent {
    EjectUnhealthy { failure: FailureType, status: u16 },
    AddHealthy { first: bool },
    Failure { failure: FailureType, first: bool, status: u16 },
    Degraded,
    NoLongerDegraded,
    Successful,
}

impl EventLog {
    /// Inside the event loop of the thread that writes.
    pub fn new(files: &[Arc<dyn LogFile>], clock: WallClock, cluster: Arc<str>) -> Self {
        Self { files: files.iter().map(|file| file.buffer()).collect(), clock, cluster }
    }

    pub fn checked(&self, protocol: &'static str, host: &Host, event: CheckEvent) {
        if !self.files.is_empty() {
            self.write(&check_event(&self.cluster, protocol, host, event, self.clock.since_epoch()));
        }
    }

    pub fn outlier(&self, host: &Host, ejection: &Ejection) {
        if !self.files.is_empty() {
            self.write(&outlier_event(&self.cluster, host, ejection, self.clock.since_epoch()));
        }
    }

    fn write(&self, event: &Value) {
        for file in &self.files {
            file.append(&mut |out| {
                out.extend_from_slice(event.to_string().as_bytes());
                out.push(b'\n');
            });
        }
    }
}

/// The numbers of the message's fields give the order.
fn check_event(cluster: &str, protocol: &str, host: &Host, event: CheckEvent, now: Duration) -> Value {
    let mut json = Map::new();
    json.insert("health_checker_type".into(), protocol.into());
    json.insert("host".into(), address(&host.current_address()));
    json.insert("cluster_name".into(), cluster.into());
    let (before_timestamp, name, value) = match event {
        CheckEvent::EjectUnhealthy { failure, status } => {
            let value = json!({"failure_type": failure.as_str(), "http_status_code": status});
            (true, "eject_unhealthy_event", value)
        }
        CheckEvent::AddHealthy { first } => (true, "add_healthy_event", json!({"first_check": first})),
        CheckEvent::Failure { failure, first, status } => {
            let value = json!({"failure_type": failure.as_str(), "first_check": first, "http_status_code": status});
            (false, "health_check_failure_event", value)
        }
        CheckEvent::Degraded => (false, "degraded_healthy_host", json!({})),
        CheckEvent::NoLongerDegraded => (false, "no_longer_degraded_host", json!({})),
        CheckEvent::Successful => (false, "successful_health_check_event", json!({})),
    };
    let timestamp = ("timestamp".to_owned(), timestamp(now));
    let event_field = (name.to_owned(), value);
    let locality = ("locality".to_owned(), locality(host));
    let fields = match event {
        _ if before_timestamp => [event_field, timestamp, locality],
        CheckEvent::Successful => [timestamp, locality, event_field],
        _ => [timestamp, event_field, locality],
    };
    json.extend(fields);
    json.into()
}

fn outlier_event(cluster: &str, host: &Host, ejection: &Ejection, now: Duration) -> Value {
    let mut json = Map::new();
    json.insert("type".into(), ejection.cause.as_str().into());
    json.insert("timestamp".into(), timestamp(now));
    if let Some(since) = ejection.since_last_action {
        // 64 bits are a string in protobuf's JSON.
        json.insert("secs_since_last_action".into(), since.as_secs().to_string().into());
    }
    json.insert("cluster_name".into(), cluster.into());
    json.insert("upstream_url".into(), host.address_text().to_string().into());
    json.insert("action".into(), if ejection.ejects { "EJECT" } else { "UNEJECT" }.into());
    json.insert("num_ejections".into(), ejection.count.into());
    json.insert("enforced".into(), ejection.enforced.into());
    if ejection.ejects {
        let (name, value) = ejection.cause.event();
        json.insert(name.into(), value);
    }
    json.into()
}

fn timestamp(now: Duration) -> Value {
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    // Envoy's clock gives milliseconds here.
    let message = Timestamp { seconds, nanos: now.subsec_millis() as i32 * 1_000_000 };
    json_value("google.protobuf.Timestamp", &message.encode_to_vec())
}

fn address(address: &Address) -> Value {
    match address {
        Address::Ip(socket) => json!({"socket_address": {
            "protocol": "TCP",
            "address": socket.ip().to_string(),
            "port_value": socket.port(),
            "resolver_name": "",
            "ipv4_compat": false,
            "network_namespace_filepath": "",
        }}),
        other => json!({"pipe": {"path": other.to_string(), "mode": 0}}),
    }
}

fn locality(host: &Host) -> Value {
    let locality = &host.spec().locality;
    json!({"region": &*locality.region, "zone": &*locality.zone, "sub_zone": &*locality.sub_zone})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outlier::Cause;
    use nuncio_core::upstream::HostSpec;

    fn host() -> Host {
        Host::new(HostSpec::new(Address::Ip(([127, 0, 0, 1], 80).into())))
    }

    fn line(event: CheckEvent) -> String {
        check_event("web", "HTTP", &host(), event, Duration::from_millis(1_234_567_890_123)).to_string()
    }

    const HOST: &str = r#"{"health_checker_type":"HTTP","host":{"socket_address":{"protocol":"TCP","address":"127.0.0.1","port_value":80,"resolver_name":"","ipv4_compat":false,"network_namespace_filepath":""}},"cluster_name":"web","#;
    const AT: &str = r#""timestamp":"2009-02-13T23:31:30.123Z","#;
    const LOCALITY: &str = r#""locality":{"region":"","zone":"","sub_zone":""}}"#;

    // Lines: recorded from Envoy 1.40, the moment aside.
    #[test]
    fn events_of_checks_read_as_envoys() {
        let (failure, status) = (FailureType::NetworkTimeout, 0);
        assert_eq!(
            line(CheckEvent::EjectUnhealthy { failure, status }),
            format!(
                r#"{HOST}"eject_unhealthy_event":{{"failure_type":"NETWORK_TIMEOUT","http_status_code":0}},{AT}{LOCALITY}"#
            )
        );
        assert_eq!(
            line(CheckEvent::AddHealthy { first: true }),
            format!(r#"{HOST}"add_healthy_event":{{"first_check":true}},{AT}{LOCALITY}"#)
        );
        assert_eq!(line(CheckEvent::Degraded), format!(r#"{HOST}{AT}"degraded_healthy_host":{{}},{LOCALITY}"#));
    }

    // Lines: recorded from Envoy 1.40, the moment aside.
    #[test]
    fn events_of_outliers_read_as_envoys() {
        let eject =
            Ejection { cause: Cause::Consecutive5xx, ejects: true, enforced: true, count: 1, since_last_action: None };
        let of = |ejection| outlier_event("web", &host(), &ejection, Duration::from_secs(1)).to_string();
        let at = "1970-01-01T00:00:01Z";
        assert_eq!(
            of(eject.clone()),
            format!(
                r#"{{"type":"CONSECUTIVE_5XX","timestamp":"{at}","cluster_name":"web","upstream_url":"127.0.0.1:80","action":"EJECT","num_ejections":1,"enforced":true,"eject_consecutive_event":{{}}}}"#
            )
        );
        let back = Ejection { ejects: false, enforced: false, since_last_action: Some(Duration::ZERO), ..eject };
        assert_eq!(
            of(back),
            format!(
                r#"{{"type":"CONSECUTIVE_5XX","timestamp":"{at}","secs_since_last_action":"0","cluster_name":"web","upstream_url":"127.0.0.1:80","action":"UNEJECT","num_ejections":1,"enforced":false}}"#
            )
        );
    }
}
