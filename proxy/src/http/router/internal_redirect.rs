//! Redirects of an upstream that the proxy follows by itself: whether it does, and the request that it makes of the old
//! one.

use std::sync::Arc;

use nuncio_core::http::{Framing, HeaderMap, RequestHead, ResponseHead};
use nuncio_core::stats::Counter;
use nuncio_core::stats::lists::http::{self as stat, Router as RouterList};

use super::policy::{InternalRedirectPolicy, RedirectPredicate};

/// What a request has behind it.
#[derive(Debug, Default)]
pub(super) struct Redirects {
    count: u32,
    /// From which route to which.
    routes: Vec<(Arc<str>, Arc<str>)>,
}

/// Why a redirect is the client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    BadLocation,
    UnsafeScheme,
    TooMany,
    NoRoute,
    Predicate,
}

impl Refusal {
    pub fn counter(self) -> Counter<RouterList> {
        match self {
            Self::BadLocation => stat::PASSTHROUGH_INTERNAL_REDIRECT_BAD_LOCATION,
            Self::UnsafeScheme => stat::PASSTHROUGH_INTERNAL_REDIRECT_UNSAFE_SCHEME,
            Self::TooMany => stat::PASSTHROUGH_INTERNAL_REDIRECT_TOO_MANY_REDIRECTS,
            Self::NoRoute => stat::PASSTHROUGH_INTERNAL_REDIRECT_NO_ROUTE,
            Self::Predicate => stat::PASSTHROUGH_INTERNAL_REDIRECT_PREDICATE,
        }
    }
}

/// A request before it was changed.
pub(super) struct Saved(HeaderMap);

impl InternalRedirectPolicy {
    pub(super) fn follows(&self, status: u16) -> bool {
        self.codes.contains(&status)
    }
}

impl Redirects {
    /// Turns the request into the one that the response asks for.
    pub fn begin(
        &self,
        policy: &InternalRedirectPolicy,
        request: &mut RequestHead,
        response: &ResponseHead,
    ) -> Result<Saved, Refusal> {
        let target = response.headers.get("location").and_then(Target::parse);
        let Some(target) = target.filter(|_| request.path().is_some()) else {
            return Err(Refusal::BadLocation);
        };
        if !policy.allow_cross_scheme && target.secure != is_secure(request) {
            return Err(Refusal::UnsafeScheme);
        }
        if self.count >= policy.max {
            return Err(Refusal::TooMany);
        }
        let saved = Saved(request.headers.clone());
        for name in &policy.response_headers_to_copy {
            request.headers.remove(name);
            for value in response.headers.get_all(name) {
                request.headers.append(name, value);
            }
        }
        let scheme = if target.secure { "https" } else { "http" };
        request.headers.set(":scheme", scheme);
        request.headers.set(":authority", target.authority);
        request.headers.set(":path", &target.path);
        Ok(saved)
    }

    /// Whether the policy lets the changed request go from one route to another (named so).
    pub fn admits(
        &mut self,
        policy: &InternalRedirectPolicy,
        (from, to): (&Arc<str>, &Arc<str>),
        saved: &Saved,
        request: &RequestHead,
    ) -> bool {
        policy.predicates.iter().all(|predicate| match predicate {
            RedirectPredicate::AllowListedRoutes(names) => names.iter().any(|name| **name == **to),
            RedirectPredicate::SafeCrossScheme => saved.is_secure() || !is_secure(request),
            RedirectPredicate::PreviousRoutes => {
                let step = (from.clone(), to.clone());
                let new = !self.routes.contains(&step);
                if new {
                    self.routes.push(step);
                }
                new
            }
        })
    }

    /// The request goes on as what it has become.
    pub fn finish(&mut self, request: &mut RequestHead, status: u16, saved: &Saved) {
        self.count += 1;
        if status == 303 && !matches!(request.method(), b"GET" | b"HEAD") {
            request.headers.set(":method", "GET");
            request.headers.remove("content-length");
            request.framing = Framing::None;
        }
        let old = |name| saved.0.get(name).unwrap_or_default();
        let mut url = Vec::with_capacity(64);
        url.extend_from_slice(if saved.is_secure() { b"https://" } else { b"http://" });
        url.extend_from_slice(old(":authority"));
        url.extend_from_slice(old(":path"));
        request.headers.set("x-envoy-original-url", &url);
    }
}

impl Saved {
    fn is_secure(&self) -> bool {
        self.0.get(":scheme") == Some(b"https")
    }

    /// It stays as it was.
    pub fn restore(self, request: &mut RequestHead) {
        request.headers = self.0;
    }
}

fn is_secure(request: &RequestHead) -> bool {
    request.scheme() == b"https"
}

/// An absolute URL, without its fragment.
struct Target<'a> {
    secure: bool,
    authority: &'a [u8],
    path: Vec<u8>,
}

impl<'a> Target<'a> {
    fn parse(location: &'a [u8]) -> Option<Self> {
        let scheme_end = location.windows(3).position(|w| w == b"://")?;
        let secure = match location[..scheme_end].to_ascii_lowercase().as_slice() {
            b"http" => false,
            b"https" => true,
            _ => return None,
        };
        let rest = &location[scheme_end + 3..];
        let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let sound = |b: &u8| b.is_ascii_graphic() && *b != b'@';
        if authority.is_empty() || !authority.iter().all(sound) || !rest.iter().all(|b| b.is_ascii_graphic()) {
            return None;
        }
        let rest = rest.split(|b| *b == b'#').next().unwrap_or_default();
        let mut path = Vec::with_capacity(rest.len() + 1);
        if rest.first() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(rest);
        Some(Self { secure, authority, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> InternalRedirectPolicy {
        InternalRedirectPolicy {
            max: 1,
            codes: vec![302, 303],
            predicates: vec![RedirectPredicate::PreviousRoutes],
            allow_cross_scheme: false,
            response_headers_to_copy: vec!["x-copy".into()],
        }
    }

    fn request() -> RequestHead {
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "web.test"),
            (":path", "/old?q"),
            ("content-length", "3"),
            ("x-copy", "stale"),
        ];
        RequestHead { headers: fields.into_iter().collect(), framing: Framing::Length(3), ..RequestHead::default() }
    }

    fn answer(status: u16, location: &str) -> ResponseHead {
        let mut head = ResponseHead::new(status);
        head.headers.append("location", location);
        head
    }

    // What the upstream of Envoy 1.40 saw.
    #[test]
    fn the_new_request_is_what_the_location_says_and_tells_where_it_came_from() {
        let (mut redirects, mut request) = (Redirects::default(), request());
        let answer = answer(303, "http://other.test/target#part");
        let saved = redirects.begin(&policy(), &mut request, &answer).unwrap_or_else(|e| panic!("{e:?}"));
        redirects.finish(&mut request, 303, &saved);
        assert_eq!((request.authority(), request.path()), (Some(&b"other.test"[..]), Some(&b"/target"[..])));
        assert_eq!((request.method(), request.framing.is_none()), (&b"GET"[..], true));
        assert_eq!(request.headers.get_str("x-envoy-original-url"), Some("http://web.test/old?q"));
        assert!(!request.headers.contains("x-copy") && !request.headers.contains("content-length"));
        // One was all there may be.
        assert_eq!(redirects.begin(&policy(), &mut request, &answer).err(), Some(Refusal::TooMany));
    }

    #[test]
    fn a_refused_redirect_leaves_the_request_as_it_was() {
        let (redirects, mut request) = (Redirects::default(), request());
        let refusal = |location: &str, request: &mut RequestHead| {
            redirects.begin(&policy(), request, &answer(302, location)).err()
        };
        for bad in ["/relative", "", "ftp://x/", "http:///x", "http://a b/", "http://user@x/"] {
            assert_eq!(refusal(bad, &mut request), Some(Refusal::BadLocation), "{bad}");
        }
        assert_eq!(refusal("https://web.test/", &mut request), Some(Refusal::UnsafeScheme));
        let saved =
            redirects.begin(&policy(), &mut request, &answer(302, "http://x?q")).unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!(request.path(), Some(&b"/?q"[..]));
        saved.restore(&mut request);
        assert_eq!(request.path(), Some(&b"/old?q"[..]));
    }

    #[test]
    fn no_step_is_taken_twice() {
        let mut redirects = Redirects::default();
        let saved = Saved(request().headers);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut admits = |from, to| redirects.admits(&policy(), (from, to), &saved, &request());
        assert!(admits(&a, &b) && admits(&b, &a) && !admits(&a, &b));
    }
}
