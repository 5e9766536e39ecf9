//! `/stats`, `/stats/prometheus` and `/reset_counters`. What is printed is the business of [`crate::stats_sink`].

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use http::StatusCode;
use nuncio_core::stats::Store;

use super::{Answer, ContentType, Page, Param, ParamKind, Query};
use crate::stats_sink::{Format, StatsConfig, StatsQuery, render};

const USED: Param = Param { name: "usedonly", help: "only stats that were ever written", kind: ParamKind::Flag };
const FILTER: Param = Param { name: "filter", help: "regular expression for names", kind: ParamKind::Text };
const INVERT: Param =
    Param { name: "invert_filter", help: "only names that filter does not match", kind: ParamKind::Flag };

const STATS: &[Param] = &[
    USED,
    FILTER,
    INVERT,
    Param { name: "format", help: "kind of output", kind: ParamKind::OneOf(&["html", "active-html", "text", "json"]) },
    Param {
        name: "type",
        help: "kind of stats",
        kind: ParamKind::OneOf(&["All", "Counters", "Histograms", "Gauges", "TextReadouts"]),
    },
    Param {
        name: "histogram_buckets",
        help: "how histograms are shown",
        kind: ParamKind::OneOf(&["cumulative", "disjoint", "detailed", "summary"]),
    },
];

const PROMETHEUS: &[Param] = &[
    USED,
    Param { name: "text_readouts", help: "text readouts too, as gauges of value 0", kind: ParamKind::Flag },
    FILTER,
    INVERT,
    Param {
        name: "histogram_buckets",
        help: "how histograms are shown",
        kind: ParamKind::OneOf(&["cumulative", "summary"]),
    },
];

/// `flush`: `stats_flush_on_admin`, stats are as of the request and not of the last interval.
pub fn pages(store: &Rc<RefCell<Store>>, config: &Arc<StatsConfig>, flush: Option<Rc<dyn Fn()>>) -> Vec<Page> {
    let print = |prometheus: bool| {
        let (store, config, flush) = (store.clone(), config.clone(), flush.clone());
        move |query: &Query| {
            if let Some(flush) = &flush {
                flush();
            }
            answer(&store, &config, prometheus, query)
        }
    };
    let reset = store.clone();
    vec![
        Page::new("/stats", "print server stats", print(false)).with_params(STATS),
        Page::new("/stats/prometheus", "print server stats in prometheus format", print(true)).with_params(PROMETHEUS),
        Page::act("/reset_counters", "reset all counters to zero", move |_| {
            reset.borrow_mut().reset_counters();
            Answer::ok()
        }),
    ]
}

fn answer(store: &RefCell<Store>, config: &Arc<StatsConfig>, prometheus: bool, query: &Query) -> Answer {
    let asked = match StatsQuery::parse(prometheus, query.iter()) {
        Ok(asked) => asked,
        Err(reason) => return Answer::error(StatusCode::BAD_REQUEST, reason.0),
    };
    let view = store.borrow_mut().view();
    let config = config.clone();
    let content_type = match asked.format {
        Format::Text | Format::Prometheus => ContentType::Text,
        Format::Json => ContentType::Json,
        Format::Html => ContentType::Html,
    };
    Answer::rendered(content_type, move |out| {
        let mut all = true;
        render(&view, &config, &asked, &mut |chunk| {
            all = out.send(chunk);
            all
        });
        if all { Ok(()) } else { Err(std::fmt::Error) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_core::stats::lists::server;

    #[test]
    fn stats_are_printed_filtered_and_refused() {
        let store = Rc::new(RefCell::new(Store::new()));
        store.borrow_mut().scope(&server::SCOPE, &"".into());
        let config = StatsConfig::from_proto(&Default::default()).unwrap().into();
        let ask = |prometheus, query: &str| {
            let answer = answer(&store, &config, prometheus, &Query::parse(query));
            (answer.status.as_u16(), answer.content_type.as_str(), answer.into_text())
        };
        let text = "text/plain; charset=UTF-8";
        assert_eq!(ask(false, "filter=server.live$"), (200, text, "server.live: 0\n".to_owned()));
        assert_eq!(ask(false, "type=Nope"), (400, text, "invalid &type= param".to_owned()));
        assert_eq!(ask(false, "filter=server.live$&format=json").1, "application/json");
        assert!(ask(true, "filter=server.live$").2.contains("envoy_server_live{} 0\n"));
    }
}
