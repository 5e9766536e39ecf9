//! STRICT_DNS: every address of every target is a host. Targets are looked up independently of each other, each at its
//! own pace; what the others said last still holds. A target whose authority says that it has no addresses has no
//! hosts; one of which nobody answers keeps those it had.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{LocalBoxFuture, join_all};
use nuncio_api::pb::envoy::config::cluster::v3::{Cluster, cluster::DiscoveryType};
use nuncio_core::dns::DnsResolver;
use nuncio_core::error::ConfigError;
use nuncio_core::upstream::{HostSpec, Origin};
use tokio::time::Instant;

use super::dns::{Lookups, Target, targets};
use crate::dns::family::lookup;
use crate::dns::refresh::Failures;
use crate::{Assignment, HostSink, HostSource, HostSourceFactory, SourceContext, UpdateEvent};

pub struct Factory;

impl HostSourceFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.cluster.strict_dns"
    }

    fn discovery_type(&self) -> Option<DiscoveryType> {
        Some(DiscoveryType::StrictDns)
    }

    fn check(&self, cluster: &Cluster) -> Result<Box<dyn HostSource>, Vec<ConfigError>> {
        Ok(Box::new(StrictDns::check(cluster)?))
    }
}

pub(super) struct StrictDns {
    lookups: Lookups,
    targets: Vec<Target>,
    /// All but the hosts.
    assignment: Assignment,
}

impl StrictDns {
    pub(super) fn check(cluster: &Cluster) -> Result<Self, Vec<ConfigError>> {
        let lookups = Lookups::from_cluster(cluster).map_err(|e| vec![e]);
        let read = targets(cluster, "STRICT_DNS");
        match (lookups, read) {
            (Ok(lookups), Ok((targets, assignment))) => Ok(Self { lookups, targets, assignment }),
            (lookups, read) => Err(lookups.err().into_iter().chain(read.err()).flatten().collect()),
        }
    }
}

impl HostSource for StrictDns {
    fn who(&self) -> Option<String> {
        const MOST: usize = 3;
        let names: Vec<&str> = self.targets.iter().take(MOST).map(|target| &*target.name).collect();
        let more = if self.targets.len() > MOST { ", …" } else { "" };
        Some(format!("dns {}{more}", names.join(", ")))
    }

    fn run(self: Box<Self>, context: SourceContext, sink: HostSink) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            if self.targets.is_empty() {
                return sink.replace(self.assignment);
            }
            let resolver = context.dns.resolver(self.lookups.resolver.as_ref());
            let known = RefCell::new(vec![Known::default(); self.targets.len()]);
            let running = Running { strict: &self, known: &known, context: &context, resolver, sink: &sink };
            join_all((0..self.targets.len()).map(|at| running.follow(at))).await;
        })
    }
}

struct Running<'a> {
    strict: &'a StrictDns,
    /// Of each target.
    known: &'a RefCell<Vec<Known>>,
    context: &'a SourceContext,
    resolver: Rc<dyn DnsResolver>,
    sink: &'a HostSink,
}

/// What an authority said last of a target.
#[derive(Clone, Default)]
struct Known {
    addresses: Vec<IpAddr>,
    origin: Option<Arc<Origin>>,
}

impl Running<'_> {
    /// Looks up one target again and again.
    async fn follow(&self, at: usize) {
        let Lookups { refresh, family, .. } = self.strict.lookups;
        let name = &self.strict.targets[at].name;
        let mut failures = Failures::default();
        loop {
            self.sink.count(UpdateEvent::Attempt);
            let asked = Instant::now();
            let wait = match lookup(&self.resolver, name, family, refresh.max_age()).await {
                Ok(answer) => {
                    self.sink.count(UpdateEvent::Success);
                    self.learn(at, &answer.addresses);
                    refresh.after_answer(answer.ttl, &mut failures, &self.context.rng)
                }
                Err(failure) => {
                    self.sink.failed(format_args!("{name}: {failure}"));
                    refresh.after_failure(asked.elapsed(), &mut failures, &self.context.rng)
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Servers turn the order of their answers; that is no news, so what is known keeps its place.
    fn learn(&self, at: usize, addresses: &[IpAddr]) {
        {
            let Known { addresses: known, origin } = &mut self.known.borrow_mut()[at];
            let who = format!("dns {}", self.strict.targets[at].name).into();
            *origin = Some(Arc::new(Origin { who, version: Arc::default(), at: self.context.clock.now() }));
            let now: std::collections::HashSet<&IpAddr> = addresses.iter().collect();
            known.retain(|address| now.contains(address));
            let mut kept: std::collections::HashSet<IpAddr> = known.iter().copied().collect();
            known.extend(addresses.iter().filter(|address| kept.insert(**address)));
        }
        let known = self.known.borrow();
        let both = self.strict.targets.iter().zip(known.iter());
        let hosts = both.flat_map(|(target, known)| {
            known.addresses.iter().map(|address| HostSpec { origin: known.origin.clone(), ..target.host(*address) })
        });
        self.sink.replace(Assignment { hosts: hosts.collect(), ..self.strict.assignment.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::scripted::Scripted;
    use crate::sources::testing::{Heard, context, dns_cluster, seconds};
    use std::time::Duration;

    fn start(names: &Scripted, cluster: &Cluster) -> Rc<Heard> {
        let heard = Rc::new(Heard::default());
        let source = Factory.check(cluster).unwrap_or_else(|e| panic!("{e:?}"));
        tokio::task::spawn_local(source.run(context(names), HostSink::new(heard.clone())));
        heard
    }

    async fn pass(time: u64) {
        tokio::time::sleep(Duration::from_millis(time)).await;
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn every_address_of_every_target_is_a_host() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1", "10.0.0.2", "10.0.0.1"], 60);
        names.set("b.test", &["10.0.0.2"], 60);
        let heard = start(&names, &dns_cluster(&[("a.test", 80), ("b.test", 80)]));
        pass(1).await;
        // Two targets with the same address are two hosts, as in Envoy; one target's repetition is not.
        assert_eq!(heard.last(), ["a.test 10.0.0.1:80", "a.test 10.0.0.2:80", "b.test 10.0.0.2:80"]);
        assert_eq!(heard.counts(), (2, 2, 0));
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn an_empty_answer_takes_the_hosts_and_a_failure_keeps_them() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1"], 60);
        let heard = start(&names, &dns_cluster(&[("a.test", 80)]));
        pass(1).await;
        names.fail("a.test");
        let spoke = heard.spoken();
        pass(10_000).await;
        assert_eq!((heard.spoken(), heard.failures()), (spoke, 2));
        names.set("a.test", &[], 60);
        pass(5_000).await;
        assert!(heard.last().is_empty());
        names.set("a.test", &["10.0.0.3"], 60);
        pass(5_000).await;
        assert_eq!(heard.last(), ["a.test 10.0.0.3:80"]);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn silence_is_waited_for_once_so_that_an_outage_ends_within_one_refresh() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1"], 60);
        let heard = start(&names, &dns_cluster(&[("a.test", 80)]));
        pass(1).await;
        // Asked after 5 s and again as soon as that has failed, after 15 s and 25 s.
        names.fail("a.test");
        names.delay(Duration::from_secs(10));
        pass(25_150).await;
        assert_eq!((heard.failures(), heard.last()), (2, vec!["a.test 10.0.0.1:80".to_owned()]));
        names.set("a.test", &["10.0.0.2"], 60);
        names.delay(Duration::ZERO);
        pass(5_000).await;
        assert_eq!(heard.last(), ["a.test 10.0.0.2:80"]);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn one_target_that_fails_does_not_hold_the_others() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1"], 60);
        names.fail("b.test");
        let heard = start(&names, &dns_cluster(&[("b.test", 80), ("a.test", 80)]));
        pass(1).await;
        assert_eq!((heard.last(), heard.failures()), (vec!["a.test 10.0.0.1:80".to_owned()], 1));
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn the_order_of_an_answer_is_no_news() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1", "10.0.0.2"], 60);
        let heard = start(&names, &dns_cluster(&[("a.test", 80)]));
        pass(1).await;
        names.set("a.test", &["10.0.0.3", "10.0.0.2", "10.0.0.1"], 60);
        pass(5_000).await;
        assert_eq!(heard.last(), ["a.test 10.0.0.1:80", "a.test 10.0.0.2:80", "a.test 10.0.0.3:80"]);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn the_refresh_follows_the_records_if_it_may() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1"], 2);
        let mut cluster = dns_cluster(&[("a.test", 80)]);
        #[allow(deprecated)]
        {
            cluster.respect_dns_ttl = true;
            cluster.dns_refresh_rate = seconds(60);
        }
        let _heard = start(&names, &cluster);
        pass(1).await;
        assert_eq!(names.asked(), 1);
        pass(2_000).await;
        assert_eq!(names.asked(), 2);
        names.set("a.test", &["10.0.0.1"], 0);
        pass(2_000).await;
        // Zero falls back to the rate.
        pass(59_000).await;
        assert_eq!(names.asked(), 3);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn targets_keep_their_templates() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1"], 2);
        let mut cluster = dns_cluster(&[("a.test", 80), ("10.9.9.9", 81)]);
        let group = &mut cluster.load_assignment.as_mut().unwrap().endpoints[0];
        group.priority = 1;
        group.lb_endpoints[0].load_balancing_weight = Some(nuncio_api::pb::google::protobuf::UInt32Value { value: 7 });
        let heard = start(&names, &cluster);
        pass(1).await;
        let hosts: Vec<HostSpec> = heard.hosts();
        let of = |i: usize| (hosts[i].priority, hosts[i].weight, hosts[i].address.to_string());
        assert_eq!(of(0), (1, 7, "10.0.0.1:80".into()));
        assert_eq!(of(1), (1, 1, "10.9.9.9:81".into()));
    }

    #[test]
    fn a_resolver_of_the_endpoints_own_is_refused_in_envoys_words() {
        let mut cluster = dns_cluster(&[("a.test", 80)]);
        crate::sources::testing::socket(&mut cluster).resolver_name = "x".into();
        let Err(errors) = Factory.check(&cluster) else { panic!("accepted") };
        assert!(errors[0].to_string().ends_with("STRICT_DNS clusters must NOT have a custom resolver name set"));
    }
}
