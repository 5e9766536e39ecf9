//! The hosts of the health bench, in a process of their own: one socket behind ten thousand loopback addresses, which
//! counts checks in slots of time, fails for one address when it is told to, and knows when that address was asked last.
//!
//! - `/hc`: a check · `/begin`: forget what was counted · `/slots`: checks in each 100 ms since
//! - `/fail?1.2.3.4`: that address fails its checks from now on; `/fail?` nobody does
//! - `/left`: microseconds from the answer that failed the check to the last request that still came, and their number
//! - anything else: traffic

use std::cell::RefCell;
use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

const SLOT: Duration = Duration::from_millis(100);

struct Record {
    began: Instant,
    slots: Vec<u32>,
    failing: Option<Ipv4Addr>,
    /// When its check was answered so for the first time.
    failed: Option<Instant>,
    last: Option<Instant>,
    late: u32,
}

/// Listens on a free port of all addresses, prints it, and serves until standard input closes.
pub fn serve() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
        // Ten thousand connect at once.
        let listener = socket.listen(16_384)?;
        println!("{}", listener.local_addr()?.port());
        let record =
            Record { began: Instant::now(), slots: Vec::new(), failing: None, failed: None, last: None, late: 0 };
        let record = Rc::new(RefCell::new(record));
        let mut stdin = crate::target::parent_gone();
        loop {
            tokio::select! {
                _ = &mut stdin => return Ok(()),
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    let record = record.clone();
                    tokio::task::spawn_local(async move { drop(connection(stream, record).await) });
                }
            }
        }
    })
}

async fn connection(mut stream: TcpStream, record: Rc<RefCell<Record>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let own = match stream.local_addr()?.ip() {
        std::net::IpAddr::V4(v4) => v4,
        std::net::IpAddr::V6(_) => return Ok(()),
    };
    // Ten thousand connections: small, and a head without a body fits.
    let mut buffer = [0u8; 1024];
    let mut filled = 0;
    loop {
        filled += match stream.read(&mut buffer[filled..]).await? {
            0 => return Ok(()),
            read => read,
        };
        if !buffer[..filled].ends_with(b"\r\n\r\n") {
            continue;
        }
        let path = buffer[..filled].split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let (status, body) = record.borrow_mut().answer(own, &String::from_utf8_lossy(path));
        filled = 0;
        let length = body.len();
        stream.write_all(format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes()).await?;
    }
}

impl Record {
    fn answer(&mut self, own: Ipv4Addr, path: &str) -> (u16, String) {
        let now = Instant::now();
        let text = match path.split_once('?').unwrap_or((path, "")) {
            ("/hc", _) => {
                let slot = (now - self.began).as_millis() / SLOT.as_millis();
                let slot = usize::try_from(slot).unwrap_or_default();
                if self.slots.len() <= slot {
                    self.slots.resize(slot + 1, 0);
                }
                self.slots[slot] += 1;
                if self.failing == Some(own) {
                    self.failed.get_or_insert(now);
                    return (503, String::new());
                }
                String::new()
            }
            ("/begin", _) => {
                (self.began, self.slots) = (now, Vec::new());
                String::new()
            }
            ("/slots", _) => self.slots.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
            ("/fail", who) => {
                (self.failing, self.failed, self.last, self.late) = (who.parse().ok(), None, None, 0);
                String::new()
            }
            ("/left", _) => match self.failed {
                None => String::new(),
                Some(failed) => {
                    let last = self.last.map_or(Duration::ZERO, |last| last - failed);
                    format!("{} {}", last.as_micros(), self.late)
                }
            },
            _ => {
                if self.failing == Some(own) && self.failed.is_some() {
                    self.last = Some(now);
                    self.late += 1;
                }
                String::new()
            }
        };
        (200, text)
    }
}
