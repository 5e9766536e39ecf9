//! `http2_protocol_options`, from protobuf.

use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_api::pb::google::protobuf::{Duration as DurationProto, UInt32Value};
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::time::duration;

use super::options::{Http2Options, Keepalive};

supports!(pub HTTP2 = "envoy.config.core.v3.Http2ProtocolOptions" {
    hpack_table_size, max_concurrent_streams, initial_stream_window_size, initial_connection_window_size,
    allow_connect, max_consecutive_inbound_frames_with_empty_payload, max_inbound_priority_frames_per_stream,
    max_inbound_window_update_frames_per_data_frame_sent, stream_error_on_invalid_http_messaging,
    override_stream_error_on_invalid_http_message, connection_keepalive, stream_reset_burst, stream_reset_rate,
} noop {
    max_outbound_frames: "frames do not pile up: nothing is read from a peer that takes nothing",
    max_outbound_control_frames: "frames do not pile up: nothing is read from a peer that takes nothing",
    use_oghttp2_codec: "there is one codec",
    max_metadata_size: "METADATA frames are not used",
    enable_huffman_encoding: "the codec chooses what is shorter",
    max_header_field_size_kb: "the limit of the whole head bounds each field",
    disallow_obs_text: "concerns another codec",
} values {
    allow_metadata: ["false"],
});
supports!(pub KEEPALIVE = "envoy.config.core.v3.KeepaliveSettings" {
    interval, timeout, interval_jitter, connection_idle_interval,
});
supports!(pub PERCENT = "envoy.type.v3.Percent" { value });

/// What is honoured here.
pub static SUPPORTED: &[&Entry] = &[&HTTP2, &KEEPALIVE, &PERCENT];

impl Http2Options {
    /// `stream_errors`: what the connection manager says about malformed messages, unless the message does.
    pub fn from_proto(message: &pb::Http2ProtocolOptions, stream_errors: Option<bool>) -> Self {
        let default = Self::default();
        let number = |value: &Option<UInt32Value>, default: u32| value.as_ref().map_or(default, |v| v.value);
        #[allow(deprecated, reason = "Envoy still reads it where the newer one is not set")]
        let deprecated = message.stream_error_on_invalid_http_messaging;
        let own = message.override_stream_error_on_invalid_http_message.as_ref().map(|v| v.value);
        Self {
            header_table_size: number(&message.hpack_table_size, default.header_table_size),
            max_concurrent_streams: number(&message.max_concurrent_streams, default.max_concurrent_streams),
            initial_stream_window: number(&message.initial_stream_window_size, default.initial_stream_window),
            initial_connection_window: number(
                &message.initial_connection_window_size,
                default.initial_connection_window,
            ),
            allow_connect: message.allow_connect,
            max_consecutive_empty_frames: number(
                &message.max_consecutive_inbound_frames_with_empty_payload,
                default.max_consecutive_empty_frames,
            ),
            max_priority_frames_per_stream: number(
                &message.max_inbound_priority_frames_per_stream,
                default.max_priority_frames_per_stream,
            ),
            max_window_updates_per_data_frame: number(
                &message.max_inbound_window_update_frames_per_data_frame_sent,
                default.max_window_updates_per_data_frame,
            ),
            stream_error_on_invalid: own.or(stream_errors).unwrap_or(deprecated),
            stream_resets: (
                message.stream_reset_burst.as_ref().map_or(default.stream_resets.0, |v| v.value),
                message.stream_reset_rate.as_ref().map_or(default.stream_resets.1, |v| v.value),
            ),
            keepalive: message.connection_keepalive.as_ref().map(keepalive),
        }
    }
}

fn keepalive(message: &pb::KeepaliveSettings) -> Keepalive {
    let time = |value: &Option<DurationProto>| value.as_ref().map(duration).filter(|d| !d.is_zero());
    Keepalive {
        interval: time(&message.interval),
        timeout: message.timeout.as_ref().map(duration).unwrap_or_default(),
        jitter: message.interval_jitter.as_ref().map_or(15.0, |percent| percent.value),
        idle_interval: time(&message.connection_idle_interval),
    }
}
