//! Rules on things that have an order: numbers, durations, times.

use crate::shape::FieldKind;
use crate::wire::Wire;

#[derive(Debug, Clone)]
pub(crate) struct Bounds<T> {
    pub(super) equal: Option<T>,
    pub(super) lt: Option<T>,
    pub(super) lte: Option<T>,
    pub(super) gt: Option<T>,
    pub(super) gte: Option<T>,
    pub(super) of: Vec<T>,
    pub(super) not_of: Vec<T>,
    pub(super) ignore_empty: bool,
}

impl<T> Default for Bounds<T> {
    fn default() -> Self {
        Self {
            equal: None,
            lt: None,
            lte: None,
            gt: None,
            gte: None,
            of: Vec::new(),
            not_of: Vec::new(),
            ignore_empty: false,
        }
    }
}

impl<T: PartialOrd + Copy + Default> Bounds<T> {
    pub(crate) fn check(&self, value: T, show: impl Fn(&T) -> String) -> Option<String> {
        if self.ignore_empty && value == T::default() {
            return None;
        }
        if let Some(equal) = self.equal.filter(|e| *e != value) {
            return Some(format!("must be {}, is {}", show(&equal), show(&value)));
        }
        if !self.in_range(value) {
            return Some(format!("must be {}, is {}", self.range(&show), show(&value)));
        }
        let list = |all: &[T]| all.iter().map(&show).collect::<Vec<_>>().join(", ");
        if !self.of.is_empty() && !self.of.contains(&value) {
            return Some(format!("must be one of {}, is {}", list(&self.of), show(&value)));
        }
        self.not_of.contains(&value).then(|| format!("must not be one of {}", list(&self.not_of)))
    }

    /// A lower bound above the upper one means: outside of what is between.
    fn in_range(&self, value: T) -> bool {
        let above = self.gt.is_none_or(|b| value > b) && self.gte.is_none_or(|b| value >= b);
        let below = self.lt.is_none_or(|b| value < b) && self.lte.is_none_or(|b| value <= b);
        if self.is_outside() { above || below } else { above && below }
    }

    fn is_outside(&self) -> bool {
        matches!((self.gt.or(self.gte), self.lt.or(self.lte)), (Some(low), Some(high)) if low > high)
    }

    fn range(&self, show: impl Fn(&T) -> String) -> String {
        let parts: Vec<String> = [(self.gt, ">"), (self.gte, ">="), (self.lt, "<"), (self.lte, "<=")]
            .into_iter()
            .filter_map(|(bound, sign)| Some(format!("{sign} {}", show(&bound?))))
            .collect();
        parts.join(if self.is_outside() { " or " } else { " and " })
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Number {
    Whole(Bounds<i128>),
    Float(Bounds<f64>),
}

impl Number {
    pub(crate) fn check(&self, value: Wire<'_>, kind: &FieldKind) -> Option<String> {
        match self {
            Self::Whole(bounds) => bounds.check(whole(value, kind)?, i128::to_string),
            Self::Float(bounds) => bounds.check(float(value)?, f64::to_string),
        }
    }
}

/// The integer that stands on the wire for a field of this kind.
pub(crate) fn whole(value: Wire<'_>, kind: &FieldKind) -> Option<i128> {
    let unzigzag = |n: u64| (n >> 1) as i64 ^ -((n & 1) as i64);
    Some(match (value, kind) {
        (Wire::Varint(n), FieldKind::Sint32 | FieldKind::Sint64) => unzigzag(n).into(),
        (Wire::Varint(n), FieldKind::Int32 | FieldKind::Enum(_)) => (n as i32).into(),
        (Wire::Varint(n), FieldKind::Int64) => (n as i64).into(),
        (Wire::Varint(n), FieldKind::Uint32) => (n as u32).into(),
        (Wire::Varint(n), _) => n.into(),
        (Wire::Fixed64(n), FieldKind::Sfixed64) => (n as i64).into(),
        (Wire::Fixed64(n), _) => n.into(),
        (Wire::Fixed32(n), FieldKind::Sfixed32) => (n as i32).into(),
        (Wire::Fixed32(n), _) => n.into(),
        (Wire::Bytes(_), _) => return None,
    })
}

fn float(value: Wire<'_>) -> Option<f64> {
    match value {
        Wire::Fixed64(bits) => Some(f64::from_bits(bits)),
        Wire::Fixed32(bits) => Some(f32::from_bits(bits).into()),
        _ => None,
    }
}
