//! `local_ratelimit` for connections: at most so many new ones in a time
//! (`envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit`).
//!
//! Filters with the same `share_key` and the same bucket share one, also across listeners. Stats
//! `local_rate_limit.<stat_prefix>.rate_limited`.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use nuncio_api::pb::envoy::extensions::filters::network::local_ratelimit::v3 as pb;
use nuncio_api::pb::envoy::r#type::v3::TokenBucket as BucketProto;
use nuncio_api::prost::Message;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::ConnectionInfo;
use nuncio_core::network::{
    MakeNetworkFilter, NetworkClose, NetworkFilter, NetworkFilterConfig, NetworkFilterFactory, NetworkStep,
};
use nuncio_core::runtime::RuntimeFlag;
use nuncio_core::stats::{List, Scope, ScopeId, Stats};

pub use bucket::TokenBucket;

mod bucket;

supports!(pub(super) SUPPORTED = "envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit" {
    stat_prefix, token_bucket, runtime_enabled, share_key
});

nuncio_core::stats! {
    /// Connections that were too many.
    pub LocalRateLimit {
        counter RATE_LIMITED;
    }
}

static SCOPE: Scope = Scope { root: "local_rate_limit.", lists: &[LocalRateLimit::descriptors] };

/// The bucket of a message; Envoy refuses those that are filled faster than 20 times a second.
pub fn bucket(proto: &BucketProto) -> Result<TokenBucket, ConfigError> {
    let interval = proto.fill_interval.as_ref().map_or(Duration::ZERO, nuncio_core::time::duration);
    if interval < Duration::from_millis(50) {
        let reason = "local rate limit token bucket fill timer must be >= 50ms";
        return Err(ConfigError::new("token_bucket.fill_interval", reason));
    }
    let per_fill = proto.tokens_per_fill.map_or(1, |v| v.value);
    Ok(TokenBucket::new(proto.max_tokens, f64::from(per_fill) / interval.as_secs_f64()))
}

type Shared = HashMap<(String, Vec<u8>), Weak<TokenBucket>>;

/// Main only: buckets by key and encoded message, for as long as a filter has them.
#[derive(Default)]
pub struct Factory {
    shared: Mutex<Shared>,
}

impl Factory {
    fn bucket(&self, share_key: &str, proto: &BucketProto) -> Result<Arc<TokenBucket>, ConfigError> {
        let new = bucket(proto)?;
        if share_key.is_empty() {
            return Ok(Arc::new(new));
        }
        let mut shared = self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        shared.retain(|_, bucket| bucket.strong_count() > 0);
        let known = shared.entry((share_key.to_owned(), proto.encode_to_vec())).or_default();
        let bucket = known.upgrade().unwrap_or_else(|| Arc::new(new));
        *known = Arc::downgrade(&bucket);
        Ok(bucket)
    }
}

impl NetworkFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.network.local_ratelimit"
    }

    fn message(&self) -> &'static str {
        SUPPORTED.message
    }

    fn check(
        &self,
        config: &[u8],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn NetworkFilterConfig>, Vec<ConfigError>> {
        let proto = pb::LocalRateLimit::decode(config).map_err(|e| vec![ConfigError::new("", e.to_string())])?;
        let bucket = self.bucket(&proto.share_key, &proto.token_bucket.unwrap_or_default());
        Ok(Arc::new(Config {
            scope: context.scope(&SCOPE, &proto.stat_prefix.as_str().into()),
            bucket: bucket.map_err(|e| vec![e])?,
            enabled: RuntimeFlag::on_unless_set(proto.runtime_enabled.as_ref()),
        }))
    }
}

#[derive(Clone)]
struct Config {
    scope: ScopeId,
    bucket: Arc<TokenBucket>,
    enabled: RuntimeFlag,
}

impl NetworkFilterConfig for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeNetworkFilter {
        let stats = Rc::new(Stats::new(&worker.stats, self.scope));
        let filter = Filter { config: Rc::new(self.clone()), worker: worker.clone(), stats };
        Box::new(move || Box::new(filter.clone()))
    }
}

#[derive(Clone)]
struct Filter {
    config: Rc<Config>,
    worker: WorkerContext,
    stats: Rc<Stats<LocalRateLimit>>,
}

impl NetworkFilter for Filter {
    fn on_new_connection(&mut self, _connection: &Rc<ConnectionInfo>) -> NetworkStep {
        if !self.config.enabled.enabled(&*self.worker.runtime) || self.config.bucket.take() {
            return NetworkStep::Continue;
        }
        self.stats.inc(RATE_LIMITED);
        NetworkStep::Close(NetworkClose::new("local_ratelimit_close_over_limit"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::google::protobuf::Duration as ProtoDuration;

    #[tokio::test(start_paused = true)]
    async fn a_bucket_is_shared_by_key_and_size_while_somebody_has_it() {
        let proto = |max_tokens| BucketProto {
            max_tokens,
            tokens_per_fill: None,
            fill_interval: Some(ProtoDuration { seconds: 60, nanos: 0 }),
        };
        let factory = Factory::default();
        let [one, two] = ["k", "k"].map(|key| factory.bucket(key, &proto(1)).unwrap());
        assert_eq!([one.take(), two.take()], [true, false]);
        assert!(factory.bucket("k", &proto(2)).unwrap().take());
        assert!(factory.bucket("", &proto(1)).unwrap().take());
        drop((one, two));
        assert!(factory.bucket("k", &proto(1)).unwrap().take());
        let fast = BucketProto { fill_interval: Some(ProtoDuration { seconds: 0, nanos: 49_000_000 }), ..proto(1) };
        assert!(factory.bucket("", &fast).is_err());
    }
}
