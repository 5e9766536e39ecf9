//! EDS: the hosts that a management server or a file says. An answer that is not about this cluster, or that is wrong
//! anywhere, changes nothing; one about the cluster without endpoints empties it.

use std::collections::HashSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use nuncio_api::any::unpack;
use nuncio_api::pb::envoy::config::cluster::v3::{Cluster, cluster::DiscoveryType};
use nuncio_api::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use nuncio_api::pb::envoy::service::discovery::v3::DiscoveryResponse;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::net::Address;
use nuncio_core::time::duration;
use tokio::time::{Instant, sleep_until};

use crate::assignment::Reader;
use crate::source::Needs;
use crate::xds::{ConfigSource, FetchError, Fetcher};
use crate::{Assignment, HostSink, HostSource, HostSourceFactory, SourceContext, UpdateEvent};

supports!(CLUSTER = "envoy.config.cluster.v3.Cluster" { eds_cluster_config });
supports!(EDS = "envoy.config.cluster.v3.Cluster.EdsClusterConfig" { eds_config, service_name });
supports!(POLICY = "envoy.config.endpoint.v3.ClusterLoadAssignment.Policy" { endpoint_stale_after });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&CLUSTER, &EDS, &POLICY];

const RESOURCE: &str = "envoy.config.endpoint.v3.ClusterLoadAssignment";

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

    fn run(self: Box<Self>, context: SourceContext, sink: HostSink) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            let mut fetcher = Fetcher::new(&self.source, RESOURCE, vec![self.name.clone()], &context);
            let mut waiting = self.source.initial_fetch_timeout.map(|limit| Instant::now() + limit);
            let mut stale = None;
            loop {
                let outcome = {
                    let mut next = pin!(fetcher.next());
                    loop {
                        tokio::select! {
                            biased;
                            outcome = &mut next => break outcome,
                            () = at(waiting) => {
                                waiting = None;
                                sink.count(UpdateEvent::InitFetchTimeout);
                            }
                            () = at(stale) => {
                                stale = None;
                                sink.count(UpdateEvent::Stale);
                                sink.replace(Assignment::default());
                            }
                        }
                    }
                };
                waiting = None;
                sink.count(UpdateEvent::Attempt);
                match outcome {
                    Ok(None) => {}
                    Ok(Some(response)) => match self.read(&response) {
                        Ok(read) => {
                            fetcher.accepted(&response.version_info);
                            sink.count(UpdateEvent::Success);
                            sink.version(&response.version_info);
                            let Some(Read { assignment, stale_after }) = read else {
                                sink.count(UpdateEvent::Empty);
                                continue;
                            };
                            stale = stale_after.map(|after| Instant::now() + after);
                            sink.replace(assignment);
                        }
                        Err(reason) => sink.rejected(reason),
                    },
                    Err(FetchError::Failure(reason)) => sink.failed(reason),
                    Err(FetchError::Rejected(reason)) => sink.rejected(reason),
                }
            }
        })
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// A good answer about this cluster.
struct Read {
    assignment: Assignment,
    stale_after: Option<Duration>,
}

impl Eds {
    /// None if the answer says nothing at all.
    fn read(&self, response: &DiscoveryResponse) -> Result<Option<Read>, String> {
        let [resource] = &response.resources[..] else {
            return match response.resources.len() {
                0 => Ok(None),
                n => Err(format!("Unexpected EDS resource length: {n}")),
            };
        };
        let message: ClusterLoadAssignment = unpack(resource).map_err(|e| e.to_string())?;
        if message.cluster_name != self.name {
            return Err(format!("Unexpected EDS cluster (expecting {}): {}", self.name, message.cluster_name));
        }
        let read = Reader::new(Address::from_proto).read(&message);
        let mut assignment = read.map_err(|errors| {
            let texts: Vec<_> = errors.iter().take(5).map(ToString::to_string).collect();
            texts.join("; ")
        })?;
        // The first of those with the same address wins.
        let mut seen = HashSet::with_capacity(assignment.hosts.len());
        let firsts: Vec<bool> = assignment.hosts.iter().map(|host| seen.insert(host.address.clone())).collect();
        let mut firsts = firsts.into_iter();
        assignment.hosts.retain(|_| firsts.next().unwrap_or(true));
        let stale_after = message.policy.and_then(|policy| policy.endpoint_stale_after);
        let stale_after = stale_after.as_ref().map(duration).filter(|after| !after.is_zero());
        Ok(Some(Read { assignment, stale_after }))
    }
}

#[cfg(test)]
mod tests;
