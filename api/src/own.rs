//! Messages of our own, in packages that begin with `nuncio.`: what Envoy has no message for. Each has a type for its
//! consumer and a descriptor for everything else (reading, checking, `/config_dump`); a test holds the two together.

use prost::{Message, Name};
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::prost_types::field_descriptor_proto::Type;

use crate::pb::google::protobuf::Duration;
use crate::pool::{own_field, own_file, own_message};

/// `nuncio.extensions.clusters.sds.v1.SdsCluster`: hosts from the REST service discovery API that preceded EDS.
#[derive(Clone, PartialEq, Message)]
pub struct SdsCluster {
    /// What is asked for; the name of the cluster if empty.
    #[prost(string, tag = "1")]
    pub service_name: String,
    /// The cluster that serves the API.
    #[prost(string, tag = "2")]
    pub sds_cluster: String,
    /// Between two polls, and up to as much again by chance; 30 s if not set.
    #[prost(message, optional, tag = "3")]
    pub refresh_delay: Option<Duration>,
    /// 1 s if not set.
    #[prost(message, optional, tag = "4")]
    pub request_timeout: Option<Duration>,
}

impl Name for SdsCluster {
    const NAME: &'static str = "SdsCluster";
    const PACKAGE: &'static str = "nuncio.extensions.clusters.sds.v1";

    fn full_name() -> String {
        format!("{}.{}", Self::PACKAGE, Self::NAME)
    }

    fn type_url() -> String {
        format!("type.googleapis.com/{}", Self::full_name())
    }
}

/// The descriptors.
pub(crate) fn files() -> Vec<FileDescriptorProto> {
    const DURATION: Option<&str> = Some(".google.protobuf.Duration");
    let fields = vec![
        own_field("service_name", "serviceName", 1, Type::String, None),
        own_field("sds_cluster", "sdsCluster", 2, Type::String, None),
        own_field("refresh_delay", "refreshDelay", 3, Type::Message, DURATION),
        own_field("request_timeout", "requestTimeout", 4, Type::Message, DURATION),
    ];
    let sds = own_message(SdsCluster::NAME, fields);
    vec![own_file(SdsCluster::PACKAGE, &["google/protobuf/duration.proto"], vec![sds])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::json_value;

    #[test]
    fn the_descriptor_speaks_of_the_same_fields_as_the_type() {
        let second = Some(Duration { seconds: 1, nanos: 0 });
        let message = SdsCluster {
            service_name: "web".into(),
            sds_cluster: "registry".into(),
            refresh_delay: second,
            request_timeout: second,
        };
        let shown = json_value(&SdsCluster::full_name(), &message.encode_to_vec());
        let expected = serde_json::json!({
            "service_name": "web", "sds_cluster": "registry", "refresh_delay": "1s", "request_timeout": "1s",
        });
        assert_eq!(shown, expected);
    }
}
