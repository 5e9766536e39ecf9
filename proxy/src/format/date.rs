//! Dates in logs: strftime's conversions, the fractions that Envoy adds (`%3f`, `%6f`, `%9f`) and
//! those of its time library (`%E3S`, `%E*S`, `%Ez`), in UTC or the machine's zone.

use std::time::{SystemTime, UNIX_EPOCH};

use tz::TimeZone;

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const SECONDS_A_DAY: i64 = 86_400;

/// A compiled date format.
#[derive(Debug)]
pub(super) struct DateFormat {
    parts: Box<[Part]>,
    /// `None` is UTC.
    zone: Option<TimeZone>,
}

#[derive(Debug)]
enum Part {
    Literal(Box<[u8]>),
    /// A conversion of strftime, with the flag that changes its padding or case.
    Field {
        code: u8,
        flag: Option<u8>,
    },
    /// Digits of the fraction alone; `None`: as many as are not zero.
    Fraction(Option<usize>),
    /// Seconds with that many digits of fraction.
    Seconds(Option<usize>),
    /// `+00:00`
    OffsetWithColon,
}

impl DateFormat {
    /// Of `%START_TIME(text)%`; an empty text is the ISO 8601 default.
    pub(super) fn parse(text: &str, local: bool) -> Result<Self, String> {
        if has_newline(text) {
            return Err("Invalid header configuration. Format string contains newline.".to_owned());
        }
        let text = match (text, local) {
            ("", false) => "%Y-%m-%dT%H:%M:%E3SZ",
            ("", true) => "%Y-%m-%dT%H:%M:%E3S%z",
            _ => text,
        };
        let zone = if local {
            Some(TimeZone::local().map_err(|e| format!("the machine's time zone cannot be read: {e}"))?)
        } else {
            None
        };
        Ok(Self { parts: parse(text.as_bytes()), zone })
    }

    pub(super) fn append(&self, time: SystemTime, out: &mut Vec<u8>) {
        // Microseconds, as Envoy's clock has them.
        let (seconds, micros) = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => (after.as_secs() as i64, after.subsec_micros()),
            Err(before) => {
                let micros = -(before.duration().as_micros() as i64);
                (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000) as u32)
            }
        };
        let date = Date::new(seconds, micros, self.zone.as_ref());
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.extend_from_slice(text),
                Part::Field { code, flag } => date.append(*code, *flag, out),
                Part::Fraction(digits) => date.append_fraction(*digits, out),
                Part::Seconds(digits) => {
                    padded(out, date.second, 2, b'0');
                    if digits.unwrap_or(if date.micros == 0 { 0 } else { 1 }) > 0 {
                        out.push(b'.');
                        date.append_fraction(*digits, out);
                    }
                }
                Part::OffsetWithColon => date.append_offset(true, out),
            }
        }
    }
}

/// `%n`, also with flags, width and modifier.
fn has_newline(text: &str) -> bool {
    text.match_indices('%').any(|(at, _)| {
        let rest = text[at + 1..]
            .trim_start_matches(['-', '_', '0', '^', '#'])
            .trim_start_matches(|c| ('1'..='9').contains(&c));
        let rest = rest.strip_prefix(['E', 'O']).unwrap_or(rest);
        rest.starts_with('n')
    })
}

fn parse(text: &[u8]) -> Box<[Part]> {
    let mut parts = Vec::new();
    let mut literal = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let found = if text[at] == b'%' { conversion(&text[at + 1..]) } else { None };
        match found {
            Some((part, len)) => {
                if !literal.is_empty() {
                    parts.push(Part::Literal(std::mem::take(&mut literal).into()));
                }
                parts.push(part);
                at += 1 + len;
            }
            None => {
                literal.push(text[at]);
                at += 1;
            }
        }
    }
    if !literal.is_empty() {
        parts.push(Part::Literal(literal.into()));
    }
    parts.into()
}

/// The conversion that `text` (after its `%`) begins with, and its length. What is none stays text.
fn conversion(text: &[u8]) -> Option<(Part, usize)> {
    match text {
        [b'f', ..] => Some((Part::Fraction(Some(9)), 1)),
        [n @ b'1'..=b'9', b'f', ..] => Some((Part::Fraction(Some(usize::from(n - b'0'))), 2)),
        [b'E', b'*', b'S', ..] => Some((Part::Seconds(None), 3)),
        [b'E', n @ b'0'..=b'9', b'S', ..] => Some((Part::Seconds(Some(usize::from(n - b'0'))), 3)),
        [b'E', b'*', b'f', ..] => Some((Part::Fraction(None), 3)),
        [b'E', n @ b'0'..=b'9', b'f', ..] => Some((Part::Fraction(Some(usize::from(n - b'0'))), 3)),
        [b'E', b'*', b'z', ..] => Some((Part::OffsetWithColon, 3)),
        [b'E', b'z', ..] => Some((Part::OffsetWithColon, 2)),
        [b'E', b'4', b'Y', ..] => Some((Part::Field { code: b'Y', flag: None }, 3)),
        [b'E', b'T', ..] => Some((Part::Literal(b"T"[..].into()), 2)),
        [b'E' | b'O', code, ..] if is_code(*code) => Some((Part::Field { code: *code, flag: None }, 2)),
        [flag @ (b'-' | b'_' | b'0' | b'^' | b'#'), code, ..] if is_code(*code) => {
            Some((Part::Field { code: *code, flag: Some(*flag) }, 2))
        }
        [code, ..] if is_code(*code) => Some((Part::Field { code: *code, flag: None }, 1)),
        _ => None,
    }
}

fn is_code(code: u8) -> bool {
    b"aAbBcCdDeFgGhHIjklmMpPrRsStTuUVwWxXyYzZ%".contains(&code)
}

/// A moment on a calendar.
struct Date<'a> {
    epoch: i64,
    micros: u32,
    year: i64,
    /// 0 for January.
    month: u32,
    day: u32,
    /// 0 for the first of January.
    year_day: u32,
    /// 0 for Sunday.
    weekday: u32,
    hour: u32,
    minute: u32,
    second: u32,
    offset: i64,
    zone_name: &'a str,
}

impl<'a> Date<'a> {
    fn new(epoch: i64, micros: u32, zone: Option<&'a TimeZone>) -> Self {
        // A moment that the zone's table does not reach is shown in UTC.
        let local = zone.and_then(|zone| zone.find_local_time_type(epoch).ok());
        let (offset, zone_name) =
            local.map_or((0, "UTC"), |local| (i64::from(local.ut_offset()), local.time_zone_designation()));
        let local = epoch.saturating_add(offset);
        let days = local.div_euclid(SECONDS_A_DAY);
        let seconds = local.rem_euclid(SECONDS_A_DAY) as u32;
        let (year, month, day) = civil(days);
        let year_day = (days - days_to(year)) as u32;
        Self {
            epoch,
            micros,
            year,
            month,
            day,
            year_day,
            weekday: (days + 4).rem_euclid(7) as u32,
            hour: seconds / 3600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            offset,
            zone_name,
        }
    }

    fn append(&self, code: u8, flag: Option<u8>, out: &mut Vec<u8>) {
        let start = out.len();
        match code {
            b'a' => out.extend_from_slice(&WEEKDAYS[self.weekday as usize].as_bytes()[..3]),
            b'A' => out.extend_from_slice(WEEKDAYS[self.weekday as usize].as_bytes()),
            b'b' | b'h' => out.extend_from_slice(&MONTHS[self.month as usize].as_bytes()[..3]),
            b'B' => out.extend_from_slice(MONTHS[self.month as usize].as_bytes()),
            b'p' => out.extend_from_slice(if self.hour < 12 { b"AM" } else { b"PM" }),
            b'P' => out.extend_from_slice(if self.hour < 12 { b"am" } else { b"pm" }),
            b'Z' => out.extend_from_slice(self.zone_name.as_bytes()),
            b'z' => self.append_offset(false, out),
            b't' => out.push(b'\t'),
            b'%' => out.push(b'%'),
            b'c' => self.append_all(b"a b e T Y", out),
            b'D' | b'x' => self.append_all(b"m/d/y", out),
            b'F' => self.append_all(b"Y-m-d", out),
            b'r' => self.append_all(b"I:M:S p", out),
            b'R' => self.append_all(b"H:M", out),
            b'T' | b'X' => self.append_all(b"H:M:S", out),
            _ => self.append_number(code, flag, out),
        }
        if flag == Some(b'^') {
            out[start..].make_ascii_uppercase();
        }
    }

    /// Letters of `pattern` are conversions, the rest is text.
    fn append_all(&self, pattern: &[u8], out: &mut Vec<u8>) {
        for byte in pattern {
            if byte.is_ascii_alphabetic() { self.append(*byte, None, out) } else { out.push(*byte) }
        }
    }

    fn append_number(&self, code: u8, flag: Option<u8>, out: &mut Vec<u8>) {
        let (value, width, pad) = match code {
            b's' => return signed(out, self.epoch),
            b'Y' => return signed(out, self.year),
            b'G' => return signed(out, self.iso_week().0),
            b'C' => (self.year.div_euclid(100) as u32, 2, b'0'),
            b'y' => (self.year.rem_euclid(100) as u32, 2, b'0'),
            b'g' => (self.iso_week().0.rem_euclid(100) as u32, 2, b'0'),
            b'm' => (self.month + 1, 2, b'0'),
            b'd' => (self.day, 2, b'0'),
            b'e' => (self.day, 2, b' '),
            b'H' => (self.hour, 2, b'0'),
            b'k' => (self.hour, 2, b' '),
            b'I' => (twelve(self.hour), 2, b'0'),
            b'l' => (twelve(self.hour), 2, b' '),
            b'M' => (self.minute, 2, b'0'),
            b'S' => (self.second, 2, b'0'),
            b'j' => (self.year_day + 1, 3, b'0'),
            b'u' => (if self.weekday == 0 { 7 } else { self.weekday }, 1, b'0'),
            b'w' => (self.weekday, 1, b'0'),
            b'U' => ((self.year_day + 7 - self.weekday) / 7, 2, b'0'),
            b'W' => ((self.year_day + 7 - (self.weekday + 6) % 7) / 7, 2, b'0'),
            b'V' => (self.iso_week().1, 2, b'0'),
            _ => return,
        };
        match flag {
            Some(b'-') => padded(out, value, 1, pad),
            Some(b'_') => padded(out, value, width, b' '),
            Some(b'0') => padded(out, value, width, b'0'),
            _ => padded(out, value, width, pad),
        }
    }

    /// Year and number of the ISO 8601 week: weeks start on Monday, the first has a Thursday.
    fn iso_week(&self) -> (i64, u32) {
        let monday_based = (self.weekday + 6) % 7;
        // The day of the year of this week's Thursday decides.
        let thursday = i64::from(self.year_day) + 3 - i64::from(monday_based);
        let days = days_to(self.year) + thursday;
        let (year, _, _) = civil(days);
        (year, ((days - days_to(year)) / 7) as u32 + 1)
    }

    fn append_fraction(&self, digits: Option<usize>, out: &mut Vec<u8>) {
        let mut text = [b'0'; 9];
        let mut rest = self.micros;
        for digit in text[..6].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let digits = digits.unwrap_or_else(|| text.iter().rposition(|d| *d != b'0').map_or(1, |last| last + 1));
        out.extend_from_slice(&text[..digits.min(9)]);
    }

    fn append_offset(&self, colon: bool, out: &mut Vec<u8>) {
        out.push(if self.offset < 0 { b'-' } else { b'+' });
        let minutes = (self.offset.unsigned_abs() / 60) as u32;
        padded(out, minutes / 60, 2, b'0');
        if colon {
            out.push(b':');
        }
        padded(out, minutes % 60, 2, b'0');
    }
}

fn twelve(hour: u32) -> u32 {
    (hour + 11) % 12 + 1
}

fn padded(out: &mut Vec<u8>, value: u32, width: usize, pad: u8) {
    let mut buffer = [0; 20];
    let digits = nuncio_core::http::header_map::decimal(u64::from(value), &mut buffer);
    out.extend(std::iter::repeat_n(pad, width.saturating_sub(digits.len())));
    out.extend_from_slice(digits);
}

fn signed(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    let mut buffer = [0; 20];
    out.extend_from_slice(nuncio_core::http::header_map::decimal(value.unsigned_abs(), &mut buffer));
}

/// Days from 1970-01-01 to the first of January of `year`, in the proleptic Gregorian calendar.
fn days_to(year: i64) -> i64 {
    let before = year - 1;
    365 * before + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162
}

/// Year, month from 0 and day of month of the day that is `days` after 1970-01-01.
fn civil(days: i64) -> (i64, u32, u32) {
    // An estimate that is at most one year off, then exact.
    let mut year = 1970 + days.div_euclid(365);
    while days_to(year) > days {
        year -= 1 + (days_to(year) - days) / 366;
    }
    let leap = year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    let mut rest = (days - days_to(year)) as u32;
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for (month, length) in (0..).zip(lengths) {
        if rest < length {
            return (year, month, rest + 1);
        }
        rest -= length;
    }
    (year, 11, 31)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64, micros: u32, format: &str) -> String {
        let time = UNIX_EPOCH + Duration::new(seconds, micros * 1000);
        let mut out = Vec::new();
        DateFormat::parse(format, false).unwrap().append(time, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// Each line as Envoy 1.40 printed it for 2026-11-29 22:35:11.345622.
    #[test]
    fn conversions_print_what_envoy_prints() {
        let now = |format: &str| at(1_795_991_711, 345_622, format);
        assert_eq!(now(""), "2026-11-29T22:35:11.345Z");
        assert_eq!(now("%s.%3f|%s.%6f|%9f|%f|%1f"), "1795991711.345|1795991711.345622|345622000|345622000|3");
        assert_eq!(now("%E3S %E*S %E6S %E0S"), "11.345 11.345622 11.345622 11");
        assert_eq!(now("%Z %z %Ez"), "UTC +0000 +00:00");
        assert_eq!(now("%j %a %A %b %B %d %e %H %I %p %y"), "333 Sun Sunday Nov November 29 29 22 10 PM 26");
        assert_eq!(
            now("%c|%D|%F|%T|%R|%x|%X"),
            "Sun Nov 29 22:35:11 2026|11/29/26|2026-11-29|22:35:11|22:35|11/29/26|22:35:11"
        );
        assert_eq!(now("%u %U %w %V %G %t| %% %Q %C"), "7 48 0 48 2026 \t| % %Q 20");
        assert_eq!(now("%h %k %l %P %r %g"), "Nov 22 10 pm 10:35:11 PM 26");
        assert_eq!(now("%E4Y %E3f %E*f %ET %Es"), "2026 345 345622 T 1795991711");
        assert_eq!(now("abc"), "abc");
    }

    #[test]
    fn line_breaks_are_refused_in_every_spelling() {
        for text in ["%n", "x%-3En", "%%n", "%On"] {
            assert!(DateFormat::parse(text, false).is_err(), "{text}");
        }
        assert!(DateFormat::parse("n%3", false).is_ok());
    }

    #[test]
    fn the_calendar_is_right_at_its_corners() {
        assert_eq!(at(0, 0, "%F %a %j %V %G %W"), "1970-01-01 Thu 001 01 1970 00");
        assert_eq!(at(951_782_400, 0, "%F %j"), "2000-02-29 060");
        assert_eq!(at(4_107_542_400, 0, "%F"), "2100-03-01");
        assert_eq!(at(1_230_768_000, 0, "%F %G-%V"), "2009-01-01 2009-01");
        assert_eq!(at(1_262_304_000, 0, "%F %G-%V %g"), "2010-01-01 2009-53 09");
        assert_eq!(at(253_402_300_799, 999_999, "%F %T.%6f"), "9999-12-31 23:59:59.999999");
        let mut out = Vec::new();
        DateFormat::parse("%F %T.%6f", false).unwrap().append(UNIX_EPOCH - Duration::from_micros(1), &mut out);
        assert_eq!(out, b"1969-12-31 23:59:59.999999");
    }

    #[test]
    fn a_zone_shifts_the_clock_and_names_itself() {
        let zone = TimeZone::from_posix_tz("<+0530>-5:30").unwrap();
        let format = DateFormat { parts: parse(b"%F %T%z %Ez %Z %s"), zone: Some(zone) };
        let mut out = Vec::new();
        format.append(UNIX_EPOCH + Duration::from_secs(86_399), &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "1970-01-02 05:29:59+0530 +05:30 +0530 86399");
    }

    #[test]
    fn flags_change_padding_and_case() {
        assert_eq!(at(0, 0, "%-d %_d %^a %e %-H %0e"), "1  1 THU  1 0 01");
    }
}
