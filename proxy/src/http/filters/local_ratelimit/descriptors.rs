//! Buckets of their own for requests with certain descriptors. An entry without a value stands for any: each
//! value then gets its bucket, up to `max_dynamic_descriptors` of them.

use std::sync::Arc;

use arc_swap::ArcSwap;
use nuncio_api::pb::envoy::extensions::common::ratelimit::v3::{LocalRateLimitDescriptor, RateLimitDescriptor};
use nuncio_api::pb::envoy::r#type::v3::TokenBucket as BucketProto;
use nuncio_core::error::ConfigError;

use crate::network::local_ratelimit::{TokenBucket, bucket};

pub(super) struct Descriptors(Vec<Descriptor>);

struct Descriptor {
    /// Keys and values; `None` is any value.
    entries: Vec<(String, Option<String>)>,
    shadow: bool,
    buckets: Buckets,
}

enum Buckets {
    One(Arc<TokenBucket>),
    /// By the values that were seen, the oldest first. Changed seldom, and then as a whole.
    Each {
        proto: BucketProto,
        most: usize,
        known: ArcSwap<Vec<(Vec<String>, Arc<TokenBucket>)>>,
    },
}

/// A bucket that a request must take from; one in the shadow only counts.
pub(super) struct Matched {
    pub(super) bucket: Arc<TokenBucket>,
    pub(super) shadow: bool,
}

impl Descriptors {
    pub(super) fn new(list: &[LocalRateLimitDescriptor], most: usize) -> Result<Self, ConfigError> {
        let mut all = Vec::new();
        for (i, proto) in list.iter().enumerate() {
            let at = |e: ConfigError| e.within(&format!("descriptors[{i}]"));
            let bucket_proto = proto.token_bucket.unwrap_or_default();
            let one = bucket(&bucket_proto).map_err(at)?;
            let value = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
            let entries: Vec<_> = proto.entries.iter().map(|e| (e.key.clone(), value(&e.value))).collect();
            let buckets = match entries.iter().all(|(_, value)| value.is_some()) {
                true => Buckets::One(Arc::new(one)),
                false => Buckets::Each { proto: bucket_proto, most: most.max(1), known: ArcSwap::default() },
            };
            all.push((one_rate(proto), Descriptor { entries, shadow: proto.shadow_mode, buckets }));
        }
        // As Envoy: the slowest bucket is asked first.
        all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Ok(Self(all.into_iter().map(|(_, descriptor)| descriptor).collect()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The buckets of all that the request matches.
    pub(super) fn matching(&self, asked: &[RateLimitDescriptor]) -> Vec<Matched> {
        let find = |descriptor: &Descriptor| {
            let found = asked.iter().find(|asked| descriptor.matches(asked))?;
            Some(Matched { bucket: descriptor.bucket(found)?, shadow: descriptor.shadow })
        };
        self.0.iter().filter_map(find).collect()
    }
}

fn one_rate(proto: &LocalRateLimitDescriptor) -> f64 {
    let bucket = proto.token_bucket.unwrap_or_default();
    let interval = bucket.fill_interval.as_ref().map_or(1.0, |d| nuncio_core::time::duration(d).as_secs_f64());
    f64::from(bucket.tokens_per_fill.map_or(1, |v| v.value)) / interval
}

impl Descriptor {
    fn matches(&self, asked: &RateLimitDescriptor) -> bool {
        self.entries.len() == asked.entries.len()
            && self.entries.iter().zip(&asked.entries).all(|((key, value), entry)| {
                *key == entry.key && value.as_ref().is_none_or(|value| *value == entry.value)
            })
    }

    fn bucket(&self, asked: &RateLimitDescriptor) -> Option<Arc<TokenBucket>> {
        let Buckets::Each { proto, most, known } = &self.buckets else {
            let Buckets::One(one) = &self.buckets else { return None };
            return Some(one.clone());
        };
        let values: Vec<String> = asked.entries.iter().map(|entry| entry.value.clone()).collect();
        let of = |list: &[(Vec<String>, Arc<TokenBucket>)]| {
            list.iter().find(|(known, _)| *known == values).map(|(_, bucket)| bucket.clone())
        };
        if let Some(bucket) = of(&known.load()) {
            return Some(bucket);
        }
        let new = Arc::new(bucket(proto).ok()?);
        known.rcu(|list| {
            let mut list = Vec::clone(list);
            // Another worker may have been first.
            if of(&list).is_none() {
                if list.len() >= *most {
                    list.remove(0);
                }
                list.push((values.clone(), new.clone()));
            }
            list
        });
        of(&known.load())
    }
}
