//! `ConfigSource`: a file or a management server that is polled over REST.

use std::path::PathBuf;
use std::time::Duration;

use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::time::duration;

use super::resource::Resource;

supports!(SOURCE = "envoy.config.core.v3.ConfigSource" {
    path, path_config_source, api_config_source, initial_fetch_timeout
} values {
    resource_api_version: ["AUTO", "V3"],
});
supports!(PATH = "envoy.config.core.v3.PathConfigSource" { path, watched_directory });
supports!(DIRECTORY = "envoy.config.core.v3.WatchedDirectory" { path });
supports!(API = "envoy.config.core.v3.ApiConfigSource" {
    cluster_names, refresh_delay, request_timeout
} values {
    api_type: ["REST"],
    transport_api_version: ["AUTO", "V3"],
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&SOURCE, &PATH, &DIRECTORY, &API];

/// Where a resource comes from, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSource {
    pub from: From,
    /// For so long a resource's consumer waits at its start; none: for ever.
    pub initial_fetch_timeout: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    File(FileSource),
    Rest(Rest),
}

/// A file that is read again when another takes its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSource {
    pub path: PathBuf,
    /// Or when anything moves into this directory.
    pub watched_directory: Option<PathBuf>,
}

/// A server that is polled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rest {
    pub cluster: String,
    /// Between two polls; as much again at most is added by chance.
    pub refresh_delay: Duration,
    pub request_timeout: Duration,
}

impl ConfigSource {
    const INITIAL_FETCH_TIMEOUT: Duration = Duration::from_secs(15);
    const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

    pub fn from_proto(message: &pb::ConfigSource) -> Result<Self, ConfigError> {
        use pb::config_source::ConfigSourceSpecifier as Specifier;
        let initial = message.initial_fetch_timeout.as_ref().map_or(Self::INITIAL_FETCH_TIMEOUT, duration);
        let from = match &message.config_source_specifier {
            Some(Specifier::PathConfigSource(file)) => {
                file_at(&file.path, file.watched_directory.as_ref()).map_err(|e| e.within("path_config_source"))
            }
            #[allow(deprecated)]
            Some(Specifier::Path(path)) => file_at(path, None),
            Some(Specifier::ApiConfigSource(api)) => rest(api).map_err(|e| e.within("api_config_source")),
            Some(Specifier::Ads(_)) => Err(ConfigError::new("ads", "is not implemented")),
            Some(Specifier::Self_(_)) => Err(ConfigError::new("self", "is not implemented")),
            None => Err(ConfigError::new("", "a source must be given")),
        }?;
        Ok(Self { from, initial_fetch_timeout: (!initial.is_zero()).then_some(initial) })
    }

    /// Whom a resource of that kind comes from, as operators read it.
    pub fn who<R: Resource>(&self) -> String {
        match &self.from {
            From::File(file) => file.path.display().to_string(),
            From::Rest(rest) => format!("POST {}{}", rest.cluster, R::REST),
        }
    }

    /// The cluster that is asked, and where that stands in the message.
    pub fn cluster(&self) -> Option<(&'static str, &str)> {
        match &self.from {
            From::Rest(rest) => Some(("api_config_source.cluster_names[0]", &rest.cluster)),
            From::File(_) => None,
        }
    }
}

fn file_at(path: &str, watched: Option<&pb::WatchedDirectory>) -> Result<From, ConfigError> {
    let found = PathBuf::from(path);
    if !found.exists() {
        let reason = format!("paths must refer to an existing path in the system: '{path}' does not exist");
        return Err(ConfigError::new("path", reason));
    }
    Ok(From::File(FileSource {
        path: found,
        watched_directory: watched.map(|directory| directory.path.clone().into()),
    }))
}

fn rest(message: &pb::ApiConfigSource) -> Result<From, ConfigError> {
    use pb::api_config_source::ApiType;
    if message.api_type != ApiType::Rest as i32 {
        return Err(ConfigError::new("api_type", "is not implemented; REST is"));
    }
    let [cluster] = &message.cluster_names[..] else {
        return Err(ConfigError::new("cluster_names", "REST must have a singleton cluster name specified"));
    };
    let Some(delay) = &message.refresh_delay else {
        let reason = "refresh_delay is required for REST API configuration sources";
        return Err(ConfigError::new("refresh_delay", reason));
    };
    Ok(From::Rest(Rest {
        cluster: cluster.clone(),
        // A delay of nothing would be a loop without end.
        refresh_delay: duration(delay).max(Duration::from_millis(1)),
        request_timeout: message.request_timeout.as_ref().map_or(ConfigSource::REQUEST_TIMEOUT, duration),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::google::protobuf::Duration as Pb;

    fn api(names: &[&str], delay: Option<i64>) -> Result<ConfigSource, String> {
        let api = pb::ApiConfigSource {
            api_type: pb::api_config_source::ApiType::Rest.into(),
            cluster_names: names.iter().map(|&name| name.into()).collect(),
            refresh_delay: delay.map(|seconds| Pb { seconds, nanos: 0 }),
            ..Default::default()
        };
        let specifier = pb::config_source::ConfigSourceSpecifier::ApiConfigSource(api);
        let source = pb::ConfigSource { config_source_specifier: Some(specifier), ..Default::default() };
        ConfigSource::from_proto(&source).map_err(|e| e.to_string())
    }

    #[test]
    fn polling_needs_one_cluster_and_a_delay() {
        let read = api(&["xds"], Some(3)).unwrap();
        assert_eq!(read.cluster(), Some(("api_config_source.cluster_names[0]", "xds")));
        assert_eq!(read.initial_fetch_timeout, Some(Duration::from_secs(15)));
        assert_eq!(
            api(&["xds"], None).unwrap_err(),
            "api_config_source.refresh_delay: refresh_delay is required for REST API configuration sources"
        );
        assert!(api(&["a", "b"], Some(3)).is_err());
    }

    #[test]
    fn a_file_must_be_there_at_the_start() {
        let file = pb::PathConfigSource { path: "/no/such/file.yaml".into(), ..Default::default() };
        let specifier = pb::config_source::ConfigSourceSpecifier::PathConfigSource(file);
        let source = pb::ConfigSource { config_source_specifier: Some(specifier), ..Default::default() };
        let error = ConfigSource::from_proto(&source).unwrap_err().to_string();
        assert!(error.ends_with("existing path in the system: '/no/such/file.yaml' does not exist"), "{error}");
    }
}
