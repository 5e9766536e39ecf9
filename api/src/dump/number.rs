//! Floating-point numbers as Envoy prints them: the shorter of two precisions that reads back as the same number, with
//! the exponent form of C's `%g`.

pub(super) fn double(value: f64) -> String {
    if let Some(word) = not_a_number(value) {
        return word.to_owned();
    }
    let short = general(value, 15);
    if short.parse::<f64>() == Ok(value) { short } else { general(value, 17) }
}

pub(super) fn float(value: f32) -> String {
    let wide = f64::from(value);
    if let Some(word) = not_a_number(wide) {
        return word.to_owned();
    }
    let short = general(wide, 6);
    if short.parse::<f32>() == Ok(value) { short } else { general(wide, 9) }
}

fn not_a_number(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value.is_infinite() {
        Some(if value > 0.0 { "Infinity" } else { "-Infinity" })
    } else {
        None
    }
}

/// `%.{precision}g`
fn general(value: f64, precision: usize) -> String {
    let scientific = format!("{value:.*e}", precision - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..precision as i32).contains(&exponent) {
        let places = usize::try_from(precision as i32 - 1 - exponent).unwrap_or(0);
        return trim(&format!("{value:.places$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
}

fn trim(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_envoy_prints_them() {
        // Read from /config_dump of Envoy 1.40.
        for (value, text) in [
            (1e20, "1e+20"),
            (1e-7, "1e-07"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123_456_789_012_345_678.0, "1.2345678901234568e+17"),
            (123_456_789_012_345.0, "123456789012345"),
            (1e15, "1e+15"),
            (1e14, "100000000000000"),
            (1_234_567_890_123_456.0, "1234567890123456"),
            (12_345_678_901_234_567.0, "12345678901234568"),
            (0.1, "0.1"),
            (0.300_000_000_000_000_04, "0.30000000000000004"),
            (-0.0, "-0"),
            (5e-324, "4.94065645841247e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (2.5, "2.5"),
            (100_000.0, "100000"),
        ] {
            assert_eq!(double(value), text);
        }
        assert_eq!(double(f64::NAN), "NaN");
        assert_eq!(double(f64::NEG_INFINITY), "-Infinity");
        assert_eq!(float(0.1), "0.1");
        assert_eq!(float(16_777_216.0), "16777216");
    }
}
