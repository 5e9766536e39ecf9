//! EDS: the hosts that a management server or a file says. An answer that is not about this cluster, or that is wrong
//! anywhere, changes nothing; one about the cluster without endpoints empties it.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::cluster::v3::{Cluster, cluster::DiscoveryType};
use nuncio_api::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::net::Address;
use nuncio_core::time::duration;
use tokio::time::Instant;

use crate::assignment::Reader;
use crate::source::Needs;
use crate::xds::subscription::at;
use crate::xds::{ConfigSource, News, Subscription, Update};
use crate::{Assignment, HostSink, HostSource, HostSourceFactory, SourceContext, UpdateEvent};

supports!(CLUSTER = "envoy.config.cluster.v3.Cluster" { eds_cluster_config });
supports!(EDS = "envoy.config.cluster.v3.Cluster.EdsClusterConfig" { eds_config, service_name });
supports!(POLICY = "envoy.config.endpoint.v3.ClusterLoadAssignment.Policy" { endpoint_stale_after });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&CLUSTER, &EDS, &POLICY];

pub struct Factory;

impl HostSourceFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.cluster.eds"
    }

    fn discovery_type(&self) -> Option<DiscoveryType> {
        Some(DiscoveryType::Eds)
    }

    fn check(&self, cluster: &Cluster) -> Result<Box<dyn HostSource>, Vec<ConfigError>> {
        let refuse = |path: &str, reason: &str| vec![ConfigError::new(path, reason)];
        if cluster.load_assignment.is_some() {
            return Err(refuse("load_assignment", "load_assignment set in an EDS cluster"));
        }
        let Some(eds) = &cluster.eds_cluster_config else {
            return Err(refuse("eds_cluster_config", "cannot create an EDS cluster without an EDS config"));
        };
        let Some(source) = &eds.eds_config else {
            return Err(refuse("eds_cluster_config.eds_config", "an EDS cluster needs a source of its endpoints"));
        };
        let source =
            ConfigSource::from_proto(source).map_err(|e| vec![e.within("eds_config").within("eds_cluster_config")])?;
        let name = if eds.service_name.is_empty() { &cluster.name } else { &eds.service_name };
        Ok(Box::new(Eds { name: name.clone(), source }))
    }
}

struct Eds {
    /// Of the resource.
    name: String,
    source: ConfigSource,
}

impl HostSource for Eds {
    fn needs(&self) -> Needs {
        let cluster = self.source.cluster();
        let cluster = cluster.map(|(at, name)| (format!("eds_cluster_config.eds_config.{at}"), name.to_owned()));
        Needs { node: true, cluster }
    }

    fn who(&self) -> Option<String> {
        Some(format!("eds {}", self.source.who::<ClusterLoadAssignment>()))
    }

    fn run(self: Box<Self>, context: SourceContext, sink: HostSink) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            let mut subscription = Subscription::new(&self.source, vec![self.name.clone()], &context);
            let mut stale = None;
            loop {
                let news = tokio::select! {
                    biased;
                    news = subscription.next() => news,
                    () = at(stale) => {
                        stale = None;
                        sink.count(UpdateEvent::Stale);
                        sink.replace(Assignment::default());
                        continue;
                    }
                };
                if let News::InitFetchTimeout = news {
                    sink.count(UpdateEvent::InitFetchTimeout);
                    continue;
                }
                sink.count(UpdateEvent::Attempt);
                match news {
                    News::Update(update) => match self.read(&update) {
                        Ok(read) => {
                            subscription.accepted(&update.version);
                            sink.count(UpdateEvent::Success);
                            sink.version(&update.version);
                            let Some(Read { assignment, stale_after }) = read else {
                                sink.count(UpdateEvent::Empty);
                                continue;
                            };
                            stale = stale_after.map(|after| Instant::now() + after);
                            sink.replace(assignment);
                        }
                        Err(reason) => sink.rejected(reason),
                    },
                    News::Failed(reason) => sink.failed(reason),
                    News::Rejected(reason) => sink.rejected(reason),
                    News::Unchanged | News::InitFetchTimeout => {}
                }
            }
        })
    }
}

/// A good answer about this cluster.
struct Read {
    assignment: Assignment,
    stale_after: Option<Duration>,
}

impl Eds {
    /// None if the answer says nothing at all.
    fn read(&self, update: &Update<ClusterLoadAssignment>) -> Result<Option<Read>, String> {
        let message = match &update.resources[..] {
            [] => return Ok(None),
            [resource] => &resource.message,
            more => return Err(format!("Unexpected EDS resource length: {}", more.len())),
        };
        if message.cluster_name != self.name {
            return Err(format!("Unexpected EDS cluster (expecting {}): {}", self.name, message.cluster_name));
        }
        let read = Reader::new(Address::from_proto).read(message);
        let mut assignment = read.map_err(|errors| {
            let texts: Vec<_> = errors.iter().take(5).map(ToString::to_string).collect();
            texts.join("; ")
        })?;
        // The first of those with the same address wins.
        let mut seen = HashSet::with_capacity(assignment.hosts.len());
        let firsts: Vec<bool> = assignment.hosts.iter().map(|host| seen.insert(host.address.clone())).collect();
        let mut firsts = firsts.into_iter();
        assignment.hosts.retain(|_| firsts.next().unwrap_or(true));
        let stale_after = message.policy.as_ref().and_then(|policy| policy.endpoint_stale_after.as_ref());
        let stale_after = stale_after.map(duration).filter(|after| !after.is_zero());
        Ok(Some(Read { assignment, stale_after }))
    }
}

#[cfg(test)]
mod tests;
