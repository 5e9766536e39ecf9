//! The chunked transfer coding, decoded in place: the data of many small chunks comes out as one
//! slice, so that it goes on in one write.
//!
//! Stricter than Envoy, which lets garbage follow a chunk's data and bounds extensions by nothing:
//! every line ends in CRLF, a size is followed by blanks, an extension or the line's end only, and
//! the extensions of one body are at most 16 KiB in total. Extensions are never passed on.

/// Extension bytes, blanks and leading zeros that one body may spend.
const MAX_EXTENSION_BYTES: u16 = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first digit of a size.
    Size,
    Digits,
    /// Blanks after the size.
    Blank,
    Extension,
    /// CR of the size line seen.
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// After the last chunk: a CR here ends the body without trailers.
    Last,
    LastLf,
    Trailers,
    End,
}

/// Decoder of one body.
#[derive(Debug)]
pub(crate) struct ChunkDecoder {
    state: State,
    spent: u16,
    /// Of the chunk: its size so far, then the bytes still to come.
    remaining: u64,
}

/// What a call made of its buffer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// The body's bytes, moved to the front of the buffer.
    pub(crate) data: usize,
    /// What follows is not this decoder's: trailers, or the next message.
    pub(crate) consumed: usize,
    pub(crate) until: Until,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Everything was consumed.
    More,
    /// A trailer section begins at `consumed`.
    Trailers,
    End,
}

/// Bytes that are no chunked body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadChunk;

impl ChunkDecoder {
    pub(crate) fn new() -> Self {
        Self { state: State::Size, spent: 0, remaining: 0 }
    }

    /// Decodes `buf` in place.
    pub(crate) fn decode(&mut self, buf: &mut [u8]) -> Result<Decoded, BadChunk> {
        let (mut at, mut data) = (0, 0);
        while at < buf.len() {
            match self.state {
                State::Data => {
                    let n = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(buf.len() - at);
                    if at != data {
                        buf.copy_within(at..at + n, data);
                    }
                    at += n;
                    data += n;
                    self.remaining -= n as u64;
                    if self.remaining == 0 {
                        self.state = State::DataCr;
                    }
                }
                State::Trailers => return Ok(Decoded { data, consumed: at, until: Until::Trailers }),
                State::End => return Ok(Decoded { data, consumed: at, until: Until::End }),
                // The byte belongs to the trailer section.
                State::Last if !matches!(buf[at], b'\r' | b'\n') => self.state = State::Trailers,
                _ => {
                    self.step(buf[at])?;
                    at += 1;
                }
            }
        }
        let until = match self.state {
            State::Trailers => Until::Trailers,
            State::End => Until::End,
            _ => Until::More,
        };
        Ok(Decoded { data, consumed: at, until })
    }

    /// One byte of the framing around data.
    fn step(&mut self, byte: u8) -> Result<(), BadChunk> {
        self.state = match (self.state, byte) {
            (State::Size | State::Digits, b) if b.is_ascii_hexdigit() => {
                if self.remaining == 0 && self.state == State::Digits {
                    self.spend()?;
                }
                if self.remaining >> 60 != 0 {
                    return Err(BadChunk);
                }
                let digit = (b as char).to_digit(16).ok_or(BadChunk)?;
                self.remaining = self.remaining << 4 | u64::from(digit);
                State::Digits
            }
            (State::Digits | State::Blank | State::Extension, b'\r') => State::SizeLf,
            (State::Digits | State::Blank, b';') => State::Extension,
            (State::Digits | State::Blank, b' ' | b'\t') => {
                self.spend()?;
                State::Blank
            }
            (State::Extension, b) if b == b'\t' || (b >= b' ' && b != 0x7f) => {
                self.spend()?;
                State::Extension
            }
            (State::SizeLf, b'\n') if self.remaining == 0 => State::Last,
            (State::SizeLf, b'\n') => State::Data,
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size,
            (State::Last, b'\r') => State::LastLf,
            (State::LastLf, b'\n') => State::End,
            _ => return Err(BadChunk),
        };
        Ok(())
    }

    fn spend(&mut self) -> Result<(), BadChunk> {
        self.spent += 1;
        if self.spent > MAX_EXTENSION_BYTES { Err(BadChunk) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
