//! Upgrades: requests that ask for another protocol on their stream, CONNECT among them.
//!
//! Allowed ones go upstream as they are, and what the client sends is held until the upstream agrees; then bytes flow
//! both ways as bodies without end. All others are 403, so that nothing is forwarded whose framing nobody watches.

use nuncio_api::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpFilter, http_connection_manager::UpgradeConfig,
};
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;

use crate::http::router::RouteUpgrade;

supports!(pub(super) UPGRADE =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.UpgradeConfig" {
    upgrade_type, enabled, filters,
});

/// What a stream has to do with upgrades.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Upgrade {
    #[default]
    None,
    /// Asked for and allowed; the upstream has not answered.
    Wanted,
    /// Bytes flow.
    Accepted,
}

/// `upgrade_configs` of a connection manager.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upgrades(Vec<Kind>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Kind {
    /// In small letters.
    name: Box<str>,
    enabled: bool,
    /// Which of the manager's lists of filters such streams pass.
    filters: usize,
}

impl Upgrades {
    /// `filters` reads a list that is not empty, and tells its place among the manager's lists.
    pub fn from_proto(
        messages: &[UpgradeConfig],
        mut filters: impl FnMut(usize, &[HttpFilter]) -> usize,
    ) -> Result<Self, ConfigError> {
        let mut all: Vec<Kind> = Vec::with_capacity(messages.len());
        for (i, message) in messages.iter().enumerate() {
            let name: Box<str> = message.upgrade_type.to_ascii_lowercase().into();
            if all.iter().any(|other| other.name == name) {
                let reason = format!("Error: multiple upgrade configs with the same name: '{}'", message.upgrade_type);
                return Err(ConfigError::new(format!("[{i}]"), reason));
            }
            let enabled = message.enabled.is_none_or(|enabled| enabled.value);
            let filters = if message.filters.is_empty() { 0 } else { filters(i, &message.filters) };
            all.push(Kind { name, enabled, filters });
        }
        Ok(Self(all))
    }

    /// What the route says goes first.
    pub fn allow(&self, kind: &[u8], route: &[RouteUpgrade]) -> bool {
        match route.iter().find(|upgrade| kind.eq_ignore_ascii_case(upgrade.kind.as_bytes())) {
            Some(upgrade) => upgrade.enabled,
            None => self.find(kind).is_some_and(|own| own.enabled),
        }
    }

    /// Which of the manager's lists of filters streams of that kind pass, whoever allowed them.
    pub fn filters(&self, kind: &[u8]) -> usize {
        self.find(kind).map_or(0, |own| own.filters)
    }

    fn find(&self, kind: &[u8]) -> Option<&Kind> {
        self.0.iter().find(|own| kind.eq_ignore_ascii_case(own.name.as_bytes()))
    }
}

/// Which upgrade a request asks for, if any. The codecs leave `upgrade` only where it is one.
pub fn wanted(request: &RequestHead) -> Option<&[u8]> {
    if request.method() == b"CONNECT" { Some(b"connect") } else { request.headers.get("upgrade") }
}

#[cfg(test)]
mod tests {
    use nuncio_testkit::http2::Client;
    use nuncio_testkit::http2::frame::{flag, frame, kind::*};
    use nuncio_testkit::http2::hpack::block;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::http::filters::testing::{Bench, FILTERS};

    fn configs(kinds: &[(&str, Option<bool>)]) -> Result<Upgrades, ConfigError> {
        let messages: Vec<_> = kinds
            .iter()
            .map(|(kind, enabled)| UpgradeConfig {
                upgrade_type: (*kind).into(),
                enabled: enabled.map(|value| nuncio_api::pb::google::protobuf::BoolValue { value }),
                ..Default::default()
            })
            .collect();
        Upgrades::from_proto(&messages, |_, _| 0)
    }

    fn route(kind: &str, enabled: bool) -> RouteUpgrade {
        RouteUpgrade { kind: kind.into(), enabled, terminates_connect: false, allow_post: false }
    }

    #[test]
    fn the_route_decides_before_the_manager_and_case_does_not_matter() {
        let manager = configs(&[("WebSocket", None), ("CONNECT", Some(false))]).unwrap();
        assert!(manager.allow(b"websocket", &[]) && manager.allow(b"WEBSOCKET", &[route("connect", true)]));
        assert!(!manager.allow(b"websocket", &[route("websocket", false)]));
        assert!(!manager.allow(b"connect", &[]) && manager.allow(b"connect", &[route("connect", true)]));
        assert!(!manager.allow(b"foo", &[]));
        assert!(configs(&[("a", None), ("A", None)]).is_err());
    }

    // Expected: Envoy 1.40 with these lists of filters.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn an_upgrade_with_filters_of_its_own_passes_those_and_no_others() {
        let filter = |value: &str| {
            format!(
                "{{name: m{value}, typed_config: {{'@type': {FILTERS}.header_mutation.v3.HeaderMutation, mutations: \
                 {{request_mutations: [{{append: {{header: {{key: x-list, value: {value}}}}}}}]}}}}}}"
            )
        };
        let bench = Bench::with(&format!(
            "{{stat_prefix: in, http_filters: [{}, ROUTER], upgrade_configs: [{{upgrade_type: websocket, filters: [{}, \
             ROUTER]}}, {{upgrade_type: foo}}, {{upgrade_type: aside, enabled: false, filters: [{}, ROUTER]}}], route_config: \
             {{virtual_hosts: [{{name: v, domains: ['*'], routes: [{{match: {{prefix: /on}}, route: {{cluster: c, \
             upgrade_configs: [{{upgrade_type: aside}}]}}}}, {{match: {{prefix: /}}, route: {{cluster: c}}, \
             typed_per_filter_config: {{mbare: {{'@type': type.googleapis.com/envoy.config.route.v3.FilterConfig, \
             disabled: true}}}}}}]}}]}}}}",
            filter("plain"),
            [filter("bare"), filter("own")].join(", "),
            filter("route"),
        ));
        let ask = async |path: &str, kind: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: {kind}\r\n\r\n");
            let answer = "HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n";
            let answer = bench.ask(request, answer).await;
            (answer.status().to_owned(), answer.upstream_field("x-list").unwrap_or_default().to_owned())
        };
        let said = |status: &str, list: &str| (status.to_owned(), list.to_owned());
        assert_eq!(ask("/", "websocket").await, said("409", "own"));
        assert_eq!(ask("/", "foo").await, said("409", "plain"));
        assert_eq!(ask("/", "aside").await, said("403", ""));
        // The route allows what the manager does not; the list is that of the manager.
        assert_eq!(ask("/on", "aside").await, said("409", "route"));
        // The record of a stream is used again with the list of requests.
        assert_eq!(bench.get("/", "").await.upstream_field("x-list"), Some("plain"));
    }

    // Expected: Envoy 1.40, also for HTTP/2, where the body below 400 would be the WebSocket's bytes.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn the_body_of_a_handshake_that_failed_without_an_error_goes_no_further() {
        let routes = "route_config: {virtual_hosts: [{name: v, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: c}}]}]}";
        let bench = Bench::with(&format!(
            "{{stat_prefix: in, http_filters: [ROUTER], http2_protocol_options: {{allow_connect: true}}, upgrade_configs: \
             [{{upgrade_type: websocket}}, {{upgrade_type: foo}}], {routes}}}"
        ));
        for (kind, status, body) in [
            ("websocket", "200 OK", ""),
            ("WebSocket", "302 Found", ""),
            ("websocket", "400 Bad Request", "body"),
            ("foo", "200 OK", "body"),
        ] {
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\n\r\nbody");
            let request = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: {kind}\r\n\r\n");
            let http1 = bench.ask(request, &answer).await;
            assert_eq!((http1.status(), http1.body()), (&status[..3], body), "{kind} {status}");
            assert_eq!(http1.field("content-length"), Some(if body.is_empty() { "0" } else { "4" }), "{kind} {status}");
            let mut client = Client::new(bench.connect());
            client.shake_hands(&[]).await;
            let fields =
                [(":method", "CONNECT"), (":protocol", kind), (":scheme", "http"), (":authority", "a"), (":path", "/")];
            client.write(&frame(HEADERS, flag::END_HEADERS, 1, &block(&fields))).await;
            let upstream = async {
                let mut far = bench.house.net.next().await;
                far.request().await;
                let mut stream = far.into_stream();
                stream.write_all(answer.as_bytes()).await.unwrap();
                std::future::pending::<()>().await;
            };
            let http2 = tokio::select! {
                answer = client.answer(1) => answer.unwrap(),
                () = upstream => unreachable!("it stays"),
            };
            assert_eq!(
                (http2.status.to_string().as_str(), &*http2.body),
                (&status[..3], body.as_bytes()),
                "{kind} {status}"
            );
        }
    }

    // What the upstream sent before it closed was lost with a reset; Envoy 1.40 passes it on.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn the_last_words_of_an_upgraded_upstream_reach_the_client() {
        let routes = "route_config: {virtual_hosts: [{name: v, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: c}}]}]}";
        let bench = Bench::with(&format!(
            "{{stat_prefix: in, http_filters: [ROUTER], upgrade_configs: [{{upgrade_type: websocket}}], {routes}}}"
        ));
        let request = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        for words in ["", "goodbye"] {
            let answer = bench.ask(request, format!("{head}{words}")).await;
            assert_eq!((answer.status(), answer.body()), ("101", words));
        }
    }
}
