//! OCSP responses that are shown with certificates: by policy, and by what the response and the certificate say.

use nuncio_testkit::certificates::{Wanted, ocsp_response};
use nuncio_testkit::tls::{TlsClient, Versions};

use super::{ECHO, Pki, eventually, listener, proxy, stat, wanted};

/// What a client that asks for the status gets. All of this is Envoy 1.40's; its counters are too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gets {
    Status,
    CertificateOnly,
    NoHandshake,
}

#[test]
fn the_status_is_shown_while_it_holds_and_its_absence_is_handled_by_policy() {
    use Gets::{CertificateOnly, NoHandshake, Status};
    let pki = Pki::new();
    let issued = pki.authority.issue(&Wanted { dns: vec!["web.test"], ..wanted("web", 7) });
    let demanding = pki.authority.issue(&Wanted { must_staple: true, ..wanted("web", 8) });
    for (name, issued) in [("web", &issued), ("demanding", &demanding)] {
        pki.write(&format!("{name}.pem"), &issued.chain);
        pki.write(&format!("{name}.key"), &issued.key);
        for (state, until) in [("holds", Some("20900101000000Z")), ("over", Some("20240102000000Z")), ("endless", None)]
        {
            std::fs::write(pki.path().join(format!("{name}.{state}")), ocsp_response(issued, until)).unwrap();
        }
    }
    let cases = [
        ("web", "LENIENT_STAPLING", "", CertificateOnly),
        ("web", "LENIENT_STAPLING", "holds", Status),
        ("web", "LENIENT_STAPLING", "over", CertificateOnly),
        ("web", "LENIENT_STAPLING", "endless", CertificateOnly),
        ("web", "STRICT_STAPLING", "", CertificateOnly),
        ("web", "STRICT_STAPLING", "holds", Status),
        ("web", "STRICT_STAPLING", "over", NoHandshake),
        ("web", "STRICT_STAPLING", "endless", NoHandshake),
        ("web", "MUST_STAPLE", "holds", Status),
        ("web", "MUST_STAPLE", "over", NoHandshake),
        ("demanding", "LENIENT_STAPLING", "holds", Status),
        ("demanding", "LENIENT_STAPLING", "over", NoHandshake),
    ];
    let folder = pki.path().display();
    let listeners = cases.iter().enumerate().map(|(i, (name, policy, state, _))| {
        let staple = if state.is_empty() {
            String::new()
        } else {
            format!(", ocsp_staple: {{filename: {folder}/{name}.{state}}}")
        };
        let certificate = format!(
            "tls_certificates: [{{certificate_chain: {{filename: {folder}/{name}.pem}}, private_key: {{filename: \
             {folder}/{name}.key}}{staple}}}]"
        );
        listener(&format!("l{i}"), ECHO, &format!("ocsp_staple_policy: {policy}"), &certificate, &pki)
    });
    let proxy = proxy(&listeners.collect::<Vec<_>>());
    for (i, case) in cases.iter().enumerate() {
        let expected = case.3;
        for versions in [Versions::Only12, Versions::Only13] {
            let client = TlsClient::new(None, versions, &[]);
            let got = match client.connect(proxy.socket(&format!("l{i}")), "web.test") {
                Err(_) => NoHandshake,
                Ok(_) if client.last_status().is_empty() => CertificateOnly,
                Ok(_) => Status,
            };
            assert_eq!(got, expected, "{case:?} {versions:?}");
        }
        let counters = ["requests", "responses", "omitted", "failed"].map(|name| format!("ocsp_staple_{name}"));
        let of = |name: &str| stat(&proxy, &format!("listener.l{i}.ssl.{name}"));
        let two_if = |gets| if expected == gets { 2 } else { 0 };
        eventually("both are counted", || of("ocsp_staple_requests") == 2);
        let counted = counters.map(|name| of(&name));
        assert_eq!(counted, [2, two_if(Status), two_if(CertificateOnly), two_if(NoHandshake)], "{case:?}");
        assert_eq!(
            (of("connection_error"), of("handshake")),
            (two_if(NoHandshake), 2 - two_if(NoHandshake)),
            "{case:?}"
        );
    }
    drop(proxy);
    let log = pki.log();
    let told = log.lines().filter(|line| line.contains("268435589:SSL_routines:OPENSSL_internal:CONNECTION_REJECTED:"));
    assert_eq!(told.count(), 2 * cases.iter().filter(|case| case.3 == NoHandshake).count(), "{log}");
}
