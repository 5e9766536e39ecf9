//! `config.common.mutation_rules.v3.HeaderMutationRules`: which headers a service may change.

use nuncio_api::pb::envoy::config::common::mutation_rules::v3 as pb;
use nuncio_api::pb::google::protobuf::BoolValue;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::matcher::Regex;

supports!(pub(super) RULES = "envoy.config.common.mutation_rules.v3.HeaderMutationRules" {
    allow_all_routing, allow_envoy, disallow_system, disallow_all, allow_expression, disallow_expression,
    disallow_is_error
});

#[derive(Debug)]
pub(super) struct MutationRules {
    allow_all_routing: bool,
    allow_envoy: bool,
    disallow_system: bool,
    disallow_all: bool,
    allow: Option<Regex>,
    disallow: Option<Regex>,
    disallow_is_error: bool,
}

/// What is to be done with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Set,
    Append,
    Remove,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    Granted,
    Ignored,
    /// The whole answer is refused.
    Failed,
}

impl MutationRules {
    pub(super) fn from_proto(proto: &pb::HeaderMutationRules) -> Result<Self, ConfigError> {
        let set = |value: &Option<BoolValue>| value.as_ref().is_some_and(|v| v.value);
        let regex = |field: &str, proto: &Option<_>| {
            proto.as_ref().map(|r| Regex::from_proto(r).map_err(|e| e.within(field))).transpose()
        };
        Ok(Self {
            allow_all_routing: set(&proto.allow_all_routing),
            allow_envoy: set(&proto.allow_envoy),
            disallow_system: set(&proto.disallow_system),
            disallow_all: set(&proto.disallow_all),
            allow: regex("allow_expression", &proto.allow_expression)?,
            disallow: regex("disallow_expression", &proto.disallow_expression)?,
            disallow_is_error: set(&proto.disallow_is_error),
        })
    }

    /// `name` in lower case, `host` as `:authority`.
    pub(super) fn check(&self, change: Change, name: &str) -> Permission {
        match (self.allows(change, name), self.disallow_is_error) {
            (true, _) => Permission::Granted,
            (false, false) => Permission::Ignored,
            (false, true) => Permission::Failed,
        }
    }

    fn allows(&self, change: Change, name: &str) -> bool {
        let spelled = |regex: &Regex| regex.matches(name.as_bytes()) || name == ":authority" && regex.matches(b"host");
        let system = name.starts_with(':');
        if self.disallow.as_ref().is_some_and(spelled) || system && change != Change::Set {
            return false;
        }
        if self.allow.as_ref().is_some_and(spelled) {
            return true;
        }
        if self.disallow_all || self.disallow_system && system {
            return false;
        }
        match name {
            ":authority" | ":scheme" | ":method" => self.allow_all_routing,
            _ => self.allow_envoy || !name.starts_with("x-envoy"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(proto: pb::HeaderMutationRules) -> MutationRules {
        MutationRules::from_proto(&proto).unwrap()
    }

    // By the comments of the message, and recorded from Envoy 1.40 for the defaults.
    #[test]
    fn routing_and_envoys_own_headers_are_protected_by_default() {
        let plain = rules(pb::HeaderMutationRules::default());
        for (change, name, allowed) in [
            (Change::Set, ":path", true),
            (Change::Set, ":authority", false),
            (Change::Set, ":method", false),
            (Change::Set, "x-envoy-foo", false),
            (Change::Append, ":path", false),
            (Change::Remove, ":path", false),
            (Change::Set, "x-any", true),
        ] {
            assert_eq!(plain.allows(change, name), allowed, "{change:?} {name}");
        }
        let yes = Some(BoolValue { value: true });
        let all = rules(pb::HeaderMutationRules { allow_all_routing: yes, allow_envoy: yes, ..Default::default() });
        assert!(all.allows(Change::Set, ":authority") && all.allows(Change::Set, "x-envoy-foo"));
        let none = rules(pb::HeaderMutationRules { disallow_all: yes, disallow_is_error: yes, ..Default::default() });
        assert_eq!(none.check(Change::Set, "x-any"), Permission::Failed);
    }
}
