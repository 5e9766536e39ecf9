//! Outlier detection: hosts are judged by what traffic tells of them, and ejected for a while.
//!
//! Workers count ([`tally`]) and tell main of failures in a row; main ([`detector`]) compares the hosts of a cluster at
//! every interval ([`success_rate`]), ejects, and lets come back. [`config`] is what may be set, by configuration and,
//! over it, by runtime.

pub mod config;
pub mod detector;
pub mod success_rate;
pub mod tally;

use std::time::Duration;

use serde_json::{Value, json};

pub use config::{OutlierConfig, SUPPORTED};
pub use detector::{OutlierDetector, OutlierReport};
pub use tally::Tally;

/// `envoy.data.cluster.v3.OutlierEjectionType`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cause {
    Consecutive5xx,
    ConsecutiveGatewayFailure,
    ConsecutiveLocalOriginFailure,
    SuccessRate(Rates),
    SuccessRateLocalOrigin(Rates),
    FailurePercentage(Rates),
    FailurePercentageLocalOrigin(Rates),
    /// Not ejected: its answers said that it is degraded.
    Degraded,
}

impl Eq for Cause {}

/// In percent: of the host, of the cluster on average, and below which a host is ejected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub host: f64,
    pub average: f64,
    pub threshold: f64,
}

/// One ejection, or one host's return.
#[derive(Debug, Clone)]
pub struct Ejection {
    pub cause: Cause,
    pub ejects: bool,
    /// False if it was only noted.
    pub enforced: bool,
    /// Of this host so far.
    pub count: u32,
    /// Since it was ejected, or came back.
    pub since_last_action: Option<Duration>,
}

impl Cause {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Consecutive5xx => "CONSECUTIVE_5XX",
            Self::ConsecutiveGatewayFailure => "CONSECUTIVE_GATEWAY_FAILURE",
            Self::ConsecutiveLocalOriginFailure => "CONSECUTIVE_LOCAL_ORIGIN_FAILURE",
            Self::SuccessRate(_) => "SUCCESS_RATE",
            Self::SuccessRateLocalOrigin(_) => "SUCCESS_RATE_LOCAL_ORIGIN",
            Self::FailurePercentage(_) => "FAILURE_PERCENTAGE",
            Self::FailurePercentageLocalOrigin(_) => "FAILURE_PERCENTAGE_LOCAL_ORIGIN",
            Self::Degraded => "DEGRADED",
        }
    }

    /// The part of an event that belongs to the cause: its field and value.
    pub(crate) fn event(self) -> (&'static str, Value) {
        match self {
            Self::SuccessRate(rates) | Self::SuccessRateLocalOrigin(rates) => {
                let value = json!({
                    "host_success_rate": rates.host as u32,
                    "cluster_average_success_rate": rates.average as u32,
                    "cluster_success_rate_ejection_threshold": rates.threshold as u32,
                });
                ("eject_success_rate_event", value)
            }
            Self::FailurePercentage(rates) | Self::FailurePercentageLocalOrigin(rates) => {
                ("eject_failure_percentage_event", json!({"host_success_rate": rates.host as u32}))
            }
            _ => ("eject_consecutive_event", json!({})),
        }
    }
}
