//! `stats_config` of the bootstrap.

use super::tags::Tags;
use nuncio_api::pb::envoy::config::metrics::v3 as pb;
use nuncio_api::pb::envoy::config::metrics::v3::stats_matcher::StatsMatcher;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::matcher::StringMatcher;
use nuncio_core::stats::DEFAULT_BUCKETS;

supports!(CONFIG = "envoy.config.metrics.v3.StatsConfig" {
    stats_tags, use_all_default_tags, stats_matcher, histogram_bucket_settings
});
supports!(TAG = "envoy.config.metrics.v3.TagSpecifier" { tag_name, regex, fixed_value });
supports!(MATCHER = "envoy.config.metrics.v3.StatsMatcher" { reject_all, exclusion_list, inclusion_list });
supports!(LIST = "envoy.type.matcher.v3.ListStringMatcher" { patterns });
supports!(BUCKETS = "envoy.config.metrics.v3.HistogramBucketSettings" { r#match, buckets } noop {
    bins: "buckets are fixed bounds here"
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&CONFIG, &TAG, &MATCHER, &LIST, &BUCKETS];

/// What names become: which of them exist, which parts are tags, and the buckets of histograms.
#[derive(Debug)]
pub struct StatsConfig {
    pub(super) tags: Tags,
    admission: Admission,
    buckets: Vec<(StringMatcher, Vec<f64>)>,
}

#[derive(Debug)]
enum Admission {
    All,
    None,
    Except(Vec<StringMatcher>),
    Only(Vec<StringMatcher>),
}

impl StatsConfig {
    pub fn from_proto(config: &pb::StatsConfig) -> Result<Self, ConfigError> {
        let list = |list: &nuncio_api::pb::envoy::r#type::matcher::v3::ListStringMatcher, field: &str| {
            let patterns = list.patterns.iter().enumerate();
            patterns
                .map(|(i, pattern)| {
                    StringMatcher::from_proto(pattern)
                        .map_err(|e| e.within(&format!("stats_matcher.{field}.patterns[{i}]")))
                })
                .collect::<Result<Vec<_>, _>>()
        };
        let admission = match config.stats_matcher.as_ref().and_then(|matcher| matcher.stats_matcher.as_ref()) {
            None | Some(StatsMatcher::RejectAll(false)) => Admission::All,
            Some(StatsMatcher::RejectAll(true)) => Admission::None,
            Some(StatsMatcher::ExclusionList(patterns)) => Admission::Except(list(patterns, "exclusion_list")?),
            Some(StatsMatcher::InclusionList(patterns)) => Admission::Only(list(patterns, "inclusion_list")?),
        };
        let mut buckets = Vec::new();
        for (i, settings) in config.histogram_bucket_settings.iter().enumerate() {
            let within = |e: ConfigError| e.within(&format!("histogram_bucket_settings[{i}].match"));
            let Some(matcher) = &settings.r#match else {
                return Err(within(ConfigError::new("", "value is required")));
            };
            // Settings without buckets say something else than buckets.
            if !settings.buckets.is_empty() {
                let mut bounds = settings.buckets.clone();
                bounds.sort_by(f64::total_cmp);
                buckets.push((StringMatcher::from_proto(matcher).map_err(within)?, bounds));
            }
        }
        Ok(Self { tags: Tags::new(config)?, admission, buckets })
    }

    /// Whether the stat of this name exists.
    pub fn admits(&self, name: &str) -> bool {
        let any = |patterns: &[StringMatcher]| patterns.iter().any(|pattern| pattern.matches(name.as_bytes()));
        match &self.admission {
            Admission::All => true,
            Admission::None => false,
            Admission::Except(patterns) => !any(patterns),
            Admission::Only(patterns) => any(patterns),
        }
    }

    /// The upper bounds of this histogram's buckets, ascending.
    pub fn bounds(&self, name: &str) -> &[f64] {
        let own = self.buckets.iter().find(|(matcher, _)| matcher.matches(name.as_bytes()));
        own.map_or(&DEFAULT_BUCKETS[..], |(_, bounds)| bounds)
    }
}
