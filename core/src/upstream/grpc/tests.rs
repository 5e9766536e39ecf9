use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use nuncio_api::pb::envoy::r#type::v3::HttpStatus;
use nuncio_api::pb::google::protobuf::{Duration as ProtoDuration, UInt32Value};

use super::*;
use crate::access_log::{LogFile, LogFiles, LogTarget, TextFormats};
use crate::extension::NoVitals;
use crate::http::ResponseHead;
use crate::random::Rng;
use crate::runtime::NoRuntime;
use crate::stats::{Store, WorkerStats};
use crate::stream_info::StreamInfo;
use crate::time::WallClock;
use crate::upstream::AsyncClient;
use tokio::time::Instant;

type Answered = Result<AsyncResponse, AsyncFailure>;

/// Upstream's words: what was asked, and the answers to come.
#[derive(Default)]
struct Scripted {
    asked: RefCell<Vec<AsyncRequest>>,
    answers: RefCell<VecDeque<Answered>>,
}

impl AsyncClient for Rc<Scripted> {
    fn call(&self, cluster: &str, request: AsyncRequest) -> LocalBoxFuture<'static, Answered> {
        assert_eq!(cluster, "authz");
        self.asked.borrow_mut().push(request);
        let answer = self.answers.borrow_mut().pop_front().unwrap_or(Err(AsyncFailure::NoHealthyHost));
        Box::pin(async { answer })
    }
}

struct Verbatim(String);

impl TextFormat for Verbatim {
    fn append(&self, _context: &LogContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0.as_bytes());
    }
}

struct World;

impl TextFormats for World {
    fn compile(&self, text: &str) -> Result<Arc<dyn TextFormat>, ConfigError> {
        Ok(Arc::new(Verbatim(text.into())))
    }
}

impl LogFiles for World {
    fn open(&self, _target: &LogTarget) -> Result<Arc<dyn LogFile>, ConfigError> {
        Err(ConfigError::new("", "no files here"))
    }
}

fn service(change: impl FnOnce(&mut pb::GrpcService, &mut pb::grpc_service::EnvoyGrpc)) -> GrpcService {
    let mut target = pb::grpc_service::EnvoyGrpc { cluster_name: "authz".into(), ..Default::default() };
    let mut proto = pb::GrpcService::default();
    change(&mut proto, &mut target);
    proto.target_specifier = Some(TargetSpecifier::EnvoyGrpc(target));
    let context = FactoryContext {
        name: "",
        stat_prefix: "",
        has_cluster: &|_| true,
        warnings: &RefCell::default(),
        node: &Arc::default(),
        stats: &RefCell::new(Store::new()),
        log_files: &World,
        formats: &World,
        scopes: &RefCell::default(),
    };
    GrpcService::from_proto(&proto, Some(Duration::from_millis(200)), &context).unwrap()
}

fn seconds(seconds: i64) -> Option<ProtoDuration> {
    Some(ProtoDuration { seconds, nanos: 0 })
}

/// The result of a call and what was asked for it.
async fn call(
    service: &GrpcService,
    answers: impl IntoIterator<Item = Answered>,
) -> (Result<HttpStatus, GrpcFailure>, Vec<AsyncRequest>) {
    let client = Rc::new(Scripted::default());
    client.answers.borrow_mut().extend(answers);
    let worker = WorkerContext {
        index: Some(0),
        rng: Rng::with_seed(1),
        clock: WallClock::System,
        stats: WorkerStats::new(|_| ()),
        client: Rc::new(client.clone()),
        runtime: Rc::new(NoRuntime),
        vitals: Rc::new(NoVitals),
    };
    let info = StreamInfo::new(WallClock::System.now(), Instant::now());
    let question = HttpStatus { code: 404 };
    let result = service.call("/p.S/M", &question, &LogContext::new(&info), &worker).await;
    (result, client.asked.take())
}

fn response(status: u16, body: &'static [u8], trailers: Option<&str>) -> Answered {
    let trailers = trailers.map(|status| [("grpc-status", status), ("grpc-message", "why")].into_iter().collect());
    Ok(AsyncResponse { head: ResponseHead::new(status), body: Bytes::from_static(body), trailers })
}

const ANSWER: &[u8] = &[0, 0, 0, 0, 3, 8, 0x91, 3];

// The fields are those that Envoy 1.40 sent (authz_allow_mutations, authz_per_route); the client adds its own.
#[tokio::test(flavor = "local", start_paused = true)]
async fn a_call_is_a_post_of_one_message_and_brings_one() {
    let plain = service(|_, _| {});
    let (result, asked) = call(&plain, [response(200, ANSWER, Some("0"))]).await;
    assert_eq!(result.unwrap().code, 401);
    let fields = [
        (":method", "POST"),
        (":path", "/p.S/M"),
        (":scheme", "http"),
        (":authority", "authz"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", "200m"),
    ];
    let told = |asked: &[AsyncRequest]| format!("{:?}", asked[0].head.headers);
    assert_eq!(told(&asked), format!("{:?}", fields.into_iter().collect::<HeaderMap>()));
    assert_eq!(
        (&*asked[0].body, asked[0].timeout),
        (&[0, 0, 0, 0, 3, 8, 0x94, 3][..], Some(Duration::from_millis(200)))
    );
    let all = service(|service, target| {
        let header =
            |key: &str, value: &str| pb::HeaderValue { key: key.into(), value: value.into(), ..Default::default() };
        service.initial_metadata = vec![header("X-Im", "fixed"), header("x-none", "")];
        service.timeout = seconds(0);
        target.authority = "auth.example".into();
    });
    let (_, asked) = call(&all, []).await;
    assert_eq!(asked[0].timeout, None);
    let told = told(&asked);
    assert!(told.contains("\":authority: auth.example\"") && told.contains("\"x-im: fixed\""), "{told}");
    assert!(!told.contains("x-none") && !told.contains("grpc-timeout"), "{told}");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn what_is_no_answer_has_a_status() {
    let plain = service(|_, _| {});
    let only_trailers = |status: u16, grpc: &str| {
        let mut head = ResponseHead::new(status);
        head.headers.append("grpc-status", grpc);
        Ok(AsyncResponse { head, ..AsyncResponse::default() })
    };
    let cases: [(i64, Answered); 12] = [
        (14, Err(AsyncFailure::UnknownCluster)),
        (14, Err(AsyncFailure::Overflow)),
        (4, Err(AsyncFailure::Timeout)),
        (8, Err(AsyncFailure::ResponseTooLarge)),
        (7, response(200, b"", Some("7"))),
        (7, only_trailers(200, "7")),
        (5, only_trailers(503, "5")),
        (14, response(503, b"busy", None)),
        (2, response(200, ANSWER, None)),
        (13, response(200, b"", Some("0"))),
        (13, response(200, &ANSWER[..7], Some("0"))),
        (13, response(200, b"\x01\0\0\0\0", Some("0"))),
    ];
    for (status, answer) in cases {
        let (result, _) = call(&plain, [answer.clone()]).await;
        assert_eq!(result.unwrap_err().status, status, "{answer:?}");
    }
    let (result, _) = call(&plain, [response(200, b"\0\0\0\0\x02\x08\xff", Some("0"))]).await;
    assert_eq!(result.unwrap_err().status, 13);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_retry_policy_asks_again_within_the_timeout() {
    let patient = service(|service, _| {
        service.timeout = seconds(1);
        service.retry_policy = Some(pb::RetryPolicy {
            num_retries: Some(UInt32Value { value: 2 }),
            retry_on: "connect-failure, unavailable".into(),
            ..Default::default()
        });
    });
    let refused = || Err(AsyncFailure::Connect("refused".into()));
    let good = || response(200, ANSWER, Some("0"));
    let (result, asked) = call(&patient, [refused(), response(200, b"", Some("14")), good()]).await;
    assert_eq!((result.unwrap().code, asked.len()), (401, 3));
    assert!(asked[2].timeout < asked[0].timeout);
    let (result, asked) = call(&patient, [refused(), refused(), refused(), good()]).await;
    assert_eq!((result.unwrap_err().status, asked.len()), (14, 3));
    let (_, asked) = call(&patient, [response(200, b"", Some("7"))]).await;
    assert_eq!(asked.len(), 1);
    let (_, asked) = call(&patient, [Err(AsyncFailure::Overflow)]).await;
    assert_eq!(asked.len(), 1);
}

#[test]
fn timeouts_have_at_most_eight_digits() {
    let texts = [1, 1000, 99_999_999, 100_000_000, 1 << 45].map(|ms| timeout_text(Duration::from_millis(ms)));
    assert_eq!(texts, ["1m", "1000m", "99999999m", "100000S", "9773436H"].map(str::to_owned));
}
