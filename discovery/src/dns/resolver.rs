//! Questions over the network. hickory asks the servers, again and over TCP where it must; what its answers mean is
//! decided here. An authority's "there are none" is told apart from everything else: errors, silence, answers to other
//! questions, chains of aliases that never end. After nobody answered, the next question gets fresh sockets and the
//! system's configuration as it is then.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolverConfig as Servers, ResolverOpts, ServerOrderingStrategy,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, DnsHandle, NetError, RetryDnsHandle};
use hickory_resolver::proto::op::{DnsRequestOptions, DnsResponse, Query};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::system_conf::read_system_conf;
use hickory_resolver::{Hosts, NameServerPool, PoolContext, TlsConfig};
use nuncio_core::dns::{DnsAnswer, DnsFailure, DnsResolver, IpFamily};

use super::ResolverConfig;

/// More aliases than this in a row lead nowhere.
const LONGEST_CHAIN: usize = 16;

/// More addresses of one name are not taken: a name server must not fill the memory.
const MOST_ADDRESSES: usize = 1024;

/// A resolver of one configuration.
pub(super) struct Resolver {
    config: Rc<ResolverConfig>,
    /// None before the first question and after a failure.
    channel: Rc<RefCell<Option<Rc<Channel>>>>,
}

/// What questions go through.
struct Channel {
    pool: RetryDnsHandle<NameServerPool<TokioRuntimeProvider>>,
    options: DnsRequestOptions,
    hosts: Hosts,
    search: Vec<Name>,
    ndots: usize,
    deadline: Duration,
}

type Outcome = Result<Arc<DnsAnswer>, DnsFailure>;

impl Resolver {
    pub(super) fn new(config: Rc<ResolverConfig>) -> Self {
        Self { config, channel: Rc::default() }
    }

    fn channel(&self) -> Result<Rc<Channel>, DnsFailure> {
        let mut channel = self.channel.borrow_mut();
        if let Some(channel) = &*channel {
            return Ok(channel.clone());
        }
        let opened = Rc::new(Channel::open(&self.config)?);
        *channel = Some(opened.clone());
        Ok(opened)
    }
}

impl DnsResolver for Resolver {
    fn resolve(&self, name: &Arc<str>, family: IpFamily, _: Duration) -> LocalBoxFuture<'static, Outcome> {
        let channel = match self.channel() {
            Ok(channel) => channel,
            Err(failure) => return Box::pin(std::future::ready(Err(failure))),
        };
        let (name, current) = (name.clone(), self.channel.clone());
        Box::pin(async move {
            let asked = tokio::time::timeout(channel.deadline, channel.resolve(&name, family)).await;
            let outcome = asked.unwrap_or(Err(DnsFailure::Timeout));
            if matches!(outcome, Err(DnsFailure::Timeout | DnsFailure::Transport(_))) {
                let mut current = current.borrow_mut();
                // Not one that another question has renewed already.
                if current.as_ref().is_some_and(|current| Rc::ptr_eq(current, &channel)) {
                    *current = None;
                }
            }
            outcome.map(Arc::new)
        })
    }
}

impl Channel {
    fn open(config: &ResolverConfig) -> Result<Self, DnsFailure> {
        let system = read_system_conf();
        let mut options = ResolverOpts::default();
        let (mut search, mut ndots) = (Vec::new(), 1);
        if let Ok((system, system_options)) = &system
            && !config.no_search_domain
        {
            search = system.search().to_vec();
            ndots = system_options.ndots;
        }
        let servers = if config.servers.is_empty() || config.servers_as_fallback && system.is_ok() {
            let (system, _) = system.map_err(|e| DnsFailure::Transport(format!("no name servers: {e}").into()))?;
            only_tcp(system, config.tcp)
        } else {
            config.servers.iter().map(|address| server(address.ip(), address.port(), config.tcp)).collect()
        };
        options.timeout = config.query_timeout;
        options.attempts = usize::try_from(config.query_tries.saturating_sub(1)).unwrap_or(0);
        options.case_randomization = true;
        if config.rotate {
            options.server_ordering_strategy = ServerOrderingStrategy::RoundRobin;
        }
        let mut request = DnsRequestOptions::default();
        request.use_edns = true;
        request.edns_payload_len = config.edns_payload.unwrap_or(options.edns_payload_len);
        request.case_randomization = true;
        let attempts = options.attempts;
        let tls = TlsConfig::new().map_err(|e| DnsFailure::Transport(e.to_string().into()))?;
        let context = Arc::new(PoolContext::new(options, tls));
        let pool = NameServerPool::from_config(servers, context, TokioRuntimeProvider::new());
        Ok(Self {
            pool: RetryDnsHandle::new(pool, attempts),
            options: request,
            hosts: Hosts::from_system().unwrap_or_default(),
            search,
            ndots,
            deadline: config.query_timeout.saturating_mul(config.query_tries.max(1)),
        })
    }

    /// The name as it is and with the search domains, in the order that the system's configuration asks for. The first
    /// that has addresses wins; one that fails ends the search, because it might have had them.
    async fn resolve(&self, name: &str, family: IpFamily) -> Result<DnsAnswer, DnsFailure> {
        let parsed = Name::from_utf8(name).map_err(|e| DnsFailure::Transport(format!("{name}: {e}").into()))?;
        if let Some(answer) = loopback(&parsed, family) {
            return Ok(answer);
        }
        let mut empty = DnsAnswer::default();
        for candidate in candidates(parsed, &self.search, self.ndots) {
            let answer = self.ask(candidate, family).await?;
            if !answer.addresses.is_empty() {
                return Ok(answer);
            }
            empty.ttl = empty.ttl.or(answer.ttl);
        }
        Ok(empty)
    }

    /// One name, to the end of its chain of aliases.
    async fn ask(&self, name: Name, family: IpFamily) -> Result<DnsAnswer, DnsFailure> {
        let wanted = match family {
            IpFamily::V4 => RecordType::A,
            IpFamily::V6 => RecordType::AAAA,
        };
        if let Some(found) = self.hosts.lookup_static_host(&Query::query(name.clone(), wanted)) {
            let addresses = found.answers().iter().filter_map(|record| record.data.ip_addr()).collect();
            return Ok(DnsAnswer { addresses, ttl: None });
        }
        let mut chain = Chain { asked: name.clone(), now: name, seen: HashSet::new(), ttl: u32::MAX };
        loop {
            let query = Query::query(chain.now.clone(), wanted);
            let response = match self.pool.lookup(query, self.options).next().await {
                Some(Ok(response)) => response,
                Some(Err(NetError::Dns(DnsError::NoRecordsFound(_)))) => return Ok(DnsAnswer::default()),
                Some(Err(error)) => return Err(failure(&error)),
                None => return Err(DnsFailure::Timeout),
            };
            if let Some(answer) = chain.follow(&response, wanted)? {
                return Ok(answer);
            }
        }
    }
}

/// What is asked for a name, in order (resolv.conf(5)): with the search domains first, unless it has as many dots as
/// `ndots` says; a name that ends in a dot only as it is.
fn candidates(name: Name, search: &[Name], ndots: usize) -> Vec<Name> {
    if name.is_fqdn() {
        return vec![name];
    }
    let dots = usize::from(name.num_labels()).saturating_sub(1);
    let mut as_it_is = name.clone();
    as_it_is.set_fqdn(true);
    let mut candidates: Vec<Name> =
        search.iter().filter_map(|domain| name.clone().append_domain(domain).ok()).collect();
    let at = if dots >= ndots { 0 } else { candidates.len() };
    candidates.insert(at, as_it_is);
    candidates
}

/// From a name over its aliases.
struct Chain {
    asked: Name,
    now: Name,
    seen: HashSet<Name>,
    ttl: u32,
}

impl Chain {
    /// The answer, or none if the last alias must be asked for.
    fn follow(&mut self, response: &DnsResponse, wanted: RecordType) -> Result<Option<DnsAnswer>, DnsFailure> {
        let from = self.now.clone();
        loop {
            let own = |record: &&Record| record.name == self.now;
            let alias = response.answers.iter().filter(own).find_map(|record| match &record.data {
                RData::CNAME(target) => Some((target.0.clone(), record.ttl)),
                _ => None,
            });
            let Some((target, ttl)) = alias else { break };
            if !self.seen.insert(self.now.clone()) || self.seen.len() > LONGEST_CHAIN || target == self.asked {
                let text = format!("the aliases of {} do not end", self.asked);
                return Err(DnsFailure::Transport(text.into()));
            }
            self.ttl = self.ttl.min(ttl);
            self.now = target;
            self.now.set_fqdn(true);
        }
        let of_type = |record: &&Record| record.name == self.now && record.record_type() == wanted;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for record in response.answers.iter().filter(of_type) {
            self.ttl = self.ttl.min(record.ttl);
            addresses.extend(record.data.ip_addr());
        }
        if addresses.len() > MOST_ADDRESSES {
            tracing::warn!(name = %self.asked, "{} addresses are too many; the first are used", addresses.len());
            addresses.truncate(MOST_ADDRESSES);
        }
        if !addresses.is_empty() {
            // RFC 2181, 8: with the highest bit set it counts as zero.
            let ttl = if self.ttl > i32::MAX.unsigned_abs() { 0 } else { self.ttl };
            return Ok(Some(DnsAnswer { addresses, ttl: Some(Duration::from_secs(ttl.into())) }));
        }
        if self.now != from {
            return Ok(None);
        }
        // Records there are, but none of this name: no one has said that it has none.
        Err(DnsFailure::Transport(format!("the answer does not speak of {}", self.now).into()))
    }
}

/// RFC 6761, 6.3: these are not asked for.
fn loopback(name: &Name, family: IpFamily) -> Option<DnsAnswer> {
    let last = name.iter().next_back()?;
    if !last.eq_ignore_ascii_case(b"localhost") {
        return None;
    }
    let address = match family {
        IpFamily::V4 => IpAddr::from([127, 0, 0, 1]),
        IpFamily::V6 => IpAddr::from(std::net::Ipv6Addr::LOCALHOST),
    };
    Some(DnsAnswer { addresses: vec![address], ttl: None })
}

fn server(ip: IpAddr, port: u16, tcp: bool) -> NameServerConfig {
    let mut server = if tcp { NameServerConfig::tcp(ip) } else { NameServerConfig::udp_and_tcp(ip) };
    server.connections.iter_mut().for_each(|connection: &mut ConnectionConfig| connection.port = port);
    server
}

fn only_tcp(system: Servers, tcp: bool) -> Vec<NameServerConfig> {
    let (_, _, servers) = system.into_parts();
    if !tcp {
        return servers;
    }
    servers.into_iter().map(|known| NameServerConfig::tcp(known.ip)).collect()
}

fn failure(error: &NetError) -> DnsFailure {
    match error {
        NetError::Timeout => DnsFailure::Timeout,
        NetError::Dns(DnsError::ResponseCode(code)) => DnsFailure::Server(code.to_str().into()),
        other => DnsFailure::Transport(other.to_string().into()),
    }
}

#[cfg(test)]
mod tests;
