//! `POST /logging` shows and changes the levels of the proxy's own log, `POST /reopen_logs` opens log files anew.

use std::sync::Arc;

use http::StatusCode;

use super::{Answer, Page, Param, ParamKind, Query};
use crate::logging::{Level, Loggers, is_logger};

const PARAMS: &[Param] = &[
    Param { name: "paths", help: "several levels, as <logger>:<level>,<logger>:<level>", kind: ParamKind::Text },
    Param {
        name: "level",
        help: "a level for all loggers",
        kind: ParamKind::OneOf(&["", "trace", "debug", "info", "warning", "error", "critical", "off"]),
    },
];

const USAGE: &str = "usage: /logging?<name>=<level> (change single level)\n\
                     usage: /logging?paths=name1:level1,name2:level2,... (change multiple levels)\n\
                     usage: /logging?level=<level> (change all levels)\n\
                     levels: trace debug info warning error critical off \n";

pub fn pages(loggers: &Arc<Loggers>, reopen: impl Fn() + 'static) -> Vec<Page> {
    let loggers = loggers.clone();
    vec![
        Page::act("/logging", "query/change logging levels", move |query| answer(&loggers, query)).with_params(PARAMS),
        Page::act("/reopen_logs", "reopen access logs", move |_| {
            reopen();
            Answer::ok()
        }),
    ]
}

fn answer(loggers: &Loggers, query: &Query) -> Answer {
    let changed = change(loggers, query);
    let lines: String = loggers.levels().map(|(name, level)| format!("  {name}: {}\n", level.name())).collect();
    let list = format!("active loggers:\n{lines}\n");
    match changed {
        Ok(()) => Answer::text(list),
        Err(reason) => Answer::error(StatusCode::BAD_REQUEST, format!("error: {reason}\n\n{USAGE}{list}")),
    }
}

/// Nothing is changed unless all of it can be. An empty value asks for nothing.
fn change(loggers: &Loggers, query: &Query) -> Result<(), &'static str> {
    if query.iter().len() > 1 {
        return Err("invalid number of parameters");
    }
    let Some((name, value)) = query.iter().next().filter(|(_, value)| !value.is_empty()) else { return Ok(()) };
    let level = |text: &str| text.parse::<Level>().map_err(|()| "unknown logger level");
    match name {
        "level" => loggers.set_all(level(value)?),
        "paths" => {
            let mut wanted = Vec::new();
            for item in value.split(',') {
                let pair = item.split_once(':').filter(|(name, level)| !name.is_empty() && !level.is_empty());
                let (name, text) = pair.ok_or("empty logger name or empty logger level")?;
                wanted.push((name, level(text)?));
            }
            if !wanted.iter().all(|(name, _)| is_logger(name)) {
                return Err("unknown logger name");
            }
            for (name, level) in wanted {
                loggers.set(name, level);
            }
        }
        name => {
            let level = level(value)?;
            loggers.set(name, level).then_some(()).ok_or("unknown logger name")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::Settings;
    use nuncio_core::time::WallClock;

    #[test]
    fn levels_are_shown_and_changed_as_envoy_does() {
        let settings =
            Settings { level: Level::Warning, component_levels: &[], format: "%v", escaped: false, path: "" };
        let loggers = Loggers::new(&settings, WallClock::System);
        let ask = |query: &str| {
            let answer = answer(&loggers, &Query::parse(query));
            (answer.status.as_u16(), answer.into_text())
        };
        let level = |name: &str| loggers.levels().find(|(n, _)| *n == name).unwrap().1.name();
        let all = || [level("admin"), level("http"), level("router")];
        let (status, text) = ask("");
        assert_eq!(status, 200);
        assert!(
            text.starts_with("active loggers:\n  a2a: warning\n  admin: warning\n")
                && text.ends_with("  ip_tagging: warning\n\n")
        );
        // Queries, answers and what holds afterwards, as Envoy 1.40 has them.
        let good = [
            ("level=info", ["info", "info", "info"]),
            ("http=debug", ["info", "debug", "info"]),
            ("paths=router:error,admin:trace", ["trace", "debug", "error"]),
            ("level=", ["trace", "debug", "error"]),
            ("level", ["trace", "debug", "error"]),
            ("paths=", ["trace", "debug", "error"]),
        ];
        for (query, levels) in good {
            assert_eq!((ask(query).0, all()), (200, levels), "{query}");
        }
        let bad = [
            ("level=bogus", "error: unknown logger level\n\nusage: "),
            ("http=loud", "error: unknown logger level\n\nusage: "),
            ("level=info&http=debug", "error: invalid number of parameters\n\nusage: "),
            ("paths=nosuch:info", "error: unknown logger name\n\nusage: "),
            ("paths=nosuch", "error: empty logger name or empty logger level\n\nusage: "),
            ("paths=http:info,router:loud", "error: unknown logger level\n\nusage: "),
            ("nosuch=info", "error: unknown logger name\n\nusage: "),
        ];
        for (query, beginning) in bad {
            let (status, text) = ask(query);
            assert!(status == 400 && text.starts_with(beginning), "{query}: {text}");
        }
        assert_eq!(all(), ["trace", "debug", "error"]);
    }
}
