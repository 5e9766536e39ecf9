//! `/memory`: how much memory the process has, from what the kernel says.

use serde_json::{Value, json};

use super::{Answer, Page};

pub(super) fn pages() -> Vec<Page> {
    vec![Page::new("/memory", "print current allocation/heap usage", |_| {
        Answer::json(&usage(&std::fs::read_to_string("/proc/self/status").unwrap_or_default()))
    })]
}

/// `envoy.admin.v3.Memory`. The allocator is the system's, which keeps no figures of its own to show: allocated is the
/// resident anonymous memory, the heap is what is mapped for data.
fn usage(status: &str) -> Value {
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        (kib.unwrap_or(0) * 1024).to_string()
    };
    json!({
        "allocated": bytes("RssAnon"),
        "heap_size": bytes("VmData"),
        "pageheap_unmapped": "0",
        "pageheap_free": "0",
        "total_thread_cache": "0",
        "total_physical_bytes": bytes("VmRSS"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_kernels_lines() {
        let json = usage("Name:\tx\nVmRSS:\t     100 kB\nRssAnon:\t      40 kB\nVmData:\t   2000 kB\n");
        assert_eq!(json["allocated"], "40960");
        assert_eq!(json["total_physical_bytes"], "102400");
        assert_eq!(json["heap_size"], "2048000");
        assert_eq!(usage("")["allocated"], "0");
    }
}
