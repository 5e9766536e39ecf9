//! Statistics of the admin listener itself: `listener.admin.` and `http.admin.`.

use nuncio_core::stats::lists::http::{self, Hcm, HcmTimes};
use nuncio_core::stats::lists::listener::{self, Listener, PerWorker, Times};
use nuncio_core::stats::{GaugeGuard, Stats, Store};
use tokio::time::Instant;

/// Counted on the main thread.
pub struct AdminStats {
    listener: Stats<Listener>,
    times: Stats<Times>,
    thread: Stats<PerWorker>,
    http: Stats<Hcm>,
    http_times: Stats<HcmTimes>,
}

/// Lives as long as a connection.
pub(super) struct ConnectionCounts<'a> {
    stats: &'a AdminStats,
    since: Instant,
    _active: (GaugeGuard<Listener>, GaugeGuard<PerWorker>, GaugeGuard<Hcm>, GaugeGuard<Hcm>),
}

/// Lives as long as a request.
pub(super) struct RequestCounts<'a> {
    stats: &'a AdminStats,
    since: Instant,
    _active: GaugeGuard<Hcm>,
}

// === impl AdminStats ===

impl AdminStats {
    pub fn new(store: &mut Store) -> AdminStats {
        let listener = store.scope(&listener::ADMIN_SCOPE, &"admin".into());
        let thread = store.scope(&listener::WORKER_SCOPE, &"admin.main_thread".into());
        let http = store.scope(&http::ADMIN_SCOPE, &"admin".into());
        let main = store.main();
        AdminStats {
            listener: Stats::new(main, listener),
            times: Stats::new(main, listener),
            thread: Stats::new(main, thread),
            http: Stats::new(main, http),
            http_times: Stats::new(main, http),
        }
    }

    pub(super) fn connection(&self) -> ConnectionCounts<'_> {
        self.listener.inc(listener::DOWNSTREAM_CX_TOTAL);
        self.thread.inc(listener::WORKER_CX_TOTAL);
        self.http.inc(http::DOWNSTREAM_CX_TOTAL);
        self.http.inc(http::DOWNSTREAM_CX_HTTP1_TOTAL);
        let active = (
            self.listener.gauge(listener::DOWNSTREAM_CX_ACTIVE),
            self.thread.gauge(listener::WORKER_CX_ACTIVE),
            self.http.gauge(http::DOWNSTREAM_CX_ACTIVE),
            self.http.gauge(http::DOWNSTREAM_CX_HTTP1_ACTIVE),
        );
        ConnectionCounts { stats: self, since: Instant::now(), _active: active }
    }

    pub(super) fn request(&self) -> RequestCounts<'_> {
        self.http.inc(http::DOWNSTREAM_RQ_TOTAL);
        self.http.inc(http::DOWNSTREAM_RQ_HTTP1_TOTAL);
        let active = self.http.gauge(http::DOWNSTREAM_RQ_ACTIVE);
        RequestCounts { stats: self, since: Instant::now(), _active: active }
    }
}

impl RequestCounts<'_> {
    pub(super) fn answered(self, status: u16) {
        let http = &self.stats.http;
        http.inc(http::DOWNSTREAM_RQ_COMPLETED);
        match status / 100 {
            2 => http.inc(http::DOWNSTREAM_RQ_2XX),
            4 => http.inc(http::DOWNSTREAM_RQ_4XX),
            5 => http.inc(http::DOWNSTREAM_RQ_5XX),
            _ => {}
        }
        self.stats.http_times.record(http::DOWNSTREAM_RQ_TIME, millis(self.since));
    }
}

impl Drop for ConnectionCounts<'_> {
    fn drop(&mut self) {
        self.stats.listener.inc(listener::DOWNSTREAM_CX_DESTROY);
        self.stats.http.inc(http::DOWNSTREAM_CX_DESTROY);
        self.stats.times.record(listener::DOWNSTREAM_CX_LENGTH_MS, millis(self.since));
        self.stats.http_times.record(http::DOWNSTREAM_CX_LENGTH_MS, millis(self.since));
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
