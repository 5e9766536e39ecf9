//! Hosts that requests brought: main shows them, and cleans up.

use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Inner;
use super::entry::Running;
use crate::upstream::original_dst::Destinations;

/// For as long as the cluster lives.
pub(super) fn tend(
    manager: &Rc<Inner>,
    name: &Arc<str>,
    id: u64,
    destinations: Arc<Destinations>,
    interval: Duration,
) -> Running {
    let task = run(Rc::downgrade(manager), name.clone(), id, destinations, interval);
    Running(tokio::task::spawn_local(task).abort_handle())
}

async fn run(manager: Weak<Inner>, name: Arc<str>, id: u64, destinations: Arc<Destinations>, interval: Duration) {
    let mut next = Instant::now() + interval;
    loop {
        let changed = tokio::select! {
            () = destinations.changed() => true,
            () = tokio::time::sleep_until(next) => {
                next = Instant::now() + interval;
                destinations.clean_up()
            }
        };
        let Some(manager) = manager.upgrade() else { return };
        if changed && manager.with(&name, id, |cluster| cluster.adopt(&destinations.hosts())) == Some(true) {
            manager.changed(&name, id, false);
        }
    }
}
