//! What the TLS library's callbacks saw of the handshake that this thread drives right now.
//!
//! The library keeps to itself which certificate was chosen, how the peer signed, and why exactly our
//! verifier refused; its callbacks run inside the call that drives one connection, so they leave a note
//! here which that call's caller takes before anything else runs.

use std::cell::RefCell;
use std::sync::Arc;

use nuncio_core::net::PeerCertificate;
use rustls::SignatureScheme;

use super::ocsp::Shown;
use super::validation::Refusal;

/// Of one handshake.
#[derive(Debug, Default, Clone)]
pub(super) struct Witness {
    /// Why the peer's certificate was refused.
    pub(super) refusal: Option<Refusal>,
    /// How the peer signed.
    pub(super) scheme: Option<SignatureScheme>,
    /// The peer's certificate passed everything that is configured.
    pub(super) validated: bool,
    /// The certificate that was chosen for it.
    pub(super) local: Option<Arc<PeerCertificate>>,
    /// What became of the wish for its status, if the peer has that wish.
    pub(super) status: Option<Shown>,
}

thread_local! {
    static NOTE: RefCell<Witness> = RefCell::default();
}

/// For callbacks.
pub(super) fn note<T>(write: impl FnOnce(&mut Witness) -> T) -> T {
    NOTE.with_borrow_mut(write)
}

/// Moves what was noted since the last time into `to`.
pub(super) fn take(to: &mut Witness) {
    let new = NOTE.take();
    to.refusal = new.refusal.or(to.refusal.take());
    to.scheme = new.scheme.or(to.scheme);
    to.validated |= new.validated;
    to.status = new.status.or(to.status);
    to.local = new.local.or(to.local.take());
}
