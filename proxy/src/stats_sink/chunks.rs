//! Output that leaves in bounded pieces.

/// No piece is larger.
pub const CHUNK: usize = 64 * 1024;
/// What one stat usually needs at most: sending begins before the chunk is full.
const ROOM: usize = 4 * 1024;

/// The reader wants no more.
#[derive(Debug)]
pub(super) struct Gone;

pub(super) struct Chunks<'a> {
    /// Write here, then call `settle`.
    pub(super) text: String,
    send: &'a mut dyn FnMut(Vec<u8>) -> bool,
}

impl<'a> Chunks<'a> {
    pub(super) fn new(send: &'a mut dyn FnMut(Vec<u8>) -> bool) -> Self {
        Self { text: String::with_capacity(CHUNK), send }
    }

    /// After each stat.
    pub(super) fn settle(&mut self) -> Result<(), Gone> {
        if self.text.len() < CHUNK - ROOM { Ok(()) } else { self.send_all() }
    }

    pub(super) fn finish(mut self) -> Result<(), Gone> {
        self.send_all()
    }

    fn send_all(&mut self) -> Result<(), Gone> {
        let text = std::mem::replace(&mut self.text, String::with_capacity(CHUNK)).into_bytes();
        if text.len() <= CHUNK {
            return self.send_one(text);
        }
        text.chunks(CHUNK).try_for_each(|piece| self.send_one(piece.to_vec()))
    }

    fn send_one(&mut self, piece: Vec<u8>) -> Result<(), Gone> {
        if piece.is_empty() || (self.send)(piece) { Ok(()) } else { Err(Gone) }
    }
}
