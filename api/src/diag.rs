//! What is wrong, where: a [`Diagnostic`] prints as `file:line:column: field.path: text`, the form editors and people
//! can follow. Also the field path that is carried (on the stack, without allocation) while a message is read or
//! checked, and the nearest valid name for a misspelt one.

use std::fmt;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    Error,
    Warning,
}

/// One thing to tell the operator about a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// The file, or a word such as `--config-yaml`.
    pub file: Arc<str>,
    /// From 1; 0 where the format has no lines (`.pb`) or the place is not known.
    pub line: u32,
    pub column: u32,
    /// From the root of the message: `static_resources.clusters[2].name`.
    pub path: String,
    pub text: String,
}

impl Diagnostic {
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        if !self.file.is_empty() {
            write!(f, "{}", self.file)?;
            if self.line > 0 {
                write!(f, ":{}:{}", self.line, self.column)?;
            }
            before = ": ";
        }
        if self.severity == Severity::Warning {
            write!(f, "{before}warning")?;
            before = ": ";
        }
        if !self.path.is_empty() {
            write!(f, "{before}{}", self.path)?;
            before = ": ";
        }
        write!(f, "{before}{}", self.text)
    }
}

/// What a consumer of a message says when it cannot be used: the field, and why. At start it becomes a
/// [`Diagnostic`] (see `LoadedBootstrap::diagnose`), over xDS the text of a NACK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    pub path: String,
    pub reason: String,
}

impl ConfigError {
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into() }
    }

    /// The same error seen from a message further out: `within("clusters[2]")` puts it before the path.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.path = join(outer, &self.path);
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.reason) } else { write!(f, "{}: {}", self.path, self.reason) }
    }
}

impl std::error::Error for ConfigError {}

/// `a` and `b` with a dot between them where one is due.
pub fn join(outer: &str, inner: &str) -> String {
    let dot = if outer.is_empty() || inner.is_empty() || inner.starts_with('[') { "" } else { "." };
    format!("{outer}{dot}{inner}")
}

/// Where we are in a message. Lives on the stack of whoever descends; becomes text only when something is wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Path<'p> {
    Root(&'p str),
    Field(&'p Path<'p>, &'p str),
    Index(&'p Path<'p>, usize),
    Key(&'p Path<'p>, &'p str),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(text) => f.write_str(text),
            Self::Field(Self::Root(""), name) => f.write_str(name),
            Self::Field(up, name) => write!(f, "{up}.{name}"),
            Self::Index(up, at) => write!(f, "{up}[{at}]"),
            Self::Key(up, key) => write!(f, "{up}[\"{key}\"]"),
        }
    }
}

/// More errors, or warnings, than these are not worth reading, and a hostile file must not fill the memory with
/// sentences.
const MOST: usize = 1000;

/// The findings of one run, bounded.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) list: Vec<Finding>,
    errors: usize,
    warnings: usize,
}

/// A diagnostic before its place in the text is known (`line` 0: find it along the path).
#[derive(Debug)]
pub(crate) struct Finding {
    /// Number of the source; beyond them: the one that has the path.
    pub(crate) source: usize,
    pub(crate) severity: Severity,
    pub(crate) line: u32,
    pub(crate) column: u32,
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) about: About,
}

impl Finding {
    /// Without a place: the path leads to it.
    pub(crate) fn new(severity: Severity, about: About, path: String, text: String) -> Self {
        Self { source: usize::MAX, severity, line: 0, column: 0, path, text, about }
    }
}

/// What a finding is about: what it makes superfluous is decided by this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    /// A value could not be read, or its field is unknown: what is missing afterwards is no news.
    Reading,
    /// A field is missing, or has its default.
    Absence,
    Other,
}

impl Findings {
    pub(crate) fn push(&mut self, finding: Finding) {
        let count = if finding.severity == Severity::Error { &mut self.errors } else { &mut self.warnings };
        *count += 1;
        if *count <= MOST {
            self.list.push(finding);
        }
    }

    /// Takes over what another one found, all of it about this source.
    pub(crate) fn absorb(&mut self, other: Self, source: usize) {
        let (errors, warnings) = (self.errors + other.errors, self.warnings + other.warnings);
        for finding in other.list {
            self.push(Finding { source, ..finding });
        }
        (self.errors, self.warnings) = (errors, warnings);
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Forgets what came after a mark (`list.len()` of that time).
    pub(crate) fn truncate(&mut self, mark: usize) {
        for finding in self.list.drain(mark..) {
            let count = if finding.severity == Severity::Error { &mut self.errors } else { &mut self.warnings };
            *count -= 1;
        }
    }

    /// Where a value could not be read, or a name is misspelt, it is no news that something is missing, or that the
    /// default in its place breaks a rule.
    pub(crate) fn drop_consequences(&mut self) {
        let reading: Vec<String> = self
            .list
            .iter()
            .filter(|f| f.about == About::Reading && f.severity == Severity::Error)
            .map(|f| f.path.clone())
            .collect();
        if reading.is_empty() {
            return;
        }
        let consequence = |f: &Finding| {
            let parent = f.path.rsplit_once('.').map_or("", |(parent, _)| parent);
            reading.iter().any(|r| match f.about {
                About::Reading => false,
                About::Other => *r == f.path,
                About::Absence => *r == f.path || r == parent || is_child(r, &f.path),
            })
        };
        let before = self.list.len();
        self.list.retain(|f| f.severity == Severity::Warning || !consequence(f));
        self.errors -= before - self.list.len();
    }

    /// How many errors were left out.
    pub(crate) fn left_out(&self) -> usize {
        self.errors.saturating_sub(MOST)
    }
}

/// Whether `path` is one step below `parent`.
fn is_child(path: &str, parent: &str) -> bool {
    let Some(rest) = path.strip_prefix(parent) else { return false };
    let Some(step) = rest.strip_prefix(['.', '[']) else { return parent.is_empty() && !rest.contains('.') };
    !step.contains('.')
}

/// The candidate nearest to `word`, if one is near enough to be meant: edit distance with transpositions, at most a
/// third of the word's length.
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let most = (word.chars().count() / 3).clamp(1, 4);
    let word: Vec<char> = word.chars().take(128).flat_map(char::to_lowercase).collect();
    candidates.into_iter().filter_map(|c| Some((distance(&word, c, most)?, c))).min_by_key(|(d, _)| *d).map(|(_, c)| c)
}

/// Optimal string alignment distance, or None above `most`.
fn distance(word: &[char], candidate: &str, most: usize) -> Option<usize> {
    let other: Vec<char> = candidate.chars().take(160).flat_map(char::to_lowercase).collect();
    if word.len().abs_diff(other.len()) > most {
        return None;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in word.iter().enumerate() {
        let mut row = vec![i + 1; other.len() + 1];
        for (j, b) in other.iter().enumerate() {
            let swap =
                if i > 0 && j > 0 && *a == other[j - 1] && word[i - 1] == *b { before[j - 1] + 1 } else { usize::MAX };
            row[j + 1] = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(row[j] + 1).min(swap);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().filter(|d| *d <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostic_prints_as_editors_read_it() {
        let mut d = Diagnostic {
            severity: Severity::Error,
            file: "a.yaml".into(),
            line: 3,
            column: 7,
            path: "admin.address".to_owned(),
            text: "is required".to_owned(),
        };
        assert_eq!(d.to_string(), "a.yaml:3:7: admin.address: is required");
        d.severity = Severity::Warning;
        d.line = 0;
        assert_eq!(d.to_string(), "a.yaml: warning: admin.address: is required");
        d.path.clear();
        d.file = "".into();
        assert_eq!(d.to_string(), "warning: is required");
    }

    #[test]
    fn paths_are_written_only_when_asked() {
        let root = Path::Root("");
        let list = Path::Field(&root, "clusters");
        let item = Path::Index(&list, 2);
        let map = Path::Field(&item, "metadata");
        assert_eq!(Path::Key(&map, "envoy.lb").to_string(), "clusters[2].metadata[\"envoy.lb\"]");
        let outer = Path::Root("static_resources.clusters[1]");
        assert_eq!(Path::Field(&outer, "name").to_string(), "static_resources.clusters[1].name");
    }

    #[test]
    fn the_nearest_name_is_near() {
        let names = ["stream_idle_timeout", "idle_timeout", "name"];
        assert_eq!(nearest("stream_idel_timeout", names), Some("stream_idle_timeout"));
        assert_eq!(nearest("nmae", names), Some("name"));
        assert_eq!(nearest("Name", names), Some("name"));
        assert_eq!(nearest("something_else", names), None);
    }

    #[test]
    fn an_error_moves_out_with_its_path() {
        let e = ConfigError::new("name", "is empty").within("clusters[1]").within("static_resources");
        assert_eq!(e.to_string(), "static_resources.clusters[1].name: is empty");
    }
}
