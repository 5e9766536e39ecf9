//! Counters by HTTP status code: `upstream_rq_200`, `upstream_rq_2xx`, `upstream_rq_completed`.
//!
//! A list of all codes would be 4 KiB for every cluster and worker. So the codes seen in practice share four lines, and a
//! hundred codes are born together when one of their rare ones is first seen. Envoy makes each of these counters at its
//! first use, so they are listed only once they have counted.

use super::block::{self, Line, lines_for};
use super::handle::{Born, WorkerStats};
use super::list::{Descriptor, Shape};
use super::sparse::Sparse;
use super::store::ScopeId;
use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// Whose answers are counted: Envoy counts each of a cluster's answers plainly and again under where the request came
/// from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// `upstream_rq_…` of a cluster, whose `upstream_rq_completed` is listed from the start.
    Cluster,
    Internal,
    External,
    Canary,
    /// Answers that were not passed on, because the request was tried again.
    Retry,
    /// `upstream_rq_…` of a virtual cluster, a route or a zone: everything from its first use.
    Other,
}

const fn list(prefix: &'static str, completed: bool) -> Descriptor {
    Descriptor { prefix, shape: Shape::Codes { completed } }
}

static LISTS: [Descriptor; 6] = [
    list("", true),
    list("internal.", false),
    list("external.", false),
    list("canary.", false),
    list("retry.", false),
    list("", false),
];

impl Codes {
    /// For a [`Scope`](super::Scope) of clusters.
    pub fn of_clusters() -> &'static [Descriptor] {
        &LISTS[..1]
    }

    fn list(self) -> &'static Descriptor {
        &LISTS[self as usize]
    }
}

/// Key of the sums that are not of one code.
pub(super) const COMPLETED: u16 = 0;
/// Keys 1 to 5 are `1xx` to `5xx`.
const CLASSES: u16 = 5;

/// Keys in the order of their words; as many as four lines hold.
const COMMON: [u16; 32] = [
    COMPLETED, 1, 2, 3, 4, 5, 200, 404, 301, 302, 304, 500, 503, 504, 201, 204, 206, 101, 202, 303, 307, 308, 400, 401,
    403, 405, 408, 409, 413, 429, 501, 502,
];
const RARE: u8 = u8::MAX;
const CODES: usize = 1000;

/// Code → word among the common ones.
static WORDS: [u8; CODES] = {
    let mut words = [RARE; CODES];
    let mut word = 0;
    while word < COMMON.len() {
        words[COMMON[word] as usize] = word as u8;
        word += 1;
    }
    words
};

type Hundred = [Line; lines_for(100)];
/// 1xx to 9xx.
type Hundreds = [OnceLock<Box<Hundred>>; 9];

/// Counters by code of one object on one worker.
#[derive(Debug, Default)]
pub struct CodeBlock {
    common: [Line; lines_for(COMMON.len())],
    rare: OnceLock<Box<Hundreds>>,
}

impl CodeBlock {
    #[inline]
    fn charge(&self, code: u16) {
        let class = code / 100;
        block::add(&self.common, COMPLETED.into(), 1);
        if (1..=CLASSES).contains(&class) {
            block::add(&self.common, class.into(), 1);
        }
        match WORDS.get(usize::from(code)) {
            Some(&word) if word != RARE && code > CLASSES => block::add(&self.common, word.into(), 1),
            _ => self.charge_rare(code),
        }
    }

    #[cold]
    fn charge_rare(&self, code: u16) {
        // A status line has three digits; anything else was refused long before.
        let hundreds = self.rare.get_or_init(Box::default);
        let Some(hundred) = usize::from(code / 100).checked_sub(1).and_then(|i| hundreds.get(i)) else { return };
        let lines = hundred.get_or_init(|| Box::new([const { Line::zero() }; lines_for(100)]));
        block::add(&lines[..], usize::from(code % 100), 1);
    }

    pub(super) fn sum_into(&self, sums: &mut Sparse) {
        for (word, key) in COMMON.iter().enumerate() {
            sums.add(*key, block::get(&self.common, word));
        }
        let Some(hundreds) = self.rare.get() else { return };
        for (hundred, lines) in hundreds.iter().enumerate() {
            let Some(lines) = lines.get() else { continue };
            for rest in 0..100usize {
                sums.add(((hundred + 1) * 100 + rest) as u16, block::get(&lines[..], rest));
            }
        }
    }
}

/// The name of a sum by its key.
pub(super) fn write_name(key: u16, name: &mut String) {
    use std::fmt::Write as _;
    let _ = match key {
        COMPLETED => write!(name, "upstream_rq_completed"),
        1..=CLASSES => write!(name, "upstream_rq_{key}xx"),
        code => write!(name, "upstream_rq_{code}"),
    };
}

/// One object's counters by status code on one worker.
pub struct CodeStats {
    worker: Rc<WorkerStats>,
    scope: ScopeId,
    codes: Codes,
    block: OnceCell<Arc<CodeBlock>>,
}

impl CodeStats {
    pub fn new(worker: &Rc<WorkerStats>, scope: ScopeId, codes: Codes) -> Self {
        Self { worker: worker.clone(), scope, codes, block: OnceCell::new() }
    }

    /// One answer: `completed`, its class and its code.
    #[inline]
    pub fn charge(&self, code: u16) {
        self.block.get_or_init(|| self.born()).charge(code);
    }

    /// One answer whose code is nobody's business: `completed`.
    pub fn charge_any(&self) {
        block::add(&self.block.get_or_init(|| self.born()).common, COMPLETED.into(), 1);
    }

    #[cold]
    fn born(&self) -> Arc<CodeBlock> {
        let block = Arc::new(CodeBlock::default());
        self.worker.born(self.scope, Born::Codes(self.codes.list(), block.clone()));
        block
    }
}

impl fmt::Debug for CodeStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CodeStats").field("scope", &self.scope).field("codes", &self.codes).finish()
    }
}
