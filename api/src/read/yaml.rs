//! YAML text to tree, by the events of `saphyr-parser`. Only the first document is read, as in Envoy; anchors live as
//! long as the text, and an alias copies the nodes it names.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};

use super::tree::{Builder, Kind, Tree};
use super::{ReadLimits, SyntaxError, scalar};

pub(super) fn read(text: &str, limits: &ReadLimits) -> Result<Tree, SyntaxError> {
    let mut reader =
        Reader { builder: Builder::new(limits), anchors: HashMap::new(), open: Vec::new(), started: false };
    let mut parser = Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|e| {
            let (line, column) = place(e.marker());
            // The scanner looks ahead of us, and has a limit of its own for brackets.
            let text = match e.info() {
                "recursion limit exceeded" => format!("nested more than {} levels deep", limits.depth),
                info => format!("YAML: {info}"),
            };
            SyntaxError { line, column, text }
        })?;
        let (line, column) = place(&span.start);
        if !reader.event(event, line, column)? {
            break;
        }
    }
    if reader.builder.next() == 0 {
        return Err(SyntaxError { line: 1, column: 1, text: "the file is empty".to_owned() });
    }
    Ok(reader.builder.finish())
}

fn complex_key(line: u32, column: u32) -> SyntaxError {
    SyntaxError { line, column, text: "YAML: a key must be a plain word, not a list or an object".to_owned() }
}

fn place(mark: &Marker) -> (u32, u32) {
    (u32::try_from(mark.line()).unwrap_or(u32::MAX), u32::try_from(mark.col() + 1).unwrap_or(u32::MAX))
}

struct Reader {
    builder: Builder,
    /// Anchor to the node it names, once that is complete.
    anchors: HashMap<usize, u32>,
    /// Lists and maps that are open: their node and anchor, and whether the next child is a key.
    open: Vec<Open>,
    started: bool,
}

struct Open {
    at: u32,
    anchor: usize,
    map: bool,
    key_next: bool,
}

impl Reader {
    /// False when the first document is complete.
    fn event(&mut self, event: Event<'_>, line: u32, column: u32) -> Result<bool, SyntaxError> {
        match event {
            Event::DocumentStart(_) if self.started => return Ok(false),
            Event::DocumentStart(_) => self.started = true,
            Event::DocumentEnd => return Ok(false),
            Event::Scalar(text, style, anchor, tag) => {
                let at = self.builder.next();
                self.scalar(&text, style, tag.as_deref(), line, column)?;
                self.anchor(anchor, at);
                self.child_done();
            }
            Event::SequenceStart(anchor, _) => self.start(Kind::List, anchor, line, column)?,
            Event::MappingStart(anchor, _) => self.start(Kind::Map, anchor, line, column)?,
            Event::SequenceEnd | Event::MappingEnd => {
                self.builder.close();
                if let Some(open) = self.open.pop() {
                    self.anchor(open.anchor, open.at);
                }
                self.child_done();
            }
            Event::Alias(anchor) => {
                let Some(at) = self.anchors.get(&anchor).copied() else {
                    let text = "YAML: an alias inside the value that it names".to_owned();
                    return Err(SyntaxError { line, column, text });
                };
                if self.key_next() && self.builder.compound(at) {
                    return Err(complex_key(line, column));
                }
                self.builder.alias(at, line, column)?;
                self.child_done();
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd => {}
        }
        Ok(true)
    }

    fn key_next(&self) -> bool {
        self.open.last().is_some_and(|o| o.map && o.key_next)
    }

    fn start(&mut self, kind: Kind, anchor: usize, line: u32, column: u32) -> Result<(), SyntaxError> {
        if self.key_next() {
            return Err(complex_key(line, column));
        }
        let at = self.builder.next();
        self.builder.open(kind, line, column)?;
        self.open.push(Open { at, anchor, map: kind == Kind::Map, key_next: true });
        Ok(())
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        line: u32,
        column: u32,
    ) -> Result<(), SyntaxError> {
        if self.key_next() {
            let ignored = tag.is_some_and(|t| matches!(t.suffix.as_str(), "ignore" | "!ignore"));
            let kind = if ignored { Kind::Ignored } else { Kind::Text };
            return self.builder.scalar(kind, text, line, column);
        }
        // `! 12` is text, but `!!str 12` is typed like a plain 12: so does Envoy.
        let verbatim =
            tag.is_some_and(|t| t.handle.is_empty() && t.suffix == "!" || t.handle == "!" && t.suffix.is_empty());
        if style != ScalarStyle::Plain && tag.is_none() || verbatim {
            return self.builder.scalar(Kind::Text, text, line, column);
        }
        let (kind, text) = scalar::typed(text);
        self.builder.scalar(kind, &text, line, column)
    }

    fn anchor(&mut self, anchor: usize, at: u32) {
        if anchor != 0 {
            self.anchors.insert(anchor, at);
        }
    }

    fn child_done(&mut self) {
        if let Some(open) = self.open.last_mut() {
            open.key_next = !open.key_next;
        }
    }
}
