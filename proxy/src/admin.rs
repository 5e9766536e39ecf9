//! The admin interface: pages about the running proxy, and the few acts that an operator may ask for.
//!
//! A page is one entry of a table ([`Page`]): its path, what `/help` says of it, whether it changes anything, its
//! parameters, and a function from the query to an [`Answer`]. Each room lists its own pages; this module finds the
//! page, refuses what must be refused, and lists what exists. `connection` carries it over HTTP/1.
//!
//! Everything here runs on the main thread, beside health checks and discovery. So a page either answers at once from
//! what is at hand (`/ready`), or takes a view that can be carried to another thread and is rendered there, in chunks
//! ([`Chunks`]), while the client reads. Texts, status codes and headers are Envoy's.
//!
//! What changes something wants POST, as in Envoy, and beyond that a request that no web page can have sent from
//! another site (see [`Admin::answer`]).

mod answer;
mod certs;
mod chunks;
mod clusters;
pub mod config;
mod config_dump;
mod connection;
mod counts;
mod discovery;
mod health;
mod hyper_io;
mod index;
mod lifecycle;
mod listeners;
mod log_record;
mod logging;
mod memory;
mod page;
mod profilers;
mod request;
mod runtime;
mod server_info;
mod stats;
mod threads;

use http::{Method, StatusCode};

pub use answer::{Answer, ContentType};
pub use certs::pages as certificate_pages;
pub use chunks::Chunks;
pub use clusters::{ClusterSource, ClusterViews, pages as cluster_pages};
pub use config::AdminConfig;
pub use config_dump::{Configs, Dynamic, DynamicResource, DynamicScopes, Shown, ShownListener, pages as config_pages};
pub use connection::{Limits, Settings, serve};
pub use counts::AdminStats;
pub use discovery::{ProvenanceSource, pages as discovery_pages};
pub use hyper_io::{HyperClock, HyperIo};
pub use page::{Page, Param, ParamKind};
pub use request::{Query, Request};

/// Whether a path, query included, may be asked for: `admin.allow_paths`.
pub type AllowPath = Box<dyn Fn(&str) -> bool>;

/// The table of pages.
pub struct Admin {
    /// Sorted by path.
    pages: Vec<Page>,
    allow: Option<AllowPath>,
}

impl Admin {
    pub fn new(mut pages: Vec<Page>, allow: Option<AllowPath>) -> Admin {
        pages.sort_by_key(|page| page.path);
        Admin { pages, allow }
    }

    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// Finds the page and asks it.
    ///
    /// Beyond Envoy's own rules, a request that would change something is refused if a browser sent it for another
    /// site: it names that site in `origin`, or, after the site's name was made to resolve to this address, in `host`.
    pub fn answer(&self, request: &Request) -> Answer {
        if self.allow.as_ref().is_some_and(|allow| !allow(&request.path_and_query())) {
            return Answer::error(
                StatusCode::FORBIDDEN,
                format!("request to path {} not allowed", request.path_and_query()),
            );
        }
        let path = request.path.as_str();
        match path {
            "/" => return index::home(&self.pages),
            "/help" => return index::help(&self.pages),
            _ => {}
        }
        let Some(page) = self.pages.iter().find(|page| page.path == path) else {
            return index::not_found(&self.pages);
        };
        if page.mutates {
            if request.method != Method::POST {
                let method = &request.method;
                let text = format!("Method {method} not allowed, POST required.");
                return Answer::error(StatusCode::METHOD_NOT_ALLOWED, text);
            }
            if let Some(reason) = request.foreign() {
                return Answer::error(StatusCode::FORBIDDEN, reason);
            }
        }
        (page.answer)(&request.query)
    }
}

/// The pages that need nothing but the process itself.
pub fn process_pages() -> Vec<Page> {
    let mut pages = memory::pages();
    pages.extend(profilers::pages());
    pages
}

pub use health::{HealthSource, pages as health_pages};
pub use lifecycle::pages as lifecycle_pages;
pub use listeners::{ListenerDrain, ListenerView, pages as listener_pages};
pub use logging::pages as logging_pages;
pub use memory::MemoryUse;
pub use runtime::{RuntimeLayers, pages as runtime_pages};
pub use server_info::{Identity, pages as server_info_pages};
pub use stats::pages as stats_pages;
pub use threads::{EventLoops, pages as thread_pages};

#[cfg(test)]
mod tests;
