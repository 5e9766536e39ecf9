//! Redirects: where the client is sent instead.

use nuncio_api::pb::envoy::config::route::v3::redirect_action::{
    PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier,
};
use nuncio_api::pb::envoy::config::route::v3::{RedirectAction, virtual_host::TlsRequirementType};
use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;
use nuncio_core::matcher::RegexRewrite;

use super::rewrite::{PathRewrite, formatter};
use crate::format::Formatter;

supports!(pub(super) REDIRECT = "envoy.config.route.v3.RedirectAction" {
    https_redirect, scheme_redirect, host_redirect, port_redirect, path_redirect, prefix_rewrite, regex_rewrite,
    path_rewrite, response_code, strip_query
});

#[derive(Debug, Default)]
pub struct Redirect {
    scheme: Option<Box<str>>,
    host: Box<str>,
    port: u32,
    /// Instead of the whole path; the request's query stays unless this has its own.
    path: Box<str>,
    /// The same with `%COMMAND%`s; the request's path if it comes out empty.
    path_format: Option<Box<Formatter>>,
    /// Of the request's path, before the location is written.
    pub(super) rewrite: PathRewrite,
    strip_query: bool,
    pub(super) code: u16,
    /// The redirect of `require_tls`: drops the request's port, whatever it is.
    drop_port: bool,
}

impl Redirect {
    pub(super) fn from_proto(message: &RedirectAction) -> Result<Self, ConfigError> {
        let mut redirect = Self {
            scheme: match &message.scheme_rewrite_specifier {
                Some(SchemeRewriteSpecifier::HttpsRedirect(true)) => Some("https".into()),
                Some(SchemeRewriteSpecifier::SchemeRedirect(scheme)) if !scheme.is_empty() => {
                    Some(scheme.as_str().into())
                }
                _ => None,
            },
            host: message.host_redirect.as_str().into(),
            port: message.port_redirect,
            strip_query: message.strip_query,
            code: match message.response_code() {
                RedirectResponseCode::MovedPermanently => 301,
                RedirectResponseCode::Found => 302,
                RedirectResponseCode::SeeOther => 303,
                RedirectResponseCode::TemporaryRedirect => 307,
                RedirectResponseCode::PermanentRedirect => 308,
            },
            ..Self::default()
        };
        match &message.path_rewrite_specifier {
            Some(PathRewriteSpecifier::PathRedirect(path)) => redirect.path = path.as_str().into(),
            Some(PathRewriteSpecifier::PrefixRewrite(prefix)) if !prefix.is_empty() => {
                redirect.rewrite = PathRewrite::Prefix(prefix.as_str().into());
            }
            Some(PathRewriteSpecifier::RegexRewrite(regex)) => {
                let rewrite = RegexRewrite::from_proto(regex).map_err(|e| e.within("regex_rewrite"))?;
                redirect.rewrite = PathRewrite::Regex(Box::new(rewrite));
            }
            Some(PathRewriteSpecifier::PathRewrite(text)) if !text.is_empty() => {
                let format = formatter(text, true, "path_rewrite").map_err(|e| e.within("path_rewrite"))?;
                redirect.path_format = Some(format);
            }
            _ => {}
        }
        Ok(redirect)
    }

    /// What a virtual host with `require_tls` answers to plaintext.
    pub(super) fn to_https() -> Self {
        Self { scheme: Some("https".into()), code: 301, drop_port: true, ..Self::default() }
    }

    /// The location for a request whose path was rewritten already.
    pub(super) fn location(&self, head: &RequestHead, context: &LogContext<'_>) -> Vec<u8> {
        let scheme = self.scheme.as_deref().map_or(head.scheme(), str::as_bytes);
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(scheme);
        out.extend_from_slice(b"://");
        if self.host.is_empty() {
            out.extend_from_slice(request_host(head, scheme, self.port != 0 || self.drop_port));
        } else {
            out.extend_from_slice(self.host.as_bytes());
        }
        if self.port != 0 {
            out.extend_from_slice(format!(":{}", self.port).as_bytes());
        }
        let mut formatted = Vec::new();
        let replacement = match &self.path_format {
            None => self.path.as_bytes(),
            Some(format) => {
                format.format(&LogContext { request: Some(head), ..*context }, &mut formatted);
                &formatted
            }
        };
        self.write_path(head.path().unwrap_or_default(), replacement, &mut out);
        out
    }

    fn write_path(&self, path: &[u8], replacement: &[u8], out: &mut Vec<u8>) {
        let query = memchr::memchr(b'?', path);
        let own_query = replacement.contains(&b'?');
        let start = out.len();
        if replacement.is_empty() {
            out.extend_from_slice(path);
        } else {
            out.extend_from_slice(replacement);
            if let Some(query) = query
                && !own_query
            {
                out.extend_from_slice(&path[query..]);
            }
        }
        if out.get(start) != Some(&b'/') {
            out.insert(start, b'/');
        }
        // `strip_query` is about the request's query, not the configured one.
        if self.strip_query
            && !own_query
            && let Some(query) = memchr::memchr(b'?', &out[start..])
        {
            out.truncate(start + query);
        }
    }
}

/// Whether a request must be sent to https first. What counts is what the client was told, in
/// `x-forwarded-proto`.
pub(super) fn needs_tls(requirement: TlsRequirementType, head: &RequestHead) -> bool {
    let plain = || head.headers.get("x-forwarded-proto").unwrap_or(head.scheme()) != b"https";
    match requirement {
        TlsRequirementType::None => false,
        TlsRequirementType::All => plain(),
        TlsRequirementType::ExternalOnly => plain() && head.headers.get("x-envoy-internal") != Some(b"true"),
    }
}

/// The request's authority without a port that would be wrong: the default one of the scheme that
/// is being left, or any if the port is replaced.
fn request_host<'a>(head: &'a RequestHead, scheme: &[u8], drop_port: bool) -> &'a [u8] {
    let host = head.authority().unwrap_or_default();
    let Some(colon) = super::domains::port_start(host) else { return host };
    let told = head.headers.get("x-forwarded-proto").unwrap_or(head.scheme());
    let default: &[u8] = match told {
        b"https" => b":443",
        b"http" => b":80",
        _ => b"",
    };
    if drop_port || scheme != told && host[colon..] == *default { &host[..colon] } else { host }
}
