//! `google.protobuf.Any`: from a type URL to the message it names, and to the typed message that a consumer wants.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use prost::{Message, Name};

use crate::diag::{ConfigError, Findings, Path, Severity, nearest};
use crate::encode::{Encoder, Whole};
use crate::pb::google::protobuf::{Any, Struct};
use crate::pool::{self, TYPED_STRUCTS};
use crate::read::{ReadLimits, tree_of_struct};
use crate::shape::{Shape, shape_named};
use crate::unknown::UnknownFields;

/// What comes after the last slash of a type URL.
pub fn type_name(url: &str) -> &str {
    url.rsplit_once('/').map_or(url, |(_, name)| name)
}

/// What is in an `Any`.
#[derive(Debug)]
pub struct Opened<'a> {
    pub type_name: Cow<'a, str>,
    pub bytes: Cow<'a, [u8]>,
}

/// The message in `any`, also if it travels as a generic object (`TypedStruct`).
pub fn open(any: &Any) -> Result<Opened<'_>, ConfigError> {
    let name = type_name(&any.type_url);
    if TYPED_STRUCTS.contains(&name) {
        let (shape, bytes) =
            open_typed_struct(&any.value, UnknownFields::Ignore).map_err(|text| ConfigError::new("", text))?;
        return Ok(Opened { type_name: Cow::Owned(shape.name().to_owned()), bytes: Cow::Owned(bytes) });
    }
    Ok(Opened { type_name: Cow::Borrowed(name), bytes: Cow::Borrowed(&any.value) })
}

/// The typed message in `any`, which must be a `T`.
pub fn unpack<T: Message + Name + Default>(any: &Any) -> Result<T, ConfigError> {
    decode(&open_as::<T>(any)?)
}

/// The encoded message in `any`, which must be a `T`.
pub fn open_as<T: Name>(any: &Any) -> Result<Cow<'_, [u8]>, ConfigError> {
    let opened = open(any)?;
    if opened.type_name != T::full_name() {
        return Err(ConfigError::new("", format!("expected a {}, found a {}", T::full_name(), opened.type_name)));
    }
    Ok(opened.bytes)
}

/// Decodes checked bytes. They can still be nested too deeply for the decoder.
pub fn decode<T: Message + Name + Default>(bytes: &[u8]) -> Result<T, ConfigError> {
    T::decode(bytes).map_err(|e| ConfigError::new("", format!("cannot be decoded as {}: {e}", T::full_name())))
}

/// An `Any` of a message.
pub fn pack<T: Message + Name>(message: &T) -> Any {
    Any { type_url: T::type_url(), value: message.encode_to_vec() }
}

/// The shape of the message that a type URL names, or a sentence.
pub(crate) fn shape_of(url: &str) -> Result<&'static Shape, String> {
    let name = type_name(url);
    let shown: String = name.chars().take(160).collect();
    if url.find('/').is_none_or(|at| at == 0) {
        return Err(format!("unknown @type `{shown}`: write it as `type.googleapis.com/{shown}`"));
    }
    if let Some(found) = shape_named(name) {
        return Ok(found);
    }
    if pool::NEWER_MESSAGES.contains(&name) {
        return Err(format!("unsupported type: {shown} is not implemented"));
    }
    Err(match nearest_message(name) {
        Some(near) => format!("unknown @type `{shown}`, did you mean `{near}`?"),
        None => format!("unknown @type `{shown}`"),
    })
}

/// Names that were asked for and are not there, with the nearest that is.
type Misses = HashMap<String, Option<String>>;

/// The search among 1,500 names takes milliseconds: it is made once a name, and only for the first few names.
fn nearest_message(name: &str) -> Option<String> {
    const MOST: usize = 32;
    static MISSES: Mutex<Option<Misses>> = Mutex::new(None);
    let mut misses = MISSES.lock().unwrap_or_else(PoisonError::into_inner);
    let misses = misses.get_or_insert_default();
    if let Some(known) = misses.get(name) {
        return known.clone();
    }
    if misses.len() >= MOST || name.len() > 160 {
        return None;
    }
    let pool = pool::pool();
    let messages: Vec<_> = pool.all_messages().filter(|m| !m.is_map_entry()).collect();
    let names = || messages.iter().map(|m| m.full_name());
    let last = |n: &str| n.rsplit('.').next().map(str::to_owned);
    let near = nearest(name, names()).or_else(|| names().find(|n| last(n) == last(name))).map(str::to_owned);
    misses.insert(name.to_owned(), near.clone());
    near
}

/// A `TypedStruct` that came encoded: the message it names, encoded.
pub(crate) fn open_typed_struct(bytes: &[u8], unknown: UnknownFields) -> Result<(&'static Shape, Vec<u8>), String> {
    let typed = TypedStruct::decode(bytes).map_err(|e| format!("TypedStruct: {e}"))?;
    let shape = shape_of(&typed.type_url)?;
    let mut out = Vec::new();
    if let Some(value) = &typed.value {
        let tree = tree_of_struct(value, &ReadLimits::default())?;
        let mut findings = Findings::default();
        let mut encoder =
            Encoder { findings: &mut findings, unknown, unknown_seen: 0, cut: &mut Whole, last_key_wins: true };
        encoder.message(tree.root(), shape, &Path::Root(""), &mut out);
        if let Some(first) = findings.list.iter().find(|f| f.severity == Severity::Error) {
            return Err(ConfigError::new(first.path.clone(), first.text.clone()).to_string());
        }
    }
    Ok((shape, out))
}

/// `xds.type.v3.TypedStruct`, which the package does not have.
#[derive(Clone, PartialEq, Message)]
struct TypedStruct {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Struct>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::envoy::config::cluster::v3::Cluster;

    #[test]
    fn a_message_is_unpacked_as_what_it_is_and_as_nothing_else() {
        let any = pack(&Cluster { name: "c".to_owned(), ..Cluster::default() });
        assert_eq!(unpack::<Cluster>(&any).unwrap().name, "c");
        let error = unpack::<crate::pb::envoy::config::core::v3::Node>(&any).unwrap_err();
        assert_eq!(error.reason, "expected a envoy.config.core.v3.Node, found a envoy.config.cluster.v3.Cluster");
        let broken = Any { value: vec![0x0a, 9], ..any };
        assert!(unpack::<Cluster>(&broken).unwrap_err().reason.starts_with("cannot be decoded as"));
    }

    #[test]
    fn a_type_that_is_not_there_is_told_with_the_nearest() {
        let text = |url: &str| shape_of(url).map(Shape::name).unwrap_err();
        assert_eq!(
            text("t/envoy.config.cluster.v3.Clustr"),
            "unknown @type `envoy.config.cluster.v3.Clustr`, did you mean `envoy.config.cluster.v3.Cluster`?"
        );
        assert_eq!(
            text("t/a.b.HttpConnectionManager").split_once(", ").unwrap().1,
            "did you mean \
            `envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager`?"
        );
        assert_eq!(text("t/no.such.Thing"), "unknown @type `no.such.Thing`");
        assert_eq!(text("Cluster"), "unknown @type `Cluster`: write it as `type.googleapis.com/Cluster`");
        assert_eq!(
            text("t/xds.type.matcher.v3.IPMatcher"),
            "unsupported type: xds.type.matcher.v3.IPMatcher is not implemented"
        );
    }
}
