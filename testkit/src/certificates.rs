//! Certificates for tests: an authority, what it issues, and what it takes back.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
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
    params
}
