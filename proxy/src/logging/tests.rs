//! Log lines and levels.

use super::*;
use std::time::Duration;

fn line<'a>(message: &'a str, seconds: u64, millis: u64) -> Line<'a> {
    Line {
        since_epoch: Duration::from_millis(seconds * 1000 + millis),
        thread: "wrk:0",
        level: Level::Warning,
        logger: "upstream",
        file: "proxy/src/upstream/pool.rs",
        line: 7,
        module: "nuncio::upstream::pool",
        message,
        fields: " cluster=a",
    }
}

fn render(pattern: &str, escaped: bool, line: &Line<'_>) -> String {
    let mut out = String::new();
    Pattern::new(pattern, escaped).render(line, &mut out);
    out
}

#[test]
fn the_default_pattern_has_envoys_shape() {
    let format = crate::server::options::DEFAULT_LOG_FORMAT;
    // 2026-11-29T23:33:20Z by date(1).
    assert_eq!(
        render(format, false, &line("gone", 1_795_995_200, 45)),
        "[2026-11-29 23:33:20.045][wrk:0][warning][upstream] [proxy/src/upstream/pool.rs:7] gone cluster=a"
    );
}

#[test]
fn escapes_keep_a_line_one_line() {
    let l = line("a\nb\"\u{1}", 0, 0);
    assert_eq!(render("%v", false, &l), "a\nb\"\u{1} cluster=a");
    assert_eq!(render("%v", true, &l), "a\\nb\\\"\\x01 cluster=a");
    assert_eq!(render("%_", false, &l), "a\\nb\\\"\\x01 cluster=a");
    assert_eq!(render("{\"m\":\"%j\"}", false, &l), "{\"m\":\"a\\nb\\\"\\u0001 cluster=a\"}");
}

#[test]
fn widths_unknown_letters_and_a_lone_percent_are_kept() {
    let l = line("x", 0, 0);
    assert_eq!(render("%9l|%-9l|%=9l|%3l|%q|100%%|%", false, &l), "  warning|warning  | warning |warning|%q|100%|%");
    assert_eq!(render("%L %s %@ %^%n%$", false, &l), "W pool.rs proxy/src/upstream/pool.rs:7 upstream");
}

#[test]
fn a_module_belongs_to_its_nearest_logger() {
    for (target, logger) in [
        ("router", "router"),
        ("nuncio::http::router::table", "router"),
        ("nuncio::http::conn_manager", "http"),
        ("nuncio::httpx", "main"),
        ("nuncio::upstream::pool::http1", "pool"),
        ("nuncio::server::worker", "main"),
        ("hickory_resolver::x", "dns"),
        ("elsewhere", "main"),
    ] {
        assert_eq!(LOGGERS[owner(target)], logger, "{target}");
    }
    assert!(OWNERS.iter().all(|(_, name)| is_logger(name)));
}

#[test]
fn levels_change_one_by_one_and_all_at_once() {
    let components = [("http".to_owned(), Level::Trace)];
    let settings =
        Settings { level: Level::Warning, component_levels: &components, format: "%v", escaped: false, path: "" };
    let loggers = Loggers::new(&settings, WallClock::System);
    let level = |name: &str| loggers.levels().find(|(n, _)| *n == name).map(|(_, level)| level);
    assert_eq!((level("http"), level("router")), (Some(Level::Trace), Some(Level::Warning)));
    assert_eq!(loggers.most_talkative(), LevelFilter::TRACE);
    assert!(loggers.set("router", Level::Off) && !loggers.set("nosuch", Level::Off));
    assert_eq!(level("router"), Some(Level::Off));
    loggers.set_all("warn".parse().unwrap());
    assert!(loggers.levels().all(|(_, level)| level == Level::Warning));
    assert_eq!(loggers.most_talkative(), LevelFilter::WARN);
}

#[test]
fn events_reach_the_file_and_a_reopened_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let text = path.to_str().unwrap();
    let settings =
        Settings { level: Level::Info, component_levels: &[], format: "%t %l %n %v", escaped: false, path: text };
    let loggers = Arc::new(Loggers::new(&settings, WallClock::System));
    loggers.reopen().unwrap();
    let subscriber = Log(Arc::clone(&loggers));
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("wrk:3".to_owned())
            .spawn_scoped(scope, || {
                tracing::subscriber::with_default(subscriber, || {
                    tracing::warn!(target: "pool", cluster = "a", count = 3, "gone");
                    tracing::debug!(target: "pool", "unseen");
                    let moved = folder.path().join("log.1");
                    std::fs::rename(&path, &moved).unwrap();
                    loggers.reopen().unwrap();
                    tracing::error!(target: "nuncio::http::router", host = ?"h", "odd");
                    assert_eq!(std::fs::read_to_string(moved).unwrap(), "wrk:3 warning pool gone cluster=a count=3\n");
                });
            })
            .unwrap();
    });
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "wrk:3 error router odd host=\"h\"\n");
}
