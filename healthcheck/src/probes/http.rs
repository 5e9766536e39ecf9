//! `http_health_check`: a request, and which answers are good.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::core::v3::{RequestMethod, health_check::HttpHealthCheck};
use nuncio_api::pb::envoy::r#type::v3::{CodecClientType, Int64Range};
use nuncio_core::error::ConfigError;
use nuncio_core::http::{Framing, HeaderMap, RequestHead, Version};
use nuncio_core::matcher::StringMatcher;
use nuncio_core::upstream::{Host, HttpAnswer};

use super::kept::KeptConn;
use crate::judge::FailureType;
use crate::payload;
use crate::probe::{Answer, HeaderMutation, Probe, ProbeContext, ReadMutation, Verdict, authority, target};

/// So much of a body is looked at unless `response_buffer_size` says otherwise.
const RESPONSE_BUFFER: usize = 1024;
/// And no more than this, whatever it says: a host must not fill the proxy.
const MOST: usize = 16 * 1024 * 1024;

/// What is asked, and what is expected.
pub struct HttpCheck {
    host: String,
    path: String,
    method: &'static str,
    send: Bytes,
    receive: Vec<Vec<u8>>,
    keep: usize,
    expected: Statuses,
    retriable: Statuses,
    service_name: Option<StringMatcher>,
    headers: Option<HeaderMutation>,
    version: Version,
}

/// Half-open ranges.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Statuses(Vec<(u16, u16)>);

impl Statuses {
    fn from_proto(ranges: &[Int64Range], field: &str, what: &str) -> Result<Self, ConfigError> {
        let read = |(at, range): (usize, &Int64Range)| {
            let (start, end) = (range.start, range.end);
            let reason = match () {
                () if start >= end => {
                    format!("expecting start < end, but found start={start} and end={end}")
                }
                () if start < 100 => format!("expecting start >= 100, but found start={start}"),
                () if end > 600 => format!("expecting end <= 600, but found end={end}"),
                () => return Ok((start as u16, end as u16)),
            };
            let reason = format!("Invalid http {what} status range: {reason}");
            Err(ConfigError::new(format!("{field}[{at}]"), reason))
        };
        Ok(Self(ranges.iter().enumerate().map(read).collect::<Result<_, _>>()?))
    }

    fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|(start, end)| (*start..*end).contains(&status))
    }
}

// === impl HttpCheck ===

impl HttpCheck {
    pub fn from_proto(message: &HttpHealthCheck, mutation: ReadMutation<'_>) -> Result<Self, ConfigError> {
        let method = match message.method() {
            RequestMethod::MethodUnspecified => "GET",
            other => other.as_str_name(),
        };
        let send = match &message.send {
            Some(send) => payload::read(send).map_err(|e| e.within("send"))?,
            None => Vec::new(),
        };
        if !send.is_empty() && !matches!(method, "POST" | "PUT" | "PATCH" | "OPTIONS") {
            let reason = format!(
                "HTTP health check cannot specify a request payload with method '{method}'. Only methods that support \
                 a request body (POST, PUT, PATCH, OPTIONS) can be used with payload."
            );
            return Err(ConfigError::new("send", reason));
        }
        let mut expected = Statuses::from_proto(&message.expected_statuses, "expected_statuses", "expected")?;
        if expected.0.is_empty() {
            expected.0.push((200, 201));
        }
        let size = message.response_buffer_size.as_ref().map_or(RESPONSE_BUFFER as u64, |size| size.value);
        let matcher = message.service_name_matcher.as_ref().map(StringMatcher::from_proto).transpose();
        let changed = !message.request_headers_to_add.is_empty() || !message.request_headers_to_remove.is_empty();
        let headers = changed.then(|| mutation(&message.request_headers_to_add, &message.request_headers_to_remove));
        Ok(Self {
            host: message.host.clone(),
            path: message.path.clone(),
            method,
            send: send.into(),
            receive: payload::read_list(&message.receive, "receive")?,
            // 0 is no limit.
            keep: if size == 0 { MOST } else { usize::try_from(size).unwrap_or(MOST).min(MOST) },
            expected,
            retriable: Statuses::from_proto(&message.retriable_statuses, "retriable_statuses", "retriable")?,
            service_name: matcher.map_err(|e| e.within("service_name_matcher"))?,
            headers: headers.transpose().map_err(|e| ConfigError::new(renamed(&e.path), e.reason))?,
            version: match message.codec_client_type() {
                CodecClientType::Http2 => Version::Http2,
                _ => Version::Http11,
            },
        })
    }

    fn request(&self, host: &Arc<Host>, cluster: &str) -> RequestHead {
        let mut headers = HeaderMap::new();
        headers.append(":method", self.method);
        headers.append(":scheme", "http");
        headers.append(":path", &self.path);
        headers.append(":authority", authority(host, &self.host, cluster));
        headers.append("user-agent", "Envoy/HC");
        let framing = if self.send.is_empty() { Framing::None } else { Framing::Length(self.send.len() as u64) };
        let mut head = RequestHead { headers, version: self.version, framing, ..RequestHead::default() };
        if let Some(mutation) = &self.headers {
            mutation(&mut head, host);
        }
        head
    }

    /// `verifies`: the service's name counts.
    fn judge(&self, answer: &HttpAnswer, verifies: bool) -> Answer {
        let status = answer.head.status;
        let with = |answer: Answer| Answer { status: Some(status), ..answer };
        if !payload::matches(&self.receive, &answer.body) {
            return with(Answer::failed(FailureType::Active, format!("HTTP {status}, but not with the expected body")));
        }
        if !self.expected.contains(status) {
            return Answer {
                verdict: Verdict::Failed { failure: FailureType::Active, retriable: self.retriable.contains(status) },
                fails_at_once: answer.head.headers.contains("x-envoy-immediate-health-check-fail"),
                ..with(Answer::passed(false, format!("HTTP {status}")))
            };
        }
        let matcher = self.service_name.as_ref().filter(|_| verifies);
        if let Some(matcher) = matcher {
            let name = answer.head.headers.get("x-envoy-upstream-healthchecked-cluster").unwrap_or_default();
            if !matcher.matches(name) {
                let name = String::from_utf8_lossy(name);
                let note = format!("HTTP {status}, but of the service '{name}'");
                return Answer { verified: true, ..with(Answer::failed(FailureType::Active, note)) };
            }
        }
        let degraded = answer.head.headers.contains("x-envoy-degraded");
        let note = format!("HTTP {status}{}", if degraded { ", degraded" } else { "" });
        Answer { verified: matcher.is_some(), ..with(Answer::passed(degraded, note)) }
    }
}

/// The lists of a mutation have other names here.
fn renamed(path: &str) -> String {
    for (from, to) in [("add[", "request_headers_to_add["), ("remove[", "request_headers_to_remove[")] {
        if let Some(rest) = path.strip_prefix(from) {
            return format!("{to}{rest}");
        }
    }
    path.to_owned()
}

/// One host's.
pub struct HttpProbe {
    check: Rc<HttpCheck>,
    context: ProbeContext,
    conn: KeptConn,
}

impl HttpProbe {
    pub fn new(check: Rc<HttpCheck>, context: ProbeContext) -> Self {
        Self { conn: KeptConn::new(context.clone(), check.version), check, context }
    }
}

impl Probe for HttpProbe {
    fn check<'p>(&'p mut self, host: &'p Arc<Host>) -> LocalBoxFuture<'p, Answer> {
        Box::pin(async move {
            let mut head = self.check.request(host, &self.context.cluster);
            let keep = if self.check.receive.is_empty() { 0 } else { self.check.keep };
            match self.conn.exchange(host, &mut head, &self.check.send, keep).await {
                Ok(answer) => {
                    let verifies = self.context.is_enabled("health_check.verify_cluster", 100);
                    self.check.judge(&answer, verifies)
                }
                Err(failure) => failure.into(),
            }
        })
    }

    fn describe(&self, host: &Host) -> String {
        let HttpCheck { method, path, host: configured, .. } = &*self.check;
        let host_header = authority(host, configured, &self.context.cluster);
        format!("{method} http://{}{path} (Host: {host_header})", target(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::envoy::config::core::v3::health_check::{Payload, payload::Payload as Form};
    use nuncio_core::http::ResponseHead;

    fn check(message: HttpHealthCheck) -> Result<HttpCheck, String> {
        let none: ReadMutation<'_> = &|_, _| Err(ConfigError::new("add[1].header", "bad"));
        HttpCheck::from_proto(&message, none).map_err(|e| e.to_string())
    }

    fn answer(status: u16, fields: &[(&str, &str)], body: &str) -> HttpAnswer {
        let mut head = ResponseHead::new(status);
        fields.iter().for_each(|(name, value)| head.headers.append(name, value));
        HttpAnswer { head, body: body.into(), trailers: None }
    }

    fn range(start: i64, end: i64) -> Int64Range {
        Int64Range { start, end }
    }

    // Texts: Envoy 1.40's.
    #[test]
    fn what_is_wrong_with_a_check_is_said_in_envoys_words() {
        let expected = |range| check(HttpHealthCheck { expected_statuses: vec![range], ..Default::default() }).err();
        let text = "expected_statuses[0]: Invalid http expected status range: expecting";
        assert_eq!(expected(range(200, 200)), Some(format!("{text} start < end, but found start=200 and end=200")));
        assert_eq!(expected(range(50, 200)), Some(format!("{text} start >= 100, but found start=50")));
        assert_eq!(expected(range(200, 700)), Some(format!("{text} end <= 600, but found end=700")));
        let send = Some(Payload { payload: Some(Form::Text("aa".into())) });
        let get = check(HttpHealthCheck { send: send.clone(), ..Default::default() }).err().unwrap();
        assert!(get.starts_with("send: HTTP health check cannot specify a request payload with method 'GET'."));
        assert!(check(HttpHealthCheck { send, method: RequestMethod::Post.into(), ..Default::default() }).is_ok());
        let add = check(HttpHealthCheck { request_headers_to_remove: vec!["x".into()], ..Default::default() });
        assert_eq!(add.err().unwrap(), "request_headers_to_add[1].header: bad");
    }

    #[test]
    fn expected_statuses_replace_the_one_that_is_expected_otherwise() {
        let verdict = |check: &HttpCheck, status| check.judge(&answer(status, &[], ""), true).verdict;
        let default = check(HttpHealthCheck::default()).unwrap();
        let passed = Verdict::Passed { degraded: false };
        let failed = |retriable| Verdict::Failed { failure: FailureType::Active, retriable };
        assert_eq!((verdict(&default, 200), verdict(&default, 201)), (passed, failed(false)));
        let own = check(HttpHealthCheck {
            expected_statuses: vec![range(204, 206)],
            retriable_statuses: vec![range(429, 430), range(200, 201)],
            ..Default::default()
        });
        let own = own.unwrap();
        let of = [204, 205, 206, 200, 429].map(|status| verdict(&own, status));
        assert_eq!(of, [passed, passed, failed(false), failed(true), failed(true)]);
    }

    #[test]
    fn headers_of_the_answer_say_more() {
        let plain = check(HttpHealthCheck::default()).unwrap();
        let degraded = plain.judge(&answer(200, &[("x-envoy-degraded", "")], ""), true);
        assert_eq!(degraded.verdict, Verdict::Passed { degraded: true });
        let at_once = [("x-envoy-immediate-health-check-fail", "true")];
        // As Envoy: beside a good status it says nothing.
        assert!(plain.judge(&answer(503, &at_once, ""), true).fails_at_once);
        assert!(!plain.judge(&answer(200, &at_once, ""), true).fails_at_once);
        let mut named = plain;
        named.service_name = Some(StringMatcher::prefix("web"));
        let of = |name: &str| {
            let name = [("x-envoy-upstream-healthchecked-cluster", name)];
            named.judge(&answer(200, &name, ""), true).is_passed()
        };
        assert!(of("web-1") && !of("db") && !named.judge(&answer(200, &[], ""), true).is_passed());
        // Runtime may switch that off.
        assert!(named.judge(&answer(200, &[], ""), false).is_passed());
    }

    #[test]
    fn a_body_may_be_expected() {
        let block = |text: &str| Payload { payload: Some(Form::Text(text.into())) };
        let check = check(HttpHealthCheck { receive: vec![block("6f"), block("6b")], ..Default::default() }).unwrap();
        assert!(check.judge(&answer(200, &[], "all o' k"), true).is_passed());
        let wrong = check.judge(&answer(200, &[], "ko"), true);
        assert_eq!(wrong.to_string(), "HTTP 200, but not with the expected body");
    }
}
