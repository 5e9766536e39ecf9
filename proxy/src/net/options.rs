//! Addresses and socket options, from configuration to the socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_core::error::ConfigError;
use nuncio_core::net::connect::{Keepalive, SocketOption, SocketState};
use nuncio_core::net::{Address, ConnectOptions, OriginalSource};
use socket2::{Socket, TcpKeepalive};

use super::sys;

/// Reads an address of a real socket, which must not be a name: listeners, admin, source addresses.
pub fn address(message: &pb::Address) -> Result<Address, ConfigError> {
    match Address::from_proto(message)? {
        Address::Internal { .. } => {
            Err(ConfigError::new("envoy_internal_address", "internal addresses are not implemented here"))
        }
        address => Ok(address),
    }
}

/// `core.v3.SocketOption`s. Those for datagram sockets only are left out.
pub fn socket_options(messages: &[pb::SocketOption]) -> Vec<SocketOption> {
    use pb::socket_option::{SocketState as State, Value};
    messages
        .iter()
        .filter(|m| m.r#type.as_ref().is_none_or(|t| t.stream.is_some() || t.datagram.is_none()))
        .map(|m| SocketOption {
            // The kernel's numbers are ints; what does not fit is refused by the kernel.
            level: i32::try_from(m.level).unwrap_or(-1),
            name: i32::try_from(m.name).unwrap_or(-1),
            value: match &m.value {
                // Envoy hands the kernel an int.
                Some(Value::IntValue(n)) => i32::try_from(*n).unwrap_or(i32::MAX).to_ne_bytes().to_vec(),
                Some(Value::BufValue(bytes)) => bytes.clone(),
                None => Vec::new(),
            },
            state: match State::try_from(m.state) {
                Ok(State::StateBound) => SocketState::Bound,
                Ok(State::StateListening) => SocketState::Listening,
                Ok(State::StatePrebind) | Err(_) => SocketState::PreBind,
            },
        })
        .collect()
}

/// `core.v3.TcpKeepalive`.
pub fn keepalive(message: &pb::TcpKeepalive) -> Keepalive {
    let seconds = |v: &nuncio_api::pb::google::protobuf::UInt32Value| Duration::from_secs(v.value.into());
    Keepalive {
        probes: message.keepalive_probes.as_ref().map(|v| v.value),
        time: message.keepalive_time.as_ref().map(seconds),
        interval: message.keepalive_interval.as_ref().map(seconds),
    }
}

/// The cluster's `options` for a connection that comes from its client's address: the kernel lets a transparent socket
/// have it, and routes the answers here by the mark.
pub fn from_client(options: &ConnectOptions, source: OriginalSource) -> ConnectOptions {
    use nix::libc::{IP_TRANSPARENT, IPV6_TRANSPARENT, SO_MARK, SOL_IP, SOL_IPV6, SOL_SOCKET};
    let option =
        |level, name, value: [u8; 4]| SocketOption { level, name, value: value.to_vec(), state: SocketState::PreBind };
    let mut options = options.clone();
    options.source = Some(Address::Ip(SocketAddr::new(source.address, 0)));
    let (level, name) = if source.address.is_ipv6() { (SOL_IPV6, IPV6_TRANSPARENT) } else { (SOL_IP, IP_TRANSPARENT) };
    options.socket_options.push(option(level, name, 1i32.to_ne_bytes()));
    if source.mark != 0 {
        options.socket_options.push(option(SOL_SOCKET, SO_MARK, source.mark.to_ne_bytes()));
    }
    options
}

/// Sets the options of one state. An error names the option, since the kernel's text does not.
pub(super) fn apply(socket: &Socket, options: &[SocketOption], state: SocketState) -> io::Result<()> {
    for o in options.iter().filter(|o| o.state == state) {
        sys::set_socket_option(socket, o.level, o.name, &o.value).map_err(|e| {
            io::Error::new(e.kind(), format!("setting socket option level {} name {}: {e}", o.level, o.name))
        })?;
    }
    Ok(())
}

pub(super) fn apply_keepalive(socket: &Socket, keepalive: &Keepalive) -> io::Result<()> {
    let mut set = TcpKeepalive::new();
    if let Some(time) = keepalive.time {
        set = set.with_time(time);
    }
    if let Some(interval) = keepalive.interval {
        set = set.with_interval(interval);
    }
    if let Some(probes) = keepalive.probes {
        set = set.with_retries(probes);
    }
    socket.set_tcp_keepalive(&set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_keeps_its_state_and_an_integer_becomes_an_int() {
        let message = pb::SocketOption {
            level: 6,
            name: 23,
            state: pb::socket_option::SocketState::StateListening.into(),
            value: Some(pb::socket_option::Value::IntValue(5)),
            ..Default::default()
        };
        let read = socket_options(&[message]);
        assert_eq!(read[0].state, SocketState::Listening);
        assert_eq!(read[0].value, 5i32.to_ne_bytes());
    }
}
