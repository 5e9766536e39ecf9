//! `/threads`: what the event loops have in hand. Tasks that stay when what they were for is gone are a leak, and a loop
//! that is busy all the time is one too few.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::{Answer, Page, Param, ParamKind};

/// The event loops of the process: main's and the workers'. Each is added by its own thread.
#[derive(Clone)]
pub struct EventLoops(Arc<[OnceLock<Handle>]>);

/// What one of them has in hand.
struct Loop {
    name: String,
    /// Spawned and not over yet.
    tasks: usize,
    /// Running tasks, since the start.
    busy: Duration,
}

const PARAMS: &[Param] = &[Param { name: "format", help: "text or json", kind: ParamKind::OneOf(&["text", "json"]) }];

pub fn pages(loops: EventLoops) -> Vec<Page> {
    let answer = move |query: &super::Query| {
        let loops = loops.views();
        if query.get("format") == Some("json") {
            return Answer::json(&Value::Array(loops.iter().map(Loop::json).collect()));
        }
        Answer::text(loops.iter().map(Loop::line).collect::<String>())
    };
    vec![Page::new("/threads", "print the event loops: tasks, time spent in them", answer).with_params(PARAMS)]
}

// === impl EventLoops ===

impl EventLoops {
    /// Of the main thread, which asks, and so many workers.
    pub fn new(workers: u32) -> Self {
        let loops: Self = Self((0..=workers).map(|_| OnceLock::new()).collect());
        loops.add(0);
        loops
    }

    /// The loop of the worker that asks.
    pub fn add_worker(&self, index: u32) {
        self.add(index as usize + 1);
    }

    fn add(&self, at: usize) {
        if let Some(place) = self.0.get(at) {
            // A thread has one loop, and adds it once.
            let _ = place.set(Handle::current());
        }
    }

    fn views(&self) -> Vec<Loop> {
        let name = |at: usize| at.checked_sub(1).map_or_else(|| "main".to_owned(), |index| format!("wrk:{index}"));
        let view = |(at, handle): (usize, &OnceLock<Handle>)| {
            let metrics = handle.get()?.metrics();
            Some(Loop { name: name(at), tasks: metrics.num_alive_tasks(), busy: metrics.worker_total_busy_duration(0) })
        };
        self.0.iter().enumerate().filter_map(view).collect()
    }
}

// === impl Loop ===

impl Loop {
    fn line(&self) -> String {
        format!("{}: {} tasks, busy for {:.3} s\n", self.name, self.tasks, self.busy.as_secs_f64())
    }

    fn json(&self) -> Value {
        json!({"name": self.name, "tasks": self.tasks, "busy_seconds": self.busy.as_secs_f64()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_task_is_counted_until_it_is_over() {
        let loops = EventLoops::new(1);
        loops.add_worker(0);
        let tasks = || loops.views().iter().map(|view| (view.name.clone(), view.tasks)).collect::<Vec<_>>();
        let of = |count: usize| [("main".to_owned(), count), ("wrk:0".to_owned(), count)];
        let before = tasks()[0].1;
        let task = tokio::task::spawn_local(std::future::pending::<()>());
        assert_eq!(tasks(), of(before + 1));
        task.abort();
        assert!(task.await.is_err());
        assert_eq!(tasks(), of(before));
        assert!(loops.views()[0].line().starts_with(&format!("main: {before} tasks, busy for ")));
    }
}
