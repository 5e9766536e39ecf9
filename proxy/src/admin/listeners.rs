//! `/listeners` and `/drain_listeners`.

use std::fmt;
use std::fmt::Write;
use std::rc::Rc;

use nuncio_core::net::Address;
use serde_json::{Value, json};

use super::answer::json_text;
use super::{Answer, Chunks, ContentType, Page, Param, ParamKind, Query};

/// An active listener as the pages show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerView {
    pub name: String,
    /// Where it listens; its own address first, then the additional ones.
    pub addresses: Vec<Address>,
}

/// What `/drain_listeners` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerDrain {
    /// Connections are asked to go for the drain time before the listeners stop.
    pub graceful: bool,
    /// The listeners never stop.
    pub skip_exit: bool,
    /// Only those whose `traffic_direction` is INBOUND.
    pub inbound_only: bool,
}

const FORMAT: &[Param] = &[Param { name: "format", help: "kind of output", kind: ParamKind::OneOf(&["text", "json"]) }];

const DRAIN: &[Param] = &[
    Param { name: "graceful", help: "ask connections to go for the drain time, then stop", kind: ParamKind::Flag },
    Param { name: "skip_exit", help: "ask connections to go, but do not stop", kind: ParamKind::Flag },
    Param { name: "inboundonly", help: "only listeners whose traffic_direction is INBOUND", kind: ParamKind::Flag },
];

pub fn pages(listeners: impl Fn() -> Vec<ListenerView> + 'static, drain: Rc<dyn Fn(ListenerDrain)>) -> Vec<Page> {
    vec![
        Page::new("/listeners", "print listener info", move |query| answer(listeners(), query)).with_params(FORMAT),
        Page::act("/drain_listeners", "drain listeners", move |query| {
            drain(ListenerDrain {
                graceful: query.has("graceful"),
                skip_exit: query.has("skip_exit"),
                inbound_only: query.has("inboundonly"),
            });
            Answer::ok()
        })
        .with_params(DRAIN),
    ]
}

fn answer(listeners: Vec<ListenerView>, query: &Query) -> Answer {
    match query.get("format") {
        Some("json") => Answer::rendered(ContentType::Json, move |out| write_json(&listeners, out)),
        _ => Answer::rendered(ContentType::Text, move |out| write_text(&listeners, out)),
    }
}

fn write_text(listeners: &[ListenerView], out: &mut Chunks) -> fmt::Result {
    listeners.iter().try_for_each(|listener| {
        listener.addresses.iter().try_for_each(|address| writeln!(out, "{}::{address}", listener.name))
    })
}

/// `envoy.admin.v3.Listeners`.
fn write_json(listeners: &[ListenerView], out: &mut Chunks) -> fmt::Result {
    let status = |listener: &ListenerView| {
        let mut status = json!({"name": listener.name});
        let mut addresses = listener.addresses.iter().map(address_json);
        if let Some(first) = addresses.next() {
            status["local_address"] = first;
        }
        let additional: Vec<Value> = addresses.collect();
        if !additional.is_empty() {
            status["additional_local_addresses"] = additional.into();
        }
        status
    };
    let all: Vec<Value> = listeners.iter().map(status).collect();
    let message = if all.is_empty() { json!({}) } else { json!({ "listener_statuses": all }) };
    out.write_str(&json_text(&message))
}

/// `envoy.config.core.v3.Address`.
pub(super) fn address_json(address: &Address) -> Value {
    match address {
        Address::Ip(ip) => json!({"socket_address": {"address": ip.ip().to_string(), "port_value": ip.port()}}),
        Address::Pipe(path) => json!({"pipe": {"path": &**path}}),
        Address::Internal { listener, endpoint } => {
            let mut internal = json!({"server_listener_name": &**listener});
            if !endpoint.is_empty() {
                internal["endpoint_id"] = (&**endpoint).into();
            }
            json!({"envoy_internal_address": internal})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn views() -> Vec<ListenerView> {
        let ip = |text: &str| Address::Ip(text.parse().unwrap());
        vec![
            ListenerView { name: "in".into(), addresses: vec![ip("127.0.0.1:19900"), ip("127.0.0.1:19910")] },
            ListenerView { name: "ux".into(), addresses: vec![Address::Pipe("/tmp/ux.sock".into())] },
            ListenerView { name: "six".into(), addresses: vec![ip("[::1]:19911")] },
        ]
    }

    #[test]
    fn listeners_are_printed_as_envoy_prints_them() {
        let text = answer(views(), &Query::parse("format=nope")).into_text();
        let expected = "in::127.0.0.1:19900\nin::127.0.0.1:19910\nux::/tmp/ux.sock\nsix::[::1]:19911\n";
        assert_eq!(text, expected);
        // From Envoy 1.40, but for the names.
        let expected = json!({"listener_statuses": [
            {"name": "in", "local_address": {"socket_address": {"address": "127.0.0.1", "port_value": 19900}},
             "additional_local_addresses": [{"socket_address": {"address": "127.0.0.1", "port_value": 19910}}]},
            {"name": "ux", "local_address": {"pipe": {"path": "/tmp/ux.sock"}}},
            {"name": "six", "local_address": {"socket_address": {"address": "::1", "port_value": 19911}}},
        ]});
        let json = answer(views(), &Query::parse("format=json")).into_text();
        assert_eq!(json, json_text(&expected));
        assert_eq!(answer(Vec::new(), &Query::parse("format=json")).into_text(), "{}\n");
    }

    #[test]
    fn a_drain_is_asked_for_with_its_flags() {
        let asked = Rc::new(Cell::new(None));
        let drain = {
            let asked = asked.clone();
            Rc::new(move |drain| asked.set(Some(drain)))
        };
        let pages = pages(Vec::new, drain);
        (pages[1].answer)(&Query::parse("graceful&skip_exit"));
        assert_eq!(asked.get(), Some(ListenerDrain { graceful: true, skip_exit: true, inbound_only: false }));
        (pages[1].answer)(&Query::parse("inboundonly=x"));
        assert_eq!(asked.get(), Some(ListenerDrain { graceful: false, skip_exit: false, inbound_only: true }));
    }
}
