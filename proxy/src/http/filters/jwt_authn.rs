//! `jwt_authn`: requests must carry good JSON Web Tokens where the rules say so
//! (`envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication`, per route `PerRouteConfig`).
//!
//! The first rule that matches decides. A good token's claims go to headers and metadata, and the token
//! itself no further unless `forward`. Without one: 401, or 403 if only the audience is wrong, details
//! `jwt_authn_access_denied{…}`. Stats `http.<prefix>.jwt_authn.[<stat_prefix>.]…`.
//!
//! `token` reads tokens, `jwks` verifies, `remote` fetches keys, `provider` and `requirement` are the
//! configuration, `extract` knows where tokens are, `status` has the words for what went wrong.

use std::any::Any;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::filters::http::jwt_authn::v3::{
    self as pb, per_route_config::RequirementSpecifier, requirement_rule::RequirementType,
};
use nuncio_api::pb::google::protobuf::{Any as ProtoAny, Struct, value::Kind};
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, FilterHalves, HttpFilter, HttpFilterFactory, LocalReply, MakeFilter, Outcome, RequestHead, Step,
    StreamControl,
};
use nuncio_core::stats::{List, Scope, ScopeId, Stats};
use nuncio_core::stream_info::FilterState;

use super::declared;
use crate::http::router::{MatchContext, RouteMatch};
use provider::{Provider, Source, of};
use remote::Remote;
use requirement::{Evaluation, Keys, Requirement, Wants};
use status::Status;

mod extract;
mod jwks;
mod provider;
mod remote;
mod requirement;
mod status;
mod token;

supports!(CONFIG = "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication" {
    providers, rules, filter_state_rules, bypass_cors_preflight, requirement_map, strip_failure_response, stat_prefix
});
supports!(PROVIDER = "envoy.extensions.filters.http.jwt_authn.v3.JwtProvider" {
    issuer, audiences, subjects, require_expiration, max_lifetime, forward, from_headers, from_params, from_cookies,
    forward_payload_header, pad_forward_payload_header, payload_in_metadata, normalize_payload_in_metadata,
    header_in_metadata, failed_status_in_metadata, clock_skew_seconds, claim_to_headers, clear_route_cache,
    remote_jwks, local_jwks
} noop {
    jwt_cache_config: "every token is verified"
});
supports!(NORMALIZE = "envoy.extensions.filters.http.jwt_authn.v3.JwtProvider.NormalizePayload" {
    space_delimited_claims
});
supports!(CACHE = "envoy.extensions.filters.http.jwt_authn.v3.JwtCacheConfig" {} noop {
    jwt_cache_size: "every token is verified",
    jwt_max_token_size: "every token is verified"
});
supports!(REMOTE = "envoy.extensions.filters.http.jwt_authn.v3.RemoteJwks" {
    http_uri, cache_duration, async_fetch, retry_policy
});
supports!(URI = "envoy.config.core.v3.HttpUri" { uri, cluster, timeout });
supports!(ASYNC_FETCH = "envoy.extensions.filters.http.jwt_authn.v3.JwksAsyncFetch" { failed_refetch_duration } noop {
    fast_listener: "a listener never waits for keys; requests do"
});
supports!(HEADER = "envoy.extensions.filters.http.jwt_authn.v3.JwtHeader" { name, value_prefix });
supports!(CLAIM = "envoy.extensions.filters.http.jwt_authn.v3.JwtClaimToHeader" {
    header_name, claim_name, claim_path
});
supports!(SEGMENT = "envoy.extensions.filters.http.jwt_authn.v3.JwtClaimToHeader.PathSegment" { key });
supports!(RULE = "envoy.extensions.filters.http.jwt_authn.v3.RequirementRule" { r#match, requires, requirement_name });
supports!(STATE_RULE = "envoy.extensions.filters.http.jwt_authn.v3.FilterStateRule" { name, requires });
supports!(REQUIREMENT = "envoy.extensions.filters.http.jwt_authn.v3.JwtRequirement" {
    provider_name, provider_and_audiences, requires_any, requires_all, allow_missing_or_failed, allow_missing
});
// What `allow_missing` and `allow_missing_or_failed` are set to.
supports!(EMPTY = "google.protobuf.Empty" {});
supports!(AUDIENCES = "envoy.extensions.filters.http.jwt_authn.v3.ProviderWithAudiences" { provider_name, audiences });
supports!(ANY = "envoy.extensions.filters.http.jwt_authn.v3.JwtRequirementOrList" { requirements });
supports!(ALL = "envoy.extensions.filters.http.jwt_authn.v3.JwtRequirementAndList" { requirements });
supports!(ROUTE = "envoy.extensions.filters.http.jwt_authn.v3.PerRouteConfig" { disabled, requirement_name });
pub(super) static SUPPORTED: &[&Entry] = &[
    &CONFIG,
    &PROVIDER,
    &NORMALIZE,
    &CACHE,
    &REMOTE,
    &URI,
    &ASYNC_FETCH,
    &HEADER,
    &CLAIM,
    &SEGMENT,
    &RULE,
    &STATE_RULE,
    &REQUIREMENT,
    &EMPTY,
    &AUDIENCES,
    &ANY,
    &ALL,
    &ROUTE,
];

nuncio_core::stats! {
    /// What became of requests and of fetches of keys.
    pub JwtAuthn {
        counter ALLOWED;
        counter CORS_PREFLIGHT_BYPASSED;
        counter DENIED;
        counter JWKS_FETCH_FAILED;
        counter JWKS_FETCH_SUCCESS;
        counter JWT_CACHE_HIT;
        counter JWT_CACHE_MISS;
    }
}

static SCOPE: Scope = Scope { root: "http.", lists: &[JwtAuthn::descriptors] };

/// Of metadata; Envoy's.
const NAMESPACE: &str = "envoy.filters.http.jwt_authn";
/// Of a path in `www-authenticate`.
const MAX_PATH: usize = 256;

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        NAMESPACE
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(ROUTE.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        Ok(Arc::new(Config(Arc::new(Settings::new(&unpack(config)?, context)?))))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        Ok(Arc::new(match unpack::<pb::PerRouteConfig>(config)?.requirement_specifier {
            Some(RequirementSpecifier::RequirementName(name)) => Route(Some(name)),
            _ => Route(None),
        }))
    }
}

/// The requirement that a route names; `None` switches the filter off.
struct Route(Option<String>);

struct Settings {
    name: Arc<str>,
    scope: ScopeId,
    providers: Vec<Provider>,
    rules: Vec<(RouteMatch, Requirement)>,
    /// Asked where no rule matches.
    state_rules: StateRules,
    named: HashMap<String, Requirement>,
    bypass_cors_preflight: bool,
    strip_failure: bool,
}

impl Settings {
    fn new(proto: &pb::JwtAuthentication, context: &FactoryContext<'_>) -> Result<Self, ConfigError> {
        let mut names: Vec<&String> = proto.providers.keys().collect();
        names.sort();
        let providers = names.iter().map(|name| {
            Provider::new(name, &proto.providers[*name]).map_err(|e| e.within(&format!("providers.{name}")))
        });
        let providers: Vec<Provider> = providers.collect::<Result<_, _>>()?;
        let indexes: HashMap<String, usize> = names.iter().enumerate().map(|(i, name)| ((*name).clone(), i)).collect();
        let named = |name: &String| {
            let requirement = proto.requirement_map.get(name);
            let missing = || ConfigError::new("requirement_name", format!("Wrong requirement_name: {name}"));
            Requirement::new(requirement.ok_or_else(missing)?, &indexes)
        };
        let rules = proto.rules.iter().enumerate().map(|(i, rule)| {
            let requirement = match &rule.requirement_type {
                Some(RequirementType::Requires(requirement)) => Requirement::new(requirement, &indexes),
                Some(RequirementType::RequirementName(name)) => named(name),
                None => Ok(Requirement::None),
            };
            let path = format!("rules[{i}]");
            let matches = RouteMatch::from_proto(rule.r#match.as_ref().unwrap_or(&Default::default()));
            Ok((
                matches.map_err(|e| e.within("match").within(&path))?,
                requirement.map_err(|e| e.within("requires").within(&path))?,
            ))
        });
        let state_rules = proto.filter_state_rules.as_ref().map(|rules| StateRules::new(rules, &indexes));
        let state_rules = state_rules.transpose().map_err(|e| e.within("filter_state_rules"))?.unwrap_or_default();
        let dot = if proto.stat_prefix.is_empty() { "" } else { "." };
        let prefix = format!("{}.jwt_authn{dot}{}", context.stat_prefix, proto.stat_prefix);
        Ok(Self {
            name: context.name.into(),
            scope: declared::<JwtAuthn>(context, &SCOPE, &prefix),
            rules: rules.collect::<Result<_, ConfigError>>()?,
            state_rules,
            named: proto
                .requirement_map
                .keys()
                .map(|name| Ok((name.clone(), named(name)?)))
                .collect::<Result<_, ConfigError>>()
                .map_err(|e| e.within("requirement_map"))?,
            providers,
            bypass_cors_preflight: proto.bypass_cors_preflight,
            strip_failure: proto.strip_failure_response,
        })
    }
}

/// Requirements by what filters before this one left for it.
#[derive(Default)]
struct StateRules {
    name: String,
    requirements: HashMap<String, Requirement>,
}

impl StateRules {
    fn new(proto: &pb::FilterStateRule, providers: &HashMap<String, usize>) -> Result<Self, ConfigError> {
        let read = |(value, requirement): (&String, _)| {
            let requirement = Requirement::new(requirement, providers);
            Ok((value.clone(), requirement.map_err(|e| e.within(&format!("requires[{value}]")))?))
        };
        let requirements = proto.requires.iter().map(read).collect::<Result<_, ConfigError>>()?;
        Ok(Self { name: proto.name.clone(), requirements })
    }

    /// What the stream says goes before what its connection says.
    fn find(&self, stream: &FilterState, connection: Option<&FilterState>) -> Option<&Requirement> {
        if self.requirements.is_empty() {
            return None;
        }
        let object = stream.get(&self.name).or_else(|| connection?.get(&self.name))?;
        self.requirements.get(&object.text()?)
    }
}

struct Config(Arc<Settings>);

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let stats = Rc::new(Stats::new(&worker.stats, self.0.scope));
        let remote = self.0.providers.iter().map(|provider| match &provider.source {
            Source::Remote(config) => Some(Remote::new(config, worker, &stats)),
            Source::Local(_) => None,
        });
        let remote = remote.collect();
        let shared = Rc::new(Shared { settings: self.0.clone(), worker: worker.clone(), stats, remote });
        Box::new(move || {
            let filter = Filter { shared: shared.clone(), asked: Vec::new(), waiting_for: None };
            FilterHalves { decode: Some(Box::new(filter)), encode: None }
        })
    }
}

struct Shared {
    settings: Arc<Settings>,
    worker: WorkerContext,
    stats: Rc<Stats<JwtAuthn>>,
    /// By provider.
    remote: Vec<Option<Rc<Remote>>>,
}

impl Shared {
    fn requirement(&self, head: &RequestHead, stream: &StreamControl) -> Result<Option<&Requirement>, LocalReply> {
        let settings = &self.settings;
        if let Some(route) = stream.route_config::<Route>(&settings.name) {
            let Some(name) = &route.0 else { return Ok(None) };
            return settings.named.get(name).map(Some).ok_or_else(|| self.wrong_name(name));
        }
        let connection = stream.connection();
        let info = stream.info();
        let context = MatchContext {
            random: self.worker.rng.u64(),
            runtime: &*self.worker.runtime,
            connection: connection.as_deref(),
            info: Some(&info),
        };
        let path = head.path_without_query();
        let rule = settings.rules.iter().find(|(matches, _)| matches.matches(path, head, &context));
        if let Some((_, requirement)) = rule {
            return Ok(Some(requirement));
        }
        let of_connection = connection.as_ref().map(|connection| connection.filter_state.borrow());
        Ok(settings.state_rules.find(&info.filter_state, of_connection.as_deref()))
    }

    fn wrong_name(&self, name: &str) -> LocalReply {
        let mut known: Vec<&str> = self.settings.named.keys().map(String::as_str).collect();
        known.sort_unstable();
        let reason = format!("Wrong requirement_name: {name}. It should be one of [{}]", known.join(","));
        LocalReply::new(403, details(&reason)).body(format!("Failed JWT authentication: {reason}"))
    }

    fn refusal(&self, status: Status, head: &RequestHead) -> LocalReply {
        let code = if status == Status::AudienceNotAllowed { 403 } else { 401 };
        let reply = LocalReply::new(code, details(status.text()));
        if self.settings.strip_failure {
            return reply;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('"', "%22");
        let path = head.path().unwrap_or_default();
        let path = text(&path[..path.len().min(MAX_PATH)]);
        let host = text(head.authority().unwrap_or_default());
        let mut realm = format!("Bearer realm=\"{}://{host}{path}\"", text(head.scheme()));
        if status != Status::Missed {
            realm.push_str(", error=\"invalid_token\"");
        }
        reply.body(status.text()).header("www-authenticate", realm)
    }
}

fn details(reason: &str) -> String {
    format!("jwt_authn_access_denied{{{}}}", reason.replace(' ', "_"))
}

struct Filter {
    shared: Rc<Shared>,
    /// Providers whose keys were fetched for this request.
    asked: Vec<usize>,
    waiting_for: Option<usize>,
}

impl Filter {
    fn decide(&mut self, head: &mut RequestHead, stream: &StreamControl) -> Step {
        let shared = self.shared.clone();
        let requirement = match shared.requirement(head, stream) {
            Ok(Some(requirement)) => requirement,
            Ok(None) => &Requirement::None,
            Err(reply) => {
                shared.stats.inc(DENIED);
                return Step::respond(reply);
            }
        };
        let providers = &shared.settings.providers;
        let keys = |index: usize| {
            let remote = shared.remote[index].as_ref();
            match (providers[index].local_keys(), remote.and_then(|remote| remote.keys())) {
                (Some(local), _) => local,
                (None, Some(keys)) => Keys::Remote(keys),
                (None, None) if self.asked.contains(&index) => Keys::Failed,
                (None, None) => Keys::Wanted,
            }
        };
        let now = shared.worker.clock.since_epoch().as_secs();
        let mut evaluation = Evaluation { providers, head, now, keys, good: Vec::new(), bad: Vec::new(), seen: 0 };
        let status = match evaluation.run(requirement) {
            Ok(status) => status,
            Err(Wants(index)) => {
                self.waiting_for = Some(index);
                return match &shared.remote[index] {
                    Some(remote) => Step::later(remote.fetch()),
                    None => Step::CONTINUE,
                };
            }
        };
        let Evaluation { good, bad, seen, .. } = evaluation;
        shared.stats.add(JWT_CACHE_MISS, seen);
        requirement.providers(providers.len(), &mut |index| providers[index].sanitize(&mut head.headers));
        tell_failures(providers, &bad, stream);
        if status != Status::Ok {
            shared.stats.inc(DENIED);
            return Step::respond(shared.refusal(status, head));
        }
        shared.stats.inc(ALLOWED);
        for good in good {
            let provider = &providers[good.provider];
            provider.tell_headers(&good.jwt, &mut head.headers);
            let mut metadata = Struct::default();
            provider.tell_metadata(&good.jwt, &mut metadata);
            if !metadata.fields.is_empty() {
                stream.info_mut().dynamic_metadata.merge(NAMESPACE, metadata);
            }
            if !provider.forward {
                good.location.remove_from(head);
            }
            if provider.changes_route() {
                stream.clear_route();
            }
        }
        Step::CONTINUE
    }
}

fn tell_failures(providers: &[Provider], bad: &[(usize, Status)], stream: &StreamControl) {
    for (index, status) in bad.iter().filter(|(index, _)| !providers[*index].failed_status.is_empty()) {
        let fields = [
            ("code".to_owned(), of(Kind::NumberValue(status.code().into()))),
            ("message".to_owned(), of(Kind::StringValue(status.text().to_owned()))),
        ];
        let what = of(Kind::StructValue(Struct { fields: fields.into() }));
        let fields = [(providers[*index].failed_status.clone(), what)];
        stream.info_mut().dynamic_metadata.merge(NAMESPACE, Struct { fields: fields.into() });
    }
}

fn is_cors_preflight(head: &RequestHead) -> bool {
    let says = |name| head.headers.get(name).is_some_and(|value| !value.is_empty());
    head.method() == b"OPTIONS" && says("origin") && says("access-control-request-method")
}

impl DecodeFilter for Filter {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        if self.shared.settings.bypass_cors_preflight && is_cors_preflight(head) {
            self.shared.stats.inc(CORS_PREFLIGHT_BYPASSED);
            return Step::CONTINUE;
        }
        self.decide(head, stream)
    }

    fn resume(&mut self, _fetched: Outcome, head: &mut RequestHead, stream: &StreamControl) -> Step {
        // Once a request: if there are no keys now, there are none for it.
        self.asked.extend(self.waiting_for.take());
        self.decide(head, stream)
    }

    fn reset(&mut self) {
        self.asked.clear();
        self.waiting_for = None;
    }
}

#[cfg(test)]
mod tests;
