//! Where a request comes from, in the words of whoever stands before this proxy: `original_ip_detection_extensions`.
//! Without any the addresses of `x-forwarded-for` are believed as far as `xff_num_trusted_hops` says.

use std::net::IpAddr;

use nuncio_api::pb::envoy::config::core::v3::TypedExtensionConfig;
use nuncio_api::pb::envoy::extensions::http::original_ip_detection::{custom_header, xff};
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::http::HeaderMap;
use nuncio_core::net::CidrRange;

supports!(XFF = "envoy.extensions.http.original_ip_detection.xff.v3.XffConfig" {
    xff_num_trusted_hops, xff_trusted_cidrs, skip_xff_append
});
supports!(XFF_CIDRS = "envoy.extensions.http.original_ip_detection.xff.v3.XffTrustedCidrs" { cidrs });
supports!(CUSTOM = "envoy.extensions.http.original_ip_detection.custom_header.v3.CustomHeaderConfig" {
    header_name, allow_extension_to_set_address_as_trusted, reject_with_status
});

pub(super) static SUPPORTED: &[&Entry] = &[&XFF, &XFF_CIDRS, &CUSTOM];

/// One way to find the client's address.
#[derive(Debug, Clone, PartialEq)]
pub enum Detection {
    /// The address so many from the right of `x-forwarded-for`.
    Xff { hops: u32, skip_append: bool },
    /// The last address of `x-forwarded-for` that is in none of the ranges, if the peer is in one.
    TrustedRanges { ranges: Box<[CidrRange]>, skip_append: bool },
    Header {
        name: Box<str>,
        /// The address may make the request an internal one.
        trusted: bool,
        /// The status of the answer to a request without such an address.
        reject: Option<u16>,
    },
}

/// What one detection says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detected {
    /// Ask the next one.
    Nothing,
    /// The peer's own address is to be added to `x-forwarded-for`.
    Append,
    Address {
        ip: IpAddr,
        trusted: bool,
        skip_append: bool,
    },
    Rejected(u16),
}

impl Detection {
    pub fn from_protos(protos: &[TypedExtensionConfig]) -> Result<Vec<Self>, ConfigError> {
        let read = |(i, proto): (usize, &TypedExtensionConfig)| {
            Self::from_proto(proto).map_err(|e| e.within(&format!("original_ip_detection_extensions[{i}]")))
        };
        protos.iter().enumerate().map(read).collect()
    }

    fn from_proto(proto: &TypedExtensionConfig) -> Result<Self, ConfigError> {
        let at = |e: ConfigError| e.within("typed_config");
        let Some(any) = &proto.typed_config else {
            return Err(ConfigError::new("typed_config", "value is required"));
        };
        match nuncio_api::any::type_name(&any.type_url) {
            name if name == XFF.message => {
                let config: xff::v3::XffConfig = unpack(any).map_err(|e| at(ConfigError::new(e.path, e.reason)))?;
                Self::xff(&config).map_err(at)
            }
            name if name == CUSTOM.message => {
                let config: custom_header::v3::CustomHeaderConfig =
                    unpack(any).map_err(|e| at(ConfigError::new(e.path, e.reason)))?;
                let reject = config.reject_with_status.map(|status| status.code as u16);
                Ok(Self::Header {
                    name: config.header_name.to_ascii_lowercase().into(),
                    trusted: config.allow_extension_to_set_address_as_trusted,
                    // As Envoy: what is no error becomes one.
                    reject: reject.map(|code| if code < 400 { 403 } else { code }),
                })
            }
            _ => Err(ConfigError::new(
                "",
                format!(
                    "Didn't find a registered implementation for '{}' with type URL: '{}'",
                    proto.name, any.type_url
                ),
            )),
        }
    }

    fn xff(config: &xff::v3::XffConfig) -> Result<Self, ConfigError> {
        let skip_append = config.skip_xff_append.is_none_or(|v| v.value);
        let Some(trusted) = &config.xff_trusted_cidrs else {
            return Ok(Self::Xff { hops: config.xff_num_trusted_hops, skip_append });
        };
        if config.xff_num_trusted_hops > 0 {
            return Err(ConfigError::new("", "Cannot set both xff_num_trusted_hops and xff_trusted_cidrs"));
        }
        let ranges = trusted.cidrs.iter().enumerate().map(|(i, range)| {
            let ip = range.address_prefix.parse().map_err(|_| {
                let text = format!("malformed IP address: {}", range.address_prefix);
                ConfigError::new(format!("xff_trusted_cidrs.cidrs[{i}].address_prefix"), text)
            })?;
            Ok(CidrRange::new(ip, range.prefix_len.as_ref().map_or(0, |len| len.value.min(128) as u8)))
        });
        Ok(Self::TrustedRanges { ranges: ranges.collect::<Result<_, ConfigError>>()?, skip_append })
    }

    pub(super) fn detect(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Detected {
        match self {
            Self::Xff { hops, skip_append } => {
                let xff = headers.get("x-forwarded-for");
                let single = xff.is_some_and(|xff| !xff.contains(&b','));
                match from_xff(xff, *hops) {
                    Some(ip) => Detected::Address { ip, trusted: single && *hops == 0, skip_append: *skip_append },
                    None if *skip_append => Detected::Nothing,
                    None => Detected::Append,
                }
            }
            Self::TrustedRanges { ranges, skip_append } => {
                let known = |ip: IpAddr| ranges.iter().any(|range| range.contains(ip));
                if !peer.is_some_and(known) {
                    return Detected::Nothing;
                }
                let (mut found, mut seen) = (None, 0);
                for entry in headers.get("x-forwarded-for").unwrap_or_default().rsplit(|b| *b == b',') {
                    let Some(ip) = parse(entry) else { break };
                    (found, seen) = (Some(ip), seen + 1);
                    if !known(ip) {
                        break;
                    }
                }
                match found {
                    Some(ip) => Detected::Address { ip, trusted: seen == 1, skip_append: *skip_append },
                    None if *skip_append => Detected::Nothing,
                    None => Detected::Append,
                }
            }
            Self::Header { name, trusted, reject } => match (headers.get(name).and_then(parse), reject) {
                (Some(ip), _) => Detected::Address { ip, trusted: *trusted, skip_append: true },
                (None, Some(status)) => Detected::Rejected(*status),
                (None, None) => Detected::Nothing,
            },
        }
    }
}

/// The address `hops` from the right of x-forwarded-for, if it is one.
pub(super) fn from_xff(xff: Option<&[u8]>, hops: u32) -> Option<IpAddr> {
    parse(xff?.rsplit(|b| *b == b',').nth(hops as usize)?)
}

fn parse(text: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn xff(text: &str) -> HeaderMap {
        [("x-forwarded-for", text)].into_iter().collect()
    }

    #[test]
    fn hops_are_counted_from_the_right_and_only_a_lone_address_is_trusted() {
        let of = |hops| Detection::Xff { hops, skip_append: true };
        let both = xff("1.1.1.1, 2.2.2.2");
        let address = |text, trusted| Detected::Address { ip: ip(text), trusted, skip_append: true };
        assert_eq!(of(1).detect(&both, None), address("1.1.1.1", false));
        assert_eq!(of(0).detect(&both, None), address("2.2.2.2", false));
        assert_eq!(of(2).detect(&both, None), Detected::Nothing);
        assert_eq!(of(0).detect(&xff("1.1.1.1"), None), address("1.1.1.1", true));
        assert_eq!(of(0).detect(&xff("nonsense"), None), Detected::Nothing);
    }

    #[test]
    fn the_last_address_outside_the_trusted_ranges_is_the_clients() {
        let ranges = [CidrRange::new(ip("10.0.0.0"), 8)].into();
        let detection = Detection::TrustedRanges { ranges, skip_append: true };
        let header = xff("6.6.6.6, 9.9.9.9, 10.0.0.1, 10.0.0.2");
        let found = detection.detect(&header, Some(ip("10.9.9.9")));
        assert_eq!(found, Detected::Address { ip: ip("9.9.9.9"), trusted: false, skip_append: true });
        assert_eq!(detection.detect(&header, Some(ip("7.7.7.7"))), Detected::Nothing);
    }

    #[test]
    fn a_request_without_the_header_is_rejected_where_that_is_asked_for() {
        let of = |reject| Detection::Header { name: "x-real-ip".into(), trusted: false, reject };
        assert_eq!(of(Some(403)).detect(&HeaderMap::new(), None), Detected::Rejected(403));
        assert_eq!(of(None).detect(&HeaderMap::new(), None), Detected::Nothing);
        let with_port = [("x-real-ip", "1.2.3.4:80")].into_iter().collect();
        assert_eq!(of(Some(402)).detect(&with_port, None), Detected::Rejected(402));
    }
}
