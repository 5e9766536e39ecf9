//! Listener filters: the list of them, and when each is left out.

mod http_inspector;
mod original_dst;
mod original_src;
mod proxy_protocol;
#[cfg(test)]
mod testing;
mod tls_inspector;

use std::sync::Arc;

use nuncio_api::pb::envoy::config::listener::v3::{
    Listener, ListenerFilterChainMatchPredicate as Message, listener_filter,
    listener_filter_chain_match_predicate::Rule,
};
use nuncio_api::support::Entry;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::ConnectionInfo;
use nuncio_core::network::{ListenerFilter, ListenerFilterConfig, ListenerFilterFactory, MakeListenerFilter};

use super::filter_chain::unregistered;
use crate::network::NetworkExtensions;

/// The listener filters of this folder.
pub fn factories() -> Vec<Box<dyn ListenerFilterFactory>> {
    vec![
        Box::new(http_inspector::Factory),
        Box::new(original_dst::Factory),
        Box::new(original_src::Factory),
        Box::new(proxy_protocol::Factory),
        Box::new(tls_inspector::Factory),
    ]
}

/// What is honoured of the messages read in this folder.
pub static SUPPORTED: &[&[&Entry]] = &[
    http_inspector::SUPPORTED,
    original_dst::SUPPORTED,
    original_src::SUPPORTED,
    proxy_protocol::SUPPORTED,
    tls_inspector::SUPPORTED,
];

/// A checked listener filter.
pub struct ListenerFilterEntry {
    config: Arc<dyn ListenerFilterConfig>,
    /// `filter_disabled`.
    disabled: Option<Predicate>,
}

/// The listener filters of one listener, on one worker.
pub struct ListenerFilters(Vec<(MakeListenerFilter, Option<Predicate>)>);

/// `ListenerFilterChainMatchPredicate`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Predicate {
    Any(Vec<Predicate>),
    All(Vec<Predicate>),
    Not(Box<Predicate>),
    Always,
    /// From the first up to, and without, the second.
    DestinationPort(i32, i32),
}

/// Reads `listener_filters`. Paths of errors are relative to the listener.
pub(super) fn check(
    message: &Listener,
    extensions: &NetworkExtensions,
    context: &FactoryContext<'_>,
) -> Result<Vec<ListenerFilterEntry>, Vec<ConfigError>> {
    let mut errors = Vec::new();
    let mut entries = Vec::new();
    for (i, filter) in message.listener_filters.iter().enumerate() {
        let any = match &filter.config_type {
            Some(listener_filter::ConfigType::TypedConfig(any)) => any.clone(),
            Some(listener_filter::ConfigType::ConfigDiscovery(_)) => {
                errors.push(ConfigError::new(format!("listener_filters[{i}].config_discovery"), "is not implemented"));
                continue;
            }
            None => Default::default(),
        };
        let config = nuncio_api::any::open(&any).map_err(|e| vec![e]).and_then(|opened| {
            match extensions.listener_filter(&opened.type_name) {
                Some(factory) => factory.check(&opened.bytes, context),
                None => Err(vec![unregistered(&filter.name, &opened.type_name)]),
            }
        });
        match config {
            Ok(config) => {
                let disabled = filter.filter_disabled.as_ref().map(Predicate::read);
                entries.push(ListenerFilterEntry { config, disabled });
            }
            Err(e) => {
                let path = format!("listener_filters[{i}]");
                errors.extend(e.into_iter().map(|e| e.within("typed_config").within(&path)));
            }
        }
    }
    if errors.is_empty() { Ok(entries) } else { Err(errors) }
}

// === impl ListenerFilters ===

impl ListenerFilters {
    pub fn new(entries: &[ListenerFilterEntry], worker: &WorkerContext) -> Self {
        Self(entries.iter().map(|entry| (entry.config.on_worker(worker), entry.disabled.clone())).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The filter at that place for one connection, unless it is disabled for it.
    pub fn make(&self, place: usize, connection: &ConnectionInfo) -> Option<Box<dyn ListenerFilter>> {
        let (make, disabled) = self.0.get(place)?;
        let disabled = disabled.as_ref().is_some_and(|predicate| predicate.holds(connection));
        if disabled { None } else { Some(make()) }
    }
}

// === impl Predicate ===

impl Predicate {
    /// The annotations of the message ask for one rule.
    fn read(message: &Message) -> Self {
        let all = |rules: &[Message]| rules.iter().map(Self::read).collect();
        match &message.rule {
            Some(Rule::OrMatch(set)) => Self::Any(all(&set.rules)),
            Some(Rule::AndMatch(set)) => Self::All(all(&set.rules)),
            Some(Rule::NotMatch(rule)) => Self::Not(Box::new(Self::read(rule))),
            Some(Rule::DestinationPortRange(range)) => Self::DestinationPort(range.start, range.end),
            Some(Rule::AnyMatch(_)) | None => Self::Always,
        }
    }

    fn holds(&self, connection: &ConnectionInfo) -> bool {
        match self {
            Self::Any(rules) => rules.iter().any(|rule| rule.holds(connection)),
            Self::All(rules) => rules.iter().all(|rule| rule.holds(connection)),
            Self::Not(rule) => !rule.holds(connection),
            Self::Always => true,
            Self::DestinationPort(start, end) => {
                connection.local.port().is_some_and(|port| (*start..*end).contains(&i32::from(port)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::envoy::config::listener::v3::listener_filter_chain_match_predicate::MatchSet;
    use nuncio_api::pb::envoy::r#type::v3::Int32Range;
    use nuncio_core::net::Address;

    #[test]
    fn a_filter_is_left_out_by_the_port_that_the_client_meant() {
        let rule = |rule| Message { rule: Some(rule) };
        let range = |start, end| rule(Rule::DestinationPortRange(Int32Range { start, end }));
        let set = MatchSet { rules: vec![range(80, 81), range(8000, 9000)] };
        let predicate = Predicate::read(&rule(Rule::NotMatch(Box::new(rule(Rule::OrMatch(set))))));
        let connection = |port| {
            let address = |port| Address::Ip(([10, 0, 0, 1], port).into());
            ConnectionInfo::new(0, address(1), address(port))
        };
        let left_out = [79, 80, 81, 7999, 8000, 8999, 9000].map(|port| predicate.holds(&connection(port)));
        assert_eq!(left_out, [true, false, true, true, false, false, true]);
    }
}
