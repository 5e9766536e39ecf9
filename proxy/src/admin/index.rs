//! `/` and `/help`: what pages there are, for browsers and for terminals.

use std::fmt::Write;

use http::StatusCode;

use super::{Answer, Page, ParamKind};

/// Listed beside the pages, which do not know of each other.
const SELF: [(&str, &str); 2] = [("/", "Admin home page"), ("/help", "print out list of admin commands")];

pub(super) fn help(pages: &[Page]) -> Answer {
    Answer::text(format!("admin commands are:\n{}", list(pages)))
}

pub(super) fn not_found(pages: &[Page]) -> Answer {
    Answer::error(StatusCode::NOT_FOUND, format!("invalid path. admin commands are:\n{}", list(pages)))
}

fn list(pages: &[Page]) -> String {
    let mut entries: Vec<(&str, String)> =
        SELF.iter().map(|(path, help)| (*path, format!("  {path}: {help}\n"))).collect();
    entries.extend(pages.iter().map(|page| (page.path, entry(page))));
    entries.sort();
    entries.into_iter().map(|(_, text)| text).collect()
}

fn entry(page: &Page) -> String {
    let post = if page.mutates { " (POST)" } else { "" };
    let mut out = format!("  {}{post}: {}\n", page.path, page.help);
    for param in page.params {
        // Writing to a String cannot fail.
        let _ = write!(out, "      {}: {}", param.name, param.help);
        if let ParamKind::OneOf(choices) = param.kind {
            let _ = write!(out, "; One of ({})", choices.join(", "));
        }
        out.push('\n');
    }
    out
}

const STYLE: &str = "body { font-family: sans-serif; margin: 1em } table { border-collapse: collapse } \
                     td { padding: 4px 8px; text-align: left; vertical-align: top } tr.page { border-top: 1px solid #ccc } \
                     td.param { padding-left: 2em } form { margin: 0 }";

/// A form for each page: parameters to fill in, and a button that sends it by the method it wants.
pub(super) fn home(pages: &[Page]) -> Answer {
    let mut out = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>nuncio admin</title>\n",
    );
    // Writing to a String cannot fail.
    let _ = write!(out, "<style>{STYLE}</style>\n</head>\n<body>\n<table>\n");
    for page in pages {
        // Relative, so that the page also works behind a proxy that puts a prefix in front.
        let path = escape(page.path.trim_start_matches('/'));
        let method = if page.mutates { "post" } else { "get" };
        let _ = writeln!(
            out,
            "<tr class=\"page\"><td><form action=\"{path}\" method=\"{method}\" id=\"{path}\"><button>{path}</button></form></td><td>{}</td></tr>",
            escape(page.help)
        );
        for param in page.params {
            let name = escape(param.name);
            let input = match param.kind {
                ParamKind::Text => format!("<input type=\"text\" name=\"{name}\" form=\"{path}\">"),
                ParamKind::Flag => format!("<input type=\"checkbox\" name=\"{name}\" form=\"{path}\">"),
                ParamKind::OneOf(choices) => {
                    let option = |choice: &&str| format!("<option>{}</option>", escape(choice));
                    let options: String = choices.iter().map(option).collect();
                    format!("<select name=\"{name}\" form=\"{path}\">{options}</select>")
                }
            };
            let _ = writeln!(out, "<tr><td class=\"param\">{name} {input}</td><td>{}</td></tr>", escape(param.help));
        }
    }
    out.push_str("</table>\n</body>\n</html>\n");
    Answer::html(out)
}

/// For HTML text and quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
