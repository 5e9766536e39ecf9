//! `OutlierDetection` of a cluster. Every number may be overruled by runtime while the proxy runs.

use nuncio_api::pb::envoy::config::cluster::v3::OutlierDetection;
use nuncio_api::pb::google::protobuf::{Duration, UInt32Value};
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::runtime::Runtime;

supports!(OUTLIER = "envoy.config.cluster.v3.OutlierDetection" {
    consecutive_5xx, interval, base_ejection_time, max_ejection_percent, enforcing_consecutive_5xx,
    enforcing_success_rate, success_rate_minimum_hosts, success_rate_request_volume, success_rate_stdev_factor,
    consecutive_gateway_failure, enforcing_consecutive_gateway_failure, split_external_local_origin_errors,
    consecutive_local_origin_failure, enforcing_consecutive_local_origin_failure, enforcing_local_origin_success_rate,
    failure_percentage_threshold, enforcing_failure_percentage, enforcing_failure_percentage_local_origin,
    failure_percentage_minimum_hosts, failure_percentage_request_volume, max_ejection_time, max_ejection_time_jitter,
    successful_active_health_check_uneject_host, always_eject_one_host, detect_degraded_hosts
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&OUTLIER];

macro_rules! settings {
    ($($name:ident $key:literal,)*) => {
        /// A number of the configuration, with the runtime key that overrules it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Setting { $($name,)* }

        impl Setting {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub fn key(self) -> &'static str {
                match self { $(Self::$name => concat!("outlier_detection.", $key),)* }
            }
        }
    };
}

settings! {
    IntervalMs "interval_ms",
    BaseEjectionTimeMs "base_ejection_time_ms",
    MaxEjectionTimeMs "max_ejection_time_ms",
    MaxEjectionTimeJitterMs "max_ejection_time_jitter_ms",
    MaxEjectionPercent "max_ejection_percent",
    Consecutive5xx "consecutive_5xx",
    ConsecutiveGatewayFailure "consecutive_gateway_failure",
    ConsecutiveLocalOriginFailure "consecutive_local_origin_failure",
    EnforcingConsecutive5xx "enforcing_consecutive_5xx",
    EnforcingConsecutiveGatewayFailure "enforcing_consecutive_gateway_failure",
    EnforcingConsecutiveLocalOriginFailure "enforcing_consecutive_local_origin_failure",
    EnforcingSuccessRate "enforcing_success_rate",
    EnforcingLocalOriginSuccessRate "enforcing_local_origin_success_rate",
    EnforcingFailurePercentage "enforcing_failure_percentage",
    EnforcingFailurePercentageLocalOrigin "enforcing_failure_percentage_local_origin",
    SuccessRateMinimumHosts "success_rate_minimum_hosts",
    SuccessRateRequestVolume "success_rate_request_volume",
    SuccessRateStdevFactor "success_rate_stdev_factor",
    FailurePercentageThreshold "failure_percentage_threshold",
    FailurePercentageMinimumHosts "failure_percentage_minimum_hosts",
    FailurePercentageRequestVolume "failure_percentage_request_volume",
}

/// What is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutlierConfig {
    values: [u64; Setting::ALL.len()],
    pub split_external_local_origin_errors: bool,
    pub uneject_on_active_check: bool,
    pub always_eject_one_host: bool,
    pub detect_degraded_hosts: bool,
}

impl OutlierConfig {
    pub fn from_proto(message: &OutlierDetection) -> Result<Self, ConfigError> {
        let number = |field: &Option<UInt32Value>, default| field.as_ref().map_or(default, |f| f.value.into());
        let time = |field: &Option<Duration>| {
            field.as_ref().map(|f| u64::try_from(nuncio_core::time::duration(f).as_millis()).unwrap_or(u64::MAX))
        };
        let base = time(&message.base_ejection_time).unwrap_or(30_000);
        let most = time(&message.max_ejection_time).unwrap_or_else(|| base.max(300_000));
        if most < base {
            let reason = "outlier detector's max_ejection_time cannot be smaller than base_ejection_time";
            return Err(ConfigError::new("max_ejection_time", reason));
        }
        let m = message;
        let value = |setting: Setting| match setting {
            Setting::IntervalMs => time(&m.interval).unwrap_or(10_000),
            Setting::BaseEjectionTimeMs => base,
            Setting::MaxEjectionTimeMs => most,
            Setting::MaxEjectionTimeJitterMs => time(&m.max_ejection_time_jitter).unwrap_or(0),
            Setting::MaxEjectionPercent => number(&m.max_ejection_percent, 10),
            Setting::Consecutive5xx => number(&m.consecutive_5xx, 5),
            Setting::ConsecutiveGatewayFailure => number(&m.consecutive_gateway_failure, 5),
            Setting::ConsecutiveLocalOriginFailure => number(&m.consecutive_local_origin_failure, 5),
            Setting::EnforcingConsecutive5xx => number(&m.enforcing_consecutive_5xx, 100),
            Setting::EnforcingConsecutiveGatewayFailure => number(&m.enforcing_consecutive_gateway_failure, 0),
            Setting::EnforcingConsecutiveLocalOriginFailure => {
                number(&m.enforcing_consecutive_local_origin_failure, 100)
            }
            Setting::EnforcingSuccessRate => number(&m.enforcing_success_rate, 100),
            Setting::EnforcingLocalOriginSuccessRate => number(&m.enforcing_local_origin_success_rate, 100),
            Setting::EnforcingFailurePercentage => number(&m.enforcing_failure_percentage, 0),
            Setting::EnforcingFailurePercentageLocalOrigin => number(&m.enforcing_failure_percentage_local_origin, 0),
            Setting::SuccessRateMinimumHosts => number(&m.success_rate_minimum_hosts, 5),
            Setting::SuccessRateRequestVolume => number(&m.success_rate_request_volume, 100),
            Setting::SuccessRateStdevFactor => number(&m.success_rate_stdev_factor, 1900),
            Setting::FailurePercentageThreshold => number(&m.failure_percentage_threshold, 85),
            Setting::FailurePercentageMinimumHosts => number(&m.failure_percentage_minimum_hosts, 5),
            Setting::FailurePercentageRequestVolume => number(&m.failure_percentage_request_volume, 50),
        };
        let mut values = [0; Setting::ALL.len()];
        for setting in Setting::ALL {
            values[*setting as usize] = value(*setting);
        }
        let uneject = &message.successful_active_health_check_uneject_host;
        Ok(Self {
            values,
            split_external_local_origin_errors: message.split_external_local_origin_errors,
            uneject_on_active_check: uneject.as_ref().is_none_or(|uneject| uneject.value),
            always_eject_one_host: message.always_eject_one_host.as_ref().is_some_and(|always| always.value),
            detect_degraded_hosts: message.detect_degraded_hosts.as_ref().is_some_and(|detect| detect.value),
        })
    }

    pub fn get(&self, setting: Setting, runtime: &dyn Runtime) -> u64 {
        runtime.integer(setting.key()).unwrap_or(self.values[setting as usize])
    }

    pub fn time(&self, setting: Setting, runtime: &dyn Runtime) -> std::time::Duration {
        std::time::Duration::from_millis(self.get(setting, runtime))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_core::runtime::{FractionalPercent, NoRuntime};

    #[test]
    fn the_defaults_are_envoys_and_runtime_overrules_them() {
        struct One;
        impl Runtime for One {
            fn fraction(&self, _: &str) -> Option<FractionalPercent> {
                None
            }
            fn boolean(&self, _: &str) -> Option<bool> {
                None
            }
            fn integer(&self, key: &str) -> Option<u64> {
                (key == "outlier_detection.consecutive_5xx").then_some(1)
            }
        }
        let config = OutlierConfig::from_proto(&OutlierDetection::default()).unwrap();
        let of = |setting| config.get(setting, &NoRuntime);
        assert_eq!((of(Setting::Consecutive5xx), of(Setting::MaxEjectionPercent)), (5, 10));
        assert_eq!((of(Setting::BaseEjectionTimeMs), of(Setting::MaxEjectionTimeMs)), (30_000, 300_000));
        assert_eq!(config.get(Setting::Consecutive5xx, &One), 1);
        assert!(config.uneject_on_active_check && !config.always_eject_one_host);
    }

    #[test]
    fn an_ejection_may_not_be_bounded_below_its_shortest() {
        let seconds = |seconds| Some(Duration { seconds, nanos: 0 });
        let of = |base, most| {
            OutlierConfig::from_proto(&OutlierDetection {
                base_ejection_time: seconds(base),
                max_ejection_time: most,
                ..Default::default()
            })
        };
        assert!(of(2, seconds(1)).is_err());
        assert_eq!(of(900, None).unwrap().get(Setting::MaxEjectionTimeMs, &NoRuntime), 900_000);
    }
}
