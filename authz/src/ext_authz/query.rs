//! Changes of a path's query parameters.
//!
//! As in Envoy the parameters are sorted by name afterwards, each with its `=`, and stay encoded as they were. What is
//! set is written as it was given, except for bytes that cannot stand in a request line: Envoy writes these too, which
//! lets an authorization service cut the request line in two.

use std::collections::BTreeMap;

/// The path with parameters replaced and removed.
pub(super) fn change(path: &[u8], set: &[(String, String)], remove: &[String]) -> Vec<u8> {
    let (base, rest) = split(path, b'?');
    let (query, fragment) = rest.map_or((None, None), |rest| {
        let (query, fragment) = split(rest, b'#');
        (Some(query), fragment)
    });
    let mut parameters = BTreeMap::<Vec<u8>, Vec<Vec<u8>>>::new();
    for part in query.into_iter().flat_map(|query| query.split(|b| *b == b'&')).filter(|part| !part.is_empty()) {
        let (name, value) = split(part, b'=');
        parameters.entry(name.to_vec()).or_default().push(value.unwrap_or_default().to_vec());
    }
    for (name, value) in set {
        parameters.insert(legal(name), vec![legal(value)]);
    }
    for name in remove {
        parameters.remove(name.as_bytes());
    }
    let mut out = base.to_vec();
    let mut before = b'?';
    for (name, values) in &parameters {
        for value in values {
            out.push(before);
            out.extend_from_slice(name);
            out.push(b'=');
            out.extend_from_slice(value);
            before = b'&';
        }
    }
    if let Some(fragment) = fragment {
        out.push(b'#');
        out.extend_from_slice(fragment);
    }
    out
}

/// Whether every byte may stand in a query as it is.
pub(super) fn is_legal(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_graphic() && b != b'#')
}

fn legal(text: &str) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(text.len());
    for b in text.bytes() {
        if b.is_ascii_graphic() && b != b'#' {
            out.push(b);
        } else {
            out.extend([b'%', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
        }
    }
    out
}

fn split(text: &[u8], at: u8) -> (&[u8], Option<&[u8]>) {
    match text.iter().position(|b| *b == at) {
        Some(i) => (&text[..i], Some(&text[i + 1..])),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(path: &str, set: &[(&str, &str)], remove: &[&str]) -> String {
        let set: Vec<_> = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let remove: Vec<_> = remove.iter().map(|n| (*n).to_owned()).collect();
        String::from_utf8(change(path.as_bytes(), &set, &remove)).unwrap()
    }

    // Recorded from Envoy 1.40.
    #[test]
    fn parameters_are_sorted_and_keep_their_encoding() {
        let set = [("z", "new"), ("n", "%41")];
        let path = changed("/p?z=%20&y=1&z=2&k=%2f&empty&e2=&k=3&=v&A", &set, &["y"]);
        assert_eq!(path, "/p?=v&A=&e2=&empty=&k=%2f&k=3&n=%41&z=new");
        assert_eq!(changed("/p", &set, &["y"]), "/p?n=%41&z=new");
        assert_eq!(changed("/p?y=1", &[], &["y"]), "/p");
    }

    #[test]
    fn what_would_end_the_request_line_is_encoded() {
        assert_eq!(changed("/p", &[("a b", "c HTTP/1.1\r\nx: y#")], &[]), "/p?a%20b=c%20HTTP/1.1%0D%0Ax:%20y%23");
        assert!(is_legal("a%20b&c=d") && !is_legal("a b") && !is_legal("a\r"));
    }
}
