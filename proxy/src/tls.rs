//! TLS: the only home of the TLS library.
//!
//! - [`downstream`]: `DownstreamTlsContext`, and clients that connect by it
//! - [`upstream`]: `UpstreamTlsContext`, and connections to hosts
//! - [`client_hello`]: what a client's first message says in clear text
//! - `parameters`: versions, ciphers, curves, protocols · `identity`: our own certificates, `ocsp`: their status
//! - `validation`, `san`: whose certificates are accepted · `certificate`: what they say
//! - `stream`: an encrypted connection · `witness`: what the library's callbacks saw
//! - [`failure`]: why there is none, in Envoy's words · [`counts`]: `ssl.` statistics
//! - [`secret`]: secrets by name, and how a change of one reaches the contexts that use it

pub mod client_hello;
pub mod counts;
pub mod downstream;
pub mod failure;
pub mod secret;
pub mod upstream;

mod certificate;
mod identity;
mod ocsp;
mod parameters;
mod san;
mod source;
mod stream;
mod validation;
mod verifier;
mod witness;

use nuncio_api::support::Entry;
use nuncio_core::net::{Io, TlsInfo};
use nuncio_core::network::DownstreamTransportSocketFactory;

pub use counts::TlsCounts;
pub use downstream::DownstreamTls;
pub use failure::{TlsCause, TlsFailure};
pub use secret::Secrets;
pub use upstream::{ServerWanted, UpstreamTls};

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[
    &parameters::COMMON,
    &parameters::PARAMETERS,
    &parameters::KEY_LOG,
    &identity::CERTIFICATE,
    &validation::VALIDATION,
    &validation::SYSTEM_ROOTS,
    &downstream::CONTEXT,
    &upstream::CONTEXT,
    &source::DATA_SOURCE,
    &secret::SECRET,
    &secret::SDS,
    &secret::COMBINED,
];

/// The transport sockets of filter chains.
pub fn socket_factories(secrets: &Secrets) -> Vec<Box<dyn DownstreamTransportSocketFactory>> {
    vec![Box::new(downstream::Factory { secrets: secrets.clone() })]
}

/// A connection whose handshake is done.
pub struct Secured {
    pub io: Io,
    pub info: TlsInfo,
    /// How the peer signed, if it did.
    pub(crate) scheme: Option<&'static str>,
    pub(crate) resumed: bool,
    /// The peer asked for the status of our certificate; whether there was one.
    pub(crate) status: Option<bool>,
}
