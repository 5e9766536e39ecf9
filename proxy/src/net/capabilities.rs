//! What the kernel lets this process do.

use nuncio_core::extension::FactoryContext;

/// Whether it has CAP_NET_ADMIN: the packet filter, transparent sockets, marks.
pub fn has_net_admin() -> bool {
    const NET_ADMIN: u32 = 12;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits & 1 << NET_ADMIN != 0)
}

/// For what connects from the addresses of clients.
pub fn warn_without_net_admin(context: &FactoryContext<'_>) {
    if !has_net_admin() {
        context
            .warn("", "this process has no CAP_NET_ADMIN: the kernel will refuse connections from clients' addresses");
    }
}
