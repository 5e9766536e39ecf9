//! `br` (RFC 7932).

use std::io::{self, Write};

use brotli::enc::BrotliEncoderParams;
use brotli::enc::backward_references::BrotliEncoderMode;
use brotli::{CompressorWriter, DecompressorWriter};
use nuncio_api::pb::envoy::extensions::compression::brotli::compressor::v3 as pb;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;

use super::{Decoder, Encoder, Library, Limited, MakeDecoder, MakeEncoder};

supports!(COMPRESSOR = "envoy.extensions.compression.brotli.compressor.v3.Brotli" {
    quality, encoder_mode, window_bits, input_block_bits, disable_literal_context_modeling
} noop {
    chunk_size: "output is passed on as it is made"
});
supports!(DECOMPRESSOR = "envoy.extensions.compression.brotli.decompressor.v3.Brotli" {} noop {
    disable_ring_buffer_reallocation: "the library has one size of its own",
    chunk_size: "output is passed on as it is made"
});
pub(super) static SUPPORTED: &[&Entry] = &[&COMPRESSOR, &DECOMPRESSOR];

/// Room for what is on its way between the library and us.
const BUFFER: usize = 4096;

pub(super) struct Brotli;

impl Library for Brotli {
    fn encoding(&self) -> &'static str {
        "br"
    }

    fn compressor_type(&self) -> &'static str {
        COMPRESSOR.message
    }

    fn decompressor_type(&self) -> &'static str {
        DECOMPRESSOR.message
    }

    fn compressor(&self, config: &ProtoAny) -> Result<MakeEncoder, ConfigError> {
        let proto: pb::Brotli = unpack(config)?;
        let number = |v: Option<u32>, default: u32| v.unwrap_or(default) as i32;
        // Envoy's defaults.
        let params = BrotliEncoderParams {
            quality: number(proto.quality.map(|v| v.value), 3),
            lgwin: number(proto.window_bits.map(|v| v.value), 18),
            lgblock: number(proto.input_block_bits.map(|v| v.value), 24),
            disable_literal_context_modeling: proto.disable_literal_context_modeling.into(),
            mode: match proto.encoder_mode() {
                pb::brotli::EncoderMode::Text => BrotliEncoderMode::BROTLI_MODE_TEXT,
                pb::brotli::EncoderMode::Font => BrotliEncoderMode::BROTLI_MODE_FONT,
                _ => BrotliEncoderMode::BROTLI_MODE_GENERIC,
            },
            ..BrotliEncoderParams::default()
        };
        Ok(Box::new(move || Ok(Box::new(Stream(Some(CompressorWriter::with_params(Vec::new(), BUFFER, &params)))))))
    }

    fn decompressor(&self, _config: &ProtoAny) -> Result<MakeDecoder, ConfigError> {
        Ok(Box::new(|| Ok(Box::new(DecompressorWriter::new(Limited::default(), BUFFER)))))
    }
}

/// None after the end: only giving it up ends the stream.
struct Stream(Option<CompressorWriter<Vec<u8>>>);

impl Encoder for Stream {
    fn push(&mut self, input: &[u8], last: bool, out: &mut Vec<u8>) -> io::Result<()> {
        let Some(writer) = &mut self.0 else { return Ok(()) };
        writer.write_all(input)?;
        if !last {
            writer.flush()?;
            out.append(writer.get_mut());
            return Ok(());
        }
        if let Some(writer) = self.0.take() {
            out.append(&mut writer.into_inner());
        }
        Ok(())
    }
}

impl Decoder for DecompressorWriter<Limited> {
    fn push(&mut self, input: &[u8], out: Limited) -> io::Result<Limited> {
        *self.get_mut() = out;
        self.write_all(input)?;
        Ok(std::mem::take(self.get_mut()))
    }

    fn end(&mut self, out: Limited) -> io::Result<Limited> {
        *self.get_mut() = out;
        self.close()?;
        Ok(std::mem::take(self.get_mut()))
    }
}
