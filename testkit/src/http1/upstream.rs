//! Upstreams that answer by a script and remember what they were asked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use nuncio_core::net::Address;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::message::{Message, Otherwise, Reader};
use crate::net::{Listening, Network};

/// What an upstream does with a request.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    /// One piece: with its length. Several: chunked.
    pub body: Vec<Vec<u8>>,
    pub trailers: Vec<(String, String)>,
    /// Before anything is sent.
    pub after: Duration,
    /// Between the pieces of the body.
    pub between: Duration,
    /// Sent as it is, instead of all of that.
    pub raw: Option<Vec<u8>>,
    pub then: Then,
}

/// What an upstream does behind a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    KeepAlive,
    Close,
    Reset,
    /// Says nothing more and keeps the connection.
    Hang,
}

impl Default for Reply {
    fn default() -> Self {
        Self {
            status: 200,
            fields: Vec::new(),
            body: vec![Vec::new()],
            trailers: Vec::new(),
            after: Duration::ZERO,
            between: Duration::ZERO,
            raw: None,
            then: Then::KeepAlive,
        }
    }
}

impl Reply {
    pub fn text(body: impl Into<String>) -> Self {
        Self { body: vec![body.into().into_bytes()], ..Self::default() }
    }

    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self { raw: Some(bytes.into()), ..Self::default() }
    }

    pub fn chunks<B: Into<Vec<u8>>>(chunks: impl IntoIterator<Item = B>) -> Self {
        let mut body: Vec<Vec<u8>> = chunks.into_iter().map(Into::into).collect();
        if body.len() == 1 {
            body.push(Vec::new());
        }
        Self { body, ..Self::default() }
    }

    /// No answer at all, then what `then` says.
    pub fn nothing(then: Then) -> Self {
        Self { raw: Some(Vec::new()), then, ..Self::default() }
    }

    pub fn field(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    pub fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    pub fn then(mut self, then: Then) -> Self {
        self.then = then;
        self
    }

    /// The pieces in which it is written.
    fn pieces(&self, method: &str) -> Vec<Vec<u8>> {
        if let Some(raw) = &self.raw {
            return vec![raw.clone()];
        }
        let mut head = format!("HTTP/1.1 {} Scripted\r\n", self.status);
        for (name, value) in &self.fields {
            head += &format!("{name}: {value}\r\n");
        }
        let bodiless = matches!(self.status, 204 | 304);
        let chunked = self.body.len() > 1 || !self.trailers.is_empty();
        if chunked && !bodiless {
            head += "transfer-encoding: chunked\r\n";
        } else if !bodiless && !self.fields.iter().any(|(n, _)| n.eq_ignore_ascii_case("content-length")) {
            head += &format!("content-length: {}\r\n", self.body.iter().map(Vec::len).sum::<usize>());
        }
        if self.then == Then::Close {
            head += "connection: close\r\n";
        }
        let mut pieces = vec![(head + "\r\n").into_bytes()];
        if bodiless || method == "HEAD" {
            return pieces;
        }
        for part in self.body.iter().filter(|b| !b.is_empty()) {
            let piece = if chunked {
                [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat()
            } else {
                part.clone()
            };
            pieces.push(piece);
        }
        if chunked {
            let trailers: String = self.trailers.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
            pieces.push(format!("0\r\n{trailers}\r\n").into_bytes());
        }
        pieces
    }
}

/// A request as an upstream got it.
#[derive(Debug, Clone)]
pub struct Received {
    pub request: Message,
    /// Which connection brought it, counted from 0.
    pub connection: usize,
}

/// An upstream; it serves until it is dropped.
pub struct Upstream {
    pub address: Address,
    state: Rc<State>,
    task: JoinHandle<()>,
}

type Script = Box<dyn FnMut(&Message) -> Reply>;

struct State {
    script: RefCell<Script>,
    received: RefCell<Vec<Received>>,
    /// What could not be read, or was not read to its end.
    broken: RefCell<Vec<String>>,
    connections: Cell<usize>,
}

impl Upstream {
    /// Answers each request as `script` says.
    pub fn start(network: &Network, address: Address, script: impl FnMut(&Message) -> Reply + 'static) -> Self {
        let state = Rc::new(State {
            script: RefCell::new(Box::new(script)),
            received: RefCell::default(),
            broken: RefCell::default(),
            connections: Cell::default(),
        });
        let task = tokio::task::spawn_local(accept(network.listen(address.clone()), Rc::clone(&state)));
        Self { address, state, task }
    }

    /// Answers everything with this text.
    pub fn says(network: &Network, address: Address, text: &str) -> Self {
        let text = text.to_owned();
        Self::start(network, address, move |_| Reply::text(text.clone()))
    }

    /// Another script from now on.
    pub fn script(&self, script: impl FnMut(&Message) -> Reply + 'static) {
        *self.state.script.borrow_mut() = Box::new(script);
    }

    /// The complete requests since it was last asked.
    pub fn take(&self) -> Vec<Received> {
        std::mem::take(&mut self.state.received.borrow_mut())
    }

    /// The only request since it was last asked.
    pub fn only(&self) -> Message {
        let mut all = self.take();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0).request
    }

    /// What came and was no complete request.
    pub fn broken(&self) -> Vec<String> {
        std::mem::take(&mut self.state.broken.borrow_mut())
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.state.connections.get()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(mut listening: Listening, state: Rc<State>) {
    // Ends its connections with it.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (end, _) = listening.accept() => {
                let number = state.connections.replace(state.connections.get() + 1);
                connections.spawn_local(serve(Reader::new(end), number, Rc::clone(&state)));
            }
            Some(Err(e)) = connections.join_next() => state.broken.borrow_mut().push(e.to_string()),
        }
    }
}

async fn serve(mut reader: Reader, connection: usize, state: Rc<State>) {
    loop {
        let request = async {
            let Some(mut message) = reader.head().await? else { return Ok(None) };
            reader.body(&mut message, Otherwise::Empty).await?;
            Ok::<_, super::Broken>(Some(message))
        };
        let request = match request.await {
            Ok(Some(request)) => request,
            Ok(None) => return,
            Err(e) => return state.broken.borrow_mut().push(e.0),
        };
        let reply = (state.script.borrow_mut())(&request);
        let method = request.method().to_owned();
        state.received.borrow_mut().push(Received { request, connection });
        sleep(reply.after).await;
        for (i, piece) in reply.pieces(&method).into_iter().enumerate() {
            if i > 1 {
                sleep(reply.between).await;
            }
            if reader.end.write(piece).await.is_err() {
                return;
            }
        }
        match reply.then {
            Then::KeepAlive => {}
            Then::Close => return,
            Then::Reset => return reader.into_parts().0.reset(),
            Then::Hang => std::future::pending().await,
        }
    }
}
