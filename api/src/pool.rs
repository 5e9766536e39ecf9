//! The descriptors: every message, enum and annotation that Envoy configuration may use, as `envoy-types` carries them
//! (see build.rs), plus a few messages that it does not have. They take ten megabytes and are needed only to make the
//! shape of a type that is met for the first time, and for a few rare questions: built when asked for, and let go
//! ([`release_pool`]) when the start is over. An xDS update with types that were met needs none of it.

use std::io::Read;
use std::sync::{Mutex, PoisonError};

use flate2::read::ZlibDecoder;
use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};
use prost_reflect::{DescriptorPool, MessageDescriptor};

/// Compressed, as build.rs says: read whole at every start, the plain set would stay in memory as long as the process.
static SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/envoy.fds.z"));

static POOL: Mutex<Option<DescriptorPool>> = Mutex::new(None);

/// All descriptors. Whoever keeps one of them keeps all: only for the time of a call.
pub(crate) fn pool() -> DescriptorPool {
    POOL.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(build).clone()
}

/// Frees the descriptors until they are needed again, which costs some tens of milliseconds then. False: there were
/// none.
pub fn release_pool() -> bool {
    let held = POOL.lock().unwrap_or_else(PoisonError::into_inner).take();
    held.is_some()
}

fn build() -> DescriptorPool {
    let mut pool = DescriptorPool::decode(&*set()).expect("the descriptor set is what build.rs wrote");
    for file in own_files() {
        pool.add_file_descriptor_proto(file).expect("own descriptors are checked by a test");
    }
    pool
}

fn set() -> Vec<u8> {
    let (size, packed) = SET.split_first_chunk().expect("build.rs writes the size first");
    let mut set = Vec::with_capacity(u32::from_le_bytes(*size) as usize);
    ZlibDecoder::new(packed).read_to_end(&mut set).expect("build.rs compressed it");
    set
}

pub(crate) fn message(full_name: &str) -> Option<MessageDescriptor> {
    pool().get_message_by_name(full_name)
}

/// The two names under which a message travels as a generic object.
pub(crate) const TYPED_STRUCTS: [&str; 2] = ["xds.type.v3.TypedStruct", "udpa.type.v1.TypedStruct"];

/// Messages that Envoy 1.40 has and the package does not: said to be not implemented, where others are unknown.
pub(crate) const NEWER_MESSAGES: &[&str] = &[
    "envoy.extensions.http.ai_filters.schema_validation.v3.SchemaValidation",
    "envoy.extensions.http.ai_filters.transcoder.v3.Transcoder",
    "envoy.extensions.router.cluster_specifiers.priority_group.v3.PriorityGroupClusterSpecifier",
    "envoy.extensions.router.cluster_specifiers.priority_group.v3.PriorityGroupsOverride",
    "envoy.extensions.router.route_specifiers.dynamic_modules.v3.DynamicModuleRouteSpecifier",
    "envoy.extensions.transport_sockets.tls.handshakers.dynamic_modules.v3.DynamicModuleTlsHandshaker",
    "xds.type.matcher.v3.CelMatcher",
    "xds.type.matcher.v3.DoubleRangeMatcher",
    "xds.type.matcher.v3.HttpAttributesCelMatchInput",
    "xds.type.matcher.v3.IPMatcher",
    "xds.type.matcher.v3.Int32RangeMatcher",
    "xds.type.matcher.v3.Int64RangeMatcher",
    "xds.type.matcher.v3.ServerNameMatcher",
];

/// Messages written by hand: what the package lacks and we need, and our own.
fn own_files() -> Vec<FileDescriptorProto> {
    TYPED_STRUCTS
        .iter()
        .filter_map(|full_name| {
            let (package, name) = full_name.rsplit_once('.')?;
            let fields = vec![
                own_field("type_url", "typeUrl", 1, Type::String, None),
                own_field("value", "value", 2, Type::Message, Some(".google.protobuf.Struct")),
            ];
            let message = own_message(name, fields);
            Some(own_file(package, &["google/protobuf/struct.proto"], vec![message]))
        })
        .chain(crate::own::files())
        .collect()
}

pub(crate) fn own_message(name: &str, field: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto { name: Some(name.to_owned()), field, ..DescriptorProto::default() }
}

pub(crate) fn own_file(package: &str, imports: &[&str], messages: Vec<DescriptorProto>) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(format!("nuncio/{}.proto", package.replace('.', "/"))),
        package: Some(package.to_owned()),
        dependency: imports.iter().map(|&i| i.to_owned()).collect(),
        message_type: messages,
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

pub(crate) fn own_field(
    name: &str,
    json: &str,
    number: i32,
    kind: Type,
    message: Option<&str>,
) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        json_name: Some(json.to_owned()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(kind.into()),
        type_name: message.map(str::to_owned),
        ..FieldDescriptorProto::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_set_is_the_one_of_the_pinned_package() {
        // 514 files of the package and ours. Another number means another version: run the differential checks.
        assert_eq!(pool().files().len(), 514 + own_files().len());
        for name in [
            "envoy.config.bootstrap.v3.Bootstrap",
            "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "envoy.service.discovery.v3.DeltaDiscoveryResponse",
            "xds.type.v3.TypedStruct",
        ] {
            assert!(message(name).is_some(), "{name}");
        }
        assert!(pool().get_extension_by_name("validate.rules").is_some());
    }

    #[test]
    fn fields_newer_than_the_package_are_known() {
        for field in crate::newer::FIELDS {
            let message = message(field.message).unwrap_or_else(|| panic!("{}", field.message));
            let found = message.get_field_by_name(field.name).unwrap_or_else(|| panic!("{}", field.name));
            assert_eq!(found.number(), field.number, "{}", field.name);
            assert_eq!(found.is_list(), field.repeated, "{}", field.name);
            let kind = field.kind.strip_prefix('.').unwrap_or(field.kind);
            let is = format!("{:?}", found.kind()).to_lowercase();
            assert!(is.contains(&kind.to_lowercase()), "{kind}");
        }
    }
}
