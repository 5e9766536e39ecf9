//! `nuncio demo` as a user meets it: a process that says what to try.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

struct Demo {
    child: Child,
    out: BufReader<ChildStdout>,
    /// What it said until it was ready.
    said: Vec<String>,
}

impl Demo {
    fn start(folder: &std::path::Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nuncio"));
        command.args(["demo", "--fourth-after", "1"]).env("TMPDIR", folder).current_dir(folder).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut said = Vec::new();
        while !said.last().is_some_and(|line: &String| line.starts_with("Ctrl-C")) {
            let mut line = String::new();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended after {said:?}");
            said.push(line);
        }
        Self { child, out, said }
    }

    /// The answers to its `curl` lines, in their order.
    fn try_all(&self) -> Vec<String> {
        self.said.iter().filter(|line| line.trim_start().starts_with("curl ")).map(|line| curl(line)).collect()
    }

    /// Asks until the upstream answers that registers later.
    fn wait_for_the_fourth(&self) {
        let who = self.said.iter().find(|line| line.contains("/who")).unwrap();
        assert!((0..100_000).any(|_| curl(who).contains("upstream delta: ")), "it was never seen");
    }

    fn interrupt(mut self) {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        assert_eq!(children, "", "nothing of it can outlive it");
        kill(Pid::from_raw(id as i32), Signal::SIGINT).unwrap();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("\"GET /who HTTP/1.1\" 200 - "), "the access log: {rest}");
        assert!(rest.ends_with("demo: ended\n"), "{rest}");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

/// Does what the line says, as far as a request is concerned.
fn curl(line: &str) -> String {
    let word = |start: &str| line.split_once(start).map(|(_, rest)| rest);
    let url = word("http://").unwrap().trim_end().trim_end_matches('\'');
    let (host, path) = url.split_once('/').unwrap();
    let field = word("-H '").and_then(|rest| rest.split_once('\'')).map_or(String::new(), |(f, _)| format!("{f}\r\n"));
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nhost: {host}\r\n{field}connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn every_line_it_prints_works_and_ctrl_c_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let first = Demo::start(folder.path());
    // Whatever ports the first one got, the second finds others.
    let second = Demo::start(folder.path());
    for demo in [first, second] {
        let answers = demo.try_all();
        let expected = [
            ("200", "nuncio says hello\n"),
            ("200", "upstream "),
            ("200", "upstream canary: GET /who from 127.0.0.1:"),
            ("301", "/new/page"),
            ("403", "/private is kept back; x-pass: please opens it\n"),
            ("200", ", authorized by nuncio\n"),
            ("200", "GET /through-tcp"),
            ("200", "\"ip_address\":\"127.0.0.1\""),
            ("200", "canary::"),
            ("200", "cluster.web.upstream_rq_200: "),
        ];
        assert_eq!(answers.len(), expected.len());
        for ((status, part), answer) in expected.into_iter().zip(answers) {
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(part), "{part}: {answer}");
        }
        demo.wait_for_the_fourth();
        demo.interrupt();
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
