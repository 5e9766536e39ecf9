//! Words about connections: addresses, ranges, the byte stream, what is known of a connection.

pub mod address;
pub mod cidr;
pub mod connect;
pub mod connection;
pub mod io;

pub use address::Address;
pub use cidr::CidrRange;
pub use connect::{Accept, Connect, ConnectOptions, Connected};
pub use connection::{CloseType, ConnectionInfo, ConnectionTimings, OriginalSource, PeerCertificate, TlsInfo};
pub use io::{Io, Stream, counted};
