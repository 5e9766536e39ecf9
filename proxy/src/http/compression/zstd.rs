//! `zstd` (RFC 8878). Frames whose window is over 8 MiB are refused, as RFC 9659 has it for this coding.

use std::io::{self, Write};

use nuncio_api::pb::envoy::extensions::compression::zstd::compressor::v3 as pb;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use zstd::stream::raw::{self, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::{CParameter, DParameter, Strategy};

use super::{Decoder, Encoder, Library, Limited, MakeDecoder, MakeEncoder};

supports!(COMPRESSOR = "envoy.extensions.compression.zstd.compressor.v3.Zstd" {
    compression_level, enable_checksum, strategy
} noop {
    chunk_size: "output is passed on as it is made"
});
supports!(DECOMPRESSOR = "envoy.extensions.compression.zstd.decompressor.v3.Zstd" {} noop {
    chunk_size: "output is passed on as it is made"
});
pub(super) static SUPPORTED: &[&Entry] = &[&COMPRESSOR, &DECOMPRESSOR];

const MAX_WINDOW_LOG: u32 = 23;
const BUFFER: usize = 16 * 1024;

pub(super) struct Zstd;

impl Library for Zstd {
    fn encoding(&self) -> &'static str {
        "zstd"
    }

    fn compressor_type(&self) -> &'static str {
        COMPRESSOR.message
    }

    fn decompressor_type(&self) -> &'static str {
        DECOMPRESSOR.message
    }

    fn compressor(&self, config: &ProtoAny) -> Result<MakeEncoder, ConfigError> {
        let proto: pb::Zstd = unpack(config)?;
        let level = proto.compression_level.map_or(3, |v| v.value as i32);
        let strategy = strategy(proto.strategy());
        let checksum = proto.enable_checksum;
        Ok(Box::new(move || {
            let mut encoder = raw::Encoder::new(level)?;
            encoder.set_parameter(CParameter::ChecksumFlag(checksum))?;
            if let Some(strategy) = strategy {
                encoder.set_parameter(CParameter::Strategy(strategy))?;
            }
            Ok(Box::new(encoder))
        }))
    }

    fn decompressor(&self, _config: &ProtoAny) -> Result<MakeDecoder, ConfigError> {
        Ok(Box::new(|| {
            let mut decoder = raw::Decoder::new()?;
            decoder.set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG))?;
            Ok(Box::new(Frames { decoder, complete: false }))
        }))
    }
}

fn strategy(proto: pb::zstd::Strategy) -> Option<Strategy> {
    use pb::zstd::Strategy as From;
    Some(match proto {
        From::Default => return None,
        From::Fast => Strategy::ZSTD_fast,
        From::Dfast => Strategy::ZSTD_dfast,
        From::Greedy => Strategy::ZSTD_greedy,
        From::Lazy => Strategy::ZSTD_lazy,
        From::Lazy2 => Strategy::ZSTD_lazy2,
        From::Btlazy2 => Strategy::ZSTD_btlazy2,
        From::Btopt => Strategy::ZSTD_btopt,
        From::Btultra => Strategy::ZSTD_btultra,
        From::Btultra2 => Strategy::ZSTD_btultra2,
    })
}

impl Encoder for raw::Encoder<'static> {
    fn push(&mut self, input: &[u8], last: bool, out: &mut Vec<u8>) -> io::Result<()> {
        let mut buffer = [0; BUFFER];
        let mut input = InBuffer::around(input);
        while input.pos() < input.src.len() {
            let mut made = OutBuffer::around(&mut buffer[..]);
            self.run(&mut input, &mut made)?;
            out.extend_from_slice(made.as_slice());
        }
        loop {
            let mut made = OutBuffer::around(&mut buffer[..]);
            let left = match last {
                true => self.finish(&mut made, true)?,
                false => self.flush(&mut made)?,
            };
            out.extend_from_slice(made.as_slice());
            if left == 0 {
                return Ok(());
            }
        }
    }
}

struct Frames {
    decoder: raw::Decoder<'static>,
    /// At the end of a frame; another may follow.
    complete: bool,
}

impl Decoder for Frames {
    fn push(&mut self, input: &[u8], mut out: Limited) -> io::Result<Limited> {
        let mut buffer = [0; BUFFER];
        let mut input = InBuffer::around(input);
        // A full buffer may mean that more of what was read is still inside.
        let mut full = false;
        while full || input.pos() < input.src.len() {
            let mut made = OutBuffer::around(&mut buffer[..]);
            self.complete = self.decoder.run(&mut input, &mut made)? == 0;
            full = made.as_slice().len() == BUFFER && !self.complete;
            out.write_all(made.as_slice())?;
        }
        Ok(out)
    }

    fn end(&mut self, out: Limited) -> io::Result<Limited> {
        match self.complete {
            true => Ok(out),
            false => Err(io::Error::other("the last zstd frame is not complete")),
        }
    }
}
