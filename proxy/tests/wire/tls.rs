//! TLS over real sockets, with clients of a library: whose certificates pass, what a failure is called and counted as,
//! rotations under handshakes, bytes in bulk.

mod endurance;
mod hostile;
mod staples;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use base64::Engine;
use nuncio_testkit::certificates::{Authority, Issued, Wanted, self_signed};
use nuncio_testkit::tls::{TlsClient, Versions};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::running::RunningProxy;

/// A folder with everything that the listeners and clients of a test show each other.
struct Pki {
    folder: TempDir,
    authority: Authority,
}

fn wanted(name: &'static str, serial: u64) -> Wanted {
    Wanted { name, serial, dns: vec!["client.test"], ..Wanted::default() }
}

impl Pki {
    fn new() -> Self {
        let pki = Self { folder: tempfile::tempdir().unwrap(), authority: Authority::new("authority") };
        pki.write("ca.pem", &pki.authority.pem);
        let server = pki.authority.issue(&Wanted { dns: vec!["web.test"], ..wanted("server", 1) });
        pki.write("server.pem", &server.chain);
        pki.write("server.key", &server.key);
        pki
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap()
    }
}

const TYPE: &str = "type.googleapis.com/envoy.extensions";
const ECHO: &str =
    r#"{name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}"#;

fn hcm() -> String {
    let manager = format!("{TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager");
    let router = format!("{TYPE}.filters.http.router.v3.Router");
    let route = r#"{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: "served"}}}"#;
    let routes = format!(r#"{{virtual_hosts: [{{name: a, domains: ["*"], routes: [{route}]}}]}}"#);
    let filters = format!(r#"[{{name: r, typed_config: {{"@type": {router}}}}}]"#);
    format!(
        r#"{{name: hcm, typed_config: {{"@type": {manager}, stat_prefix: h, route_config: {routes}, http_filters: {filters}}}}}"#
    )
}

/// A listener that speaks TLS: `more` stands beside its common context, `common` in it.
fn listener(name: &str, filter: &str, more: &str, common: &str, pki: &Pki) -> String {
    let log = pki.path().join("log");
    let log = log.display();
    format!(
        r#"
  - name: {name}
    stat_prefix: {name}
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    access_log:
    - name: f
      typed_config:
        "@type": {TYPE}.access_loggers.file.v3.FileAccessLog
        path: "{log}"
        log_format: {{text_format_source: {{inline_string: "{name} %DOWNSTREAM_TRANSPORT_FAILURE_REASON%\n"}}}}
    filter_chains:
    - transport_socket_connect_timeout: 2s
      transport_socket:
        name: tls
        typed_config:
          "@type": {TYPE}.transport_sockets.tls.v3.DownstreamTlsContext
          {more}
          common_tls_context: {{{common}}}
      filters: [{filter}]
"#
    )
}

fn own_certificate(pki: &Pki) -> String {
    let folder = pki.path().display();
    let file = |name: &str| format!("{{filename: {folder}/{name}}}");
    format!("tls_certificates: [{{certificate_chain: {}, private_key: {}}}]", file("server.pem"), file("server.key"))
}

fn proxy(listeners: &[String]) -> RunningProxy {
    let head = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\nnode: {id: a, cluster: b}\n";
    RunningProxy::start(&format!("{head}static_resources:\n  listeners:{}", listeners.concat()), 1)
}

fn stat(proxy: &RunningProxy, name: &str) -> u64 {
    let admin = proxy.admin();
    let mut stream = TcpStream::connect(admin).unwrap();
    write!(stream, "GET /stats?filter={name} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// Until it holds: what a worker counts is read a moment after the client hears of it.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn each_wrong_certificate_has_its_counter_and_its_name() {
    let pki = Pki::new();
    let right = pki.authority.issue(&wanted("right", 2));
    let revoked = pki.authority.issue(&wanted("revoked", 3));
    pki.write("crl.pem", &pki.authority.revoke(&[&revoked]));
    let expired = pki.authority.issue(&Wanted { expired: true, ..wanted("expired", 4) });
    let misnamed = pki.authority.issue(&Wanted { dns: vec!["other.test"], ..wanted("misnamed", 5) });
    let foreign = Authority::new("stranger").issue(&wanted("foreign", 6));
    let own = self_signed(&wanted("own", 7));

    let (folder, certificate) = (pki.path().display(), own_certificate(&pki));
    let ca = format!("trusted_ca: {{filename: {folder}/ca.pem}}");
    let names = "match_typed_subject_alt_names: [{san_type: DNS, matcher: {exact: client.test}}]";
    let strict = format!("{certificate}, validation_context: {{{ca}, crl: {{filename: {folder}/crl.pem}}, {names}}}");
    let lax = strict.replace(&format!(", {names}"), "");
    let optional = "require_client_certificate: false";
    let proxy = proxy(&[
        listener("required", &hcm(), "require_client_certificate: true", &strict, &pki),
        // As Envoy: who asks for names asks for a certificate.
        listener("named", &hcm(), optional, &strict, &pki),
        listener("optional", &hcm(), optional, &lax, &pki),
    ]);

    // The client, the counter and what the log says; in Envoy's words.
    let chain = |words: &str| format!("certificate_verification_error_at_depth_0:_{words}:TLS_error_end");
    let none = "PEER_DID_NOT_RETURN_A_CERTIFICATE:peer_did_not_provide_required_client_certificate";
    let cases: [(Option<&Issued>, &str, String); 6] = [
        (None, "fail_verify_no_cert", format!("268435648:SSL_routines:OPENSSL_internal:{none}")),
        (Some(&expired), "fail_verify_error", chain("certificate_has_expired")),
        (Some(&foreign), "fail_verify_error", chain("unable_to_get_local_issuer_certificate")),
        (Some(&own), "fail_verify_error", chain("self_signed_certificate")),
        (
            Some(&revoked),
            "fail_verify_error",
            chain("certificate_revocation_check_against_provided_CRLs_failed:_certificate_revoked"),
        ),
        (Some(&misnamed), "fail_verify_san", "SAN_matcher,_certificate_SANs_are_[other.test]:TLS_error_end".into()),
    ];
    let passes_if_optional = |counter: &str| matches!(counter, "fail_verify_no_cert" | "fail_verify_san");
    for versions in [Versions::Only12, Versions::Only13] {
        let client = |identity| TlsClient::new(identity, versions, &[]);
        for listener in ["required", "named", "optional"] {
            for (identity, counter, words) in &cases {
                let get = || client(*identity).get(proxy.socket(listener), "web.test", "/");
                // Who need not show one may show none, but not a wrong one.
                if listener == "optional" && passes_if_optional(counter) {
                    assert!(get().unwrap().ends_with("served"));
                    continue;
                }
                let name = format!("listener.{listener}.ssl.{counter}");
                let before = stat(&proxy, &name);
                assert!(get().is_err(), "{words}");
                eventually(words, || stat(&proxy, &name) == before + 1);
            }
            let served = client(Some(&right)).get(proxy.socket(listener), "web.test", "/").unwrap();
            assert!(served.ends_with("served"), "{served}");
        }
    }
    assert_eq!(stat(&proxy, "listener.required.ssl.handshake"), 2);
    assert_eq!(stat(&proxy, "listener.optional.ssl.handshake"), 6);
    assert_eq!(stat(&proxy, "listener.optional.ssl.no_certificate"), 2);
    for listener in ["required", "named", "optional"] {
        assert_eq!(stat(&proxy, &format!("listener.{listener}.ssl.connection_error")), 0);
    }
    drop(proxy);
    let log = pki.log();
    for listener in ["required", "named", "optional"] {
        for (_, counter, words) in &cases {
            let told = log.lines().filter(|line| line.starts_with(listener) && line.contains(words)).count();
            let expected = if listener == "optional" && passes_if_optional(counter) { 0 } else { 2 };
            assert_eq!(told, expected, "{listener}: {words}\n{log}");
        }
    }
}

/// With TLS 1.3 a client has shaken hands before the server has looked at its certificate. Counters and status as Envoy 1.40's.
#[test]
fn a_host_that_refuses_us_after_the_handshake_is_counted_at_its_cluster() {
    let pki = Pki::new();
    let ca = format!("validation_context: {{trusted_ca: {{filename: {}/ca.pem}}}}", pki.path().display());
    let strict = format!("{}, {ca}", own_certificate(&pki));
    let host = proxy(&[listener("host", &hcm(), "require_client_certificate: true", &strict, &pki)]);
    for (version, handshakes, connect_fail) in [("TLSv1_2", 0, 1), ("TLSv1_3", 1, 0)] {
        let cluster = format!(
            "- name: c\n  load_assignment: {{cluster_name: c, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: \
             {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]}}\n  transport_socket: {{name: tls, typed_config: {{\"@type\": \
             {TYPE}.transport_sockets.tls.v3.UpstreamTlsContext, common_tls_context: {{tls_params: \
             {{tls_maximum_protocol_version: {version}}}, {ca}}}}}}}",
            host.socket("host").port()
        );
        let proxy = RunningProxy::start(&crate::running::web("route: {cluster: c}", "", &cluster), 1);
        let mut stream = TcpStream::connect(proxy.socket("web")).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{version}: {answer}");
        let of = |name: &str| stat(&proxy, &format!("cluster.c.{name}"));
        let counted = [of("ssl.handshake"), of("ssl.connection_error"), of("upstream_cx_connect_fail")];
        assert_eq!(counted, [handshakes, 1, connect_fail], "{version}");
    }
}

#[test]
fn bytes_in_bulk_come_back_as_they_went() {
    const LENGTH: usize = 6 << 20;
    let pki = Pki::new();
    let proxy = proxy(&[listener("echo", ECHO, "", &own_certificate(&pki), &pki)]);
    let next = |seed: &mut u32| {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (*seed >> 24) as u8
    };
    for versions in [Versions::Only12, Versions::Only13] {
        let mut connection = TlsClient::new(None, versions, &[]).connect(proxy.socket("echo"), "web.test").unwrap();
        let mut received = vec![0; 64 * 1024];
        let (mut sent, mut seed, mut check) = (0, 1_u32, 1_u32);
        while sent < LENGTH {
            // Writes of every length, and new keys now and then.
            let n = (seed as usize % 60_000).clamp(1, LENGTH - sent);
            let chunk: Vec<u8> = (0..n).map(|_| next(&mut seed)).collect();
            connection.write_all(&chunk).unwrap();
            connection.flush().unwrap();
            if versions == Versions::Only13 && n.is_multiple_of(7) {
                connection.refresh_keys().unwrap();
            }
            let mut left = n;
            while left > 0 {
                let read = connection.read(&mut received[..left.min(64 * 1024)]).unwrap();
                assert!(read > 0, "the proxy closed");
                assert!(received[..read].iter().all(|byte| *byte == next(&mut check)), "other bytes came back");
                left -= read;
            }
            sent += n;
        }
    }
}

#[test]
fn a_client_is_known_again_only_where_it_was_known() {
    let pki = Pki::new();
    let common = own_certificate(&pki);
    let proxy = proxy(&[listener("one", &hcm(), "", &common, &pki), listener("two", &hcm(), "", &common, &pki)]);
    for versions in [Versions::Only12, Versions::Only13] {
        let client = TlsClient::new(None, versions, &[]);
        client.get(proxy.socket("one"), "web.test", "/").unwrap();
        assert!(client.connect(proxy.socket("one"), "web.test").unwrap().resumed());
        // The same name, and a policy of its own.
        assert!(!client.connect(proxy.socket("two"), "web.test").unwrap().resumed());
    }
    eventually("two were known again", || stat(&proxy, "listener.one.ssl.session_reused") == 2);
    assert_eq!(stat(&proxy, "listener.two.ssl.session_reused"), 0);
}

#[test]
fn a_client_that_offers_no_protocol_of_ours_is_served_without_one() {
    let pki = Pki::new();
    let common = format!("alpn_protocols: [h2, http/1.1], {}", own_certificate(&pki));
    let proxy = proxy(&[listener("in", &hcm(), "", &common, &pki)]);
    let alpn = |offered: &[&str]| {
        let client = TlsClient::new(None, Versions::Both, offered);
        client.connect(proxy.socket("in"), "web.test").unwrap().alpn().map(<[u8]>::to_vec)
    };
    assert_eq!(alpn(&["http/1.1", "h2"]), Some(b"h2".to_vec()));
    assert_eq!(alpn(&["http/1.1"]), Some(b"http/1.1".to_vec()));
    assert_eq!(alpn(&[]), None);
}

/// Puts text where a file is, in one step.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// A secret `live` in `sds.yaml`, of two files; and a context that asks for it.
fn secret_of(pki: &Pki, chain: &Path, key: &Path) -> String {
    let (chain, key, folder) = (chain.display(), key.display(), pki.path().display());
    let pair = format!("{{certificate_chain: {{filename: {chain}}}, private_key: {{filename: {key}}}}}");
    let secret =
        format!("\"@type\": {TYPE}.transport_sockets.tls.v3.Secret\n  name: live\n  tls_certificate: {pair}\n");
    pki.write("sds.yaml", &format!("resources:\n- {secret}"));
    let source = format!("{{path_config_source: {{path: {folder}/sds.yaml}}}}");
    format!("tls_certificate_sds_secret_configs: [{{name: live, sds_config: {source}}}]")
}

#[test]
fn rotations_under_handshakes_fail_none_and_show_whole_pairs_only() {
    const ROTATIONS: u64 = 1000;
    const PACE: Duration = Duration::from_millis(10);
    let pki = Pki::new();
    let (chain, key) = (pki.path().join("live.pem"), pki.path().join("live.key"));
    let issue = |serial| pki.authority.issue(&Wanted { dns: vec!["web.test"], ..wanted("live", serial) });
    let mut last = issue(100);
    replace(&chain, &last.chain);
    replace(&key, &last.key);
    let proxy = proxy(&[listener("in", &hcm(), "", &secret_of(&pki, &chain, &key), &pki)]);
    let address = proxy.socket("in");
    let (over, handshakes) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let began = Instant::now();
                for n in 0.. {
                    if over.load(Relaxed) {
                        break;
                    }
                    // Two hundred a second, together.
                    std::thread::sleep((began + PACE * n).saturating_duration_since(Instant::now()));
                    // Each new, so that none is resumed.
                    let client = TlsClient::new(None, Versions::Only13, &[]);
                    let answer = client.get(address, "web.test", "/").expect("every handshake succeeds");
                    assert!(answer.ends_with("served"));
                    handshakes.fetch_add(1, Relaxed);
                }
            });
        }
        let updates = "listener.in.server_ssl_socket_factory.ssl_context_update_by_sds";
        for n in 1..=ROTATIONS {
            let before = stat(&proxy, updates);
            last = issue(100 + n);
            match n % 4 {
                // Half of a certificate, then all of it.
                0 => replace(&chain, &last.chain[..last.chain.len() / 2]),
                // No key at all in between.
                1 => fs::remove_file(&key).unwrap(),
                _ => {}
            }
            // One after the other: in between they do not belong together.
            replace(&chain, &last.chain);
            replace(&key, &last.key);
            eventually("the new pair is taken", || stat(&proxy, updates) > before);
        }
        over.store(true, Relaxed);
    });
    assert!(handshakes.load(Relaxed) >= 200, "{handshakes:?} handshakes while it was rotated");
    assert_eq!(stat(&proxy, "listener.in.ssl.connection_error"), 0);
    let shown = TlsClient::new(None, Versions::Both, &[]).connect(address, "web.test").unwrap();
    let shown = base64::engine::general_purpose::STANDARD.encode(shown.server_certificate().unwrap());
    let newest: String = last.chain.lines().filter(|line| !line.starts_with('-')).map(str::trim).collect();
    assert_eq!(shown, newest);
}
