//! Our lists against the names and kinds that Envoy 1.40 shows for a plain configuration before any traffic: one
//! cluster C, one listener with a connection manager H, one TCP proxy T, one worker.

use nuncio_core::stats::lists::{cluster, http, http1, listener, server, tcp};
use nuncio_core::stats::{Scope, Store, Value};
use std::collections::BTreeSet;
use std::sync::Arc;

#[test]
fn lists_have_the_names_and_kinds_of_envoy() {
    let mut store = Store::new();
    let scopes: [(&'static Scope, &str); 18] = [
        (&cluster::SCOPE, "C"),
        (&http::SCOPE, "H"),
        (&http1::SCOPE, "http1"),
        (&listener::SCOPE, "ADDRESS"),
        (&listener::WORKER_SCOPE, "ADDRESS.worker_0"),
        (&listener::HTTP_SCOPE, "ADDRESS.http.H"),
        (&tcp::SCOPE, "T"),
        (&server::SCOPE, ""),
        (&server::CLUSTER_MANAGER_SCOPE, ""),
        (&server::LISTENER_MANAGER_SCOPE, ""),
        (&server::RUNTIME_SCOPE, ""),
        (&server::FILESYSTEM_SCOPE, ""),
        (&server::THREAD_CLUSTERS_SCOPE, "main_thread"),
        (&server::THREAD_CLUSTERS_SCOPE, "worker_0"),
        (&server::WATCHDOG_SCOPE, "main_thread"),
        (&server::WATCHDOG_SCOPE, "workers"),
        (&server::WATCHDOG_SCOPE, "server.main_thread"),
        (&server::WATCHDOG_SCOPE, "server.worker_0"),
    ];
    for (kind, name) in scopes {
        store.scope(kind, &Arc::from(name));
    }
    let mut ours = BTreeSet::new();
    for scope in store.view().scopes() {
        let mut prefix = String::new();
        scope.write_prefix(&mut prefix);
        scope.visit(&mut |_, list, stat, value| {
            let kind = match value {
                Value::Counter { .. } => "counter",
                Value::Gauge { .. } => "gauge",
                Value::Histogram(_) => "histogram",
                Value::Text(_) => "text",
            };
            assert!(ours.insert(format!("{prefix}{list}{stat} {kind}")), "{prefix}{list}{stat} is listed twice");
        });
    }
    let envoy: BTreeSet<String> = include_str!("golden/envoy_stat_names.txt").lines().map(str::to_owned).collect();
    let missing: Vec<_> = envoy.difference(&ours).collect();
    let extra: Vec<_> = ours.difference(&envoy).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing {missing:#?}, not Envoy's {extra:#?}");
}
