//! What an authorization service may do to a request: its answer applied to the head.
//!
//! Bytes that would end a line, names that are no names, and pseudo headers that requests do not have make the whole
//! answer invalid, with or without `validate_mutations`: Envoy lets them through to its codec at best. Fields that frame
//! the message are passed over, since an authorization service that sets them can only break it.

use nuncio_core::http::RequestHead;
use nuncio_core::matcher::header::lookup_name;

use super::answer::{Changes, Field, Refusal};
use super::mutation_rules::{Change, MutationRules, Permission};
use super::query;

/// Why the answer must not be followed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    Field,
    /// The head would be larger than clients may make it.
    TooLarge,
}

fn within_limits(head: &RequestHead) -> Result<(), Invalid> {
    if head.is_within_limits() { Ok(()) } else { Err(Invalid::TooLarge) }
}

/// Fields that say where a message ends or concern one connection only.
pub(super) fn frames(name: &str) -> bool {
    matches!(
        name,
        "content-length"
            | "transfer-encoding"
            | "connection"
            | "keep-alive"
            | "proxy-connection"
            | "upgrade"
            | "te"
            | "trailer"
    )
}

impl Changes {
    /// `strict` is `validate_mutations`.
    pub(super) fn check(&self, strict: bool) -> Result<(), Invalid> {
        let mut request = self.set.iter().chain(&self.add).chain(&self.append);
        let response = || self.response.iter().map(|(_, field)| field);
        let query = || self.query_set.iter().all(|(name, value)| query::is_legal(name) && query::is_legal(value));
        let legal = request.all(is_legal_in_request) && response().all(is_legal) && (!strict || query());
        if legal { Ok(()) } else { Err(Invalid::Field) }
    }

    /// In Envoy's order: set, add, append, remove, then the query of what `:path` is by now.
    pub(super) fn apply(&self, head: &mut RequestHead, rules: Option<&MutationRules>) -> Result<(), Invalid> {
        let allowed = |change: Change, name: &str| match rules.map(|rules| rules.check(change, name)) {
            None | Some(Permission::Granted) => Ok(true),
            Some(Permission::Ignored) => Ok(false),
            Some(Permission::Failed) => Err(Invalid::Field),
        };
        let fields = |list: &[Field]| -> Vec<(String, Vec<u8>)> {
            let kept = list.iter().filter(|(name, _)| !frames(name));
            kept.map(|(name, value)| (lookup_name(name), value.clone())).collect()
        };
        let set = fields(&self.set);
        for (name, _) in &set {
            if allowed(Change::Set, name)? {
                // All before the first is set: an answer may hold two spellings itself.
                head.headers.remove_aliases(name);
            }
        }
        for (name, value) in set {
            if allowed(Change::Set, &name)? {
                head.headers.set_given(&name, value);
            }
        }
        for (name, value) in fields(&self.add) {
            if allowed(Change::Append, &name)? {
                // A second pseudo header would make the request malformed.
                if name.starts_with(':') {
                    head.headers.set_given(&name, value)
                } else {
                    head.headers.append(name, value)
                }
            }
        }
        for (name, value) in fields(&self.append) {
            if head.headers.contains(&name) && allowed(Change::Append, &name)? {
                head.headers.append_to_value(&name, ",", value);
            }
        }
        // Before what is removed, as in Envoy.
        within_limits(head)?;
        for name in &self.remove {
            let name = lookup_name(name);
            if !name.starts_with(':') && !frames(&name) && allowed(Change::Remove, &name)? {
                head.headers.remove(&name);
            }
        }
        if (!self.query_set.is_empty() || !self.query_remove.is_empty())
            && let Some(path) = head.path()
        {
            let path = query::change(path, &self.query_set, &self.query_remove);
            head.headers.set(":path", path);
        }
        within_limits(head)
    }
}

impl Refusal {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.headers.iter().all(is_legal) { Ok(()) } else { Err(Invalid::Field) }
    }
}

fn is_legal((name, value): &Field) -> bool {
    let bare = name.strip_prefix(':').unwrap_or(name);
    !bare.is_empty()
        && name.len() <= 1024
        && bare.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
        && value.iter().all(|b| *b == b'\t' || *b >= b' ' && *b != 0x7f)
}

fn is_legal_in_request(field: &Field) -> bool {
    let (name, value) = field;
    let graphic = || !value.is_empty() && value.iter().all(u8::is_ascii_graphic);
    is_legal(field)
        && match &**name {
            ":path" => graphic() && (value[0] == b'/' || **value == *b"*"),
            ":authority" | "host" => graphic(),
            ":method" => graphic() && value.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b)),
            ":scheme" => **value == *b"http" || **value == *b"https",
            other => !other.starts_with(':'),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, value: &str) -> Field {
        (name.to_owned(), value.as_bytes().to_vec())
    }

    fn head() -> RequestHead {
        let fields =
            [(":method", "GET"), (":path", "/p?q=1&z=2"), (":authority", "web.test"), ("x-a", "1"), ("x-b", "2")];
        RequestHead { headers: fields.into_iter().collect(), ..RequestHead::default() }
    }

    // Recorded from Envoy 1.40 (authz_allow_mutations and by hand).
    #[test]
    fn what_is_removed_is_gone_whatever_was_set_before() {
        let changes = Changes {
            set: vec![field("x-both", "new"), field("host", "evil.test"), field(":path", "/evil")],
            append: vec![field("x-a", "more"), field("x-none", "more")],
            remove: ["x-both", "x-b", "host", ":method"].map(str::to_owned).to_vec(),
            query_set: vec![("added".into(), "1".into()), ("q".into(), "changed".into())],
            query_remove: vec!["z".into()],
            ..Changes::default()
        };
        assert_eq!(changes.check(true), Ok(()));
        let mut head = head();
        changes.apply(&mut head, None).unwrap();
        let expected =
            [(":method", "GET"), (":path", "/evil?added=1&q=changed"), (":authority", "evil.test"), ("x-a", "1,more")];
        let got: Vec<_> = head.headers.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
        assert_eq!(got, expected.map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())));
    }

    #[test]
    fn what_would_split_a_message_is_refused_and_what_frames_it_is_passed_over() {
        for bad in [
            field("x", "a\r\nb: c"),
            field("x", "a\0"),
            field("x bad", "v"),
            field("", "v"),
            field(":path", "/a b"),
            field(":path", "evil"),
            field(":method", "GET /"),
            field(":scheme", "ftp"),
            field(":status", "200"),
            field("host", ""),
        ] {
            let text = format!("{bad:?}");
            let changes = Changes { set: vec![bad], ..Changes::default() };
            assert_eq!(changes.check(false), Err(Invalid::Field), "{text}");
        }
        let set =
            ["content-length", "transfer-encoding", "connection", "upgrade"].map(|name| field(name, "33")).to_vec();
        let changes = Changes { set, remove: vec!["content-length".into()], ..Changes::default() };
        let mut head = head();
        head.headers.append("content-length", "3");
        changes.apply(&mut head, None).unwrap();
        assert_eq!(head.headers.len(), 6);
        assert_eq!(head.headers.get("content-length"), Some(&b"3"[..]));
        let refusal = Refusal { headers: vec![field("set-cookie", "a\nb")], ..Refusal::default() };
        assert_eq!(refusal.check(), Err(Invalid::Field));
    }
}
