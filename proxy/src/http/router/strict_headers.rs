//! `strict_check_headers` of the router: a request whose own words on retries and timeouts are none is refused, instead of
//! being served as if it had not said them.

use nuncio_core::http::{HeaderMap, LocalReply};
use nuncio_core::stream_info::ResponseFlag;

use super::retry::RetryOn;

/// The fields that are checked; which ones there may be is an annotation of the message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StrictHeaders(Vec<Box<str>>);

impl StrictHeaders {
    pub fn new(names: &[String]) -> Self {
        Self(names.iter().map(|name| name.to_ascii_lowercase().into()).collect())
    }

    /// The answer to a request that says something that cannot be understood.
    pub fn check(&self, headers: &HeaderMap) -> Option<LocalReply> {
        self.0.iter().find_map(|name| {
            // Several lines are one value, as Envoy reads them.
            let value = headers.get_joined(name, ",").filter(|value| !is_valid(name, value))?;
            let text = format!("invalid header '{name}' with value '{}'", value.escape_ascii());
            let details = format!("request_headers_failed_strict_check{{{name}}}");
            Some(LocalReply::new(400, details).flag(ResponseFlag::InvalidEnvoyRequestHeaders).body(text))
        })
    }
}

fn is_valid(name: &str, value: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(value) else { return false };
    match name {
        "x-envoy-retry-on" => {
            let (on, known) = RetryOn::parse(text);
            known && on.grpc().is_empty()
        }
        "x-envoy-retry-grpc-on" => {
            let (on, known) = RetryOn::parse(text);
            known && on.http().is_empty()
        }
        _ => text.trim().parse::<u32>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Expected: Envoy 1.40 with all five names.
    #[test]
    fn what_is_no_number_or_no_condition_is_refused_by_name_and_value() {
        let names = [
            "x-envoy-upstream-rq-timeout-ms",
            "x-envoy-upstream-rq-per-try-timeout-ms",
            "x-envoy-max-retries",
            "x-envoy-retry-grpc-on",
            "x-envoy-retry-on",
        ];
        let strict = StrictHeaders::new(&names.map(str::to_owned));
        for (name, good, bad) in [
            (names[0], &["100", "+5", " 5"][..], &["abc", "-1", "1.5", "", "99999999999999999999"][..]),
            (names[1], &["1"], &["q"]),
            (names[2], &["1"], &["x"]),
            (names[3], &["cancelled"], &["nope", "5xx"]),
            (names[4], &["5xx", "5xx,reset", "5xx, reset", ""], &["foo", "5xx,foo", "cancelled"]),
        ] {
            let check = |value: &str| strict.check(&[(name, value)].into_iter().collect());
            for value in good {
                assert!(check(value).is_none(), "{name}: {value}");
            }
            for value in bad {
                let reply = check(value).unwrap_or_else(|| panic!("{name}: {value}"));
                assert_eq!(
                    (reply.status, &*reply.body),
                    (400, format!("invalid header '{name}' with value '{value}'").as_bytes())
                );
            }
        }
        let two = [(names[2], "1"), (names[2], "zz")].into_iter().collect();
        let reply = strict.check(&two).unwrap();
        assert_eq!(&*reply.body, b"invalid header 'x-envoy-max-retries' with value '1,zz'");
        assert!(StrictHeaders::default().check(&two).is_none());
    }
}
