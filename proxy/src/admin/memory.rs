//! `/memory`: how much memory the process has, from what the kernel says.

use serde_json::{Value, json};

use super::{Answer, Page};

pub(super) fn pages() -> Vec<Page> {
    vec![Page::new("/memory", "print current allocation/heap usage", |_| Answer::json(&page(MemoryUse::now())))]
}

/// Bytes. The allocator is the system's, which keeps no figures of its own to show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Resident and not of a file.
    pub allocated: u64,
    /// Mapped for data.
    pub heap: u64,
    /// Resident.
    pub physical: u64,
}

// === impl MemoryUse ===

impl MemoryUse {
    /// All zeros where the kernel does not tell.
    pub fn now() -> MemoryUse {
        MemoryUse::parse(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn parse(status: &str) -> MemoryUse {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.unwrap_or(0) * 1024
        };
        MemoryUse { allocated: bytes("RssAnon"), heap: bytes("VmData"), physical: bytes("VmRSS") }
    }
}

/// `envoy.admin.v3.Memory`.
fn page(memory: MemoryUse) -> Value {
    json!({
        "allocated": memory.allocated.to_string(),
        "heap_size": memory.heap.to_string(),
        "pageheap_unmapped": "0",
        "pageheap_free": "0",
        "total_thread_cache": "0",
        "total_physical_bytes": memory.physical.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_kernels_lines() {
        let memory = MemoryUse::parse("Name:\tx\nVmRSS:\t     100 kB\nRssAnon:\t      40 kB\nVmData:\t   2000 kB\n");
        assert_eq!(memory, MemoryUse { allocated: 40_960, heap: 2_048_000, physical: 102_400 });
        assert_eq!(MemoryUse::parse(""), MemoryUse::default());
        // Envoy's keys.
        let keys = "allocated heap_size pageheap_unmapped pageheap_free total_thread_cache total_physical_bytes";
        let json = page(memory);
        assert_eq!(json.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" "), keys);
        assert_eq!(json["allocated"], "40960");
    }
}
