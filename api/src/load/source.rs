//! Where configuration comes from: a file by its extension, or a text such as that of `--config-yaml`.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message as _;
use prost_reflect::DynamicMessage;

use crate::diag::{Diagnostic, Severity};
use crate::read::{self, Format, ReadLimits, Tree};
use crate::shape::Shape;

/// A text to load, and what it is called in messages.
#[derive(Debug)]
pub struct Source {
    pub(crate) name: Arc<str>,
    pub(crate) format: Format,
    pub(super) bytes: Vec<u8>,
    /// Regular files are read again when a place in them is asked for later.
    pub(super) file: Option<PathBuf>,
}

impl Source {
    /// Reads a file, at most as much as the limits allow.
    pub fn file(path: &Path, limits: &ReadLimits) -> Result<Self, Diagnostic> {
        let name: Arc<str> = path.to_string_lossy().into();
        let fail = |text: String| error(&name, 0, 0, text);
        let file = File::open(path).map_err(|e| fail(format!("cannot be read: {}", reason(&e))))?;
        let meta = file.metadata().map_err(|e| fail(format!("cannot be read: {}", reason(&e))))?;
        if meta.is_dir() {
            return Err(fail("cannot be read: it is a directory".to_owned()));
        }
        if meta.len() > limits.bytes as u64 {
            return Err(fail(too_long(limits)));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0).min(limits.bytes) + 1);
        let most = u64::try_from(limits.bytes).unwrap_or(u64::MAX);
        file.take(most.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|e| fail(format!("cannot be read: {}", reason(&e))))?;
        let again = meta.is_file().then(|| path.to_path_buf());
        Ok(Self { format: Format::of(path), name, bytes, file: again })
    }

    /// A text that is at hand.
    pub fn text(name: &str, format: Format, text: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), format, bytes: text.into(), file: None }
    }

    /// The tree of a YAML or JSON text, and whether bytes that are not UTF-8 were replaced.
    pub(crate) fn tree(&self, limits: &ReadLimits) -> Result<(Tree, bool), Diagnostic> {
        if self.bytes.len() > limits.bytes {
            return Err(error(&self.name, 0, 0, too_long(limits)));
        }
        let text = String::from_utf8_lossy(&self.bytes);
        let lossy = matches!(text, Cow::Owned(_));
        let tree = read::read(&text, self.format, limits).map_err(|e| {
            let mut text = e.text;
            let named = Path::new(&*self.name).extension().is_some_and(|e| e == "json");
            if self.format == Format::Json && !named && self.file.is_some() {
                text.push_str(" (a file is read as YAML if it is named .yaml or .yml)");
            }
            error(&self.name, e.line, e.column, text)
        })?;
        Ok((tree, lossy))
    }

    /// The message itself, if the source is `.pb` or `.pb_text`.
    pub(crate) fn encoded(&self, shape: &Shape) -> Result<Option<Vec<u8>>, Diagnostic> {
        match self.format {
            Format::Pb => Ok(Some(self.bytes.clone())),
            Format::PbText => {
                let text = String::from_utf8_lossy(&self.bytes);
                let desc = crate::pool::message(shape.name()).expect("the shape was made from it");
                let message = DynamicMessage::parse_text_format(desc, &text)
                    .map_err(|e| error(&self.name, 0, 0, format!("text format: {e}")))?;
                Ok(Some(message.encode_to_vec()))
            }
            Format::Yaml | Format::Json => Ok(None),
        }
    }
}

fn error(name: &Arc<str>, line: u32, column: u32, text: String) -> Diagnostic {
    Diagnostic { severity: Severity::Error, file: Arc::clone(name), line, column, path: String::new(), text }
}

fn too_long(limits: &ReadLimits) -> String {
    format!("is longer than the {} MiB that a configuration may have", limits.bytes >> 20)
}

/// The system's sentence without its number.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
