//! Why a TLS connection failed, in the words that Envoy's users search their logs for.
//!
//! Envoy shows the error queue of BoringSSL: `TLS_error:|<number>:SSL routines:OPENSSL_internal:<NAME>:TLS_error_end`,
//! where the number is the library in the high byte and the reason in the low ones. What our library says is put into
//! the same words where there are such, and else keeps its own.

use std::fmt;

use rustls::{AlertDescription, Error, InvalidMessage, PeerIncompatible, PeerMisbehaved};

use super::stream::TOO_MANY_EMPTY;
use super::validation::{Refusal, RefusalKind};

/// Library 16, "SSL routines".
const SSL: u32 = 16 << 24;
/// Reasons for alerts of the peer follow this.
const ALERTS: u32 = 1000;

const NO_CERTIFICATE: &str = "PEER_DID_NOT_RETURN_A_CERTIFICATE:peer did not provide required client certificate";

/// A failed handshake or connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFailure {
    pub cause: TlsCause,
    /// `%DOWNSTREAM_TRANSPORT_FAILURE_REASON%` and its like; empty if the peer just went away.
    pub text: String,
}

/// Which counter it goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsCause {
    /// The peer closed: nobody's error.
    Closed,
    /// `…_context_secrets_not_ready`.
    NotReady,
    /// `connection_error`.
    Protocol,
    /// `connection_error` and `ocsp_staple_failed`.
    NoStatus,
    /// `fail_verify_no_cert`.
    NoCertificate,
    /// `fail_verify_error`, `fail_verify_san` or `fail_verify_cert_hash`.
    Refused(RefusalKind),
}

impl TlsFailure {
    pub(super) fn closed() -> Self {
        Self { cause: TlsCause::Closed, text: String::new() }
    }

    /// A secret that its context needs has not come.
    pub(super) fn not_ready() -> Self {
        Self { cause: TlsCause::NotReady, text: "TLS error: Secret is not supplied by SDS".to_owned() }
    }

    /// The certificate must not be shown without its status.
    pub(super) fn without_status() -> Self {
        let reason = "the certificate's OCSP response is missing or out of date";
        Self { cause: TlsCause::NoStatus, text: error_text(133, &format!("CONNECTION_REJECTED:{reason}")) }
    }

    /// `refusal`: what our verifier said, if it did; `first` are the first bytes of the peer.
    pub(super) fn new(error: &Error, refusal: Option<&Refusal>, first: &[u8]) -> Self {
        let (cause, reason, name) = match error {
            Error::NoCertificatesPresented => (TlsCause::NoCertificate, 192, NO_CERTIFICATE.to_owned()),
            Error::InvalidCertificate(why) => {
                let (kind, text) = match refusal {
                    Some(refusal) => (refusal.kind, refusal.text.clone()),
                    None => (RefusalKind::Chain, format!("verify cert failed: {why}")),
                };
                (TlsCause::Refused(kind), 125, format!("CERTIFICATE_VERIFY_FAILED:{text}"))
            }
            Error::AlertReceived(alert) => {
                (TlsCause::Protocol, ALERTS + u32::from(u8::from(*alert)), alert_name(*alert))
            }
            Error::PeerIncompatible(why) => {
                let (reason, name) = incompatible(why);
                (TlsCause::Protocol, reason, name)
            }
            Error::InvalidMessage(why) => {
                let (reason, name) = unreadable(why, first);
                (TlsCause::Protocol, reason, name)
            }
            Error::DecryptError => (TlsCause::Protocol, 139, "DECRYPTION_FAILED_OR_BAD_RECORD_MAC".to_owned()),
            Error::PeerSentOversizedRecord => (TlsCause::Protocol, 136, "DATA_LENGTH_TOO_LONG".to_owned()),
            Error::InappropriateHandshakeMessage { .. } | Error::InappropriateMessage { .. } => {
                (TlsCause::Protocol, 225, "UNEXPECTED_MESSAGE".to_owned())
            }
            Error::PeerMisbehaved(why) => {
                let (reason, name) = misbehaved(why);
                (TlsCause::Protocol, reason, name)
            }
            Error::NoApplicationProtocol => (TlsCause::Protocol, 307, "NO_APPLICATION_PROTOCOL".to_owned()),
            Error::General(text) if text == TOO_MANY_EMPTY => (TlsCause::Protocol, 219, shout(text)),
            other => (TlsCause::Protocol, 0, shout(&other.to_string())),
        };
        Self { cause, text: error_text(reason, &name) }
    }
}

fn error_text(reason: u32, name: &str) -> String {
    format!("TLS_error:|{}:SSL routines:OPENSSL_internal:{name}:TLS_error_end", SSL + reason)
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.text.is_empty() { "the peer closed during the handshake" } else { &self.text })
    }
}

impl std::error::Error for TlsFailure {}

fn incompatible(why: &PeerIncompatible) -> (u32, String) {
    use PeerIncompatible as P;
    let (reason, name) = match why {
        P::ServerDoesNotSupportTls12Or13
        | P::ServerTlsVersionIsDisabledByOurConfig
        | P::SupportedVersionsExtensionRequired
        // Before 1.2 there was no such extension, and the library looks for it first.
        | P::SignatureAlgorithmsExtensionRequired
        | P::Tls12NotOffered
        | P::Tls12NotOfferedOrEnabled => (240, "UNSUPPORTED_PROTOCOL"),
        P::NoCipherSuitesInCommon => (184, "NO_SHARED_CIPHER"),
        P::NoKxGroupsInCommon => (266, "NO_SHARED_GROUP"),
        P::NoSignatureSchemesInCommon | P::NoCertificateRequestSignatureSchemesInCommon => {
            (253, "NO_COMMON_SIGNATURE_ALGORITHMS")
        }
        P::ExtendedMasterSecretExtensionRequired => (251, "RESUMED_EMS_SESSION_WITHOUT_EMS_EXTENSION"),
        P::KeyShareExtensionRequired => (258, "MISSING_KEY_SHARE"),
        other => return (0, shout(&format!("{other:?}"))),
    };
    (reason, name.to_owned())
}

fn misbehaved(why: &PeerMisbehaved) -> (u32, String) {
    let (reason, name) = match why {
        PeerMisbehaved::TooManyKeyUpdateRequests => (260, "TOO_MANY_KEY_UPDATES"),
        PeerMisbehaved::TooManyRenegotiationRequests => (182, "NO_RENEGOTIATION"),
        PeerMisbehaved::TooManyWarningAlertsReceived => (220, "TOO_MANY_WARNING_ALERTS"),
        other => return (0, shout(&format!("{other:?}"))),
    };
    (reason, name.to_owned())
}

fn unreadable(why: &InvalidMessage, first: &[u8]) -> (u32, String) {
    let http = [&b"GET "[..], b"POST ", b"HEAD ", b"PUT "].iter().any(|method| first.starts_with(method));
    let (reason, name) = match why {
        _ if http => (156, "HTTP_REQUEST"),
        _ if first.starts_with(b"CONNE") => (155, "HTTPS_PROXY_REQUEST"),
        InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion => (247, "WRONG_VERSION_NUMBER"),
        InvalidMessage::MessageTooLarge => (136, "DATA_LENGTH_TOO_LONG"),
        InvalidMessage::HandshakePayloadTooLarge => (150, "EXCESSIVE_MESSAGE_SIZE"),
        InvalidMessage::InvalidCcs => (103, "BAD_CHANGE_CIPHER_SPEC"),
        InvalidMessage::UnexpectedMessage(_) => (225, "UNEXPECTED_MESSAGE"),
        _ => (137, "DECODE_ERROR"),
    };
    (reason, name.to_owned())
}

fn alert_name(alert: AlertDescription) -> String {
    let name = match u8::from(alert) {
        0 => "SSLV3_ALERT_CLOSE_NOTIFY",
        10 => "SSLV3_ALERT_UNEXPECTED_MESSAGE",
        20 => "SSLV3_ALERT_BAD_RECORD_MAC",
        21 => "TLSV1_ALERT_DECRYPTION_FAILED",
        22 => "TLSV1_ALERT_RECORD_OVERFLOW",
        30 => "SSLV3_ALERT_DECOMPRESSION_FAILURE",
        40 => "SSLV3_ALERT_HANDSHAKE_FAILURE",
        41 => "SSLV3_ALERT_NO_CERTIFICATE",
        42 => "SSLV3_ALERT_BAD_CERTIFICATE",
        43 => "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        44 => "SSLV3_ALERT_CERTIFICATE_REVOKED",
        45 => "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        46 => "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        47 => "SSLV3_ALERT_ILLEGAL_PARAMETER",
        48 => "TLSV1_ALERT_UNKNOWN_CA",
        49 => "TLSV1_ALERT_ACCESS_DENIED",
        50 => "TLSV1_ALERT_DECODE_ERROR",
        51 => "TLSV1_ALERT_DECRYPT_ERROR",
        60 => "TLSV1_ALERT_EXPORT_RESTRICTION",
        70 => "TLSV1_ALERT_PROTOCOL_VERSION",
        71 => "TLSV1_ALERT_INSUFFICIENT_SECURITY",
        80 => "TLSV1_ALERT_INTERNAL_ERROR",
        86 => "TLSV1_ALERT_INAPPROPRIATE_FALLBACK",
        90 => "TLSV1_ALERT_USER_CANCELLED",
        100 => "TLSV1_ALERT_NO_RENEGOTIATION",
        110 => "TLSV1_ALERT_UNSUPPORTED_EXTENSION",
        111 => "TLSV1_ALERT_CERTIFICATE_UNOBTAINABLE",
        112 => "TLSV1_ALERT_UNRECOGNIZED_NAME",
        113 => "TLSV1_ALERT_BAD_CERTIFICATE_STATUS_RESPONSE",
        114 => "TLSV1_ALERT_BAD_CERTIFICATE_HASH_VALUE",
        115 => "TLSV1_ALERT_UNKNOWN_PSK_IDENTITY",
        116 => "TLSV1_ALERT_CERTIFICATE_REQUIRED",
        120 => "TLSV1_ALERT_NO_APPLICATION_PROTOCOL",
        other => return format!("TLSV1_ALERT_{other}"),
    };
    name.to_owned()
}

/// The library's own words, as one such name.
fn shout(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(error: Error) -> String {
        TlsFailure::new(&error, None, b"").text
    }

    #[test]
    fn failures_have_the_numbers_and_names_of_boringssl() {
        // As Envoy 1.40 logs them.
        assert_eq!(
            text(Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled)),
            "TLS_error:|268435696:SSL routines:OPENSSL_internal:UNSUPPORTED_PROTOCOL:TLS_error_end"
        );
        assert_eq!(
            text(Error::AlertReceived(AlertDescription::UnknownCA)),
            "TLS_error:|268436504:SSL routines:OPENSSL_internal:TLSV1_ALERT_UNKNOWN_CA:TLS_error_end"
        );
        let refusal = Refusal { kind: RefusalKind::Hash, text: "verify cert failed: cert hash and spki".into() };
        let error = Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure);
        let failure = TlsFailure::new(&error, Some(&refusal), b"");
        assert_eq!(failure.cause, TlsCause::Refused(RefusalKind::Hash));
        assert_eq!(
            failure.text,
            "TLS_error:|268435581:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED:verify cert failed: cert hash and spki:TLS_error_end"
        );
    }

    #[test]
    fn plain_http_is_told_apart_from_noise() {
        let error = Error::InvalidMessage(InvalidMessage::InvalidContentType);
        assert!(TlsFailure::new(&error, None, b"GET / HTTP/1.1").text.contains(":HTTP_REQUEST:"));
        assert!(TlsFailure::new(&error, None, b"\x00\x01").text.contains(":WRONG_VERSION_NUMBER:"));
    }
}
