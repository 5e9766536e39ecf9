//! Pages about what Envoy measures of itself and this proxy does not: profilers, mutexes, stat lookups, hot restart.
//!
//! They answer as an Envoy without the feature does, so that a tool which asks gets on.

use std::cell::Cell;
use std::rc::Rc;

use http::StatusCode;

use super::{Answer, Page, Param, ParamKind, Query};
use crate::version;

const ENABLE: &[Param] = &[Param { name: "enable", help: "start or stop", kind: ParamKind::OneOf(&["y", "n"]) }];

pub(super) fn pages() -> Vec<Page> {
    let tracking = Rc::new(Cell::new(false));
    let track = |path, help, to: bool| {
        let tracking = tracking.clone();
        Page::act(path, help, move |_| {
            tracking.set(to);
            Answer::ok()
        })
    };
    let shown = tracking.clone();
    vec![
        Page::act("/cpuprofiler", "enable/disable the CPU profiler (not supported)", cpu).with_params(ENABLE),
        Page::act("/heapprofiler", "enable/disable the heap profiler (not supported)", |_| {
            unsupported("heap profiler")
        })
        .with_params(ENABLE),
        Page::act("/allocprofiler", "enable/disable the allocation profiler (not supported)", |_| {
            unsupported("allocation profiler")
        })
        .with_params(ENABLE),
        Page::new("/heap_dump", "print the heap (not supported)", |_| unsupported("heap dump")),
        Page::new("/peak_heap_dump", "print the heap at its peak (not supported)", |_| unsupported("heap dump")),
        Page::new("/contention", "print mutex contention (there are no contended mutexes)", |_| {
            Answer::text("Mutex contention tracing is not enabled.")
        }),
        Page::new("/hot_restart_version", "print the hot restart compatibility version", |_| {
            Answer::text(version::HOT_RESTART)
        }),
        Page::new("/stats/recentlookups", "print recent lookups of stats by name (there are none)", move |_| {
            recent_lookups(shown.get())
        }),
        track("/stats/recentlookups/enable", "record lookups of stats by name", true),
        track("/stats/recentlookups/disable", "do not record lookups of stats by name", false),
        Page::act("/stats/recentlookups/clear", "forget lookups of stats by name", |_| Answer::ok()),
    ]
}

fn cpu(query: &Query) -> Answer {
    match query.get("enable") {
        Some("y") => Answer::error(StatusCode::INTERNAL_SERVER_ERROR, "failure to start the profiler"),
        Some("n") => Answer::ok(),
        _ => Answer::error(StatusCode::BAD_REQUEST, "?enable=<y|n>\n"),
    }
}

fn unsupported(what: &str) -> Answer {
    Answer::error(StatusCode::NOT_IMPLEMENTED, format!("The current build does not support {what}"))
}

/// No stat is ever looked up by its name here, so the list is always empty.
fn recent_lookups(tracking: bool) -> Answer {
    let list = if tracking {
        "   Count Lookup\n"
    } else {
        "Lookup tracking is not enabled. Use /stats/recentlookups/enable to enable.\n"
    };
    Answer::text(format!("{list}\ntotal: 0\n"))
}
