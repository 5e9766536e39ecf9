//! `gzip` (RFC 1952), by zlib.

use std::io::{self, Write};

use flate2::write::{MultiGzDecoder, ZlibEncoder};
use flate2::{Compress, Compression};
use nuncio_api::pb::envoy::extensions::compression::gzip::{compressor::v3 as pb, decompressor::v3 as decompressor};
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;

use super::{Decoder, Encoder, Library, Limited, MakeDecoder, MakeEncoder};

supports!(COMPRESSOR = "envoy.extensions.compression.gzip.compressor.v3.Gzip" {
    compression_level, window_bits
} noop {
    memory_level: "the library has one size of its own",
    chunk_size: "output is passed on as it is made"
} values {
    compression_strategy: ["DEFAULT_STRATEGY"]
});
supports!(DECOMPRESSOR = "envoy.extensions.compression.gzip.decompressor.v3.Gzip" { max_inflate_ratio } noop {
    window_bits: "every window that gzip allows is read",
    chunk_size: "output is passed on as it is made"
});
pub(super) static SUPPORTED: &[&Entry] = &[&COMPRESSOR, &DECOMPRESSOR];

/// Envoy's default: a window of 4 KiB.
const WINDOW_BITS: u32 = 12;

pub(super) struct Gzip;

impl Library for Gzip {
    fn encoding(&self) -> &'static str {
        "gzip"
    }

    fn compressor_type(&self) -> &'static str {
        COMPRESSOR.message
    }

    fn decompressor_type(&self) -> &'static str {
        DECOMPRESSOR.message
    }

    fn compressor(&self, config: &ProtoAny) -> Result<MakeEncoder, ConfigError> {
        let proto: pb::Gzip = unpack(config)?;
        // 0 is zlib's own default; the others are its levels.
        let level = match proto.compression_level {
            level @ 1..=9 => Compression::new(level as u32),
            _ => Compression::default(),
        };
        let bits = proto.window_bits.map_or(WINDOW_BITS, |v| v.value).clamp(9, 15) as u8;
        Ok(Box::new(move || Ok(Box::new(ZlibEncoder::new_with_compress(Vec::new(), Compress::new_gzip(level, bits))))))
    }

    fn decompressor(&self, _config: &ProtoAny) -> Result<MakeDecoder, ConfigError> {
        Ok(Box::new(|| Ok(Box::new(MultiGzDecoder::new(Limited::default())))))
    }
}

/// Only gzip has a setting for it.
pub(super) fn max_inflate_ratio(config: &ProtoAny) -> Option<u64> {
    let proto: decompressor::Gzip = unpack(config).ok()?;
    Some(proto.max_inflate_ratio.filter(|_| config.type_url.ends_with(DECOMPRESSOR.message))?.value.into())
}

impl Encoder for ZlibEncoder<Vec<u8>> {
    fn push(&mut self, input: &[u8], last: bool, out: &mut Vec<u8>) -> io::Result<()> {
        self.write_all(input)?;
        match last {
            true => self.try_finish()?,
            false => self.flush()?,
        }
        out.append(self.get_mut());
        Ok(())
    }
}

impl Decoder for MultiGzDecoder<Limited> {
    fn push(&mut self, input: &[u8], out: Limited) -> io::Result<Limited> {
        *self.get_mut() = out;
        self.write_all(input)?;
        self.flush()?;
        Ok(std::mem::take(self.get_mut()))
    }

    fn end(&mut self, out: Limited) -> io::Result<Limited> {
        *self.get_mut() = out;
        self.try_finish()?;
        Ok(std::mem::take(self.get_mut()))
    }
}
