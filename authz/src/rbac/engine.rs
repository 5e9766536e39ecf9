//! `config.rbac.v3.RBAC`: policies and what a match of one means.

use nuncio_api::pb::envoy::config::rbac::v3::{self as pb, rbac::Action};
use nuncio_api::supports;
use nuncio_core::error::ConfigError;

use super::attributes::Attributes;
use super::rule::Rule;
use super::{permission, principal};

supports!(pub(super) RBAC = "envoy.config.rbac.v3.RBAC" { action, policies });
supports!(pub(super) POLICY = "envoy.config.rbac.v3.Policy" { permissions, principals });

#[derive(Debug)]
pub(crate) struct Engine {
    action: Action,
    /// By name: the first that matches is the one that is told.
    policies: Vec<(Box<str>, Policy)>,
}

#[derive(Debug)]
struct Policy {
    permissions: Rule,
    principals: Rule,
}

/// What an engine says, and because of which policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision<'e> {
    pub(crate) allowed: bool,
    pub(crate) policy: Option<&'e str>,
}

impl Decision<'_> {
    pub(crate) fn result(&self) -> &'static str {
        if self.allowed { "allowed" } else { "denied" }
    }

    /// `%RESPONSE_CODE_DETAILS%`, and of a connection the reason of its end. Blanks become underscores.
    pub(crate) fn details(&self) -> String {
        let policy = self.policy.unwrap_or("none");
        format!("rbac_access_denied_matched_policy[{}]", policy.replace(char::is_whitespace, "_"))
    }
}

impl Engine {
    pub(crate) fn from_proto(proto: &pb::Rbac) -> Result<Self, ConfigError> {
        let mut policies = Vec::with_capacity(proto.policies.len());
        for (name, policy) in &proto.policies {
            let within = |e: ConfigError| e.within(&format!("policies[\"{name}\"]"));
            policies.push((
                name.as_str().into(),
                Policy {
                    permissions: Rule::Some(
                        Rule::list("permissions", &policy.permissions, 0, permission::rule).map_err(within)?,
                    ),
                    principals: Rule::Some(
                        Rule::list("principals", &policy.principals, 0, principal::rule).map_err(within)?,
                    ),
                },
            ));
        }
        policies.sort_by(|a: &(Box<str>, Policy), b| a.0.cmp(&b.0));
        Ok(Self { action: proto.action(), policies })
    }

    /// Whether matches are only noted for logs.
    pub(crate) fn is_for_logs(&self) -> bool {
        self.action == Action::Log
    }

    pub(crate) fn decide(&self, attributes: &Attributes<'_>) -> Decision<'_> {
        let mut policies = self.policies.iter();
        let matched = policies.find(|(_, p)| p.permissions.matches(attributes) && p.principals.matches(attributes));
        let policy = matched.map(|(name, _)| &**name);
        let allowed = match self.action {
            Action::Allow => policy.is_some(),
            Action::Deny => policy.is_none(),
            Action::Log => true,
        };
        Decision { allowed, policy }
    }
}

/// What is enforced, and what is only counted; and how both are called in metadata.
#[derive(Debug, Default)]
pub(crate) struct Engines {
    pub(crate) enforced: Option<Engine>,
    pub(crate) shadow: Option<Engine>,
    pub(crate) prefix: String,
    pub(crate) shadow_prefix: String,
    /// Count for each policy.
    pub(crate) per_policy: bool,
}

impl Engines {
    pub(crate) fn new(rules: Option<&pb::Rbac>, shadow_rules: Option<&pb::Rbac>) -> Result<Self, ConfigError> {
        let engine = |field: &str, proto: Option<&pb::Rbac>| {
            proto.map(|proto| Engine::from_proto(proto).map_err(|e| e.within(field))).transpose()
        };
        Ok(Self { enforced: engine("rules", rules)?, shadow: engine("shadow_rules", shadow_rules)?, ..Self::default() })
    }
}

#[cfg(test)]
mod tests;
