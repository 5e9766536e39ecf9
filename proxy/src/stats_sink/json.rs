//! `/stats?format=json`: `{"stats":[{"name":…,"value":…},…,{"histograms":…}]}` without a space.

use super::chunks::{Chunks, Gone};
use super::numbers::push_json;
use super::ordered::{Part, walk};
use super::query::Buckets;
use super::text::counts;
use super::{StatsConfig, StatsQuery};
use nuncio_core::stats::{HistogramValue, QUANTILES, Value, View};
use std::fmt::Write as _;

pub(super) fn render(view: &View, config: &StatsConfig, query: &StatsQuery, out: &mut Chunks<'_>) -> Result<(), Gone> {
    out.text.push_str("{\"stats\":[");
    let mut some = false;
    for part in [Part::Texts, Part::CountersAndGauges] {
        walk(view, config, query, part, &mut |name, value| {
            comma(&mut some, &mut out.text);
            out.text.push_str("{\"name\":");
            push_string(name, &mut out.text);
            out.text.push_str(",\"value\":");
            match value {
                Value::Text(text) => push_string(text, &mut out.text),
                Value::Counter { value, .. } | Value::Gauge { value, .. } => {
                    let _ = write!(out.text, "{value}");
                }
                Value::Histogram(_) => out.text.push_str("null"),
            }
            out.text.push('}');
            out.settle()
        })?;
    }
    render_histograms(view, config, query, some, out)?;
    out.text.push_str("]}");
    Ok(())
}

fn render_histograms(
    view: &View,
    config: &StatsConfig,
    query: &StatsQuery,
    mut some: bool,
    out: &mut Chunks<'_>,
) -> Result<(), Gone> {
    let (quantiles, list, end) = match query.buckets {
        Buckets::Summary => ("supported_quantiles", "computed_quantiles", "]}}"),
        Buckets::Detailed => ("supported_percentiles", "details", "]}}"),
        Buckets::Cumulative | Buckets::Disjoint => ("", "", "]}"),
    };
    let mut any = false;
    walk(view, config, query, Part::Histograms, &mut |name, value| {
        let Value::Histogram(histogram) = value else { return Ok(()) };
        if !any {
            comma(&mut some, &mut out.text);
            out.text.push_str("{\"histograms\":");
            if quantiles.is_empty() {
                out.text.push('[');
            } else {
                let _ = write!(out.text, "{{\"{quantiles}\":[");
                push_list(QUANTILES, &mut out.text, |q, out| push_json(q * 100.0, out));
                let _ = write!(out.text, "],\"{list}\":[");
            }
        }
        comma(&mut any, &mut out.text);
        out.text.push_str("{\"name\":");
        push_string(name, &mut out.text);
        match query.buckets {
            Buckets::Summary => push_quantiles("values", histogram, &mut out.text),
            Buckets::Detailed => push_details(histogram, &mut out.text),
            mode => push_buckets(histogram, config.bounds(name), mode, &mut out.text),
        }
        out.text.push('}');
        out.settle()
    })?;
    if any {
        out.text.push_str(end);
    }
    Ok(())
}

/// Before each element but the first.
fn comma(some: &mut bool, out: &mut String) {
    if std::mem::replace(some, true) {
        out.push(',');
    }
}

fn push_list<T>(items: impl IntoIterator<Item = T>, out: &mut String, mut push: impl FnMut(T, &mut String)) {
    let mut some = false;
    for item in items {
        comma(&mut some, out);
        push(item, out);
    }
}

fn push_quantiles(field: &str, histogram: HistogramValue<'_>, out: &mut String) {
    let (interval, cumulative) = (histogram.interval.quantiles(), histogram.cumulative.quantiles());
    let _ = write!(out, ",\"{field}\":[");
    push_list(0..QUANTILES.len(), out, |i, out| {
        out.push_str("{\"cumulative\":");
        push_json(cumulative.map_or(f64::NAN, |quantiles| quantiles[i]), out);
        out.push_str(",\"interval\":");
        push_json(interval.map_or(f64::NAN, |quantiles| quantiles[i]), out);
        out.push('}');
    });
    out.push(']');
}

fn push_buckets(histogram: HistogramValue<'_>, bounds: &[f64], mode: Buckets, out: &mut String) {
    let (interval, cumulative) = counts(histogram, bounds, mode);
    out.push_str(",\"buckets\":[");
    push_list(0..bounds.len(), out, |i, out| {
        out.push_str("{\"upper_bound\":");
        push_json(bounds[i], out);
        let _ = write!(out, ",\"interval\":{},\"cumulative\":{}}}", interval[i], cumulative[i]);
    });
    out.push(']');
}

fn push_details(histogram: HistogramValue<'_>, out: &mut String) {
    for (title, recorded) in [("totals", histogram.cumulative), ("intervals", histogram.interval)] {
        let _ = write!(out, ",\"{title}\":[");
        push_list(recorded.details(), out, |(bucket, n), out| {
            out.push_str("{\"lower_bound\":");
            push_json(bucket.lower, out);
            out.push_str(",\"width\":");
            push_json(bucket.width, out);
            let _ = write!(out, ",\"count\":{n}}}");
        });
        out.push(']');
    }
    push_quantiles("percentiles", histogram, out);
}

fn push_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
