//! Sums by small number, where most are zero: histogram buckets and status codes.

/// Sums in ascending order of their key. A key that once counted stays, even if its sum is zero again: that is what
/// "used" means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sparse(Vec<(u16, u64)>);

impl Sparse {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds with wrapping; zero for a new key is no use.
    pub fn add(&mut self, key: u16, n: u64) {
        if n == 0 {
            return;
        }
        match self.0.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => self.0[at].1 = self.0[at].1.wrapping_add(n),
            Err(at) => self.0.insert(at, (key, n)),
        }
    }

    pub fn add_all(&mut self, other: &Sparse) {
        for (key, n) in &other.0 {
            self.add(*key, *n);
        }
    }

    pub fn get(&self, key: u16) -> u64 {
        self.0.binary_search_by_key(&key, |(key, _)| *key).map_or(0, |at| self.0[at].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.0.iter().copied()
    }

    /// What came on top of `before`, which held no key that is not here.
    pub fn since(&self, before: &Sparse) -> Sparse {
        Sparse(self.iter().map(|(key, n)| (key, n.wrapping_sub(before.get(key)))).filter(|(_, n)| *n != 0).collect())
    }

    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, n)| sum.wrapping_add(*n))
    }
}
