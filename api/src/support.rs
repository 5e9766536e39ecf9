//! Honest configuration: what is set and not implemented is said, never silently ignored. Beside each consumer of a
//! message stands one entry with the fields that it honours; this is the registry of all entries, the question that
//! the walk asks it, and the list for `nuncio supported`.
//!
//! ```
//! nuncio_api::supports!(pub SOCKET = "envoy.config.core.v3.SocketAddress" {
//!     address, port_value
//! } noop {
//!     resolver_name: "resolvers are chosen by the cluster",
//! } values {
//!     protocol: ["TCP"],
//! });
//! nuncio_api::support::Support::new(&[&[&SOCKET]]).check_names().unwrap();
//! ```

use std::collections::HashMap;

use crate::diag::nearest;
use crate::shape::{Field, FieldKind, Shape, shape_named};
use crate::wire::Wire;

/// What is implemented of one message.
#[derive(Debug)]
pub struct Entry {
    /// Full name.
    pub message: &'static str,
    /// Read and honoured, whatever the value.
    pub fields: &'static [&'static str],
    /// Accepted without effect, and why that changes neither routing, security nor results: a warning.
    pub noop: &'static [(&'static str, &'static str)],
    /// Honoured at these values only: names of enum values, `true`, `false`, numbers, strings.
    pub values: &'static [(&'static str, &'static [&'static str])],
}

/// Declares an [`Entry`]: `supports!(pub NAME = "full.Name" { fields } noop { field: "reason" } values { field: [..] })`.
/// Fields whose names are Rust keywords are written raw, `r#match`.
#[macro_export]
macro_rules! supports {
    ($vis:vis $name:ident = $message:literal { $($field:ident),* $(,)? }
     $(noop { $($noop:ident : $reason:literal),* $(,)? })?
     $(values { $($limited:ident : [$($value:literal),* $(,)?]),* $(,)? })?) => {
        $vis static $name: $crate::support::Entry = $crate::support::Entry {
            message: $message,
            fields: &[$(stringify!($field)),*],
            noop: &[$($((stringify!($noop), $reason)),*)?],
            values: &[$($((stringify!($limited), &[$($value),*])),*)?],
        };
    };
}

/// What the table says about a field that is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Honoured,
    Noop(&'static str),
    OnlyAt(&'static [&'static str]),
    Missing,
}

/// All entries of the binary.
#[derive(Debug, Default)]
pub struct Support {
    entries: HashMap<&'static str, Merged>,
}

/// Entries of one message may stand in several places (a filter and its per-route part share messages).
#[derive(Debug, Default)]
struct Merged {
    fields: HashMap<&'static str, Verdict>,
}

fn unraw(name: &'static str) -> &'static str {
    name.strip_prefix("r#").unwrap_or(name)
}

impl Support {
    /// From the lists of all rooms. Where two entries name a field, the more generous one counts.
    pub fn new(lists: &[&[&'static Entry]]) -> Self {
        let mut support = Self::default();
        for entry in lists.iter().copied().flatten() {
            let merged = support.entries.entry(entry.message).or_default();
            for (field, reason) in entry.noop {
                merged.fields.entry(unraw(field)).or_insert(Verdict::Noop(reason));
            }
            for (field, values) in entry.values {
                merged.fields.insert(unraw(field), Verdict::OnlyAt(values));
            }
            for field in entry.fields {
                merged.fields.insert(unraw(field), Verdict::Honoured);
            }
        }
        support
    }

    pub(crate) fn message(&self, name: &str) -> Option<MessageSupport<'_>> {
        self.entries.get(name).map(MessageSupport)
    }

    /// Every name in the table must be one of the descriptors'; returns the wrong ones.
    pub fn check_names(&self) -> Result<(), Vec<String>> {
        let mut wrong = Vec::new();
        for (message, merged) in &self.entries {
            let Some(shape) = shape_named(message) else {
                wrong.push(format!("no message {message}"));
                continue;
            };
            for (field, verdict) in &merged.fields {
                check_field(shape, field, *verdict, &mut wrong);
            }
        }
        wrong.sort();
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// Lines for `nuncio supported`: all messages, or the fields of one (by full name, type URL or last word).
    pub fn list(&self, of: Option<&str>) -> Vec<String> {
        let mut names: Vec<&str> = self.entries.keys().copied().collect();
        names.sort_unstable();
        let Some(asked) = of else {
            return names.iter().filter_map(|name| self.summary(name)).collect();
        };
        let asked = crate::any::type_name(asked.trim_start_matches('@'));
        let found: Vec<&str> =
            names.iter().copied().filter(|n| *n == asked || n.rsplit('.').next() == Some(asked)).collect();
        if found.is_empty() {
            let near = nearest(asked, names.iter().copied()).map(|n| format!(", did you mean {n}?"));
            return vec![format!("{asked}: nothing is implemented{}", near.unwrap_or_default())];
        }
        found.iter().flat_map(|name| self.fields(name)).collect()
    }

    fn summary(&self, name: &str) -> Option<String> {
        let (shape, merged) = (shape_named(name)?, self.entries.get(name)?);
        let honoured = merged.fields.values().filter(|v| !matches!(v, Verdict::Noop(_))).count();
        Some(format!("{name}: {honoured} of {} fields", shape.fields.len()))
    }

    fn fields(&self, name: &str) -> Vec<String> {
        let (Some(shape), Some(merged)) = (shape_named(name), self.entries.get(name)) else { return Vec::new() };
        let mut lines = vec![name.to_owned()];
        for field in shape.field_names() {
            let says = match merged.fields.get(field).copied().unwrap_or(Verdict::Missing) {
                Verdict::Honoured => "yes".to_owned(),
                Verdict::Noop(reason) => format!("accepted, no effect: {reason}"),
                Verdict::OnlyAt(values) => format!("only {}", values.join(", ")),
                Verdict::Missing => "no".to_owned(),
            };
            lines.push(format!("  {field}: {says}"));
        }
        lines
    }
}

fn check_field(shape: &Shape, name: &str, verdict: Verdict, wrong: &mut Vec<String>) {
    let Some(field) = shape.field_named(name).map(|at| &shape.fields[at]).filter(|f| f.name() == name) else {
        let near = nearest(name, shape.field_names()).map(|n| format!(", did you mean {n}?"));
        return wrong.push(format!("no field {name} in {}{}", shape.name(), near.unwrap_or_default()));
    };
    if let (Verdict::OnlyAt(values), FieldKind::Enum(of)) = (verdict, &field.kind) {
        for value in values.iter().filter(|v| of.number_of(v).is_none()) {
            wrong.push(format!("no value {value} in {} ({}.{name})", of.name(), shape.name()));
        }
    }
}

/// The entry of one message.
#[derive(Clone, Copy)]
pub(crate) struct MessageSupport<'s>(&'s Merged);

impl MessageSupport<'_> {
    pub(crate) fn field(self, name: &str) -> Verdict {
        self.0.fields.get(name).copied().unwrap_or(Verdict::Missing)
    }
}

/// A scalar as it stands in a `values` list.
pub(crate) fn value_text(field: &Field, value: Wire<'_>) -> String {
    match (&field.kind, value) {
        (FieldKind::Bool, Wire::Varint(n)) => (n != 0).to_string(),
        (FieldKind::Enum(of), Wire::Varint(n)) => {
            of.name_of(n as i32).map_or_else(|| (n as i32).to_string(), str::to_owned)
        }
        (_, Wire::Bytes(text)) => String::from_utf8_lossy(text).into_owned(),
        (kind, value) => crate::rules::whole(value, kind).map(|n| n.to_string()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    supports!(ROUTE = "envoy.config.route.v3.Route" { r#match, route } noop { stat_prefix: "a reason" });
    supports!(MORE = "envoy.config.route.v3.Route" { stat_prefix, redirect });
    supports!(WRONG = "envoy.config.core.v3.SocketAddress" { adress } values { protocol: ["TCPP"] });
    supports!(NOWHERE = "envoy.no.such.Message" {});

    #[test]
    fn names_are_checked_against_the_descriptors() {
        assert_eq!(Support::new(&[&[&ROUTE], &[&MORE]]).check_names(), Ok(()));
        let wrong = Support::new(&[&[&WRONG, &NOWHERE]]).check_names().unwrap_err();
        assert_eq!(
            wrong,
            [
                "no field adress in envoy.config.core.v3.SocketAddress, did you mean address?",
                "no message envoy.no.such.Message",
                "no value TCPP in envoy.config.core.v3.SocketAddress.Protocol (envoy.config.core.v3.SocketAddress.protocol)",
            ]
        );
    }

    #[test]
    fn entries_of_one_message_add_up_and_the_generous_one_counts() {
        let support = Support::new(&[&[&ROUTE], &[&MORE]]);
        let entry = support.message("envoy.config.route.v3.Route").unwrap();
        assert_eq!(entry.field("match"), Verdict::Honoured);
        assert_eq!(entry.field("stat_prefix"), Verdict::Honoured);
        assert_eq!(entry.field("metadata"), Verdict::Missing);
    }

    #[test]
    fn the_table_prints_itself() {
        let support = Support::new(&[&[&ROUTE]]);
        assert_eq!(support.list(None), ["envoy.config.route.v3.Route: 2 of 19 fields"]);
        let lines = support.list(Some("@type.googleapis.com/envoy.config.route.v3.Route"));
        assert!(lines.contains(&"  match: yes".to_owned()), "{lines:?}");
        assert!(lines.contains(&"  stat_prefix: accepted, no effect: a reason".to_owned()), "{lines:?}");
        assert!(lines.contains(&"  redirect: no".to_owned()), "{lines:?}");
        assert_eq!(support.list(Some("Route")), lines);
        assert_eq!(support.list(Some("Rotue")), ["Rotue: nothing is implemented"]);
    }
}
