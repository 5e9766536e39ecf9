//! `/ready`, `/healthcheck/fail`, `/healthcheck/ok`, `/init_dump`, `/quitquitquit`: the state of the server.

use std::rc::Rc;
use std::sync::Arc;

use http::StatusCode;
use serde_json::json;

use super::discovery::date;
use super::{Answer, Page, Param, ParamKind};
use crate::lifecycle::{Lifecycle, ServerState};
use crate::upstream::Awaited;

const MASK: &[Param] =
    &[Param { name: "mask", help: "kind of what is waited for, e.g. listener", kind: ParamKind::Text }];

/// `quit` ends the process, so it is called when the answer is out.
/// `awaited` names what the initialization waits for.
pub fn pages(
    lifecycle: &Arc<Lifecycle>,
    awaited: impl Fn() -> Vec<Awaited> + 'static,
    quit: Rc<dyn Fn()>,
) -> Vec<Page> {
    let (ready, fail, ok) = (lifecycle.clone(), lifecycle.clone(), lifecycle.clone());
    vec![
        Page::new("/ready", "print server state, return 200 if LIVE, otherwise return 503", move |_| {
            answer_ready(&ready)
        }),
        Page::act("/healthcheck/fail", "cause the server to fail health checks", move |_| {
            fail.set_health_failed(true);
            Answer::ok()
        }),
        Page::act("/healthcheck/ok", "cause the server to pass health checks", move |_| {
            ok.set_health_failed(false);
            Answer::ok()
        }),
        Page::new("/init_dump", "print what the initialization waits for", move |_| init_dump(&awaited()))
            .with_params(MASK),
        Page::act("/quitquitquit", "exit the server", move |_| {
            let quit = quit.clone();
            Answer::ok().then(move || quit())
        }),
    ]
}

fn answer_ready(lifecycle: &Lifecycle) -> Answer {
    let state = lifecycle.state();
    let text = format!("{}\n", state.as_str());
    match state {
        ServerState::Live => Answer::text(text),
        _ => Answer::error(StatusCode::SERVICE_UNAVAILABLE, text),
    }
}

/// `envoy.admin.v3.UnreadyTargetsDumps`. All targets hang on the server here, so there is one dump.
/// Beside it, under a name of our own, since when each is awaited and who has not answered.
fn init_dump(awaited: &[Awaited]) -> Answer {
    if awaited.is_empty() {
        return Answer::json(&json!({}));
    }
    let target = |one: &Awaited| format!("cluster {}", one.name);
    let names: Vec<String> = awaited.iter().map(target).collect();
    let waiting = awaited.iter().map(|one| {
        let mut json = json!({ "target": target(one), "since": date(one.since) });
        if let Some(who) = &one.who {
            json["for"] = (**who).into();
        }
        json
    });
    Answer::json(&json!({
        "unready_targets_dumps": [{"name": "init manager Server", "target_names": names}],
        "nuncio_waiting": waiting.collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_live_server_is_ready() {
        let lifecycle = Lifecycle::default();
        let ready = |l: &Lifecycle| (answer_ready(l).status.as_u16(), answer_ready(l).into_text());
        assert_eq!(ready(&lifecycle), (503, "PRE_INITIALIZING\n".to_owned()));
        lifecycle.set_initialization(ServerState::Initializing);
        assert_eq!(ready(&lifecycle), (503, "INITIALIZING\n".to_owned()));
        lifecycle.set_initialization(ServerState::Live);
        assert_eq!(ready(&lifecycle), (200, "LIVE\n".to_owned()));
        lifecycle.set_health_failed(true);
        assert_eq!(ready(&lifecycle), (503, "DRAINING\n".to_owned()));
    }

    #[test]
    fn the_init_dump_names_what_is_waited_for() {
        assert_eq!(init_dump(&[]).into_text(), "{}\n");
        let since = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
        let awaited = Awaited { name: "a".into(), who: Some("dns a.test".into()), since };
        let dump: serde_json::Value = serde_json::from_str(&init_dump(&[awaited]).into_text()).unwrap();
        assert_eq!(dump["unready_targets_dumps"][0]["target_names"], json!(["cluster a"]));
        let waiting = json!([{"target": "cluster a", "since": "1970-01-01T00:00:01Z", "for": "dns a.test"}]);
        assert_eq!(dump["nuncio_waiting"], waiting);
    }
}
