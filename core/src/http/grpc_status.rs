//! gRPC status codes: what logs, statistics and local replies make of them.

use super::{HeaderMap, ResponseHead};

/// The status that gRPC clients derive from an HTTP status when the response has none.
pub fn from_http(code: u16) -> i64 {
    match code {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => 14,
        _ => 2,
    }
}

/// What a status means as an HTTP status, for whoever judges hosts by theirs: a server's failure is 5xx.
pub fn to_http(status: i64) -> u16 {
    match status {
        0 => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}

/// The status in a response's trailers, else in its head. A value that is no number counts as -1.
pub fn of_response(head: Option<&ResponseHead>, trailers: Option<&HeaderMap>) -> Option<i64> {
    let text =
        trailers.and_then(|t| t.get("grpc-status")).or_else(|| head.and_then(|h| h.headers.get("grpc-status")))?;
    Some(std::str::from_utf8(text).ok().and_then(|t| t.parse::<u32>().ok()).map_or(-1, i64::from))
}

/// `NotFound`; `None` for a number without a name.
pub fn camel_name(status: i64) -> Option<&'static str> {
    name(status).map(|n| n.0)
}

/// `NOT_FOUND`; `None` for a number without a name.
pub fn snake_name(status: i64) -> Option<&'static str> {
    name(status).map(|n| n.1)
}

fn name(status: i64) -> Option<&'static (&'static str, &'static str)> {
    const NAMES: [(&str, &str); 17] = [
        ("OK", "OK"),
        ("Canceled", "CANCELLED"),
        ("Unknown", "UNKNOWN"),
        ("InvalidArgument", "INVALID_ARGUMENT"),
        ("DeadlineExceeded", "DEADLINE_EXCEEDED"),
        ("NotFound", "NOT_FOUND"),
        ("AlreadyExists", "ALREADY_EXISTS"),
        ("PermissionDenied", "PERMISSION_DENIED"),
        ("ResourceExhausted", "RESOURCE_EXHAUSTED"),
        ("FailedPrecondition", "FAILED_PRECONDITION"),
        ("Aborted", "ABORTED"),
        ("OutOfRange", "OUT_OF_RANGE"),
        ("Unimplemented", "UNIMPLEMENTED"),
        ("Internal", "INTERNAL"),
        ("Unavailable", "UNAVAILABLE"),
        ("DataLoss", "DATA_LOSS"),
        ("Unauthenticated", "UNAUTHENTICATED"),
    ];
    NAMES.get(usize::try_from(status).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_win_over_the_head_and_nonsense_is_minus_one() {
        let mut head = ResponseHead::new(200);
        assert_eq!(of_response(Some(&head), None), None);
        head.headers.append("grpc-status", "5");
        let trailers: HeaderMap = [("grpc-status", "7")].into_iter().collect();
        assert_eq!(of_response(Some(&head), Some(&trailers)), Some(7));
        assert_eq!(of_response(Some(&head), Some(&HeaderMap::new())), Some(5));
        head.headers.set("grpc-status", "abc");
        assert_eq!(of_response(Some(&head), None), Some(-1));
    }

    #[test]
    fn names_are_those_envoy_logs() {
        assert_eq!((camel_name(1), snake_name(1)), (Some("Canceled"), Some("CANCELLED")));
        assert_eq!((camel_name(16), snake_name(17), camel_name(-1)), (Some("Unauthenticated"), None, None));
        assert_eq!([from_http(404), from_http(408), from_http(200)], [12, 2, 2]);
    }
}
