//! The server: what it is asked to do, and the threads that do it.

pub mod options;

pub use options::Options;
