//! Lists of stats: names, kinds and typed indexes, declared once with [`stats!`](crate::stats!).
//!
//! The list is the documentation of its stats and the only place where their names stand; objects hold indexes. A list
//! is also the unit of memory: its counters and gauges are born together at the first count on a worker, so a list
//! should hold what is first used together.

use super::block::Line;
use super::histogram::HistogramBlock;
use std::cell::OnceCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use xxhash_rust::xxh64::Xxh64;

/// What a stat is, for rendering and for sinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram(Unit),
}

/// What a recorded value of a histogram measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Unspecified,
    Bytes,
    Microseconds,
    Milliseconds,
    /// Recorded in millionths: 1.0 is recorded as 1,000,000.
    Percent,
}

/// One stat of a list.
#[derive(Debug)]
pub struct Stat {
    /// As it stands after the scope's and the list's prefix.
    pub name: &'static str,
    pub kind: Kind,
    /// Counters and gauges: word in the block. Histograms: ordinal among the list's histograms.
    pub slot: u16,
    /// Gauges: which bit of the block's last word says "was ever written".
    pub bit: u8,
}

/// One list as main and the renderers know it. Lists are compared by address: each is one `static`.
#[derive(Debug)]
pub struct Descriptor {
    /// Stands between the scope's prefix and the stat's name: "" or with a dot at the end.
    pub prefix: &'static str,
    pub shape: Shape,
}

#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Declared names; `words` in a block, of which the last marks the gauges that were used, if there are gauges.
    Declared { stats: &'static [Stat], words: u16, histograms: u16, gauges: u16 },
    /// `upstream_rq_<code>`, `upstream_rq_<n>xx` and `upstream_rq_completed`, each listed from its first use on.
    /// `completed` is listed from the start if this says so.
    Codes { completed: bool },
}

impl Descriptor {
    pub fn is(&self, other: &Descriptor) -> bool {
        std::ptr::eq(self, other)
    }

    pub fn stats(&self) -> &'static [Stat] {
        match self.shape {
            Shape::Declared { stats, .. } => stats,
            Shape::Codes { .. } => &[],
        }
    }

    pub(super) fn words(&self) -> u16 {
        match self.shape {
            Shape::Declared { words, .. } => words,
            Shape::Codes { .. } => 0,
        }
    }
}

/// A kind of object that has stats: where its names begin, and the lists that are shown from its creation on, as zeros.
/// Other lists are shown once they are born or declared for one object.
#[derive(Debug)]
pub struct Scope {
    /// "cluster.", "http.", … or "".
    pub root: &'static str,
    /// `<Some as List>::descriptors`, each.
    pub lists: &'static [fn() -> &'static [Descriptor]],
}

impl Scope {
    /// Of an object of this kind, by its name.
    pub(super) fn hash(&self, name: &str) -> u64 {
        let mut hash = Xxh64::new(0);
        hash.update(self.root.as_bytes());
        hash.update(name.as_bytes());
        hash.digest()
    }
}

/// As Envoy writes dynamic parts of names: a colon would end the name in `/stats`.
pub fn sanitize(name: &str) -> String {
    let name = name.trim_end_matches('.');
    name.replace("://", "_").replace(":/", "_").replace([':', '\0'], "_")
}

/// Made by [`stats!`](crate::stats!), never by hand.
pub trait List: 'static {
    /// Counters and gauges, and one word more if there are gauges.
    const WORDS: usize;
    type Lines: AsRef<[Line]> + Send + Sync + 'static;
    type Histograms: AsRef<[OnceCell<Arc<HistogramBlock>>]>;
    /// The list under each of its prefixes.
    fn descriptors() -> &'static [Descriptor];
    fn lines() -> Arc<Self::Lines>;
    fn erase(lines: Arc<Self::Lines>) -> Arc<[Line]>;
    fn histograms() -> Self::Histograms;
}

macro_rules! index {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty),* }) => {
        $(#[$meta])*
        pub struct $name<L> { $(pub(super) $field: $type,)* list: PhantomData<fn() -> L> }
        impl<L> $name<L> {
            #[doc(hidden)]
            pub const fn new($($field: $type),*) -> Self { Self { $($field,)* list: PhantomData } }
        }
        impl<L> Clone for $name<L> { fn clone(&self) -> Self { *self } }
        impl<L> Copy for $name<L> {}
        impl<L> fmt::Debug for $name<L> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &self.$field))*.finish()
            }
        }
    };
}

index!(/** A counter of list `L`. */ Counter { slot: u16 });
index!(/** A gauge of list `L`. */ Gauge { slot: u16, bit: u8 });
index!(/** A histogram of list `L`. */ Histogram { slot: u16 });

/// For [`stats!`](crate::stats!): where the stat number `ordinal` stands among its like.
pub const fn slot_of(kinds: &[Kind], ordinal: usize) -> u16 {
    let histogram = matches!(kinds[ordinal], Kind::Histogram(_));
    let mut slot = 0;
    let mut i = 0;
    while i < ordinal {
        if matches!(kinds[i], Kind::Histogram(_)) == histogram {
            slot += 1;
        }
        i += 1;
    }
    slot
}

#[doc(hidden)]
pub const fn gauges_before(kinds: &[Kind], ordinal: usize) -> u8 {
    let mut gauges = 0;
    let mut i = 0;
    while i < ordinal {
        if matches!(kinds[i], Kind::Gauge) {
            gauges += 1;
        }
        i += 1;
    }
    assert!(gauges <= 64, "a list has at most 64 gauges: split it");
    gauges
}

#[doc(hidden)]
pub const fn histograms_in(kinds: &[Kind]) -> usize {
    let mut histograms = 0;
    let mut i = 0;
    while i < kinds.len() {
        if matches!(kinds[i], Kind::Histogram(_)) {
            histograms += 1;
        }
        i += 1;
    }
    histograms
}

/// For [`stats!`](crate::stats!): the index's name as the stat's name.
pub const fn lowercase<const N: usize>(upper: &str) -> [u8; N] {
    let bytes = upper.as_bytes();
    let mut lower = [0; N];
    let mut i = 0;
    while i < N {
        lower[i] = bytes[i].to_ascii_lowercase();
        i += 1;
    }
    lower
}

/// Declares a list of stats.
///
/// ```
/// nuncio_core::stats! {
///     /// What one dog did.
///     pub Dog {
///         counter BARKS;
///         gauge BONES_BURIED;
///         histogram(milliseconds) NAP_MS;
///         counter CATS_SEEN = "cats.seen";
///     }
/// }
/// # fn main() {}
/// ```
///
/// The name is the index in lower case unless it is given. `pub Dog at ["", "puppy."] { … }` makes one list that an
/// object may hold under several prefixes (`Stats::under`).
#[macro_export]
macro_rules! stats {
    (@kind counter) => { $crate::stats::Kind::Counter };
    (@kind gauge) => { $crate::stats::Kind::Gauge };
    (@kind histogram unspecified) => { $crate::stats::Kind::Histogram($crate::stats::Unit::Unspecified) };
    (@kind histogram bytes) => { $crate::stats::Kind::Histogram($crate::stats::Unit::Bytes) };
    (@kind histogram microseconds) => { $crate::stats::Kind::Histogram($crate::stats::Unit::Microseconds) };
    (@kind histogram milliseconds) => { $crate::stats::Kind::Histogram($crate::stats::Unit::Milliseconds) };
    (@kind histogram percent) => { $crate::stats::Kind::Histogram($crate::stats::Unit::Percent) };
    (@index counter $list:ident) => { $crate::stats::Counter<$list> };
    (@index gauge $list:ident) => { $crate::stats::Gauge<$list> };
    (@index histogram $list:ident) => { $crate::stats::Histogram<$list> };
    (@make counter $list:ident $ordinal:expr) => {
        $crate::stats::Counter::new($crate::stats::slot_of($list::KINDS, $ordinal))
    };
    (@make gauge $list:ident $ordinal:expr) => {
        $crate::stats::Gauge::new(
            $crate::stats::slot_of($list::KINDS, $ordinal),
            $crate::stats::gauges_before($list::KINDS, $ordinal),
        )
    };
    (@make histogram $list:ident $ordinal:expr) => {
        $crate::stats::Histogram::new($crate::stats::slot_of($list::KINDS, $ordinal))
    };
    (@name $index:ident $name:literal) => { $name };
    (@name $index:ident) => {{
        const UPPER: &str = stringify!($index);
        const LOWER: [u8; UPPER.len()] = $crate::stats::lowercase(UPPER);
        match ::core::str::from_utf8(&LOWER) {
            Ok(name) => name,
            Err(_) => panic!("an index is ASCII"),
        }
    }};
    (@prefixes) => { [""] };
    (@prefixes $($prefix:literal)+) => { [$($prefix),+] };
    (
        $(#[$meta:meta])*
        $vis:vis $list:ident $(at [$($prefix:literal),+ $(,)?])? {
            $($(#[$doc:meta])* $kind:ident $(($unit:ident))? $index:ident $(= $name:literal)?;)*
        }
    ) => {
        $(#[$meta])*
        $vis enum $list {}
        $($(#[$doc])* $vis const $index: $crate::stats!(@index $kind $list) =
            $crate::stats!(@make $kind $list $list::ORDINALS.$index);)*
        const _: () = {
            use $crate::stats as api;
            #[allow(non_snake_case)]
            #[doc(hidden)]
            pub struct Ordinals { $($index: usize,)* }
            #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
            enum Order { $($index,)* Count }
            impl $list {
                const KINDS: &'static [api::Kind] = &[$($crate::stats!(@kind $kind $($unit)?)),*];
                const ORDINALS: Ordinals = Ordinals { $($index: Order::$index as usize,)* };
                const STATS: &'static [api::Stat] = &[$(api::Stat {
                    name: $crate::stats!(@name $index $($name)?),
                    kind: Self::KINDS[Order::$index as usize],
                    slot: api::slot_of(Self::KINDS, Order::$index as usize),
                    bit: api::gauges_before(Self::KINDS, Order::$index as usize),
                }),*];
                const GAUGES: usize = api::gauges_before(Self::KINDS, Self::KINDS.len()) as usize;
                const HISTOGRAMS: usize = api::histograms_in(Self::KINDS);
                const PREFIXES: &'static [&'static str] = &$crate::stats!(@prefixes $($($prefix)+)?);
            }
            impl api::List for $list {
                const WORDS: usize = Order::Count as usize - $list::HISTOGRAMS + ($list::GAUGES > 0) as usize;
                type Lines = [api::Line; api::lines_for(<$list as api::List>::WORDS)];
                type Histograms =
                    [::std::cell::OnceCell<::std::sync::Arc<api::HistogramBlock>>; $list::HISTOGRAMS];
                fn descriptors() -> &'static [api::Descriptor] {
                    static LISTS: [api::Descriptor; $list::PREFIXES.len()] = {
                        let mut lists = [const {
                            api::Descriptor {
                                prefix: "",
                                shape: api::Shape::Declared {
                                    stats: $list::STATS,
                                    words: <$list as api::List>::WORDS as u16,
                                    histograms: $list::HISTOGRAMS as u16,
                                    gauges: $list::GAUGES as u16,
                                },
                            }
                        }; $list::PREFIXES.len()];
                        let mut i = 0;
                        while i < lists.len() {
                            lists[i].prefix = $list::PREFIXES[i];
                            i += 1;
                        }
                        lists
                    };
                    &LISTS
                }
                fn lines() -> ::std::sync::Arc<Self::Lines> {
                    ::std::sync::Arc::new([const { api::Line::zero() }; api::lines_for(<$list as api::List>::WORDS)])
                }
                fn erase(lines: ::std::sync::Arc<Self::Lines>) -> ::std::sync::Arc<[api::Line]> {
                    lines
                }
                fn histograms() -> Self::Histograms {
                    [const { ::std::cell::OnceCell::new() }; $list::HISTOGRAMS]
                }
            }
        };
    };
}
