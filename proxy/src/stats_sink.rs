//! All stats as text for people and for scrapers: `/stats` in its formats, and what `stats_config` makes of names.
//!
//! Rendering takes a [`View`] and runs on a thread that may take its time: main only makes the
//! view. What is rendered leaves in chunks of at most 64 KiB, so that memory stays small however many clusters there
//! are, and ends when the reader is gone.
//!
//! - `config`: `stats_config`: which stats exist, their tags, their buckets
//! - `tags`: parts of names that become labels
//! - `query`: the parameters of a request
//! - `ordered`: stats sorted by name, without holding all names at once
//! - `text`, `json`, `html`, `prometheus`: the formats; `numbers`: how Envoy prints them

mod chunks;
mod config;
mod html;
mod json;
mod numbers;
mod ordered;
mod prometheus;
mod query;
mod tags;
mod text;

use nuncio_core::stats::View;

pub use chunks::CHUNK;
pub use config::{SUPPORTED, StatsConfig};
pub use query::{BadQuery, Format, StatsQuery};

use chunks::Chunks;

/// Writes the stats that the query asks for. `send` takes each chunk and says whether to go on.
pub fn render(view: &View, config: &StatsConfig, query: &StatsQuery, send: &mut dyn FnMut(Vec<u8>) -> bool) {
    let mut out = Chunks::new(send);
    let done = match query.format {
        Format::Text => text::render(view, config, query, &mut out),
        Format::Json => json::render(view, config, query, &mut out),
        Format::Html => html::render(view, config, query, &mut out),
        Format::Prometheus => prometheus::render(view, config, query, &mut out),
    };
    // A reader who left is no error of ours.
    let _ = done.and_then(|()| out.finish());
}

#[cfg(test)]
mod tests;
