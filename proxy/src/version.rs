//! Which build this is, in Envoy's words.
//!
//! A build that comes from a revision says so through the environment variables `NUNCIO_REVISION` and
//! `NUNCIO_REVISION_STATUS` (`Clean` or `Modified`); any other calls itself a distribution.

/// The package version.
pub const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// Forty hexadecimal digits, or `0` where the revision is not known.
pub const REVISION: &str = match option_env!("NUNCIO_REVISION") {
    Some(revision) => revision,
    None => "0",
};

pub const REVISION_STATUS: &str = match option_env!("NUNCIO_REVISION_STATUS") {
    Some(status) => status,
    None => "Distribution",
};

pub const BUILD_TYPE: &str = if cfg!(debug_assertions) { "DEBUG" } else { "RELEASE" };

/// The TLS library.
pub const SSL: &str = "rustls";

/// There is no hot restart; Envoy built without it says this too.
pub const HOT_RESTART: &str = "disabled";

/// `revision/version/status/build type/TLS library`, as Envoy's `--version` and `/server_info` have it.
pub static FULL: std::sync::LazyLock<String> =
    std::sync::LazyLock::new(|| format!("{REVISION}/{NUMBER}/{REVISION_STATUS}/{BUILD_TYPE}/{SSL}"));
