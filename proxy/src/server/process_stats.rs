//! `server.*`: what the process says of itself. Written by main, at the start and at each flush.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_core::stats::lists::{listener, server};
use nuncio_core::stats::{Stats, Store};
use nuncio_core::time::WallClock;
use tokio::time::Instant;

use crate::access_log::file::LogWriter;
use crate::admin::MemoryUse;
use crate::lifecycle::Lifecycle;
use crate::tls::Secrets;

pub struct ProcessStats {
    server: Stats<server::Server>,
    initialization: Stats<server::Initialization>,
    started: Instant,
}

/// What is done at each flush interval, or when somebody reads the stats.
pub struct Flusher {
    store: Rc<RefCell<Store>>,
    pub process: ProcessStats,
    lifecycle: Arc<Lifecycle>,
    log_files: Rc<LogWriter>,
    secrets: Secrets,
    log_stats: Stats<server::AccessLogFile>,
}

impl Flusher {
    pub fn new(
        store: &Rc<RefCell<Store>>,
        lifecycle: &Arc<Lifecycle>,
        log_files: &Rc<LogWriter>,
        secrets: &Secrets,
        concurrency: u32,
    ) -> Flusher {
        let mut scopes = store.borrow_mut();
        let process = ProcessStats::new(&mut scopes, concurrency);
        let log_scope = scopes.scope(&server::FILESYSTEM_SCOPE, &"".into());
        let log_stats = Stats::new(scopes.main(), log_scope);
        let (store, lifecycle, log_files) = (store.clone(), lifecycle.clone(), log_files.clone());
        Flusher { store, process, lifecycle, log_files, secrets: secrets.clone(), log_stats }
    }

    pub fn flush(&self) {
        let mut store = self.store.borrow_mut();
        self.process.update(&self.lifecycle, &mut store);
        self.process.certificates(&self.secrets);
        self.log_files.publish(&self.log_stats);
        store.flush();
    }
}

impl ProcessStats {
    pub fn new(store: &mut Store, concurrency: u32) -> Self {
        let scope = store.scope(&server::SCOPE, &"".into());
        let stats = Self {
            server: Stats::new(store.main(), scope),
            initialization: Stats::new(store.main(), scope),
            started: Instant::now(),
        };
        stats.server.set(server::CONCURRENCY, concurrency.into());
        stats.server.set(server::LIVE, 1);
        stats.server.set(server::DAYS_UNTIL_FIRST_CERT_EXPIRING, u32::MAX.into());
        stats
    }

    pub fn unknown_fields(&self, count: u64) {
        self.server.add(server::STATIC_UNKNOWN_FIELDS, count);
    }

    /// The workers take connections from now on.
    pub fn initialized(&self) {
        let took = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.initialization.record(server::INITIALIZATION_TIME_MS, took);
    }

    /// The certificate that expires first.
    pub fn certificates(&self, secrets: &Secrets) {
        let now = WallClock::System.now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let days = secrets.days_until_first_expires(i64::try_from(now).unwrap_or(i64::MAX));
        self.server.set(server::DAYS_UNTIL_FIRST_CERT_EXPIRING, days.unwrap_or(u32::MAX.into()));
    }

    pub fn update(&self, lifecycle: &Lifecycle, store: &mut Store) {
        self.server.set(server::STATE, lifecycle.state() as u64);
        self.server.set(server::LIVE, u64::from(!lifecycle.health_failed()));
        self.server.set(server::UPTIME, self.started.elapsed().as_secs());
        let memory = MemoryUse::now();
        self.server.set(server::MEMORY_ALLOCATED, memory.allocated);
        self.server.set(server::MEMORY_HEAP_SIZE, memory.heap);
        self.server.set(server::MEMORY_PHYSICAL_SIZE, memory.physical);
        // Of all listeners but the admin's, which is of another kind.
        self.server.set(server::TOTAL_CONNECTIONS, store.total(&listener::SCOPE, "downstream_cx_active"));
    }
}
