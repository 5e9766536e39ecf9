//! The one walk over an encoded message, whatever it came from: annotation rules, what is set but not implemented,
//! unknown and deprecated fields. It reads the wire and opens every `Any`, so nothing is built in memory; the path
//! becomes text only when there is something to say.

mod values;

use std::collections::HashSet;

use prost::Message as _;
use prost_reflect::DynamicMessage;

use crate::any;
use crate::diag::{About, Finding, Findings, Path, Severity};
use crate::load::LoadOptions;
use crate::rules::{FieldRules, Rule};
use crate::shape::{Deprecated, Field, Form, Repeat, Shape};
use crate::support::{self, MessageSupport, Support, Verdict};
use crate::unknown::UnknownFields;
use crate::wire::{Wire, fields};
use values::{any_parts, fits, is_default, levels, nanos, only_value, rule_name, wire_bytes};

pub(crate) struct Walk<'w> {
    findings: &'w mut Findings,
    support: Option<&'w Support>,
    /// What is not implemented is a warning.
    allow_unsupported: bool,
    unknown: UnknownFields,
    pub(crate) unknown_seen: u64,
    pub(crate) deprecated_seen: u64,
    /// Nanoseconds since 1970, for rules about now.
    now: Option<i128>,
    /// Warnings that were given for a field of a message: once a load is enough.
    warned: &'w mut HashSet<(&'static str, String)>,
}

/// What is checked from here on down.
#[derive(Clone, Copy)]
struct Scope {
    rules: bool,
    support: bool,
}

/// How deep messages may be nested; the typed decoder stops at the same depth.
const DEEPEST: usize = 100;

impl<'w> Walk<'w> {
    pub(crate) fn new(
        findings: &'w mut Findings,
        warned: &'w mut HashSet<(&'static str, String)>,
        options: &LoadOptions<'w>,
    ) -> Self {
        Self {
            findings,
            support: options.support,
            allow_unsupported: options.allow_unsupported,
            unknown: options.unknown,
            unknown_seen: 0,
            deprecated_seen: 0,
            now: options.now,
            warned,
        }
    }

    pub(crate) fn check(&mut self, bytes: &[u8], shape: &'static Shape, path: &Path<'_>) {
        self.message(bytes, shape, path, Scope { rules: true, support: self.support.is_some() }, 0);
    }

    fn tell(&mut self, severity: Severity, about: About, path: &Path<'_>, text: String) {
        self.findings.push(Finding::new(severity, about, path.to_string(), text));
    }

    fn broken(
        &mut self,
        rules: Option<&FieldRules>,
        shape: &Shape,
        field: &str,
        path: &Path<'_>,
        found: Option<String>,
    ) {
        if rules.is_some()
            && let Some(text) = found
        {
            let text = format!("{text} ({})", rule_name(shape, field));
            self.tell(Severity::Error, About::Other, path, text);
        }
    }

    fn message(&mut self, bytes: &[u8], shape: &'static Shape, path: &Path<'_>, scope: Scope, depth: usize) {
        if depth > DEEPEST {
            return self.tell(Severity::Error, About::Other, path, format!("nested more than {DEEPEST} levels deep"));
        }
        match shape.form {
            Form::Any => return self.any(bytes, path, scope, depth),
            Form::Object => {}
            _ => return self.leaf(bytes, shape, path),
        }
        let scope = Scope { rules: scope.rules && !shape.unchecked, ..scope };
        let entry = self.entry(shape, scope);
        if scope.support && entry.is_none() {
            self.unsupported(shape, "", path, format!("{} is not implemented", shape.name()));
        }
        let mut pass = Pass {
            shape,
            path,
            scope: Scope { support: entry.is_some(), ..scope },
            entry,
            depth,
            counts: vec![0; shape.fields.len()],
            lists: Vec::new(),
        };
        let before = self.findings.list.len();
        if !self.pass(&mut pass, bytes) {
            // A field that may be given once came in parts, which protobuf joins: join them, and look again.
            self.findings.truncate(before);
            let desc = crate::pool::message(shape.name());
            let Some(whole) = desc.and_then(|desc| DynamicMessage::decode(desc, bytes).ok()) else {
                return self.tell(Severity::Error, About::Other, path, "is not an encoded message".to_owned());
            };
            pass.counts.fill(0);
            pass.lists.clear();
            self.pass(&mut pass, &whole.encode_to_vec());
        }
        if scope.rules {
            self.absent(&pass);
        }
    }

    fn entry<'s>(&self, shape: &Shape, scope: Scope) -> Option<MessageSupport<'s>>
    where
        'w: 's,
    {
        let support: &'w Support = self.support?;
        if scope.support { support.message(shape.name()) } else { None }
    }

    /// Messages with a text form of their own: no rules are inside, only damage and depth.
    fn leaf(&mut self, bytes: &[u8], shape: &'static Shape, path: &Path<'_>) {
        let text = match shape.form {
            Form::Struct | Form::Value | Form::ListValue => match levels(bytes, shape, 0) {
                None => "is not an encoded message".to_owned(),
                Some(levels) if levels > DEEPEST => "is nested too deeply".to_owned(),
                Some(_) => return,
            },
            _ if fields(bytes).any(|f| f.is_err()) => "is not an encoded message".to_owned(),
            _ => return,
        };
        self.tell(Severity::Error, About::Other, path, text);
    }

    /// All fields that are there. False: a singular message came twice.
    fn pass(&mut self, pass: &mut Pass<'_>, bytes: &[u8]) -> bool {
        for field in fields(bytes) {
            let Ok((number, value, _)) = field else {
                self.tell(Severity::Error, About::Other, pass.path, "is not an encoded message".to_owned());
                return true;
            };
            let Some(index) = pass.shape.field_numbered(number) else {
                self.unknown_number(number, pass);
                continue;
            };
            let field = &pass.shape.fields[index];
            if !fits(field, value) {
                let here = Path::Field(pass.path, field.name());
                self.tell(Severity::Error, About::Other, &here, "has another type on the wire".to_owned());
                continue;
            }
            if field.repeat == Repeat::One && !field.presence && is_default(value) {
                continue;
            }
            let count = &mut pass.counts[index];
            *count += 1;
            if *count == 1 {
                self.first_seen(field, value, pass);
            } else if field.repeat == Repeat::One && field.message().is_some() {
                return false;
            }
            self.occurrence(index, value, pass);
        }
        true
    }

    fn unknown_number(&mut self, number: u32, pass: &Pass<'_>) {
        self.unknown_seen += 1;
        let severity = match self.unknown {
            UnknownFields::Refuse => Severity::Error,
            UnknownFields::Warn => Severity::Warning,
            UnknownFields::Ignore => return,
        };
        if severity == Severity::Error || self.warn_once("unknown", pass.shape.name(), &number.to_string()) {
            let text = format!("unknown field {number} in {}", pass.shape.name());
            self.tell(severity, About::Other, pass.path, text);
        }
    }

    fn warn_once(&mut self, about: &'static str, message: &str, field: &str) -> bool {
        self.warned.insert((about, format!("{message}.{field}")))
    }

    /// A field is set: is it implemented, is it deprecated?
    fn first_seen(&mut self, field: &'static Field, value: Wire<'_>, pass: &mut Pass<'_>) {
        let here = Path::Field(pass.path, field.name());
        if field.deprecated != Deprecated::No {
            self.deprecated_seen += 1;
            let name = format!("{}.{}", pass.shape.name(), field.name());
            if field.deprecated == Deprecated::Refused {
                let text = format!("deprecated: {name} is not accepted any more");
                self.tell(Severity::Error, About::Other, &here, text);
            } else if self.warn_once("deprecated", pass.shape.name(), field.name()) {
                self.tell(
                    Severity::Warning,
                    About::Other,
                    &here,
                    format!("deprecated: {name} will be removed from Envoy"),
                );
            }
        }
        let Some(entry) = pass.entry else { return };
        match entry.field(field.name()) {
            Verdict::Honoured => {}
            Verdict::Noop(reason) => {
                if self.warn_once("noop", pass.shape.name(), field.name()) {
                    self.tell(Severity::Warning, About::Other, &here, format!("accepted, no effect: {reason}"));
                }
            }
            Verdict::OnlyAt(values) => {
                let is = only_value(field, value);
                if !values.contains(&is.as_str()) {
                    let text = format!("`{is}` is not implemented (only {})", values.join(", "));
                    self.unsupported(pass.shape, field.name(), &here, text);
                }
            }
            Verdict::Missing => self.unsupported(pass.shape, field.name(), &here, "is not implemented".to_owned()),
        }
    }

    fn unsupported(&mut self, shape: &Shape, field: &str, path: &Path<'_>, text: String) {
        if !self.allow_unsupported {
            self.tell(Severity::Error, About::Other, path, text);
        } else if self.warn_once("unsupported", shape.name(), field) {
            self.tell(Severity::Warning, About::Other, path, text);
        }
    }

    /// One value of one field.
    fn occurrence(&mut self, index: usize, value: Wire<'_>, pass: &mut Pass<'_>) {
        let field: &'static Field = &pass.shape.fields[index];
        let list = Path::Field(pass.path, field.name());
        let at = pass.counts[index] - 1;
        let rules = field.rules.as_deref().filter(|_| pass.scope.rules);
        // Below a field that is not honoured nothing more is said about support.
        let honoured =
            pass.entry.is_some_and(|e| matches!(e.field(field.name()), Verdict::Honoured | Verdict::OnlyAt(_)));
        let scope = Scope { support: pass.scope.support && honoured, ..pass.scope };
        match field.repeat {
            Repeat::One => self.value(field, rules, value, pass, &list, scope),
            Repeat::List => {
                let items = rules.and_then(|r| match &r.rule {
                    Rule::List(list) => list.items.as_ref(),
                    _ => None,
                });
                if let (None, Wire::Bytes(mut packed), true) = (field.message(), value, field.is_number()) {
                    pass.counts[index] = at;
                    while let Some(one) = field.unpack_one(&mut packed) {
                        let here = Path::Index(&list, pass.counts[index]);
                        pass.counts[index] += 1;
                        self.value(field, items, one, pass, &here, scope);
                        self.duplicate(index, rules, one, pass, &here);
                    }
                    return;
                }
                let here = Path::Index(&list, at);
                self.value(field, items, value, pass, &here, scope);
                self.duplicate(index, rules, value, pass, &here);
            }
            Repeat::Map => self.map_entry(field, rules, value, pass, &list, scope),
        }
    }

    fn duplicate(
        &mut self,
        index: usize,
        rules: Option<&FieldRules>,
        value: Wire<'_>,
        pass: &mut Pass<'_>,
        path: &Path<'_>,
    ) {
        if !rules.is_some_and(|r| matches!(&r.rule, Rule::List(list) if list.unique)) {
            return;
        }
        let value = wire_bytes(value);
        let new = match pass.lists.iter_mut().find(|(i, _)| *i == index) {
            Some((_, known)) => known.insert(value),
            None => {
                pass.lists.push((index, HashSet::from([value])));
                true
            }
        };
        if !new {
            let name = pass.shape.fields[index].name();
            self.broken(rules, pass.shape, name, path, Some("is in the list already: duplicate values".to_owned()));
        }
    }

    fn map_entry(
        &mut self,
        field: &'static Field,
        rules: Option<&FieldRules>,
        value: Wire<'_>,
        pass: &Pass<'_>,
        path: &Path<'_>,
        scope: Scope,
    ) {
        let (Some(entry), Wire::Bytes(bytes)) = (field.message(), value) else { return };
        let (Some(key_field), Some(value_field)) = (entry.fields.first(), entry.fields.get(1)) else { return };
        let (mut key, mut inner) = (None, None);
        for (number, value, _) in fields(bytes).flatten() {
            match number {
                1 => key = Some(value),
                2 => inner = Some(value),
                _ => {}
            }
        }
        let name = key.map_or_else(String::new, |key| support::value_text(key_field, key));
        let here = Path::Key(path, &name);
        let map = rules.and_then(|r| if let Rule::Map(map) = &r.rule { Some(map) } else { None });
        if let Some(keys) = map.and_then(|m| m.keys.as_ref()) {
            let found =
                key.map_or_else(|| keys.scalar_default(&key_field.kind), |key| keys.scalar(key, &key_field.kind));
            self.broken(Some(keys), pass.shape, field.name(), &here, found);
        }
        let values = map.and_then(|m| m.values.as_ref());
        match inner {
            Some(inner) => self.value(value_field, values, inner, pass, &here, scope),
            None if value_field.message().is_some() => {
                self.value(value_field, values, Wire::Bytes(&[]), pass, &here, scope);
            }
            None => {
                let found = values.and_then(|v| v.scalar_default(&value_field.kind));
                self.broken(values, pass.shape, field.name(), &here, found);
            }
        }
    }

    /// One value against the rules for it, and into it.
    fn value(
        &mut self,
        field: &'static Field,
        rules: Option<&FieldRules>,
        value: Wire<'_>,
        pass: &Pass<'_>,
        path: &Path<'_>,
        scope: Scope,
    ) {
        let Some(inner) = field.message() else {
            let found = rules.and_then(|r| r.scalar(value, &field.kind));
            return self.broken(rules, pass.shape, field.name(), path, found);
        };
        let Wire::Bytes(bytes) = value else { return };
        if let Some(rules) = rules {
            let found = match inner.form {
                Form::Wrapper => inner.fields.first().and_then(|f| match fields(bytes).flatten().last() {
                    Some((_, value, _)) => rules.scalar(value, &f.kind),
                    None => rules.scalar_default(&f.kind),
                }),
                Form::Duration | Form::Timestamp => rules.nanos(nanos(bytes), self.now),
                Form::Any => rules.any_type(&any_parts(bytes).0),
                _ => None,
            };
            self.broken(Some(rules), pass.shape, field.name(), path, found);
        }
        let skip = rules.is_some_and(|r| r.skip);
        self.message(bytes, inner, path, Scope { rules: scope.rules && !skip, ..scope }, pass.depth + 1);
    }

    fn any(&mut self, bytes: &[u8], path: &Path<'_>, scope: Scope, depth: usize) {
        let (url, value) = any_parts(bytes);
        if url.is_empty() {
            return;
        }
        match any::shape_of(&url) {
            Ok(shape) if crate::pool::TYPED_STRUCTS.contains(&shape.name()) => {
                self.typed_struct(value, path, scope, depth)
            }
            Ok(shape) => self.message(value, shape, path, scope, depth + 1),
            Err(text) => self.tell(Severity::Error, About::Other, path, text),
        }
    }

    fn typed_struct(&mut self, value: &[u8], path: &Path<'_>, scope: Scope, depth: usize) {
        match any::open_typed_struct(value, self.unknown) {
            Ok((shape, bytes)) => {
                self.message(&bytes, shape, &Path::Field(path, "value"), scope, depth + 1);
            }
            Err(text) => self.tell(Severity::Error, About::Other, path, text),
        }
    }

    /// What is not there and should be, and lists that are too short or too long.
    fn absent(&mut self, pass: &Pass<'_>) {
        for (field, &count) in pass.shape.fields.iter().zip(&pass.counts) {
            let Some(rules) = field.rules.as_deref() else { continue };
            let here = Path::Field(pass.path, field.name());
            let found = match field.repeat {
                Repeat::List | Repeat::Map => rules.count(count as u64),
                Repeat::One if count > 0 => None,
                // A member of a oneof has rules only while it is the one that is set.
                Repeat::One if field.oneof.is_some() => None,
                Repeat::One if field.message().is_some() => rules.required.then(|| "is required".to_owned()),
                Repeat::One if field.presence => None,
                Repeat::One => rules.scalar_default(&field.kind),
            };
            if let Some(text) = found {
                let text = format!("{text} ({})", rule_name(pass.shape, field.name()));
                let about = if count == 0 { About::Absence } else { About::Other };
                self.tell(Severity::Error, about, &here, text);
            }
        }
        for oneof in pass.shape.oneofs.iter().filter(|o| o.required) {
            if oneof.members.iter().all(|m| pass.counts[usize::from(*m)] == 0) {
                let names: Vec<&str> =
                    oneof.members.iter().map(|m| pass.shape.fields[usize::from(*m)].name()).collect();
                let name = oneof.name();
                let text = format!("one of {} is required ({})", names.join(", "), rule_name(pass.shape, name));
                self.tell(Severity::Error, About::Absence, pass.path, text);
            }
        }
    }
}

/// The state of one message's walk.
struct Pass<'p> {
    shape: &'static Shape,
    path: &'p Path<'p>,
    scope: Scope,
    entry: Option<MessageSupport<'p>>,
    depth: usize,
    /// How often each field is there.
    counts: Vec<usize>,
    /// Values of lists that must not repeat any.
    lists: Vec<(usize, HashSet<Vec<u8>>)>,
}

#[cfg(test)]
mod tests;
