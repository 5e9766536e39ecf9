//! The `date` header, formatted once a second per worker (RFC 9110 §5.6.7, IMF-fixdate).

use std::cell::{Cell, RefCell};
use std::time::{Duration, UNIX_EPOCH};

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
            let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
            // IMF-fixdate is 29 characters until the year 9999.
            if let Ok(text) = text.as_bytes().try_into() {
                *self.text.borrow_mut() = text;
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
