//! The upstream: answers every request at once with as many bytes as its `size` asks for, and with
//! 503 where it says `fail`.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Listens on a free port, prints it on standard output, and serves until standard input closes.
pub fn serve() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        println!("{}", listener.local_addr()?.port());
        let mut stdin = crate::target::parent_gone();
        loop {
            tokio::select! {
                _ = &mut stdin => return Ok(()),
                accepted = listener.accept() => {
                    let (stream, _) = accepted?;
                    tokio::task::spawn_local(async move { drop(connection(stream).await) });
                }
            }
        }
    })
}

async fn connection(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0u8; 128 * 1024];
    let mut filled = 0;
    let mut out = Vec::new();
    loop {
        let head = loop {
            if let Some(at) = buffer[..filled].windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            let n = stream.read(&mut buffer[filled..]).await?;
            if n == 0 {
                return Ok(());
            }
            filled += n;
        };
        let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
        let number = |key: &str| {
            let at = text.find(key)? + key.len();
            text[at..].trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok()
        };
        let size = number("?size=").unwrap_or(0);
        let mut body = number("\r\ncontent-length:").unwrap_or(0);
        let here = body.min(filled - head);
        buffer.copy_within(head + here..filled, 0);
        filled -= head + here;
        body -= here;
        while body > 0 {
            let n = stream.read(&mut buffer[filled..]).await?;
            if n == 0 {
                return Ok(());
            }
            let take = n.min(body);
            buffer.copy_within(filled + take..filled + n, filled);
            filled += n - take;
            body -= take;
        }
        let status = if text.contains("&fail") { "503 Service Unavailable" } else { "200 OK" };
        out.clear();
        out.extend_from_slice(
            format!("HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {size}\r\n\r\n").as_bytes(),
        );
        out.resize(out.len() + size, b'y');
        stream.write_all(&out).await?;
    }
}
