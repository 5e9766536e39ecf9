//! What the figures were measured on.

use std::fs;

/// One line: processor, cores, memory, kernel, and how this program was built if that spoils the figures.
pub fn describe() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|l| l.strip_prefix("model name")).map_or("?", |l| l.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory.lines().next().and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let build = if cfg!(debug_assertions) { " (debug build: these figures mean nothing)" } else { "" };
    format!("{model}, {cores} cores, {} GiB, Linux {}{build}", memory >> 20, kernel.trim())
}

/// Today, as `2026-11-29`.
pub fn date() -> String {
    let days = days_since_epoch();
    let (mut year, mut rest) = (1970, days);
    loop {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = if leap { 366 } else { 365 };
        if rest < length {
            let months = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            let mut month = 0;
            while rest >= months[month] {
                rest -= months[month];
                month += 1;
            }
            return format!("{year}-{:02}-{:02}", month + 1, rest + 1);
        }
        rest -= length;
        year += 1;
    }
}

// A bench reports the real date: there is no worker to hand a clock in.
#[allow(clippy::disallowed_methods)]
fn days_since_epoch() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400)
}
