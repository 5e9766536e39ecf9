//! Durations and times as text.

use std::fmt::Write as _;

use crate::rules::seconds_text;
use crate::wire::{Wire, fields};

/// Seconds and nanoseconds of a duration or a time.
fn seconds_and_nanos(bytes: &[u8]) -> (i64, i32) {
    let (mut seconds, mut nanos) = (0, 0);
    for (number, value, _) in fields(bytes).flatten() {
        match (number, value) {
            (1, Wire::Varint(n)) => seconds = n as i64,
            (2, Wire::Varint(n)) => nanos = n as i32,
            _ => {}
        }
    }
    (seconds, nanos)
}

/// With 3, 6 or 9 digits after the point, or none.
pub(super) fn duration(bytes: &[u8]) -> String {
    let (seconds, nanos) = seconds_and_nanos(bytes);
    let total = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    let text = seconds_text(total);
    let Some((whole, fraction)) = text.trim_end_matches('s').split_once('.') else { return text };
    let width = fraction.len().div_ceil(3) * 3;
    format!("{whole}.{fraction:0<width$}s")
}

/// RFC 3339 in UTC.
pub(super) fn timestamp(bytes: &[u8]) -> String {
    let (seconds, nanos) = seconds_and_nanos(bytes);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let mut text = format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if nanos > 0 {
        let fraction = format!("{nanos:09}");
        let short = fraction.trim_end_matches('0');
        let width = short.len().div_ceil(3) * 3;
        let _ = write!(text, ".{short:0<width$}");
    }
    text.push('Z');
    text
}

/// Year, month and day of a day counted from 1970, by eras of 400 years that begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days.saturating_add(719_468);
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}
