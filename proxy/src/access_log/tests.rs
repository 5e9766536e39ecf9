use std::cell::RefCell;
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::accesslog::v3::AccessLogFilter;
use nuncio_api::pb::envoy::config::core::v3::Node;
use nuncio_core::access_log::{LogFiles, LogType};
use nuncio_core::extension::NoVitals;
use nuncio_core::http::{RequestHead, ResponseHead};
use nuncio_core::runtime::NoRuntime;
use nuncio_core::runtime::{FractionalPercent, Runtime};
use nuncio_core::stats::{Store, WorkerStats};
use nuncio_core::stream_info::{ResponseFlag, StreamInfo};
use nuncio_core::time::WallClock;
use nuncio_core::upstream::client::{AsyncClient, AsyncFailure, AsyncRequest, AsyncResponse};
use tokio::time::Instant;

use super::*;

/// Keeps what is logged, and what was opened.
#[derive(Default, Clone)]
struct Kept {
    text: Arc<Mutex<Vec<u8>>>,
    opened: Rc<RefCell<Vec<LogTarget>>>,
}

struct KeptFile(Arc<Mutex<Vec<u8>>>);

impl LogFiles for Kept {
    fn open(&self, target: &LogTarget) -> Result<Arc<dyn LogFile>, ConfigError> {
        self.opened.borrow_mut().push(target.clone());
        Ok(Arc::new(KeptFile(self.text.clone())))
    }
}

impl LogFile for KeptFile {
    fn buffer(&self) -> Rc<dyn LogBuffer> {
        Rc::new(KeptFile(self.0.clone()))
    }
}

impl LogBuffer for KeptFile {
    fn append(&self, write: &mut dyn FnMut(&mut Vec<u8>)) {
        write(&mut self.0.lock().unwrap());
    }
}

struct Nobody;

impl AsyncClient for Nobody {
    fn call(&self, _: &str, _: AsyncRequest) -> LocalBoxFuture<'static, Result<AsyncResponse, AsyncFailure>> {
        Box::pin(async { Err(AsyncFailure::UnknownCluster) })
    }
}

fn worker() -> WorkerContext {
    WorkerContext {
        index: Some(0),
        rng: Rng::with_seed(1),
        clock: WallClock::System,
        stats: WorkerStats::new(|_| ()),
        client: Rc::new(Nobody),
        runtime: Rc::new(NoRuntime),
        vitals: Rc::new(NoVitals),
    }
}

fn checked(logs: &[pb::AccessLog], kept: &Kept) -> Result<Vec<Arc<dyn AccessLogConfig>>, Vec<ConfigError>> {
    let (warnings, node, stats, scopes) =
        (RefCell::default(), Arc::new(Node::default()), RefCell::new(Store::new()), RefCell::default());
    let context = FactoryContext {
        name: "",
        stat_prefix: "",
        has_cluster: &|_| true,
        warnings: &warnings,
        node: &node,
        stats: &stats,
        log_files: kept,
        formats: &crate::format::Formats,
        scopes: &scopes,
    };
    check("access_log", logs, &context)
}

fn log(config: Any) -> pb::AccessLog {
    pb::AccessLog { name: "f".to_owned(), filter: None, config_type: Some(ConfigType::TypedConfig(config)) }
}

#[allow(deprecated)]
fn text_log(text: &str) -> pb::AccessLog {
    log(nuncio_api::pack(&FileAccessLog {
        path: "/x".to_owned(),
        access_log_format: Some(AccessLogFormat::Format(text.to_owned())),
    }))
}

/// A request as the filters see it.
struct Case {
    path: &'static str,
    code: u16,
    flag: Option<ResponseFlag>,
    headers: &'static [(&'static str, &'static str)],
}

impl Case {
    fn with<T>(&self, look: impl FnOnce(&LogContext<'_>) -> T) -> T {
        let mut info = StreamInfo::new(UNIX_EPOCH, Instant::now());
        info.response_code = Some(self.code);
        info.timings.end = Some(info.start + Duration::from_millis(30));
        if let Some(flag) = self.flag {
            info.flags.insert(flag);
        }
        let mut request = RequestHead::default();
        request.headers.append(":path", self.path);
        self.headers.iter().for_each(|(name, value)| request.headers.append(name, value));
        let response = ResponseHead::new(self.code);
        look(&LogContext {
            request: Some(&request),
            response: Some(&response),
            log_type: LogType::DownstreamEnd,
            ..LogContext::new(&info)
        })
    }
}

/// The requests of the scenario that was run against Envoy 1.40.
const CASES: [Case; 7] = [
    Case { path: "/", code: 200, flag: None, headers: &[] },
    Case { path: "/500", code: 500, flag: None, headers: &[] },
    Case { path: "/500", code: 500, flag: None, headers: &[("x-log", "me")] },
    Case { path: "/404", code: 404, flag: None, headers: &[] },
    Case { path: "/dead", code: 503, flag: Some(ResponseFlag::UpstreamConnectionFailure), headers: &[] },
    Case { path: "/none", code: 404, flag: Some(ResponseFlag::NoRouteFound), headers: &[] },
    Case { path: "/", code: 200, flag: None, headers: &[("x-log", "me")] },
];

fn filter(yaml: &str) -> AccessLogFilter {
    let options = nuncio_api::LoadOptions::default();
    let source = nuncio_api::Source::text("filter", nuncio_api::Format::Yaml, yaml);
    match nuncio_api::load_message::<AccessLogFilter>(source, &options) {
        Ok(loaded) => loaded.message,
        Err(errors) => panic!("{yaml}: {errors:?}"),
    }
}

#[test]
fn filters_choose_the_records_that_envoys_choose() {
    for (yaml, expected) in [
        (
            "{status_code_filter: {comparison: {op: GE, value: {default_value: 400, runtime_key: k1}}}}",
            "/500 500\n/500 500\n/404 404\n/dead 503\n/none 404\n",
        ),
        ("{response_flag_filter: {flags: [NR, UF]}}", "/dead 503\n/none 404\n"),
        ("{response_flag_filter: {}}", "/dead 503\n/none 404\n"),
        ("{header_filter: {header: {name: x-log, string_match: {exact: me}}}}", "/500 500\n/ 200\n"),
        ("{not_health_check_filter: {}}", "/ 200\n/500 500\n/500 500\n/404 404\n/dead 503\n/none 404\n/ 200\n"),
        (
            "{and_filter: {filters: [{header_filter: {header: {name: x-log, present_match: true}}}, \
             {status_code_filter: {comparison: {op: EQ, value: {default_value: 500, runtime_key: k2}}}}]}}",
            "/500 500\n",
        ),
        (
            "{or_filter: {filters: [{response_flag_filter: {flags: [UF]}}, \
             {status_code_filter: {comparison: {op: EQ, value: {default_value: 404, runtime_key: k3}}}}]}}",
            "/404 404\n/dead 503\n/none 404\n",
        ),
        ("{runtime_filter: {runtime_key: k4, percent_sampled: {numerator: 0}}}", ""),
        ("{duration_filter: {comparison: {op: GE, value: {default_value: 100000, runtime_key: k5}}}}", ""),
    ] {
        let kept = Kept::default();
        let config = pb::AccessLog { filter: Some(filter(yaml)), ..text_log("%REQ(:PATH)% %RESPONSE_CODE%\n") };
        let log = checked(&[config], &kept).unwrap()[0].instantiate(&worker());
        for case in &CASES {
            case.with(|record| log.log(record));
        }
        assert_eq!(String::from_utf8_lossy(&kept.text.lock().unwrap()), expected, "{yaml}");
    }
}

/// Our reading of Envoy's documentation; not asked of a running one.
#[test]
fn the_other_filters_do_as_they_say() {
    let rng = Rng::with_seed(1);
    let accepts = |yaml: &str, case: &Case| {
        let filter = Filter::from_proto(&filter(yaml)).unwrap();
        case.with(|record| filter.accepts(record, &rng, &Set))
    };
    let ok = &CASES[0];
    assert!(accepts("{duration_filter: {comparison: {op: LE, value: {default_value: 30}}}}", ok));
    assert!(accepts("{duration_filter: {comparison: {op: LE, value: {default_value: 1, runtime_key: thirty}}}}", ok));
    assert!(accepts("{runtime_filter: {runtime_key: thirty, percent_sampled: {numerator: 0}}}", ok));
    assert!(!accepts("{runtime_filter: {runtime_key: other, percent_sampled: {numerator: 0}}}", ok));
    assert!(accepts("{duration_filter: {comparison: {op: NE, value: {default_value: 31}}}}", ok));
    assert!(accepts("{log_type_filter: {types: [DownstreamEnd]}}", ok));
    assert!(!accepts("{log_type_filter: {types: [DownstreamEnd], exclude: true}}", ok));
    assert!(accepts("{grpc_status_filter: {statuses: [UNIMPLEMENTED]}}", &CASES[3]));
    assert!(!accepts("{grpc_status_filter: {statuses: [UNIMPLEMENTED], exclude: true}}", &CASES[3]));
    assert!(!accepts("{grpc_status_filter: {statuses: [OK]}}", ok));
    assert!(!accepts("{traceable_filter: {}}", ok));
    assert!(accepts("{metadata_filter: {}}", ok));
    assert!(!accepts("{metadata_filter: {match_if_key_not_found: false}}", ok));
    assert!(accepts("{runtime_filter: {runtime_key: k, percent_sampled: {numerator: 100}}}", ok));
    // 0x00000031 is 49, 0x00000032 is 50.
    let half = "{runtime_filter: {runtime_key: k, percent_sampled: {numerator: 50}}}";
    let with_id = |id| Case { path: "/", code: 200, flag: None, headers: id };
    assert!(accepts(half, &with_id(&[("x-request-id", "00000031-b9ac-414b-b403-b7087445e726")])));
    assert!(!accepts(half, &with_id(&[("x-request-id", "00000032-b9ac-414b-b403-b7087445e726")])));
}

#[test]
fn metadata_filters_look_at_what_filters_said() {
    let yaml = "{metadata_filter: {matcher: {filter: ns, path: [{key: a}], value: {string_match: {exact: x}}}}}";
    let filter = Filter::from_proto(&filter(yaml)).unwrap();
    let accepts = |value: Option<&str>| {
        let mut info = StreamInfo::new(UNIX_EPOCH, Instant::now());
        if let Some(value) = value {
            use nuncio_api::pb::google::protobuf::{Struct, Value, value::Kind};
            let value = Value { kind: Some(Kind::StringValue(value.to_owned())) };
            info.dynamic_metadata.merge("ns", Struct { fields: [("a".to_owned(), value)].into_iter().collect() });
        }
        filter.accepts(&LogContext::new(&info), &Rng::with_seed(1), &Set)
    };
    assert_eq!([accepts(Some("x")), accepts(Some("y")), accepts(None)], [true, false, true]);
}

#[test]
fn each_kind_has_its_target_and_the_default_format() {
    let kept = Kept::default();
    let logs = [
        text_log(""),
        log(nuncio_api::pack(&StdoutAccessLog::default())),
        log(nuncio_api::pack(&StderrAccessLog::default())),
    ];
    let made = checked(&logs, &kept).unwrap();
    assert_eq!(*kept.opened.borrow(), [LogTarget::Path("/x".to_owned()), LogTarget::Stdout, LogTarget::Stderr]);
    for config in made {
        CASES[0].with(|record| config.instantiate(&worker()).log(record));
    }
    let text = String::from_utf8(kept.text.lock().unwrap().clone()).unwrap();
    let line = "[1970-01-01T00:00:00.000Z] \"- / -\" 200 - 0 0 30 - \"-\" \"-\" \"-\" \"-\" \"-\"\n";
    assert_eq!(text, line.repeat(3));
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let logs = [
        text_log("%FOO%"),
        pb::AccessLog { name: "f".to_owned(), ..Default::default() },
        log(Any { type_url: "type.googleapis.com/google.protobuf.Struct".to_owned(), value: vec![] }),
        log(Any {
            type_url: "type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig".to_owned(),
            value: vec![],
        }),
        pb::AccessLog {
            filter: Some(AccessLogFilter {
                filter_specifier: Some(pb::access_log_filter::FilterSpecifier::ExtensionFilter(pb::ExtensionFilter {
                    name: "x".to_owned(),
                    config_type: None,
                })),
            }),
            ..text_log("")
        },
    ];
    let errors = checked(&logs, &Kept::default()).err().unwrap();
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "access_log[0].typed_config.format: Not supported field in StreamInfo: FOO",
            "access_log[1].typed_config: Didn't find a registered implementation for 'f' with type URL: ''",
            "access_log[2].typed_config: Didn't find a registered implementation for 'f' with type URL: 'google.protobuf.Struct'",
            "access_log[3].typed_config: envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig is not implemented",
            "access_log[4].filter.extension_filter: 'x' is not implemented",
        ]
    );
}

/// A runtime in which `thirty` is 30, and always included.
struct Set;

impl Runtime for Set {
    fn fraction(&self, key: &str) -> Option<FractionalPercent> {
        (key == "thirty").then_some(FractionalPercent::ALL)
    }

    fn integer(&self, key: &str) -> Option<u64> {
        (key == "thirty").then_some(30)
    }

    fn boolean(&self, _key: &str) -> Option<bool> {
        None
    }
}
