//! What a page answers.

use std::fmt;

use http::StatusCode;
use nuncio_api::dump::JsonWriter;
use serde_json::Value;

use super::Chunks;

/// Status, kind and body of an answer.
pub struct Answer {
    pub status: StatusCode,
    pub content_type: ContentType,
    pub(super) body: Body,
    /// Done when the answer has been sent, or cannot be.
    pub(super) after: Option<Box<dyn FnOnce()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentType {
    Text,
    Json,
    Html,
}

/// Writes an answer on a thread of its own; an error means that nobody reads on.
pub(super) type Renderer = Box<dyn FnOnce(&mut Chunks) -> fmt::Result + Send>;

pub(super) enum Body {
    Whole(String),
    Rendered(Renderer),
}

// === impl Answer ===

impl Answer {
    pub fn text(body: impl Into<String>) -> Answer {
        Answer { status: StatusCode::OK, content_type: ContentType::Text, body: Body::Whole(body.into()), after: None }
    }

    /// What acts answer when they worked.
    pub fn ok() -> Answer {
        Answer::text("OK\n")
    }

    pub fn error(status: StatusCode, body: impl Into<String>) -> Answer {
        Answer { status, ..Answer::text(body) }
    }

    pub fn html(body: String) -> Answer {
        Answer { content_type: ContentType::Html, ..Answer::text(body) }
    }

    pub fn json(value: &Value) -> Answer {
        Answer { content_type: ContentType::Json, ..Answer::text(json_text(value)) }
    }

    /// Rendered off the main thread, in chunks. `render` owns a view of what it writes about.
    pub fn rendered(
        content_type: ContentType,
        render: impl FnOnce(&mut Chunks) -> fmt::Result + Send + 'static,
    ) -> Answer {
        Answer { content_type, body: Body::Rendered(Box::new(render)), ..Answer::text("") }
    }

    /// Does something once the client has its answer: what would keep it from coming.
    pub fn then(mut self, act: impl FnOnce() + 'static) -> Answer {
        self.after = Some(Box::new(act));
        self
    }

    /// The whole body, rendered here and now.
    #[cfg(test)]
    pub(super) fn into_text(self) -> String {
        match self.body {
            Body::Whole(text) => text,
            Body::Rendered(render) => {
                let mut chunks = Chunks::to_memory();
                render(&mut chunks).expect("memory takes everything");
                chunks.collected().concat()
            }
        }
    }
}

impl ContentType {
    pub fn as_str(self) -> &'static str {
        match self {
            ContentType::Text => "text/plain; charset=UTF-8",
            ContentType::Json => "application/json",
            ContentType::Html => "text/html; charset=UTF-8",
        }
    }
}

/// JSON as Envoy prints it, with the line break at its end.
pub(super) fn json_text(value: &Value) -> String {
    let mut json = JsonWriter::default();
    json.value(value);
    json.take() + "\n"
}
