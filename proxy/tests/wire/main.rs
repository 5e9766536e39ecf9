//! The proxy over real sockets: what only the kernel can show. Real clock, free ports, no sleeps.

mod listeners;
mod running;
