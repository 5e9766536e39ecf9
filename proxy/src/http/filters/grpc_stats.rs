//! `grpc_stats`: counts gRPC calls and their messages under the cluster that they go to
//! (`envoy.extensions.filters.http.grpc_stats.v3.FilterConfig`).
//!
//! Stats `cluster.<name>.grpc.[<service>.<method>.]{total,success,failure,<status>,request_message_count,
//! response_message_count}`. With `emit_filter_state` logs can show `%FILTER_STATE(envoy.filters.http.grpc_stats)%`.

pub(super) mod methods;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::filters::http::grpc_stats::v3::{
    self as pb, filter_config::PerMethodStatSpecifier,
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
use nuncio_core::stream_info::FilterStateObject;

use methods::{Method, Methods, service_and_method};

supports!(CONFIG = "envoy.extensions.filters.http.grpc_stats.v3.FilterConfig" {
    emit_filter_state, replace_dots_in_grpc_service_name, individual_method_stats_allowlist, stats_for_all_methods
} noop {
    enable_upstream_stats: "the histogram upstream_rq_time of methods is not kept"
});
supports!(LIST = "envoy.config.core.v3.GrpcMethodList" { services });
supports!(SERVICE = "envoy.config.core.v3.GrpcMethodList.Service" { name, method_names });
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG, &LIST, &SERVICE];

const NAME: &str = "envoy.filters.http.grpc_stats";

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn create(&self, config: &ProtoAny, _context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let proto: pb::FilterConfig = unpack(config)?;
        let names = match proto.per_method_stat_specifier {
            Some(PerMethodStatSpecifier::IndividualMethodStatsAllowlist(list)) => {
                let of = |service: &str, methods: &[String]| {
                    methods.iter().map(|method| (service.to_owned(), method.clone())).collect::<Vec<_>>()
                };
                Names::Listed(list.services.iter().flat_map(|s| of(&s.name, &s.method_names)).collect())
            }
            Some(PerMethodStatSpecifier::StatsForAllMethods(all)) if all.value => Names::All,
            _ => Names::Listed(HashSet::new()),
        };
        let replace_dots = proto.replace_dots_in_grpc_service_name;
        Ok(Arc::new(Config(Arc::new(Settings { names, replace_dots, emit: proto.emit_filter_state }))))
    }
}

/// Which methods are counted by name; others are counted together, or not at all if all are to be named.
enum Names {
    All,
    Listed(HashSet<(String, String)>),
}

struct Settings {
    names: Names,
    replace_dots: bool,
    emit: bool,
}

impl Settings {
    /// The name under which a path is counted: none for all that have no name of their own.
    fn name(&self, path: &[u8]) -> Option<Option<String>> {
        let named = |(service, method): (&str, &str)| {
            let service = if self.replace_dots { service.replace('.', "_") } else { service.to_owned() };
            Some(format!("{service}.{method}"))
        };
        match (&self.names, service_and_method(path)) {
            (Names::All, found) => found.map(named),
            (Names::Listed(list), Some((service, method)))
                if list.contains(&(service.to_owned(), method.to_owned())) =>
            {
                Some(named((service, method)))
            }
            (Names::Listed(_), _) => Some(None),
        }
    }
}

struct Config(Arc<Settings>);

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let methods = Methods::new(worker, "grpc");
        let settings = self.0.clone();
        Box::new(move || {
            let call = Rc::<Call>::default();
            let decode = Decode {
                settings: settings.clone(),
                methods: methods.clone(),
                call: call.clone(),
                frames: Frames::default(),
                is_grpc: false,
            };
            let encode = Encode { settings: settings.clone(), call, frames: Frames::default(), is_grpc: false };
            FilterHalves { decode: Some(Box::new(decode)), encode: Some(Box::new(encode)) }
        })
    }
}

/// What both directions of a call know.
#[derive(Default)]
struct Call {
    method: RefCell<Option<Rc<Method>>>,
    counts: RefCell<Option<Arc<Counts>>>,
}

impl Call {
    /// The numbers that logs see, which begin with the first message.
    fn counts(&self, settings: &Settings, stream: &StreamControl) -> Option<Arc<Counts>> {
        if !settings.emit {
            return None;
        }
        let mut counts = self.counts.borrow_mut();
        Some(
            counts
                .get_or_insert_with(|| {
                    // Of this thread only, like all that a stream has.
                    #[allow(clippy::arc_with_non_send_sync)]
                    let new = Arc::new(Counts::default());
                    stream.info_mut().filter_state.set(NAME, new.clone());
                    new
                })
                .clone(),
        )
    }

    fn charge(&self, headers: &HeaderMap) {
        if let (Some(method), Some(status)) = (&*self.method.borrow(), headers.get("grpc-status")) {
            method.charge(status);
        }
    }
}

#[derive(Default)]
struct Counts {
    requests: Cell<u64>,
    responses: Cell<u64>,
}

impl FilterStateObject for Counts {
    fn text(&self) -> Option<String> {
        Some(format!("{},{}", self.requests.get(), self.responses.get()))
    }

    /// Numbers of 64 bits are strings in the JSON of protobuf, and zeros are left out.
    fn json(&self) -> Option<String> {
        let fields = [("request_message_count", &self.requests), ("response_message_count", &self.responses)];
        let shown = fields.iter().filter(|(_, count)| count.get() > 0);
        let shown: Vec<_> = shown.map(|(name, count)| format!("\"{name}\":\"{}\"", count.get())).collect();
        Some(format!("{{{}}}", shown.join(",")))
    }
}

/// Counts gRPC frames that pass, in whatever pieces: a byte of flags, four of length, the message.
#[derive(Default)]
struct Frames {
    /// Bytes of the prefix that passed, and the length they said so far.
    prefix: u8,
    length: u32,
    left: u32,
}

impl Frames {
    fn pass(&mut self, mut bytes: &[u8]) -> u64 {
        let mut begun = 0;
        while let Some(first) = bytes.first() {
            if self.left > 0 {
                let skip = bytes.len().min(self.left as usize);
                self.left -= skip as u32;
                bytes = &bytes[skip..];
                continue;
            }
            match self.prefix {
                0 => begun += 1,
                _ => self.length = self.length << 8 | u32::from(*first),
            }
            self.prefix += 1;
            if self.prefix == 5 {
                self.left = self.length;
                (self.prefix, self.length) = (0, 0);
            }
            bytes = &bytes[1..];
        }
        begun
    }
}

struct Decode {
    settings: Arc<Settings>,
    methods: Methods,
    call: Rc<Call>,
    frames: Frames,
    is_grpc: bool,
}

impl DecodeFilter for Decode {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        self.is_grpc = head.is_grpc();
        if self.is_grpc
            && let Some(name) = self.settings.name(head.path().unwrap_or_default())
        {
            *self.call.method.borrow_mut() = self.methods.of(stream, name);
        }
        Step::CONTINUE
    }

    fn decode_data(&mut self, chunk: &mut Chunk<'_>, _end: bool, stream: &StreamControl) -> Step {
        let begun = if self.is_grpc { self.frames.pass(chunk.as_slice()) } else { 0 };
        if begun > 0 {
            if let Some(counts) = self.call.counts(&self.settings, stream) {
                counts.requests.set(counts.requests.get() + begun);
            }
            if let Some(method) = &*self.call.method.borrow() {
                method.requests(begun);
            }
        }
        Step::CONTINUE
    }

    fn reset(&mut self) {
        self.is_grpc = false;
        self.frames = Frames::default();
        self.call.method.take();
        self.call.counts.take();
    }
}

struct Encode {
    settings: Arc<Settings>,
    call: Rc<Call>,
    frames: Frames,
    is_grpc: bool,
}

impl EncodeFilter for Encode {
    fn encode_headers(&mut self, head: &mut ResponseHead, end: bool, _stream: &StreamControl) -> Step {
        self.is_grpc = if end { head.headers.contains("grpc-status") } else { head.status == 200 && head.is_grpc() };
        self.call.charge(&head.headers);
        Step::CONTINUE
    }

    fn encode_data(&mut self, chunk: &mut Chunk<'_>, _end: bool, stream: &StreamControl) -> Step {
        let begun = if self.is_grpc { self.frames.pass(chunk.as_slice()) } else { 0 };
        if begun > 0 {
            if let Some(counts) = self.call.counts(&self.settings, stream) {
                counts.responses.set(counts.responses.get() + begun);
            }
            if let Some(method) = &*self.call.method.borrow() {
                method.responses(begun);
            }
        }
        Step::CONTINUE
    }

    fn encode_trailers(&mut self, trailers: &mut HeaderMap, _stream: &StreamControl) -> Step {
        self.call.charge(trailers);
        Step::CONTINUE
    }

    fn reset(&mut self) {
        self.is_grpc = false;
        self.frames = Frames::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_in_whatever_pieces_they_come() {
        let bytes = b"\0\0\0\0\x03abc\0\0\0\0\0\x01\0\0\0\x01z";
        for size in 1..=bytes.len() {
            let mut frames = Frames::default();
            let counted: u64 = bytes.chunks(size).map(|piece| frames.pass(piece)).sum();
            assert_eq!(counted, 3, "pieces of {size}");
        }
    }

    #[test]
    fn a_name_is_what_is_configured_to_have_one() {
        let all = Settings { names: Names::All, replace_dots: true, emit: false };
        assert_eq!(all.name(b"/p.Svc/Ok"), Some(Some("p_Svc.Ok".into())));
        assert_eq!(all.name(b"/odd"), None);
        let listed = Names::Listed([("p.Svc".to_owned(), "Ok".to_owned())].into());
        let some = Settings { names: listed, replace_dots: false, emit: false };
        assert_eq!(some.name(b"/p.Svc/Ok?x"), Some(Some("p.Svc.Ok".into())));
        assert_eq!(some.name(b"/p.Svc/No"), Some(None));
    }
}
