//! Certificates for tests: an authority, what it issues, and what it takes back.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CustomExtension, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

/// Signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub pem: String,
}

/// A certificate and its key, as PEM.
#[derive(Debug, Clone)]
pub struct Issued {
    pub chain: String,
    pub key: String,
    serial: u64,
}

/// What a certificate says.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    pub name: &'static str,
    pub dns: Vec<&'static str>,
    pub uris: Vec<&'static str>,
    pub ips: Vec<IpAddr>,
    pub expired: bool,
    /// Tells it from others of the same authority.
    pub serial: u64,
    /// Nobody is to believe it without its status (RFC 7633).
    pub must_staple: bool,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("an authority").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    pub fn issue(&self, wanted: &Wanted) -> Issued {
        let key = KeyPair::generate().expect("a key");
        let certificate = params(wanted).signed_by(&key, &self.issuer).expect("a certificate");
        Issued { chain: certificate.pem(), key: key.serialize_pem(), serial: wanted.serial }
    }

    /// A list of what is not valid any more.
    pub fn revoke(&self, revoked: &[&Issued]) -> String {
        let revoked = revoked.iter().map(|issued| RevokedCertParams {
            serial_number: SerialNumber::from(issued.serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 2),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).and_then(|list| list.pem()).expect("a list")
    }
}

/// A certificate that nobody else signed.
pub fn self_signed(wanted: &Wanted) -> Issued {
    let key = KeyPair::generate().expect("a key");
    let certificate = params(wanted).self_signed(&key).expect("a certificate");
    Issued { chain: certificate.pem(), key: key.serialize_pem(), serial: wanted.serial }
}

fn params(wanted: &Wanted) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, wanted.name);
    let text = |text: &&'static str| (*text).try_into().expect("ASCII");
    params.subject_alt_names.extend(wanted.dns.iter().map(|name| SanType::DnsName(text(name))));
    params.subject_alt_names.extend(wanted.uris.iter().map(|name| SanType::URI(text(name))));
    params.subject_alt_names.extend(wanted.ips.iter().map(|ip| SanType::IpAddress(*ip)));
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(if wanted.expired { 2021 } else { 2095 }, 1, 1);
    params.serial_number = Some(SerialNumber::from(wanted.serial));
    if wanted.must_staple {
        const FEATURES: [u64; 9] = [1, 3, 6, 1, 5, 5, 7, 1, 24];
        let status_request = vec![0x30, 3, 2, 1, 5];
        params.custom_extensions.push(CustomExtension::from_oid_content(&FEATURES, status_request));
    }
    params
}

/// An OCSP response that says "good" about a certificate, in DER and with no right signature. `until` is its next update, if
/// it tells one, as `20300101000000Z`.
pub fn ocsp_response(issued: &Issued, until: Option<&str>) -> Vec<u8> {
    let sequence = |parts: &[Vec<u8>]| der(0x30, parts);
    let time = |text: &str| der(0x18, &[text.into()]);
    let (null, hash) = (der(5, &[]), der(4, &[vec![7; 20]]));
    let sha1 = sequence(&[vec![6, 5, 0x2b, 0x0e, 3, 2, 0x1a], null]);
    let serial = der(2, &[[&[0][..], &issued.serial.to_be_bytes()].concat()]);
    let id = sequence(&[sha1.clone(), hash.clone(), hash.clone(), serial]);
    let good = der(0x80, &[]);
    let until = until.map_or(Vec::new(), |until| der(0xa0, &[time(until)]));
    let single = sequence(&[id, good, time("20240101000000Z"), until]);
    let data = sequence(&[der(0xa2, &[hash]), time("20240101000000Z"), sequence(&[single])]);
    let basic = sequence(&[data, sha1, der(3, &[vec![0; 9]])]);
    let kind = der(6, &[vec![0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1]]);
    sequence(&[der(0x0a, &[vec![0]]), der(0xa0, &[sequence(&[kind, der(4, &[basic])])])])
}

/// A value with its tag and its length, in one byte or in three.
fn der(tag: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    let content = parts.concat();
    let length = match content.len() {
        short @ 0..128 => vec![short as u8],
        long => [&[0x82][..], &(long as u16).to_be_bytes()].concat(),
    };
    [&[tag][..], &length, &content].concat()
}
