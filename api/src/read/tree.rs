//! The tree of a text: a preorder vector of 16-byte nodes over one arena of text. A plain tree of strings and maps
//! took five times the memory on a file of 10,000 clusters. Positions need no table of their own: the place of a
//! field path is found by walking the tree along it, and only when there is something to say.

use std::hash::Hasher as _;

use super::{ReadLimits, SyntaxError};

/// What a node is, in JSON's words: YAML's scalars are typed while they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Null,
    False,
    True,
    Number,
    Text,
    List,
    Map,
    /// A key tagged `!ignore`: it and its value are skipped (a place to park anchors).
    Ignored,
}

const KINDS: [Kind; 8] =
    [Kind::Null, Kind::False, Kind::True, Kind::Number, Kind::Text, Kind::List, Kind::Map, Kind::Ignored];

const COLUMN: u32 = (1 << 28) - 1;

#[derive(Debug, Clone, Copy)]
struct Raw {
    line: u32,
    /// Kind in the upper 4 bits.
    column: u32,
    /// Scalars: offset of the text. List and map: number of items or entries.
    start: u32,
    /// Scalars: length of the text. List and map: nodes of the subtree, this one included.
    len: u32,
}

impl Raw {
    fn new(kind: Kind, line: u32, column: u32, start: u32, len: u32) -> Self {
        Self { line, column: column.min(COLUMN) | (kind as u32) << 28, start, len }
    }

    fn kind(self) -> Kind {
        KINDS[(self.column >> 28) as usize & 7]
    }

    fn size(self) -> u32 {
        if matches!(self.kind(), Kind::List | Kind::Map) { self.len } else { 1 }
    }
}

#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Raw>,
    text: String,
}

impl Tree {
    pub(crate) fn root(&self) -> Node<'_> {
        Node { tree: self, at: 0 }
    }
}

/// Builds a tree from events, within limits.
pub(super) struct Builder {
    tree: Tree,
    open: Vec<(u32, u32)>,
    limits: ReadLimits,
    aliased: usize,
    /// Direct-mapped: where a short text already is. Growing tables cost more than they save.
    known: Vec<(u32, u32)>,
}

const KNOWN: usize = 4096;
const SHORT: usize = 64;

impl Builder {
    pub(super) fn new(limits: &ReadLimits) -> Self {
        Self {
            tree: Tree { nodes: Vec::new(), text: String::new() },
            open: Vec::new(),
            limits: *limits,
            aliased: 0,
            known: vec![(0, 0); KNOWN],
        }
    }

    /// The number of the next node.
    pub(super) fn next(&self) -> u32 {
        self.tree.nodes.len() as u32
    }

    /// Whether the node at `at` is a list or a map.
    pub(super) fn compound(&self, at: u32) -> bool {
        matches!(self.tree.nodes[at as usize].kind(), Kind::List | Kind::Map)
    }

    pub(super) fn scalar(&mut self, kind: Kind, text: &str, line: u32, column: u32) -> Result<(), SyntaxError> {
        let (start, len) = self.keep(text);
        self.push(Raw::new(kind, line, column, start, len))
    }

    pub(super) fn open(&mut self, kind: Kind, line: u32, column: u32) -> Result<(), SyntaxError> {
        if self.open.len() >= self.limits.depth {
            let text = format!("nested more than {} levels deep", self.limits.depth);
            return Err(SyntaxError { line, column, text });
        }
        let at = self.next();
        self.push(Raw::new(kind, line, column, 0, 0))?;
        self.open.push((at, 0));
        Ok(())
    }

    /// Ends the innermost list or map.
    pub(super) fn close(&mut self) {
        if let Some((at, children)) = self.open.pop() {
            let size = self.next() - at;
            let raw = &mut self.tree.nodes[at as usize];
            raw.start = if raw.kind() == Kind::Map { children / 2 } else { children };
            raw.len = size;
        }
    }

    /// Repeats the finished subtree at `at`; what it weighs in full is counted before anything is copied.
    pub(super) fn alias(&mut self, at: u32, line: u32, column: u32) -> Result<(), SyntaxError> {
        let size = self.tree.nodes[at as usize].size() as usize;
        self.aliased += size;
        if self.aliased > self.limits.aliased || self.tree.nodes.len() + size > self.limits.nodes {
            let text = format!("aliases expand to more than {} values", self.limits.aliased);
            return Err(SyntaxError { line, column, text });
        }
        self.child();
        self.tree.nodes.extend_from_within(at as usize..at as usize + size);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Tree {
        self.tree.nodes.shrink_to_fit();
        self.tree.text.shrink_to_fit();
        self.tree
    }

    fn push(&mut self, raw: Raw) -> Result<(), SyntaxError> {
        if self.tree.nodes.len() >= self.limits.nodes {
            let text = format!("more than {} values", self.limits.nodes);
            return Err(SyntaxError { line: raw.line, column: raw.column & COLUMN, text });
        }
        self.child();
        self.tree.nodes.push(raw);
        Ok(())
    }

    fn child(&mut self) {
        if let Some((_, children)) = self.open.last_mut() {
            *children += 1;
        }
    }

    fn keep(&mut self, text: &str) -> (u32, u32) {
        let len = text.len() as u32;
        if text.len() > SHORT {
            let start = self.tree.text.len() as u32;
            self.tree.text.push_str(text);
            return (start, len);
        }
        let mut hash = std::hash::DefaultHasher::new();
        hash.write(text.as_bytes());
        let slot = &mut self.known[hash.finish() as usize % KNOWN];
        let found = &self.tree.text.as_bytes()[slot.0 as usize..(slot.0 + slot.1) as usize];
        if found != text.as_bytes() {
            *slot = (self.tree.text.len() as u32, len);
            self.tree.text.push_str(text);
        }
        *slot
    }
}

/// A place in a tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'t> {
    tree: &'t Tree,
    at: u32,
}

impl<'t> Node<'t> {
    fn raw(self) -> Raw {
        self.tree.nodes[self.at as usize]
    }

    pub(crate) fn kind(self) -> Kind {
        self.raw().kind()
    }

    /// Line and column, from 1.
    pub(crate) fn position(self) -> (u32, u32) {
        let raw = self.raw();
        (raw.line, raw.column & COLUMN)
    }

    /// The text of a scalar (of `true` and `null` too, as written); empty for lists and maps.
    pub(crate) fn text(self) -> &'t str {
        let raw = self.raw();
        match raw.kind() {
            Kind::List | Kind::Map => "",
            _ => &self.tree.text[raw.start as usize..(raw.start + raw.len) as usize],
        }
    }

    /// Items of a list, keys and values of a map in turn.
    fn children(self) -> impl Iterator<Item = Node<'t>> + Clone {
        let raw = self.raw();
        let end = self.at + raw.size();
        let mut at = self.at + 1;
        std::iter::from_fn(move || {
            let node = (at < end).then_some(Node { tree: self.tree, at })?;
            at += node.raw().size();
            Some(node)
        })
    }

    pub(crate) fn items(self) -> impl Iterator<Item = Node<'t>> + Clone {
        self.children()
    }

    /// Entries of a map, ignored ones left out.
    pub(crate) fn entries(self) -> impl Iterator<Item = (Node<'t>, Node<'t>)> + Clone {
        let mut children = self.children();
        std::iter::from_fn(move || Some((children.next()?, children.next()?)))
            .filter(|(key, _)| key.kind() != Kind::Ignored)
    }

    /// What it is, for a sentence that says what was found.
    pub(crate) fn describe(self) -> String {
        let text: String = self.text().chars().take(60).collect();
        match self.kind() {
            Kind::Null => "nothing (null)".to_owned(),
            Kind::False | Kind::True => format!("the boolean `{text}`"),
            Kind::Number => format!("the number `{text}`"),
            Kind::Text | Kind::Ignored => format!("the string `{text}`"),
            Kind::List => "a list".to_owned(),
            Kind::Map => "an object".to_owned(),
        }
    }

    /// The place of a field path below this node, or of the innermost part of it that is there: a map's or list's key,
    /// a scalar's value.
    /// With it how many steps of the path were found.
    pub(crate) fn locate_depth(self, path: &str) -> (usize, (u32, u32)) {
        let mut depth = 0;
        let mut node = self;
        let mut place = self.position();
        let mut rest = path;
        while let Some((step, after)) = next_step(rest) {
            rest = after;
            let found = match (step, node.kind()) {
                (Step::Index(i), Kind::List) => node.items().nth(i).map(|item| (item, item)),
                (Step::Index(0), _) => Some((node, node)),
                (Step::Key(name), Kind::Map) => node.entries().filter(|(key, _)| same_field(key.text(), name)).last(),
                _ => None,
            };
            let Some((key, value)) = found else { break };
            node = value;
            depth += 1;
            place = if matches!(value.kind(), Kind::Map | Kind::List) { key.position() } else { value.position() };
        }
        (depth, place)
    }
}

enum Step<'p> {
    Index(usize),
    Key(&'p str),
}

fn next_step(path: &str) -> Option<(Step<'_>, &str)> {
    let path = path.strip_prefix('.').unwrap_or(path);
    if let Some(quoted) = path.strip_prefix("[\"") {
        let (key, after) = quoted.split_once("\"]")?;
        return Some((Step::Key(key), after));
    }
    if let Some(index) = path.strip_prefix('[') {
        let (index, after) = index.split_once(']')?;
        return Some((Step::Index(index.parse().ok()?), after));
    }
    let end = path.find(['.', '[']).unwrap_or(path.len());
    (end > 0).then(|| (Step::Key(&path[..end]), &path[end..]))
}

/// A text may say `connectTimeout` where the path says `connect_timeout`.
fn same_field(written: &str, name: &str) -> bool {
    written == name
        || written
            .bytes()
            .filter(|b| *b != b'_')
            .map(|b| b.to_ascii_lowercase())
            .eq(name.bytes().filter(|b| *b != b'_').map(|b| b.to_ascii_lowercase()))
}
