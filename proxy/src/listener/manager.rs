//! The set of listeners, on the main thread: the only place where it changes.
//!
//! A change makes the new instance beside the old one: its sockets are bound (or shared, where the
//! address stays) before the old instance begins to drain, so no connection is refused. What the
//! workers must do comes out as [`Change`]s; sending them is the server's business.

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use nuncio_api::pb::envoy::config::listener::v3 as pb;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::net::Address;
use nuncio_core::stats::lists::server;
use nuncio_core::stats::{ScopeId, Stats, Store};

use super::config::{ListenerConfig, SocketPolicy};
use super::{ListenerCommand, ListenerId};
use crate::net::BoundAddress;
use crate::network::NetworkExtensions;

/// A listener that was found right and is in no set yet.
pub struct Prepared {
    pub config: Arc<ListenerConfig>,
    origin: Origin,
    scopes: Vec<ScopeId>,
    guards: Vec<Box<dyn Any>>,
    /// Its sockets, where they were asked for ahead.
    bound: Option<Vec<Arc<BoundAddress>>>,
}

/// Where the configuration of a listener comes from.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// The encoded message: a listener of the same name and the same bytes is the same.
    pub bytes: Bytes,
    /// Of the LDS answer that brought it; none: the bootstrap.
    pub version: Option<Arc<str>>,
    /// When it came.
    pub updated: Option<SystemTime>,
}

/// What workers are to do.
pub enum Change {
    Start {
        id: ListenerId,
        config: Arc<ListenerConfig>,
        bound: Vec<Arc<BoundAddress>>,
    },
    /// Stop accepting, ask connections to go, and [`ListenerManager::closed`] after the drain time.
    Drain {
        id: ListenerId,
    },
}

/// One listener of the set.
pub struct Entry {
    pub id: ListenerId,
    pub config: Arc<ListenerConfig>,
    pub origin: Origin,
    bound: Vec<Arc<BoundAddress>>,
    /// Where it listened before its sockets were closed.
    closed: Vec<Address>,
    scopes: Vec<ScopeId>,
    /// What must go on for as long as it serves.
    guards: Vec<Box<dyn Any>>,
}

/// The listeners of the server.
pub struct ListenerManager {
    extensions: NetworkExtensions,
    sockets: SocketPolicy,
    active: Vec<Entry>,
    /// Taken out of the set, with their sockets until their successors have theirs.
    leaving: Vec<Entry>,
    draining: Vec<Entry>,
    next: u64,
    /// Workers take connections.
    live: bool,
    /// Sockets of a predecessor that nobody asked for yet, by [`label`].
    inherited: RefCell<Vec<(String, Vec<OwnedFd>)>>,
    stats: Stats<server::ListenerManager>,
}

// === impl ListenerManager ===

impl ListenerManager {
    pub fn new(extensions: NetworkExtensions, sockets: SocketPolicy, store: &mut Store) -> Self {
        let scope = store.scope(&server::LISTENER_MANAGER_SCOPE, &"".into());
        let stats = Stats::new(store.main(), scope);
        Self {
            extensions,
            sockets,
            active: Vec::new(),
            leaving: Vec::new(),
            draining: Vec::new(),
            next: 1,
            live: false,
            inherited: RefCell::default(),
            stats,
        }
    }

    /// Reads a listener. Paths of errors are relative to it.
    pub fn check(
        &self,
        message: &pb::Listener,
        origin: Origin,
        context: &FactoryContext<'_>,
    ) -> Result<Prepared, Vec<ConfigError>> {
        let name = if message.name.is_empty() { anonymous() } else { message.name.clone() };
        let checked = ListenerConfig::check(message, &name, &self.extensions, self.sockets, context);
        let scopes = context.scopes.take();
        match checked {
            Ok(config) => Ok(Prepared { config: Arc::new(config), origin, scopes, guards: Vec::new(), bound: None }),
            Err(errors) => {
                scopes.into_iter().for_each(|id| context.stats.borrow_mut().release(id));
                Err(errors)
            }
        }
    }

    /// Takes in a listener of the bootstrap file; [`Self::bind`] and [`Self::start`] follow when
    /// all are in. `false`: there is one of that name already, and Envoy keeps the first.
    pub fn add_static(&mut self, prepared: Prepared) -> Result<bool, ConfigError> {
        if self.active.iter().any(|e| e.config.name() == prepared.config.name()) {
            return Ok(false);
        }
        self.refuse_duplicates(&prepared.config)?;
        let entry = self.entry(prepared, Vec::new());
        self.stats.inc(server::LISTENER_ADDED);
        self.active.push(entry);
        Ok(true)
    }

    /// Binds the sockets of all static listeners. The error names the listener.
    pub fn bind(&mut self) -> io::Result<()> {
        for i in 0..self.active.len() {
            self.active[i].bound = self.bind_entry(&self.active[i].config).map_err(|e| {
                io::Error::new(e.kind(), format!("error adding listener '{}': {e}", self.active[i].config.name()))
            })?;
        }
        Ok(())
    }

    /// All go to work.
    pub fn start(&mut self) -> Vec<Change> {
        self.live = true;
        self.publish();
        self.active.iter().map(Entry::start).collect()
    }

    /// Adds, replaces or leaves alone (when nothing changed) one listener of a running server.
    pub fn update(&mut self, mut prepared: Prepared) -> Result<Vec<Change>, ConfigError> {
        let old = self.active.iter().position(|e| e.config.name() == prepared.config.name());
        if old.is_some_and(|at| self.active[at].origin.bytes == prepared.origin.bytes) {
            return Ok(Vec::new());
        }
        let bound = match prepared.bound.take() {
            Some(bound) => bound,
            None => self.bind_sockets(&prepared)?,
        };
        let entry = self.entry(prepared, bound);
        let mut changes = vec![entry.start()];
        match old {
            Some(at) => {
                self.stats.inc(server::LISTENER_MODIFIED);
                let replaced = std::mem::replace(&mut self.active[at], entry);
                changes.push(Change::Drain { id: replaced.id });
                self.drain(replaced);
            }
            None => {
                self.stats.inc(server::LISTENER_ADDED);
                self.active.push(entry);
            }
        }
        self.publish();
        Ok(changes)
    }

    /// Whether the set has a listener of that name and these bytes, or one that is not that origin's to change.
    pub fn is_settled(&self, name: &str, origin: &Origin) -> bool {
        let same = |e: &Entry| e.origin.bytes == origin.bytes || e.origin.version.is_some() != origin.version.is_some();
        self.active.iter().any(|e| e.config.name() == name && same(e))
    }

    /// Takes listeners out of the set. They serve, and keep their sockets, until [`Self::retired`].
    pub fn retire(&mut self, leaves: impl Fn(&Entry) -> bool) {
        let (leaving, active): (Vec<_>, Vec<_>) = std::mem::take(&mut self.active).into_iter().partition(|e| leaves(e));
        self.active = active;
        for entry in leaving {
            self.stats.inc(server::LISTENER_REMOVED);
            self.leaving.push(entry);
        }
    }

    /// Asks for a listener's sockets before it is put into the set, so that this cannot fail later.
    pub fn reserve(&self, prepared: &mut Prepared) -> Result<(), ConfigError> {
        prepared.bound = Some(self.bind_sockets(prepared)?);
        Ok(())
    }

    /// Those that left stay after all.
    pub fn unretire(&mut self) {
        self.active.append(&mut self.leaving);
    }

    /// The sockets of a predecessor.
    pub fn inherit(&mut self, sockets: Vec<(String, Vec<OwnedFd>)>) {
        self.inherited = RefCell::new(sockets);
    }

    /// What nobody asked for is closed: its address is not configured any more.
    pub fn disinherit(&mut self) {
        for (label, _) in self.inherited.take() {
            tracing::warn!("nobody listens any more as '{label}', which a predecessor did");
        }
    }

    /// Those that left drain now.
    pub fn retired(&mut self) -> Vec<Change> {
        let leaving = std::mem::take(&mut self.leaving);
        let changes = leaving.iter().map(|entry| Change::Drain { id: entry.id }).collect();
        leaving.into_iter().for_each(|entry| self.drain(entry));
        self.publish();
        changes
    }

    /// A listener that is not wanted after all.
    pub fn forget(&self, prepared: Prepared, store: &mut Store) {
        prepared.scopes.into_iter().for_each(|scope| store.release(scope));
    }

    /// How many wait for what they need.
    pub fn show_warming(&self, count: usize) {
        self.stats.set(server::TOTAL_LISTENERS_WARMING, count as u64);
    }

    /// Has each listener hold what `guards` makes for it.
    pub fn guard(&mut self, guards: impl Fn(&ListenerConfig) -> Vec<Box<dyn Any>>) {
        self.active.iter_mut().for_each(|entry| entry.guards.extend(guards(&entry.config)));
    }

    /// The drain time of a listener is over and the workers were told to end what is left.
    pub fn closed(&mut self, id: ListenerId, store: &mut Store) {
        if let Some(at) = self.draining.iter().position(|e| e.id == id) {
            self.draining.swap_remove(at).scopes.into_iter().for_each(|scope| store.release(scope));
            self.publish();
        }
    }

    /// Closes main's descriptors of a listener that takes no more connections. It stays in the set, as in Envoy: its
    /// connections are there, and pages show it.
    pub fn close_sockets(&mut self, id: ListenerId) {
        if let Some(entry) = self.active.iter_mut().find(|e| e.id == id) {
            entry.closed = entry.local_addresses();
            entry.bound.clear();
        }
    }

    /// In the order they were added.
    pub fn active(&self) -> &[Entry] {
        &self.active
    }

    pub fn stats(&self) -> &Stats<server::ListenerManager> {
        &self.stats
    }

    fn entry(&mut self, prepared: Prepared, bound: Vec<Arc<BoundAddress>>) -> Entry {
        let id = ListenerId(self.next);
        self.next += 1;
        let Prepared { config, origin, scopes, guards, .. } = prepared;
        Entry { id, config, origin, bound, closed: Vec::new(), scopes, guards }
    }

    fn drain(&mut self, mut entry: Entry) {
        // Closing the last descriptor of a socket resets what waits in its queue; where the address
        // lives on, the successor holds the same socket.
        entry.bound.clear();
        self.draining.push(entry);
    }

    fn publish(&self) {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        self.stats.set(server::TOTAL_LISTENERS_ACTIVE, count(self.active.len()));
        self.stats.set(server::TOTAL_LISTENERS_DRAINING, count(self.draining.len()));
    }

    fn refuse_duplicates(&self, config: &ListenerConfig) -> Result<(), ConfigError> {
        let others = self.active.iter().filter(|e| e.config.name() != config.name() && e.config.bind_to_port);
        let mut taken = others.flat_map(|e| &e.config.addresses).map(|(address, _)| address);
        let own: Vec<&Address> = match config.bind_to_port {
            true => config.addresses.iter().map(|(a, _)| a).filter(|a| a.port() != Some(0)).collect(),
            false => Vec::new(),
        };
        match taken.find(|address| own.contains(address)) {
            None => Ok(()),
            Some(address) => Err(ConfigError::new(
                "address",
                format!(
                    "error adding listener: '{}' has duplicate address '{address}' as existing listener, to check if the listener has duplicated addresses with other listeners or 'enable_reuse_port' is set to 'false' for the listener",
                    config.name()
                ),
            )),
        }
    }

    /// A predecessor's sockets for the address, of whatever listener had it; with a port of the system's choice, only
    /// those of the listener of the same name.
    fn take_inherited(&self, config: &ListenerConfig, address: usize) -> Option<Vec<OwnedFd>> {
        let (wanted, mut inherited) = (label(config, address), self.inherited.borrow_mut());
        let chosen = config.addresses[address].0.port() == Some(0);
        let part = |label: &str| label.rsplit('\n').next().map(str::to_owned);
        let same = |label: &str| label == wanted || (!chosen && part(label) == part(&wanted));
        let at = inherited.iter().position(|(label, _)| same(label))?;
        Some(inherited.swap_remove(at).1)
    }

    fn bind_sockets(&self, prepared: &Prepared) -> Result<Vec<Arc<BoundAddress>>, ConfigError> {
        self.refuse_duplicates(&prepared.config)?;
        let bound = self.bind_entry(&prepared.config).and_then(|bound| {
            if self.live {
                bound.iter().try_for_each(|b| b.listen())?;
            }
            Ok(bound)
        });
        bound.map_err(|e| {
            self.stats.inc(server::LISTENER_CREATE_FAILURE);
            ConfigError::new("address", format!("error adding listener '{}': {e}", prepared.config.name()))
        })
    }

    fn bind_entry(&self, config: &ListenerConfig) -> io::Result<Vec<Arc<BoundAddress>>> {
        if !config.bind_to_port {
            return Ok(Vec::new());
        }
        let mut bound = Vec::with_capacity(config.addresses.len());
        for (i, (address, options)) in config.addresses.iter().enumerate() {
            let ours = || self.active.iter().chain(&self.leaving).flat_map(|e| &e.bound);
            if let Some(same) =
                ours().find(|b| address.port() != Some(0) && b.local() == address && b.options() == options)
            {
                bound.push(same.clone());
                continue;
            }
            if let Some(sockets) = self.take_inherited(config, i) {
                let adopted = BoundAddress::adopt(address, sockets, options.clone(), self.sockets.workers)?;
                bound.push(Arc::new(adopted));
                continue;
            }
            let mut options = options.clone();
            // Whoever holds the port is this process itself: another address, or other options.
            options.share |= ours().any(|b| b.local().port() == address.port() && address.port().is_some());
            bound.push(Arc::new(BoundAddress::bind(address, options, self.sockets.workers)?));
        }
        Ok(bound)
    }
}

// === impl Prepared ===

impl Prepared {
    pub fn name(&self) -> &str {
        self.config.name()
    }

    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// It holds this for as long as it serves.
    pub fn hold(&mut self, guard: Box<dyn Any>) {
        self.guards.push(guard);
    }
}

// === impl Entry ===

impl Entry {
    pub fn bound(&self) -> &[Arc<BoundAddress>] {
        &self.bound
    }

    /// With the ports the system chose; as configured where nothing is bound.
    pub fn local_addresses(&self) -> Vec<Address> {
        if !self.closed.is_empty() {
            return self.closed.clone();
        }
        if self.bound.is_empty() {
            return self.config.addresses.iter().map(|(a, _)| a.clone()).collect();
        }
        self.bound.iter().map(|b| b.local().clone()).collect()
    }

    fn start(&self) -> Change {
        Change::Start { id: self.id, config: self.config.clone(), bound: self.bound.clone() }
    }
}

// === impl Change ===

impl Change {
    /// The commands for each of the workers, by their number.
    pub fn commands(&self, workers: usize) -> io::Result<Vec<ListenerCommand>> {
        match self {
            Self::Start { id, config, bound } => {
                bound.iter().try_for_each(|b| b.listen())?;
                (0..workers)
                    .map(|worker| {
                        let each = bound.iter().map(|b| b.sockets_of(worker, workers));
                        let sockets = each.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect();
                        Ok(ListenerCommand::Start { id: *id, config: config.clone(), sockets })
                    })
                    .collect()
            }
            Self::Drain { id } => Ok((0..workers).map(|_| ListenerCommand::Stop { id: *id, drain: true }).collect()),
        }
    }
}

/// By what a successor knows the sockets of one of a listener's addresses.
pub fn label(config: &ListenerConfig, address: usize) -> String {
    format!("{}\n{address}\n{}", config.name(), config.addresses[address].0)
}

/// Envoy names a nameless listener by a random UUID.
fn anonymous() -> String {
    let id = nuncio_core::random::Rng::from_os().uuid_v4();
    String::from_utf8_lossy(&id).into_owned()
}

#[cfg(test)]
mod tests;
