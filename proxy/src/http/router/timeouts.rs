//! How long a request and each of its attempts may take: the route's word, or that of the request's own headers.

use std::time::Duration;

use nuncio_core::http::{HeaderMap, RequestHead};

use super::policy::ForwardPolicy;
use super::retry::{HedgePolicy, RetryPolicy};

/// `None` is for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Timeouts {
    /// From the end of the request to the end of the response, over all attempts.
    pub global: Option<Duration>,
    pub per_try: Option<Duration>,
    /// Of one attempt without anything from the upstream.
    pub per_try_idle: Option<Duration>,
    /// `x-envoy-upstream-stream-duration-ms`; zero switches the cluster's own limit off.
    pub stream_duration: Option<Duration>,
    /// An attempt that takes too long is not ended: another one races it.
    pub hedge: bool,
    /// `x-envoy-upstream-rq-timeout-alt-response`: a timeout is answered with 204.
    pub alt_response: bool,
    /// The upstream of a gRPC call is told how long it has, in `grpc-timeout`.
    tell_grpc: bool,
}

impl Timeouts {
    /// Takes the headers that set timeouts out of the request.
    pub fn new(
        policy: &ForwardPolicy,
        retry: Option<&RetryPolicy>,
        hedge: Option<&HedgePolicy>,
        request: &mut RequestHead,
        respect_expected: bool,
    ) -> Self {
        let grpc = request.is_grpc();
        let headers = &mut request.headers;
        // With `max_stream_duration` the stream as a whole is limited, and `timeout` no more.
        let old_rules = policy.max_stream_duration.is_none();
        let mut new = Self {
            global: some(policy.timeout).filter(|_| old_rules),
            per_try: retry.and_then(|r| some(r.per_try_timeout)),
            per_try_idle: retry.and_then(|r| some(r.per_try_idle_timeout)),
            tell_grpc: grpc && old_rules && policy.max_grpc_timeout.is_some(),
            ..Self::default()
        };
        if let (true, Some(max)) = (new.tell_grpc, policy.max_grpc_timeout) {
            new.global = limited_grpc_timeout(headers, max, policy.grpc_timeout_offset.unwrap_or_default());
        }
        let expected = respect_expected.then(|| headers.get("x-envoy-expected-rq-timeout-ms")).flatten();
        if let Some(expected) = expected {
            if let Some(asked) = milliseconds(Some(expected)) {
                new.global = some(asked);
            }
        } else if let Some(asked) = take_milliseconds(headers, "x-envoy-upstream-rq-timeout-ms") {
            new.global = some(asked);
        }
        if let Some(asked) = take_milliseconds(headers, "x-envoy-upstream-rq-per-try-timeout-ms") {
            new.per_try = some(asked);
        }
        if new.global.is_some_and(|global| new.per_try.is_some_and(|per_try| per_try >= global)) {
            new.per_try = None;
        }
        new.stream_duration = take_milliseconds(headers, "x-envoy-upstream-stream-duration-ms");
        new.alt_response = headers.remove("x-envoy-upstream-rq-timeout-alt-response");
        new.hedge = match headers.get("x-envoy-hedge-on-per-try-timeout") {
            Some(b"true") => true,
            Some(b"false") => false,
            _ => hedge.is_some_and(|h| h.on_per_try_timeout),
        };
        headers.remove("x-envoy-hedge-on-per-try-timeout");
        new
    }

    /// Tells the upstream how long it has when so much of the time is gone.
    pub fn tell(&self, headers: &mut HeaderMap, elapsed: Duration, envoy_headers: bool) {
        let own = if self.hedge { None } else { self.per_try };
        let Some(mut expected) = own.or(self.global) else { return };
        if let Some(global) = self.global {
            // 0 would mean for ever.
            expected = expected.min(global.saturating_sub(elapsed)).max(Duration::from_millis(1));
        }
        if envoy_headers {
            headers.set_u64("x-envoy-expected-rq-timeout-ms", expected.as_millis() as u64);
        }
        if self.tell_grpc {
            headers.set("grpc-timeout", grpc_timeout_text(expected));
        }
    }
}

/// What the caller asks for within the route's bounds, of which zero is none. A call that asks for nothing may take
/// for ever if the route allows it.
fn limited_grpc_timeout(headers: &HeaderMap, max: Duration, offset: Duration) -> Option<Duration> {
    let mut timeout = grpc_timeout(headers).unwrap_or_default();
    if offset < timeout {
        timeout -= offset;
    }
    if !max.is_zero() && (timeout.is_zero() || timeout > max) {
        timeout = max;
    }
    some(timeout)
}

/// `grpc-timeout` of a request: at most eight digits and a unit (gRPC over HTTP/2). What is less than a millisecond
/// is rounded up.
pub(in crate::http) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get_str("grpc-timeout")?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    let millis = match unit {
        "H" => n * 3_600_000,
        "M" => n * 60_000,
        "S" => n * 1000,
        "m" => n,
        "u" => n.div_ceil(1000),
        "n" => n.div_ceil(1_000_000),
        _ => return None,
    };
    Some(Duration::from_millis(millis))
}

/// In the finest unit that eight digits can hold.
pub(in crate::http) fn grpc_timeout_text(timeout: Duration) -> String {
    const MOST: u128 = 99_999_999;
    let millis = timeout.as_millis();
    for (unit, size) in [("m", 1), ("S", 1000), ("M", 60_000)] {
        if millis / size <= MOST {
            return format!("{}{unit}", millis / size);
        }
    }
    format!("{}H", (millis / 3_600_000).min(MOST))
}

fn some(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

/// A whole number of milliseconds.
fn milliseconds(value: Option<&[u8]>) -> Option<Duration> {
    std::str::from_utf8(value?).ok()?.trim().parse().ok().map(Duration::from_millis)
}

fn take_milliseconds(headers: &mut HeaderMap, name: &str) -> Option<Duration> {
    let asked = milliseconds(headers.get(name));
    headers.remove(name);
    asked
}

#[cfg(test)]
mod tests {
    use nuncio_api::pb::envoy::config::route::v3 as pb;
    use nuncio_api::pb::google::protobuf::Duration as DurationProto;

    use super::*;

    fn seconds(seconds: i64) -> Option<DurationProto> {
        Some(DurationProto { seconds, nanos: 0 })
    }

    fn read(action: &pb::RouteAction, fields: &[(&str, &str)]) -> (Timeouts, RequestHead) {
        let policy = ForwardPolicy::from_proto(action, None).unwrap();
        let headers = fields.iter().copied().collect();
        let mut request = RequestHead { headers, ..RequestHead::default() };
        let timeouts = Timeouts::new(&policy, policy.retry.as_deref(), policy.hedge.as_ref(), &mut request, false);
        (timeouts, request)
    }

    fn action(timeout: i64, per_try: i64) -> pb::RouteAction {
        let retry_policy = pb::RetryPolicy { per_try_timeout: seconds(per_try), ..Default::default() };
        pb::RouteAction { timeout: seconds(timeout), retry_policy: Some(retry_policy), ..Default::default() }
    }

    #[test]
    fn a_requests_headers_win_over_the_route_and_are_taken_out() {
        let asked = [("x-envoy-upstream-rq-timeout-ms", "3000"), ("x-envoy-upstream-rq-per-try-timeout-ms", "20")];
        let (timeouts, request) = read(&action(10, 1), &asked);
        assert_eq!(
            (timeouts.global, timeouts.per_try),
            (Some(Duration::from_secs(3)), Some(Duration::from_millis(20)))
        );
        assert!(request.headers.is_empty());
        let (timeouts, _) = read(&action(10, 1), &[("x-envoy-upstream-rq-timeout-ms", "nonsense")]);
        assert_eq!(timeouts.global, Some(Duration::from_secs(10)));
        let (timeouts, _) = read(&action(10, 1), &[("x-envoy-upstream-rq-timeout-ms", "0")]);
        assert_eq!(timeouts.global, None);
    }

    #[test]
    fn a_try_that_may_take_as_long_as_all_has_no_timeout_of_its_own() {
        assert_eq!(read(&action(2, 2), &[]).0.per_try, None);
        assert_eq!(read(&action(0, 2), &[]).0.per_try, Some(Duration::from_secs(2)));
    }

    #[test]
    fn the_upstream_hears_what_is_left() {
        let told = |timeouts: &Timeouts, elapsed| {
            let mut headers = HeaderMap::new();
            timeouts.tell(&mut headers, Duration::from_millis(elapsed), true);
            headers.get_str("x-envoy-expected-rq-timeout-ms").map(str::to_owned)
        };
        let (timeouts, _) = read(&action(10, 1), &[]);
        assert_eq!(told(&timeouts, 0).as_deref(), Some("1000"));
        assert_eq!(told(&timeouts, 9500).as_deref(), Some("500"));
        assert_eq!(told(&timeouts, 99_000).as_deref(), Some("1"));
        // Who races another attempt may take all the time there is.
        assert_eq!(told(&Timeouts { hedge: true, ..timeouts }, 0).as_deref(), Some("10000"));
        assert_eq!(told(&Timeouts::default(), 0), None);
    }

    #[test]
    #[allow(deprecated)]
    fn grpc_calls_say_how_long_they_wait() {
        let grpc = pb::RouteAction {
            max_grpc_timeout: seconds(5),
            grpc_timeout_offset: Some(DurationProto { seconds: 0, nanos: 100_000_000 }),
            ..Default::default()
        };
        let call = |value| read(&grpc, &[("content-type", "application/grpc"), ("grpc-timeout", value)]);
        let (timeouts, mut request) = call("2S");
        assert_eq!(timeouts.global, Some(Duration::from_millis(1900)));
        timeouts.tell(&mut request.headers, Duration::ZERO, false);
        assert_eq!(request.headers.get_str("grpc-timeout"), Some("1900m"));
        assert_eq!(call("1H").0.global, Some(Duration::from_secs(5)));
        assert_eq!(call("bogus").0.global, Some(Duration::from_secs(5)));
        // With the new rules the stream's own limit counts.
        let max_stream_duration = Some(pb::route_action::MaxStreamDuration::default());
        let (timeouts, _) = read(&pb::RouteAction { max_stream_duration, ..Default::default() }, &[]);
        assert_eq!(timeouts.global, None);
    }

    #[test]
    fn a_grpc_timeout_has_eight_digits_and_a_unit() {
        let read = |value: &str| grpc_timeout(&[("grpc-timeout", value)].into_iter().collect());
        assert_eq!(read("1u"), Some(Duration::from_millis(1)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for wrong in ["", "1", "S", "123456789m", "1x", "-1m", "1é"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(grpc_timeout_text(Duration::from_millis(100_000_000)), "100000S");
    }
}
