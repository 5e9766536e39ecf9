//! The body of the fuzz target for configuration (`api/fuzz`), as a plain function so that a stable test can run it
//! over a corpus. It panics where something is wrong with us, never because something is wrong with the input.

use crate::dump::JsonWriter;
use crate::load::{LoadOptions, Source, load_bootstrap};
use crate::read::{Format, ReadLimits};
use crate::unknown::UnknownFields;

const BOOTSTRAP: &str = "envoy.config.bootstrap.v3.Bootstrap";

/// The first byte chooses the format, the rest is the file.
pub fn config_reader(input: &[u8]) {
    let Some((first, text)) = input.split_first() else { return };
    let format = [Format::Yaml, Format::Json, Format::Pb, Format::PbText][usize::from(first % 4)];
    let limits = ReadLimits { bytes: 1 << 20, nodes: 1 << 16, aliased: 1 << 12, depth: 64 };
    let unknown = if first & 4 == 0 { UnknownFields::Refuse } else { UnknownFields::Warn };
    let options = LoadOptions { limits, unknown, ..LoadOptions::default() };
    let found = match load_bootstrap(vec![Source::text("input", format, text)], &options) {
        Ok(loaded) => {
            let whole = loaded.whole();
            for element in &loaded.clusters {
                assert!(element.decode().is_ok() || element.bytes.len() > 100, "a checked cluster is a cluster");
            }
            print_and_read_again(&whole);
            loaded.warnings
        }
        Err(found) => {
            assert!(!found.is_empty(), "a refusal says why");
            found
        }
    };
    for diagnostic in found {
        assert!(!diagnostic.to_string().is_empty());
        assert!(matches!(format, Format::Pb | Format::PbText) || diagnostic.line > 0 || diagnostic.path.is_empty());
    }
}

/// What is printed is JSON, and unless the input held what JSON cannot say, it is a bootstrap again.
fn print_and_read_again(bytes: &[u8]) {
    let mut writer = JsonWriter::revealing();
    writer.message(BOOTSTRAP, bytes);
    let text = writer.take();
    let value: Result<serde_json::Value, _> = serde_json::from_str(&text);
    assert!(value.is_ok(), "what is printed is JSON: {text}");
    let options = LoadOptions { unknown: UnknownFields::Ignore, ..LoadOptions::default() };
    if let Ok(again) = load_bootstrap(vec![Source::text("again", Format::Json, text)], &options) {
        let mut writer = JsonWriter::revealing();
        writer.message(BOOTSTRAP, &again.whole());
        let twice: Result<serde_json::Value, _> = serde_json::from_str(&writer.take());
        assert_eq!(value.ok(), twice.ok(), "reading and printing again changes nothing");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn corpus() -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/config_reader");
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
        files.sort();
        files.iter().map(|f| std::fs::read(f).unwrap()).collect()
    }

    #[test]
    fn the_corpus_passes() {
        let corpus = corpus();
        assert!(corpus.len() >= 10);
        corpus.iter().for_each(|input| config_reader(input));
    }

    #[test]
    fn damaged_corpus_files_pass() {
        // A fixed walk through cuts, swaps and flips: not a search, but it keeps the body honest.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below.max(1) as u64) as usize
        };
        let corpus = corpus();
        for _ in 0..400 {
            let mut input = corpus[next(corpus.len())].clone();
            for _ in 0..=next(3) {
                let at = next(input.len());
                match next(4) {
                    0 => input.truncate(at.max(1)),
                    1 => input[at] ^= 1 << next(8),
                    2 => {
                        let piece = &corpus[next(corpus.len())];
                        let from = next(piece.len());
                        let piece = piece[from..(from + next(30)).min(piece.len())].to_vec();
                        input.splice(at..at, piece);
                    }
                    _ => {
                        let with = b"{}[]:,\"'&*!-\n 0"[next(15)];
                        input[at] = with;
                    }
                }
            }
            config_reader(&input);
        }
    }
}
