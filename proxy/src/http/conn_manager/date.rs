//! The `date` header, formatted once a second per worker (RFC 9110 §5.6.7, IMF-fixdate).

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::time::Duration;

use crate::calendar::Date;

/// The last formatted second.
#[derive(Default)]
pub struct DateCache {
    second: Cell<u64>,
    text: RefCell<[u8; 29]>,
}

impl DateCache {
    /// The text for `since_epoch`.
    pub fn text(&self, since_epoch: Duration) -> [u8; 29] {
        let second = since_epoch.as_secs();
        if self.second.get() != second {
            // IMF-fixdate is 29 characters until the year 9999.
            let mut text = self.text.borrow_mut();
            if write!(&mut text[..], "{}", Date::new(since_epoch).http()).is_ok() {
                self.second.set(second);
            }
        }
        *self.text.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_the_example_of_rfc_9110() {
        let cache = DateCache::default();
        let text = cache.text(Duration::from_secs(784_111_777));
        assert_eq!(&text, b"Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
