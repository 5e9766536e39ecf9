//! Scripted filters in front of a reader, over a connection in memory.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;

use nuncio_core::net::Address;
use nuncio_core::stream_info::ResponseFlag;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;

use super::*;
use crate::upstream::testing::{memory, settle};

type Said = Rc<RefCell<Vec<String>>>;

/// Does what the script says, and notes what it saw.
#[derive(Default)]
struct Scripted {
    opening: Option<NetworkStep>,
    steps: VecDeque<NetworkStep>,
    seen: Said,
}

impl NetworkFilter for Scripted {
    fn on_new_connection(&mut self, _: &Rc<ConnectionInfo>) -> NetworkStep {
        self.opening.take().unwrap_or(NetworkStep::Continue)
    }

    fn on_data(&mut self, data: &[u8], end_stream: bool, _: &Rc<ConnectionInfo>) -> NetworkStep {
        self.seen.borrow_mut().push(format!("{}{}", String::from_utf8_lossy(data), if end_stream { "." } else { "" }));
        self.steps.pop_front().unwrap_or(NetworkStep::Continue)
    }

    fn reads_data(&self) -> bool {
        !self.steps.is_empty()
    }
}

struct Bench {
    io: Io,
    client: DuplexStream,
    info: Rc<ConnectionInfo>,
}

impl Bench {
    fn new(filters: Vec<Scripted>, preread: &[u8]) -> Self {
        let (io, client) = memory();
        let address = |port: u16| Address::Ip(([127, 0, 0, 1], port).into());
        let info = Rc::new(ConnectionInfo::new(1, address(1), address(2)));
        let filters =
            ReadFilters { filters: filters.into_iter().map(|f| Box::new(f) as Box<dyn NetworkFilter>).collect() };
        let (io, left, _) = filters.into_stream(io, preread.to_vec(), info.clone(), 16);
        assert_eq!(left, b"", "what was read before goes by the filters too");
        Self { io, client, info }
    }

    async fn read(&mut self) -> Result<String, io::ErrorKind> {
        let mut buf = [0; 64];
        let n = poll_fn(|cx| self.io.poll_read(cx, &mut buf)).await.map_err(|e| e.kind())?;
        Ok(String::from_utf8_lossy(&buf[..n]).into_owned())
    }

    /// Nothing comes, however often it is asked.
    async fn read_nothing(&mut self) {
        let mut buf = [0; 64];
        for _ in 0..3 {
            settle().await;
            let polled = poll_fn(|cx| Poll::Ready(self.io.poll_read(cx, &mut buf).is_pending())).await;
            assert!(polled);
        }
    }
}

fn waiting() -> (oneshot::Sender<NetworkVerdict>, NetworkStep) {
    let (tell, told) = oneshot::channel();
    (tell, NetworkStep::Later(Box::pin(async move { told.await.unwrap_or(NetworkVerdict::Continue) })))
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn bytes_wait_for_the_verdict_and_then_come_whole() {
    let (tell, later) = waiting();
    let seen = Said::default();
    let first = Scripted { steps: [later].into(), seen: seen.clone(), ..Default::default() };
    let mut bench = Bench::new(vec![first], b"");
    bench.client.write_all(b"ping").await.unwrap();
    bench.read_nothing().await;
    bench.client.write_all(b"more").await.unwrap();
    bench.read_nothing().await;
    assert!(tell.send(NetworkVerdict::Continue).is_ok());
    assert_eq!(bench.read().await.unwrap(), "pingmore");
    bench.client.write_all(b"late").await.unwrap();
    assert_eq!(bench.read().await.unwrap(), "late");
    assert_eq!(*seen.borrow(), ["ping"], "it had nothing more to decide");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_filter_that_needs_more_sees_all_of_it_each_time_and_the_end() {
    let seen = Said::default();
    let steps = [NetworkStep::NeedData, NetworkStep::NeedData, NetworkStep::Continue].into();
    let mut bench = Bench::new(vec![Scripted { steps, seen: seen.clone(), ..Default::default() }], b"a");
    bench.read_nothing().await;
    bench.client.write_all(b"b").await.unwrap();
    bench.read_nothing().await;
    bench.client.shutdown().await.unwrap();
    assert_eq!(bench.read().await.unwrap(), "ab");
    assert_eq!(bench.read().await.unwrap(), "");
    assert_eq!(*seen.borrow(), ["a", "ab", "ab."]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_silent_client_that_closes_is_decided_about() {
    let seen = Said::default();
    let deny = NetworkClose { flag: Some(ResponseFlag::UnauthorizedExternalService), ..NetworkClose::new("denied") };
    let filter = Scripted { steps: [NetworkStep::Close(deny)].into(), seen: seen.clone(), ..Default::default() };
    let mut bench = Bench::new(vec![filter], b"");
    bench.client.shutdown().await.unwrap();
    assert_eq!(bench.read().await, Err(io::ErrorKind::ConnectionAborted));
    assert_eq!(*seen.borrow(), ["."]);
    assert_eq!(bench.info.flags.get().to_string(), "UAEX");
    assert_eq!(bench.info.local_close_reason.borrow().as_deref(), Some("denied"));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_filter_that_never_decides_holds_no_more_than_the_limit() {
    let steps = (0..9).map(|_| NetworkStep::NeedData).collect();
    let mut bench = Bench::new(vec![Scripted { steps, ..Default::default() }], b"");
    bench.client.write_all(&[b'x'; 40]).await.unwrap();
    assert_eq!(bench.read().await, Err(io::ErrorKind::ConnectionAborted));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn what_came_while_a_filter_waited_is_shown_to_those_before_it() {
    let (tell, later) = waiting();
    let (first, second) = (Said::default(), Said::default());
    let filters = vec![
        Scripted { steps: (0..9).map(|_| NetworkStep::Continue).collect(), seen: first.clone(), ..Default::default() },
        Scripted { steps: [later].into(), seen: second.clone(), ..Default::default() },
    ];
    let mut bench = Bench::new(filters, b"");
    bench.client.write_all(b"1").await.unwrap();
    bench.read_nothing().await;
    bench.client.write_all(b"2").await.unwrap();
    bench.read_nothing().await;
    assert!(tell.send(NetworkVerdict::Continue).is_ok());
    assert_eq!(bench.read().await.unwrap(), "12");
    assert_eq!((first.borrow().join(" "), second.borrow().join(" ")), ("1 12".into(), "1".into()));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_client_that_goes_while_a_filter_waits_ends_the_waiting() {
    let (tell, later) = waiting();
    let mut bench = Bench::new(vec![Scripted { steps: [later].into(), ..Default::default() }], b"ping");
    bench.read_nothing().await;
    drop(bench.io);
    assert!(tell.is_closed());
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn the_first_filter_that_says_no_to_a_new_connection_is_the_last_that_is_asked() {
    let address = Address::Ip(([127, 0, 0, 1], 1).into());
    let info = Rc::new(ConnectionInfo::new(1, address.clone(), address));
    let asked = Rc::new(Cell::new(false));
    struct Asked(Rc<Cell<bool>>);
    impl NetworkFilter for Asked {
        fn on_new_connection(&mut self, _: &Rc<ConnectionInfo>) -> NetworkStep {
            self.0.set(true);
            NetworkStep::Continue
        }
    }
    let no = Box::pin(async { NetworkVerdict::Close(NetworkClose::new("full")) });
    let opening = |step| Box::new(Scripted { opening: Some(step), ..Default::default() }) as Box<dyn NetworkFilter>;
    let mut filters = ReadFilters {
        filters: vec![opening(NetworkStep::Continue), opening(NetworkStep::Later(no)), Box::new(Asked(asked.clone()))],
    };
    assert_eq!(filters.on_new_connection(&info).await, Err(Closed));
    assert_eq!(info.local_close_reason.borrow().as_deref(), Some("full"));
    assert!(!asked.get());
}
