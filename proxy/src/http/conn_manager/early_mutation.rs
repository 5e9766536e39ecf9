//! `early_header_mutation_extensions`: what the operator changes in a request's head before anything is made of it.
//! The mutations see the normalised path and the head as the client sent it; the hygiene that follows takes out what
//! only internal requests may say, also where a mutation put it.

use std::sync::Arc;

use nuncio_api::pb::envoy::config::core::v3::TypedExtensionConfig;
use nuncio_api::pb::envoy::extensions::http::early_header_mutation::header_mutation::v3 as pb;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;

use crate::format::MutationValues;
use crate::http::filters::header_mutation::Mutation;

supports!(CONFIG = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation" { mutations });

pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG];

/// The mutations of all extensions, in order.
#[derive(Clone, Default)]
pub struct EarlyMutations(Arc<[Mutation]>);

impl EarlyMutations {
    pub fn from_protos(protos: &[TypedExtensionConfig]) -> Result<Self, ConfigError> {
        let mut all = Vec::new();
        for (i, proto) in protos.iter().enumerate() {
            let at = |e: ConfigError| e.within(&format!("early_header_mutation_extensions[{i}].typed_config"));
            let Some(any) = &proto.typed_config else {
                return Err(at(ConfigError::new("", "value is required")));
            };
            if nuncio_api::any::type_name(&any.type_url) != CONFIG.message {
                let (name, url) = (&proto.name, &any.type_url);
                let text = format!("Didn't find a registered implementation for '{name}' with type URL: '{url}'");
                return Err(at(ConfigError::new("", text)));
            }
            let config: pb::HeaderMutation = unpack(any).map_err(|e| at(ConfigError::new(e.path, e.reason)))?;
            for (m, mutation) in config.mutations.iter().enumerate() {
                all.push(Mutation::new(mutation).map_err(|e| at(e.within(&format!("mutations[{m}]"))))?);
            }
        }
        Ok(Self(all.into()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn apply(&self, head: &mut RequestHead, context: &LogContext<'_>, values: &mut MutationValues) {
        self.0.iter().for_each(|mutation| mutation.apply_to_request(head, context, values));
    }
}

#[cfg(test)]
mod tests {
    use crate::http::filters::testing::Bench;

    // envoy-observed.md, "unsafe or unhelpful": with Envoy 1.40 a mutation grants a stranger what only peers may ask for.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_mutation_makes_no_stranger_internal() {
        let mutation =
            "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation";
        let add = |name: &str| format!("{{append: {{header: {{key: {name}, value: '5'}}}}}}");
        let added = ["x-early", "x-envoy-max-retries", "x-envoy-ip-tags", "x-envoy-internal"].map(add).join(", ");
        let bench = Bench::with(&format!(
            "{{stat_prefix: in, early_header_mutation_extensions: [{{name: m, typed_config: {{'@type': {mutation}, \
             mutations: [{added}]}}}}], http_filters: [ROUTER], route_config: {{virtual_hosts: [{{name: v, domains: \
             ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: c}}}}]}}]}}}}"
        ));
        let answer = bench.get("/", "").await;
        let seen = ["x-early", "x-envoy-max-retries", "x-envoy-ip-tags", "x-envoy-internal"]
            .map(|name| answer.upstream_field(name));
        assert_eq!(seen, [Some("5"), None, None, None]);
    }
}
