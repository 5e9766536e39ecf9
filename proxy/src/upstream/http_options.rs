//! `HttpProtocolOptions` of a cluster: how its connections speak HTTP, and how long they live.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::pb::envoy::config::core::v3 as core_pb;
use nuncio_api::pb::envoy::extensions::upstreams::http::v3 as pb;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::time::duration;

use crate::codec::http1::{ClientOptions, HeaderCase};
use crate::codec::http2::{self, Http2Options};

supports!(OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions" {
    common_http_protocol_options, explicit_http_config, use_downstream_protocol_config, auto_config,
    upstream_http_protocol_options
});
supports!(EXPLICIT = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions.ExplicitHttpConfig" {
    http_protocol_options, http2_protocol_options
});
supports!(DOWNSTREAM = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions.UseDownstreamHttpConfig" {
    http_protocol_options, http2_protocol_options
});
supports!(AUTO = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions.AutoHttpConfig" {
    http_protocol_options, http2_protocol_options
});
supports!(NAMES = "envoy.config.core.v3.UpstreamHttpProtocolOptions" {
    auto_sni, auto_san_validation, override_auto_sni_header
});
supports!(COMMON = "envoy.config.core.v3.HttpProtocolOptions" {
    idle_timeout, max_connection_duration, max_headers_count, max_response_headers_kb, max_stream_duration,
    max_requests_per_connection
} noop {
    headers_with_underscores_action: "only requests of clients are looked at for it",
});
supports!(HTTP1 = "envoy.config.core.v3.Http1ProtocolOptions" {
    enable_trailers, allow_chunked_length, header_key_format
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&OPTIONS, &EXPLICIT, &DOWNSTREAM, &AUTO, &NAMES, &COMMON, &HTTP1];

/// The key and the message in `typed_extension_protocol_options`.
const KEY: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// How connections to a cluster speak HTTP.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpOptions {
    pub protocol: UpstreamProtocol,
    /// How long an unused connection is kept.
    pub idle_timeout: Option<Duration>,
    pub max_connection_duration: Option<Duration>,
    pub max_stream_duration: Option<Duration>,
    pub max_requests_per_connection: Option<u32>,
    pub max_headers_count: usize,
    pub max_response_head_bytes: usize,
    pub http1: Http1Options,
    pub http2: Http2Options,
    pub names: NameOptions,
}

/// `UpstreamHttpProtocolOptions`: what a request's host says of the server that is connected to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameOptions {
    pub auto_sni: bool,
    pub auto_san_validation: bool,
    /// Instead of the host, where a request has it.
    pub override_header: Option<Box<str>>,
}

impl NameOptions {
    pub fn is_nothing(&self) -> bool {
        !self.auto_sni && !self.auto_san_validation
    }
}

/// Which HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpstreamProtocol {
    #[default]
    Http1,
    Http2,
    /// Whatever the client speaks.
    Downstream,
    /// Whatever the TLS handshake chooses.
    Auto,
}

/// `core.v3.Http1ProtocolOptions` towards upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Http1Options {
    pub enable_trailers: bool,
    pub allow_chunked_length: bool,
    pub header_case: HeaderCase,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            protocol: UpstreamProtocol::Http1,
            idle_timeout: Some(Duration::from_secs(3600)),
            max_connection_duration: None,
            max_stream_duration: None,
            max_requests_per_connection: None,
            max_headers_count: 100,
            // Envoy's limit for responses is another one than the 60 KiB of requests.
            max_response_head_bytes: 80 * 1024,
            http1: Http1Options::default(),
            http2: Http2Options::default(),
            names: NameOptions::default(),
        }
    }
}

impl HttpOptions {
    /// The options of clusters that set none; all of them share it.
    pub fn shared_default() -> Arc<Self> {
        static DEFAULT: LazyLock<Arc<HttpOptions>> = LazyLock::new(Arc::default);
        DEFAULT.clone()
    }

    /// For HTTP/2 connections.
    pub fn http2_client_options(&self, buffer_limit: u32) -> http2::ClientOptions {
        http2::ClientOptions {
            http2: self.http2.clone(),
            max_head_bytes: self.max_response_head_bytes,
            max_headers: self.max_headers_count,
            buffer_limit,
        }
    }

    /// For HTTP/1 connections.
    pub fn client_options(&self) -> ClientOptions {
        ClientOptions {
            enable_trailers: self.http1.enable_trailers,
            allow_chunked_length: self.http1.allow_chunked_length,
            max_head_bytes: self.max_response_head_bytes,
            max_headers: self.max_headers_count,
            header_case: self.http1.header_case,
        }
    }
}

/// From `typed_extension_protocol_options`, else from the deprecated fields of the cluster itself.
pub(super) fn from_cluster(message: &Cluster) -> Result<Arc<HttpOptions>, ConfigError> {
    if let Some(name) = message.typed_extension_protocol_options.keys().find(|key| *key != KEY) {
        let reason = format!(
            "Didn't find a registered network or http filter or protocol options implementation for name: '{name}'"
        );
        return Err(ConfigError::new(format!("typed_extension_protocol_options[\"{name}\"]"), reason));
    }
    let options = match message.typed_extension_protocol_options.get(KEY) {
        Some(any) => {
            let at = format!("typed_extension_protocol_options[\"{KEY}\"]");
            let typed = nuncio_api::unpack(any).map_err(|e| e.within(&at))?;
            from_typed(&typed).map_err(|e| e.within(&at))?
        }
        None => from_deprecated(message)?,
    };
    Ok(if options == HttpOptions::default() { HttpOptions::shared_default() } else { Arc::new(options) })
}

fn from_typed(message: &pb::HttpProtocolOptions) -> Result<HttpOptions, ConfigError> {
    use pb::http_protocol_options::{UpstreamProtocolOptions as Choice, explicit_http_config::ProtocolConfig};
    let mut options = HttpOptions::default();
    match &message.upstream_protocol_options {
        Some(Choice::ExplicitHttpConfig(explicit)) => match &explicit.protocol_config {
            Some(ProtocolConfig::HttpProtocolOptions(http1)) => {
                options.http1 = read_http1(http1).map_err(|e| e.within("explicit_http_config"))?;
            }
            Some(ProtocolConfig::Http2ProtocolOptions(http2)) => {
                options.protocol = UpstreamProtocol::Http2;
                options.http2 = Http2Options::from_proto(http2, None);
            }
            Some(ProtocolConfig::Http3ProtocolOptions(_)) => {
                return Err(ConfigError::new(
                    "explicit_http_config.http3_protocol_options",
                    "HTTP/3 is not implemented",
                ));
            }
            None => return Err(ConfigError::new("explicit_http_config.protocol_config", "is required")),
        },
        Some(Choice::UseDownstreamProtocolConfig(config)) => {
            options.protocol = UpstreamProtocol::Downstream;
            if let Some(http1) = &config.http_protocol_options {
                options.http1 = read_http1(http1).map_err(|e| e.within("use_downstream_protocol_config"))?;
            }
            if let Some(http2) = &config.http2_protocol_options {
                options.http2 = Http2Options::from_proto(http2, None);
            }
        }
        Some(Choice::AutoConfig(config)) => {
            options.protocol = UpstreamProtocol::Auto;
            if let Some(http1) = &config.http_protocol_options {
                options.http1 = read_http1(http1).map_err(|e| e.within("auto_config"))?;
            }
            if let Some(http2) = &config.http2_protocol_options {
                options.http2 = Http2Options::from_proto(http2, None);
            }
        }
        None => return Err(ConfigError::new("upstream_protocol_options", "is required")),
    }
    if let Some(common) = &message.common_http_protocol_options {
        read_common(common, &mut options);
    }
    if let Some(names) = &message.upstream_http_protocol_options {
        let header = names.override_auto_sni_header.to_ascii_lowercase();
        options.names = NameOptions {
            auto_sni: names.auto_sni,
            auto_san_validation: names.auto_san_validation,
            override_header: (!header.is_empty()).then(|| header.into()),
        };
    }
    Ok(options)
}

#[allow(deprecated)]
fn from_deprecated(message: &Cluster) -> Result<HttpOptions, ConfigError> {
    let mut options = HttpOptions::default();
    if let Some(http2) = &message.http2_protocol_options {
        options.protocol = UpstreamProtocol::Http2;
        options.http2 = Http2Options::from_proto(http2, None);
    }
    if let Some(http1) = &message.http_protocol_options {
        options.http1 = read_http1(http1)?;
    }
    if let Some(common) = &message.common_http_protocol_options {
        read_common(common, &mut options);
    }
    if let Some(max) = &message.max_requests_per_connection {
        options.max_requests_per_connection = Some(max.value).filter(|max| *max > 0);
    }
    Ok(options)
}

fn read_http1(message: &core_pb::Http1ProtocolOptions) -> Result<Http1Options, ConfigError> {
    Ok(Http1Options {
        enable_trailers: message.enable_trailers,
        allow_chunked_length: message.allow_chunked_length,
        header_case: HeaderCase::from_proto(message.header_key_format.as_ref())
            .map_err(|e| e.within("http_protocol_options"))?,
    })
}

fn read_common(message: &core_pb::HttpProtocolOptions, options: &mut HttpOptions) {
    // A zero switches a time off; a negative one is refused by the annotations or means the same.
    let time = |message: &nuncio_api::pb::google::protobuf::Duration| Some(duration(message)).filter(|d| !d.is_zero());
    if let Some(idle) = &message.idle_timeout {
        options.idle_timeout = time(idle);
    }
    options.max_connection_duration = message.max_connection_duration.as_ref().and_then(time);
    options.max_stream_duration = message.max_stream_duration.as_ref().and_then(time);
    options.max_requests_per_connection =
        message.max_requests_per_connection.as_ref().map(|max| max.value).filter(|max| *max > 0);
    if let Some(count) = &message.max_headers_count {
        options.max_headers_count = count.value as usize;
    }
    if let Some(kb) = &message.max_response_headers_kb {
        options.max_response_head_bytes = kb.value as usize * 1024;
    }
}
