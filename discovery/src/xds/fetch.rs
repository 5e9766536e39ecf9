//! The next answer of a source of resources. An answer is read whole or not at all; that none came (a failure) and that
//! one came which cannot be used (it is rejected) are counted apart, as in Envoy.

use std::fmt::Write;

use nuncio_api::pb::envoy::service::discovery::v3::DiscoveryResponse;
use nuncio_api::{Diagnostic, LoadOptions, Source, load_message};

use super::config_source::{ConfigSource, From};
use super::filesystem::File;
use super::resource::Resource;
use super::rest::Poller;
use crate::SourceContext;

/// Why there is no new answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchError {
    /// Nobody answered.
    Failure(String),
    /// The answer cannot be used.
    Rejected(String),
}

/// Brings answers, one after the other.
pub enum Fetcher {
    File(File),
    Rest(Box<Poller>),
}

impl Fetcher {
    /// `names`: which resources.
    pub fn new<R: Resource>(source: &ConfigSource, names: Vec<String>, context: &SourceContext) -> Self {
        match &source.from {
            From::File(file) => Self::File(File::new(file, &context.files)),
            From::Rest(rest) => Self::Rest(Box::new(Poller::new::<R>(rest.clone(), names, context))),
        }
    }

    /// The next answer, when there is one; none if it says that nothing is new.
    pub async fn next(&mut self) -> Result<Option<DiscoveryResponse>, FetchError> {
        match self {
            Self::File(file) => file.next().await.map(Some),
            Self::Rest(poller) => poller.next().await,
        }
    }

    /// The last answer was good.
    pub fn accepted(&mut self, version: &str) {
        if let Self::Rest(poller) = self {
            poller.accepted(version);
        }
    }
}

/// Reads a text, everything in it checked.
pub(super) fn read(source: Source) -> Result<DiscoveryResponse, String> {
    let read = load_message::<DiscoveryResponse>(source, &LoadOptions::default());
    read.map(|checked| checked.message).map_err(|problems| told(&problems))
}

/// What is wrong, in one line of bounded length.
fn told(problems: &[Diagnostic]) -> String {
    const MOST: usize = 5;
    let mut text = String::new();
    for problem in problems.iter().filter(|problem| problem.is_error()).take(MOST) {
        let joint = if text.is_empty() { "" } else { "; " };
        // Writing to a string does not fail.
        let _ = write!(text, "{joint}{problem}");
    }
    if problems.len() > MOST {
        let _ = write!(text, "; and {} more", problems.len() - MOST);
    }
    text
}
