//! `configs/*.yaml`: every example starts and is ready, and what one says of routing is so.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use nuncio_testkit::certificates::{Wanted, self_signed};

use crate::running::RunningProxy;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

/// On free ports, with a certificate where one is named.
fn start(path: &Path) -> RunningProxy {
    let tls = tempfile::tempdir().unwrap();
    let issued = self_signed(&Wanted { name: "example", dns: vec!["shop.example.com"], ..Wanted::default() });
    fs::write(tls.path().join("cert.pem"), issued.chain).unwrap();
    fs::write(tls.path().join("key.pem"), issued.key).unwrap();
    let text = fs::read_to_string(path).unwrap().replace("/etc/nuncio/tls", tls.path().to_str().unwrap());
    let parts = text.split("port_value: ").enumerate().map(|(i, part)| match i {
        0 => part.to_owned(),
        _ => format!("port_value: 0{}", part.trim_start_matches(|c: char| c.is_ascii_digit())),
    });
    // So are the upstreams' ports: nobody can be reached there.
    RunningProxy::start(&parts.collect::<String>(), 1)
}

/// Status line and body of a GET with those fields.
fn get(to: SocketAddr, path: &str, fields: &str) -> (String, String) {
    let method = if fields.contains("as PUT") { "PUT" } else { "GET" };
    let fields = fields.replace("as PUT", "content-length: 0");
    let host = if fields.contains("host: ") { String::new() } else { format!("host: {to}\r\n") };
    let fields = fields.split(" | ").filter(|f| !f.is_empty()).map(|f| format!("{f}\r\n")).collect::<String>();
    let mut stream = TcpStream::connect(to).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\n{host}{fields}connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer}"));
    (head.to_owned(), body.to_owned())
}

#[test]
fn every_example_starts_and_is_ready() {
    let mut seen = 0;
    let all = [folder(), folder().join("nuncio")];
    for entry in all.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "yaml") {
            let proxy = start(&path);
            let (head, _) = get(proxy.admin(), "/ready", "");
            assert!(head.starts_with("HTTP/1.1 200 "), "{}: {head}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 6);
}

/// The same requests to Envoy 1.40 with the same file gave the same answers.
#[test]
fn the_example_of_routing_matches_what_it_says() {
    let proxy = start(&folder().join("routing.yaml"));
    let cases = [
        ("/", "host: www.example.com", "200", "exact domain\n"),
        ("/", "host: a.b.example.com", "200", "suffix of the domain\n"),
        ("/", "host: api.example.net", "200", "prefix of the domain\n"),
        ("/exact?x", "", "200", "path\n"),
        ("/any-case", "", "200", "path, any case\n"),
        ("/users", "", "200", "/users and what is below it, not /users2\n"),
        ("/users/7", "", "200", "/users and what is below it, not /users2\n"),
        ("/users2", "", "503", ""),
        ("/items/42", "", "200", "regex, of the whole path\n"),
        ("/items/42/more", "", "503", ""),
        ("/media/de/a/b.mp4", "", "200", "URI template\n"),
        ("/", "x-kind: canary", "503", ""),
        ("/headers", "x-range: 99 | x-present: | x-text: a NEEDLE", "200", "headers\n"),
        ("/headers", "x-range: 100 | x-present: | x-text: a NEEDLE", "503", ""),
        ("/headers", "x-range: 99 | x-present: | x-absent: 1 | x-text: needle", "503", ""),
        ("/methods", "as PUT", "200", "method\n"),
        ("/methods", "", "503", ""),
        ("/cookies", "cookie: a=b; tier=gold", "200", "cookie\n"),
        ("/cookies", "cookie: a=gold; tier=b", "503", ""),
        ("/search?q=&lang=de-AT", "", "200", "query parameters\n"),
        ("/search?lang=de-AT", "", "503", ""),
        ("/old/page?q", "", "302", "location: http://"),
        ("/v1/page", "", "301", "location: https://"),
        ("/chosen", "x-cluster: nowhere", "404", ""),
    ];
    for (path, fields, status, expected) in cases {
        let (head, body) = get(proxy.socket("routing"), path, fields);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {fields}: {head}");
        let found = match status {
            "200" => body == expected,
            _ => head.contains(expected),
        };
        assert!(found, "{path} {fields}: {head}\n{body}");
    }
}
