//! The place of a field path after loading: semantic checks name a field, people want a line. Nothing is kept for it
//! but where the text came from; a file is read again when something is wrong, which is at the end of a start that
//! fails.

use std::cell::OnceCell;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::PathBuf;
use std::sync::Arc;

use super::source::Source;
use crate::diag::{ConfigError, Diagnostic, Severity};
use crate::read::{Format, ReadLimits, Tree};

/// The sources of a load.
#[derive(Debug, Default)]
pub struct Positions {
    sources: Vec<Origin>,
}

#[derive(Debug)]
struct Origin {
    name: Arc<str>,
    format: Format,
    text: Kept,
    tree: OnceCell<Option<Tree>>,
}

#[derive(Debug)]
enum Kept {
    /// A file, and the hash of what it held.
    File(PathBuf, u64),
    Text(Vec<u8>),
}

impl Positions {
    /// Of one text.
    pub fn of(source: Source) -> Self {
        let mut positions = Self::default();
        positions.add(source);
        positions
    }

    pub(super) fn add(&mut self, source: Source) {
        let Source { name, format, bytes, file } = source;
        let text = match file {
            Some(path) => Kept::File(path, hash(&bytes)),
            None => Kept::Text(bytes),
        };
        self.sources.push(Origin { name, format, text, tree: OnceCell::new() });
    }

    pub(super) fn name(&self, source: usize) -> Arc<str> {
        self.sources.get(source).map_or_else(|| Arc::from(""), |s| Arc::clone(&s.name))
    }

    /// An error about a field of the bootstrap as one with file, line and column.
    pub fn error(&self, error: &ConfigError) -> Diagnostic {
        self.diagnose(Severity::Error, (0..self.sources.len()).rev(), error)
    }

    pub fn warning(&self, error: &ConfigError) -> Diagnostic {
        self.diagnose(Severity::Warning, (0..self.sources.len()).rev(), error)
    }

    /// An error about a field of an element (its path begins inside the element).
    pub fn element_error<T>(&self, element: &super::Element<T>, error: ConfigError) -> Diagnostic {
        let source = element.source();
        self.diagnose(Severity::Error, source..source + 1, &error.within(&element.path()))
    }

    pub fn element_warning<T>(&self, element: &super::Element<T>, error: ConfigError) -> Diagnostic {
        let source = element.source();
        self.diagnose(Severity::Warning, source..source + 1, &error.within(&element.path()))
    }

    fn diagnose(&self, severity: Severity, sources: impl Iterator<Item = usize>, error: &ConfigError) -> Diagnostic {
        let mut best: Option<(usize, (u32, u32), Arc<str>)> = None;
        for source in sources.filter_map(|s| self.sources.get(s)) {
            let (depth, place) = source.tree().map_or((0, (0, 0)), |t| t.root().locate_depth(&error.path));
            if best.as_ref().is_none_or(|(most, ..)| depth > *most) {
                best = Some((depth, place, Arc::clone(&source.name)));
            }
        }
        let (_, (line, column), file) = best.unwrap_or((0, (0, 0), Arc::from("")));
        Diagnostic { severity, file, line, column, path: error.path.clone(), text: error.reason.clone() }
    }
}

impl Origin {
    /// None for formats without lines, and for a file that has changed since.
    fn tree(&self) -> Option<&Tree> {
        let read = || {
            let source = match &self.text {
                Kept::File(path, known) => {
                    let bytes = fs::read(path).ok().filter(|b| hash(b) == *known)?;
                    Source { name: Arc::clone(&self.name), format: self.format, bytes, file: None }
                }
                Kept::Text(bytes) => Source::text(&self.name, self.format, bytes.clone()),
            };
            match self.format {
                Format::Yaml | Format::Json => source.tree(&ReadLimits::default()).ok().map(|(tree, _)| tree),
                Format::Pb | Format::PbText => None,
            }
        };
        self.tree.get_or_init(read).as_ref()
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
