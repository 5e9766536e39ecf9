//! `/stats/prometheus`: version 0.0.4 of the text format. All stats whose names are the same without tags stand together
//! under one `# TYPE`.
//!
//! The names of a million stats would be a hundred megabytes; so what is sorted is twelve bytes a stat (group, scope,
//! address), and a name is made again when its line is written.

use super::chunks::{Chunks, Gone};
use super::numbers::push_general;
use super::ordered::merged;
use super::query::Buckets;
use super::tags::{Extraction, push_escaped, push_sanitized};
use super::{StatsConfig, StatsQuery};
use nuncio_core::stats::{Address, HistogramValue, QUANTILES, ScopeView, Value, View};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt::Write as _;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Counters,
    Gauges,
    Texts,
    Histograms,
}

impl Part {
    fn has(self, value: &Value<'_>) -> bool {
        self == match value {
            Value::Counter { .. } => Self::Counters,
            Value::Gauge { .. } => Self::Gauges,
            Value::Text(_) => Self::Texts,
            Value::Histogram(_) => Self::Histograms,
        }
    }
}

/// One stat, to be sorted by group, scope and address.
struct Item {
    group: u32,
    scope: u32,
    at: Address,
}

pub(super) fn render(view: &View, config: &StatsConfig, query: &StatsQuery, out: &mut Chunks<'_>) -> Result<(), Gone> {
    let scopes = sorted_scopes(view);
    for part in [Part::Counters, Part::Gauges, Part::Texts, Part::Histograms] {
        if part != Part::Texts || query.text_readouts {
            render_part(&scopes, config, query, part, out)?;
        }
    }
    Ok(())
}

/// Scopes in the order of their names; `Item::scope` counts in it.
fn sorted_scopes(view: &View) -> Vec<(String, &ScopeView)> {
    let mut scopes: Vec<(String, &ScopeView)> = view
        .scopes()
        .iter()
        .map(|scope| {
            let mut prefix = String::new();
            scope.write_prefix(&mut prefix);
            (prefix, scope)
        })
        .collect();
    scopes.sort_by(|(a, _), (b, _)| by_token(a, b));
    scopes
}

/// Envoy compares names token by token.
fn by_token(a: &str, b: &str) -> Ordering {
    a.split('.').cmp(b.split('.'))
}

fn render_part(
    scopes: &[(String, &ScopeView)],
    config: &StatsConfig,
    query: &StatsQuery,
    part: Part,
    out: &mut Chunks<'_>,
) -> Result<(), Gone> {
    let (mut items, names) = collect(scopes, config, query, part);
    let mut order: Vec<u32> = (0..names.len() as u32).collect();
    order.sort_by(|a, b| by_token(&names[*a as usize], &names[*b as usize]));
    let mut rank = vec![0u32; names.len()];
    for (place, group) in order.iter().enumerate() {
        rank[*group as usize] = place as u32;
    }
    items.sort_unstable_by_key(|item| (rank[item.group as usize], item.scope, item.at));

    let mut writer =
        Writer { config, query, part, metric: String::new(), labels: String::new(), found: Extraction::default() };
    let mut group = None;
    let mut last: Option<(String, Value<'_>)> = None;
    for item in &items {
        let (prefix, scope) = &scopes[item.scope as usize];
        let mut now = None;
        scope.visit_one(item.at, &mut |list, stat, value| now = Some(([prefix.as_str(), list, stat].concat(), value)));
        let Some((name, value)) = now else { continue };
        // Two objects of the same name, as two listeners with one stat_prefix, are one stat.
        if let Some((before, first)) = &mut last
            && *before == name
        {
            *first = merged(*first, value);
            continue;
        }
        if let Some((name, value)) = last.replace((name, value)) {
            writer.push(&name, value, &mut out.text);
            out.settle()?;
        }
        if group != Some(item.group) {
            group = Some(item.group);
            // The pending line is written by now: what follows belongs to the next group.
            writer.begin(&names[item.group as usize], &mut out.text);
        }
    }
    if let Some((name, value)) = last {
        writer.push(&name, value, &mut out.text);
        out.settle()?;
    }
    Ok(())
}

/// The stats that are asked for, and the names of their groups.
fn collect(
    scopes: &[(String, &ScopeView)],
    config: &StatsConfig,
    query: &StatsQuery,
    part: Part,
) -> (Vec<Item>, Vec<Box<str>>) {
    let mut items = Vec::new();
    let mut names: Vec<Box<str>> = Vec::new();
    let mut numbers: HashMap<Box<str>, u32> = HashMap::new();
    let (mut full, mut rest, mut found) = (String::new(), String::new(), Extraction::default());
    for (number, (prefix, scope)) in scopes.iter().enumerate() {
        scope.visit(&mut |at, list, stat, value| {
            if !part.has(&value) {
                return;
            }
            full.clear();
            full.extend([prefix.as_str(), list, stat]);
            if !query.wants(config, &full, &value) {
                return;
            }
            config.tags.extract(&full, &mut found);
            rest.clear();
            found.push_rest(&full, &mut rest);
            let group = numbers.get(rest.as_str()).copied().unwrap_or_else(|| {
                let group = names.len() as u32;
                names.push(rest.as_str().into());
                numbers.insert(rest.as_str().into(), group);
                group
            });
            items.push(Item { group, scope: number as u32, at });
        });
    }
    (items, names)
}

struct Writer<'a> {
    config: &'a StatsConfig,
    query: &'a StatsQuery,
    part: Part,
    metric: String,
    labels: String,
    found: Extraction,
}

impl Writer<'_> {
    fn begin(&mut self, group: &str, out: &mut String) {
        self.metric.clear();
        self.metric.push_str("envoy_");
        push_sanitized(group, &mut self.metric);
        let kind = match (self.part, self.query.buckets) {
            (Part::Counters, _) => "counter",
            (Part::Gauges | Part::Texts, _) => "gauge",
            (Part::Histograms, Buckets::Summary) => "summary",
            (Part::Histograms, _) => "histogram",
        };
        let _ = writeln!(out, "# TYPE {} {kind}", self.metric);
    }

    fn push(&mut self, name: &str, value: Value<'_>, out: &mut String) {
        self.labels.clear();
        self.config.tags.extract(name, &mut self.found);
        self.config.tags.push_labels(name, &self.found, &mut self.labels);
        let (metric, labels) = (&self.metric, &self.labels);
        match value {
            Value::Counter { value, .. } | Value::Gauge { value, .. } => {
                let _ = writeln!(out, "{metric}{{{labels}}} {value}");
            }
            Value::Text(text) => {
                let _ = write!(out, "{metric}{{{labels}{}text_value=\"", comma(labels));
                push_escaped(text, out);
                out.push_str("\"} 0\n");
            }
            Value::Histogram(histogram) => {
                if self.query.buckets == Buckets::Summary {
                    push_quantiles(metric, labels, histogram, out);
                } else {
                    push_buckets(metric, labels, histogram, self.config.bounds(name), out);
                }
                let _ = write!(out, "{metric}_sum{{{labels}}} ");
                push_general(histogram.cumulative.sum(), 32, out);
                let _ = writeln!(out, "\n{metric}_count{{{labels}}} {}", histogram.cumulative.counts.total());
            }
        }
    }
}

fn comma(labels: &str) -> &'static str {
    if labels.is_empty() { "" } else { "," }
}

fn push_buckets(metric: &str, labels: &str, histogram: HistogramValue<'_>, bounds: &[f64], out: &mut String) {
    let comma = comma(labels);
    for (bound, count) in bounds.iter().zip(histogram.cumulative.cumulative(bounds)) {
        let _ = write!(out, "{metric}_bucket{{{labels}{comma}le=\"");
        push_general(*bound, 32, out);
        let _ = writeln!(out, "\"}} {count}");
    }
    let total = histogram.cumulative.counts.total();
    let _ = writeln!(out, "{metric}_bucket{{{labels}{comma}le=\"+Inf\"}} {total}");
}

fn push_quantiles(metric: &str, labels: &str, histogram: HistogramValue<'_>, out: &mut String) {
    let quantiles = histogram.cumulative.quantiles();
    for (i, q) in QUANTILES.iter().enumerate() {
        let _ = write!(out, "{metric}{{{labels}{}quantile=\"", comma(labels));
        push_general(*q, 6, out);
        out.push_str("\"} ");
        match quantiles {
            Some(quantiles) => push_general(quantiles[i], 32, out),
            None => out.push_str("nan"),
        }
        out.push('\n');
    }
}
