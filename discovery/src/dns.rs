//! Names to addresses.
//!
//! - [`config`]: which servers are asked and how, from the several messages in which Envoy says it
//! - [`family`]: IPv4, IPv6, one before the other or both: one lookup of a name out of one or two questions
//! - [`refresh`]: when the next question is due
//! - `shared`: one question for all who ask it at about the same time
//! - `resolver`: the protocol, by a library that lives nowhere else

pub mod config;
pub mod family;
pub mod refresh;
mod resolver;
#[cfg(test)]
pub(crate) mod scripted;
mod shared;

use std::rc::Rc;

use nuncio_core::dns::DnsResolver;

pub use config::ResolverConfig;
pub use shared::{Reach, SharedResolvers};

/// Hands out resolvers by configuration; without one, what the bootstrap says.
pub trait DnsResolvers {
    fn resolver(&self, config: Option<&Rc<ResolverConfig>>) -> Rc<dyn DnsResolver>;
}
