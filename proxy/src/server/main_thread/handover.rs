//! Hot restart: a successor gets the listening sockets, and the server goes when the successor takes connections.
//!
//! ```text
//! successor ── "sockets" ──► predecessor      while it starts; both hold the sockets
//!           ◄── label, descriptors … "end" ──
//!           ── "take over" ──►                 it is initialized, its workers accept
//!           ◄── "yours" ──                     the predecessor accepts no more, and drains
//! ```
//!
//! A successor that fails before it takes over changes nothing: the sockets are the predecessor's as well.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Main;
use crate::listener::manager::label;
use crate::net::handover::{Door, Line};

/// What the admin's socket is called.
const ADMIN: &str = "admin";

/// The process before this one, which serves until it is told.
pub struct Predecessor(Line);

/// The sockets that it handed over, by label.
pub struct Inherited {
    pub admin: Vec<OwnedFd>,
    pub listeners: Vec<(String, Vec<OwnedFd>)>,
}

/// What a successor asks for.
pub(super) enum Asked {
    Sockets(Rc<Line>),
    TakeOver(Rc<Line>),
}

impl Predecessor {
    /// Asks the process at `path` for its sockets; none if there is no such process.
    pub fn ask(path: &Path) -> io::Result<Option<(Self, Inherited)>> {
        let Some(line) = Line::open(path)? else { return Ok(None) };
        line.send("sockets", &[])?;
        let mut inherited = Inherited { admin: Vec::new(), listeners: Vec::new() };
        loop {
            let gone = || io::Error::other("the predecessor left while it handed its sockets over");
            let (label, descriptors) = line.receive()?.ok_or_else(gone)?;
            match &*label {
                "end" => break,
                ADMIN => inherited.admin = descriptors,
                _ => inherited.listeners.push((label, descriptors)),
            }
        }
        tracing::info!(target: "main", "{} addresses are handed over", inherited.listeners.len());
        Ok(Some((Self(line), inherited)))
    }

    /// Tells it to take no more connections. A predecessor that is gone by now has nothing to say.
    pub fn take_over(self) {
        let done = self.0.send("take over", &[]).and_then(|()| self.0.receive());
        match done {
            Ok(Some(_)) => tracing::info!(target: "main", "took over from the predecessor"),
            Ok(None) => tracing::warn!(target: "main", "the predecessor was gone before it was told to go"),
            Err(e) => tracing::warn!(target: "main", "the predecessor does not answer: {e}"),
        }
    }
}

/// Waits for successors at `path`, from now on.
pub(super) fn wait_for_successors(path: &Path) -> io::Result<UnboundedReceiver<Asked>> {
    let door = Door::open(path)?;
    let (sender, asked) = unbounded_channel();
    tokio::task::spawn_local(async move {
        loop {
            match door.next().await {
                Ok(line) => drop(tokio::task::spawn_local(listen(Rc::new(line), sender.clone()))),
                Err(e) => return tracing::error!(target: "main", "no successor can come any more: {e}"),
            }
            if sender.is_closed() {
                return;
            }
        }
    });
    Ok(asked)
}

async fn listen(line: Rc<Line>, asked: UnboundedSender<Asked>) {
    loop {
        let said = match line.next().await {
            Ok(Some(said)) => said,
            Ok(None) => return,
            Err(e) => return tracing::warn!(target: "main", "a successor cannot be understood: {e}"),
        };
        let question = match &*said {
            "sockets" => Asked::Sockets(line.clone()),
            "take over" => Asked::TakeOver(line.clone()),
            _ => return tracing::warn!(target: "main", "a successor asks for what this version does not know"),
        };
        if asked.send(question).is_err() {
            return;
        }
    }
}

impl Main {
    pub(super) fn answer_successor(&mut self, asked: Asked) {
        match asked {
            Asked::Sockets(line) => match self.offer_sockets(&line) {
                Ok(count) => tracing::info!(target: "main", "{count} addresses are handed to a successor"),
                Err(e) => tracing::error!(target: "main", "the sockets cannot be handed over: {e}"),
            },
            Asked::TakeOver(line) => self.hand_over(&line),
        }
    }

    fn offer_sockets(&self, line: &Line) -> io::Result<usize> {
        let mut count = 0;
        if let Some(socket) = self.admin.descriptor() {
            line.send(ADMIN, &[socket])?;
        }
        for entry in self.listeners.active() {
            for (i, bound) in entry.bound().iter().enumerate() {
                let descriptors: Vec<RawFd> = bound.sockets().map(AsRawFd::as_raw_fd).collect();
                line.send(&label(&entry.config, i), &descriptors)?;
                count += 1;
            }
        }
        line.send("end", &[])?;
        Ok(count)
    }

    /// The successor takes connections: this server takes no more, and ends when those it has are gone.
    fn hand_over(&mut self, line: &Line) {
        self.admin.close();
        self.successors = None;
        if let Some(path) = self.hot_restart.take() {
            // The successor makes its own.
            let _ = std::fs::remove_file(path);
        }
        if let Err(e) = line.send("yours", &[]) {
            tracing::warn!(target: "main", "the successor does not listen: {e}");
        }
        let time = self.parent_shutdown_time;
        self.begin_to_end("a successor took over".to_owned(), false, time);
    }

    /// Takes over, if there is a predecessor, and is there for a successor.
    pub(super) fn take_over(&mut self) -> io::Result<()> {
        if let Some(predecessor) = self.predecessor.take() {
            predecessor.take_over();
        }
        self.admin.open()?;
        let path: Option<PathBuf> = self.hot_restart.clone();
        if let Some(path) = path {
            self.successors = Some(wait_for_successors(&path).map_err(|e| {
                io::Error::new(e.kind(), format!("cannot wait for a successor at '{}': {e}", path.display()))
            })?);
        }
        Ok(())
    }
}
