//! What to do with fields that no descriptor has: Envoy refuses them in the start-up file and accepts them, with a
//! counter and a warning, in what comes over xDS; two flags move each of these.

/// Policy for fields that are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownFields {
    /// An error each. Default for start-up files; `--reject-unknown-dynamic-fields` for xDS.
    #[default]
    Refuse,
    /// Counted, and a warning each. `--allow-unknown-static-fields` for start-up files; the default for xDS.
    Warn,
    /// `--ignore-unknown-dynamic-fields`: neither.
    Ignore,
}

impl UnknownFields {
    /// For the start-up file.
    pub fn of_static(allow: bool) -> Self {
        if allow { Self::Warn } else { Self::Refuse }
    }

    /// For discovered resources; refusing wins over ignoring.
    pub fn of_dynamic(reject: bool, ignore: bool) -> Self {
        match (reject, ignore) {
            (true, _) => Self::Refuse,
            (false, true) => Self::Ignore,
            (false, false) => Self::Warn,
        }
    }
}
