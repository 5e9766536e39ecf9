//! `connection_limit`: at most so many connections of a filter chain at once, in the whole process
//! (`envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit`).
//!
//! One too many is closed, after `delay` if that is set, so that a client which tries again at once does not
//! spin. Stats `connection_limit.<stat_prefix>.{active_connections,limited_connections}`.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nuncio_api::pb::envoy::extensions::filters::network::connection_limit::v3 as pb;
use nuncio_api::prost::Message;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::ConnectionInfo;
use nuncio_core::network::{
    MakeNetworkFilter, NetworkClose, NetworkFilter, NetworkFilterConfig, NetworkFilterFactory, NetworkStep,
    NetworkVerdict,
};
use nuncio_core::runtime::RuntimeFlag;
use nuncio_core::stats::{GaugeGuard, List, Scope, ScopeId, Stats};

supports!(pub(super) SUPPORTED = "envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit" {
    stat_prefix, max_connections, delay, runtime_enabled
});

nuncio_core::stats! {
    /// Connections that are there, and those that were too many.
    pub ConnectionLimit {
        gauge ACTIVE_CONNECTIONS;
        counter LIMITED_CONNECTIONS;
    }
}

static SCOPE: Scope = Scope { root: "connection_limit.", lists: &[ConnectionLimit::descriptors] };

pub struct Factory;

impl NetworkFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.network.connection_limit"
    }

    fn message(&self) -> &'static str {
        SUPPORTED.message
    }

    fn check(
        &self,
        config: &[u8],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn NetworkFilterConfig>, Vec<ConfigError>> {
        let proto = pb::ConnectionLimit::decode(config).map_err(|e| vec![ConfigError::new("", e.to_string())])?;
        Ok(Arc::new(Config(Arc::new(Settings {
            scope: context.scope(&SCOPE, &proto.stat_prefix.as_str().into()),
            most: proto.max_connections.map_or(0, |v| v.value),
            delay: proto.delay.as_ref().map(nuncio_core::time::duration).filter(|delay| !delay.is_zero()),
            enabled: RuntimeFlag::on_unless_set(proto.runtime_enabled.as_ref()),
            open: AtomicU64::new(0),
        }))))
    }
}

struct Settings {
    scope: ScopeId,
    most: u64,
    delay: Option<Duration>,
    enabled: RuntimeFlag,
    /// Shared by all workers, and written by each permit.
    open: AtomicU64,
}

struct Config(Arc<Settings>);

impl NetworkFilterConfig for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeNetworkFilter {
        let (settings, worker) = (self.0.clone(), worker.clone());
        let stats = Rc::new(Stats::new(&worker.stats, settings.scope));
        Box::new(move || {
            let (settings, worker, stats) = (settings.clone(), worker.clone(), stats.clone());
            Box::new(Filter { settings, worker, stats, active: None, permit: None })
        })
    }
}

/// One of the connections that are allowed. What was not taken (the limit was off) is not given back.
struct Permit(Arc<Settings>);

impl Permit {
    fn take(settings: &Arc<Settings>) -> Option<Self> {
        let one_more = |open| (open < settings.most).then_some(open + 1);
        settings.open.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Self(settings.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

struct Filter {
    settings: Arc<Settings>,
    worker: WorkerContext,
    stats: Rc<Stats<ConnectionLimit>>,
    active: Option<GaugeGuard<ConnectionLimit>>,
    permit: Option<Permit>,
}

impl NetworkFilter for Filter {
    fn on_new_connection(&mut self, _connection: &Rc<ConnectionInfo>) -> NetworkStep {
        if !self.settings.enabled.enabled(&*self.worker.runtime) {
            return NetworkStep::Continue;
        }
        self.active = Some(self.stats.gauge(ACTIVE_CONNECTIONS));
        self.permit = Permit::take(&self.settings);
        if self.permit.is_some() {
            return NetworkStep::Continue;
        }
        self.stats.inc(LIMITED_CONNECTIONS);
        let close = NetworkClose::new("over_connection_limit");
        match self.settings.delay {
            Some(delay) => NetworkStep::Later(Box::pin(async move {
                tokio::time::sleep(delay).await;
                NetworkVerdict::Close(close)
            })),
            None => NetworkStep::Close(close),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::testing::House;
    use nuncio_api::pb::google::protobuf::{Duration as ProtoDuration, UInt64Value};
    use nuncio_core::net::Address;

    fn settings(most: u64, enabled: bool, scope: ScopeId) -> Arc<Settings> {
        use nuncio_api::pb::envoy::config::core::v3::RuntimeFeatureFlag;
        use nuncio_api::pb::google::protobuf::BoolValue;
        let flag = RuntimeFeatureFlag { default_value: Some(BoolValue { value: enabled }), runtime_key: "k".into() };
        let proto = pb::ConnectionLimit {
            max_connections: Some(UInt64Value { value: most }),
            delay: Some(ProtoDuration { seconds: 1, nanos: 0 }),
            runtime_enabled: Some(flag),
            ..Default::default()
        };
        Arc::new(Settings {
            scope,
            most: proto.max_connections.map_or(0, |v| v.value),
            delay: proto.delay.as_ref().map(nuncio_core::time::duration),
            enabled: RuntimeFlag::on_unless_set(proto.runtime_enabled.as_ref()),
            open: AtomicU64::new(0),
        })
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn one_too_many_is_closed_later_and_a_place_comes_free() {
        let house = House::new(Default::default(), 1);
        let scope = house.store.borrow_mut().scope(&SCOPE, &"l".into());
        let worker = house.worker();
        let make = Config(settings(1, true, scope)).on_worker(&worker.context);
        let address = Address::Ip(([127, 0, 0, 1], 1).into());
        let connection = Rc::new(ConnectionInfo::new(1, address.clone(), address));
        let mut first = make();
        assert!(matches!(first.on_new_connection(&connection), NetworkStep::Continue));
        let mut second = make();
        let NetworkStep::Later(end) = second.on_new_connection(&connection) else { panic!("it is one too many") };
        let began = tokio::time::Instant::now();
        assert!(matches!(end.await, NetworkVerdict::Close(_)));
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        let stat = |name: &str| house.store.borrow_mut().value(&format!("connection_limit.l.{name}"));
        assert_eq!([stat("active_connections"), stat("limited_connections")], [Some(2), Some(1)]);
        drop((first, second));
        assert_eq!(stat("active_connections"), Some(0));
        assert!(matches!(make().on_new_connection(&connection), NetworkStep::Continue));
    }

    // Envoy takes one from its gauge for each connection that ends while the limit is off.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_limit_that_is_off_counts_nothing_and_gives_nothing_back() {
        let house = House::new(Default::default(), 1);
        let scope = house.store.borrow_mut().scope(&SCOPE, &"l".into());
        let settings = settings(1, false, scope);
        let make = Config(settings.clone()).on_worker(&house.worker().context);
        let address = Address::Ip(([127, 0, 0, 1], 1).into());
        let connection = Rc::new(ConnectionInfo::new(1, address.clone(), address));
        for _ in 0..3 {
            assert!(matches!(make().on_new_connection(&connection), NetworkStep::Continue));
        }
        assert_eq!(settings.open.load(Relaxed), 0);
    }
}
