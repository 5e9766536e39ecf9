//! Path templates: `/a/{name}/*/{rest=**}` to match (`envoy.extensions.path.match.uri_template`), `/b/{rest}/{name}` to
//! rewrite what matched.
//!
//! `*` and `{name}` are one non-empty segment or part of one, `**` is anything, even nothing, and
//! no operator may follow it. A template becomes a regex, a rewrite its substitution.

use std::fmt::Write;

use nuncio_api::pb::envoy::config::core::v3::TypedExtensionConfig;
use nuncio_api::pb::envoy::extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig;
use nuncio_api::supports;

use super::{Regex, RegexRewrite};
use crate::error::ConfigError;
use crate::typed;

supports!(pub(super) MATCH = "envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig" { path_template });

/// What a segment may consist of (RFC 3986 `pchar` without `*`).
const SEGMENT: &str = "a-zA-Z0-9._~%!$&'()+,;:@=\\-";
const MAX_VARIABLES: usize = 5;
const MAX_NAME: usize = 16;

#[derive(Debug)]
pub struct UriTemplate {
    regex: Regex,
    pattern: String,
    /// Names of the groups, in order.
    variables: Vec<String>,
}

impl UriTemplate {
    pub fn from_extension(extension: &TypedExtensionConfig) -> Result<Self, ConfigError> {
        let message: UriTemplateMatchConfig = typed::decode(extension)?;
        Self::new(&message.path_template).map_err(|e| e.within("typed_config.path_template"))
    }

    fn new(template: &str) -> Result<Self, ConfigError> {
        let invalid = |why: &str| ConfigError::new("", format!("Invalid path template '{template}': {why}"));
        if !template.starts_with('/') {
            return Err(invalid("must start with '/'"));
        }
        let mut parser = Parser { pattern: String::new(), variables: Vec::new(), ended: false };
        parser.parse(template, true).map_err(|why| invalid(&why))?;
        let regex = Regex::new(&parser.pattern)?;
        Ok(Self { regex, pattern: parser.pattern, variables: parser.variables })
    }

    /// `path` has no query.
    pub fn matches(&self, path: &[u8]) -> bool {
        self.regex.matches(path)
    }

    /// The rewrite to `target`, which names variables of this template, for paths that match it.
    pub fn rewrite(&self, target: &str) -> Result<RegexRewrite, ConfigError> {
        self.substitution(target)
            .map_err(|why| ConfigError::new("", format!("Invalid path rewrite template '{target}': {why}")))
            .and_then(|s| RegexRewrite::new(&format!("^(?:{})$", self.pattern), &s))
    }

    fn substitution(&self, template: &str) -> Result<String, String> {
        if !template.starts_with('/') {
            return Err("must start with '/'".to_owned());
        }
        let mut out = String::new();
        let mut rest = template;
        while let Some(open) = rest.find('{') {
            let (literal, variable) = rest.split_at(open);
            let Some((name, after)) = variable[1..].split_once('}') else { return Err("unclosed '{'".to_owned()) };
            let Some(group) = self.variables.iter().position(|v| v == name) else {
                return Err(format!("variable '{name}' is not in the path template"));
            };
            out.push_str(&literal.replace('\\', r"\\"));
            let _ = write!(out, r"\{}", group + 1);
            rest = after;
        }
        out.push_str(&rest.replace('\\', r"\\"));
        Ok(out)
    }
}

struct Parser {
    pattern: String,
    variables: Vec<String>,
    /// `**` was seen: no other operator may follow.
    ended: bool,
}

impl Parser {
    fn parse(&mut self, template: &str, variables_allowed: bool) -> Result<(), String> {
        let mut rest = template;
        while let Some(c) = rest.chars().next() {
            if matches!(c, '*' | '{') && self.ended {
                return Err("'**' must be the last operator".to_owned());
            }
            let used = match c {
                '*' if rest.starts_with("**") => {
                    let _ = write!(self.pattern, "[{SEGMENT}/]*");
                    self.ended = true;
                    2
                }
                '*' => {
                    let _ = write!(self.pattern, "[{SEGMENT}]+");
                    1
                }
                '{' if variables_allowed => {
                    let Some(end) = rest.find('}') else { return Err("unclosed '{'".to_owned()) };
                    self.variable(&rest[1..end])?;
                    end + 1
                }
                '/' => self.literal('/'),
                c if c.is_ascii_alphanumeric() || "._~%!$&'()+,;:@=-".contains(c) => self.literal(c),
                c => return Err(format!("invalid character '{c}'")),
            };
            rest = &rest[used..];
        }
        Ok(())
    }

    fn literal(&mut self, c: char) -> usize {
        if !c.is_ascii_alphanumeric() && c != '/' {
            self.pattern.push('\\');
        }
        self.pattern.push(c);
        c.len_utf8()
    }

    fn variable(&mut self, text: &str) -> Result<(), String> {
        let (name, inner) = text.split_once('=').unwrap_or((text, "*"));
        let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if name.is_empty() || name.len() > MAX_NAME || !letters || !name.as_bytes()[0].is_ascii_alphabetic() {
            return Err(format!("invalid variable name '{name}'"));
        }
        if self.variables.iter().any(|v| v == name) {
            return Err(format!("repeated variable '{name}'"));
        }
        if self.variables.len() == MAX_VARIABLES {
            return Err(format!("more than {MAX_VARIABLES} variables"));
        }
        if inner.is_empty() {
            return Err(format!("variable '{name}' has an empty pattern"));
        }
        self.variables.push(name.to_owned());
        self.pattern.push('(');
        self.parse(inner, false)?;
        self.pattern.push(')');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(template: &str, rewrite: &str, path: &str) -> String {
        let mut out = Vec::new();
        UriTemplate::new(template).unwrap().rewrite(rewrite).unwrap().rewrite(path.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    /// Read off Envoy 1.40.
    #[test]
    fn variables_move_and_two_stars_take_the_rest_even_if_it_is_empty() {
        let template = "/ut/{a}/*/{b=**}";
        assert_eq!(rewritten(template, "/n/{b}/{a}", "/ut/aa/bb/cc/dd"), "/n/cc/dd/aa");
        assert_eq!(rewritten(template, "/n/{b}/{a}", "/ut/aa/bb/"), "/n//aa");
        assert_eq!(rewritten(template, "/n/{b}/{a}", "/ut/a%2Fa/bb/c"), "/n/c/a%2Fa");
        assert!(!UriTemplate::new(template).unwrap().matches(b"/ut/aa/bb"));
    }

    #[test]
    fn a_star_is_part_of_one_segment() {
        let template = UriTemplate::new("/videos/*/*.m4s").unwrap();
        assert!(template.matches(b"/videos/a/b.m4s"));
        assert!(!template.matches(b"/videos/a/b/c.m4s"));
        assert!(!template.matches(b"/videos//c.m4s"));
    }

    #[test]
    fn malformed_templates_are_refused() {
        for bad in ["a", "/{", "/{}", "/{a}/{a}", "/**/*", "/{a=**}/{b}", "/{1a}", "/a b", "/{a}{b}{c}{d}{e}{f}"] {
            assert!(UriTemplate::new(bad).is_err(), "{bad}");
        }
        assert!(UriTemplate::new("/{a}").unwrap().rewrite("/{b}").is_err());
    }
}
