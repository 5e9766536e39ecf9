//! Errors of configuration, and the macro for what cannot happen.

use std::fmt;

/// One thing that is wrong with a resource: where (a protobuf field path relative to the
/// resource) and why. The loader turns it into `file:line:column: path: reason`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    pub path: String,
    pub reason: String,
}

impl ConfigError {
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into() }
    }

    /// The same error seen from the parent: its path is put in front.
    pub fn within(mut self, parent: &str) -> Self {
        if self.path.is_empty() {
            self.path = parent.to_owned();
        } else if self.path.starts_with('[') {
            self.path = format!("{parent}{}", self.path);
        } else if !parent.is_empty() {
            self.path = format!("{parent}.{}", self.path);
        }
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.reason) } else { write!(f, "{}: {}", self.path, self.reason) }
    }
}

impl std::error::Error for ConfigError {}

/// For what cannot happen: ends a test, is logged and survived in production.
#[macro_export]
macro_rules! bug {
    ($($arg:tt)*) => {{
        ::tracing::error!(bug = true, $($arg)*);
        debug_assert!(false, $($arg)*);
    }};
}
