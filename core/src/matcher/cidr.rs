//! Lists of address ranges.

use std::net::IpAddr;

use nuncio_api::pb::envoy::config::core::v3 as core_pb;
use nuncio_api::pb::envoy::r#type::matcher::v3 as matcher_pb;
use nuncio_api::supports;

use crate::error::ConfigError;
use crate::net::CidrRange;

supports!(pub(super) RANGE = "envoy.config.core.v3.CidrRange" { address_prefix, prefix_len });
supports!(pub(super) XDS_RANGE = "xds.core.v3.CidrRange" { address_prefix, prefix_len });
supports!(pub(super) ADDRESS = "envoy.type.matcher.v3.AddressMatcher" { ranges, invert_match });

/// Matches an address that lies in one of the ranges.
#[derive(Debug, Clone, Default)]
pub struct CidrList {
    ranges: Vec<CidrRange>,
    invert: bool,
}

impl CidrList {
    pub fn from_proto(messages: &[core_pb::CidrRange]) -> Result<Self, ConfigError> {
        let parts = messages.iter().map(|m| (m.address_prefix.as_str(), m.prefix_len.map(|l| l.value)));
        Ok(Self { ranges: parse(parts)?, invert: false })
    }

    /// `type.matcher.v3.AddressMatcher`.
    pub fn from_address_matcher(message: &matcher_pb::AddressMatcher) -> Result<Self, ConfigError> {
        let parts = message.ranges.iter().map(|m| (m.address_prefix.as_str(), m.prefix_len.map(|l| l.value)));
        Ok(Self { ranges: parse(parts).map_err(|e| e.within("ranges"))?, invert: message.invert_match })
    }

    pub fn matches(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|r| r.contains(address)) != self.invert
    }
}

fn parse<'a>(parts: impl Iterator<Item = (&'a str, Option<u32>)>) -> Result<Vec<CidrRange>, ConfigError> {
    parts
        .enumerate()
        .map(|(i, (address, len))| match address.parse::<IpAddr>() {
            Ok(ip) => Ok(CidrRange::new(ip, len.unwrap_or(0).min(255) as u8)),
            Err(_) => {
                Err(ConfigError::new(format!("[{i}].address_prefix"), format!("malformed IP address: {address}")))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_enough_and_a_bad_address_is_named() {
        let range = |a: &str, len: Option<u32>| core_pb::CidrRange {
            address_prefix: a.into(),
            prefix_len: len.map(|value| nuncio_api::pb::google::protobuf::UInt32Value { value }),
        };
        let list = CidrList::from_proto(&[range("10.0.0.0", Some(8)), range("::1", Some(128))]).unwrap();
        assert!(list.matches("10.9.8.7".parse().unwrap()));
        assert!(list.matches("::1".parse().unwrap()));
        assert!(!list.matches("11.0.0.1".parse().unwrap()));
        let error = CidrList::from_proto(&[range("10.0.0.0", None), range("ten", None)]).unwrap_err();
        assert_eq!(error.to_string(), "[1].address_prefix: malformed IP address: ten");
    }
}
