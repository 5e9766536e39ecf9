//! Addresses and socket options, from configuration to the socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_core::error::ConfigError;
use nuncio_core::net::Address;
use nuncio_core::net::connect::{Keepalive, SocketOption, SocketState};
use socket2::{Socket, TcpKeepalive};

use super::sys;

/// Reads an address that must not be a name: listeners, admin, source addresses.
pub fn address(message: &pb::Address) -> Result<Address, ConfigError> {
    use pb::address::Address as Kind;
    match &message.address {
        Some(Kind::SocketAddress(socket)) => {
            socket_address(socket).map(Address::Ip).map_err(|e| e.within("socket_address"))
        }
        Some(Kind::Pipe(pipe)) => pipe_path(&pipe.path).map_err(|e| e.within("pipe")),
        Some(Kind::EnvoyInternalAddress(_)) => {
            Err(ConfigError::new("envoy_internal_address", "internal addresses are not implemented here"))
        }
        None => Err(ConfigError::new("", "address is necessary")),
    }
}

fn socket_address(message: &pb::SocketAddress) -> Result<SocketAddr, ConfigError> {
    use pb::socket_address::PortSpecifier;
    let port = match &message.port_specifier {
        None => 0,
        Some(PortSpecifier::PortValue(port)) => {
            u16::try_from(*port).map_err(|_| ConfigError::new("port_value", format!("{port} is no port")))?
        }
        Some(PortSpecifier::NamedPort(_)) => {
            return Err(ConfigError::new("named_port", "IP resolver can't handle port specifier type 4"));
        }
    };
    let ip: IpAddr = message
        .address
        .parse()
        .map_err(|_| ConfigError::new("address", format!("malformed IP address: {}", message.address)))?;
    let address = SocketAddr::new(ip, port);
    if message.ipv4_compat && !may_be_compatible(ip) {
        let reason = format!("Only IPv6 address '::' or valid IPv4-mapped IPv6 address can set ipv4_compat: {address}");
        return Err(ConfigError::new("ipv4_compat", reason));
    }
    Ok(address)
}

fn may_be_compatible(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unspecified() || v6.to_ipv4_mapped().is_some())
}

/// `sun_path` holds 108 bytes, one of them for the end.
fn pipe_path(path: &str) -> Result<Address, ConfigError> {
    if path.len() > 107 {
        let reason = format!("Path \"{path}\" exceeds maximum UNIX domain socket path size of 108.");
        return Err(ConfigError::new("path", reason));
    }
    Ok(Address::Pipe(path.into()))
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

    fn socket(address: &str, compat: bool) -> pb::Address {
        let port = pb::socket_address::PortSpecifier::PortValue(80);
        let s = pb::SocketAddress {
            address: address.into(),
            port_specifier: Some(port),
            ipv4_compat: compat,
            ..Default::default()
        };
        pb::Address { address: Some(pb::address::Address::SocketAddress(s)) }
    }

    #[test]
    fn addresses_are_refused_in_envoys_words() {
        assert_eq!(address(&socket("::1", false)).unwrap().to_string(), "[::1]:80");
        assert_eq!(address(&socket("localhost", false)).unwrap_err().reason, "malformed IP address: localhost");
        assert_eq!(
            address(&socket("127.0.0.1", true)).unwrap_err().to_string(),
            "socket_address.ipv4_compat: Only IPv6 address '::' or valid IPv4-mapped IPv6 address can set ipv4_compat: 127.0.0.1:80"
        );
        assert!(address(&socket("::", true)).is_ok());
        assert_eq!(address(&pb::Address::default()).unwrap_err().reason, "address is necessary");
    }

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
