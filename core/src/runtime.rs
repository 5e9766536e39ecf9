//! Runtime flags as their readers see them: a key that an operator may have set, and a default.

use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_api::pb::envoy::r#type::v3::{self as type_pb, fractional_percent::DenominatorType};
use nuncio_api::support::Entry;
use nuncio_api::supports;

supports!(FRACTION = "envoy.type.v3.FractionalPercent" { numerator, denominator });
supports!(FLAG = "envoy.config.core.v3.RuntimeFeatureFlag" { default_value, runtime_key });
supports!(RUNTIME_FRACTION = "envoy.config.core.v3.RuntimeFractionalPercent" { default_value, runtime_key });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&FRACTION, &FLAG, &RUNTIME_FRACTION];

/// Where the values of runtime keys come from. Must be cheap: it is asked on the request path.
pub trait Runtime {
    /// A plain number is hundredths, as Envoy takes it.
    fn fraction(&self, key: &str) -> Option<FractionalPercent>;
    fn integer(&self, key: &str) -> Option<u64>;
    fn boolean(&self, key: &str) -> Option<bool>;
}

/// No layer says anything: every key has its default.
pub struct NoRuntime;

impl Runtime for NoRuntime {
    fn fraction(&self, _key: &str) -> Option<FractionalPercent> {
        None
    }

    fn integer(&self, _key: &str) -> Option<u64> {
        None
    }

    fn boolean(&self, _key: &str) -> Option<bool> {
        None
    }
}

/// `numerator` of `denominator` (100, 10,000 or 1,000,000).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FractionalPercent {
    pub numerator: u32,
    pub denominator: u32,
}

impl FractionalPercent {
    pub const ALL: Self = Self { numerator: 100, denominator: 100 };

    pub fn from_proto(message: &type_pb::FractionalPercent) -> Self {
        let denominator = match message.denominator() {
            DenominatorType::Hundred => 100,
            DenominatorType::TenThousand => 10_000,
            DenominatorType::Million => 1_000_000,
        };
        Self { numerator: message.numerator, denominator }
    }

    /// Whether a stream with this random number belongs to the fraction.
    pub fn includes(self, random: u64) -> bool {
        random % u64::from(self.denominator) < u64::from(self.numerator)
    }
}

/// `core.v3.RuntimeFractionalPercent`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeFraction {
    default: FractionalPercent,
    key: Box<str>,
}

impl RuntimeFraction {
    pub fn from_proto(message: &pb::RuntimeFractionalPercent) -> Self {
        let none = FractionalPercent { numerator: 0, denominator: 100 };
        Self {
            default: message.default_value.as_ref().map_or(none, FractionalPercent::from_proto),
            key: message.runtime_key.as_str().into(),
        }
    }

    pub fn enabled(&self, runtime: &dyn Runtime, random: u64) -> bool {
        let set = if self.key.is_empty() { None } else { runtime.fraction(&self.key) };
        set.unwrap_or(self.default).includes(random)
    }
}

/// `core.v3.RuntimeFeatureFlag`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeFlag {
    default: bool,
    key: Box<str>,
}

impl RuntimeFlag {
    /// Of a field that means yes if it is not set.
    pub fn on_unless_set(message: Option<&pb::RuntimeFeatureFlag>) -> Self {
        match message {
            Some(flag) => {
                Self { default: flag.default_value.is_none_or(|v| v.value), key: flag.runtime_key.as_str().into() }
            }
            None => Self { default: true, key: "".into() },
        }
    }

    pub fn enabled(&self, runtime: &dyn Runtime) -> bool {
        let set = if self.key.is_empty() { None } else { runtime.boolean(&self.key) };
        set.unwrap_or(self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(u32);

    impl Runtime for Fixed {
        fn fraction(&self, key: &str) -> Option<FractionalPercent> {
            (key == "k").then_some(FractionalPercent { numerator: self.0, denominator: 100 })
        }

        fn integer(&self, _key: &str) -> Option<u64> {
            None
        }

        fn boolean(&self, key: &str) -> Option<bool> {
            (key == "k").then_some(self.0 > 0)
        }
    }

    #[test]
    fn a_flag_that_nobody_set_is_on_and_the_key_beats_the_default() {
        let of = |default: Option<bool>, key: &str| {
            RuntimeFlag::on_unless_set(Some(&pb::RuntimeFeatureFlag {
                default_value: default.map(|value| nuncio_api::pb::google::protobuf::BoolValue { value }),
                runtime_key: key.into(),
            }))
        };
        assert!(RuntimeFlag::on_unless_set(None).enabled(&NoRuntime));
        assert!(of(None, "").enabled(&NoRuntime));
        assert!(!of(Some(false), "other").enabled(&Fixed(1)));
        assert!(!of(Some(true), "k").enabled(&Fixed(0)));
    }

    #[test]
    fn the_key_beats_the_default_and_the_random_number_decides() {
        let half = type_pb::FractionalPercent { numerator: 50, denominator: DenominatorType::Hundred.into() };
        let of = |key: &str| {
            RuntimeFraction::from_proto(&pb::RuntimeFractionalPercent {
                default_value: Some(half),
                runtime_key: key.into(),
            })
        };
        assert!(of("").enabled(&Fixed(0), 149));
        assert!(!of("").enabled(&Fixed(0), 150));
        assert!(!of("k").enabled(&Fixed(0), 0));
        assert!(of("k").enabled(&Fixed(100), 99));
        assert!(of("other").enabled(&Fixed(0), 0));
    }
}
