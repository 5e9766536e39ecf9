//! `application/x-www-form-urlencoded` and the escapes of paths.

/// A part of a path or of a form. What is no text is an error, also a broken escape.
pub(super) fn unescape(text: &str, plus_is_blank: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let value = digit(rest.next())? * 16 + digit(rest.next())?;
                u8::try_from(value).ok()?
            }
            b'+' if plus_is_blank => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The fields of a form; of one that is there twice the first counts.
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn read(body: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|_| "the form is no text".to_owned())?;
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((unescape(name, true)?, unescape(value, true)?))
        };
        let pairs = text.trim_end_matches(['\r', '\n']).split('&').filter(|part| !part.is_empty()).map(pair);
        pairs.collect::<Option<_>>().map(Self).ok_or_else(|| "the form has a broken escape".to_owned())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read_as_browsers_and_curl_send_them() {
        let form = Form::read(br#"ip=10.0.0.1&tags={"az":"a+b%2Bc"}&empty&ip=2"#).unwrap();
        assert_eq!(form.get("ip"), Some("10.0.0.1"));
        assert_eq!(form.get("tags"), Some(r#"{"az":"a b+c"}"#));
        assert_eq!((form.get("empty"), form.get("none")), (Some(""), None));
        assert!(Form::read(b"a=%4").is_err() && Form::read(b"a=%zz").is_err() && Form::read(b"\xff").is_err());
        assert_eq!(unescape("a%20b+c", false).as_deref(), Some("a b+c"));
    }
}
