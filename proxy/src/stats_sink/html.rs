//! `/stats?format=html`: the text in a page. Envoy's page also has a form and draws histograms; here a browser shows the
//! values and nothing more.

use super::chunks::{Chunks, Gone};
use super::ordered::{Part, walk};
use super::text::push_line;
use super::{StatsConfig, StatsQuery};
use nuncio_core::stats::View;

pub(super) fn render(view: &View, config: &StatsConfig, query: &StatsQuery, out: &mut Chunks<'_>) -> Result<(), Gone> {
    out.text.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head><title>stats</title></head>\n<body>\n");
    let mut line = String::new();
    for part in Part::ALL {
        out.text.push_str("<pre>\n");
        walk(view, config, query, part, &mut |name, value| {
            line.clear();
            push_line(name, value, config.bounds(name), query.buckets, &mut line);
            push_escaped(&line, &mut out.text);
            out.settle()
        })?;
        out.text.push_str("</pre>\n");
    }
    out.text.push_str("</body>\n</html>\n");
    Ok(())
}

fn push_escaped(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
}
