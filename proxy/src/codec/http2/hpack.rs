//! Header compression of HTTP/2 (RFC 7541): blocks into fields, and fields into blocks.
//!
//! - [`Decoder`]: what the peer sends · [`Encoder`]: what we send, and what of it is worth a place in the table
//! - `static_table`: Appendix A · `dynamic_table`: the entries of one direction, in one piece of memory
//! - `lookup`: how the encoder finds an entry · `integer`: §5.1 · `huffman`: §5.2 and Appendix B
//!
//! Both directions hold no memory until something is indexed, and take none in a connection that is warm. Each is as
//! large as its table at most, whatever the peer sends.

mod decoder;
mod dynamic_table;
mod encoder;
mod huffman;
mod integer;
mod lookup;
mod static_table;

#[cfg(test)]
mod tests;

pub(super) use decoder::Decoder;
pub(super) use encoder::Encoder;

/// What a peer's header block did wrong; every kind is a COMPRESSION_ERROR of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// The size that a table has until a setting changes it (RFC 9113 §6.5.2).
const DEFAULT_SIZE: u32 = 4096;
