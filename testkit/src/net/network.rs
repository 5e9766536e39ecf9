//! Addresses: who listens where, and how connecting goes.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::{pending, poll_fn};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use nuncio_core::net::{Accept, Address, Connect, ConnectOptions, Connected};
use tokio::time::sleep;

use super::pipe::{End, Link, Trouble, pair};

/// How connecting to an address goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Route {
    /// To whoever listens there; refused if nobody does.
    #[default]
    Open,
    Refused,
    /// Nobody answers, ever.
    Silent,
    /// After this long.
    Slow(Duration),
}

/// A network; clones are the same one.
#[derive(Clone, Default)]
pub struct Network(Rc<RefCell<Inner>>);

#[derive(Default)]
struct Inner {
    listeners: HashMap<Address, Rc<RefCell<Queue>>>,
    routes: HashMap<Address, Route>,
    links: HashMap<Address, Link>,
    made: HashMap<Address, Vec<Trouble>>,
    /// Connection attempts to each address, also those that failed.
    attempts: HashMap<Address, usize>,
    next_port: u16,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(End, Address)>,
    waker: Option<Waker>,
    closed: bool,
}

impl Network {
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens on `address`; nobody may listen there already.
    pub fn listen(&self, address: Address) -> Listening {
        let queue = Rc::new(RefCell::new(Queue::default()));
        let before = self.0.borrow_mut().listeners.insert(address.clone(), Rc::clone(&queue));
        assert!(before.is_none_or(|q| q.borrow().closed), "{address} is taken");
        Listening { address, queue }
    }

    /// How connecting to `address` goes from now on.
    pub fn route(&self, address: &Address, route: Route) {
        self.0.borrow_mut().routes.insert(address.clone(), route);
    }

    /// How later connections to `address` carry bytes.
    pub fn link(&self, address: &Address, link: Link) {
        self.0.borrow_mut().links.insert(address.clone(), link);
    }

    /// Every connection to `address` so far, oldest first.
    pub fn troubles(&self, address: &Address) -> Vec<Trouble> {
        self.0.borrow().made.get(address).cloned().unwrap_or_default()
    }

    /// How often somebody connected to `address`, or tried to.
    pub fn attempts(&self, address: &Address) -> usize {
        self.0.borrow().attempts.get(address).copied().unwrap_or(0)
    }

    /// Connects from a fresh port of 10.9.9.9, or from the given address.
    pub async fn connect_from(&self, source: Option<Address>, to: &Address) -> io::Result<(End, Address)> {
        let route = {
            let mut inner = self.0.borrow_mut();
            *inner.attempts.entry(to.clone()).or_default() += 1;
            inner.routes.get(to).copied().unwrap_or_default()
        };
        match route {
            Route::Open => {}
            Route::Refused => return Err(io::ErrorKind::ConnectionRefused.into()),
            Route::Silent => pending().await,
            Route::Slow(delay) => sleep(delay).await,
        }
        let mut inner = self.0.borrow_mut();
        let Some(queue) = inner.listeners.get(to).filter(|q| !q.borrow().closed).cloned() else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let (here, there) = pair(inner.links.get(to).copied().unwrap_or_default());
        inner.next_port = inner.next_port.checked_add(1).unwrap_or(1);
        let port = inner.next_port;
        let source =
            source.unwrap_or(Address::Ip(SocketAddr::from((Ipv4Addr::new(10, 9, 9, 9), 30_000 + port % 30_000))));
        inner.made.entry(to.clone()).or_default().push(here.trouble());
        let mut queue = queue.borrow_mut();
        queue.waiting.push_back((there, source.clone()));
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
        Ok((here, source))
    }

    pub async fn connect_to(&self, to: &Address) -> io::Result<End> {
        self.connect_from(None, to).await.map(|(end, _)| end)
    }
}

impl Connect for Network {
    fn connect(&self, address: &Address, options: &ConnectOptions) -> LocalBoxFuture<'static, io::Result<Connected>> {
        let (network, to, source) = (self.clone(), address.clone(), options.source.clone());
        Box::pin(async move {
            let (end, local) = network.connect_from(source, &to).await?;
            Ok(Connected { io: end.into_io(), local: Some(local), remote: to })
        })
    }
}

/// A listening socket. Dropped, connecting is refused again.
pub struct Listening {
    address: Address,
    queue: Rc<RefCell<Queue>>,
}

impl Listening {
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<(End, Address)> {
        let mut queue = self.queue.borrow_mut();
        match queue.waiting.pop_front() {
            Some(accepted) => Poll::Ready(accepted),
            None => {
                queue.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The next connection, and where it comes from.
    pub async fn accept(&mut self) -> (End, Address) {
        poll_fn(|cx| self.poll_end(cx)).await
    }
}

impl Accept for Listening {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Connected>> {
        self.poll_end(cx).map(|(end, remote)| {
            let local = Some(self.address.clone());
            Ok(Connected { io: end.into_io(), local, remote })
        })
    }

    fn local_address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut queue = self.queue.borrow_mut();
        queue.closed = true;
        queue.waiting.clear();
    }
}
