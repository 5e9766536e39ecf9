//! `ssl.` statistics of a listener or a cluster, on one worker.

use std::cell::RefCell;
use std::rc::Rc;

use nuncio_core::stats::lists::tls::{self as stat, Ssl};
use nuncio_core::stats::{Kind, NamedCounter, ScopeId, Stats, WorkerStats};

use super::Secured;
use super::failure::{TlsCause, TlsFailure};
use super::validation::RefusalKind;

/// Of one object.
pub struct TlsCounts {
    ssl: Stats<Ssl>,
    /// Those that Envoy makes at the first use of a cipher, curve, version or signature; what can be negotiated is a
    /// short list.
    named: RefCell<Vec<(&'static str, &'static str, NamedCounter)>>,
}

impl TlsCounts {
    pub fn new(worker: &Rc<WorkerStats>, scope: ScopeId) -> Self {
        Self { ssl: Stats::new(worker, scope), named: RefCell::default() }
    }

    /// A handshake was finished.
    pub fn handshake(&self, secured: &Secured) {
        self.ssl.inc(stat::HANDSHAKE);
        if secured.resumed {
            self.ssl.inc(stat::SESSION_REUSED);
        }
        if let Some(told) = secured.status {
            self.ssl.inc(stat::OCSP_STAPLE_REQUESTS);
            self.ssl.inc(if told { stat::OCSP_STAPLE_RESPONSES } else { stat::OCSP_STAPLE_OMITTED });
        }
        let info = &secured.info;
        if info.peer.is_none() {
            self.ssl.inc(stat::NO_CERTIFICATE);
        }
        self.count("ciphers", info.cipher);
        self.count("versions", info.version);
        self.count("curves", info.group);
        self.count("sigalgs", secured.scheme.unwrap_or_default());
    }

    pub fn failed(&self, failure: &TlsFailure) {
        let counter = match failure.cause {
            TlsCause::Closed | TlsCause::NotReady => return,
            TlsCause::Protocol => stat::CONNECTION_ERROR,
            TlsCause::NoStatus => {
                self.ssl.inc(stat::OCSP_STAPLE_REQUESTS);
                self.ssl.inc(stat::OCSP_STAPLE_FAILED);
                stat::CONNECTION_ERROR
            }
            TlsCause::NoCertificate => stat::FAIL_VERIFY_NO_CERT,
            TlsCause::Refused(RefusalKind::Chain) => stat::FAIL_VERIFY_ERROR,
            TlsCause::Refused(RefusalKind::San) => stat::FAIL_VERIFY_SAN,
            TlsCause::Refused(RefusalKind::Hash) => stat::FAIL_VERIFY_CERT_HASH,
        };
        self.ssl.inc(counter);
    }

    fn count(&self, kind: &'static str, name: &'static str) {
        if name.is_empty() {
            return;
        }
        let mut named = self.named.borrow_mut();
        let at = named.iter().position(|(k, n, _)| *k == kind && *n == name).unwrap_or_else(|| {
            let counter = self.ssl.worker().named(self.ssl.scope(), &format!("ssl.{kind}.{name}"), Kind::Counter);
            named.push((kind, name, counter));
            named.len() - 1
        });
        named[at].2.add(1);
    }
}
