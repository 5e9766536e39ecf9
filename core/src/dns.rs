//! Questions to the domain name system: one name, one family of addresses, one answer. The difference that matters most
//! is made here: an authority that says "there are none" ([`DnsAnswer`] without addresses) and nobody having answered
//! ([`DnsFailure`]). Only the first may take hosts away.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

/// Which records are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IpFamily {
    V4,
    V6,
}

/// What an authority said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsAnswer {
    /// In the order of the answer; none if the name or its records do not exist.
    pub addresses: Vec<IpAddr>,
    /// The least over the whole chain of aliases; none if there are no records.
    pub ttl: Option<Duration>,
}

/// Nobody answered, or with an error, or with nonsense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsFailure {
    /// No answer in time.
    Timeout,
    /// The server says that it failed or refuses.
    Server(Arc<str>),
    /// It cannot be asked, or its answer cannot be understood.
    Transport(Arc<str>),
}

impl fmt::Display for DnsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("no name server answered in time"),
            Self::Server(why) => write!(f, "the name server answered: {why}"),
            Self::Transport(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for DnsFailure {}

/// Answers questions, each at once or later; dropping the future takes the question back.
pub trait DnsResolver {
    /// An answer that is no older than `max_age` will do: who asks the same shortly after each other is told the same.
    fn resolve(
        &self,
        name: &Arc<str>,
        family: IpFamily,
        max_age: Duration,
    ) -> LocalBoxFuture<'static, Result<Arc<DnsAnswer>, DnsFailure>>;
}
