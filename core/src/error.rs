//! Errors of configuration, and the macro for what cannot happen.

/// One thing that is wrong with a resource: where (a protobuf field path relative to the
/// resource) and why. The loader turns it into `file:line:column: path: reason`.
pub use nuncio_api::ConfigError;

/// For what cannot happen: ends a test, is logged and survived in production.
#[macro_export]
macro_rules! bug {
    ($($arg:tt)*) => {{
        ::tracing::error!(bug = true, $($arg)*);
        debug_assert!(false, $($arg)*);
    }};
}
