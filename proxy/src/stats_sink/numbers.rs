//! Floating-point numbers as Envoy prints them, which differs by format: the shortest text that reads back in `/stats`
//! and JSON, six digits in bucket names, thirty-two in Prometheus.

use std::fmt::Write as _;

/// The decimal digits of the scientific form, and its exponent.
fn scientific(value: f64, digits: Option<usize>) -> (String, i32) {
    let text = match digits {
        Some(digits) => format!("{value:.*e}", digits - 1),
        None => format!("{value:e}"),
    };
    match text.split_once('e') {
        Some((mantissa, exponent)) => (mantissa.to_owned(), exponent.parse().unwrap_or(0)),
        None => (text, 0),
    }
}

fn push_scientific(mantissa: &str, exponent: i32, out: &mut String) {
    let _ = write!(out, "{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs());
}

fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// Shortest; plain between 1e-4 and 1e16.
pub(super) fn push_shortest(value: f64, out: &mut String) {
    if !value.is_finite() {
        out.push_str(if value.is_nan() { "nan" } else { "inf" });
        return;
    }
    let (mantissa, exponent) = scientific(value, None);
    if value == 0.0 || (-4..16).contains(&exponent) {
        let _ = write!(out, "{value}");
    } else {
        push_scientific(&mantissa, exponent, out);
    }
}

/// Shortest in characters: 300000 is `3e+05`.
pub(super) fn push_json(value: f64, out: &mut String) {
    if !value.is_finite() {
        out.push_str("null");
        return;
    }
    let (mantissa, exponent) = scientific(value, None);
    let (plain, mut short) = (format!("{value}"), String::new());
    push_scientific(&mantissa, exponent, &mut short);
    out.push_str(if value != 0.0 && short.len() < plain.len() { &short } else { &plain });
}

/// printf's `%.<digits>g`.
pub(super) fn push_general(value: f64, digits: usize, out: &mut String) {
    if value == 0.0 {
        out.push('0');
        return;
    }
    let (mantissa, exponent) = scientific(value, Some(digits));
    if (-4..digits as i32).contains(&exponent) {
        let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
        out.push_str(without_zeros(&format!("{value:.decimals$}")));
    } else {
        push_scientific(without_zeros(&mantissa), exponent, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(push: fn(f64, &mut String), value: f64) -> String {
        let mut out = String::new();
        push(value, &mut out);
        out
    }

    #[test]
    fn numbers_look_as_in_envoys_answers() {
        for (value, text) in [(0.0, "0"), (1.05, "1.05"), (175.0, "175"), (1.0333333333333334, "1.0333333333333334")] {
            assert_eq!(printed(push_shortest, value), text);
        }
        for (value, text) in [(0.5, "0.5"), (3e5, "3e+05"), (6e5, "6e+05"), (1.8e6, "1800000"), (30000.0, "30000")] {
            assert_eq!(printed(push_json, value), text);
        }
        let six = |value, out: &mut String| push_general(value, 6, out);
        for (value, text) in
            [(0.1, "0.1"), (600_000.0, "600000"), (1.8e6, "1.8e+06"), (12_345_678.0, "1.23457e+07"), (500.5, "500.5")]
        {
            assert_eq!(printed(six, value), text);
        }
        let all = |value, out: &mut String| push_general(value, 32, out);
        for (value, text) in [
            (0.1, "0.10000000000000000555111512312578"),
            (12_345_678.0, "12345678"),
            (4.05, "4.049999999999999822364316059975"),
            (218.398_879_551_820_73, "218.39887955182072687421168666333"),
            (1.047_619_047_619_047_7, "1.0476190476190476719153821250075"),
            (0.0, "0"),
        ] {
            assert_eq!(printed(all, value), text);
        }
    }
}
