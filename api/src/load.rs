//! From a file to checked messages: text → tree → encoded message → checks, all errors of the file in one run. The
//! clusters, listeners and secrets of a bootstrap never stand in one message together: each is encoded, checked and
//! kept as bytes on its own, and its consumer decodes one at a time. (Ten thousand typed clusters are thirty
//! megabytes; their bytes are three.)

mod elements;
mod position;
mod source;

use std::collections::HashSet;
use std::sync::Arc;

use prost::{Message, Name};

use crate::any::decode;
use crate::diag::{About, Diagnostic, Finding, Findings, Path, Severity};
use crate::encode::{Encoder, Whole};
use crate::pb::envoy::config::bootstrap::v3::Bootstrap;
use crate::pb::envoy::config::cluster::v3::Cluster;
use crate::pb::envoy::config::listener::v3::Listener;
use crate::pb::envoy::extensions::transport_sockets::tls::v3::Secret;
use crate::read::{Format, ReadLimits, Tree};
use crate::shape::{Shape, shape_named};
use crate::support::{Support, Verdict};
use crate::unknown::UnknownFields;
use crate::walk::Walk;
use elements::Elements;

pub use elements::Element;
pub use position::Positions;
pub use source::Source;

/// How to load.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions<'s> {
    pub unknown: UnknownFields,
    /// Without a table nothing is said about what is implemented.
    pub support: Option<&'s Support>,
    /// `--allow-unsupported`: what is not implemented is a warning.
    pub allow_unsupported: bool,
    pub limits: ReadLimits,
    /// Nanoseconds since 1970, for annotation rules about "now".
    pub now: Option<i128>,
}

/// A bootstrap that may be served, as far as its text says.
#[derive(Debug)]
pub struct LoadedBootstrap {
    /// Without clusters, listeners and secrets.
    pub bootstrap: Bootstrap,
    /// The same, encoded.
    pub bytes: Vec<u8>,
    pub clusters: Vec<Element<Cluster>>,
    pub listeners: Vec<Element<Listener>>,
    pub secrets: Vec<Element<Secret>>,
    pub warnings: Vec<Diagnostic>,
    /// `server.static_unknown_fields`.
    pub unknown_fields: u64,
    /// `runtime.deprecated_feature_use`.
    pub deprecated_fields: u64,
    /// Turns a field path into a place in the text.
    pub positions: Positions,
}

/// A message that was loaded and checked.
#[derive(Debug)]
pub struct Checked<T> {
    pub message: T,
    pub bytes: Vec<u8>,
    pub warnings: Vec<Diagnostic>,
    pub unknown_fields: u64,
    pub deprecated_fields: u64,
}

/// What the checks of an encoded message found.
#[derive(Debug, Default)]
pub struct Checks {
    pub errors: Vec<Diagnostic>,
    pub warnings: Vec<Diagnostic>,
    pub unknown_fields: u64,
    pub deprecated_fields: u64,
}

impl LoadedBootstrap {
    /// The whole bootstrap, encoded, with the lists that were taken out (protobuf joins a field that comes twice).
    pub fn whole(&self) -> Vec<u8> {
        let mut out = self.bytes.clone();
        elements::put_back(&self.listeners, &self.clusters, &self.secrets, &mut out);
        out
    }
}

/// Loads a bootstrap from one source, or from several merged one over the other as `--config-yaml` is over
/// `--config-path`: lists are joined, single values of later sources win.
pub fn load_bootstrap(sources: Vec<Source>, options: &LoadOptions<'_>) -> Result<LoadedBootstrap, Vec<Diagnostic>> {
    let mut run = Run::new(options);
    let mut elements = Elements::default();
    let mut bytes = Vec::new();
    for source in sources {
        run.bootstrap_source(source, &mut elements, &mut bytes)?;
    }
    run.walk(&bytes, bootstrap_shape());
    run.lists_supported(&elements);
    let bootstrap = run.typed::<Bootstrap>(&bytes);
    let (positions, report) = run.finish();
    match bootstrap {
        Some(bootstrap) if report.errors.is_empty() => Ok(LoadedBootstrap {
            bootstrap,
            bytes,
            clusters: elements.clusters,
            listeners: elements.listeners,
            secrets: elements.secrets,
            warnings: report.warnings,
            unknown_fields: report.unknown_fields,
            deprecated_fields: report.deprecated_fields,
            positions,
        }),
        _ => Err(report.all()),
    }
}

/// Loads any message from a text: a file of discovered resources is a `DiscoveryResponse`.
pub fn load_message<T>(source: Source, options: &LoadOptions<'_>) -> Result<Checked<T>, Vec<Diagnostic>>
where
    T: Message + Name + Default,
{
    let mut run = Run::new(options);
    let Some(shape) = shape_named(&T::full_name()) else {
        return Err(vec![run.refuse(&source.name, format!("{} has no descriptor", T::full_name()))]);
    };
    let mut bytes = Vec::new();
    run.message_source(source, shape, &mut bytes)?;
    run.walk(&bytes, shape);
    let message = run.typed::<T>(&bytes);
    let (_, report) = run.finish();
    match message {
        Some(message) if report.errors.is_empty() => Ok(Checked {
            message,
            bytes,
            warnings: report.warnings,
            unknown_fields: report.unknown_fields,
            deprecated_fields: report.deprecated_fields,
        }),
        _ => Err(report.all()),
    }
}

/// The same checks on a message that came encoded: a discovered resource.
pub fn check_bytes(type_url: &str, bytes: &[u8], options: &LoadOptions<'_>) -> Checks {
    let mut run = Run::new(options);
    match crate::any::shape_of(type_url) {
        Ok(shape) => run.walk(bytes, shape),
        Err(text) => run.say(Severity::Error, "", text),
    }
    run.finish().1
}

fn bootstrap_shape() -> &'static Shape {
    shape_named("envoy.config.bootstrap.v3.Bootstrap").expect("a test looks for it in the descriptors")
}

/// One load.
struct Run<'o> {
    options: &'o LoadOptions<'o>,
    found: Findings,
    warned: HashSet<(&'static str, String)>,
    unknown_fields: u64,
    deprecated_fields: u64,
    positions: Positions,
    trees: Vec<Option<Tree>>,
}

impl<'o> Run<'o> {
    fn new(options: &'o LoadOptions<'o>) -> Self {
        Self {
            options,
            found: Findings::default(),
            warned: HashSet::new(),
            unknown_fields: 0,
            deprecated_fields: 0,
            positions: Positions::default(),
            trees: Vec::new(),
        }
    }

    fn refuse(&self, name: &Arc<str>, text: String) -> Diagnostic {
        let file = Arc::clone(name);
        Diagnostic { severity: Severity::Error, file, line: 0, column: 0, path: String::new(), text }
    }

    fn say(&mut self, severity: Severity, path: &str, text: String) {
        self.found.push(Finding::new(severity, About::Other, path.to_owned(), text));
    }

    /// Reads a source and drops its text: what follows needs the tree only.
    fn tree(&mut self, source: Source) -> Result<usize, Vec<Diagnostic>> {
        let (tree, lossy) = source.tree(&self.options.limits).map_err(|d| vec![d])?;
        self.positions.add(source);
        self.trees.push(Some(tree));
        let at = self.trees.len() - 1;
        if lossy {
            let text = "is not UTF-8: the bytes that are not are replaced".to_owned();
            self.say(Severity::Warning, "", text);
        }
        Ok(at)
    }

    fn bootstrap_source(
        &mut self,
        source: Source,
        elements: &mut Elements,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Vec<Diagnostic>> {
        if let Some(encoded) = source.encoded(bootstrap_shape()).map_err(|d| vec![d])? {
            self.positions.add(source);
            self.trees.push(None);
            let at = self.trees.len() - 1;
            let rest = elements.cut_encoded(&encoded, at, self);
            bytes.extend_from_slice(&rest);
            return Ok(());
        }
        let last_key_wins = source.format == Format::Yaml;
        let at = self.tree(source)?;
        let Some(tree) = self.trees[at].take() else { return Ok(()) };
        let mut findings = Findings::default();
        let mut cut = elements.cut(at, last_key_wins, self);
        let unknown = cut.unknown();
        let mut encoder = Encoder { findings: &mut findings, unknown, unknown_seen: 0, cut: &mut cut, last_key_wins };
        encoder.object(tree.root(), bootstrap_shape(), &Path::Root(""), bytes);
        let unknown = encoder.unknown_seen;
        self.unknown_fields += unknown;
        self.trees[at] = Some(tree);
        self.found.absorb(findings, at);
        Ok(())
    }

    fn message_source(
        &mut self,
        source: Source,
        shape: &'static Shape,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Vec<Diagnostic>> {
        if let Some(encoded) = source.encoded(shape).map_err(|d| vec![d])? {
            self.positions.add(source);
            self.trees.push(None);
            *bytes = encoded;
            return Ok(());
        }
        let last_key_wins = source.format == Format::Yaml;
        let at = self.tree(source)?;
        let mut findings = Findings::default();
        if let Some(tree) = &self.trees[at] {
            let unknown = self.options.unknown;
            let mut encoder =
                Encoder { findings: &mut findings, unknown, unknown_seen: 0, cut: &mut Whole, last_key_wins };
            encoder.message(tree.root(), shape, &Path::Root(""), bytes);
            self.unknown_fields += encoder.unknown_seen;
        }
        self.found.absorb(findings, at);
        Ok(())
    }

    /// Checks the whole.
    fn walk(&mut self, bytes: &[u8], shape: &'static Shape) {
        self.walk_at(Findings::default(), bytes, shape, usize::MAX, "");
    }

    /// Checks an element at its path, about which something was found while it was read.
    fn walk_at(&mut self, mut findings: Findings, bytes: &[u8], shape: &'static Shape, source: usize, path: &str) {
        let mut walk = Walk::new(&mut findings, &mut self.warned, self.options);
        walk.check(bytes, shape, &Path::Root(path));
        self.unknown_fields += walk.unknown_seen;
        self.deprecated_fields += walk.deprecated_seen;
        findings.drop_consequences();
        self.found.absorb(findings, source);
    }

    /// The lists that are cut are not in the message that is walked.
    fn lists_supported(&mut self, elements: &Elements) {
        let Some(support) = self.options.support else { return };
        let Some(entry) = support.message("envoy.config.bootstrap.v3.Bootstrap.StaticResources") else { return };
        for (name, some) in [
            ("clusters", !elements.clusters.is_empty()),
            ("listeners", !elements.listeners.is_empty()),
            ("secrets", !elements.secrets.is_empty()),
        ] {
            if some && entry.field(name) == Verdict::Missing {
                let severity = if self.options.allow_unsupported { Severity::Warning } else { Severity::Error };
                self.say(severity, &format!("static_resources.{name}"), "is not implemented".to_owned());
            }
        }
    }

    fn typed<T: Message + Name + Default>(&mut self, bytes: &[u8]) -> Option<T> {
        match decode(bytes) {
            Ok(message) => Some(message),
            Err(error) => {
                // What the walk found explains it better.
                if !self.found.has_errors() {
                    self.say(Severity::Error, "", error.reason);
                }
                None
            }
        }
    }

    /// Everything that was found, with its place, in the order of the text.
    fn finish(mut self) -> (Positions, Checks) {
        self.found.drop_consequences();
        let mut all: Vec<(usize, Diagnostic)> = Vec::with_capacity(self.found.list.len());
        for mut finding in std::mem::take(&mut self.found.list) {
            let source = self.place(&mut finding);
            let file = self.positions.name(source);
            let Finding { severity, line, column, path, text, .. } = finding;
            all.push((source, Diagnostic { severity, file, line, column, path, text }));
        }
        all.sort_by(|a, b| (a.0, a.1.line, a.1.column, &a.1.path).cmp(&(b.0, b.1.line, b.1.column, &b.1.path)));
        all.dedup();
        let mut report = Checks {
            unknown_fields: self.unknown_fields,
            deprecated_fields: self.deprecated_fields,
            ..Checks::default()
        };
        for (_, diagnostic) in all {
            if diagnostic.is_error() { report.errors.push(diagnostic) } else { report.warnings.push(diagnostic) }
        }
        if self.found.left_out() > 0 {
            let text = format!("and {} more errors", self.found.left_out());
            report.errors.push(self.refuse(&self.positions.name(0), text));
        }
        (self.positions, report)
    }

    /// Fills in line and column along the path; returns the source, the last one that has the whole path.
    fn place(&self, finding: &mut Finding) -> usize {
        let source = finding.source;
        if finding.line > 0 {
            return source;
        }
        let candidates: Vec<usize> =
            if source < self.trees.len() { vec![source] } else { (0..self.trees.len()).rev().collect() };
        let mut best = (0, candidates.last().copied().unwrap_or(0), (0, 0));
        for at in candidates {
            let Some(tree) = &self.trees[at] else { continue };
            let (depth, place) = tree.root().locate_depth(&finding.path);
            if depth > best.0 || best.2 == (0, 0) {
                best = (depth, at, place);
            }
        }
        (finding.line, finding.column) = best.2;
        best.1
    }
}

impl Checks {
    fn all(mut self) -> Vec<Diagnostic> {
        self.errors.append(&mut self.warnings);
        self.errors
    }
}

#[cfg(test)]
mod tests;
