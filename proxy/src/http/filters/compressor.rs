//! `compressor`: compresses responses for clients that accept it, and request bodies if told to
//! (`envoy.extensions.filters.http.compressor.v3.Compressor`, per route `CompressorPerRoute`).
//!
//! Which of several compressors of one chain does it is one decision over the client's
//! `accept-encoding`. As in Envoy a response that could have been compressed carries `vary`, a strong
//! `etag` goes (or is weakened), a q-value that is no number makes its coding count as not named. Stats
//! `http.<prefix>.compressor.<library name>.<gzip|br|zstd>.…`.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use nuncio_api::pb::envoy::extensions::filters::http::compressor::v3::{
    self as pb, compressor::CommonDirectionConfig, compressor_per_route::Override,
};
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    Chunk, DecodeFilter, EncodeFilter, FilterHalves, HeaderMap, HttpFilter, HttpFilterFactory, MakeFilter, RequestHead,
    ResponseHead, Step, StreamControl,
};
use nuncio_core::runtime::RuntimeFlag;
use nuncio_core::stats::{Counter, List, Scope, ScopeId, Stats};

use crate::http::compression;
use body::Body;
use choice::{Accepted, Decision};
use status::Status;

mod body;
mod choice;
mod status;

supports!(CONFIG = "envoy.extensions.filters.http.compressor.v3.Compressor" {
    content_length, content_type, disable_on_etag_header, remove_accept_encoding_header, runtime_enabled,
    compressor_library, request_direction_config, response_direction_config, choose_first
});
supports!(COMMON = "envoy.extensions.filters.http.compressor.v3.Compressor.CommonDirectionConfig" {
    enabled, min_content_length, content_type
});
supports!(REQUEST = "envoy.extensions.filters.http.compressor.v3.Compressor.RequestDirectionConfig" { common_config });
supports!(RESPONSE = "envoy.extensions.filters.http.compressor.v3.Compressor.ResponseDirectionConfig" {
    common_config, disable_on_etag_header, weaken_etag_on_compress, remove_accept_encoding_header,
    uncompressible_response_codes, status_header_enabled
});
supports!(ROUTE = "envoy.extensions.filters.http.compressor.v3.CompressorPerRoute" { disabled, overrides });
supports!(OVERRIDES = "envoy.extensions.filters.http.compressor.v3.CompressorOverrides" { response_direction_config });
supports!(DIRECTION_OVERRIDES = "envoy.extensions.filters.http.compressor.v3.ResponseDirectionOverrides" {
    remove_accept_encoding_header
});
supports!(LIBRARY = "envoy.config.core.v3.TypedExtensionConfig" { name, typed_config });
pub(super) static SUPPORTED: &[&Entry] =
    &[&CONFIG, &COMMON, &REQUEST, &RESPONSE, &ROUTE, &OVERRIDES, &DIRECTION_OVERRIDES, &LIBRARY];

nuncio_core::stats! {
    /// What became of bodies; the first prefix is that of filters without `response_direction_config`.
    pub Direction at ["", "request.", "response."] {
        counter COMPRESSED;
        counter CONTENT_LENGTH_TOO_SMALL;
        counter NOT_COMPRESSED;
        counter TOTAL_COMPRESSED_BYTES;
        counter TOTAL_UNCOMPRESSED_BYTES;
    }
}

nuncio_core::stats! {
    /// What `accept-encoding` said.
    pub Accept {
        counter HEADER_COMPRESSOR_OVERSHADOWED;
        counter HEADER_COMPRESSOR_USED;
        counter HEADER_IDENTITY;
        counter HEADER_NOT_VALID;
        counter HEADER_WILDCARD;
        counter NO_ACCEPT_HEADER;
        counter NOT_COMPRESSED_ETAG;
    }
}

static SCOPE: Scope = Scope { root: "http.", lists: &[Accept::descriptors] };

const REQUEST_STATS: u8 = 1;
const RESPONSE_STATS: u8 = 2;

/// Envoy's.
const MIN_CONTENT_LENGTH: u64 = 30;
const CONTENT_TYPES: &[&str] = &[
    "text/html",
    "text/plain",
    "text/css",
    "application/javascript",
    "application/x-javascript",
    "text/javascript",
    "text/x-javascript",
    "text/ecmascript",
    "text/js",
    "text/jscript",
    "text/x-js",
    "application/ecmascript",
    "application/x-json",
    "application/xml",
    "application/json",
    "image/svg+xml",
    "text/xml",
    "application/xhtml+xml",
];

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.compressor"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(ROUTE.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        Ok(Arc::new(Config(Arc::new(Settings::new(unpack(config)?, context)?))))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        Ok(Arc::new(match unpack::<pb::CompressorPerRoute>(config)?.r#override {
            Some(Override::Overrides(overrides)) => {
                let response = overrides.response_direction_config;
                Route {
                    enabled: response.as_ref().map(|_| true),
                    remove_accept_encoding: response.and_then(|r| r.remove_accept_encoding_header).map(|v| v.value),
                }
            }
            _ => Route { enabled: Some(false), remove_accept_encoding: None },
        }))
    }
}

/// What a route says; `enabled` is about responses.
struct Route {
    enabled: Option<bool>,
    remove_accept_encoding: Option<bool>,
}

/// What is asked of a body in one direction.
struct Terms {
    /// None: this direction is not configured.
    enabled: Option<RuntimeFlag>,
    min_length: u64,
    types: Vec<String>,
}

impl Terms {
    // `content_type` is what people have configured.
    #[allow(deprecated)]
    fn new(common: CommonDirectionConfig) -> Self {
        let types = match common.content_type.is_empty() {
            true => CONTENT_TYPES.iter().map(|t| (*t).to_owned()).collect(),
            false => common.content_type,
        };
        Self {
            enabled: Some(RuntimeFlag::on_unless_set(common.enabled.as_ref())),
            min_length: common.min_content_length.map_or(MIN_CONTENT_LENGTH, |v| v.value.into()),
            types,
        }
    }

    /// A body whose length was not told is long enough.
    fn is_long_enough(&self, headers: &HeaderMap) -> bool {
        let Some(length) = headers.get("content-length") else { return true };
        std::str::from_utf8(length).is_ok_and(|text| text.parse().is_ok_and(|length: u64| length >= self.min_length))
    }

    /// A body whose type was not told may be of any.
    fn allows_type(&self, headers: &HeaderMap) -> bool {
        headers.get("content-type").is_none_or(|value| self.names(media_type(value)))
    }

    fn names(&self, media_type: &[u8]) -> bool {
        self.types.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(media_type))
    }
}

fn media_type(content_type: &[u8]) -> &[u8] {
    content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii()
}

struct Settings {
    name: Arc<str>,
    scope: ScopeId,
    library: compression::Compressor,
    choose_first: bool,
    request: Terms,
    response: Terms,
    response_stats: u8,
    disable_on_etag: bool,
    weaken_etag: bool,
    remove_accept_encoding: bool,
    uncompressible: Vec<u16>,
    /// Responses tell what became of them.
    tells_status: bool,
}

impl Settings {
    // The fields of a time when there was one direction are still read, as Envoy reads them.
    #[allow(deprecated)]
    fn new(proto: pb::Compressor, context: &FactoryContext<'_>) -> Result<Self, ConfigError> {
        let library = proto.compressor_library.unwrap_or_default();
        let coding = compression::Compressor::new(&library.typed_config.unwrap_or_default());
        let coding = coding.map_err(|e| e.within("compressor_library"))?;
        let prefix = format!("{}.compressor.{}.{}", context.stat_prefix, library.name, coding.stats_name());
        let response_stats = if proto.response_direction_config.is_some() { RESPONSE_STATS } else { 0 };
        let scope = context.scope(&SCOPE, &prefix.into());
        for under in [REQUEST_STATS, response_stats] {
            context.stats.borrow_mut().declare(scope, &Direction::descriptors()[usize::from(under)]);
        }
        let old = CommonDirectionConfig {
            enabled: proto.runtime_enabled,
            min_content_length: proto.content_length,
            content_type: proto.content_type,
            ..CommonDirectionConfig::default()
        };
        let response = proto.response_direction_config.unwrap_or(pb::compressor::ResponseDirectionConfig {
            common_config: Some(old),
            disable_on_etag_header: proto.disable_on_etag_header,
            remove_accept_encoding_header: proto.remove_accept_encoding_header,
            ..Default::default()
        });
        let mut request = Terms::new(
            proto.request_direction_config.as_ref().and_then(|r| r.common_config.clone()).unwrap_or_default(),
        );
        if proto.request_direction_config.is_none() {
            request.enabled = None;
        }
        Ok(Self {
            name: context.name.into(),
            scope,
            library: coding,
            choose_first: proto.choose_first,
            request,
            response: Terms::new(response.common_config.unwrap_or_default()),
            response_stats,
            disable_on_etag: response.disable_on_etag_header,
            weaken_etag: response.weaken_etag_on_compress,
            remove_accept_encoding: response.remove_accept_encoding_header,
            uncompressible: response.uncompressible_response_codes.iter().map(|code| *code as u16).collect(),
            tells_status: response.status_header_enabled,
        })
    }
}

impl Settings {
    fn forbids_etag(&self, head: &ResponseHead) -> bool {
        self.disable_on_etag && head.headers.contains("etag")
    }
}

struct Config(Arc<Settings>);

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let stats = |prefix| Stats::under(&worker.stats, self.0.scope, prefix);
        let shared = Rc::new(Shared {
            settings: self.0.clone(),
            worker: worker.clone(),
            accept: Stats::new(&worker.stats, self.0.scope),
            request: stats(REQUEST_STATS),
            response: stats(self.0.response_stats),
        });
        Box::new(move || {
            let accepted = Rc::default();
            let decode = Decode { shared: shared.clone(), accepted: Rc::clone(&accepted), body: Body::default() };
            let encode = Encode { shared: shared.clone(), accepted, body: Body::default() };
            FilterHalves { decode: Some(Box::new(decode)), encode: Some(Box::new(encode)) }
        })
    }
}

struct Shared {
    settings: Arc<Settings>,
    worker: WorkerContext,
    accept: Stats<Accept>,
    request: Stats<Direction>,
    response: Stats<Direction>,
}

struct Decode {
    shared: Rc<Shared>,
    accepted: Rc<RefCell<Option<Accepted>>>,
    body: Body,
}

impl Decode {
    fn compresses(&self, head: &RequestHead, end: bool, stream: &StreamControl) -> bool {
        let terms = &self.shared.settings.request;
        if end || !terms.enabled.as_ref().is_some_and(|flag| flag.enabled(&*self.shared.worker.runtime)) {
            return false;
        }
        if !terms.is_long_enough(&head.headers) {
            self.shared.request.inc(CONTENT_LENGTH_TOO_SMALL);
            return false;
        }
        !stream.state().is_upgrade.get()
            && terms.allows_type(&head.headers)
            && !head.headers.contains("content-encoding")
    }
}

impl DecodeFilter for Decode {
    fn decode_headers(&mut self, head: &mut RequestHead, end: bool, stream: &StreamControl) -> Step {
        let settings = &self.shared.settings;
        choice::register(stream, settings);
        *self.accepted.borrow_mut() = head.headers.get("accept-encoding").map(Accepted::new);
        let route = stream.route_config::<Route>(&settings.name);
        let remove = route.and_then(|route| route.remove_accept_encoding).unwrap_or(settings.remove_accept_encoding);
        if remove && enabled(&self.shared, stream) {
            head.headers.remove("accept-encoding");
        }
        if self.compresses(head, end, stream) && self.body.begin(settings, &mut head.headers, &mut head.framing) {
            self.shared.request.inc(COMPRESSED);
        } else {
            self.shared.request.inc(NOT_COMPRESSED);
        }
        Step::CONTINUE
    }

    fn decode_data(&mut self, chunk: &mut Chunk<'_>, end: bool, _stream: &StreamControl) -> Step {
        self.body.push(chunk, end, &self.shared.request)
    }

    fn decode_trailers(&mut self, _trailers: &mut HeaderMap, _stream: &StreamControl) -> Step {
        self.body.trailers(&self.shared.request)
    }

    fn decode_tail(&mut self) -> Option<Bytes> {
        self.body.take_tail()
    }

    fn reset(&mut self) {
        self.body.reset();
        self.accepted.borrow_mut().take();
    }
}

/// Whether responses of this route are compressed.
fn enabled(shared: &Shared, stream: &StreamControl) -> bool {
    let route = stream.route_config::<Route>(&shared.settings.name).and_then(|route| route.enabled);
    let own = || shared.settings.response.enabled.as_ref().is_some_and(|f| f.enabled(&*shared.worker.runtime));
    route.unwrap_or_else(own)
}

struct Encode {
    shared: Rc<Shared>,
    accepted: Rc<RefCell<Option<Accepted>>>,
    body: Body,
}

impl Encode {
    /// Long enough and enabled, and nothing about the response forbids it.
    fn judge(&self, head: &ResponseHead, stream: &StreamControl) -> (bool, bool) {
        let (settings, stats) = (&self.shared.settings, &self.shared.response);
        if !enabled(&self.shared, stream) {
            return (false, false);
        }
        if !settings.response.is_long_enough(&head.headers) {
            stats.inc(CONTENT_LENGTH_TOO_SMALL);
            return (false, false);
        }
        let compressible = !stream.state().is_upgrade.get()
            && settings.response.allows_type(&head.headers)
            && !forbids_transformation(&head.headers)
            && self.etag_allows(head)
            && !head.headers.contains("content-encoding")
            && !settings.uncompressible.contains(&head.status);
        (true, compressible)
    }

    fn etag_allows(&self, head: &ResponseHead) -> bool {
        let allowed = !self.shared.settings.forbids_etag(head);
        if !allowed {
            self.shared.accept.inc(NOT_COMPRESSED_ETAG);
        }
        allowed
    }

    /// The client wants what this filter makes.
    fn is_wanted(&self, head: &ResponseHead, stream: &StreamControl) -> bool {
        let (settings, stats) = (&self.shared.settings, &self.shared.accept);
        let accepted = self.accepted.borrow();
        let Some(accepted) = &*accepted else {
            stats.inc(NO_ACCEPT_HEADER);
            return false;
        };
        let counted: (Counter<Accept>, bool) = match choice::decide(stream, accepted, head) {
            Decision::Named(encoding) if encoding == settings.library.encoding => (HEADER_COMPRESSOR_USED, true),
            Decision::Named(_) => (HEADER_COMPRESSOR_OVERSHADOWED, false),
            Decision::Any(encoding) => (HEADER_WILDCARD, encoding == settings.library.encoding),
            Decision::Identity => (HEADER_IDENTITY, false),
            Decision::NotValid => (HEADER_NOT_VALID, false),
        };
        stats.inc(counted.0);
        counted.1
    }
}

fn forbids_transformation(headers: &HeaderMap) -> bool {
    has_token(headers, "cache-control", |token| token.eq_ignore_ascii_case(b"no-transform"))
}

fn has_token(headers: &HeaderMap, name: &str, matches: impl Fn(&[u8]) -> bool) -> bool {
    headers.get_all(name).any(|value| value.split(|b| *b == b',').any(|token| matches(token.trim_ascii())))
}

impl EncodeFilter for Encode {
    fn encode_headers(&mut self, head: &mut ResponseHead, end: bool, stream: &StreamControl) -> Step {
        let shared = self.shared.clone();
        let settings = &shared.settings;
        let (worth_it, compressible) = self.judge(head, stream);
        let tells = settings.tells_status && !stream.state().is_upgrade.get() && enabled(&shared, stream);
        let status = tells.then(|| Status::of(settings, head));
        // As Envoy: who is told the reason is asked last what it accepts.
        let asks = worth_it && (compressible || !settings.tells_status);
        let encoding = settings.library.encoding;
        if !end
            && asks
            && self.is_wanted(head, stream)
            && compressible
            && self.body.begin(settings, &mut head.headers, &mut head.framing)
        {
            shared.response.inc(COMPRESSED);
            change_etag(&mut head.headers, settings.weaken_etag);
            status.inspect(|status| status.compressed(&mut head.headers, encoding));
        } else {
            shared.response.inc(NOT_COMPRESSED);
            status.inspect(|status| status.left_alone(&mut head.headers, encoding));
        }
        // Also where it was not: a cache in front of us must know that it could have been.
        if compressible && !has_token(&head.headers, "vary", |token| token == b"Accept-Encoding") {
            head.headers.append_to_value("vary", ", ", "Accept-Encoding");
        }
        Step::CONTINUE
    }

    fn encode_data(&mut self, chunk: &mut Chunk<'_>, end: bool, _stream: &StreamControl) -> Step {
        self.body.push(chunk, end, &self.shared.response)
    }

    fn encode_trailers(&mut self, _trailers: &mut HeaderMap, _stream: &StreamControl) -> Step {
        self.body.trailers(&self.shared.response)
    }

    fn encode_tail(&mut self) -> Option<Bytes> {
        self.body.take_tail()
    }

    fn reset(&mut self) {
        self.body.reset();
    }
}

/// A strong validator is one of bytes that the client does not get.
fn change_etag(headers: &mut HeaderMap, weaken: bool) {
    let Some(etag) = headers.get("etag").filter(|etag| !etag.starts_with(b"W/") && !etag.starts_with(b"w/")) else {
        return;
    };
    if weaken {
        let weak = [b"W/", etag].concat();
        headers.set("etag", weak);
    } else {
        headers.remove("etag");
    }
}

#[cfg(test)]
mod tests;
