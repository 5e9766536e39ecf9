//! A record costs no allocation once its buffer is warm, whatever usual commands it has.

// What fails ends the test.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use nuncio::access_log::file::{FlushPolicy, LogWriter};
use nuncio::format::{DEFAULT_FORMAT, Extensions, Formatter, HeaderMutations, JsonFormatter, MutationValues};
use nuncio_api::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use nuncio_api::pb::google::protobuf::{Struct, Value, value::Kind};
use nuncio_core::access_log::{LogContext, LogFiles, LogTarget};
use nuncio_core::http::{RequestHead, ResponseHead, Version};
use nuncio_core::metadata::Metadata;
use nuncio_core::net::{Address, ConnectionInfo};
use nuncio_core::stream_info::StreamInfo;
use nuncio_core::upstream::{ClusterInfo, Host, HostSpec};
use tokio::time::Instant;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands every call to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const COMMANDS: &str = "%START_TIME(%s.%6f)% %EMIT_TIME% %DURATION% %RESPONSE_FLAGS_LONG% %UPSTREAM_CLUSTER% %ROUTE_NAME% \
     %DOWNSTREAM_REMOTE_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT(8)% %UPSTREAM_LOCAL_ADDRESS% %PATH(NQ)% \
     %QUERY_PARAM(q)% %RESPONSE_CODE_DETAILS% %CLUSTER_METADATA(ns)% %REQ(user-agent):5% %RESPONSE_HEADERS_BYTES%\n";

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

struct Stream {
    request: RequestHead,
    response: ResponseHead,
    info: StreamInfo,
    connection: ConnectionInfo,
}

fn stream() -> Stream {
    let address = |text: &str| Address::Ip(text.parse().expect("an address"));
    let mut info = StreamInfo::new(UNIX_EPOCH + Duration::from_secs(1_795_991_711), Instant::now());
    info.protocol = Some(Version::Http11);
    info.response_code = Some(200);
    info.set_details("via_upstream");
    info.route_name = Some("route".into());
    info.upstream_host = Some(Arc::new(Host::new(HostSpec::new(address("127.0.0.1:8080")))));
    info.upstream_local_address = Some(address("127.0.0.1:40000"));
    let mut metadata = Metadata::default();
    metadata.merge("ns", Struct { fields: [("b".to_owned(), text("x")), ("a".to_owned(), text("y\"z"))].into() });
    let cluster =
        ClusterInfo { observability_name: "c".into(), metadata: Arc::new(metadata), ..ClusterInfo::default() };
    info.upstream_cluster = Some(Arc::new(cluster));
    let mut request = RequestHead::default();
    for (name, value) in
        [(":method", "GET"), (":path", "/p?q=%41&r"), (":authority", "a"), ("user-agent", "curl/8 \"x\"")]
    {
        request.headers.append(name, value);
    }
    let connection = ConnectionInfo::new(1, address("127.0.0.1:50000"), address("127.0.0.1:80"));
    Stream { request, response: ResponseHead::new(200), info, connection }
}

/// How often the second and later calls allocate. A duration with one digit more than all before it
/// may make a buffer grow, once: the best of three rounds counts.
fn allocations(mut call: impl FnMut()) -> usize {
    call();
    let mut round = || {
        let before = ALLOCATIONS.get();
        for _ in 0..100 {
            call();
        }
        ALLOCATIONS.get() - before
    };
    (0..3).map(|_| round()).min().unwrap()
}

#[test]
fn formats_and_mutations_allocate_nothing() {
    let stream = stream();
    let context = LogContext {
        request: Some(&stream.request),
        response: Some(&stream.response),
        connection: Some(&stream.connection),
        ..LogContext::new(&stream.info)
    };
    // Room for a record: what is asked is whether formatting itself allocates.
    let mut out = Vec::with_capacity(1 << 16);
    for format in [DEFAULT_FORMAT, COMMANDS] {
        let formatter = Formatter::parse(format, false).unwrap();
        let count = allocations(|| {
            out.clear();
            formatter.format(&context, &mut out);
        });
        assert_eq!(count, 0, "{format}");
    }
    let fields = COMMANDS.split(' ').enumerate().map(|(i, command)| (i.to_string(), text(command.trim())));
    let json = JsonFormatter::new(&Struct { fields: fields.collect() }, false, Extensions::default()).unwrap();
    // Escaping in JSON writes the escaped text behind the plain one before it moves it.
    let count = allocations(|| {
        out.clear();
        json.format(&context, &mut out);
    });
    assert_eq!(count, 0);

    let header = HeaderValue { key: "x-a".to_owned(), value: COMMANDS.trim().to_owned(), ..HeaderValue::default() };
    let option = HeaderValueOption { header: Some(header), ..HeaderValueOption::default() };
    let mutations = HeaderMutations::new(&[option], &["x-a".to_owned()]).unwrap();
    let (mut head, mut values) = (RequestHead::default(), MutationValues::default());
    let count = allocations(|| {
        head.clear();
        head.headers.append(":path", "/p?q=%41");
        mutations.apply_to_request(&mut head, &context, &mut values);
    });
    assert_eq!(count, 0);
}

#[test]
fn a_logged_record_allocates_nothing() {
    let dir = tempfile::TempDir::new().unwrap();
    let writer = LogWriter::new(FlushPolicy { interval: Duration::from_secs(3600), min_size: 1 << 20 });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .unwrap();
    runtime.block_on(async {
        let stream = stream();
        let context = LogContext { request: Some(&stream.request), ..LogContext::new(&stream.info) };
        let formatter = Formatter::parse(DEFAULT_FORMAT, false).unwrap();
        let target = LogTarget::Path(dir.path().join("a.log").to_str().unwrap().to_owned());
        let buffer: Rc<_> = writer.open(&target).unwrap().buffer();
        let mut log = || buffer.append(&mut |out| formatter.format(&context, out));
        // Until the buffer is as large as the hundred records need.
        for _ in 0..300 {
            log();
        }
        assert_eq!(allocations(&mut log), 0);
    });
}
