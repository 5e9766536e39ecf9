//! `basic_auth`: a user name and a password (RFC 7617) from a list in htpasswd's SHA form
//! (`envoy.extensions.filters.http.basic_auth.v3.BasicAuth`, per route `BasicAuthPerRoute` with other users).
//!
//! Stats `http.<prefix>.basic_auth.{allowed,denied}`. 401 with details `no_credential_for_basic_auth`,
//! `invalid_scheme_…`, `invalid_format_…` or `invalid_credential_for_basic_auth`.

use std::any::Any;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA1_OUTPUT_LEN, digest};
use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use nuncio_api::pb::envoy::config::core::v3::DataSource;
use nuncio_api::pb::envoy::extensions::filters::http::basic_auth::v3 as pb;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, FilterHalves, HttpFilter, HttpFilterFactory, LocalReply, MakeFilter, RequestHead, Step, StreamControl,
};
use nuncio_core::stats::{ScopeId, Stats};

use super::http_scope;
use crate::http::router::read_body;

supports!(CONFIG = "envoy.extensions.filters.http.basic_auth.v3.BasicAuth" {
    users, forward_username_header, authentication_header, allow_missing
});
supports!(ROUTE = "envoy.extensions.filters.http.basic_auth.v3.BasicAuthPerRoute" { users });
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG, &ROUTE];

nuncio_core::stats! {
    /// Requests with and without good credentials.
    pub BasicAuth at ["basic_auth."] {
        counter ALLOWED;
        counter DENIED;
    }
}

const MAX_USERS: u32 = 16 << 20;
/// Clients may leave the padding out.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.basic_auth"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(ROUTE.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let proto: pb::BasicAuth = unpack(config)?;
        let lower = |name: &String| name.to_ascii_lowercase();
        let header = Some(&proto.authentication_header).filter(|name| !name.is_empty());
        Ok(Arc::new(Config(Arc::new(Settings {
            name: context.name.into(),
            scope: http_scope::<BasicAuth>(context),
            users: Arc::new(Users::new(proto.users.as_ref())?),
            header: header.map_or_else(|| "authorization".to_owned(), lower),
            forward: lower(&proto.forward_username_header),
            allow_missing: proto.allow_missing,
        }))))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        Ok(Arc::new(Users::new(unpack::<pb::BasicAuthPerRoute>(config)?.users.as_ref())?))
    }
}

/// User names and the SHA-1 of their passwords.
struct Users(HashMap<String, Vec<u8>>);

impl Users {
    fn new(source: Option<&DataSource>) -> Result<Self, ConfigError> {
        let refuse = |reason: &str| ConfigError::new("users", format!("basic auth: {reason}"));
        let text = read_body(source.unwrap_or(&DataSource::default()), MAX_USERS).map_err(|e| e.within("users"))?;
        let text = std::str::from_utf8(&text).map_err(|_| refuse("is not UTF-8"))?;
        let mut users = HashMap::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, hash) =
                line.split_once(':').ok_or_else(|| refuse("invalid htpasswd format, username & hash are expected"))?;
            if name.is_empty() || hash.is_empty() {
                return Err(refuse("empty user name or password"));
            }
            let hash =
                hash.strip_prefix("{SHA}").ok_or_else(|| refuse("unsupported htpasswd format: please use {SHA}"))?;
            let hash = STANDARD.decode(hash).ok().filter(|hash| hash.len() >= SHA1_OUTPUT_LEN);
            let hash = hash.ok_or_else(|| refuse("invalid htpasswd format, invalid SHA hash length"))?;
            if users.insert(name.to_owned(), hash).is_some() {
                return Err(refuse("duplicate users in htpasswd"));
            }
        }
        Ok(Self(users))
    }

    fn know(&self, name: &str, password: &[u8]) -> bool {
        let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, password);
        self.0.get(name).is_some_and(|known| verify_slices_are_equal(known, hash.as_ref()).is_ok())
    }
}

struct Settings {
    name: Arc<str>,
    scope: ScopeId,
    users: Arc<Users>,
    header: String,
    forward: String,
    allow_missing: bool,
}

struct Config(Arc<Settings>);

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let filter = Filter { settings: self.0.clone(), stats: Rc::new(Stats::new(&worker.stats, self.0.scope)) };
        Box::new(move || FilterHalves { decode: Some(Box::new(filter.clone())), encode: None })
    }
}

#[derive(Clone)]
struct Filter {
    settings: Arc<Settings>,
    stats: Rc<Stats<BasicAuth>>,
}

impl Filter {
    fn refuse(&self, head: &RequestHead, what: &str, details: &'static str) -> Step {
        self.stats.inc(DENIED);
        let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).replace('"', "%22");
        let (scheme, host, path) = (text(Some(head.scheme())), text(head.authority()), text(head.path()));
        let realm = format!("Basic realm=\"{scheme}://{host}{path}\"");
        let reply = LocalReply::new(401, details).body(format!("User authentication failed. {what}."));
        Step::respond(reply.header("www-authenticate", realm))
    }
}

impl DecodeFilter for Filter {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        let settings = self.settings.clone();
        let users = stream.route_config::<Users>(&settings.name).unwrap_or_else(|| settings.users.clone());
        let Some(value) = head.headers.get(&settings.header) else {
            if settings.allow_missing {
                // Nobody may say our word for it.
                head.headers.remove_aliases(&settings.forward);
                return Step::CONTINUE;
            }
            return self.refuse(head, "Missing username and password", "no_credential_for_basic_auth");
        };
        let Some(token) = value.strip_prefix(b"Basic ") else {
            let what = "Expected 'Basic' authentication scheme";
            return self.refuse(head, what, "invalid_scheme_for_basic_auth");
        };
        let pair = LENIENT.decode(token).ok().and_then(|pair| {
            let at = pair.iter().position(|b| *b == b':')?;
            Some((std::str::from_utf8(&pair[..at]).ok()?.to_owned(), pair[at + 1..].to_vec()))
        });
        let Some((name, password)) = pair else {
            return self.refuse(head, "Invalid basic credential format", "invalid_format_for_basic_auth");
        };
        if !users.know(&name, &password) {
            let what = "Invalid username/password combination";
            return self.refuse(head, what, "invalid_credential_for_basic_auth");
        }
        if !settings.forward.is_empty() {
            head.headers.remove_aliases(&settings.forward);
            head.headers.append(&settings.forward, name);
        }
        self.stats.inc(ALLOWED);
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, FILTERS};
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    // Expected: recorded from Envoy 1.40.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn known_users_pass_and_others_are_told_why_not() {
        let users = |list: &str| format!(r#"users: {{inline_string: "{list}"}}"#);
        let own = users(&format!("joe:{{SHA}}{}", sha("pw")));
        let route = users(&format!("zoe:{{SHA}}{}", sha("z")));
        let bench = Bench::new(
            &format!(
                r#"{{name: b, typed_config: {{"@type": {FILTERS}.basic_auth.v3.BasicAuth, forward_username_header: X-User, {own}}}}}"#
            ),
            &format!(
                r#"{{match: {{prefix: /own}}, route: {{cluster: c}}, typed_per_filter_config: {{b: {{"@type": {FILTERS}.basic_auth.v3.BasicAuthPerRoute, {route}}}}}}}, {{match: {{prefix: /}}, route: {{cluster: c}}}}"#
            ),
        );
        let with = |pair: &str| format!("authorization: Basic {}\r\nx-user: spoof\r\n", STANDARD.encode(pair));
        let answer = bench.get("/", &with("joe:pw")).await;
        assert_eq!((answer.status(), answer.upstream_field("x-user")), ("200", Some("joe")));
        let answer = bench.get("/a", "").await;
        assert_eq!(answer.body(), "User authentication failed. Missing username and password.");
        assert_eq!(answer.field("www-authenticate"), Some("Basic realm=\"http://web.test/a\""));
        for (fields, text) in [
            (with("joe:x"), "Invalid username/password combination."),
            (with("bob:pw"), "Invalid username/password combination."),
            (with("joe"), "Invalid basic credential format."),
            ("authorization: Bearer x\r\n".into(), "Expected 'Basic' authentication scheme."),
        ] {
            let answer = bench.get("/", &fields).await;
            assert_eq!((answer.status(), answer.body()), ("401", &*format!("User authentication failed. {text}")));
        }
        assert_eq!(bench.get("/own", &with("zoe:z")).await.status(), "200");
        assert_eq!(bench.get("/own", &with("joe:pw")).await.status(), "401");
        assert_eq!([bench.stat("http.in.basic_auth.allowed"), bench.stat("http.in.basic_auth.denied")], [2, 6]);
    }

    fn sha(password: &str) -> String {
        STANDARD.encode(super::digest(&super::SHA1_FOR_LEGACY_USE_ONLY, password.as_bytes()))
    }
}
