//! `/stats`: `name: value`, sorted; histograms as quantiles or buckets.

use super::chunks::{Chunks, Gone};
use super::numbers::{push_general, push_shortest};
use super::ordered::{Part, walk};
use super::query::Buckets;
use super::{StatsConfig, StatsQuery};
use nuncio_core::stats::{HistogramValue, QUANTILES, Value, View};
use std::fmt::Write as _;

pub(super) fn render(view: &View, config: &StatsConfig, query: &StatsQuery, out: &mut Chunks<'_>) -> Result<(), Gone> {
    for part in Part::ALL {
        walk(view, config, query, part, &mut |name, value| {
            push_line(name, value, config.bounds(name), query.buckets, &mut out.text);
            out.settle()
        })?;
    }
    Ok(())
}

pub(super) fn push_line(name: &str, value: Value<'_>, bounds: &[f64], buckets: Buckets, out: &mut String) {
    let _ = match value {
        Value::Counter { value, .. } | Value::Gauge { value, .. } => writeln!(out, "{name}: {value}"),
        Value::Text(text) => writeln!(out, "{name}: \"{text}\""),
        Value::Histogram(histogram) => {
            if histogram.cumulative.counts.is_empty() {
                let _ = writeln!(out, "{name}: No recorded values");
                return;
            }
            out.push_str(name);
            out.push(':');
            match buckets {
                Buckets::Summary => push_summary(' ', histogram, out),
                Buckets::Cumulative | Buckets::Disjoint => push_buckets(histogram, bounds, buckets, out),
                Buckets::Detailed => push_details(histogram, out),
            }
            out.push('\n');
            return;
        }
    };
}

/// `P0(interval,cumulative) P25(…)…`
fn push_summary(mut before: char, histogram: HistogramValue<'_>, out: &mut String) {
    let (interval, cumulative) = (histogram.interval.quantiles(), histogram.cumulative.quantiles());
    for (i, q) in QUANTILES.iter().enumerate() {
        out.push(before);
        before = ' ';
        out.push('P');
        push_general(q * 100.0, 6, out);
        out.push('(');
        push_shortest(interval.map_or(f64::NAN, |quantiles| quantiles[i]), out);
        out.push(',');
        push_shortest(cumulative.map_or(f64::NAN, |quantiles| quantiles[i]), out);
        out.push(')');
    }
}

/// `B0.5(interval,cumulative) B1(…)…`
fn push_buckets(histogram: HistogramValue<'_>, bounds: &[f64], buckets: Buckets, out: &mut String) {
    let (interval, cumulative) = counts(histogram, bounds, buckets);
    for (bound, (interval, cumulative)) in bounds.iter().zip(interval.iter().zip(&cumulative)) {
        out.push_str(" B");
        push_general(*bound, 6, out);
        let _ = write!(out, "({interval},{cumulative})");
    }
}

/// Interval and cumulative counts of each bucket.
pub(super) fn counts(histogram: HistogramValue<'_>, bounds: &[f64], buckets: Buckets) -> (Vec<u64>, Vec<u64>) {
    let of = |recorded: nuncio_core::stats::Buckets<'_>| match buckets {
        Buckets::Disjoint => recorded.disjoint(bounds),
        _ => recorded.cumulative(bounds),
    };
    (of(histogram.interval), of(histogram.cumulative))
}

fn push_details(histogram: HistogramValue<'_>, out: &mut String) {
    for (title, recorded) in [("totals", histogram.cumulative), ("intervals", histogram.interval)] {
        let _ = write!(out, "\n  {title}=");
        for (i, (bucket, n)) in recorded.details().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            push_shortest(bucket.lower, out);
            out.push(',');
            push_shortest(bucket.width, out);
            let _ = write!(out, ":{n}");
        }
    }
    out.push_str("\n  summary");
    push_summary('=', histogram, out);
}
