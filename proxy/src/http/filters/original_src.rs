//! `original_src`: the upstream sees the client's address instead of the proxy's
//! (`envoy.extensions.filters.http.original_src.v3.OriginalSrc`). The client is who the connection manager says it is, by
//! `x-forwarded-for` too. Each client has upstream connections of its own. Needs CAP_NET_ADMIN, and routes that bring the
//! answers back here; `mark` is what routing rules know the connections by. No stats of its own.

use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::filters::http::original_src::v3 as pb;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, FilterHalves, HttpFilter, HttpFilterFactory, MakeFilter, RequestHead, Step, StreamControl,
};
use nuncio_core::net::OriginalSource;

use crate::net::capabilities;

supports!(CONFIG = "envoy.extensions.filters.http.original_src.v3.OriginalSrc" { mark });
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG];

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.original_src"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        capabilities::warn_without_net_admin(context);
        Ok(Arc::new(OriginalSrc { mark: unpack::<pb::OriginalSrc>(config)?.mark }))
    }
}

#[derive(Clone, Copy)]
struct OriginalSrc {
    mark: u32,
}

impl HttpFilter for OriginalSrc {
    fn on_worker(&self, _worker: &WorkerContext) -> MakeFilter {
        let this = *self;
        Box::new(move || FilterHalves { decode: Some(Box::new(this)), encode: None })
    }
}

impl DecodeFilter for OriginalSrc {
    fn decode_headers(&mut self, _head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        let connection = stream.connection();
        let info = stream.info();
        let client = info.remote_address.as_ref().or(connection.as_ref().map(|connection| &connection.remote));
        if let Some(source) = client.and_then(|client| OriginalSource::of(client, self.mark)) {
            stream.state().original_source.set(Some(source));
        }
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::super::testing::Bench;

    // Expected: Envoy 1.40, asked in a network namespace of its own.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn each_client_reaches_the_upstream_from_its_own_address() {
        let manager = "{stat_prefix: in, xff_num_trusted_hops: 0, use_remote_address: false, http_filters: [{name: o, \
                       typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.original_src.v3.OriginalSrc, \
                       mark: 7}}, ROUTER], route_config: {virtual_hosts: [{name: v, domains: ['*'], routes: [{match: \
                       {prefix: /}, route: {cluster: c}}]}]}}";
        let bench = Bench::with(manager);
        assert_eq!(bench.get("/", "").await.status(), "200");
        assert_eq!(bench.get("/", "x-forwarded-for: 192.0.2.7\r\n").await.status(), "200");
        assert_eq!(bench.get("/", "x-forwarded-for: 2001:db8::9\r\n").await.status(), "200");
        assert_eq!(bench.house.net.sources(), ["127.0.0.1:0", "192.0.2.7:0", "[2001:db8::9]:0"]);
    }
}
