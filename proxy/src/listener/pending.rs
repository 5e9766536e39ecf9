//! An accepted socket until its terminal filter has it: listener filters, hand-off to the listener that its client
//! meant, filter chain, the transport's handshake, network filters. Envoy's `ActiveTcpSocket`.
//!
//! A listener without listener filters whose chain is plain does none of this: its connections go from the accept loop
//! to the terminal filter.

use std::any::Any;
use std::future::poll_fn;
use std::rc::Rc;

use nuncio_core::net::{ConnectionInfo, Io};
use nuncio_core::network::{ListenerFilter, ListenerStep, TransportFailure};
use nuncio_core::stats::GaugeGuard;
use nuncio_core::stats::lists::listener as names;
use nuncio_core::stats::lists::listener::Listener;
use nuncio_core::stream_info::ResponseFlag;
use tokio::time::Instant;

use super::active::{Place, Serving};
use super::filter_chain::FilterChain;
use super::read_filters::{Closed, ReadFilters};
use crate::network::Connection;

/// A socket that is not yet a connection of its listener.
pub(super) struct Pending {
    pub io: Io,
    pub preread: Vec<u8>,
    pub early: Early,
    pub place: Place,
    /// A listener that it was handed to does not hand it on.
    pub may_hand_off: bool,
}

/// What is known of the socket; if it ends before there is a connection, that ends in the listener's log.
pub(super) struct Early {
    serving: Rc<Serving>,
    info: Option<Rc<ConnectionInfo>>,
    since: Instant,
    no_chain: bool,
}

/// The socket ends here.
struct Over;

// === impl Early ===

impl Early {
    pub fn new(serving: &Rc<Serving>, info: ConnectionInfo, since: Instant) -> Self {
        Self { serving: serving.clone(), info: Some(Rc::new(info)), since, no_chain: false }
    }

    fn info(&mut self) -> &mut ConnectionInfo {
        let info = self.info.as_mut().expect("taken only where the value is given away");
        Rc::get_mut(info).expect("shared only for as long as its network filters are asked about it")
    }

    fn shared(&self) -> &Rc<ConnectionInfo> {
        self.info.as_ref().expect("taken only where the value is given away")
    }

    fn into_shared(mut self) -> Rc<ConnectionInfo> {
        self.info.take().expect("taken only where the value is given away")
    }

    fn into_info(self) -> ConnectionInfo {
        Rc::into_inner(self.into_shared()).expect("shared only for as long as its network filters are asked about it")
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if let Some(info) = self.info.take() {
            let flag = self.no_chain.then_some(ResponseFlag::NoRouteFound);
            self.serving.log_early_end(&info, self.since, flag);
        }
    }
}

// === impl Pending ===

impl Pending {
    /// The whole way. The listener filters have the time that the listener gives them.
    pub async fn run(mut self) {
        let serving = self.early.serving.clone();
        let active = serving.counts.listener.gauge(names::DOWNSTREAM_PRE_CX_ACTIVE);
        let looked = match serving.config.listener_filters_timeout {
            None => Some(self.look().await),
            Some(time) => tokio::time::timeout(time, self.look()).await.ok(),
        };
        match looked {
            Some(Ok(())) => {}
            Some(Err(Over)) => return,
            None => {
                serving.counts.listener.inc(names::DOWNSTREAM_PRE_CX_TIMEOUT);
                if !serving.config.continue_on_listener_filters_timeout {
                    return;
                }
            }
        }
        self.place_in_listener(&serving, active).await;
    }

    /// The listener filters, in their order.
    async fn look(&mut self) -> Result<(), Over> {
        let serving = self.early.serving.clone();
        for at in 0..serving.listener_filters.len() {
            let Some(mut filter) = serving.listener_filters.make(at, self.early.info()) else { continue };
            let mut step = filter.on_accept(&self.io, self.early.info());
            // What a filter before it read is there already.
            if step == ListenerStep::NeedData && !self.preread.is_empty() {
                step = self.show(&mut *filter);
            }
            loop {
                match step {
                    ListenerStep::Continue { consumed } => {
                        self.preread.drain(..consumed.min(self.preread.len()));
                        break;
                    }
                    ListenerStep::Close => return Err(Over),
                    ListenerStep::NeedData => step = self.more(&serving, &mut *filter).await?,
                }
            }
        }
        Ok(())
    }

    fn show(&mut self, filter: &mut dyn ListenerFilter) -> ListenerStep {
        let seen = self.preread.len().min(filter.max_read_bytes());
        let step = filter.on_data(&self.preread[..seen], self.early.info());
        // It has all it may have and is not content.
        if step == ListenerStep::NeedData && seen == filter.max_read_bytes() { ListenerStep::Close } else { step }
    }

    async fn more(&mut self, serving: &Serving, filter: &mut dyn ListenerFilter) -> Result<ListenerStep, Over> {
        let room = filter.max_read_bytes().saturating_sub(self.preread.len());
        let buffers = &serving.worker.buffers;
        let preread = &mut self.preread;
        let io = &mut self.io;
        let read = poll_fn(|cx| {
            let mut scratch = buffers.take_scratch();
            let limit = room.min(scratch.len());
            let read = io.poll_read(cx, &mut scratch[..limit]).map_ok(|n| {
                preread.extend_from_slice(&scratch[..n]);
                n
            });
            buffers.give_scratch(scratch);
            read
        });
        match read.await {
            Ok(0) => {
                serving.counts.listener.inc(names::DOWNSTREAM_LISTENER_FILTER_REMOTE_CLOSE);
                filter.on_close();
                Err(Over)
            }
            Ok(_) => Ok(self.show(filter)),
            Err(_) => {
                serving.counts.listener.inc(names::DOWNSTREAM_LISTENER_FILTER_ERROR);
                filter.on_close();
                Err(Over)
            }
        }
    }

    /// From here on it is a connection, of this listener or of the one that its client meant.
    async fn place_in_listener(mut self, serving: &Rc<Serving>, active: GaugeGuard<Listener>) {
        let info = self.early.info();
        if info.transport_protocol.is_empty() {
            info.transport_protocol = "raw_buffer";
        }
        if self.may_hand_off
            && serving.config.use_original_dst
            && info.local_restored
            && let Some(other) = serving.listener_at(&info.local)
        {
            let Self { io, preread, early, .. } = self;
            let since = early.since;
            let mut info = early.into_info();
            // It is asked again what it is, by that listener's filters.
            info.transport_protocol = "";
            other.take_over(io, preread, info, since);
            return;
        }
        let Some(chain) = serving.chains.find(info).cloned() else {
            serving.counts.listener.inc(names::NO_FILTER_CHAIN_MATCH);
            self.early.no_chain = true;
            return;
        };
        drop(active);
        let Self { io, preread, early, place, .. } = self;
        connect(serving.clone(), chain, io, preread, early, place).await;
    }
}

/// The connection's way through its chain, to the terminal filter.
pub(super) async fn connect(
    serving: Rc<Serving>,
    chain: Rc<FilterChain>,
    io: Io,
    preread: Vec<u8>,
    mut early: Early,
    place: Place,
) {
    let since = early.since;
    early.info().filter_chain_name = Some(chain.name.clone());
    early.info().filter_chain_metadata = chain.metadata.clone();
    let accepted = serving.counts.accepted(since);
    let mut filters = ReadFilters::new(&chain.filters);
    // As in Envoy before the handshake: who is one too many shall not cost one.
    let asked = filters.on_new_connection(early.shared()).await;
    let shaken = match (asked, &chain.transport_socket) {
        (Err(Closed), _) => Err(Over),
        (Ok(()), None) => Ok((io, preread)),
        (Ok(()), Some(_)) => shake_hands(&serving, &chain, io, preread, early.info()).await.map(|io| (io, Vec::new())),
    };
    let info = early.into_shared();
    let log = serving.log_at_end(&info, since);
    let record = log.as_ref().map(|log| log.record());
    let Some(terminal) = &chain.terminal else { return };
    let refuse = |record| terminal.refused(&info, record);
    let Ok((io, preread)) = shaken else { return refuse(record) };
    let limit = serving.config.info.buffer_limit as usize;
    let (io, preread, filters) = filters.into_stream(io, preread, info.clone(), limit);
    let number = place.number();
    let guards: Box<dyn Any> = Box::new((accepted, log, filters, place));
    let drain = serving.drain.clone();
    serving.counts.started(number, terminal.serve(Connection { io, info, preread, drain, record, guards }));
}

/// In the time that the chain gives. What went wrong is told to the logs.
async fn shake_hands(
    serving: &Serving,
    chain: &FilterChain,
    io: Io,
    preread: Vec<u8>,
    info: &mut ConnectionInfo,
) -> Result<Io, Over> {
    let Some(socket) = &chain.transport_socket else { return Ok(io) };
    let shaken = socket.accept(io, preread, info);
    let shaken = match chain.transport_socket_connect_timeout {
        None => Some(shaken.await),
        Some(time) => tokio::time::timeout(time, shaken).await.ok(),
    };
    match shaken {
        Some(Ok(io)) => return Ok(io),
        Some(Err(TransportFailure(reason))) => *info.transport_failure.borrow_mut() = Some(reason.into_owned()),
        None => {
            serving.counts.listener.inc(names::DOWNSTREAM_CX_TRANSPORT_SOCKET_CONNECT_TIMEOUT);
            *info.transport_failure.borrow_mut() = Some("connect timeout".to_owned());
            *info.local_close_reason.borrow_mut() = Some("transport_socket_timeout".into());
            *info.termination_details.borrow_mut() = Some("transport socket timeout was reached".to_owned());
        }
    }
    Err(Over)
}
