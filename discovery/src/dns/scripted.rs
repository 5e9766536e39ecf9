//! A resolver for tests: answers what it was told to, after the delay that it was told, and counts what it was asked.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use nuncio_core::dns::{DnsAnswer, DnsFailure, DnsResolver, IpFamily};

use super::{DnsResolvers, ResolverConfig};

#[derive(Clone, Default)]
pub(crate) struct Scripted(Rc<Script>);

#[derive(Default)]
struct Script {
    records: RefCell<HashMap<String, Records>>,
    asked: Cell<u32>,
    delay: Cell<Duration>,
}

#[derive(Default)]
struct Records {
    addresses: Vec<IpAddr>,
    ttl: u64,
    failing: Vec<IpFamily>,
}

impl Scripted {
    pub(crate) fn set(&self, name: &str, addresses: &[&str], ttl: u64) {
        let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
        self.0.records.borrow_mut().insert(name.into(), Records { addresses, ttl, failing: Vec::new() });
    }

    pub(crate) fn fail(&self, name: &str) {
        self.fail_family(name, IpFamily::V4);
        self.fail_family(name, IpFamily::V6);
    }

    pub(crate) fn fail_family(&self, name: &str, family: IpFamily) {
        self.0.records.borrow_mut().entry(name.into()).or_default().failing.push(family);
    }

    pub(crate) fn delay(&self, delay: Duration) {
        self.0.delay.set(delay);
    }

    /// Questions so far.
    pub(crate) fn asked(&self) -> u32 {
        self.0.asked.get()
    }

    fn answer(&self, name: &str, family: IpFamily) -> Result<Arc<DnsAnswer>, DnsFailure> {
        let records = self.0.records.borrow();
        let Some(records) = records.get(name) else { return Ok(Arc::default()) };
        if records.failing.contains(&family) {
            return Err(DnsFailure::Server("SERVFAIL".into()));
        }
        let wanted = |address: &&IpAddr| address.is_ipv4() == (family == IpFamily::V4);
        let addresses: Vec<_> = records.addresses.iter().filter(wanted).copied().collect();
        let ttl = (!addresses.is_empty()).then(|| Duration::from_secs(records.ttl));
        Ok(Arc::new(DnsAnswer { addresses, ttl }))
    }
}

impl DnsResolver for Scripted {
    fn resolve(
        &self,
        name: &Arc<str>,
        family: IpFamily,
        _: Duration,
    ) -> LocalBoxFuture<'static, Result<Arc<DnsAnswer>, DnsFailure>> {
        self.0.asked.set(self.0.asked.get() + 1);
        let (this, name) = (self.clone(), name.clone());
        Box::pin(async move {
            let delay = this.0.delay.get();
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            this.answer(&name, family)
        })
    }
}

impl DnsResolvers for Scripted {
    fn resolver(&self, _: Option<&Rc<ResolverConfig>>) -> Rc<dyn DnsResolver> {
        Rc::new(self.clone())
    }
}
