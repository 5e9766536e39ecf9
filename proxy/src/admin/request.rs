//! What an admin request asks: path, parameters, and who it seems to come from.

use std::net::IpAddr;

use http::Method;

/// A request as far as pages care.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: Method,
    /// Decoded and normalized: no empty segments, no `.` and `..`.
    pub path: String,
    pub query: Query,
    raw_query: Option<String>,
    /// Of the host header.
    pub host: Option<String>,
    pub origin: Option<String>,
}

/// Parameters, decoded, in order. The first of a name counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

// === impl Request ===

impl Request {
    pub fn new(method: Method, target: &str) -> Request {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        Request {
            method,
            path: normalize(&decode(path)),
            query: query.map(Query::parse).unwrap_or_default(),
            raw_query: query.map(str::to_owned),
            host: None,
            origin: None,
        }
    }

    pub fn path_and_query(&self) -> String {
        match &self.raw_query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// Why this request looks as if a web page of another site had sent it; `None` if it does not.
    ///
    /// A browser names the page's site in `origin` whenever it sends a POST. A page may also have its own name resolved
    /// to this address and so share our origin; then that name stands in `host`. Nobody can have a name resolved by
    /// strangers that has no dot or ends in a domain kept for local use, and an address is not a name.
    pub fn foreign(&self) -> Option<String> {
        let host = self.host.as_deref().unwrap_or_default();
        if !host.is_empty() && !is_local(name_of(host)) {
            return Some(format!("host {host} may not change anything here: use an address or a local name"));
        }
        let origin = self.origin.as_deref()?;
        let site = origin.split_once("://").map(|(_, site)| site);
        if site.is_some_and(|site| site.eq_ignore_ascii_case(host)) {
            return None;
        }
        Some(format!("origin {origin} may not change anything here"))
    }
}

/// Without the port; an IPv6 address without its brackets.
fn name_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    authority.split(':').next().unwrap_or_default()
}

fn is_local(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let reserved = [".localhost", ".local", ".internal"];
    name.parse::<IpAddr>().is_ok() || !name.contains('.') || reserved.iter().any(|suffix| name.ends_with(suffix))
}

fn normalize(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let mut normal = format!("/{}", segments.join("/"));
    // A trailing slash names another page, which does not exist.
    if path.ends_with('/') && normal.len() > 1 {
        normal.push('/');
    }
    normal
}

/// Percent-decoding; a plus stays a plus, as in Envoy.
fn decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            // Both digits are below 16.
            (b'%', Some(high), Some(low)) => {
                out.push((high << 4 | low) as u8);
                at += 3;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

// === impl Query ===

impl Query {
    /// Of a URL or of a form.
    pub fn parse(text: &str) -> Query {
        let pair = |item: &str| match item.split_once('=') {
            Some((name, value)) => (decode(name), decode(value)),
            None => (decode(item), String::new()),
        };
        Query(text.split('&').filter(|item| !item.is_empty()).map(pair).collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The value, unless it is missing or empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// Whether the parameter is there, whatever its value.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> + Clone {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized_and_queries_decoded() {
        let path = |target: &str| Request::new(Method::GET, target).path;
        assert_eq!(path("//ready"), "/ready");
        assert_eq!(path("/x/../ready"), "/ready");
        assert_eq!(path("/%72eady"), "/ready");
        assert_eq!(path("/ready/"), "/ready/");
        assert_eq!(path("/../../"), "/");
        let request = Request::new(Method::GET, "/stats?filter=a%5Bb%zz+%C3&usedonly&filter=x&=");
        assert_eq!(request.query.get("filter"), Some("a[b%zz+\u{fffd}"));
        assert!(request.query.has("usedonly") && request.query.text("usedonly").is_none());
        assert_eq!(request.path_and_query(), "/stats?filter=a%5Bb%zz+%C3&usedonly&filter=x&=");
    }

    #[test]
    fn a_page_of_another_site_is_foreign_and_a_local_client_is_not() {
        let foreign = |host: &str, origin: Option<&str>| {
            let host = Some(host.to_owned());
            Request { host, origin: origin.map(str::to_owned), ..Request::new(Method::POST, "/") }.foreign().is_some()
        };
        for host in
            ["127.0.0.1:9901", "[::1]:9901", "localhost:9901", "envoy", "", "pod.ns.svc.cluster.local", "h.internal."]
        {
            assert!(!foreign(host, None), "{host}");
        }
        assert!(foreign("evil.example:9901", None));
        assert!(foreign("127.0.0.1.nip.io", None));
        assert!(foreign("127.0.0.1:9901", Some("http://evil.example")));
        assert!(foreign("127.0.0.1:9901", Some("null")));
        assert!(foreign("127.0.0.1:9901", Some("http://127.0.0.1:8000")));
        assert!(!foreign("127.0.0.1:9901", Some("http://127.0.0.1:9901")));
    }
}
