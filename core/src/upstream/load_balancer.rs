//! Choosing a host: the trait of balancing policies, and what a request may ask of them.

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::google::protobuf::Struct;

use super::{Host, PrioritySet};
use crate::http::{HeaderMap, StreamControl};
use crate::net::ConnectionInfo;

/// What the request that needs a host says.
#[derive(Default)]
pub struct LbContext<'a> {
    /// From the route's hash policy; policies that hash take chance without it.
    pub hash: Option<u64>,
    /// Instead of the cluster's own load over priorities (retry priorities).
    pub priority_load: Option<&'a PriorityLoad>,
    /// What hosts must say of themselves in `envoy.lb`, for clusters with subsets.
    pub metadata_match: Option<&'a Struct>,
    /// Hosts to pass over, e.g. those that were tried (retry host predicates).
    pub reject: Option<&'a dyn Fn(&Host) -> bool>,
    /// How often to choose again after a rejected one, before any other is looked for. If all are rejected, the last
    /// choice is taken.
    pub reselections: u32,
    pub override_host: Option<OverrideHost<'a>>,
    /// The request's headers and its stream, or the connection of bytes that are no request: for clusters whose hosts
    /// are where the client wanted to go.
    pub headers: Option<&'a HeaderMap>,
    pub stream: Option<&'a StreamControl>,
    pub connection: Option<&'a ConnectionInfo>,
}

/// A host that a filter asks for (stateful sessions).
#[derive(Debug, Clone, Copy)]
pub struct OverrideHost<'a> {
    /// As [`Host::address_text`].
    pub address: &'a str,
    /// If it is not there or not well enough: none rather than another.
    pub strict: bool,
}

/// Percentages of traffic by priority; both lists together give 100.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PriorityLoad {
    pub healthy: Vec<u32>,
    pub degraded: Vec<u32>,
}

/// What a balancer answers.
pub enum Choice {
    Host(Arc<Host>),
    /// The host is being found (a name is resolved, an address asked for).
    Wait(LocalBoxFuture<'static, Option<Arc<Host>>>),
    /// There must be none; why, as `%RESPONSE_CODE_DETAILS%` tells it.
    Refused(&'static str),
    None,
}

/// One cluster's balancing policy on one worker.
pub trait LoadBalancer {
    fn choose_host(&mut self, context: &LbContext<'_>) -> Choice;

    /// The hosts, their weights or their health are others now.
    fn hosts_changed(&mut self, hosts: &Arc<PrioritySet>);
}
