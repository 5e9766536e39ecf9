//! The overload manager: looks at resources again and again, and says which actions follow.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use nuncio_api::any::type_name;
use nuncio_api::pb::envoy::config::overload::v3 as pb;
use nuncio_api::pb::envoy::config::overload::v3::trigger::TriggerOneof;
use nuncio_api::pb::envoy::extensions::resource_monitors as monitors;
use nuncio_api::pb::google::protobuf::Any;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::stats::lists::overload as stat;
use nuncio_core::stats::{Stats, Store};
use nuncio_core::time::duration;

use crate::admin::MemoryUse;
use crate::lifecycle::Lifecycle;
use crate::net::sys::trim_memory;
use crate::overload::{ACTIONS, Action};

supports!(MANAGER = "envoy.config.overload.v3.OverloadManager" { refresh_interval, resource_monitors, actions });
supports!(MONITOR = "envoy.config.overload.v3.ResourceMonitor" { name, typed_config });
supports!(ACTION = "envoy.config.overload.v3.OverloadAction" { name, triggers });
supports!(TRIGGER = "envoy.config.overload.v3.Trigger" { name, threshold, scaled });
supports!(THRESHOLD = "envoy.config.overload.v3.ThresholdTrigger" { value });
supports!(SCALED = "envoy.config.overload.v3.ScaledTrigger" { scaling_threshold, saturation_threshold });
supports!(FIXED = "envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig" { max_heap_size_bytes });
supports!(CGROUP = "envoy.extensions.resource_monitors.cgroup_memory.v3.CgroupMemoryConfig" { max_memory_bytes });
supports!(CONNECTIONS = "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig" {
    max_active_downstream_connections
});
supports!(INJECTED = "envoy.extensions.resource_monitors.injected_resource.v3.InjectedResourceConfig" { filename });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] =
    &[&MANAGER, &MONITOR, &ACTION, &TRIGGER, &THRESHOLD, &SCALED, &FIXED, &CGROUP, &CONNECTIONS, &INJECTED];

const ACTION_OF: [Action; ACTIONS.len()] = [
    Action::StopAcceptingRequests,
    Action::DisableHttpKeepalive,
    Action::StopAcceptingConnections,
    Action::RejectIncomingConnections,
    Action::ShrinkHeap,
];

/// `overload_manager`, checked.
#[derive(Debug, Default)]
pub struct OverloadConfig {
    interval: Option<Duration>,
    resources: Vec<(String, Resource)>,
    actions: Vec<(Action, Vec<Trigger>)>,
}

#[derive(Debug, PartialEq)]
enum Resource {
    FixedHeap {
        max: u64,
    },
    Cgroup {
        max: u64,
    },
    Connections {
        max: u64,
    },
    /// A number in a file, for tests of one's settings.
    Injected(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Trigger {
    resource: usize,
    /// Where the action begins, and where it is fully on.
    from: f64,
    to: f64,
}

impl OverloadConfig {
    pub fn from_proto(message: Option<&pb::OverloadManager>) -> Result<Self, ConfigError> {
        let Some(message) = message else { return Ok(Self::default()) };
        let mut config = Self {
            interval: Some(message.refresh_interval.as_ref().map_or(Duration::from_secs(1), duration)),
            ..Self::default()
        };
        for (i, monitor) in message.resource_monitors.iter().enumerate() {
            let at = |e: ConfigError| e.within(&format!("resource_monitors[{i}]"));
            if config.resources.iter().any(|(name, _)| *name == monitor.name) {
                return Err(at(ConfigError::new("name", format!("Duplicate resource monitor {}", monitor.name))));
            }
            let Some(pb::resource_monitor::ConfigType::TypedConfig(any)) = &monitor.config_type else {
                return Err(at(ConfigError::new("typed_config", "value is required")));
            };
            let resource = Resource::from_proto(any).map_err(|e| at(e.within("typed_config")))?;
            config.resources.push((monitor.name.clone(), resource));
        }
        for (i, action) in message.actions.iter().enumerate() {
            let at = |e: ConfigError| e.within(&format!("actions[{i}]"));
            let Some(known) = ACTIONS.iter().position(|name| *name == action.name) else {
                return Err(at(ConfigError::new("name", format!("Unknown Overload Manager Action: {}", action.name))));
            };
            if config.actions.iter().any(|(other, _)| *other as usize == known) {
                return Err(at(ConfigError::new("name", format!("Duplicate overload action {}", action.name))));
            }
            let triggers = action
                .triggers
                .iter()
                .enumerate()
                .map(|(t, trigger)| config.trigger(trigger).map_err(|e| at(e.within(&format!("triggers[{t}]")))));
            let triggers = triggers.collect::<Result<_, _>>()?;
            config.actions.push((ACTION_OF[known], triggers));
        }
        Ok(config)
    }

    fn trigger(&self, message: &pb::Trigger) -> Result<Trigger, ConfigError> {
        let Some(resource) = self.resources.iter().position(|(name, _)| *name == message.name) else {
            return Err(ConfigError::new("name", format!("Unknown trigger resource {}", message.name)));
        };
        let (from, to) = match &message.trigger_oneof {
            Some(TriggerOneof::Threshold(threshold)) => (threshold.value, threshold.value),
            Some(TriggerOneof::Scaled(scaled)) if scaled.scaling_threshold >= scaled.saturation_threshold => {
                return Err(ConfigError::new("scaled", "scaling_threshold must be less than saturation_threshold"));
            }
            Some(TriggerOneof::Scaled(scaled)) => (scaled.scaling_threshold, scaled.saturation_threshold),
            None => return Err(ConfigError::new("trigger_oneof", "value is required")),
        };
        Ok(Trigger { resource, from, to })
    }
}

impl Resource {
    fn from_proto(any: &Any) -> Result<Self, ConfigError> {
        match type_name(&any.type_url) {
            name if name == FIXED.message => {
                let config: monitors::fixed_heap::v3::FixedHeapConfig = unpack(any)?;
                Ok(Self::FixedHeap { max: config.max_heap_size_bytes.max(1) })
            }
            name if name == CGROUP.message => {
                let config: monitors::cgroup_memory::v3::CgroupMemoryConfig = unpack(any)?;
                Ok(Self::Cgroup { max: if config.max_memory_bytes == 0 { u64::MAX } else { config.max_memory_bytes } })
            }
            name if name == CONNECTIONS.message => {
                let config: monitors::downstream_connections::v3::DownstreamConnectionsConfig = unpack(any)?;
                let max = u64::try_from(config.max_active_downstream_connections).unwrap_or(0).max(1);
                Ok(Self::Connections { max })
            }
            name if name == INJECTED.message => {
                let config: monitors::injected_resource::v3::InjectedResourceConfig = unpack(any)?;
                Ok(Self::Injected(config.filename.into()))
            }
            _ => Err(ConfigError::new("", format!("Didn't find a registered implementation for '{}'", any.type_url))),
        }
    }

    /// How much of it is used, 1.0 is all. None: nobody can tell.
    fn pressure(&self, lifecycle: &Lifecycle) -> Option<f64> {
        let share = |used: u64, max: u64| used as f64 / max as f64;
        match self {
            Self::FixedHeap { max } => Some(share(MemoryUse::now().allocated, *max)),
            Self::Cgroup { max } => {
                let (used, limit) = cgroup_memory()?;
                Some(share(used, limit.min(*max)))
            }
            Self::Connections { max } => Some(share(lifecycle.downstream_connections().load(Relaxed), *max)),
            Self::Injected(path) => fs::read_to_string(path).ok()?.trim().parse().ok(),
        }
    }
}

/// What the control group uses and may use, of version 2 or 1.
fn cgroup_memory() -> Option<(u64, u64)> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let number = |text: String| text.trim().parse().unwrap_or(u64::MAX);
    let pairs = [
        ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.max"),
        ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ];
    pairs.iter().find_map(|(used, max)| Some((number(read(used)?), read(max).map_or(u64::MAX, number))))
}

/// The manager at work, on the main thread.
pub struct OverloadManager {
    config: OverloadConfig,
    lifecycle: Arc<Lifecycle>,
    resources: Vec<Stats<stat::Resource>>,
    actions: Vec<Stats<stat::Action>>,
}

impl OverloadManager {
    pub fn new(config: OverloadConfig, lifecycle: &Arc<Lifecycle>, store: &mut Store) -> Self {
        let resources = config.resources.iter().map(|(name, resource)| {
            if let Resource::Connections { max } = resource {
                lifecycle.overload.limit_connections(*max);
            }
            let scope = store.scope(&stat::SCOPE, &name.as_str().into());
            let stats = Stats::new(store.main(), scope);
            stats.set(stat::PRESSURE, 0);
            stats
        });
        let resources = resources.collect();
        let actions = config.actions.iter().map(|(action, _)| {
            let scope = store.scope(&stat::SCOPE, &ACTIONS[*action as usize].into());
            let stats = Stats::new(store.main(), scope);
            stats.set(stat::ACTIVE, 0);
            stats
        });
        let actions = actions.collect();
        Self { config, lifecycle: lifecycle.clone(), resources, actions }
    }

    /// How often to look; never, without resources.
    pub fn interval(&self) -> Option<Duration> {
        self.config.interval.filter(|_| !self.config.resources.is_empty())
    }

    /// Looks at every resource, and sets every action.
    pub fn refresh(&self) {
        let mut pressures = Vec::with_capacity(self.resources.len());
        for ((name, resource), stats) in self.config.resources.iter().zip(&self.resources) {
            let pressure = resource.pressure(&self.lifecycle);
            match pressure {
                Some(pressure) => stats.set(stat::PRESSURE, (pressure * 100.0).clamp(0.0, 1e9) as u64),
                None => {
                    stats.inc(stat::FAILED_UPDATES);
                    tracing::debug!("the pressure of {name} cannot be told");
                }
            }
            pressures.push(pressure);
        }
        for ((action, triggers), stats) in self.config.actions.iter().zip(&self.actions) {
            let percents = triggers.iter().filter_map(|trigger| Some(percent(trigger, pressures[trigger.resource]?)));
            let percent = percents.max().unwrap_or(0);
            let before = self.lifecycle.overload.percent(*action);
            self.lifecycle.overload.set(*action, percent);
            stats.set(stat::ACTIVE, u64::from(percent >= 100));
            stats.set(stat::SCALE_PERCENT, percent.into());
            if (percent >= 100) != (before >= 100) {
                let what = if percent >= 100 { "active" } else { "inactive" };
                tracing::warn!("Overload action {} became {what}", ACTIONS[*action as usize]);
            }
            if *action == Action::ShrinkHeap && percent >= 100 {
                trim_memory();
                stats.inc(stat::SHRINK_COUNT);
            }
        }
    }
}

fn percent(trigger: &Trigger, pressure: f64) -> u8 {
    if pressure >= trigger.to {
        return 100;
    }
    if pressure <= trigger.from {
        return 0;
    }
    (100.0 * (pressure - trigger.from) / (trigger.to - trigger.from)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(resource: Resource, action: Action, from: f64, to: f64) -> OverloadConfig {
        OverloadConfig {
            interval: Some(Duration::from_millis(250)),
            resources: vec![("r".into(), resource)],
            actions: vec![(action, vec![Trigger { resource: 0, from, to }])],
        }
    }

    #[test]
    fn an_action_follows_the_pressure_and_lets_go_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pressure");
        let lifecycle = Arc::new(Lifecycle::default());
        let config = config(Resource::Injected(file.clone()), Action::StopAcceptingRequests, 0.8, 0.9);
        let mut store = Store::new();
        let manager = OverloadManager::new(config, &lifecycle, &mut store);
        let after = |text: &str| {
            fs::write(&file, text).unwrap();
            manager.refresh();
            lifecycle.overload.percent(Action::StopAcceptingRequests)
        };
        assert_eq!([after("0.5"), after("0.85"), after("0.95"), after("0.8")], [0, 49, 100, 0]);
        fs::write(&file, "nonsense").unwrap();
        manager.refresh();
        assert_eq!(store.value("overload.r.failed_updates"), Some(1));
    }

    #[test]
    fn a_trigger_of_no_resource_and_an_unknown_action_are_refused() {
        let action = |name: &str, of: &str| pb::OverloadManager {
            actions: vec![pb::OverloadAction {
                name: name.into(),
                triggers: vec![pb::Trigger { name: of.into(), trigger_oneof: None }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let error = |message: &pb::OverloadManager| OverloadConfig::from_proto(Some(message)).unwrap_err().to_string();
        let unknown = error(&action("envoy.overload_actions.dance", "x"));
        assert_eq!(unknown, "actions[0].name: Unknown Overload Manager Action: envoy.overload_actions.dance");
        let resource = error(&action(ACTIONS[0], "x"));
        assert_eq!(resource, "actions[0].triggers[0].name: Unknown trigger resource x");
    }
}
