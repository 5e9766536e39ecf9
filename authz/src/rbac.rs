//! Role-based access control: policies over what is known of a request or a connection. Pure: attributes in, decision
//! out.
//!
//! - `rule`: and, or, not over tests
//! - `permission`, `principal`: what is done, and by whom: the two kinds of rule that a policy has
//! - `attributes`: what is known
//! - `engine`: policies in the order of their names, and the action
//! - `tally`: what is counted of decisions, and left of them in metadata

mod attributes;
mod engine;
mod permission;
mod principal;
mod rule;
mod tally;

pub(crate) use attributes::Attributes;
pub(crate) use engine::Engines;
pub(crate) use tally::{Scopes, Tally, scopes, told};

use nuncio_api::support::Entry;

/// What is honoured of the messages read here.
pub(crate) static SUPPORTED: &[&Entry] = &[
    &engine::RBAC,
    &engine::POLICY,
    &permission::PERMISSION,
    &permission::SET,
    &permission::PORTS,
    &principal::PRINCIPAL,
    &principal::SET,
    &principal::AUTHENTICATED,
    &principal::MTLS,
    &rule::SOURCED,
];
