//! Polling a management server: `POST /v3/discovery:endpoints` with a `DiscoveryRequest` as JSON. The next poll is due a
//! delay and up to as much again after the answer, so that a thousand proxies do not come together.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use nuncio_api::dump::json_value;
use nuncio_api::pb::envoy::service::discovery::v3::DiscoveryResponse;
use nuncio_api::prost::Message;
use nuncio_api::{Format, Source};
use nuncio_core::http::RequestHead;
use nuncio_core::random::Rng;
use nuncio_core::upstream::{AsyncClient, AsyncFailure, AsyncRequest};
use serde_json::{Value, json};

use super::config_source::Rest;
use super::fetch::{FetchError, read};
use super::resource::Resource;
use crate::SourceContext;

/// A longer answer is a failure.
const MOST_BYTES: usize = 64 << 20;

pub struct Poller {
    rest: Rest,
    path: &'static str,
    /// All but the version.
    request: Value,
    version: String,
    client: Rc<dyn AsyncClient>,
    rng: Rng,
    asked: bool,
}

impl Poller {
    pub(super) fn new<R: Resource>(rest: Rest, mut names: Vec<String>, context: &SourceContext) -> Self {
        names.sort_unstable();
        let node = json_value("envoy.config.core.v3.Node", &context.node.encode_to_vec());
        let request = json!({
            "node": node,
            "resource_names": names,
            "type_url": format!("type.googleapis.com/{}", R::TYPE),
        });
        let (client, rng) = (context.client.clone(), context.rng.clone());
        Self { rest, path: R::REST, request, version: String::new(), client, rng, asked: false }
    }

    pub(super) fn accepted(&mut self, version: &str) {
        version.clone_into(&mut self.version);
    }

    pub(super) async fn next(&mut self) -> Result<Option<DiscoveryResponse>, FetchError> {
        if self.asked {
            tokio::time::sleep(polite_delay(self.rest.refresh_delay, &self.rng)).await;
        }
        self.asked = true;
        let url = format!("{}{}", self.rest.cluster, self.path);
        let request = self.request();
        let call = || self.client.call(&self.rest.cluster, request.clone());
        let response = once_the_cluster_is_there(call).await;
        let response = response.map_err(|failure| FetchError::Failure(format!("POST {url}: {failure}")))?;
        match response.head.status {
            200 => {
                let source = Source::text(&url, Format::Json, &response.body[..]);
                read(source).map(Some).map_err(FetchError::Rejected)
            }
            304 => Ok(None),
            status => Err(FetchError::Failure(format!("POST {url}: answered {status}"))),
        }
    }

    fn request(&self) -> AsyncRequest {
        let mut head = RequestHead::default();
        let headers = [
            (":method", "POST"),
            (":path", self.path),
            (":scheme", "http"),
            (":authority", self.rest.cluster.as_str()),
            ("content-type", "application/json"),
        ];
        headers.into_iter().for_each(|(name, value)| head.headers.append(name, value));
        let mut body = self.request.clone();
        if !self.version.is_empty() {
            body["version_info"] = self.version.as_str().into();
        }
        AsyncRequest {
            head,
            body: Bytes::from(body.to_string()),
            timeout: Some(self.rest.request_timeout),
            max_response_bytes: MOST_BYTES,
            hash: None,
            send_xff: true,
        }
    }
}

/// The delay and up to as much again.
pub(crate) fn polite_delay(delay: Duration, rng: &Rng) -> Duration {
    delay + Duration::from_micros(rng.below(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)))
}

/// At the start the cluster that is asked may not be there yet, because its own hosts are being looked for. It is
/// waited for: whoever waits for the answer has a limit of its own.
pub(crate) async fn once_the_cluster_is_there<T, F>(call: impl Fn() -> F) -> Result<T, AsyncFailure>
where
    F: Future<Output = Result<T, AsyncFailure>>,
{
    const EVERY: Duration = Duration::from_millis(20);
    const AT_MOST: u32 = 250;
    // Clusters that are ready at once are all published after the last of them was set off.
    tokio::task::yield_now().await;
    for _ in 0..AT_MOST {
        match call().await {
            Err(AsyncFailure::UnknownCluster) => tokio::time::sleep(EVERY).await,
            outcome => return outcome,
        }
    }
    Err(AsyncFailure::UnknownCluster)
}
