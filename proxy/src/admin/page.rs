//! One admin page: where it is, what `/help` says of it, and what it answers.

use super::{Answer, Query};

/// An entry of the table of pages.
pub struct Page {
    pub path: &'static str,
    pub help: &'static str,
    /// Changes something: wants POST.
    pub mutates: bool,
    pub params: &'static [Param],
    pub answer: Box<dyn Fn(&Query) -> Answer>,
}

/// A parameter that a page understands.
#[derive(Debug, Clone, Copy)]
pub struct Param {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: ParamKind,
}

#[derive(Debug, Clone, Copy)]
pub enum ParamKind {
    Text,
    /// Counts as soon as it is there.
    Flag,
    OneOf(&'static [&'static str]),
}

// === impl Page ===

impl Page {
    /// A page that only tells.
    pub fn new(path: &'static str, help: &'static str, answer: impl Fn(&Query) -> Answer + 'static) -> Page {
        Page { path, help, mutates: false, params: &[], answer: Box::new(answer) }
    }

    /// A page that changes something.
    pub fn act(path: &'static str, help: &'static str, answer: impl Fn(&Query) -> Answer + 'static) -> Page {
        Page { mutates: true, ..Page::new(path, help, answer) }
    }

    pub fn with_params(mut self, params: &'static [Param]) -> Page {
        self.params = params;
        self
    }
}
