//! The proxy over real sockets: what only the kernel can show. Real clock, free ports, no sleeps.

mod admin;
mod demo;
mod examples;
mod listeners;
mod mistakes;
mod running;
mod tcp_proxy;
