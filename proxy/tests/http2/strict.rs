//! A reader of HTTP/1 requests without any indulgence: what it takes, every server understands alike.
//! It shares no code with the proxy.

use tokio::io::{AsyncRead, AsyncReadExt};

/// A request, read to its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub target: String,
    /// Names in lower case.
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, Vec<u8>)>,
}

impl Request {
    /// The only value of that name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(n, _)| n == name);
        let value = values.next()?;
        assert!(values.next().is_none(), "several {name} in {self:?}");
        std::str::from_utf8(&value.1).ok()
    }
}

/// A connection and what was read of it beyond the last request.
pub struct Reader<S> {
    pub stream: S,
    buffer: Vec<u8>,
}

/// What is wrong with what came.
pub type Broken = String;

impl<S: AsyncRead + Unpin> Reader<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// Bytes behind the last request, which no client sends before it has its answer.
    pub fn surplus(&self) -> &[u8] {
        &self.buffer
    }

    /// False at the end.
    async fn more(&mut self) -> Result<bool, Broken> {
        let n = self.stream.read_buf(&mut self.buffer).await.map_err(|e| format!("ended: {}", e.kind()))?;
        Ok(n > 0)
    }

    async fn exactly(&mut self, n: usize) -> Result<Vec<u8>, Broken> {
        while self.buffer.len() < n {
            if !self.more().await? {
                return Err(format!("ended after {} bytes of {n}", self.buffer.len()));
            }
        }
        Ok(self.buffer.drain(..n).collect())
    }

    /// Without its CRLF. `None` at the end, if nothing came before it.
    async fn line(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        loop {
            if let Some(at) = self.buffer.iter().position(|b| matches!(b, b'\n' | 0)) {
                let line: Vec<u8> = self.buffer.drain(..=at).collect();
                let inner = line.strip_suffix(b"\r\n").filter(|l| !l.contains(&b'\r'));
                return inner.map(|l| Some(l.to_vec())).ok_or_else(|| format!("bad line {:?}", line.escape_ascii()));
            }
            if !self.more().await? {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(format!("ended within {:?}", self.buffer.escape_ascii())),
                };
            }
        }
    }

    /// The next request; `None` at the end.
    pub async fn request(&mut self) -> Result<Option<Request>, Broken> {
        let Some(line) = self.line().await? else { return Ok(None) };
        let mut request = request_line(&line)?;
        request.fields = self.fields().await?;
        match framing(&request)? {
            Framing::None => {}
            Framing::Length(n) => request.body = self.exactly(n).await?,
            Framing::Chunked => self.chunks(&mut request).await?,
        }
        Ok(Some(request))
    }

    async fn fields(&mut self) -> Result<Vec<(String, Vec<u8>)>, Broken> {
        let mut fields = Vec::new();
        loop {
            let line = self.line().await?.ok_or("ended within the fields")?;
            if line.is_empty() {
                return Ok(fields);
            }
            fields.push(field(&line)?);
        }
    }

    async fn chunks(&mut self, request: &mut Request) -> Result<(), Broken> {
        loop {
            let line = self.line().await?.ok_or("ended before a chunk")?;
            let digits = std::str::from_utf8(&line).map_err(|e| e.to_string())?;
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit()) && digits.len() <= 8;
            let size = plain.then(|| usize::from_str_radix(digits, 16).ok()).flatten();
            let size = size.ok_or_else(|| format!("chunk size {digits:?}"))?;
            if size == 0 {
                request.trailers = self.fields().await?;
                return Ok(());
            }
            request.body.extend(self.exactly(size).await?);
            if self.exactly(2).await? != b"\r\n" {
                return Err("no CRLF behind a chunk".into());
            }
        }
    }
}

enum Framing {
    None,
    Length(usize),
    Chunked,
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

fn request_line(line: &[u8]) -> Result<Request, Broken> {
    let wrong = || format!("request line {:?}", line.escape_ascii());
    let parts: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let [method, target, b"HTTP/1.1"] = parts[..] else { return Err(wrong()) };
    let form = match method {
        b"CONNECT" => !target.is_empty() && !target.contains(&b'/'),
        b"OPTIONS" if target == b"*" => true,
        _ => target.starts_with(b"/"),
    };
    if !is_token(method) || !form || !target.iter().all(|b| b.is_ascii_graphic() && *b != b'#') {
        return Err(wrong());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Request { method: text(method), target: text(target), ..Request::default() })
}

fn field(line: &[u8]) -> Result<(String, Vec<u8>), Broken> {
    let wrong = || format!("field {:?}", line.escape_ascii());
    let colon = line.iter().position(|b| *b == b':').ok_or_else(wrong)?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    let clean = |b: &u8| *b == b'\t' || *b == b' ' || b.is_ascii_graphic() || *b >= 0x80;
    if !is_token(name) || !value.iter().all(clean) {
        return Err(wrong());
    }
    Ok((String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()))
}

fn framing(request: &Request) -> Result<Framing, Broken> {
    let values = |name: &str| {
        let found = request.fields.iter().filter(|(n, _)| n == name);
        found.map(|(_, v)| String::from_utf8_lossy(v).into_owned()).collect::<Vec<_>>()
    };
    let (hosts, lengths, codings) = (values("host"), values("content-length"), values("transfer-encoding"));
    if hosts.len() != 1 || hosts[0].contains([' ', '\t', '/', '@', ',', '?', '#']) {
        return Err(format!("hosts {hosts:?}"));
    }
    match (&lengths[..], &codings[..]) {
        ([], []) => Ok(Framing::None),
        ([length], []) => match length.parse::<usize>() {
            Ok(n) if n.to_string() == *length => Ok(Framing::Length(n)),
            _ => Err(format!("content-length {length:?}")),
        },
        ([], [coding]) if coding == "chunked" => Ok(Framing::Chunked),
        _ => Err(format!("content-length {lengths:?} and transfer-encoding {codings:?}")),
    }
}

#[tokio::test]
async fn it_takes_nothing_that_two_servers_could_read_differently() {
    const HEAD: &str = "POST / HTTP/1.1\r\nhost: a\r\n";
    let good =
        [("", 0), ("content-length: 3\r\n\r\nabc", 3), ("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 3)];
    for (rest, body) in good {
        let text = format!("{HEAD}{rest}\r\n");
        let request = Reader::new(text.as_bytes()).request().await.unwrap().unwrap();
        assert_eq!(request.body.len(), body, "{text}");
    }
    for bad in [
        "POST  / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\nhost: a\r\n\r\n".to_owned(),
        "POST /#a HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        format!("{HEAD}host: a\r\n\r\n"),
        format!("{HEAD} folded: a\r\n\r\n"),
        format!("{HEAD}name : a\r\n\r\n"),
        format!("{HEAD}name: a\rb\r\n\r\n"),
        format!("{HEAD}content-length: 03\r\n\r\nabc"),
        format!("{HEAD}content-length: 3\r\ncontent-length: 3\r\n\r\nabc"),
        format!("{HEAD}content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{HEAD}transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        format!("{HEAD}transfer-encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n"),
        format!("{HEAD}transfer-encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\n\r\n"),
        format!("{HEAD}transfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n"),
    ] {
        assert!(Reader::new(bad.as_bytes()).request().await.is_err(), "{bad}");
    }
}
