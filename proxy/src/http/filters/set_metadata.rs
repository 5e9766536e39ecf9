//! `set_metadata`: what the configuration says becomes dynamic metadata of each stream
//! (`envoy.extensions.filters.http.set_metadata.v3.Config`).
//!
//! Stats `http.<prefix>.set_metadata.overwrite_denied`: a namespace that was there was not to be
//! touched.

use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::filters::http::set_metadata::v3 as pb;
use nuncio_api::pb::google::protobuf::{Any as ProtoAny, Struct, value::Kind};
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, FilterHalves, HttpFilter, HttpFilterFactory, MakeFilter, RequestHead, Step, StreamControl,
};
use nuncio_core::stats::{ScopeId, Stats};

use super::http_scope;

supports!(CONFIG = "envoy.extensions.filters.http.set_metadata.v3.Config" { metadata_namespace, value, metadata });
supports!(METADATA = "envoy.extensions.filters.http.set_metadata.v3.Metadata" {
    metadata_namespace, allow_overwrite, value
});
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG, &METADATA];

nuncio_core::stats! {
    /// What was not set.
    pub SetMetadata at ["set_metadata."] {
        counter OVERWRITE_DENIED;
    }
}

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.set_metadata"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    #[allow(deprecated)]
    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let proto: pb::Config = unpack(config)?;
        let mut entries = Vec::new();
        if let Some(value) = proto.value.filter(|_| !proto.metadata_namespace.is_empty()) {
            entries.push(Entries { namespace: proto.metadata_namespace, overwrite: true, value });
        }
        for metadata in proto.metadata {
            let value = metadata.value.unwrap_or_default();
            entries.push(Entries {
                namespace: metadata.metadata_namespace,
                overwrite: metadata.allow_overwrite,
                value,
            });
        }
        Ok(Arc::new(Config { entries: entries.into(), scope: http_scope::<SetMetadata>(context) }))
    }
}

struct Config {
    entries: Arc<[Entries]>,
    scope: ScopeId,
}

struct Entries {
    namespace: String,
    overwrite: bool,
    value: Struct,
}

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let filter = Filter { entries: self.entries.clone(), stats: Rc::new(Stats::new(&worker.stats, self.scope)) };
        Box::new(move || FilterHalves { decode: Some(Box::new(filter.clone())), encode: None })
    }
}

#[derive(Clone)]
struct Filter {
    entries: Arc<[Entries]>,
    stats: Rc<Stats<SetMetadata>>,
}

impl DecodeFilter for Filter {
    fn decode_headers(&mut self, _head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        let mut info = stream.info_mut();
        for entries in &*self.entries {
            let present = info.dynamic_metadata.0.contains_key(&entries.namespace);
            if present && !entries.overwrite {
                self.stats.inc(OVERWRITE_DENIED);
                continue;
            }
            update(info.dynamic_metadata.0.entry(entries.namespace.clone()).or_default(), &entries.value);
        }
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

/// Structs are merged, lists grow, everything else is replaced.
fn update(target: &mut Struct, with: &Struct) {
    for (key, value) in &with.fields {
        let old = target.fields.entry(key.clone()).or_default();
        match (&mut old.kind, &value.kind) {
            (Some(Kind::StructValue(old)), Some(Kind::StructValue(new))) => update(old, new),
            (Some(Kind::ListValue(old)), Some(Kind::ListValue(new))) => old.values.extend(new.values.iter().cloned()),
            (old, new) => *old = new.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, FILTERS};

    // Expected: recorded from Envoy 1.40 (filter_csrf_metadata).
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_namespace_that_is_there_is_touched_only_where_that_is_allowed() {
        let filter = format!(
            r#"{{name: sm, typed_config: {{"@type": {FILTERS}.set_metadata.v3.Config, metadata: [{{metadata_namespace: a,
            value: {{x: one, deep: {{p: 1}}}}}}, {{metadata_namespace: a, value: {{x: two, y: no}}}},
            {{metadata_namespace: a, allow_overwrite: true, value: {{deep: {{q: word}}}}}}]}}}}"#
        );
        let route = "{match: {prefix: /}, route: {cluster: c}, request_headers_to_add: [{header: {key: x-all, value: \
                     '%DYNAMIC_METADATA(a)%'}}]}";
        let bench = Bench::new(&filter, route);
        let answer = bench.get("/", "").await;
        assert_eq!(answer.upstream_field("x-all"), Some(r#"{"deep":{"p":1,"q":"word"},"x":"one"}"#));
        assert_eq!(bench.stat("http.in.set_metadata.overwrite_denied"), 1);
    }
}
