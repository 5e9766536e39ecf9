//! Text to a compact tree that keeps line and column: YAML, or JSON as lenient as Envoy's reader. The whole text is
//! read before anything is built of it, so a syntax error is always the first and only news of a file. Everything is
//! bounded: length of the text, nodes, depth, and what aliases expand to.

mod json;
mod scalar;
mod tree;
mod yaml;

pub(crate) use json::tree_of_struct;
pub(crate) use tree::{Kind, Node, Tree};

/// How a text is to be read. Envoy goes by the extension, and takes what it does not know for JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Yaml,
    Json,
    /// An encoded message.
    Pb,
    /// Protobuf's text format.
    PbText,
}

impl Format {
    pub fn of(path: &std::path::Path) -> Self {
        let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        match extension.as_deref() {
            Some("yaml" | "yml") => Self::Yaml,
            Some("pb") => Self::Pb,
            Some("pb_text") => Self::PbText,
            _ => Self::Json,
        }
    }
}

/// What one text may cost.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    pub bytes: usize,
    /// Nodes of the tree, 16 bytes each.
    pub nodes: usize,
    /// Nodes that aliases (`*name`) may add.
    pub aliased: usize,
    pub depth: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self { bytes: 64 << 20, nodes: 8 << 20, aliased: 1 << 20, depth: 100 }
    }
}

/// Why a text cannot be read at all.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    pub(crate) line: u32,
    pub(crate) column: u32,
    pub(crate) text: String,
}

pub(crate) fn read(text: &str, format: Format, limits: &ReadLimits) -> Result<Tree, SyntaxError> {
    match format {
        Format::Yaml => yaml::read(text, limits),
        _ => json::read(text, limits),
    }
}
