//! From a change on main to a message for the workers: collected, merged, sent.

use std::rc::Rc;
use std::sync::Arc;

use nuncio_core::stats::Store;
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::stats::lists::server;
use nuncio_discovery::Assignment;
use tokio::time::Instant;

use super::entry::Running;
use super::{Inner, MapEntry, State};
use crate::upstream::snapshot::ClusterUpdate;

impl Inner {
    pub(super) fn mark(&self, state: &mut State, name: &Arc<str>) {
        if let Some(slot) = state.slots.get_mut(name)
            && !slot.dirty
        {
            slot.dirty = true;
            state.dirty.push(name.clone());
        }
    }

    /// These are the hosts now.
    pub(super) fn apply(self: &Rc<Self>, name: &Arc<str>, id: u64, assignment: Assignment) {
        let now = self.context.clock.now();
        let applied = self.with(name, id, |cluster| {
            let applied = cluster.apply(assignment);
            cluster.note(&applied, now);
            if !applied.changed {
                cluster.updates().inc(stat::UPDATE_NO_REBUILD);
            }
            let flags = cluster.config().flags();
            let checked = cluster.wellness.as_ref().is_some_and(|wellness| wellness.checked);
            (applied, checked, flags.ignore_health_on_host_removal)
        });
        let applied = applied.map(|(applied, checked, ignores_health)| {
            if checked {
                self.membership_changed(name, &applied, ignores_health);
            }
            applied
        });
        let Some(applied) = applied.filter(|applied| applied.changed) else { return };
        // Only health, weight or metadata: that may wait a little for more of its kind.
        let mergeable = applied.added.is_empty() && applied.removed.is_empty();
        self.changed(name, id, mergeable);
    }

    pub(super) fn changed(self: &Rc<Self>, name: &Arc<str>, id: u64, mergeable: bool) {
        let active_and_warm = {
            let state = self.state.borrow();
            let active = state.slots.get(name).and_then(|slot| slot.active.as_ref());
            active.is_some_and(|cluster| cluster.id == id && cluster.is_warm())
        };
        if !active_and_warm || self.merge(name, id, mergeable) {
            return;
        }
        self.publish_soon(name);
    }

    pub(super) fn publish_soon(self: &Rc<Self>, name: &Arc<str>) {
        self.stats.inc(server::CLUSTER_UPDATED);
        self.mark(&mut self.state.borrow_mut(), name);
        self.schedule_flush();
    }

    /// Envoy's `update_merge_window`; true if a timer will publish it.
    pub(super) fn merge(self: &Rc<Self>, name: &Arc<str>, id: u64, mergeable: bool) -> bool {
        let now = Instant::now();
        let decided = self.with(name, id, |cluster| {
            let window = cluster.config().update_merge_window();
            if window.is_zero() {
                return None;
            }
            let merge = cluster.merge.get_or_insert_default();
            let out_of_window = merge.last.is_none_or(|last| now - last > window);
            if out_of_window || !mergeable {
                if mergeable {
                    self.stats.inc(server::UPDATE_OUT_OF_MERGE_WINDOW);
                }
                if merge.timer.take().is_some() {
                    self.stats.inc(server::UPDATE_MERGE_CANCELLED);
                }
                merge.last = Some(now);
                return None;
            }
            if merge.timer.is_none() {
                let (manager, name) = (Rc::downgrade(self), name.clone());
                merge.timer = Some(Running(
                    tokio::task::spawn_local(async move {
                        tokio::time::sleep(window).await;
                        if let Some(manager) = manager.upgrade() {
                            manager.merged(&name, id);
                        }
                    })
                    .abort_handle(),
                ));
            }
            Some(())
        });
        decided.flatten().is_some()
    }

    pub(super) fn merged(self: &Rc<Self>, name: &Arc<str>, id: u64) {
        let known = self.with(name, id, |cluster| {
            if let Some(merge) = &mut cluster.merge {
                merge.last = Some(Instant::now());
                merge.timer = None;
            }
        });
        if known.is_some() {
            self.stats.inc(server::CLUSTER_UPDATED_VIA_MERGE);
            self.publish_soon(name);
        }
    }

    /// One reason less to hold a cluster back.
    pub(super) fn warmed(self: &Rc<Self>, name: &Arc<str>, id: u64) {
        let old = {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            let Some(slot) = state.slots.get_mut(name) else { return };
            let mut old = None;
            if slot.active.as_ref().is_some_and(|active| active.id == id) {
                state.cold -= 1;
            } else if slot.warming.as_ref().is_some_and(|warming| warming.id == id) {
                old = std::mem::replace(&mut slot.active, slot.warming.take());
            } else {
                return;
            }
            if let Some(cluster) = &mut slot.active {
                cluster.set_warm();
            }
            self.mark(state, name);
            old
        };
        if let Some(old) = old {
            old.discard(&mut self.store.borrow_mut());
        }
        self.warm.notify_waiters();
        self.schedule_flush();
    }

    pub(super) fn update_gauges(&self) {
        let state = self.state.borrow();
        let active = state.slots.values().filter(|slot| slot.active.is_some()).count();
        let warming = state.slots.values().filter(|slot| slot.warming.is_some()).count();
        self.stats.set(server::ACTIVE_CLUSTERS, active as u64);
        self.stats.set(server::WARMING_CLUSTERS, warming as u64);
    }

    /// The gauges of circuit breakers follow from what is in use.
    pub(super) fn update_breaker_gauges(&self, store: &mut Store) {
        for slot in self.state.borrow_mut().slots.values_mut() {
            if let Some(cluster) = &mut slot.active {
                cluster.update_breaker_gauges(store);
            }
        }
    }

    pub(super) fn schedule_flush(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        if state.flush_scheduled || state.publisher.is_none() {
            return;
        }
        state.flush_scheduled = true;
        let manager = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            // Whatever else is ready now may change more clusters.
            tokio::task::yield_now().await;
            if let Some(manager) = manager.upgrade() {
                manager.flush();
            }
        });
    }

    pub(super) fn flush(&self) {
        self.picture_stale();
        self.update_gauges();
        let (publisher, updates) = {
            let mut state = self.state.borrow_mut();
            state.flush_scheduled = false;
            let Some(publisher) = state.publisher.clone() else { return };
            let dirty = std::mem::take(&mut state.dirty);
            let mut updates: Vec<ClusterUpdate> = dirty.into_iter().filter_map(|name| state.update(name)).collect();
            updates.append(&mut state.failed);
            (publisher, updates)
        };
        if !updates.is_empty() {
            publisher.publish(updates.into());
        }
    }
}

impl State {
    pub(super) fn update(&mut self, name: Arc<str>) -> Option<ClusterUpdate> {
        let MapEntry::Occupied(mut slot) = self.slots.entry(name.clone()) else { return None };
        slot.get_mut().dirty = false;
        match &slot.get().active {
            Some(cluster) => {
                let update = ClusterUpdate::Set(cluster.snapshot.clone());
                slot.get_mut().published = true;
                Some(update)
            }
            None => {
                slot.get_mut().published = false;
                if slot.get().warming.is_none() {
                    slot.remove();
                }
                Some(ClusterUpdate::Removed(name))
            }
        }
    }
}
