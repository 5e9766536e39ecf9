//! What a route does to the path and the authority of a request on its way.

use nuncio_api::pb::envoy::config::core::v3::TypedExtensionConfig;
use nuncio_api::pb::envoy::config::route::v3::{RouteAction, route_action::HostRewriteSpecifier};
use nuncio_api::pb::envoy::extensions::path::rewrite::uri_template::v3::UriTemplateRewriteConfig;
use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;
use nuncio_core::matcher::header::lookup_name;
use nuncio_core::matcher::path::without_query;
use nuncio_core::matcher::{RegexRewrite, UriTemplate};
use nuncio_core::typed;

use super::route_match::MatchedPart;
use crate::format::Formatter;

supports!(pub(super) TEMPLATE = "envoy.extensions.path.rewrite.uri_template.v3.UriTemplateRewriteConfig" {
    path_template_rewrite
});

/// How the path changes; the query stays.
#[derive(Debug, Default)]
pub(super) enum PathRewrite {
    #[default]
    None,
    /// Instead of the part that the route matched.
    Prefix(Box<str>),
    /// Every match inside the path without query; nothing changes if nothing is left.
    Regex(Box<RegexRewrite>),
    /// Instead of the path without query; nothing changes if it is empty.
    Format(Box<Formatter>),
}

impl PathRewrite {
    pub(super) fn from_proto(action: &RouteAction, template: Option<&UriTemplate>) -> Result<Self, ConfigError> {
        let ways = usize::from(!action.prefix_rewrite.is_empty())
            + usize::from(!action.path_rewrite.is_empty())
            + usize::from(action.regex_rewrite.is_some())
            + usize::from(action.path_rewrite_policy.is_some());
        if ways > 1 {
            let reason = "Specify only one of prefix_rewrite, regex_rewrite or path_rewrite_policy";
            return Err(ConfigError::new("", reason));
        }
        if !action.prefix_rewrite.is_empty() {
            if template.is_some() {
                return Err(ConfigError::new("prefix_rewrite", "Cannot use prefix_rewrite with matcher extension"));
            }
            return Ok(Self::Prefix(action.prefix_rewrite.as_str().into()));
        }
        if let Some(regex) = &action.regex_rewrite {
            let rewrite = RegexRewrite::from_proto(regex).map_err(|e| e.within("regex_rewrite"))?;
            return Ok(Self::Regex(Box::new(rewrite)));
        }
        if !action.path_rewrite.is_empty() {
            let format = formatter(&action.path_rewrite, true, "path rewrite").map_err(|e| e.within("path_rewrite"))?;
            return Ok(Self::Format(format));
        }
        if let Some(policy) = &action.path_rewrite_policy {
            let Some(template) = template else {
                let reason = "unable to use envoy.path.rewrite.uri_template.uri_template_rewriter extension \
                              without envoy.path.match.uri_template.uri_template_matcher extension";
                return Err(ConfigError::new("path_rewrite_policy", reason));
            };
            let rewrite = by_template(template, policy).map_err(|e| e.within("path_rewrite_policy"))?;
            return Ok(Self::Regex(Box::new(rewrite)));
        }
        Ok(Self::None)
    }

    /// Rewrites `:path`; the old one is kept in `x-envoy-original-path` if `keep_original`.
    pub(super) fn apply(
        &self,
        matched: MatchedPart,
        head: &mut RequestHead,
        context: &LogContext<'_>,
        keep_original: bool,
        scratch: &mut Vec<u8>,
    ) {
        if let Self::None = self {
            return;
        }
        let Some(path) = head.path() else { return };
        let plain = without_query(path);
        scratch.clear();
        match self {
            Self::None => return,
            Self::Prefix(replacement) => {
                let replaced = matched.of(plain.len());
                scratch.extend_from_slice(replacement.as_bytes());
                scratch.extend_from_slice(&path[replaced..]);
            }
            Self::Regex(rewrite) => {
                rewrite.rewrite(plain, scratch);
                if scratch.is_empty() {
                    return;
                }
                scratch.extend_from_slice(&path[plain.len()..]);
            }
            Self::Format(format) => {
                format.format(&LogContext { request: Some(&*head), ..*context }, scratch);
                if scratch.is_empty() {
                    return;
                }
                encode_strays(scratch);
                scratch.extend_from_slice(&path[plain.len()..]);
            }
        }
        if keep_original {
            let end = scratch.len();
            scratch.extend_from_slice(path);
            head.headers.set("x-envoy-original-path", &scratch[end..]);
            scratch.truncate(end);
        }
        head.headers.set(":path", scratch.as_slice());
    }
}

fn by_template(template: &UriTemplate, policy: &TypedExtensionConfig) -> Result<RegexRewrite, ConfigError> {
    let message: UriTemplateRewriteConfig = typed::decode(policy)?;
    template.rewrite(&message.path_template_rewrite).map_err(|e| e.within("typed_config.path_template_rewrite"))
}

/// A format of a path or a host; `what` as Envoy's error names it.
pub(super) fn formatter(text: &str, omit_empty: bool, what: &str) -> Result<Box<Formatter>, ConfigError> {
    let failed = |e: ConfigError| ConfigError::new("", format!("Failed to create {what} formatter: {}", e.reason));
    Formatter::parse(text, omit_empty).map(Box::new).map_err(failed)
}

/// Percent-encodes what must not stand in a request line. Header values can hold blanks; Envoy
/// writes them into the path as they are, which changes where the request line ends.
fn encode_strays(path: &mut Vec<u8>) {
    let stray = |b: &u8| *b <= b' ' || *b == b'#' || *b >= 0x7f;
    if !path.iter().any(stray) {
        return;
    }
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for b in std::mem::take(path) {
        if stray(&b) {
            path.extend([b'%', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
        } else {
            path.push(b);
        }
    }
}

/// How the authority changes before the request leaves.
#[derive(Debug, Default)]
pub(super) enum HostRewrite {
    #[default]
    None,
    Literal(Box<str>),
    /// The first value of a field, if it has one.
    Header(Box<str>),
    PathRegex(Box<RegexRewrite>),
    Format(Box<Formatter>),
    /// The upstream host's name; known only when it is chosen.
    Auto,
}

impl HostRewrite {
    pub(super) fn from_proto(specifier: Option<&HostRewriteSpecifier>) -> Result<Self, ConfigError> {
        Ok(match specifier {
            Some(HostRewriteSpecifier::HostRewriteLiteral(host)) if !host.is_empty() => {
                Self::Literal(host.as_str().into())
            }
            Some(HostRewriteSpecifier::HostRewriteHeader(name)) if !name.is_empty() => {
                Self::Header(lookup_name(name).into())
            }
            Some(HostRewriteSpecifier::HostRewritePathRegex(regex)) => Self::PathRegex(Box::new(
                RegexRewrite::from_proto(regex).map_err(|e| e.within("host_rewrite_path_regex"))?,
            )),
            Some(HostRewriteSpecifier::AutoHostRewrite(on)) if on.value => Self::Auto,
            Some(HostRewriteSpecifier::HostRewrite(text)) if !text.is_empty() => {
                // Not like paths: a missing value prints `-`.
                Self::Format(formatter(text, false, "host rewrite").map_err(|e| e.within("host_rewrite"))?)
            }
            _ => Self::None,
        })
    }

    pub(super) fn apply(
        &self,
        head: &mut RequestHead,
        context: &LogContext<'_>,
        append_forwarded_host: bool,
        keep_original: bool,
        scratch: &mut Vec<u8>,
    ) {
        scratch.clear();
        match self {
            Self::None | Self::Auto => return,
            Self::Literal(host) => scratch.extend_from_slice(host.as_bytes()),
            Self::Header(name) => scratch.extend_from_slice(head.headers.get(name).unwrap_or_default()),
            Self::PathRegex(rewrite) => rewrite.rewrite(head.path_without_query(), scratch),
            Self::Format(format) => format.format(&LogContext { request: Some(&*head), ..*context }, scratch),
        }
        if !scratch.is_empty() {
            set_authority(head, scratch, append_forwarded_host, keep_original);
        }
    }
}

/// Sets the authority to the last bytes of `host`; the old one goes to `x-forwarded-host` and
/// `x-envoy-original-host` as asked. `host` is used as scratch and comes back as it was.
pub fn set_authority(head: &mut RequestHead, host: &mut Vec<u8>, append_forwarded_host: bool, keep_original: bool) {
    let end = host.len();
    if let Some(old) = head.authority().filter(|old| !old.is_empty()) {
        host.extend_from_slice(old);
        let old = &host[end..];
        if append_forwarded_host && last_forwarded_host(head) != Some(old) {
            head.headers.append_to_value("x-forwarded-host", ",", old);
        }
        if keep_original {
            head.headers.set("x-envoy-original-host", old);
        }
        host.truncate(end);
    }
    head.headers.set(":authority", host.as_slice());
}

/// Envoy does not repeat a host that stands last in the field already.
fn last_forwarded_host(head: &RequestHead) -> Option<&[u8]> {
    head.headers.get("x-forwarded-host")?.rsplit(|b| *b == b',').next().map(<[u8]>::trim_ascii)
}
