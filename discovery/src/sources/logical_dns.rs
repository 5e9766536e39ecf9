//! LOGICAL_DNS: one host with a name, wherever the name leads at the moment. New connections try the addresses in the
//! order of the latest answer; those that exist are left alone. That nobody answered and that there is no address mean
//! the same here, as in Envoy: the last ones are kept.

use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::cluster::v3::{Cluster, cluster::DiscoveryType};
use nuncio_core::error::ConfigError;
use nuncio_core::net::Address;
use nuncio_core::upstream::HostSpec;
use tokio::time::Instant;

use super::dns::{Lookups, Target, targets};
use crate::dns::family::{LookupFamily, lookup};
use crate::dns::refresh::Failures;
use crate::{Assignment, HostSink, HostSource, HostSourceFactory, SourceContext, UpdateEvent};

pub struct Factory;

impl HostSourceFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.cluster.logical_dns"
    }

    fn discovery_type(&self) -> Option<DiscoveryType> {
        Some(DiscoveryType::LogicalDns)
    }

    fn check(&self, cluster: &Cluster) -> Result<Box<dyn HostSource>, Vec<ConfigError>> {
        Ok(Box::new(LogicalDns::check(cluster)?))
    }
}

pub(super) struct LogicalDns {
    lookups: Lookups,
    target: Target,
    assignment: Assignment,
}

impl LogicalDns {
    pub(super) fn check(cluster: &Cluster) -> Result<Self, Vec<ConfigError>> {
        let groups = cluster.load_assignment.as_ref().map_or(&[][..], |assignment| &assignment.endpoints);
        let one = matches!(groups, [group] if group.lb_endpoints.len() == 1);
        let lookups = Lookups::from_cluster(cluster).map_err(|e| vec![e]);
        let read = targets(cluster, "LOGICAL_DNS").and_then(|(targets, assignment)| {
            let mut targets = targets.into_iter();
            match targets.next() {
                Some(mut target) if one => {
                    target.template.priority = 0;
                    Ok((target, assignment))
                }
                _ => {
                    let reason =
                        "LOGICAL_DNS clusters must have a single locality_lb_endpoint and a single lb_endpoint";
                    Err(vec![ConfigError::new("load_assignment", reason)])
                }
            }
        });
        match (lookups, read) {
            (Ok(lookups), Ok((target, assignment))) => Ok(Self { lookups, target, assignment }),
            (lookups, read) => Err(lookups.err().into_iter().chain(read.err()).flatten().collect()),
        }
    }

    /// The host, if there is an address to connect to.
    fn host(&self, addresses: &[IpAddr]) -> Option<HostSpec> {
        let mut addresses = addresses.to_vec();
        if self.lookups.family == LookupFamily::All {
            alternate(&mut addresses);
        }
        let mut host = self.target.host(*addresses.first()?);
        let places: Arc<[Address]> = addresses.into_iter().map(|address| self.target.host(address).address).collect();
        host.logical = Some(places);
        Some(host)
    }
}

/// RFC 8305, 4: after the first address one of the other family, and so on.
fn alternate(addresses: &mut Vec<IpAddr>) {
    let Some(first) = addresses.first().map(IpAddr::is_ipv4) else { return };
    let (one, other): (Vec<_>, Vec<_>) = addresses.drain(..).partition(|address| address.is_ipv4() == first);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    loop {
        let pair = [one.next(), other.next()];
        if pair == [None, None] {
            return;
        }
        addresses.extend(pair.into_iter().flatten());
    }
}

impl HostSource for LogicalDns {
    fn who(&self) -> Option<String> {
        Some(format!("dns {}", self.target.name))
    }

    fn run(self: Box<Self>, context: SourceContext, sink: HostSink) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            let resolver = context.dns.resolver(self.lookups.resolver.as_ref());
            let Lookups { refresh, family, .. } = self.lookups;
            let name = &self.target.name;
            let mut failures = Failures::default();
            loop {
                sink.count(UpdateEvent::Attempt);
                let began = Instant::now();
                let asked = lookup(&resolver, name, family, refresh.max_age()).await;
                let asked = asked.map(|answer| (self.host(&answer.addresses), answer.ttl));
                let wait = match asked {
                    Ok((Some(host), ttl)) => {
                        sink.count(UpdateEvent::Success);
                        sink.replace(Assignment { hosts: vec![host], ..self.assignment.clone() });
                        refresh.after_answer(ttl, &mut failures, &context.rng)
                    }
                    Ok((None, _)) => {
                        sink.failed(format_args!("{name}: there is no such name, or it has no addresses"));
                        refresh.after_failure(began.elapsed(), &mut failures, &context.rng)
                    }
                    Err(failure) => {
                        sink.failed(format_args!("{name}: {failure}"));
                        refresh.after_failure(began.elapsed(), &mut failures, &context.rng)
                    }
                };
                tokio::time::sleep(wait).await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::scripted::Scripted;
    use crate::sources::testing::{Heard, context, dns_cluster};
    use std::rc::Rc;
    use std::time::Duration;

    fn start(names: &Scripted, cluster: &Cluster) -> Rc<Heard> {
        let heard = Rc::new(Heard::default());
        let source = Factory.check(cluster).unwrap_or_else(|e| panic!("{e:?}"));
        tokio::task::spawn_local(source.run(context(names), HostSink::new(heard.clone())));
        heard
    }

    fn places(heard: &Heard) -> Vec<String> {
        let hosts = heard.hosts();
        assert_eq!(hosts.len(), 1);
        hosts[0].logical.iter().flat_map(|places| places.iter()).map(ToString::to_string).collect()
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn silence_is_waited_for_once_so_that_an_outage_ends_within_one_refresh() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1"], 60);
        let heard = start(&names, &dns_cluster(&[("a.test", 80)]));
        tokio::time::sleep(Duration::from_millis(1)).await;
        names.fail("a.test");
        names.delay(Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(25_150)).await;
        assert_eq!((heard.failures(), places(&heard)), (2, vec!["10.0.0.1:80".to_owned()]));
        names.set("a.test", &["10.0.0.2"], 60);
        names.delay(Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(places(&heard), ["10.0.0.2:80"]);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn one_host_with_all_addresses_in_the_order_of_the_answer() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.2", "10.0.0.1"], 60);
        let heard = start(&names, &dns_cluster(&[("a.test", 80)]));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(heard.last(), ["a.test 10.0.0.2:80"]);
        assert_eq!(places(&heard), ["10.0.0.2:80", "10.0.0.1:80"]);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn neither_a_failure_nor_an_empty_answer_takes_the_host() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.2"], 60);
        let heard = start(&names, &dns_cluster(&[("a.test", 80)]));
        tokio::time::sleep(Duration::from_millis(1)).await;
        names.set("a.test", &[], 60);
        tokio::time::sleep(Duration::from_secs(5)).await;
        names.fail("a.test");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!((heard.spoken(), heard.failures()), (1, 2));
    }

    #[test]
    fn one_endpoint_and_no_other_shape() {
        for targets in [&[][..], &[("a.test", 80), ("b.test", 80)][..]] {
            let Err(errors) = Factory.check(&dns_cluster(targets)) else { panic!("accepted") };
            let text = "LOGICAL_DNS clusters must have a single locality_lb_endpoint and a single lb_endpoint";
            assert_eq!(errors[0].to_string(), format!("load_assignment: {text}"));
        }
    }

    #[test]
    fn families_alternate() {
        let mut addresses: Vec<IpAddr> =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "::1"].map(|a| a.parse().unwrap()).to_vec();
        alternate(&mut addresses);
        let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.1", "::1", "10.0.0.2", "10.0.0.3"]);
    }
}
