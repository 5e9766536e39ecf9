//! `header_mutation`: adds, changes and removes headers and trailers of requests and responses, and query parameters
//! (`envoy.extensions.filters.http.header_mutation.v3.HeaderMutation`). No stats, no flags.
//!
//! Mutations are made one after the other: its own first, then those of the route, from the most
//! specific level outwards unless `most_specific_header_mutations_wins`.

use std::any::Any;
use std::sync::Arc;

use nuncio_api::pb::envoy::config::common::mutation_rules::v3::{self as rules, header_mutation::Action};
use nuncio_api::pb::envoy::extensions::filters::http::header_mutation::v3 as pb;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, EncodeFilter, FilterHalves, HeaderMap, HttpFilter, HttpFilterFactory, MakeFilter, RequestHead,
    ResponseHead, Step, StreamControl,
};
use nuncio_core::matcher::StringMatcher;

use super::with_log_context;
use crate::format::{HeaderMutations, MutationValues};
use query::QueryMutation;

mod query;

supports!(CONFIG = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation" {
    mutations, most_specific_header_mutations_wins
});
supports!(ROUTE = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutationPerRoute" { mutations });
supports!(MUTATIONS = "envoy.extensions.filters.http.header_mutation.v3.Mutations" {
    request_mutations, query_parameter_mutations, response_mutations, response_trailers_mutations,
    request_trailers_mutations
});
supports!(QUERY = "envoy.config.core.v3.KeyValueMutation" { append, remove });
supports!(APPEND = "envoy.config.core.v3.KeyValueAppend" { record, action });
supports!(PAIR = "envoy.config.core.v3.KeyValuePair" { key, value });
supports!(RULE = "envoy.config.common.mutation_rules.v3.HeaderMutation" { remove, append, remove_on_match });
supports!(MATCH = "envoy.config.common.mutation_rules.v3.HeaderMutation.RemoveOnMatch" { key_matcher });
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG, &ROUTE, &MUTATIONS, &QUERY, &APPEND, &PAIR, &RULE, &MATCH];

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.header_mutation"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(ROUTE.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let proto: pb::HeaderMutation = unpack(config)?;
        Ok(Arc::new(Config {
            name: context.name.into(),
            own: Arc::new(Mutations::new(proto.mutations.as_ref())?),
            most_specific_last: proto.most_specific_header_mutations_wins,
        }))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        Ok(Arc::new(Mutations::new(unpack::<pb::HeaderMutationPerRoute>(config)?.mutations.as_ref())?))
    }
}

struct Config {
    name: Arc<str>,
    own: Arc<Mutations>,
    most_specific_last: bool,
}

struct Mutations {
    request: Vec<Mutation>,
    query: Vec<QueryMutation>,
    request_trailers: Vec<Mutation>,
    response: Vec<Mutation>,
    response_trailers: Vec<Mutation>,
}

/// One change.
pub(in crate::http) enum Mutation {
    Change(HeaderMutations),
    RemoveOnMatch(StringMatcher),
}

impl Mutations {
    fn new(proto: Option<&pb::Mutations>) -> Result<Self, ConfigError> {
        let list = |field: &str, list: &[rules::HeaderMutation]| {
            let at = |i: usize, e: ConfigError| e.within(&format!("mutations.{field}[{i}]"));
            list.iter().enumerate().map(|(i, m)| Mutation::new(m).map_err(|e| at(i, e))).collect::<Result<_, _>>()
        };
        let proto = proto.cloned().unwrap_or_default();
        let query = proto.query_parameter_mutations.iter().enumerate().map(|(i, m)| {
            QueryMutation::new(m).map_err(|e| e.within(&format!("mutations.query_parameter_mutations[{i}]")))
        });
        Ok(Self {
            request: list("request_mutations", &proto.request_mutations)?,
            query: query.collect::<Result<_, _>>()?,
            request_trailers: list("request_trailers_mutations", &proto.request_trailers_mutations)?,
            response: list("response_mutations", &proto.response_mutations)?,
            response_trailers: list("response_trailers_mutations", &proto.response_trailers_mutations)?,
        })
    }
}

impl Mutation {
    pub(in crate::http) fn new(proto: &rules::HeaderMutation) -> Result<Self, ConfigError> {
        let required = || ConfigError::new("action", "value is required");
        Ok(match proto.action.as_ref().ok_or_else(required)? {
            Action::Remove(name) => Self::Change(HeaderMutations::new(&[], std::slice::from_ref(name))?),
            Action::Append(option) => Self::Change(HeaderMutations::new(std::slice::from_ref(option), &[])?),
            Action::RemoveOnMatch(m) => {
                Self::RemoveOnMatch(StringMatcher::from_proto(m.key_matcher.as_ref().ok_or_else(required)?)?)
            }
        })
    }

    pub(in crate::http) fn apply_to_request(
        &self,
        head: &mut RequestHead,
        context: &LogContext<'_>,
        values: &mut MutationValues,
    ) {
        match self {
            Self::Change(list) => list.apply_to_request(head, context, values),
            Self::RemoveOnMatch(m) => head.headers.retain(|name, _| name[0] == b':' || !m.matches(name)),
        }
    }
}

impl Mutation {
    fn apply_to_trailers(&self, trailers: &mut HeaderMap, context: &LogContext<'_>, values: &mut MutationValues) {
        match self {
            Self::Change(list) => list.apply_to_trailers(trailers, context, values),
            Self::RemoveOnMatch(m) => trailers.retain(|name, _| !m.matches(name)),
        }
    }
}

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let half = Half {
            name: self.name.clone(),
            own: self.own.clone(),
            most_specific_last: self.most_specific_last,
            worker: worker.clone(),
            values: MutationValues::default(),
        };
        Box::new(move || FilterHalves { decode: Some(Box::new(half.fresh())), encode: Some(Box::new(half.fresh())) })
    }
}

/// Either half: they differ in which list they apply.
struct Half {
    name: Arc<str>,
    own: Arc<Mutations>,
    most_specific_last: bool,
    worker: WorkerContext,
    values: MutationValues,
}

impl Half {
    fn fresh(&self) -> Self {
        Self {
            name: self.name.clone(),
            own: self.own.clone(),
            most_specific_last: self.most_specific_last,
            worker: self.worker.clone(),
            values: MutationValues::default(),
        }
    }

    fn each(&mut self, stream: &StreamControl, mut apply: impl FnMut(&mut Self, &Mutations)) {
        let own = self.own.clone();
        apply(self, &own);
        let Some(route) = stream.route() else { return };
        let configs = route.filter_configs(&self.name);
        for i in 0..configs.len() {
            let i = if self.most_specific_last { i } else { configs.len() - 1 - i };
            if let Some(mutations) = configs[i].downcast_ref::<Mutations>() {
                apply(self, mutations);
            }
        }
    }
}

impl DecodeFilter for Half {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        self.each(stream, |this, mutations| {
            for mutation in &mutations.request {
                with_log_context(stream, &this.worker, |context| {
                    mutation.apply_to_request(head, context, &mut this.values);
                });
            }
            for mutation in &mutations.query {
                let Some(path) = head.path() else { return };
                let path = with_log_context(stream, &this.worker, |context| {
                    mutation.apply(path, &LogContext { request: Some(&*head), ..*context })
                });
                head.headers.set(":path", path);
            }
        });
        Step::CONTINUE
    }

    fn decode_trailers(&mut self, trailers: &mut HeaderMap, stream: &StreamControl) -> Step {
        self.each(stream, |this, mutations| {
            for mutation in &mutations.request_trailers {
                with_log_context(stream, &this.worker, |context| {
                    mutation.apply_to_trailers(trailers, context, &mut this.values);
                });
            }
        });
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

impl EncodeFilter for Half {
    fn encode_headers(&mut self, head: &mut ResponseHead, _end: bool, stream: &StreamControl) -> Step {
        self.each(stream, |this, mutations| {
            for mutation in &mutations.response {
                match mutation {
                    Mutation::Change(list) => with_log_context(stream, &this.worker, |context| {
                        list.apply_to_response(head, context, &mut this.values);
                    }),
                    Mutation::RemoveOnMatch(m) => head.headers.retain(|name, _| !m.matches(name)),
                }
            }
        });
        Step::CONTINUE
    }

    fn encode_trailers(&mut self, trailers: &mut HeaderMap, stream: &StreamControl) -> Step {
        self.each(stream, |this, mutations| {
            for mutation in &mutations.response_trailers {
                with_log_context(stream, &this.worker, |context| {
                    mutation.apply_to_trailers(trailers, context, &mut this.values);
                });
            }
        });
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, FILTERS};

    fn filter(rest: &str) -> String {
        format!(r#"{{name: hm, typed_config: {{"@type": {FILTERS}.header_mutation.v3.HeaderMutation, {rest}}}}}"#)
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn mutations_are_made_in_order_and_see_the_request() {
        let bench = Bench::new(
            &filter(
                "mutations: {request_mutations: [{append: {header: {key: x-a, value: '%REQ(:path)%'}}}, \
                 {append: {header: {key: x-b, value: '%REQ(x-a)%'}}}, {remove: x-gone}, \
                 {remove_on_match: {key_matcher: {prefix: x-z}}}], \
                 response_mutations: [{append: {header: {key: x-r, value: r}}}, {remove: x-up}]}",
            ),
            "{match: {prefix: /}, route: {cluster: c}}",
        );
        let answer = bench.get("/p", "x-gone: 1\r\nx-zz: 1\r\n").await;
        assert_eq!(answer.upstream_field("x-a"), Some("/p"));
        assert_eq!(answer.upstream_field("x-b"), Some("/p"));
        assert_eq!((answer.upstream_field("x-gone"), answer.upstream_field("x-zz")), (None, None));
        assert_eq!(answer.field("x-r"), Some("r"));
    }

    // Expected: values and actions recorded from Envoy 1.40, which decodes the other parameters without encoding them
    // again, and sorts them.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn query_parameters_are_changed_and_never_break_the_request_line() {
        let path = async |mutation: &str, path: &str| {
            let own = format!("mutations: {{query_parameter_mutations: [{mutation}]}}");
            let bench = Bench::new(&filter(&own), "{match: {prefix: /}, route: {cluster: c}}");
            let answer = bench.get(path, "x-h: h v\r\n").await;
            answer.upstream.split(' ').nth(1).unwrap_or_default().to_owned()
        };
        let add = |value: &str, action: &str| {
            format!("{{append: {{record: {{key: nn, value: '{value}'}}, action: {action}}}}}")
        };
        let append = add("v", "APPEND_IF_EXISTS_OR_ADD");
        assert_eq!(path(&append, "/p").await, "/p?nn=v");
        assert_eq!(path(&append, "/p?o=%20a+b%2f&nn=1").await, "/p?o=%20a+b%2f&nn=1&nn=v");
        let overwrite = add("v w&x=1%%#?+é", "OVERWRITE_IF_EXISTS_OR_ADD");
        assert_eq!(path(&overwrite, "/p?nn=1&o&nn=2").await, "/p?o&nn=v%20w%26x%3D1%25%23%3F%2B%C3%A9");
        assert_eq!(path(&add("v", "ADD_IF_ABSENT"), "/p?n%6e=1").await, "/p?n%6e=1");
        assert_eq!(path(&add("v", "OVERWRITE_IF_EXISTS"), "/p").await, "/p");
        assert_eq!(path(&add("%REQ(x-h)%", "ADD_IF_ABSENT"), "/p?").await, "/p?nn=h%20v");
        assert_eq!(path("{remove: nn}", "/p?nn=1").await, "/p");
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn the_route_s_mutations_follow_the_filter_s() {
        let bench = Bench::new(
            &filter("mutations: {request_mutations: [{append: {header: {key: x-a, value: own}}}]}"),
            &format!(
                r#"{{match: {{prefix: /}}, route: {{cluster: c}}, typed_per_filter_config: {{hm: {{"@type":
                {FILTERS}.header_mutation.v3.HeaderMutationPerRoute, mutations: {{request_mutations: [{{append:
                {{header: {{key: x-a, value: route}}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}}}}]}}}}}}}}"#
            ),
        );
        assert_eq!(bench.get("/", "").await.upstream_field("x-a"), Some("route"));
    }
}
