//! A route as a stream holds it: what is done with the request, and what filters may know.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use nuncio_api::pb::google::protobuf::Struct;
use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::http::{LocalReply, RequestHead, ResponseHead, RouteView};
use nuncio_core::metadata::Metadata;
use nuncio_core::stats::ScopeId;

use super::direct_response::DirectResponse;
use super::filter_config::FilterConfigs;
use super::mutations::{LevelMutations, Scratch};
use super::policy::{ForwardPolicy, Mirror};
use super::redirect::Redirect;
use super::retry::{HedgePolicy, RetryPolicy};
use super::rewrite::HostRewrite;
use super::route_match::{MatchContext, MatchedPart};
use super::virtual_host::VirtualHost;
use crate::upstream::hash_policy::HashInput;

supports!(pub(super) ROUTE = "envoy.config.route.v3.Route" {
    name, r#match, route, redirect, direct_response, non_forwarding_action, metadata, typed_per_filter_config,
    request_headers_to_add, request_headers_to_remove, response_headers_to_add, response_headers_to_remove
} noop {
    decorator: "there is no tracing",
    tracing: "there is no tracing"
});
supports!(pub(super) NON_FORWARDING = "envoy.config.route.v3.NonForwardingAction" {});

/// One route, or one cluster of a weighted route. Shared by all workers; streams hold it by `Arc`.
pub struct Route {
    pub(super) name: Option<Arc<str>>,
    pub(super) virtual_host: Arc<VirtualHost>,
    pub(super) action: Action,
    pub(super) matched: MatchedPart,
    /// What few routes have.
    pub(super) extras: Option<Arc<Extras>>,
    pub(super) weighted: Option<Box<WeightedExtras>>,
}

/// What becomes of the request.
#[derive(Debug)]
pub enum Action {
    Forward {
        cluster: ClusterName,
        policy: Arc<ForwardPolicy>,
    },
    Redirect(Box<Redirect>),
    DirectResponse(Arc<DirectResponse>),
    /// For filters that answer by themselves; the router has nowhere to send it.
    NonForwarding,
}

#[derive(Debug, Clone)]
pub enum ClusterName {
    Named(Arc<str>),
    /// The first value of this request header.
    Header(Arc<str>),
}

#[derive(Default)]
pub(super) struct Extras {
    pub(super) metadata: Metadata,
    pub(super) stats: Option<ScopeId>,
    pub(super) buffer_limit: Option<u64>,
    pub(super) mutations: LevelMutations,
    pub(super) filter_configs: Option<Arc<FilterConfigs>>,
}

/// What one cluster of a weighted route says of its own.
#[derive(Default)]
pub(super) struct WeightedExtras {
    pub(super) host_rewrite: Box<str>,
    pub(super) metadata_match: Option<Arc<Struct>>,
    pub(super) mutations: LevelMutations,
    pub(super) filter_configs: Option<Arc<FilterConfigs>>,
}

static NO_METADATA: Metadata = Metadata(BTreeMap::new());

impl Route {
    pub fn action(&self) -> &Action {
        &self.action
    }

    pub fn virtual_host(&self) -> &VirtualHost {
        &self.virtual_host
    }

    /// The route's name, shared: for the stream's record.
    pub fn shared_name(&self) -> Option<&Arc<str>> {
        self.name.as_ref()
    }

    pub fn policy(&self) -> Option<&Arc<ForwardPolicy>> {
        match &self.action {
            Action::Forward { policy, .. } => Some(policy),
            _ => None,
        }
    }

    /// The cluster for this request. Empty if the header that names it is missing: no such cluster.
    pub fn cluster<'a>(&'a self, head: &'a RequestHead) -> Option<&'a str> {
        match &self.action {
            Action::Forward { cluster: ClusterName::Named(name), .. } => Some(name),
            Action::Forward { cluster: ClusterName::Header(name), .. } => {
                Some(head.headers.get_str(name).unwrap_or_default())
            }
            _ => None,
        }
    }

    /// The route's policy, else the virtual host's. They are not merged.
    pub fn retry_policy(&self) -> Option<&Arc<RetryPolicy>> {
        self.policy()?.retry.as_ref().or(self.virtual_host.retry.as_ref())
    }

    pub fn hedge_policy(&self) -> Option<&HedgePolicy> {
        self.policy()?.hedge.as_ref().or(self.virtual_host.hedge.as_ref())
    }

    pub fn mirrors(&self) -> &[Mirror] {
        match self.policy() {
            Some(policy) if !policy.mirrors.is_empty() => &policy.mirrors,
            Some(_) => &self.virtual_host.mirrors,
            None => &[],
        }
    }

    /// Which hosts of the cluster: the route's `metadata_match`, overlaid by the weighted cluster's.
    pub fn metadata_match(&self) -> Option<&Arc<Struct>> {
        let own = self.weighted.as_ref().and_then(|w| w.metadata_match.as_ref());
        own.or_else(|| self.policy()?.metadata_match.as_ref())
    }

    /// How much of a request may be kept for retries and mirrors, if not as much as the connection's limit says.
    pub fn buffer_limit(&self) -> Option<u64> {
        self.extras.as_ref().and_then(|e| e.buffer_limit).or(self.virtual_host.buffer_limit)
    }

    /// Where the route's own statistics go (`vhost.<v>.route.<prefix>.`), if it wants any.
    pub fn stats_scope(&self) -> Option<ScopeId> {
        self.extras.as_ref()?.stats
    }

    /// The upstream host's name becomes the authority, once it is chosen.
    pub fn auto_host_rewrite(&self) -> bool {
        self.policy().is_some_and(|p| matches!(p.host_rewrite, HostRewrite::Auto))
    }

    /// Changes a request that is to be forwarded: its headers at every level, then authority and
    /// path. `keep_original` writes `x-envoy-original-…`. Called once, after all decode filters;
    /// `context` tells all but the request.
    pub fn finalize_request(
        &self,
        head: &mut RequestHead,
        context: &LogContext<'_>,
        keep_original: bool,
        scratch: &mut Scratch,
    ) {
        if let Some(weighted) = &self.weighted {
            weighted.mutations.request(head, context, &mut scratch.values);
            if !weighted.host_rewrite.is_empty() {
                head.headers.set(":authority", weighted.host_rewrite.as_bytes());
            }
        }
        for level in self.levels().into_iter().flatten() {
            level.request(head, context, &mut scratch.values);
        }
        if let Some(policy) = self.policy() {
            let scratch = &mut scratch.bytes;
            policy.host_rewrite.apply(head, context, policy.append_x_forwarded_host, keep_original, scratch);
            policy.path_rewrite.apply(self.matched, head, context, keep_original, scratch);
        }
    }

    /// Changes a response, the upstream's or that of [`local_reply`](Self::local_reply), before
    /// the encode filters see it. `context` tells all but the response.
    pub fn finalize_response(&self, head: &mut ResponseHead, context: &LogContext<'_>, scratch: &mut Scratch) {
        if let Some(weighted) = &self.weighted {
            weighted.mutations.response(head, context, &mut scratch.values);
        }
        for level in self.levels().into_iter().flatten() {
            level.response(head, context, &mut scratch.values);
        }
    }

    /// In the order in which they are applied.
    fn levels(&self) -> [Option<&LevelMutations>; 3] {
        let route = self.extras.as_ref().map(|e| &e.mutations);
        let host = Some(&self.virtual_host.mutations);
        let config = Some(&self.virtual_host.common.mutations);
        if self.virtual_host.common.most_specific_wins { [config, host, route] } else { [route, host, config] }
    }

    /// The answer of a route that does not forward. A redirect's path rewrite is visible in the
    /// request head afterwards, as in Envoy (access logs show it).
    pub fn local_reply(
        &self,
        head: &mut RequestHead,
        context: &LogContext<'_>,
        keep_original: bool,
        scratch: &mut Scratch,
    ) -> Option<LocalReply> {
        match &self.action {
            Action::Forward { .. } | Action::NonForwarding => None,
            Action::Redirect(redirect) => {
                redirect.rewrite.apply(self.matched, head, context, keep_original, &mut scratch.bytes);
                let reply = LocalReply::new(redirect.code, Cow::Borrowed("direct_response"));
                Some(reply.header("location", redirect.location(head, context)))
            }
            Action::DirectResponse(response) => {
                let reply = response.reply(head, context);
                if !response.has_location() || head.path().is_none() {
                    return Some(reply);
                }
                Some(reply.header("location", Redirect::default().location(head, context)))
            }
        }
    }

    /// The hash policy's value without new cookies, for `use_hash_policy`.
    pub(super) fn stable_hash(&self, head: &RequestHead, context: &MatchContext<'_>) -> Option<u64> {
        let input = HashInput { head, connection: context.connection, info: context.info };
        self.policy()?.hash_policy.hash(&input, None)
    }

    fn configs(&self) -> Option<&Arc<FilterConfigs>> {
        let weighted = self.weighted.as_ref().and_then(|w| w.filter_configs.as_ref());
        let own = || self.extras.as_ref().and_then(|e| e.filter_configs.as_ref());
        weighted.or_else(own).or_else(|| self.virtual_host.filter_configs())
    }
}

impl RouteView for Route {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn virtual_host_name(&self) -> &str {
        &self.virtual_host.name
    }

    fn cluster_name(&self) -> Option<&str> {
        match &self.action {
            Action::Forward { cluster: ClusterName::Named(name), .. } => Some(name),
            _ => None,
        }
    }

    fn metadata(&self) -> &Metadata {
        self.extras.as_ref().map_or(&NO_METADATA, |e| &e.metadata)
    }

    fn virtual_host_metadata(&self) -> Option<&Metadata> {
        Some(&self.virtual_host.metadata)
    }

    fn filter_configs(&self, filter: &str) -> &[Arc<dyn Any + Send + Sync>] {
        self.configs().map_or(&[], |c| c.configs(filter))
    }

    fn filter_disabled(&self, filter: &str) -> Option<bool> {
        self.configs().and_then(|c| c.disabled(filter))
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("name", &self.name).field("action", &self.action).finish_non_exhaustive()
    }
}
