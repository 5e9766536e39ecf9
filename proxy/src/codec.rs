//! The wall between bytes and messages: everything above it sees heads, chunks and trailers;
//! nothing above it sees a framing header, a frame, or a codec library.

pub mod buffers;

pub use buffers::Buffers;
