//! What main builds of a cluster's hosts for the balancers of all workers: tables of hashes, and the hosts of subsets.
//!
//! Main puts a new picture here before it tells the workers that hosts changed; each takes it then.

use std::sync::Arc;

use arc_swap::ArcSwap;
use nuncio_core::runtime::{NoRuntime, Runtime};
use nuncio_core::upstream::PrioritySet;

use super::hashing::{Evenness, Tables};
use super::subset::SubsetIndex;
use crate::upstream::lb_config::{LbConfig, LbPolicy};
use crate::upstream::original_dst::Destinations;

pub struct Shared(ArcSwap<Built>);

pub(super) enum Built {
    Tables(Arc<Tables>),
    Subsets(Arc<SubsetIndex>),
    Destinations(Arc<Destinations>),
}

/// What main shows of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    pub evenness: Option<Evenness>,
    pub subsets: SubsetCounts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SubsetCounts {
    pub active: u64,
    pub created: u64,
    pub removed: u64,
}

impl Shared {
    /// For the policies that share something.
    pub fn new(config: &LbConfig) -> Option<Arc<Self>> {
        let none = Arc::default();
        let built = if config.original_dst.is_some() {
            Built::Destinations(Arc::default())
        } else if config.subsets.is_some() {
            Built::Subsets(Arc::new(SubsetIndex::build(config, &NoRuntime, &none, None)?))
        } else {
            Built::Tables(tables(config, &NoRuntime, &none, None)?)
        };
        Some(Arc::new(Self(ArcSwap::from_pointee(built))))
    }

    /// Another picture of the hosts. Main only.
    pub fn update(&self, config: &LbConfig, runtime: &dyn Runtime, hosts: &Arc<PrioritySet>) -> Report {
        match &**self.0.load() {
            Built::Tables(before) => {
                let Some(tables) = tables(config, runtime, hosts, Some(before)) else { return Report::default() };
                let report = Report { evenness: Some(tables.evenness()), ..Report::default() };
                self.0.store(Arc::new(Built::Tables(tables)));
                report
            }
            Built::Destinations(_) => Report::default(),
            Built::Subsets(before) => {
                let Some(index) = SubsetIndex::build(config, runtime, hosts, Some(before)) else {
                    return Report::default();
                };
                let report = Report { evenness: index.evenness(), subsets: index.counts(Some(before)) };
                self.0.store(Arc::new(Built::Subsets(Arc::new(index))));
                report
            }
        }
    }

    pub(super) fn tables(&self) -> Option<Arc<Tables>> {
        match &**self.0.load() {
            Built::Tables(tables) => Some(tables.clone()),
            Built::Subsets(_) | Built::Destinations(_) => None,
        }
    }

    /// Of an ORIGINAL_DST cluster.
    pub fn destinations(&self) -> Option<Arc<Destinations>> {
        match &**self.0.load() {
            Built::Destinations(destinations) => Some(destinations.clone()),
            Built::Tables(_) | Built::Subsets(_) => None,
        }
    }

    pub(super) fn subsets(&self) -> Option<Arc<SubsetIndex>> {
        match &**self.0.load() {
            Built::Tables(_) | Built::Destinations(_) => None,
            Built::Subsets(index) => Some(index.clone()),
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

/// For policies that hash.
pub(super) fn tables(
    config: &LbConfig,
    runtime: &dyn Runtime,
    hosts: &Arc<PrioritySet>,
    before: Option<&Tables>,
) -> Option<Arc<Tables>> {
    match config.policy {
        LbPolicy::RingHash(_) | LbPolicy::Maglev(_) => Some(Arc::new(Tables::build(config, runtime, hosts, before))),
        LbPolicy::RoundRobin | LbPolicy::Random | LbPolicy::LeastRequest { .. } | LbPolicy::OriginalDst => None,
    }
}
