//! `/server_info`: which server this is, how it was started, and for how long it has run.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Answer, Page};
use crate::lifecycle::Lifecycle;
use crate::version;

/// What does not change while the server runs.
pub struct Identity {
    pub started: Instant,
    /// `envoy.admin.v3.CommandLineOptions`.
    pub command_line: Value,
    /// `envoy.config.core.v3.Node`.
    pub node: Value,
}

pub fn pages(identity: Identity, lifecycle: &Arc<Lifecycle>) -> Vec<Page> {
    let lifecycle = lifecycle.clone();
    vec![Page::new("/server_info", "print server version/status information", move |_| {
        Answer::json(&describe(&identity, lifecycle.state().as_str()))
    })]
}

/// `envoy.admin.v3.ServerInfo`, in the order of Envoy's fields.
fn describe(identity: &Identity, state: &str) -> Value {
    let uptime = format!("{}s", identity.started.elapsed().as_secs());
    json!({
        "version": *version::FULL,
        "state": state,
        "uptime_current_epoch": uptime,
        "uptime_all_epochs": uptime,
        "hot_restart_version": version::HOT_RESTART,
        "command_line_options": identity.command_line,
        "node": identity.node,
        "hot_restart_initializing": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn the_server_tells_its_state_and_age() {
        let identity =
            Identity { started: Instant::now(), command_line: json!({"mode": "Serve"}), node: json!({"id": "n"}) };
        tokio::time::advance(Duration::from_millis(6_900)).await;
        let info = describe(&identity, "LIVE");
        let keys: Vec<_> = info.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = "version state uptime_current_epoch uptime_all_epochs hot_restart_version command_line_options node \
                        hot_restart_initializing";
        assert_eq!(keys.join(" "), expected);
        assert_eq!(info["uptime_current_epoch"], "6s");
        assert_eq!(info["version"].as_str().unwrap().matches('/').count(), 4);
    }
}
