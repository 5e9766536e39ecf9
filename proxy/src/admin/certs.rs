//! `/certs`: the certificates of every TLS context, without keys.

use std::time::Duration;

use nuncio_core::time::WallClock;
use serde_json::{Value, json};

use super::{Answer, Page};
use crate::calendar::Date;
use crate::tls::secret::{CertificateFacts, ContextFacts};

pub fn pages(contexts: impl Fn() -> Vec<ContextFacts> + 'static, clock: WallClock) -> Vec<Page> {
    let answer = move |_: &_| {
        let now = clock.now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let all = |certificates: &[CertificateFacts]| certificates.iter().map(|c| shown(c, now)).collect::<Vec<_>>();
        let context =
            |context: &ContextFacts| json!({"ca_cert": all(&context.authorities), "cert_chain": all(&context.chains)});
        Answer::json(&json!({"certificates": contexts().iter().map(context).collect::<Vec<_>>()}))
    };
    vec![Page::new("/certs", "print certs on machine", answer)]
}

fn shown(certificate: &CertificateFacts, now: i64) -> Value {
    // As Envoy: by kind, in this order.
    let of = |kind: &'static str| certificate.names.iter().filter(move |(k, _)| *k == kind);
    let names: Vec<_> =
        ["dns", "uri", "ip_address"].into_iter().flat_map(of).map(|(kind, name)| json!({*kind: name})).collect();
    let date = |seconds: i64| {
        let text = Date::new(Duration::from_secs(u64::try_from(seconds).unwrap_or(0))).rfc3339();
        // Certificates count whole seconds.
        match text.split_once('.') {
            Some((whole, _)) => format!("{whole}Z"),
            None => text,
        }
    };
    json!({
        "path": &*certificate.path,
        "serial_number": certificate.serial,
        "subject_alt_names": names,
        "days_until_expiration": certificate.days_left(now).to_string(),
        "valid_from": date(certificate.not_before),
        "expiration_time": date(certificate.not_after),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_shown_as_envoy_shows_them() {
        let certificate = CertificateFacts {
            path: "/tmp/c.pem".into(),
            serial: "7567".into(),
            names: vec![("uri", "spiffe://x/y".into()), ("dns", "a.test".into())],
            not_before: 1_796_002_513,
            not_after: 1_798_594_513,
            label: "a".into(),
        };
        assert_eq!(
            shown(&certificate, 1_796_002_600),
            json!({
                "path": "/tmp/c.pem",
                "serial_number": "7567",
                "subject_alt_names": [{"dns": "a.test"}, {"uri": "spiffe://x/y"}],
                "days_until_expiration": "29",
                "valid_from": "2026-11-30T01:35:13Z",
                "expiration_time": "2026-12-30T01:35:13Z",
            })
        );
    }
}
