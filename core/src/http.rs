//! HTTP as the rooms see it: heads, body chunks, local replies, and the filter traits.

pub mod body;
pub mod filter;
pub mod grpc_status;
pub mod head;
pub mod header_map;
pub mod local_reply;
pub mod spelling;

pub use body::{Chunk, Framing, Held};
pub use filter::{
    DecodeFilter, EncodeFilter, FilterHalves, HttpFilter, HttpFilterFactory, MakeFilter, Outcome, RouteView, Step,
    StreamControl, StreamState, Verdict,
};
pub use head::{HeadLimits, RequestHead, ResponseHead, Version};
pub use header_map::HeaderMap;
pub use local_reply::LocalReply;
pub use spelling::Spelling;
