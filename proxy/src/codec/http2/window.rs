//! How much a peer may send before something of it was passed on.
//!
//! The connection's window is what bounds memory: it begins at the buffer limit, below the
//! configured size, and doubles up to it for peers whose bytes are passed on as they come, and
//! where one stream's unread bytes would hold up the others.

use super::frame::FIRST_WINDOW;
use super::options::Http2Options;

#[derive(Debug)]
pub(super) struct Window {
    size: u32,
    most: u32,
    /// Received when it last grew.
    grown_at: u64,
}

impl Window {
    pub(super) fn new(options: &Http2Options, buffer_limit: u32) -> Self {
        let most = options.initial_connection_window.max(FIRST_WINDOW);
        Self { size: buffer_limit.clamp(FIRST_WINDOW, most), most, grown_at: 0 }
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// The new size, if it is time: so many body bytes were `received`, so many of them not passed on yet, and so
    /// many streams are alive.
    pub(super) fn grown(&mut self, received: u64, held: u64, streams: usize) -> Option<u32> {
        if self.size >= self.most {
            return None;
        }
        let size = u64::from(self.size);
        let keeps_up = received - self.grown_at > size && held < size / 4;
        let starves_others = streams > 1 && held > size / 4 * 3;
        if !keeps_up && !starves_others {
            return None;
        }
        self.size = self.size.saturating_mul(2).min(self.most);
        self.grown_at = received;
        Some(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_for_readers_that_keep_up_and_not_for_one_that_does_not() {
        let mut window = Window::new(&Http2Options::default(), 1024 * 1024);
        assert_eq!((window.size(), window.grown(0, 0, 1)), (1 << 20, None));
        assert_eq!(window.grown(1 << 20, 1 << 20, 1), None, "nothing was passed on");
        assert_eq!(window.grown((1 << 20) + 1, 1, 1), Some(2 << 20));
        assert_eq!(window.grown(3 << 20, 2 << 20, 1), None);
        assert_eq!(window.grown(3 << 20, 2 << 20, 2), Some(4 << 20), "a second stream may not starve");
    }

    #[test]
    fn it_never_exceeds_what_is_configured() {
        let options = Http2Options { initial_connection_window: 100_000, ..Http2Options::default() };
        let mut window = Window::new(&options, 1024 * 1024);
        assert_eq!(window.size(), 100_000);
        assert_eq!(window.grown(1 << 30, 0, 1), None);
    }
}
