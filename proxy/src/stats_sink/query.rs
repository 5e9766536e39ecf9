//! What a request to `/stats` or `/stats/prometheus` asks for.

use super::StatsConfig;
use nuncio_core::stats::Value;
use regex::Regex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
    Html,
    Prometheus,
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text | Self::Prometheus => "text/plain; charset=UTF-8",
            Self::Json => "application/json",
            Self::Html => "text/html; charset=UTF-8",
        }
    }
}

/// How histograms are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buckets {
    /// Quantiles.
    Summary,
    Cumulative,
    Disjoint,
    /// Quantiles and the buckets as they were recorded.
    Detailed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinds {
    All,
    Counters,
    Gauges,
    Histograms,
    TextReadouts,
}

/// The checked parameters.
#[derive(Debug)]
pub struct StatsQuery {
    pub format: Format,
    pub(super) buckets: Buckets,
    pub(super) text_readouts: bool,
    used_only: bool,
    filter: Option<Regex>,
    invert: bool,
    kinds: Kinds,
    /// `hidden=only`: there are no hidden stats.
    nothing: bool,
}

/// The body of a 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadQuery(pub String);

impl StatsQuery {
    /// `prometheus`: the path was `/stats/prometheus`. Of a parameter given twice the first counts.
    pub fn parse<'a>(
        prometheus: bool,
        parameters: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> Result<Self, BadQuery> {
        let parameter = |name: &str| parameters.clone().find(|(key, _)| *key == name).map(|(_, value)| value);
        let bad = |text: &str| Err(BadQuery(text.to_owned()));
        let format = match parameter("format") {
            _ if prometheus => Format::Prometheus,
            None | Some("text") => Format::Text,
            Some("json") => Format::Json,
            Some("prometheus") => Format::Prometheus,
            Some("html" | "active-html") => Format::Html,
            Some(_) => return bad("usage: /stats?format=(html|active-html|json|prometheus|text)\n\n"),
        };
        let buckets = parse_buckets(format, parameter("histogram_buckets"))?;
        let filter = match parameter("filter") {
            None | Some("") => None,
            Some(pattern) => Some(Regex::new(pattern).map_err(|e| BadQuery(re2_message(pattern, &e)))?),
        };
        let kinds = match parameter("type") {
            _ if format == Format::Prometheus => Kinds::All,
            None | Some("All") => Kinds::All,
            Some("Counters") => Kinds::Counters,
            Some("Gauges") => Kinds::Gauges,
            Some("Histograms") => Kinds::Histograms,
            Some("TextReadouts") => Kinds::TextReadouts,
            Some(_) => return bad("invalid &type= param"),
        };
        let nothing = match parameter("hidden") {
            None | Some("include" | "exclude") => false,
            Some("only") => true,
            Some(_) => return bad("usage: /stats?hidden=(include|only|exclude)\n\n"),
        };
        Ok(Self {
            format,
            buckets,
            text_readouts: parameter("text_readouts").is_some(),
            used_only: parameter("usedonly").is_some(),
            filter,
            invert: parameter("invert_filter").is_some(),
            kinds,
            nothing,
        })
    }

    /// Whether this stat is asked for. The name is only looked at if all else agrees.
    pub(super) fn wants(&self, config: &StatsConfig, name: &str, value: &Value<'_>) -> bool {
        let (kind, used) = match value {
            Value::Counter { used, .. } => (Kinds::Counters, *used),
            Value::Gauge { used, .. } => (Kinds::Gauges, *used),
            Value::Text(_) => (Kinds::TextReadouts, true),
            Value::Histogram(histogram) => (Kinds::Histograms, !histogram.cumulative.counts.is_empty()),
        };
        (self.kinds == Kinds::All || self.kinds == kind)
            && (used || !self.used_only)
            && !self.nothing
            && self.filter.as_ref().is_none_or(|filter| filter.is_match(name) != self.invert)
            && config.admits(name)
    }
}

fn parse_buckets(format: Format, parameter: Option<&str>) -> Result<Buckets, BadQuery> {
    let prometheus = format == Format::Prometheus;
    let text = match (parameter, prometheus) {
        (None, true) => return Ok(Buckets::Cumulative),
        (None | Some("summary" | "none"), _) => return Ok(Buckets::Summary),
        (Some("cumulative"), _) => return Ok(Buckets::Cumulative),
        (Some("disjoint"), false) => return Ok(Buckets::Disjoint),
        (Some("detailed"), false) => return Ok(Buckets::Detailed),
        (Some("disjoint" | "detailed"), true) => "unsupported prometheus histogram bucket mode",
        (Some("prometheusnative"), true) => {
            "unsupported prometheusnative histogram type when not using protobuf exposition format"
        }
        (Some("prometheusnative"), false) => "Invalid histogram_buckets type for non prometheus stats type",
        _ => "usage: /stats?histogram_buckets=(cumulative|disjoint|detailed|summary|prometheusnative)\n",
    };
    Err(BadQuery(text.to_owned()))
}

/// The few mistakes people make, in the words of the engine that Envoy has.
fn re2_message(pattern: &str, error: &regex::Error) -> String {
    let ours = error.to_string();
    let reason = if ours.contains("unclosed group") {
        format!("missing ): {pattern}")
    } else if ours.contains("unopened group") {
        format!("unexpected ): {pattern}")
    } else if ours.contains("unclosed character class") {
        format!("missing ]: {pattern}")
    } else if ours.contains("repetition operator missing expression") {
        let operator = pattern.chars().find(|c| matches!(c, '*' | '+' | '?' | '{')).unwrap_or('*');
        format!("no argument for repetition operator: {operator}")
    } else {
        ours.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
    };
    format!("Invalid re2 regex: {reason}")
}
