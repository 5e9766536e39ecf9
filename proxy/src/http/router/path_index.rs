//! Finds, in a virtual host with many routes, those whose path can match, in their order.
//!
//! Routes with an exact path or a prefix are found by hash in one pass over the path; all others
//! (regexes, templates, ignored case, CONNECT) are candidates always. The lists of candidates are
//! merged by number, so the first that matches is the one a scan in order would have found.

use super::names::{Names, SEED, hash, step};
use super::route_match::{PathKey, RouteMatch};

/// Below this a scan in order is as fast.
const WORTH_IT: usize = 8;
/// More lists than this for one path, and the caller scans.
const MAX_LISTS: usize = 24;

#[derive(Debug, Default)]
pub(super) struct PathIndex {
    exact: Names,
    longest_exact: usize,
    prefixes: Names,
    /// The distinct lengths of prefixes, ascending.
    lengths: Vec<u32>,
    /// Where each list begins in `routes`; one more for the end.
    starts: Box<[u32]>,
    /// Route numbers, list after list, ascending inside each.
    routes: Box<[u32]>,
    always: Box<[u32]>,
}

/// The path was too entangled to look up; scan instead.
pub(super) struct ScanInstead;

impl PathIndex {
    /// `None` if the routes are few.
    pub(super) fn build<'a>(routes: impl ExactSizeIterator<Item = &'a RouteMatch>) -> Option<Self> {
        if routes.len() < WORTH_IT {
            return None;
        }
        let mut index = Self::default();
        let mut lists: Vec<Vec<u32>> = Vec::new();
        let mut always = Vec::new();
        for (i, route) in routes.enumerate() {
            let (names, key) = match route.key() {
                PathKey::Exact(key) => {
                    index.longest_exact = index.longest_exact.max(key.len());
                    (&mut index.exact, key)
                }
                PathKey::Prefix(key) => {
                    if let Err(at) = index.lengths.binary_search(&(key.len() as u32)) {
                        index.lengths.insert(at, key.len() as u32);
                    }
                    (&mut index.prefixes, key)
                }
                PathKey::None => {
                    always.push(i as u32);
                    continue;
                }
            };
            match names.insert(hash(key.iter().copied()), key, lists.len() as u32) {
                Ok(()) => lists.push(vec![i as u32]),
                Err(list) => lists[list as usize].push(i as u32),
            }
        }
        index.exact.shrink();
        index.prefixes.shrink();
        index.lengths.shrink_to_fit();
        let ends = lists.iter().scan(0, |end, list| {
            *end += list.len() as u32;
            Some(*end)
        });
        index.starts = std::iter::once(0).chain(ends).collect();
        index.routes = lists.concat().into();
        index.always = always.into();
        Some(index)
    }

    /// The first route that `matches`, among those whose key fits `path` (no query).
    pub(super) fn first(&self, path: &[u8], mut matches: impl FnMut(u32) -> bool) -> Result<Option<u32>, ScanInstead> {
        let mut lists: [&[u32]; MAX_LISTS] = [&[]; MAX_LISTS];
        let used = self.candidates(path, &mut lists)?;
        let lists = &mut lists[..used];
        loop {
            let next = lists.iter_mut().filter(|l| !l.is_empty()).min_by_key(|l| l[0]);
            let Some(list) = next else { return Ok(None) };
            let route = list[0];
            *list = &list[1..];
            if matches(route) {
                return Ok(Some(route));
            }
        }
    }

    fn list(&self, number: u32) -> &[u32] {
        let number = number as usize;
        &self.routes[self.starts[number] as usize..self.starts[number + 1] as usize]
    }

    fn candidates<'a>(&'a self, path: &[u8], lists: &mut [&'a [u32]; MAX_LISTS]) -> Result<usize, ScanInstead> {
        let mut used = 0;
        let mut push = |list: &'a [u32]| {
            *lists.get_mut(used).ok_or(ScanInstead)? = list;
            used += 1;
            Ok(())
        };
        push(&self.always)?;
        let (mut state, mut hashed) = (SEED, 0);
        for &len in &self.lengths {
            let len = len as usize;
            if len > path.len() {
                break;
            }
            while hashed < len {
                state = step(state, path[hashed]);
                hashed += 1;
            }
            if let Some(list) = self.prefixes.get(state, &path[..len]) {
                push(self.list(list))?;
            }
        }
        if path.len() <= self.longest_exact {
            let state = path[hashed..].iter().fold(state, |state, b| step(state, *b));
            if let Some(list) = self.exact.get(state, path) {
                push(self.list(list))?;
            }
        }
        Ok(used)
    }
}
