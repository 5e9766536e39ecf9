//! Keys that a server publishes: fetched when a token needs them, kept for `cache_duration`, on each worker.
//! Requests that need the same keys share one fetch. A key id that is not among the keys does not bring a new
//! fetch (as in Envoy): a client could make us ask as often as it likes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared};
use nuncio_api::pb::envoy::config::core::v3::http_uri::HttpUpstreamType;
use nuncio_api::pb::envoy::extensions::filters::http::jwt_authn::v3 as pb;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::WorkerContext;
use nuncio_core::http::{Framing, RequestHead, Version};
use nuncio_core::stats::Stats;
use nuncio_core::time::duration;
use nuncio_core::upstream::client::AsyncRequest;
use tokio::time::Instant;

use super::jwks::Jwks;
use super::{JWKS_FETCH_FAILED, JWKS_FETCH_SUCCESS, JwtAuthn};

/// A longer document is no set of keys.
const MAX_JWKS: usize = 1 << 20;
/// Envoy's.
const CACHE_DURATION: Duration = Duration::from_secs(600);
const FAILED_REFETCH: Duration = Duration::from_secs(1);
const REFETCH_BEFORE_EXPIRY: Duration = Duration::from_secs(5);

/// A checked `RemoteJwks`.
pub(super) struct RemoteConfig {
    cluster: Arc<str>,
    authority: String,
    path: String,
    scheme: &'static str,
    timeout: Duration,
    cache: Duration,
    retries: u32,
    pause: Duration,
    /// Fetched at once and kept fresh; after a failure again after this time.
    ahead: Option<Duration>,
}

impl RemoteConfig {
    pub(super) fn new(proto: &pb::RemoteJwks) -> Result<Self, ConfigError> {
        let missing = || ConfigError::new("http_uri", "value is required");
        let uri = proto.http_uri.as_ref().ok_or_else(missing)?;
        let Some(HttpUpstreamType::Cluster(cluster)) = &uri.http_upstream_type else {
            return Err(missing());
        };
        let (scheme, rest) = match uri.uri.split_once("://") {
            Some(("https", rest)) => ("https", rest),
            Some((_, rest)) => ("http", rest),
            None => ("http", &*uri.uri),
        };
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let path = if rest[at..].starts_with('/') { rest[at..].to_owned() } else { format!("/{}", &rest[at..]) };
        let retry = proto.retry_policy.as_ref();
        let pause = retry.and_then(|r| r.retry_back_off.as_ref()).and_then(|b| b.base_interval.as_ref());
        Ok(Self {
            cluster: cluster.as_str().into(),
            authority: rest[..at].to_owned(),
            path,
            scheme,
            timeout: uri.timeout.as_ref().map_or(Duration::ZERO, duration),
            cache: proto.cache_duration.as_ref().map_or(CACHE_DURATION, duration),
            retries: retry.map_or(0, |r| r.num_retries.map_or(1, |n| n.value)),
            pause: pause.map_or(Duration::from_secs(1), duration),
            ahead: proto.async_fetch.as_ref().map(|ahead| {
                ahead.failed_refetch_duration.as_ref().map_or(FAILED_REFETCH, duration).max(Duration::from_millis(1))
            }),
        })
    }

    fn request(&self) -> AsyncRequest {
        let mut head = RequestHead { version: Version::Http11, framing: Framing::None, ..RequestHead::default() };
        head.headers.append(":method", "GET");
        head.headers.append(":path", &self.path);
        head.headers.append(":scheme", self.scheme);
        head.headers.append(":authority", &self.authority);
        AsyncRequest {
            head,
            body: Bytes::new(),
            timeout: (!self.timeout.is_zero()).then_some(self.timeout),
            max_response_bytes: MAX_JWKS,
            hash: None,
            send_xff: true,
        }
    }
}

type Fetch = Shared<LocalBoxFuture<'static, bool>>;

/// A provider's keys on one worker.
pub(super) struct Remote {
    config: Arc<RemoteConfig>,
    worker: WorkerContext,
    stats: Rc<Stats<JwtAuthn>>,
    keys: RefCell<Option<(Rc<Jwks>, Instant)>>,
    fetch: RefCell<Option<Fetch>>,
}

impl Remote {
    pub(super) fn new(config: &Arc<RemoteConfig>, worker: &WorkerContext, stats: &Rc<Stats<JwtAuthn>>) -> Rc<Self> {
        let remote = Rc::new(Self {
            config: config.clone(),
            worker: worker.clone(),
            stats: stats.clone(),
            keys: RefCell::default(),
            fetch: RefCell::default(),
        });
        if let Some(after_failure) = config.ahead {
            // Ends when the filter, which holds the only other handle, is gone.
            let kept = Rc::downgrade(&remote);
            tokio::task::spawn_local(async move {
                while let Some(remote) = kept.upgrade() {
                    let fresh = remote.fetch().await;
                    let early = remote.config.cache.saturating_sub(REFETCH_BEFORE_EXPIRY).max(FAILED_REFETCH);
                    drop(remote);
                    tokio::time::sleep(if fresh { early } else { after_failure }).await;
                }
            });
        }
        remote
    }

    /// The keys, if they are fresh.
    pub(super) fn keys(&self) -> Option<Rc<Jwks>> {
        let keys = self.keys.borrow();
        keys.as_ref().filter(|(_, until)| Instant::now() < *until).map(|(keys, _)| keys.clone())
    }

    /// Says whether there are keys then.
    pub(super) fn fetch(self: &Rc<Self>) -> Fetch {
        let mut running = self.fetch.borrow_mut();
        if let Some(fetch) = &*running {
            return fetch.clone();
        }
        let this = self.clone();
        let fetch = async move {
            let fetched = this.ask().await;
            this.fetch.replace(None);
            let good = fetched.is_some();
            this.stats.inc(if good { JWKS_FETCH_SUCCESS } else { JWKS_FETCH_FAILED });
            if let Some(keys) = fetched {
                this.keys.replace(Some((Rc::new(keys), Instant::now() + this.config.cache)));
            }
            good
        };
        let fetch = fetch.boxed_local().shared();
        *running = Some(fetch.clone());
        fetch
    }

    async fn ask(&self) -> Option<Jwks> {
        for attempt in 0..=self.config.retries {
            if attempt > 0 {
                tokio::time::sleep(self.config.pause.saturating_mul(1 << (attempt - 1).min(4))).await;
            }
            match self.worker.client.call(&self.config.cluster, self.config.request()).await {
                Ok(answer) if answer.head.status == 200 => return Jwks::parse(&answer.body).ok(),
                _ => {}
            }
        }
        None
    }
}
