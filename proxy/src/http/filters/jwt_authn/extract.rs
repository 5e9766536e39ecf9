//! Where tokens are found in a request, and how one is taken away from there.

use nuncio_api::pb::envoy::extensions::filters::http::jwt_authn::v3::JwtProvider;
use nuncio_core::http::RequestHead;
use nuncio_core::matcher::{cookie, query_parameter};

/// One place to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Location {
    Header { name: String, prefix: String },
    Parameter(String),
    Cookie(String),
}

/// A token as it came.
pub(super) struct Found<'a> {
    pub(super) text: Vec<u8>,
    pub(super) location: &'a Location,
}

impl Location {
    /// The places of a provider; those of RFC 6750 if it names none.
    pub(super) fn of_provider(proto: &JwtProvider) -> Vec<Self> {
        let headers = proto
            .from_headers
            .iter()
            .map(|header| Self::Header { name: header.name.to_ascii_lowercase(), prefix: header.value_prefix.clone() });
        let parameters = proto.from_params.iter().cloned().map(Self::Parameter);
        let cookies = proto.from_cookies.iter().cloned().map(Self::Cookie);
        let places: Vec<_> = headers.chain(parameters).chain(cookies).collect();
        if !places.is_empty() {
            return places;
        }
        let bearer = Self::Header { name: "authorization".into(), prefix: "Bearer ".into() };
        vec![bearer, Self::Parameter("access_token".into())]
    }

    pub(super) fn find(&self, head: &RequestHead) -> Option<Found<'_>> {
        let text = match self {
            Self::Header { name, prefix } => {
                let value = head.headers.get_joined(name, ",")?;
                // As Envoy: wherever the prefix stands.
                let at = match prefix.is_empty() {
                    true => 0,
                    false => value.windows(prefix.len()).position(|w| w == prefix.as_bytes())? + prefix.len(),
                };
                value[at..].trim_ascii().to_vec()
            }
            Self::Parameter(name) => query_parameter(head.path()?, name.as_bytes())?.to_vec(),
            Self::Cookie(name) => cookie(&head.headers, name.as_bytes())?.to_vec(),
        };
        (!text.is_empty()).then_some(Found { text, location: self })
    }

    /// The upstream does not get the token. A cookie stays, as in Envoy.
    pub(super) fn remove_from(&self, head: &mut RequestHead) {
        match self {
            Self::Header { name, .. } => {
                head.headers.remove(name);
            }
            Self::Parameter(name) => {
                if let Some(path) = head.path().map(|path| without_parameter(path, name.as_bytes())) {
                    head.headers.set(":path", path);
                }
            }
            Self::Cookie(_) => {}
        }
    }
}

/// The other parameters stay as they were written.
fn without_parameter(path: &[u8], name: &[u8]) -> Vec<u8> {
    let Some(at) = memchr::memchr(b'?', path) else { return path.to_vec() };
    let is_it =
        |parameter: &[u8]| parameter.strip_prefix(name).is_some_and(|rest| matches!(rest.first(), None | Some(b'=')));
    let kept: Vec<&[u8]> = path[at + 1..].split(|b| *b == b'&').filter(|parameter| !is_it(parameter)).collect();
    let mut out = path[..at].to_vec();
    if !kept.is_empty() {
        out.push(b'?');
        out.extend(kept.join(&b"&"[..]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_goes_and_the_others_stay_as_they_were() {
        for (path, left) in
            [("/a?x=%20&tok=1&y", "/a?x=%20&y"), ("/a?tok=1", "/a"), ("/a", "/a"), ("/a?token=1&tok", "/a?token=1")]
        {
            assert_eq!(without_parameter(path.as_bytes(), b"tok"), left.as_bytes(), "{path}");
        }
    }
}
