//! Finds the descriptor set that the `envoy-types` package carries (`types.bin`, which it does not export), drops the
//! comments from it, adds the fields of `src/newer.rs`, compresses it, and leaves it in OUT_DIR for `include_bytes!`.
//!
//! The package is looked for where Cargo unpacked it: a folder given by hand, the registry or vendor folder that fits
//! the lock file, then whatever `cargo metadata` says. Cargo unpacks every package before it runs any build script, so
//! the folder is there.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use flate2::Compression;
use flate2::write::ZlibEncoder;

#[path = "src/newer.rs"]
mod newer;

const INSIDE: &str = "src/generated/types.bin";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/newer.rs");
    println!("cargo::rerun-if-env-changed=ENVOY_TYPES_DIR");
    println!("cargo::rerun-if-env-changed=CARGO_HOME");
    let found = find();
    println!("cargo::rerun-if-changed={}", found.display());
    let set = fs::read(&found).unwrap_or_else(|e| panic!("{}: {e}", found.display()));
    let out = Path::new(&env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("envoy.fds.z");
    fs::write(&out, compress(&strip(&set))).unwrap_or_else(|e| panic!("{}: {e}", out.display()));
}

/// Deflate with the size first, which the reader of it makes room for.
fn compress(set: &[u8]) -> Vec<u8> {
    let size = u32::try_from(set.len()).expect("less than four gigabytes");
    let mut encoder = ZlibEncoder::new(size.to_le_bytes().to_vec(), Compression::best());
    encoder.write_all(set).and_then(|()| encoder.finish()).expect("a vector takes everything")
}

fn find() -> PathBuf {
    if let Some(folder) = env::var_os("ENVOY_TYPES_DIR") {
        return Path::new(&folder).join(INSIDE);
    }
    if let Some((version, lock)) = locks().next() {
        println!("cargo::rerun-if-changed={}", lock.display());
        let home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
        let registries = home.and_then(|h| fs::read_dir(h.join("registry/src")).ok()).into_iter().flatten().flatten();
        let vendor = lock.with_file_name("vendor");
        let named = format!("envoy-types-{version}");
        let candidates = registries
            .map(|r| r.path().join(&named))
            .chain([vendor.join("envoy-types"), vendor.join(&named)])
            .find(|d| d.join(INSIDE).is_file() && manifest_version(d).as_deref() == Some(&version));
        if let Some(folder) = candidates {
            return folder.join(INSIDE);
        }
    }
    for more in [&["--offline"][..], &[]] {
        if let Some(folder) = metadata(more) {
            return folder.join(INSIDE);
        }
    }
    panic!("envoy-types: descriptor set not found; set ENVOY_TYPES_DIR to the unpacked package");
}

/// (version of envoy-types, lock file): above the build in effect first, then above this package. A fuzz workspace has
/// its own lock file and its own target folder, and must get the version that it really builds.
fn locks() -> impl Iterator<Item = (String, PathBuf)> {
    ["OUT_DIR", "CARGO_MANIFEST_DIR"]
        .into_iter()
        .filter_map(env::var_os)
        .flat_map(|p| PathBuf::from(p).ancestors().map(|a| a.join("Cargo.lock")).collect::<Vec<_>>())
        .filter_map(|lock| Some((locked(&fs::read_to_string(&lock).ok()?)?, lock)))
}

fn locked(lock: &str) -> Option<String> {
    let at = lock.find("name = \"envoy-types\"")?;
    version_line(&lock[at..])
}

/// A vendored folder has no version in its name.
fn manifest_version(folder: &Path) -> Option<String> {
    version_line(&fs::read_to_string(folder.join("Cargo.toml")).ok()?)
}

fn version_line(text: &str) -> Option<String> {
    let line = text.lines().find(|l| l.starts_with("version = "))?;
    Some(line.split('"').nth(1)?.to_owned())
}

fn metadata(more: &[&str]) -> Option<PathBuf> {
    let target = env::var("TARGET").ok()?;
    let out = Command::new(env::var_os("CARGO")?)
        .args(["metadata", "--format-version=1", "--filter-platform", &target])
        .args(more)
        .current_dir(env::var_os("CARGO_MANIFEST_DIR")?)
        .output()
        .ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    text.split("\"manifest_path\":\"")
        .filter_map(|s| Path::new(s.split('"').next()?).parent())
        .find(|d| d.to_string_lossy().contains("envoy-types") && d.join(INSIDE).is_file())
        .map(Path::to_path_buf)
}

// === the descriptor set, at wire level ===

/// One field of a protobuf message: number, payload (without tag and length), and everything (with them).
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8], &[u8])> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let whole = bytes;
        let tag = varint(&mut bytes);
        let before = bytes;
        let len = match tag & 7 {
            0 => {
                varint(&mut bytes);
                before.len() - bytes.len()
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other} in a descriptor set"),
        };
        let payload = if tag & 7 == 0 { before } else { bytes };
        bytes = &payload[len..];
        out.push((tag >> 3, &payload[..len], &whole[..whole.len() - bytes.len()]));
    }
    out
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put(out: &mut Vec<u8>, number: u64, payload: &[u8]) {
    put_varint(out, number << 3 | 2);
    put_varint(out, payload.len() as u64);
    out.extend_from_slice(payload);
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("names in a descriptor set are UTF-8")
}

fn field(message: &[u8], number: u64) -> Option<&[u8]> {
    fields(message).into_iter().find(|f| f.0 == number).map(|f| f.1)
}

/// FileDescriptorSet.file = 1; of a file: package = 2, dependency = 3, message_type = 4, source_code_info = 9.
fn strip(set: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(set.len() / 4);
    for (_, file, _) in fields(set) {
        let package = field(file, 2).map(text).unwrap_or_default();
        let mut kept = Vec::with_capacity(file.len());
        let mut imports: Vec<&str> = Vec::new();
        for (number, payload, whole) in fields(file) {
            match number {
                9 => {}
                4 => put(&mut kept, 4, &with_newer(payload, package, &mut imports)),
                _ => kept.extend_from_slice(whole),
            }
        }
        let have: Vec<&str> = fields(file).iter().filter(|f| f.0 == 3).map(|f| text(f.1)).collect();
        imports.sort_unstable();
        imports.dedup();
        for import in imports.into_iter().filter(|i| !have.contains(i)) {
            put(&mut kept, 3, import.as_bytes());
        }
        put(&mut out, 1, &kept);
    }
    out
}

/// DescriptorProto: name = 1, field = 2, nested_type = 3.
fn with_newer(message: &[u8], above: &str, imports: &mut Vec<&str>) -> Vec<u8> {
    let name = format!("{above}.{}", field(message, 1).map(text).unwrap_or_default());
    let mut out = Vec::with_capacity(message.len());
    let mut have = Vec::new();
    for (number, payload, whole) in fields(message) {
        match number {
            2 => {
                have.push(field(payload, 1).map(text).unwrap_or_default());
                out.extend_from_slice(whole);
            }
            3 => put(&mut out, 3, &with_newer(payload, &name, imports)),
            _ => out.extend_from_slice(whole),
        }
    }
    for new in newer::FIELDS.iter().filter(|n| n.message == name && !have.contains(&n.name)) {
        put(&mut out, 2, &descriptor(new));
        imports.extend(file_of(new.kind));
    }
    out
}

/// The file that a newer field's message comes from.
fn file_of(kind: &str) -> Option<&'static str> {
    Some(match kind.strip_prefix('.')? {
        "google.protobuf.Duration" => "google/protobuf/duration.proto",
        "google.protobuf.Struct" => "google/protobuf/struct.proto",
        "google.protobuf.StringValue" | "google.protobuf.UInt32Value" => "google/protobuf/wrappers.proto",
        "envoy.config.core.v3.TypedExtensionConfig" => "envoy/config/core/v3/extension.proto",
        "envoy.extensions.load_balancing_policies.common.v3.OrcaOobReportingConfig" => {
            "envoy/extensions/load_balancing_policies/common/v3/common.proto"
        }
        other => panic!("newer.rs: which file is {other} in?"),
    })
}

/// FieldDescriptorProto: name = 1, number = 3, label = 4, type = 5, type_name = 6, json_name = 10.
fn descriptor(new: &newer::NewerField) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, 1, new.name.as_bytes());
    for (number, value) in [(3, new.number), (4, if new.repeated { 3 } else { 1 }), (5, kind(new.kind))] {
        put_varint(&mut out, number << 3);
        put_varint(&mut out, u64::from(value));
    }
    if let Some(name) = new.kind.strip_prefix('.') {
        put(&mut out, 6, format!(".{name}").as_bytes());
    }
    let mut words = new.name.split('_');
    let mut json = words.next().unwrap_or_default().to_owned();
    for word in words {
        json.push_str(&word[..1].to_uppercase());
        json.push_str(&word[1..]);
    }
    put(&mut out, 10, json.as_bytes());
    out
}

/// FieldDescriptorProto.Type. Newer enum fields stand in the table as `int32`: the wire is the same.
fn kind(name: &str) -> u32 {
    match name {
        "double" => 1,
        "int64" => 3,
        "uint64" => 4,
        "int32" => 5,
        "bool" => 8,
        "string" => 9,
        "bytes" => 12,
        "uint32" => 13,
        message if message.starts_with('.') => 11,
        other => panic!("newer.rs: unknown kind {other}"),
    }
}
