//! The JSON of a registry, read host by host: what nobody asks for is passed over where it stands, and the first thing
//! that is wrong ends it. So no answer takes more memory than the hosts in it do.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_api::pb::google::protobuf::{Struct, Value, value::Kind};
use nuncio_core::metadata::Metadata;
use nuncio_core::net::Address;
use nuncio_core::upstream::{HostSpec, Locality};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

/// A whole answer.
#[derive(Default)]
pub(super) struct Registered {
    pub(super) hosts: Vec<HostSpec>,
    /// If the server numbers its lists, as our own does.
    pub(super) version: Option<String>,
}

/// The whole list, or what is wrong with it. Keys that are not known are somebody else's.
pub(super) fn read(text: &[u8]) -> Result<Registered, String> {
    let read: Result<Object<Answer>, _> = serde_json::from_slice(text);
    let Object(answer) = read.map_err(|error| match error.classify() {
        Category::Data => error.to_string(),
        Category::Io | Category::Syntax | Category::Eof => format!("not JSON: {error}"),
    })?;
    let Hosts(hosts) = answer.hosts.ok_or("`hosts` must be a list")?;
    Ok(Registered { hosts, version: answer.version })
}

// === JSON ===

/// Something of which some keys are known.
trait Keys<'de>: Default {
    /// Takes the value of a key that is known; false if it is not.
    fn take<M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<bool, M::Error>;
}

/// An object, and nothing else.
struct Object<T>(T);

impl<'de, T: Keys<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read<T>(PhantomData<T>);

        impl<'de, T: Keys<'de>> Visitor<'de> for Read<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut read = T::default();
                while let Some(key) = map.next_key::<Scalar<'de>>()? {
                    if !read.take(key.as_str().unwrap_or_default(), &mut map)? {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Object(read))
            }
        }

        from.deserialize_map(Read(PhantomData))
    }
}

/// A value of which no more is known than a host may say; of a list or an object, only that it is one.
#[derive(Default)]
enum Scalar<'de> {
    #[default]
    Nothing,
    Bool(bool),
    Number(u64),
    Text(Cow<'de, str>),
    Other,
}

impl Scalar<'_> {
    fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    fn as_u64(&self) -> Option<u64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }
}

impl<'de> Deserialize<'de> for Scalar<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Scalar<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
                Ok(Scalar::Nothing)
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
                Ok(Scalar::Bool(value))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
                Ok(Scalar::Number(value))
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
                Ok(Scalar::Other)
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
                Ok(Scalar::Other)
            }

            fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Self::Value, E> {
                Ok(Scalar::Text(value.into()))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
                Ok(Scalar::Text(value.to_owned().into()))
            }

            fn visit_seq<S: SeqAccess<'de>>(self, seq: S) -> Result<Self::Value, S::Error> {
                IgnoredAny.visit_seq(seq).map(|_| Scalar::Other)
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
                IgnoredAny.visit_map(map).map(|_| Scalar::Other)
            }
        }

        from.deserialize_any(Read)
    }
}

// === what is in it ===

#[derive(Default)]
struct Answer {
    hosts: Option<Hosts>,
    version: Option<String>,
}

impl<'de> Keys<'de> for Answer {
    fn take<M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<bool, M::Error> {
        match key {
            "hosts" => self.hosts = Some(map.next_value()?),
            "version" => {
                self.version = match map.next_value::<Scalar<'de>>()? {
                    Scalar::Text(version) => Some(version.chars().take(128).collect()),
                    Scalar::Number(version) => Some(version.to_string()),
                    _ => None,
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Of those with the same address the first.
struct Hosts(Vec<HostSpec>);

impl<'de> Deserialize<'de> for Hosts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Hosts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`hosts` to be a list")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
                let (mut hosts, mut seen, mut places) = (Vec::new(), HashSet::new(), Places::default());
                let mut at = 0;
                while let Some(Object(entry)) = list.next_element::<Object<Entry<'de>>>()? {
                    let host = entry.host(&mut places);
                    let host = host.map_err(|reason| Error::custom(format_args!("hosts[{at}]{reason}")))?;
                    if seen.insert(host.address.clone()) {
                        hosts.push(host);
                    }
                    at += 1;
                }
                Ok(Hosts(hosts))
            }
        }

        from.deserialize_seq(Read)
    }
}

/// What is said of one host.
#[derive(Default)]
struct Entry<'de> {
    ip_address: Scalar<'de>,
    port: Scalar<'de>,
    tags: Tags<'de>,
}

#[derive(Default)]
struct Tags<'de> {
    region: Scalar<'de>,
    az: Scalar<'de>,
    canary: Scalar<'de>,
    weight: Scalar<'de>,
}

impl<'de> Keys<'de> for Entry<'de> {
    fn take<M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<bool, M::Error> {
        match key {
            "ip_address" => self.ip_address = map.next_value()?,
            "port" => self.port = map.next_value()?,
            "tags" => self.tags = map.next_value::<Option<Object<_>>>()?.map(|Object(tags)| tags).unwrap_or_default(),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl<'de> Keys<'de> for Tags<'de> {
    fn take<M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<bool, M::Error> {
        let tag = match key {
            "region" => &mut self.region,
            "az" => &mut self.az,
            "canary" => &mut self.canary,
            "load_balancing_weight" => &mut self.weight,
            _ => return Ok(false),
        };
        *tag = map.next_value()?;
        Ok(true)
    }
}

impl Entry<'_> {
    fn host(&self, places: &mut Places) -> Result<HostSpec, String> {
        let ip = self.ip_address.as_str().ok_or(".ip_address: must be a string")?;
        let ip: IpAddr = ip.parse().map_err(|_| format!(".ip_address: `{}` is no IP address", shown(ip)))?;
        let port = self.port.as_u64().and_then(|port| u16::try_from(port).ok());
        let port = port.filter(|port| *port != 0).ok_or(".port: must be a number from 1 to 65535")?;
        let mut host = HostSpec::new(Address::Ip(SocketAddr::new(ip, port)));
        let Tags { region, az, canary, weight } = &self.tags;
        host.locality = places.of(text("region", region)?, text("az", az)?);
        match canary {
            Scalar::Nothing | Scalar::Bool(false) => {}
            Scalar::Bool(true) => {
                host.canary = true;
                host.metadata = canary_metadata();
            }
            _ => return Err(".tags.canary: must be true or false".to_owned()),
        }
        host.weight = match weight {
            Scalar::Nothing => 1,
            Scalar::Number(weight @ 1..=100) => *weight as u32,
            _ => return Err(".tags.load_balancing_weight: must be a number from 1 to 100".to_owned()),
        };
        Ok(host)
    }
}

fn text<'a>(tag: &str, value: &'a Scalar<'_>) -> Result<&'a str, String> {
    match value {
        Scalar::Nothing => Ok(""),
        value => value.as_str().ok_or_else(|| format!(".tags.{tag}: must be a string")),
    }
}

/// Localities that were named so far: hosts of the same one share it.
#[derive(Default)]
struct Places(HashSet<Arc<Locality>>);

impl Places {
    fn of(&mut self, region: &str, zone: &str) -> Arc<Locality> {
        if region.is_empty() && zone.is_empty() {
            return Locality::none();
        }
        let place = Locality { region: region.into(), zone: zone.into(), sub_zone: Arc::default() };
        self.0.get(&place).cloned().unwrap_or_else(|| {
            let place = Arc::new(place);
            self.0.insert(place.clone());
            place
        })
    }
}

/// As EDS would say it.
fn canary_metadata() -> Arc<Metadata> {
    let fields = [("canary".to_owned(), Value { kind: Some(Kind::BoolValue(true)) })].into();
    let filter_metadata = [("envoy.lb".to_owned(), Struct { fields })].into();
    Arc::new(Metadata::from_proto(&pb::Metadata { filter_metadata, ..Default::default() }))
}

/// The beginning of a text from outside.
fn shown(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Result<Vec<String>, String> {
        let read = read(text.as_bytes())?;
        Ok(read.hosts.iter().map(|host| format!("{} {}", host.address, host.weight)).collect())
    }

    #[test]
    fn what_nobody_asks_for_is_passed_over_wherever_it_stands() {
        let host =
            r#""ip_address":"10.0.0.1","x":[{"hosts":{}}],"port":80,"tags":{"y":{"az":[]},"load_balancing_weight":7}"#;
        let twice = r#"{"port":80,"\u0069p_address":"10.0.0.1"}"#;
        let text = format!(r#"{{"service":[[]],"hosts":[{{{host}}},{twice}],"version":7,"env":{{"a":1e9}}}}"#);
        assert_eq!(hosts(&text).unwrap(), ["10.0.0.1:80 7"]);
        assert_eq!(read(text.as_bytes()).unwrap().version.as_deref(), Some("7"));
        let none = r#"{"hosts":[{"ip_address":"::1","port":1,"tags":null,"version":{}}]}"#;
        assert_eq!(hosts(none).unwrap(), ["[::1]:1 1"]);
    }

    #[test]
    fn lists_are_no_objects_and_nothing_stands_behind_the_answer() {
        for (text, wrong) in [
            (r#"[[{"ip_address":"10.0.0.1","port":80}]]"#, "invalid type: sequence, expected an object"),
            (r#"{"hosts":[["10.0.0.1",80]]}"#, "invalid type: sequence, expected an object"),
            (r#"{"hosts":[{"ip_address":["10.0.0.1"],"port":80}]}"#, "hosts[0].ip_address: must be a string"),
            (r#"{"hosts":[{"ip_address":"10.0.0.1","port":-80}]}"#, "hosts[0].port: must be a number from 1 to 65535"),
            (r#"{"hosts":[]} {"hosts":[]}"#, "not JSON: trailing characters"),
        ] {
            let said = hosts(text).unwrap_err();
            assert!(said.starts_with(wrong), "{text}: {said}");
        }
    }
}
