//! Keeps the house in order: import directions, one home per foreign library, where `unsafe` may
//! stand, and that every file says what it is for. A rule that is broken for a reason is changed
//! here, with the reason.

// What fails ends the test.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// The layers of `proxy/src`, lowest first: a layer imports only itself and what stands before it.
/// A pair in one row may import each other's rows before it, not each other.
const LAYERS: &[&[&str]] = &[
    &["version", "calendar", "alarm", "turn", "overload"],
    &["lifecycle", "logging", "stats_sink", "subscription"],
    &["net"],
    &["tls"],
    &["codec"],
    &["format"],
    &["access_log"],
    &["upstream"],
    &["network"],
    &["http"],
    &["listener"],
    &["admin"],
    &["extensions"],
    &["server"],
    &["small_server"],
    &["cli"],
];

/// Foreign libraries and the folders (from the workspace's root) that may name them.
const HOMES: &[(&str, &[&str])] = &[
    ("httparse", &["proxy/src/codec"]),
    ("h2", &["proxy/src/codec", "testkit", "benches"]),
    (
        "hyper",
        &[
            "proxy/src/admin",
            "proxy/src/cli",
            "proxy/src/small_server",
            "discovery/src/sds_server",
            "authz/src/demo_server",
            "testkit",
            "benches",
            "proxy/tests",
        ],
    ),
    // In `api` for the descriptors, which are compressed in the binary.
    ("flate2", &["proxy/src/http/compression", "api/src/pool", "api/build"]),
    ("brotli", &["proxy/src/http/compression"]),
    ("zstd", &["proxy/src/http/compression"]),
    ("rustls", &["proxy/src/tls", "testkit"]),
    ("webpki", &["proxy/src/tls"]),
    ("x509_parser", &["proxy/src/tls"]),
    (
        "aws_lc_rs",
        &["proxy/src/tls", "testkit", "proxy/src/http/filters/jwt_authn", "proxy/src/http/filters/basic_auth"],
    ),
    ("socket2", &["proxy/src/net", "proxy/tests"]),
    ("nix", &["proxy/src/net", "discovery/src/xds/filesystem", "proxy/tests", "benches"]),
    ("tokio::net", &["proxy/src/net", "core/src/net", "proxy/tests", "testkit", "benches"]),
    ("hickory_resolver", &["discovery/src/dns", "testkit"]),
    ("envoy_types", &["api"]),
    ("saphyr_parser", &["api"]),
    ("prost_reflect", &["api"]),
    ("anyhow", &["proxy/src/main.rs", "benches"]),
];

/// Folders of which each file has an entry in the file of the same name.
const LISTS: &[&str] = &[
    "proxy/src/http/filters",
    "proxy/src/listener/filters",
    "proxy/src/network",
    "proxy/src/cli",
    "discovery/src/sources",
];

/// The only files with `unsafe` code.
const UNSAFE: &[&str] = &["proxy/src/net/sys.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the workspace").to_owned()
}

/// Every Rust file of the workspace with its path from the root, target folders aside.
fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') && name != "corpus" {
                walk(&path, out);
            } else if name.ends_with(".rs") {
                out.push(path);
            }
        }
    }
    let mut files = Vec::new();
    walk(&root(), &mut files);
    files
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

/// What stands before the `mod tests` at the end of a file.
fn before_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

/// Code lines only: neither comments nor the tests at the end.
fn code(text: &str) -> impl Iterator<Item = &str> {
    before_tests(text).lines().filter(|line| !line.trim_start().starts_with("//"))
}

/// Tests of a file that grew into a file of their own.
fn is_tests(name: &str) -> bool {
    name.ends_with("/tests.rs") || name.contains("/tests/") || name.ends_with("/testing.rs")
}

fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn imports_point_down() {
    let rank = |layer: &str| LAYERS.iter().position(|row| row.contains(&layer));
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let Some(inside) = name.strip_prefix("proxy/src/") else { continue };
        let layer = inside.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        if matches!(layer, "lib" | "main") || is_tests(&name) {
            continue;
        }
        let Some(own) = rank(layer) else {
            problems.push(format!("{name}: layer `{layer}` has no place in LAYERS"));
            continue;
        };
        for line in code(&text) {
            for part in line.split("crate::").skip(1) {
                let used: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                match rank(&used) {
                    Some(other) if other > own || (other == own && used != layer) => {
                        problems.push(format!("{name}: `{layer}` imports `{used}`, which is not below it"));
                    }
                    _ => {}
                }
            }
        }
    }
    report(problems);
}

#[test]
fn each_foreign_library_has_one_home() {
    let mut problems = Vec::new();
    for (name, text) in sources() {
        for (library, homes) in HOMES {
            if is_tests(&name) || homes.iter().any(|home| name.starts_with(home)) || name.contains("/fuzz/") {
                continue;
            }
            let used = code(&text).any(|line| {
                line.match_indices(&format!("{library}::")).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
                })
            });
            if used {
                problems.push(format!("{name}: names `{library}`, whose home is {}", homes.join(", ")));
            }
        }
    }
    report(problems);
}

#[test]
fn core_opens_no_socket_reads_no_file_and_spawns_no_task() {
    let mut problems = Vec::new();
    for (name, text) in sources().iter().filter(|(name, _)| name.starts_with("core/src/") && !is_tests(name)) {
        for banned in
            ["tokio::fs", "std::fs", "spawn_local", "TcpListener", "TcpStream::connect", "UdpSocket", "std::thread"]
        {
            if code(text).any(|line| line.contains(banned)) {
                problems.push(format!("{name}: `{banned}` has no place in core"));
            }
        }
    }
    report(problems);
}

#[test]
fn unsafe_code_stands_in_one_place() {
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let allowed = UNSAFE.contains(&name.as_str()) || name.contains("/tests/") || name.contains("benches/");
        if !allowed && code(&text).any(|line| line.contains("unsafe ") || line.contains("allow(unsafe_code)")) {
            problems.push(format!("{name}: unsafe code"));
        }
    }
    report(problems);
}

#[test]
fn every_file_says_what_it_is_for() {
    let mut problems = Vec::new();
    for (name, text) in sources() {
        // The tests of a file are introduced by that file.
        if name.ends_with("/tests.rs") {
            continue;
        }
        let head = text.lines().find(|line| !line.starts_with("#!"));
        if !head.is_some_and(|line| line.starts_with("//!")) {
            problems.push(format!("{name}: does not begin with `//!`"));
        }
    }
    report(problems);
}

#[test]
fn a_long_file_says_why() {
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let lines = before_tests(&text).lines().count();
        let excused = text
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .any(|line| line.contains("long") || line.contains("500 lines"));
        if lines > 500 && !excused && !is_tests(&name) {
            problems.push(format!("{name}: {lines} lines, and its first paragraph does not say why"));
        }
    }
    report(problems);
}

/// Folders whose files are registered in a list: an author who forgets the line would wonder long.
#[test]
fn every_file_of_a_list_is_in_the_list() {
    let mut problems = Vec::new();
    for folder in LISTS {
        let list = fs::read_to_string(root().join(format!("{folder}.rs"))).unwrap();
        for (name, _) in sources().into_iter().filter(|(name, _)| !is_tests(name)) {
            let Some(inside) = name.strip_prefix(&format!("{folder}/")) else { continue };
            let entry = format!("{}::", inside.trim_end_matches(".rs"));
            if !inside.contains('/') && !code(&list).any(|line| line.contains(&entry)) {
                problems.push(format!("{name}: not registered in {folder}.rs"));
            }
        }
    }
    report(problems);
}

/// What a new filter costs its author: one file, which fits on three screens with its tests, and its lines in the list.
#[test]
fn the_smallest_filter_is_small() {
    let filters = sources().into_iter().filter(|(name, _)| {
        name.strip_prefix("proxy/src/http/filters/").is_some_and(|file| !file.contains('/')) && !is_tests(name)
    });
    let smallest = filters.map(|(name, text)| (text.lines().count(), name)).min().unwrap();
    assert!(smallest.0 <= 120, "{smallest:?}");
}
