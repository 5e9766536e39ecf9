//! A process and those that follow it: hot restart, reload, and what bad input does to neither. Real processes and a real
//! clock; `nuncio-benches restarts` is the same for longer and at a higher rate.

// What fails ends the test.
#![allow(clippy::unwrap_used)]

mod process;

use std::io::{Read, Write};
use std::net::TcpStream;

use nuncio_testkit::load::{Load, Speaks};
use process::{Site, ask, until};

fn serves(site: &Site, version: u32) -> bool {
    ask("GET", site.plain(), "/").ends_with(&format!("v{version}."))
}

#[test]
fn no_request_is_lost_over_hot_restarts_and_reloads() {
    let mut site = Site::new();
    let mut process = site.start();
    until("it serves", || serves(&site, 0));
    let targets = [(Speaks::Http1, site.plain()), (Speaks::Http2, site.plain()), (Speaks::Tls, site.tls())];
    let load = Load::start(&targets, 2, 300, "/");
    let more = |n: u64| {
        let from = load.answered();
        until("requests are answered", || load.answered() > from + n);
    };
    for round in 1..=6 {
        more(150);
        let version = site.change();
        if round % 2 == 0 {
            process.hang_up();
        } else {
            let successor = site.start();
            let status = std::mem::replace(&mut process, successor).ended();
            assert!(status.success(), "{status}: {}", site.log());
        }
        until("the change counts", || serves(&site, version));
    }
    more(150);
    let outcome = load.finish();
    assert_eq!(outcome.lost, 0, "{outcome:?}");
    assert!(outcome.answered > 1000, "{outcome:?}");
}

#[test]
fn a_successor_that_fails_leaves_the_old_process_serving() {
    let site = Site::new();
    let process = site.start();
    until("it serves", || serves(&site, 0));
    site.write(&site.config().replace("stat_prefix: web", "stat_prefixes: web"));
    let status = site.start().ended();
    assert_eq!(status.code(), Some(1), "{}", site.log());
    let log = site.log();
    assert!(log.contains("nuncio.yaml:") && log.contains("stat_prefixes"), "{log}");
    assert!(serves(&site, 0));
    // And it is still there for one that is better.
    site.write(&site.config());
    let _successor = site.start();
    assert!(process.ended().success());
    until("the successor serves", || serves(&site, 0));
}

#[test]
fn a_half_written_file_is_refused_with_its_line_and_nothing_changes() {
    let mut site = Site::new();
    let process = site.start();
    until("it serves", || serves(&site, 0));
    let load = Load::start(&[(Speaks::Http1, site.plain()), (Speaks::Http2, site.plain())], 1, 100, "/");
    let whole = site.config();
    // Cut in the middle of a line, so that a brace is open.
    let half = &whole[..whole.len() * 2 / 3];
    site.write(half);
    let answer = ask("POST", site.admin(), "/reload");
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("nuncio.yaml:"), "{answer}");
    process.hang_up();
    until("the signal's reload is refused", || site.stat("server.reload.update_rejected") == 1);
    until("the log says so", || site.log().contains("nothing has changed"));
    assert!(serves(&site, 0));
    let version = site.change();
    let answer = ask("POST", site.admin(), "/reload");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    until("the whole file counts", || serves(&site, version));
    let outcome = load.finish();
    assert_eq!(outcome.lost, 0, "{outcome:?}");
}

#[test]
fn reloads_leave_nothing_behind() {
    let mut site = Site::new();
    let process = site.start();
    until("it serves", || serves(&site, 0));
    reload(&mut site, 3);
    let (descriptors, tasks) = (process.descriptors(), site.tasks());
    reload(&mut site, 20);
    // Connections of clients that have left may be about to end.
    until("there are no more tasks than before", || site.tasks() <= tasks);
    until("there are no more descriptors than before", || process.descriptors() <= descriptors);
}

/// Reloads one change after the other; when it returns nothing is left of them but the last.
fn reload(site: &mut Site, times: u32) {
    for _ in 0..times {
        let version = site.change();
        assert!(ask("POST", site.admin(), "/reload").starts_with("HTTP/1.1 200"));
        until("the change counts", || serves(site, version));
    }
    until("old listeners are gone", || site.stat("listener_manager.total_listeners_draining") == 0);
}

#[test]
fn a_malformed_proxy_header_ends_its_connection_and_no_other() {
    let site = Site::new();
    let _process = site.start();
    until("it serves", || serves(&site, 0));
    let request = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let say = |header: &str| {
        let mut stream = TcpStream::connect(site.behind_proxy()).unwrap();
        stream.write_all(format!("{header}{request}").as_bytes()).unwrap();
        let mut answer = String::new();
        // A reset is an end without a word too.
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let malformed = [
        "PROXY TCP4 999.0.0.1 10.0.0.2 1 2\r\n",
        "PROXY TCP4 10.0.0.1 10.0.0.2 1 99999\r\n",
        "PROXY UDP 10.0.0.1 10.0.0.2 1 2\r\n",
        "PROXY TCP6 ::1 10.0.0.2 1 2\r\n",
        "",
    ];
    for header in malformed {
        assert_eq!(say(header), "", "{header:?}");
        let good = say("PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n");
        assert!(good.starts_with("HTTP/1.1 200"), "after {header:?}: {good}");
    }
}
