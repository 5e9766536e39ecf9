//! Reload: the bootstrap is read again, and its clusters, listeners and routes take the place of those that run, all of
//! them or none. Connections stay. What else it says needs a restart.

use std::collections::HashSet;
use std::io;

use nuncio_api::{ConfigError, Diagnostic, Element, LoadedBootstrap};

use super::Main;
use crate::listener::{Origin, Prepared};
use crate::server::bootstrap;
use crate::upstream::PreparedCluster;

/// A reload whose clusters become warm.
pub(super) struct Reload {
    listeners: Vec<Prepared>,
    listener_names: HashSet<String>,
    cluster_names: HashSet<String>,
}

/// What was read and found right.
#[derive(Default)]
struct Checked {
    clusters: Vec<PreparedCluster>,
    cluster_names: HashSet<String>,
    listeners: Vec<Prepared>,
    listener_names: HashSet<String>,
}

impl Main {
    /// Reads the bootstrap again. Everything that is wrong is told; then nothing has changed.
    pub(super) fn reload(&mut self) {
        if !self.live || self.reloading.is_some() {
            return tracing::warn!(target: "config", "the configuration is not reloaded: the last one is not in use yet");
        }
        tracing::info!(target: "config", "reloading the configuration");
        self.reloads.attempt();
        if let Err(problems) = self.try_reload() {
            self.reloads.rejected();
            problems.iter().for_each(|problem| tracing::error!(target: "config", "{problem}"));
            tracing::error!(target: "config", "the configuration is not reloaded: nothing has changed");
        }
    }

    fn try_reload(&mut self) -> Result<(), Vec<Diagnostic>> {
        let loaded = bootstrap::load_with(&self.options, &self.strictness.support)?;
        loaded.warnings.iter().for_each(|warning| tracing::warn!(target: "config", "{warning}"));
        if loaded.bytes != self.bootstrap_bytes {
            tracing::warn!(target: "config", "only clusters and listeners are reloaded; the rest of the bootstrap changed too and needs a restart");
        }
        let mut problems = Vec::new();
        let mut checked = Checked::default();
        for element in &loaded.clusters {
            if let Err(errors) = self.check_cluster(element, &mut checked) {
                problems.extend(place(&loaded, element, errors));
            }
        }
        for element in &loaded.listeners {
            if let Err(errors) = self.check_listener(element, &mut checked) {
                problems.extend(place(&loaded, element, errors));
            }
        }
        let names = &checked.listener_names;
        self.listeners.retire(|e| e.origin.version.is_none() && !names.contains(e.config.name()));
        if problems.is_empty() {
            // A socket that cannot be had is the last thing that can be wrong.
            for prepared in &mut checked.listeners {
                if let Err(error) = self.listeners.reserve(prepared) {
                    let element = loaded.listeners.iter().find(|e| e.bytes == prepared.origin().bytes);
                    problems.extend(element.into_iter().flat_map(|e| place(&loaded, e, vec![error.clone()])));
                }
            }
        }
        if !problems.is_empty() {
            self.listeners.unretire();
            self.forget_checked(checked);
            return Err(problems);
        }
        self.shown_configs.replace(crate::server::admin::configs(&loaded, &self.node, self.context.clock).into());
        checked.clusters.into_iter().for_each(|cluster| self.clusters.install(cluster));
        let (listeners, listener_names) = (checked.listeners, checked.listener_names);
        self.reloading = Some(Reload { listeners, listener_names, cluster_names: checked.cluster_names });
        Ok(())
    }

    fn check_cluster(
        &self,
        element: &Element<nuncio_api::pb::envoy::config::cluster::v3::Cluster>,
        checked: &mut Checked,
    ) -> Result<(), Vec<ConfigError>> {
        let message = element.decode().map_err(|e| vec![e])?;
        if !checked.cluster_names.insert(message.name.clone()) {
            let reason = format!("cluster manager: duplicate cluster '{}'", message.name);
            return Err(vec![ConfigError::new("name", reason)]);
        }
        checked.clusters.extend(self.clusters.prepare_static(&message, element.bytes.clone())?);
        Ok(())
    }

    fn check_listener(
        &self,
        element: &Element<nuncio_api::pb::envoy::config::listener::v3::Listener>,
        checked: &mut Checked,
    ) -> Result<(), Vec<ConfigError>> {
        let message = element.decode().map_err(|e| vec![e])?;
        let origin = Origin { bytes: element.bytes.clone(), ..Origin::default() };
        // One without a name is another one each time.
        if !message.name.is_empty() && !checked.listener_names.insert(message.name.clone()) {
            return Ok(());
        }
        if self.listeners.is_settled(&message.name, &origin) {
            return Ok(());
        }
        let names = &checked.cluster_names;
        let prepared = self.prepare_with(&message, origin, &|name| names.contains(name) || self.is_dynamic(name))?;
        checked.listener_names.insert(prepared.name().to_owned());
        checked.listeners.push(prepared);
        Ok(())
    }

    /// A cluster that came by CDS and is not the bootstrap's to take away.
    fn is_dynamic(&self, name: &str) -> bool {
        self.sources.clusters.is_some() && self.clusters.contains(name)
    }

    fn forget_checked(&mut self, checked: Checked) {
        checked.clusters.into_iter().for_each(|cluster| self.clusters.forget(cluster));
        let mut store = self.store.borrow_mut();
        checked.listeners.into_iter().for_each(|prepared| self.listeners.forget(prepared, &mut store));
    }

    /// The clusters of a reload are warm: its listeners take over, and what nobody names any more goes.
    pub(super) fn finish_reload(&mut self) -> io::Result<()> {
        let Some(Reload { listeners, listener_names, cluster_names }) = self.reloading.take() else { return Ok(()) };
        self.forget_warming(|w| w.prepared.origin().version.is_none() && !listener_names.contains(w.prepared.name()));
        for prepared in listeners {
            let name = prepared.name().to_owned();
            if let Err(error) = self.introduce(prepared) {
                tracing::error!(target: "config", "listener '{name}' stays as it was: {error}");
            }
        }
        let drained = self.listeners.retired();
        self.apply(drained)?;
        self.clusters.retire_static(|name| cluster_names.contains(name));
        self.reloads.success(&mut self.store.borrow_mut(), "");
        tracing::info!(target: "config", "the configuration is reloaded");
        Ok(())
    }
}

fn place<T>(loaded: &LoadedBootstrap, element: &Element<T>, errors: Vec<ConfigError>) -> Vec<Diagnostic> {
    errors.into_iter().map(|error| loaded.positions.element_error(element, error)).collect()
}
