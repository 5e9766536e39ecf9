//! How much a peer may send before something of it was passed on.
//!
//! The connection's window is what bounds memory: it begins at the buffer limit, below the
//! configured size, and doubles up to it for peers whose bytes are passed on as they come, and
//! where one stream's unread bytes would hold up the others.

use super::options::Http2Options;
use super::shared::Shared;

/// The protocol's own initial window.
const LEAST: u32 = 65_535;

#[derive(Debug)]
pub(super) struct Window {
    size: u32,
    most: u32,
    /// Received when it last grew.
    grown_at: u64,
}

impl Window {
    pub(super) fn new(options: &Http2Options, buffer_limit: u32) -> Self {
        let most = options.initial_connection_window.max(LEAST);
        Self { size: buffer_limit.clamp(LEAST, most), most, grown_at: 0 }
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// The new size, if it is time.
    pub(super) fn grown(&mut self, shared: &Shared) -> Option<u32> {
        if self.size >= self.most {
            return None;
        }
        let (received, held, size) = (shared.body_received.get(), shared.held(), u64::from(self.size));
        let keeps_up = received - self.grown_at > size && held < size / 4;
        let starves_others = shared.streams() > 1 && held > size / 4 * 3;
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
        let shared = Shared::new(1024 * 1024);
        shared.stream_opened();
        assert_eq!((window.size(), window.grown(&shared)), (1 << 20, None));
        shared.body_received.set(1 << 20);
        assert_eq!(window.grown(&shared), None, "nothing was passed on");
        shared.body_received.set((1 << 20) + 1);
        shared.released(1 << 20);
        assert_eq!(window.grown(&shared), Some(2 << 20));
        shared.body_received.set(3 << 20);
        assert_eq!(window.grown(&shared), None);
        shared.stream_opened();
        assert_eq!(window.grown(&shared), Some(4 << 20), "a second stream may not starve");
    }

    #[test]
    fn it_never_exceeds_what_is_configured() {
        let options = Http2Options { initial_connection_window: 100_000, ..Http2Options::default() };
        let mut window = Window::new(&options, 1024 * 1024);
        assert_eq!(window.size(), 100_000);
        let shared = Shared::new(1024 * 1024);
        shared.body_received.set(1 << 30);
        shared.released(1 << 30);
        assert_eq!(window.grown(&shared), None);
    }
}
