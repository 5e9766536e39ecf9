//! Dates from seconds: the Gregorian calendar in UTC, in the forms that HTTP, JSON and log patterns want.

use std::fmt;
use std::time::Duration;

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
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment of the proleptic Gregorian calendar, UTC.
#[derive(Clone, Copy, Debug)]
pub struct Date {
    year: u64,
    month: usize,
    day: u64,
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
    since_epoch: Duration,
}

// === impl Date ===

impl Date {
    pub fn new(since_epoch: Duration) -> Date {
        let seconds = since_epoch.as_secs();
        let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
        // Years are counted from March, so that the leap day is the last of its year.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 { shifted_month + 2 } else { shifted_month - 10 } as usize;
        Date {
            year: year_of_era + era * 400 + u64::from(month < 2),
            month,
            day: day_of_year - (153 * shifted_month + 2) / 5 + 1,
            weekday: ((days + 4) % 7) as usize,
            hour: second_of_day / 3_600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
            since_epoch,
        }
    }

    /// One field of a date, by its strftime letter; what is none is written as it stands.
    pub fn field(&self, letter: char, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        let Date { year, day, hour, minute, second, .. } = *self;
        let month = self.month + 1;
        let half = if hour < 12 { "AM" } else { "PM" };
        let hour12 = (hour + 11) % 12 + 1;
        let (month_name, day_name) = (MONTHS[self.month], DAYS[self.weekday]);
        match letter {
            'Y' => write!(out, "{year}"),
            'C' => write!(out, "{:02}", year % 100),
            'm' => write!(out, "{month:02}"),
            'd' => write!(out, "{day:02}"),
            'H' => write!(out, "{hour:02}"),
            'I' => write!(out, "{hour12:02}"),
            'M' => write!(out, "{minute:02}"),
            'S' => write!(out, "{second:02}"),
            'e' => write!(out, "{:03}", self.since_epoch.subsec_millis()),
            'f' => write!(out, "{:06}", self.since_epoch.subsec_micros()),
            'F' => write!(out, "{:09}", self.since_epoch.subsec_nanos()),
            'E' => write!(out, "{}", self.since_epoch.as_secs()),
            'p' => out.write_str(half),
            'T' | 'X' => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            'R' => write!(out, "{hour:02}:{minute:02}"),
            'r' => write!(out, "{hour12:02}:{minute:02}:{second:02} {half}"),
            'D' | 'x' => write!(out, "{month:02}/{day:02}/{:02}", year % 100),
            'a' => out.write_str(&day_name[..3]),
            'A' => out.write_str(day_name),
            'b' | 'h' => out.write_str(&month_name[..3]),
            'B' => out.write_str(month_name),
            'c' => {
                write!(out, "{} {} {day} {hour:02}:{minute:02}:{second:02} {year}", &day_name[..3], &month_name[..3])
            }
            'z' => out.write_str("+00:00"),
            other => write!(out, "%{other}"),
        }
    }

    /// As HTTP headers have it: `Sun, 06 Nov 1994 08:49:37 GMT`.
    pub fn http(&self) -> impl fmt::Display {
        let Date { year, day, hour, minute, second, .. } = *self;
        let (month, weekday) = (&MONTHS[self.month][..3], &DAYS[self.weekday][..3]);
        fmt::from_fn(move |f| write!(f, "{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT"))
    }

    /// As protobuf's JSON has a timestamp: `2026-11-29T22:39:30.028Z`, with 0, 3, 6 or 9 digits of the second.
    pub fn rfc3339(&self) -> String {
        let Date { year, day, hour, minute, second, .. } = *self;
        let fraction = match self.since_epoch.subsec_nanos() {
            0 => String::new(),
            n if n % 1_000_000 == 0 => format!(".{:03}", n / 1_000_000),
            n if n % 1_000 == 0 => format!(".{:06}", n / 1_000),
            n => format!(".{n:09}"),
        };
        format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z", self.month + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_print_as_their_rfcs_say() {
        // RFC 9110's example, and a moment of Envoy's /config_dump.
        assert_eq!(Date::new(Duration::from_secs(784_111_777)).http().to_string(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(Date::new(Duration::from_millis(1_795_991_970_028)).rfc3339(), "2026-11-29T22:39:30.028Z");
        assert_eq!(Date::new(Duration::from_secs(1_795_991_969)).rfc3339(), "2026-11-29T22:39:29Z");
    }

    #[test]
    fn dates_around_leap_days_are_right() {
        // From date -u -d @N.
        for (seconds, date) in [
            (0, "1970-01-01 Thu 00:00:00"),
            (951_782_400, "2000-02-29 Tue 00:00:00"),
            (951_868_799, "2000-02-29 Tue 23:59:59"),
            (951_868_800, "2000-03-01 Wed 00:00:00"),
            (1_709_164_800, "2024-02-29 Thu 00:00:00"),
            (1_735_689_599, "2024-12-31 Tue 23:59:59"),
            (4_107_542_400, "2100-03-01 Mon 00:00:00"),
        ] {
            let moment = Date::new(Duration::from_secs(seconds));
            let mut text = String::new();
            for letter in "Y-m-d a T".chars() {
                match letter {
                    '-' | ' ' => text.push(letter),
                    letter => moment.field(letter, &mut text).unwrap(),
                }
            }
            assert_eq!(text, date);
        }
    }
}
