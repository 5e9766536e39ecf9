//! What a client's connection counts, whatever it speaks, and what it gives back when it ends.

use std::any::Any;
use std::rc::Rc;

use nuncio_core::stats::GaugeGuard;
use nuncio_core::stats::lists::http::{self as stat, Hcm};
use tokio::time::Instant;

use super::HttpConnectionManager;

/// Of one connection, from its accept to its close.
pub struct ConnectionAccount {
    manager: Rc<HttpConnectionManager>,
    pub started: Instant,
    /// We ended it.
    pub ended_here: bool,
    /// Bytes received, and sent.
    pub totals: (u64, u64),
    _active: GaugeGuard<Hcm>,
    _secure: Option<GaugeGuard<Hcm>>,
    _protocol: Option<GaugeGuard<Hcm>>,
    _guards: Box<dyn Any>,
}

impl ConnectionAccount {
    pub fn begin(manager: &Rc<HttpConnectionManager>, secure: bool, guards: Box<dyn Any>) -> Self {
        manager.stats.inc(stat::DOWNSTREAM_CX_TOTAL);
        if secure {
            manager.stats.inc(stat::DOWNSTREAM_CX_SSL_TOTAL);
        }
        Self {
            started: Instant::now(),
            ended_here: false,
            totals: (0, 0),
            _active: manager.stats.gauge(stat::DOWNSTREAM_CX_ACTIVE),
            _secure: secure.then(|| manager.stats.gauge(stat::DOWNSTREAM_CX_SSL_ACTIVE)),
            _protocol: None,
            _guards: guards,
            manager: manager.clone(),
        }
    }

    pub fn speaks_http1(&mut self) {
        self.manager.stats.inc(stat::DOWNSTREAM_CX_HTTP1_TOTAL);
        self._protocol = Some(self.manager.stats.gauge(stat::DOWNSTREAM_CX_HTTP1_ACTIVE));
    }

    pub fn speaks_http2(&mut self) {
        self.manager.stats.inc(stat::DOWNSTREAM_CX_HTTP2_TOTAL);
        self._protocol = Some(self.manager.stats.gauge(stat::DOWNSTREAM_CX_HTTP2_ACTIVE));
    }
}

impl Drop for ConnectionAccount {
    fn drop(&mut self) {
        let stats = &self.manager.stats;
        stats.inc(stat::DOWNSTREAM_CX_DESTROY);
        stats.inc(if self.ended_here { stat::DOWNSTREAM_CX_DESTROY_LOCAL } else { stat::DOWNSTREAM_CX_DESTROY_REMOTE });
        stats.add(stat::DOWNSTREAM_CX_RX_BYTES_TOTAL, self.totals.0);
        stats.add(stat::DOWNSTREAM_CX_TX_BYTES_TOTAL, self.totals.1);
        self.manager.times.record(stat::DOWNSTREAM_CX_LENGTH_MS, self.started.elapsed().as_millis() as u64);
    }
}
