//! `dns_lookup_family`: one lookup of a name out of one or two questions. The rule that must hold: a family that has no
//! addresses beside one that failed is a failure, because nobody has said that there are none.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::config::cluster::v3::cluster;
use nuncio_api::pb::envoy::extensions::clusters::common::dns::v3 as common;
use nuncio_core::dns::{DnsAnswer, DnsFailure, DnsResolver, IpFamily};

/// Envoy's `dns_lookup_family`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LookupFamily {
    /// IPv6, and IPv4 only if there is none.
    #[default]
    Auto,
    V4Only,
    V6Only,
    /// IPv4, and IPv6 only if there is none.
    V4Preferred,
    /// Both.
    All,
}

impl LookupFamily {
    pub fn of_cluster(number: i32) -> Self {
        use cluster::DnsLookupFamily as Pb;
        match Pb::try_from(number) {
            Ok(Pb::V4Only) => Self::V4Only,
            Ok(Pb::V6Only) => Self::V6Only,
            Ok(Pb::V4Preferred) => Self::V4Preferred,
            Ok(Pb::All) => Self::All,
            Ok(Pb::Auto) | Err(_) => Self::Auto,
        }
    }

    /// The extension's enum, which also has a value for "unset".
    pub fn of_dns_cluster(number: i32) -> Self {
        use common::DnsLookupFamily as Pb;
        match Pb::try_from(number) {
            Ok(Pb::V4Only) => Self::V4Only,
            Ok(Pb::V6Only) => Self::V6Only,
            Ok(Pb::V4Preferred) => Self::V4Preferred,
            Ok(Pb::All) => Self::All,
            Ok(Pb::Unspecified | Pb::Auto) | Err(_) => Self::Auto,
        }
    }
}

/// A name that is an address is its own answer.
fn literal(name: &str) -> Option<DnsAnswer> {
    let address: IpAddr = name.parse().ok()?;
    Some(DnsAnswer { addresses: vec![address], ttl: None })
}

/// Looks up a name in the families that count, in the order in which they do.
pub async fn lookup(
    resolver: &Rc<dyn DnsResolver>,
    name: &Arc<str>,
    family: LookupFamily,
    max_age: Duration,
) -> Result<Arc<DnsAnswer>, DnsFailure> {
    if let Some(answer) = literal(name) {
        return Ok(Arc::new(answer));
    }
    let ask = |family| resolver.resolve(name, family, max_age);
    match family {
        LookupFamily::V4Only => ask(IpFamily::V4).await,
        LookupFamily::V6Only => ask(IpFamily::V6).await,
        LookupFamily::Auto => first_of(ask(IpFamily::V6).await, || ask(IpFamily::V4)).await,
        LookupFamily::V4Preferred => first_of(ask(IpFamily::V4).await, || ask(IpFamily::V6)).await,
        LookupFamily::All => {
            let (v4, v6) = futures_util::future::join(ask(IpFamily::V4), ask(IpFamily::V6)).await;
            both(v4, v6)
        }
    }
}

type Outcome = Result<Arc<DnsAnswer>, DnsFailure>;

async fn first_of<F: Future<Output = Outcome>>(first: Outcome, second: impl FnOnce() -> F) -> Outcome {
    if first.as_ref().is_ok_and(|answer| !answer.addresses.is_empty()) {
        return first;
    }
    both(first, second().await)
}

/// One that has addresses is enough; "none" must have been said by both.
fn both(one: Outcome, other: Outcome) -> Outcome {
    let empty = |outcome: &Outcome| outcome.as_ref().map_or(true, |answer| answer.addresses.is_empty());
    match (empty(&one), empty(&other)) {
        (false, true) => return one,
        (true, false) => return other,
        (true, true) | (false, false) => {}
    }
    let (one, other) = (one?, other?);
    let ttl = one.ttl.into_iter().chain(other.ttl).min();
    let addresses = one.addresses.iter().chain(&other.addresses).copied().collect();
    Ok(Arc::new(DnsAnswer { addresses, ttl }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::scripted::Scripted;

    const V4: &str = "10.0.0.1";
    const V6: &str = "fd00::1";

    async fn outcome(names: &Scripted, family: LookupFamily) -> Result<Vec<String>, DnsFailure> {
        let resolver: Rc<dyn DnsResolver> = Rc::new(names.clone());
        let found = lookup(&resolver, &"a.test".into(), family, Duration::ZERO).await?;
        Ok(found.addresses.iter().map(ToString::to_string).collect())
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn families_are_asked_in_order_and_only_if_they_are_needed() {
        let names = Scripted::default();
        names.set("a.test", &[V4, V6], 60);
        for (family, found, asked) in [
            (LookupFamily::V4Only, vec![V4], 1),
            (LookupFamily::V6Only, vec![V6], 1),
            (LookupFamily::Auto, vec![V6], 1),
            (LookupFamily::V4Preferred, vec![V4], 1),
            (LookupFamily::All, vec![V4, V6], 2),
        ] {
            let before = names.asked();
            assert_eq!(outcome(&names, family).await.unwrap(), found, "{family:?}");
            assert_eq!(names.asked() - before, asked, "{family:?}");
        }
        names.set("a.test", &[V4], 60);
        assert_eq!(outcome(&names, LookupFamily::Auto).await.unwrap(), [V4]);
        assert_eq!(outcome(&names, LookupFamily::All).await.unwrap(), [V4]);
        assert!(outcome(&names, LookupFamily::V6Only).await.unwrap().is_empty());
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn one_family_empty_and_the_other_failed_is_a_failure() {
        // envoy#38752: this once emptied clusters.
        let names = Scripted::default();
        for failing in [IpFamily::V4, IpFamily::V6] {
            names.set("a.test", &[], 60);
            names.fail_family("a.test", failing);
            for family in [LookupFamily::Auto, LookupFamily::V4Preferred, LookupFamily::All] {
                assert!(outcome(&names, family).await.is_err(), "{family:?} {failing:?}");
            }
        }
        // A family that answers is enough.
        names.set("a.test", &[V4], 60);
        names.fail_family("a.test", IpFamily::V6);
        assert_eq!(outcome(&names, LookupFamily::Auto).await.unwrap(), [V4]);
        assert_eq!(outcome(&names, LookupFamily::All).await.unwrap(), [V4]);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn an_address_is_not_asked_for() {
        let names = Scripted::default();
        let resolver: Rc<dyn DnsResolver> = Rc::new(names.clone());
        let found = lookup(&resolver, &"10.1.2.3".into(), LookupFamily::Auto, Duration::ZERO).await.unwrap();
        assert_eq!((found.addresses.len(), names.asked()), (1, 0));
    }
}
