//! `health_check`: answers the health checks of others
//! (`envoy.extensions.filters.http.health_check.v3.HealthCheck`).
//!
//! A request that matches `headers` (all of them, if there are none) is a health check: it is kept out of the counters of
//! responses and of logs that want it so. Without `pass_through_mode` it is answered here; with it, it goes on, and with
//! `cache_time` the upstream's answer stands for the checks that come within that time on any worker. While an operator
//! has failed the process (`/healthcheck/fail`), checks are answered 503, and every answer says
//! `x-envoy-immediate-health-check-fail`. Stats `http.<prefix>.health_check.*`.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nuncio_api::pb::envoy::extensions::filters::http::health_check::v3::HealthCheck as Message;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, Vitals, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, EncodeFilter, FilterHalves, HttpFilter, HttpFilterFactory, LocalReply, MakeFilter, RequestHead,
    ResponseHead, Step, StreamControl,
};
use nuncio_core::matcher::HeaderMatcher;
use nuncio_core::stats::{List, ScopeId, Stats, lists};
use nuncio_core::stream_info::ResponseFlag;
use nuncio_core::time::duration;
use tokio::time::Instant;

supports!(CONFIG = "envoy.extensions.filters.http.health_check.v3.HealthCheck" {
    pass_through_mode, cache_time, cluster_min_healthy_percentages, headers
});
supports!(PERCENT = "envoy.type.v3.Percent" { value });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&CONFIG, &PERCENT];

nuncio_core::stats! {
    /// What was answered here.
    pub HealthCheckFilter at ["health_check."] {
        counter CACHED_RESPONSE;
        counter DEGRADED;
        counter FAILED;
        counter FAILED_CLUSTER_EMPTY;
        counter FAILED_CLUSTER_NOT_FOUND;
        counter FAILED_CLUSTER_UNHEALTHY;
        counter OK;
        counter REQUEST_TOTAL;
    }
}

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.health_check"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let message: Message = unpack(config)?;
        let pass_through = message.pass_through_mode.is_some_and(|mode| mode.value);
        let cache_time = message.cache_time.as_ref().map(duration).filter(|time| !time.is_zero());
        if !pass_through && cache_time.is_some() {
            let reason = "cache_time_ms must not be set when path_through_mode is disabled";
            return Err(ConfigError::new("cache_time", reason));
        }
        let scope = context.scope(&lists::http::SCOPE, &context.stat_prefix.into());
        let lists = HealthCheckFilter::descriptors();
        lists.iter().for_each(|list| context.stats.borrow_mut().declare(scope, list));
        let mut clusters: Vec<_> = message
            .cluster_min_healthy_percentages
            .into_iter()
            .map(|(name, percent)| (name.into_boxed_str(), percent.value))
            .collect();
        clusters.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Arc::new(Config {
            scope,
            pass_through,
            cache: cache_time.map(Cache::new),
            clusters: clusters.into(),
            headers: HeaderMatcher::list(&message.headers).map_err(|e| e.within("headers"))?.into(),
            service_cluster: context.node.cluster.as_str().into(),
        }))
    }
}

struct Config {
    scope: ScopeId,
    pass_through: bool,
    cache: Option<Cache>,
    /// Names and percentages.
    clusters: Arc<[(Box<str>, f64)]>,
    headers: Arc<[HeaderMatcher]>,
    service_cluster: Arc<str>,
}

/// The upstream's last answer, for all workers.
#[derive(Clone)]
struct Cache {
    time: Duration,
    since: Instant,
    /// Until which millisecond after `since`, then whether the host was degraded (one bit), then the status (16 bits).
    answer: Arc<AtomicU64>,
}

impl Cache {
    fn new(time: Duration) -> Self {
        Self { time, since: Instant::now(), answer: Arc::default() }
    }

    fn set(&self, now: Instant, status: u16, degraded: bool) {
        let until = (now.saturating_duration_since(self.since) + self.time).as_millis() as u64;
        self.answer.store(until << 17 | u64::from(degraded) << 16 | u64::from(status), Relaxed);
    }

    fn get(&self, now: Instant) -> Option<(u16, bool)> {
        let answer = self.answer.load(Relaxed);
        let fresh = (now.saturating_duration_since(self.since).as_millis() as u64) < answer >> 17;
        fresh.then_some((answer as u16, answer >> 16 & 1 == 1))
    }
}

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let shared = Rc::new(Shared {
            pass_through: self.pass_through,
            cache: self.cache.clone(),
            clusters: self.clusters.clone(),
            headers: self.headers.clone(),
            service_cluster: self.service_cluster.clone(),
            vitals: worker.vitals.clone(),
            stats: Stats::new(&worker.stats, self.scope),
        });
        Box::new(move || FilterHalves {
            decode: Some(Box::new(Decode(shared.clone()))),
            encode: Some(Box::new(Encode(shared.clone()))),
        })
    }
}

/// What the streams of one worker share.
struct Shared {
    pass_through: bool,
    cache: Option<Cache>,
    clusters: Arc<[(Box<str>, f64)]>,
    headers: Arc<[HeaderMatcher]>,
    service_cluster: Arc<str>,
    vitals: Rc<dyn Vitals>,
    stats: Stats<HealthCheckFilter>,
}

impl Shared {
    /// What is answered here; `None`: the request goes on.
    fn answer(&self, now: Instant) -> Option<LocalReply> {
        let cached = self.cache.as_ref().and_then(|cache| cache.get(now));
        let failed = self.vitals.health_failed();
        if self.pass_through && cached.is_none() && !failed {
            return None;
        }
        self.stats.inc(REQUEST_TOTAL);
        let (status, details, degraded) = match (failed, cached) {
            (true, _) => (503, "health_check_failed", false),
            (false, Some((status, degraded))) => {
                self.stats.inc(CACHED_RESPONSE);
                (status, "health_check_cached", degraded)
            }
            (false, None) => match self.unhealthy_cluster() {
                Some(details) => (503, details, false),
                None if self.clusters.is_empty() => (200, "health_check_ok", false),
                None => (200, "health_check_ok_cluster_healthy", false),
            },
        };
        self.stats.inc(if status == 200 { OK } else { FAILED });
        let mut reply = LocalReply::new(status, details);
        if status != 200 {
            reply = reply.flag(ResponseFlag::FailedLocalHealthCheck);
        }
        if degraded {
            self.stats.inc(DEGRADED);
            reply = reply.header("x-envoy-degraded", "");
        }
        Some(reply)
    }

    fn unhealthy_cluster(&self) -> Option<&'static str> {
        self.clusters.iter().find_map(|(name, percent)| {
            let Some(members) = self.vitals.membership(name) else {
                self.stats.inc(FAILED_CLUSTER_NOT_FOUND);
                return Some("health_check_failed_no_cluster_found");
            };
            if members.total == 0 {
                let wants_some = *percent > 0.0;
                return wants_some.then(|| {
                    self.stats.inc(FAILED_CLUSTER_EMPTY);
                    "health_check_failed_cluster_empty"
                });
            }
            let fit = 100.0 * members.available as f64;
            (fit < members.total as f64 * percent).then(|| {
                self.stats.inc(FAILED_CLUSTER_UNHEALTHY);
                "health_check_failed_cluster_unhealthy"
            })
        })
    }
}

struct Decode(Rc<Shared>);

impl DecodeFilter for Decode {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        if !self.0.headers.iter().all(|matcher| matcher.matches(&head.headers)) {
            return Step::CONTINUE;
        }
        stream.info_mut().is_health_check = true;
        match self.0.answer(stream.now()) {
            Some(reply) => Step::respond(reply),
            None => Step::CONTINUE,
        }
    }

    fn reset(&mut self) {}
}

struct Encode(Rc<Shared>);

impl EncodeFilter for Encode {
    fn encode_headers(&mut self, head: &mut ResponseHead, _end: bool, stream: &StreamControl) -> Step {
        let (shared, checks) = (&self.0, stream.info().is_health_check);
        if checks {
            head.headers.set("x-envoy-upstream-healthchecked-cluster", shared.service_cluster.as_bytes());
            // Only what an upstream said is worth keeping.
            let answered = stream.info().upstream_host.is_some();
            if let Some(cache) = shared.cache.as_ref().filter(|_| answered) {
                cache.set(stream.now(), head.status, head.headers.contains("x-envoy-degraded"));
            }
        }
        if shared.vitals.health_failed() {
            head.headers.set("x-envoy-immediate-health-check-fail", "true");
        }
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_stands_for_so_long_and_no_longer() {
        let cache = Cache::new(Duration::from_millis(400));
        assert_eq!(cache.get(Instant::now()), None);
        cache.set(Instant::now(), 404, true);
        tokio::time::advance(Duration::from_millis(399)).await;
        assert_eq!(cache.get(Instant::now()), Some((404, true)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(cache.get(Instant::now()), None);
    }
}
