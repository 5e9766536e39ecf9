//! A client that sends what it is told and reads strictly.

use std::io;

use nuncio_core::net::Address;

use super::message::{Broken, Message, Otherwise, Reader};
use crate::net::{End, Network, Trouble};

/// A client's connection.
pub struct Client {
    reader: Reader,
    /// Interim responses that came before the last one.
    pub interim: Vec<Message>,
}

impl Client {
    pub async fn connect(network: &Network, to: &Address) -> io::Result<Self> {
        Ok(Self::new(network.connect_to(to).await?))
    }

    pub fn new(end: End) -> Self {
        Self { reader: Reader::new(end), interim: Vec::new() }
    }

    pub fn trouble(&self) -> Trouble {
        self.reader.end.trouble()
    }

    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.reader.end.write(bytes).await.expect("the connection takes what the client sends");
    }

    /// GET, and its answer.
    pub async fn get(&mut self, path: &str) -> Message {
        self.request("GET", path, &[], "").await
    }

    /// A request (with a length if it has a body), and its answer.
    pub async fn request(&mut self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Message {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: web.test\r\n");
        for (name, value) in fields {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        self.send(head + "\r\n" + body).await;
        self.response_to(method).await.unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    /// The next response; checked for what must not reach a client.
    pub async fn response(&mut self) -> Result<Message, Broken> {
        self.response_to("GET").await
    }

    pub async fn response_to(&mut self, method: &str) -> Result<Message, Broken> {
        self.interim.clear();
        loop {
            let mut message = self.reader.head().await?.ok_or_else(|| Broken("closed".into()))?;
            let status = message.status();
            if status < 200 && status != 101 {
                self.interim.push(message);
                continue;
            }
            let otherwise = match status {
                101 | 204 | 304 => Otherwise::NoBody,
                _ if method == "HEAD" || (method == "CONNECT" && status < 300) => Otherwise::NoBody,
                _ => Otherwise::UntilClose,
            };
            self.reader.body(&mut message, otherwise).await?;
            no_leaks(&message);
            return Ok(message);
        }
    }

    /// A head only: the body is read with [`body_bytes`](Self::body_bytes).
    pub async fn head(&mut self) -> Result<Message, Broken> {
        let message = self.reader.head().await?.ok_or_else(|| Broken("closed".into()))?;
        no_leaks(&message);
        Ok(message)
    }

    pub async fn body_bytes(&mut self, n: usize) -> Result<Vec<u8>, Broken> {
        self.reader.exactly(n).await
    }

    /// Waits until the proxy closes: `Ok` for its FIN, with nothing before it.
    pub async fn closed(&mut self) -> Result<(), Broken> {
        match self.reader.head().await? {
            None => Ok(()),
            Some(message) => Err(Broken(format!("{message:?} instead of the end"))),
        }
    }

    /// Bytes came that no request asked for.
    pub fn has_surplus(&self) -> bool {
        self.reader.has_surplus()
    }

    /// Says that nothing more comes, and goes on reading.
    pub fn finish(&mut self) {
        self.reader.end.finish();
    }

    pub fn reset(self) {
        self.reader.into_parts().0.reset();
    }

    /// For an upgrade: the connection, and what was read of it already.
    pub fn into_parts(self) -> (End, Vec<u8>) {
        self.reader.into_parts()
    }
}

/// Hop-by-hop fields and what proxies tell each other do not reach clients.
fn no_leaks(message: &Message) {
    for (name, value) in &message.fields {
        let name = name.to_ascii_lowercase();
        let leaks = match name.as_str() {
            "connection" if message.first_line.contains(" 101 ") => false,
            "connection" => !matches!(value.as_str(), "close" | "keep-alive"),
            "keep-alive" | "proxy-connection" => true,
            "upgrade" => !message.first_line.contains(" 101 ") && !message.first_line.contains(" 426 "),
            "x-envoy-upstream-service-time" | "x-envoy-overloaded" | "x-envoy-ratelimited" => false,
            "x-envoy-attempt-count" | "x-envoy-decorator-operation" | "x-envoy-immediate-health-check-fail" => false,
            _ => name.starts_with("x-envoy-") || name.starts_with(':'),
        };
        assert!(!leaks, "{name}: {value} reached the client in {message:?}");
    }
}
