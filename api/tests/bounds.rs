//! Hostile configuration is refused in bounded memory and with one clear sentence. A test of its own process, because
//! it reads the process's peak.

use nuncio_api::{Format, LoadOptions, ReadLimits, Source, load_bootstrap};

fn refusal(format: Format, text: impl Into<Vec<u8>>) -> String {
    let found = load_bootstrap(vec![Source::text("a", format, text)], &LoadOptions::default()).expect_err("hostile");
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].to_string()
}

/// Megabytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap_or("VmHWM: 0 kB");
    line.split_whitespace().nth(1).and_then(|n| n.parse::<usize>().ok()).expect("a number of kB") / 1024
}

#[test]
fn bombs_and_giants_are_refused_in_bounded_memory() {
    let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x, x]\n");
    for (last, name) in "abcdefghij".chars().zip("bcdefghijk".chars()) {
        let aliases = vec![format!("*{last}"); 10].join(", ");
        bomb.push_str(&format!("{name}: &{name} [{aliases}]\n"));
    }
    assert!(refusal(Format::Yaml, bomb).ends_with("aliases expand to more than 1048576 values"));
    assert_eq!(refusal(Format::Json, "[".repeat(100_000)), "a:1:101: nested more than 100 levels deep");
    assert_eq!(refusal(Format::Json, "{\"a\":".repeat(100_000)), "a:1:501: nested more than 100 levels deep");
    assert!(refusal(Format::Yaml, "[".repeat(100_000)).contains("nested more than 100 levels deep"));
    assert!(refusal(Format::Yaml, "- ".repeat(100_000)).contains("nested more than 100 levels deep"));
    let mut indented = String::new();
    (0..1000).for_each(|i| indented.push_str(&format!("{}a:\n", " ".repeat(i))));
    assert!(refusal(Format::Yaml, indented).contains("101:101: nested more than 100 levels deep"));
    let before = peak();
    assert!(before < 120, "{before} MiB");
    // Two million small values, where one million is allowed.
    let flat = format!("{{\"node\": {{\"metadata\": {{\"a\": [{}]}}}}}}", "1,".repeat(2_000_000));
    let limits = ReadLimits { nodes: 1 << 20, ..ReadLimits::default() };
    let options = LoadOptions { limits, ..LoadOptions::default() };
    let found = load_bootstrap(vec![Source::text("a", Format::Json, flat)], &options).unwrap_err();
    assert!(found[0].text.ends_with("more than 1048576 values"), "{}", found[0]);
    assert!(peak() < before + 64, "{} MiB", peak());
    let line = vec![b'a'; 100 << 20];
    assert_eq!(refusal(Format::Yaml, line), "a: is longer than the 64 MiB that a configuration may have");
    assert!(peak() < 400, "{} MiB", peak());
}
