//! Content codings: the libraries that the compressor and the decompressor filter are configured with
//! (`envoy.compression.{gzip,brotli,zstd}.{compressor,decompressor}`).
//!
//! A coder takes body bytes as they come. Compressed data is flushed at the end of each piece, so that a
//! response that streams goes on streaming. What a decoder may make of its input is bounded: at most
//! `max_inflate_ratio` times as many bytes (100 unless configured), whatever the coding.

mod brotli;
mod gzip;
mod zstd;

use std::io::{self, Write};

use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_core::error::ConfigError;

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&[&Entry]] = &[gzip::SUPPORTED, brotli::SUPPORTED, zstd::SUPPORTED];

/// A body that is being compressed.
pub trait Encoder {
    /// Compresses `input` and appends all that it makes to `out`; with `last`, the end of the coding too.
    fn push(&mut self, input: &[u8], last: bool, out: &mut Vec<u8>) -> io::Result<()>;
}

/// A body that is being decompressed. An error is a damaged body, or one that grows beyond `out`'s limit.
pub trait Decoder {
    fn push(&mut self, input: &[u8], out: Limited) -> io::Result<Limited>;

    /// There is no more: an error if the coding is not complete.
    fn end(&mut self, out: Limited) -> io::Result<Limited>;
}

/// What all codings have in common, by the type of their configuration.
trait Library: Sync {
    /// Value of `content-encoding`.
    fn encoding(&self) -> &'static str;
    fn compressor_type(&self) -> &'static str;
    fn decompressor_type(&self) -> &'static str;
    fn compressor(&self, config: &ProtoAny) -> Result<MakeEncoder, ConfigError>;
    fn decompressor(&self, config: &ProtoAny) -> Result<MakeDecoder, ConfigError>;
}

type MakeEncoder = Box<dyn Fn() -> io::Result<Box<dyn Encoder>> + Send + Sync>;
type MakeDecoder = Box<dyn Fn() -> io::Result<Box<dyn Decoder>> + Send + Sync>;

static LIBRARIES: &[&dyn Library] = &[&gzip::Gzip, &brotli::Brotli, &zstd::Zstd];

/// A checked `compressor_library`.
pub struct Compressor {
    pub encoding: &'static str,
    make: MakeEncoder,
}

impl Compressor {
    pub fn new(config: &ProtoAny) -> Result<Self, ConfigError> {
        let library = find(config, |library| library.compressor_type())?;
        Ok(Self { encoding: library.encoding(), make: library.compressor(config)? })
    }

    pub fn stats_name(&self) -> &'static str {
        stats_name(self.encoding)
    }

    pub fn start(&self) -> io::Result<Box<dyn Encoder>> {
        (self.make)()
    }
}

/// A checked `decompressor_library`.
pub struct Decompressor {
    pub encoding: &'static str,
    make: MakeDecoder,
    ratio: u64,
}

impl Decompressor {
    pub fn new(config: &ProtoAny) -> Result<Self, ConfigError> {
        let library = find(config, |library| library.decompressor_type())?;
        let ratio = gzip::max_inflate_ratio(config).unwrap_or(MAX_INFLATE_RATIO);
        Ok(Self { encoding: library.encoding(), make: library.decompressor(config)?, ratio })
    }

    pub fn stats_name(&self) -> &'static str {
        stats_name(self.encoding)
    }

    pub fn start(&self) -> io::Result<Inflate> {
        Ok(Inflate { decoder: (self.make)()?, ratio: self.ratio, taken: 0, made: 0 })
    }
}

/// As Envoy's libraries call themselves in names of stats.
fn stats_name(encoding: &'static str) -> &'static str {
    if encoding == "br" { "brotli" } else { encoding }
}

fn find(
    config: &ProtoAny,
    type_of: impl Fn(&dyn Library) -> &'static str,
) -> Result<&'static dyn Library, ConfigError> {
    let message = config.type_url.rsplit('/').next().unwrap_or_default();
    LIBRARIES.iter().copied().find(|library| type_of(*library) == message).ok_or_else(|| {
        ConfigError::new("typed_config", format!("Didn't find a registered implementation for type: '{message}'"))
    })
}

/// Envoy's default, there for gzip and brotli.
const MAX_INFLATE_RATIO: u64 = 100;
/// A body of a few bytes may become this large in any case.
const ALWAYS_ALLOWED: u64 = 64 * 1024;

/// A body that is being decompressed, within its bound.
pub struct Inflate {
    decoder: Box<dyn Decoder>,
    ratio: u64,
    /// Bytes in and out so far.
    taken: u64,
    made: u64,
}

impl Inflate {
    /// The bytes that `input` stands for.
    pub fn push(&mut self, input: &[u8]) -> io::Result<Vec<u8>> {
        self.taken += input.len() as u64;
        let room = self.room();
        let out = self.decoder.push(input, room)?;
        self.made += out.bytes.len() as u64;
        Ok(out.bytes)
    }

    pub fn end(&mut self) -> io::Result<Vec<u8>> {
        let room = self.room();
        Ok(self.decoder.end(room)?.bytes)
    }

    fn room(&self) -> Limited {
        let allowed = self.taken.saturating_mul(self.ratio).saturating_add(ALWAYS_ALLOWED);
        Limited { bytes: Vec::new(), left: allowed.saturating_sub(self.made) }
    }
}

/// Takes so many bytes and no more.
#[derive(Debug, Default)]
pub struct Limited {
    bytes: Vec<u8>,
    left: u64,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) => self.left = left,
            None => return Err(io::Error::other("decompressed data is too large for what it came from")),
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::prost::Message;

    fn any(what: &str, part: &str, value: Vec<u8>) -> ProtoAny {
        let name = format!("{}{}", what[..1].to_uppercase(), &what[1..]);
        ProtoAny { type_url: format!("t/envoy.extensions.compression.{what}.{part}.v3.{name}"), value }
    }

    fn compressed(what: &str, pieces: &[&[u8]]) -> Vec<u8> {
        let mut encoder = Compressor::new(&any(what, "compressor", Vec::new())).unwrap().start().unwrap();
        let mut out = Vec::new();
        pieces.iter().for_each(|piece| encoder.push(piece, false, &mut out).unwrap());
        encoder.push(&[], true, &mut out).unwrap();
        out
    }

    fn inflate(what: &str) -> Inflate {
        Decompressor::new(&any(what, "decompressor", Vec::new())).unwrap().start().unwrap()
    }

    #[test]
    fn what_was_compressed_comes_back_whatever_the_pieces() {
        let line = |n: u32| format!("The quick brown fox {}, and what it jumped over.\n", n * n);
        let text = (0..1_000).map(line).collect::<String>().into_bytes();
        for what in ["gzip", "brotli", "zstd"] {
            let small = compressed(what, &[&text[..10], &text[10..7_000], &text[7_000..]]);
            assert!(small.len() < text.len() / 3, "{what}: {}", small.len());
            for size in [1, 100, small.len()] {
                let mut inflate = inflate(what);
                let mut plain = Vec::new();
                small.chunks(size).for_each(|piece| plain.extend(inflate.push(piece).unwrap()));
                plain.extend(inflate.end().unwrap());
                assert_eq!(plain, text, "{what} in pieces of {size}");
            }
        }
    }

    #[test]
    fn each_piece_can_be_read_before_the_next_is_there() {
        for what in ["gzip", "brotli", "zstd"] {
            let mut encoder = Compressor::new(&any(what, "compressor", Vec::new())).unwrap().start().unwrap();
            let mut inflate = inflate(what);
            for piece in [&b"first"[..], b"second"] {
                let mut out = Vec::new();
                encoder.push(piece, false, &mut out).unwrap();
                assert_eq!(inflate.push(&out).unwrap(), piece, "{what}");
            }
        }
    }

    #[test]
    fn a_bomb_is_an_error_before_it_takes_memory() {
        let zeros = vec![0; 8 << 20];
        for what in ["gzip", "brotli", "zstd"] {
            let bomb = compressed(what, &[&zeros]);
            assert!(bomb.len() < 20_000, "{what}: {}", bomb.len());
            assert!(inflate(what).push(&bomb).is_err(), "{what}");
        }
    }

    #[test]
    fn damage_and_a_missing_end_are_errors() {
        let text = b"something that is worth being compressed, or that is not".repeat(20);
        for what in ["gzip", "brotli", "zstd"] {
            let mut short = inflate(what);
            let whole = compressed(what, &[&text]);
            assert!(short.push(&whole[..whole.len() - 3]).is_ok(), "{what}");
            assert!(short.end().is_err(), "{what}: no end");
            let mut noise = inflate(what);
            assert!(noise.push(b"this is no compressed data at all").and_then(|_| noise.end()).is_err(), "{what}");
        }
    }

    #[test]
    fn the_ratio_is_configured_for_gzip() {
        use nuncio_api::pb::envoy::extensions::compression::gzip::decompressor::v3::Gzip;
        use nuncio_api::pb::google::protobuf::UInt32Value;
        let wide = Gzip { max_inflate_ratio: Some(UInt32Value { value: 2_000 }), ..Gzip::default() };
        let bomb = compressed("gzip", &[&vec![0; 1 << 20]]);
        let config = any("gzip", "decompressor", wide.encode_to_vec());
        let mut inflate = Decompressor::new(&config).unwrap().start().unwrap();
        assert_eq!(inflate.push(&bomb).unwrap().len(), 1 << 20);
    }

    // RFC 1952: members one behind another are one body.
    #[test]
    fn gzip_members_are_joined() {
        let both = [compressed("gzip", &[b"one "]), compressed("gzip", &[b"two"])].concat();
        let mut inflate = inflate("gzip");
        let mut plain = inflate.push(&both).unwrap();
        plain.extend(inflate.end().unwrap());
        assert_eq!(plain, b"one two");
    }
}
