//! `decompressor`: takes the last content coding off requests and responses
//! (`envoy.extensions.filters.http.decompressor.v3.Decompressor`), and asks upstreams for that coding.
//!
//! A body that is damaged, cut, or larger than its compressed form warrants is not passed on in part:
//! a request is answered with 400, a response is reset (502 if its head is not out yet). Stats
//! `http.<prefix>.decompressor.<library name>.<gzip|brotli|zstd>.{request,response}.…`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use nuncio_api::pb::envoy::extensions::filters::http::decompressor::v3::{
    self as pb, decompressor::CommonDirectionConfig,
};
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    Chunk, DecodeFilter, EncodeFilter, FilterHalves, Framing, HeaderMap, HttpFilter, HttpFilterFactory, LocalReply,
    MakeFilter, RequestHead, ResponseHead, Step, StreamControl,
};
use nuncio_core::runtime::RuntimeFlag;
use nuncio_core::stats::{List, Scope, ScopeId, Stats};

use super::declared;
use crate::http::compression::{self, Inflate};

supports!(CONFIG = "envoy.extensions.filters.http.decompressor.v3.Decompressor" {
    decompressor_library, request_direction_config, response_direction_config
});
supports!(COMMON = "envoy.extensions.filters.http.decompressor.v3.Decompressor.CommonDirectionConfig" {
    enabled, ignore_no_transform_header
});
supports!(REQUEST = "envoy.extensions.filters.http.decompressor.v3.Decompressor.RequestDirectionConfig" {
    common_config, advertise_accept_encoding
});
supports!(RESPONSE = "envoy.extensions.filters.http.decompressor.v3.Decompressor.ResponseDirectionConfig" {
    common_config
});
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG, &COMMON, &REQUEST, &RESPONSE];

nuncio_core::stats! {
    /// What became of bodies.
    pub Bodies at ["request.", "response."] {
        counter DECOMPRESSED;
        counter NOT_DECOMPRESSED;
        counter TOTAL_COMPRESSED_BYTES;
        counter TOTAL_UNCOMPRESSED_BYTES;
    }
}

static SCOPE: Scope = Scope { root: "http.", lists: &[Bodies::descriptors] };

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.decompressor"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let proto: pb::Decompressor = unpack(config)?;
        let library = proto.decompressor_library.unwrap_or_default();
        let coding = compression::Decompressor::new(&library.typed_config.unwrap_or_default());
        let coding = coding.map_err(|e| e.within("decompressor_library"))?;
        let prefix = format!("{}.decompressor.{}.{}", context.stat_prefix, library.name, coding.stats_name());
        let request = proto.request_direction_config.unwrap_or_default();
        let advertise = request.advertise_accept_encoding.is_none_or(|v| v.value);
        let response = proto.response_direction_config.and_then(|r| r.common_config);
        Ok(Arc::new(Config(Arc::new(Settings {
            scope: declared::<Bodies>(context, &SCOPE, &prefix),
            library: coding,
            advertise,
            request: Terms::new(request.common_config.as_ref()),
            response: Terms::new(response.as_ref()),
        }))))
    }
}

/// What is asked of a message in one direction.
struct Terms {
    enabled: RuntimeFlag,
    ignore_no_transform: bool,
}

impl Terms {
    fn new(proto: Option<&CommonDirectionConfig>) -> Self {
        Self {
            enabled: RuntimeFlag::on_unless_set(proto.and_then(|p| p.enabled.as_ref())),
            ignore_no_transform: proto.is_some_and(|p| p.ignore_no_transform_header),
        }
    }
}

struct Settings {
    scope: ScopeId,
    library: compression::Decompressor,
    advertise: bool,
    request: Terms,
    response: Terms,
}

struct Config(Arc<Settings>);

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let stats = |prefix| Rc::new(Stats::<Bodies>::under(&worker.stats, self.0.scope, prefix));
        let (request, response) = (stats(0), stats(1));
        let (settings, worker) = (self.0.clone(), worker.clone());
        Box::new(move || {
            let half = |stats: &Rc<Stats<Bodies>>| Half {
                settings: settings.clone(),
                worker: worker.clone(),
                stats: stats.clone(),
                body: RefCell::default(),
                tail: None,
            };
            FilterHalves {
                decode: Some(Box::new(Decode(half(&request)))),
                encode: Some(Box::new(Encode(half(&response)))),
            }
        })
    }
}

struct Half {
    settings: Arc<Settings>,
    worker: WorkerContext,
    stats: Rc<Stats<Bodies>>,
    body: RefCell<Option<Inflate>>,
    tail: Option<Bytes>,
}

impl Half {
    fn begin(&self, terms: &Terms, headers: &mut HeaderMap, framing: &mut Framing) {
        let forbidden = !terms.ignore_no_transform
            && headers
                .get_all("cache-control")
                .any(|value| value.split(|b| *b == b',').any(|t| t.trim_ascii().eq_ignore_ascii_case(b"no-transform")));
        let rest = self.rest_of_codings(headers);
        let inflate = match rest {
            Some(rest) if !forbidden && terms.enabled.enabled(&*self.worker.runtime) => {
                self.settings.library.start().ok().map(|inflate| (inflate, rest))
            }
            _ => None,
        };
        let Some((inflate, rest)) = inflate else { return self.stats.inc(NOT_DECOMPRESSED) };
        self.stats.inc(DECOMPRESSED);
        if rest.is_empty() {
            headers.remove("content-encoding");
        } else {
            headers.set("content-encoding", rest);
        }
        headers.remove("content-length");
        if matches!(framing, Framing::Length(_)) {
            *framing = Framing::Streamed;
        }
        self.body.replace(Some(inflate));
    }

    /// The codings below the last one, if that is ours.
    fn rest_of_codings(&self, headers: &HeaderMap) -> Option<Vec<u8>> {
        let codings = headers.get_joined("content-encoding", ",")?;
        let (rest, last) = match codings.iter().rposition(|b| *b == b',') {
            Some(at) => (&codings[..at], &codings[at + 1..]),
            None => (&codings[..0], &codings[..]),
        };
        let ours = last.trim_ascii().eq_ignore_ascii_case(self.settings.library.encoding.as_bytes());
        ours.then(|| rest.trim_ascii().to_vec())
    }

    fn push(&self, chunk: &mut Chunk<'_>, end: bool, status: u16) -> Step {
        let mut body = self.body.borrow_mut();
        let Some(inflate) = &mut *body else { return Step::CONTINUE };
        self.stats.add(TOTAL_COMPRESSED_BYTES, chunk.len() as u64);
        let plain = inflate.push(chunk.as_slice()).and_then(|mut plain| {
            if end {
                plain.extend(inflate.end()?);
            }
            Ok(plain)
        });
        match plain {
            Ok(plain) => {
                self.stats.add(TOTAL_UNCOMPRESSED_BYTES, plain.len() as u64);
                *chunk = Chunk::Own(plain.into());
                Step::CONTINUE
            }
            Err(_) => {
                *body = None;
                let text = "the content coding of the body is damaged, or its content is too large";
                Step::respond(LocalReply::new(status, "decompression_failed").body(text))
            }
        }
    }

    fn trailers(&mut self, status: u16) -> Step {
        let mut chunk = Chunk::Lent(&[]);
        let step = self.push(&mut chunk, true, status);
        self.tail = Some(chunk.into_bytes());
        step
    }

    fn reset(&mut self) {
        self.body.take();
        self.tail = None;
    }
}

struct Decode(Half);

impl DecodeFilter for Decode {
    fn decode_headers(&mut self, head: &mut RequestHead, end: bool, _stream: &StreamControl) -> Step {
        let settings = &self.0.settings;
        if settings.advertise && settings.response.enabled.enabled(&*self.0.worker.runtime) {
            advertise(&mut head.headers, settings.library.encoding);
        }
        if !end {
            self.0.begin(&settings.request, &mut head.headers, &mut head.framing);
        }
        Step::CONTINUE
    }

    fn decode_data(&mut self, chunk: &mut Chunk<'_>, end: bool, _stream: &StreamControl) -> Step {
        self.0.push(chunk, end, 400)
    }

    fn decode_trailers(&mut self, _trailers: &mut HeaderMap, _stream: &StreamControl) -> Step {
        self.0.trailers(400)
    }

    fn decode_tail(&mut self) -> Option<Bytes> {
        self.0.tail.take()
    }

    fn reset(&mut self) {
        self.0.reset();
    }
}

/// The upstream may use this coding, whatever the client said of it.
fn advertise(headers: &mut HeaderMap, encoding: &str) {
    let named = |token: &&[u8]| {
        let name = token.split(|b| *b == b';').next().unwrap_or_default();
        !name.trim_ascii().eq_ignore_ascii_case(encoding.as_bytes())
    };
    let Some(before) = headers.get_joined("accept-encoding", ",") else {
        return headers.append("accept-encoding", encoding);
    };
    let others: Vec<&[u8]> = before.split(|b| *b == b',').map(<[u8]>::trim_ascii).filter(named).collect();
    let mut value = others.join(&b","[..]);
    if !value.is_empty() {
        value.push(b',');
    }
    value.extend_from_slice(encoding.as_bytes());
    headers.set("accept-encoding", value);
}

struct Encode(Half);

impl EncodeFilter for Encode {
    fn encode_headers(&mut self, head: &mut ResponseHead, end: bool, _stream: &StreamControl) -> Step {
        if !end {
            self.0.begin(&self.0.settings.response, &mut head.headers, &mut head.framing);
        }
        Step::CONTINUE
    }

    fn encode_data(&mut self, chunk: &mut Chunk<'_>, end: bool, _stream: &StreamControl) -> Step {
        self.0.push(chunk, end, 502)
    }

    fn encode_trailers(&mut self, _trailers: &mut HeaderMap, _stream: &StreamControl) -> Step {
        self.0.trailers(502)
    }

    fn encode_tail(&mut self) -> Option<Bytes> {
        self.0.tail.take()
    }

    fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Answer, Bench, FILTERS};
    use std::io::Write;

    fn bench() -> Bench {
        let library = "type.googleapis.com/envoy.extensions.compression.gzip.decompressor.v3.Gzip";
        let filter = format!(
            r#"{{name: d, typed_config: {{"@type": {FILTERS}.decompressor.v3.Decompressor, decompressor_library: {{name: text, typed_config: {{"@type": {library}}}}}}}}}"#
        );
        Bench::new(&filter, "{match: {prefix: /}, route: {cluster: c}}")
    }

    fn gzip(body: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    }

    async fn answer(bench: &Bench, fields: &str, body: &[u8]) -> Answer {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}content-length: {}\r\n\r\n", body.len());
        bench.ask("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", [head.as_bytes(), body].concat()).await
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_compressed_response_is_asked_for_and_read() {
        let bench = bench();
        let coded = gzip(b"hello, hello, hello");
        let got = answer(&bench, "content-encoding: gzip\r\n", &coded).await;
        assert_eq!(got.upstream_field("accept-encoding"), Some("gzip"));
        assert_eq!((got.field("content-encoding"), got.field("transfer-encoding")), (None, Some("chunked")));
        assert!(got.body().contains("hello, hello, hello"), "{got:?}");
        // RFC 9110 §8.4: codings are listed in the order in which they were applied.
        let got = answer(&bench, "content-encoding: br, GZIP\r\n", &coded).await;
        assert_eq!(got.field("content-encoding"), Some("br"));
        for untouched in ["content-encoding: gzip, br\r\n", "content-encoding: gzip\r\ncache-control: no-transform\r\n"]
        {
            let got = answer(&bench, untouched, &coded).await;
            assert_eq!(got.body_bytes(), coded);
        }
        let names = ["response.decompressed", "response.not_decompressed", "response.total_compressed_bytes"];
        let counted = names.map(|n| bench.stat(&format!("http.in.decompressor.text.gzip.{n}")));
        assert_eq!(counted, [2, 2, 2 * coded.len() as u64]);
    }

    // Envoy passes on what it could read as a whole 200 (docs/differences.md).
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_damaged_cut_or_exploding_response_never_looks_whole() {
        let bench = bench();
        let mut damaged = gzip(&b"hello ".repeat(100));
        let at = damaged.len() - 6;
        damaged[at] ^= 1;
        let cut = gzip(b"hello, hello, hello");
        let bomb = gzip(&vec![0; 8 << 20]);
        for body in [&damaged[..], &cut[..cut.len() - 9], b"no gzip at all", &bomb] {
            let got = answer(&bench, "content-encoding: gzip\r\n", body).await;
            assert!(!got.client_bytes.ends_with(b"0\r\n\r\n"), "{} bytes", body.len());
            assert!(got.client_bytes.len() < 2 << 20);
        }
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_request_body_is_read_or_refused() {
        let bench = bench();
        let ask = |body: Vec<u8>| {
            let head = format!(
                "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            [head.into_bytes(), body].concat()
        };
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let got = bench.ask(ask(gzip(b"to the upstream")), ok).await;
        assert_eq!((got.status(), got.upstream_field("content-encoding")), ("200", None));
        assert_eq!(got.upstream_body(), b"f\r\nto the upstream\r\n0\r\n\r\n");
    }
}
