//! Messages as peers read and write them.

use std::fmt;

use crate::net::End;

/// A request or a response, read to its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The request line or the status line.
    pub first_line: String,
    /// As they came, names too.
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl Message {
    /// The only field of that name; panics if there are several.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.values(name);
        let first = values.next();
        assert!(values.next().is_none(), "several {name} in {self:?}");
        first
    }

    pub fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }

    /// Of a request.
    pub fn method(&self) -> &str {
        self.first_line.split(' ').next().unwrap_or_default()
    }

    pub fn path(&self) -> &str {
        self.first_line.split(' ').nth(1).unwrap_or_default()
    }

    /// Of a response.
    pub fn status(&self) -> u16 {
        self.path().parse().unwrap_or_else(|_| panic!("{:?} is no status line", self.first_line))
    }

    fn is_chunked(&self) -> Result<bool, Broken> {
        match self.field("transfer-encoding") {
            None => Ok(false),
            Some("chunked") => Ok(true),
            Some(other) => Err(Broken(format!("transfer-encoding: {other}"))),
        }
    }

    fn length(&self) -> Result<Option<usize>, Broken> {
        let Some(text) = self.field("content-length") else { return Ok(None) };
        match text.parse::<usize>() {
            Ok(n) if n.to_string() == text => Ok(Some(n)),
            _ => Err(Broken(format!("content-length: {text}"))),
        }
    }
}

/// What a peer could not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How the end of a body is found when no field tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Otherwise {
    Empty,
    UntilClose,
    /// Whatever the fields say: the answer to HEAD, and the like.
    NoBody,
}

/// An end with what was read of it and not used.
pub(super) struct Reader {
    pub(super) end: End,
    pending: Vec<u8>,
}

impl Reader {
    pub(super) fn new(end: End) -> Self {
        Self { end, pending: Vec::new() }
    }

    pub(super) fn into_parts(self) -> (End, Vec<u8>) {
        (self.end, self.pending)
    }

    /// `None` at the peer's end.
    async fn more(&mut self) -> Result<Option<()>, Broken> {
        let piece = self.end.read().await.map_err(|e| Broken(e.kind().to_string()))?;
        self.pending.extend_from_slice(&piece);
        Ok((!piece.is_empty()).then_some(()))
    }

    async fn line(&mut self) -> Result<Option<String>, Broken> {
        let at = loop {
            if let Some(at) = self.pending.iter().position(|&b| b == b'\n') {
                break at;
            }
            if self.more().await?.is_none() {
                let left = self.pending.escape_ascii();
                return if self.pending.is_empty() { Ok(None) } else { Err(Broken(format!("ended within {left}"))) };
            }
        };
        let line: Vec<u8> = self.pending.drain(..=at).collect();
        let line = line.strip_suffix(b"\r\n").ok_or_else(|| Broken("a line that ends in a bare LF".into()))?;
        match String::from_utf8(line.to_vec()) {
            Ok(text) if !text.contains(|c: char| c.is_ascii_control() && c != '\t') => Ok(Some(text)),
            _ => Err(Broken(format!("a line with {}", line.escape_ascii()))),
        }
    }

    async fn must_line(&mut self) -> Result<String, Broken> {
        self.line().await?.ok_or_else(|| Broken("ended within a message".into()))
    }

    async fn fields(&mut self) -> Result<Vec<(String, String)>, Broken> {
        let mut fields = Vec::new();
        loop {
            let line = self.must_line().await?;
            if line.is_empty() {
                return Ok(fields);
            }
            let (name, value) = line.split_once(':').ok_or_else(|| Broken(format!("{line:?} is no field")))?;
            if name.is_empty() || name.contains(|c: char| !c.is_ascii_graphic()) {
                return Err(Broken(format!("{line:?} has no name")));
            }
            fields.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
        }
    }

    /// A head; `None` at the peer's end.
    pub(super) async fn head(&mut self) -> Result<Option<Message>, Broken> {
        let Some(first_line) = self.line().await? else { return Ok(None) };
        Ok(Some(Message { first_line, fields: self.fields().await?, ..Message::default() }))
    }

    pub(super) async fn exactly(&mut self, n: usize) -> Result<Vec<u8>, Broken> {
        while self.pending.len() < n {
            if self.more().await?.is_none() {
                return Err(Broken(format!("{} bytes of {n}", self.pending.len())));
            }
        }
        Ok(self.pending.drain(..n).collect())
    }

    pub(super) async fn body(&mut self, message: &mut Message, otherwise: Otherwise) -> Result<(), Broken> {
        if otherwise == Otherwise::NoBody {
            return Ok(());
        }
        match (message.is_chunked()?, message.length()?) {
            (true, Some(_)) => return Err(Broken("content-length beside chunked".into())),
            (true, None) => self.chunks(message).await?,
            (false, Some(n)) => message.body = self.exactly(n).await?,
            (false, None) if otherwise == Otherwise::UntilClose => {
                while self.more().await?.is_some() {}
                message.body = std::mem::take(&mut self.pending);
            }
            (false, None) => {}
        }
        Ok(())
    }

    async fn chunks(&mut self, message: &mut Message) -> Result<(), Broken> {
        loop {
            let line = self.must_line().await?;
            let n = usize::from_str_radix(&line, 16).map_err(|_| Broken(format!("{line:?} is no chunk size")))?;
            if n == 0 {
                message.trailers = self.fields().await?;
                return Ok(());
            }
            message.body.extend(self.exactly(n).await?);
            if self.exactly(2).await? != b"\r\n" {
                return Err(Broken("no CRLF behind a chunk".into()));
            }
        }
    }

    /// Whether bytes lie there that nobody asked for.
    pub(super) fn has_surplus(&self) -> bool {
        !self.pending.is_empty()
    }
}
