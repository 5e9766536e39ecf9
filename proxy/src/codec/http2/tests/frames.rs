//! A connection in memory that answers nothing, for a client that writes frames byte by byte.

pub(super) use nuncio_testkit::http2::frame::kind::*;
pub(super) use nuncio_testkit::http2::frame::{PREFACE, frame};
pub(super) use nuncio_testkit::http2::hpack::{GET, block};
use tokio::io::DuplexStream;

use super::*;

pub(super) type RawClient = nuncio_testkit::http2::Client<DuplexStream>;

/// A server connection in the background that answers nothing, and a client that has shaken hands.
pub(super) async fn connect(options: ServerOptions) -> (RawClient, tokio::task::JoinHandle<Outcome>) {
    let (conn, theirs) = server(options);
    let task = tokio::task::spawn_local(hold(conn));
    let mut client = RawClient::new(theirs);
    client.stop_answering();
    client.write(PREFACE).await;
    client.write(&frame(SETTINGS, 0, 0, &[])).await;
    (client, task)
}

/// What came of a connection whose requests are taken and never answered.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) accepted: usize,
    pub(super) refused: Vec<&'static str>,
    pub(super) error: Option<ConnectionError>,
}

async fn hold(mut conn: ServerConn) -> Outcome {
    let mut outcome = Outcome::default();
    let mut head = RequestHead::default();
    let mut streams = Vec::new();
    loop {
        match accept(&mut conn, &mut head).await {
            Ok(Some(Accepted::Stream(stream))) => {
                outcome.accepted += 1;
                streams.push(stream);
            }
            Ok(Some(Accepted::Refused(details))) => outcome.refused.push(details),
            Ok(None) => return outcome,
            Err(error) => {
                outcome.error = Some(error);
                let (mut scratch, mut allowance) = (vec![0; 1024], 65_536);
                poll_fn(|cx| conn.poll_close(cx, &mut scratch, &mut allowance)).await;
                return outcome;
            }
        }
    }
}
