mod vectors;

use nuncio_core::random::Rng;

use super::dynamic_table::{self, DynamicTable};
use super::*;

type Field = (Vec<u8>, Vec<u8>);

fn field(name: &str, value: &str) -> Field {
    (name.into(), value.into())
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<Field>, Malformed> {
    let (mut fields, mut scratch) = (Vec::new(), Vec::new());
    decoder.decode(block, &mut scratch, |name, value, _| fields.push((name.to_vec(), value.to_vec())))?;
    Ok(fields)
}

fn encode(encoder: &mut Encoder, fields: &[Field]) -> Vec<u8> {
    let mut block = Vec::new();
    encoder.begin(&mut block);
    for (name, value) in fields {
        encoder.encode(name, value, &mut block);
    }
    block
}

/// Newest first.
fn entries(table: &DynamicTable) -> Vec<Field> {
    let entries = (0..table.len()).map(|age| table.get(age).expect("within its length"));
    entries.map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

/// §4 in the simplest words.
struct Model {
    entries: Vec<Field>,
    max_size: u32,
}

impl Model {
    fn new() -> Self {
        Self { entries: Vec::new(), max_size: 4096 }
    }

    fn shrink(&mut self, size: u32) {
        let total =
            |entries: &[Field]| entries.iter().map(|(name, value)| dynamic_table::size(name, value)).sum::<u32>();
        while total(&self.entries) > size {
            self.entries.pop();
        }
    }

    fn set_max_size(&mut self, max_size: u32) {
        self.max_size = max_size;
        self.shrink(max_size);
    }

    fn insert(&mut self, (name, value): Field) {
        let size = dynamic_table::size(&name, &value);
        self.shrink(self.max_size.saturating_sub(size));
        if size <= self.max_size {
            self.entries.insert(0, (name, value));
        }
    }
}

fn text(rng: &Rng, most: u64) -> Vec<u8> {
    let any = rng.below(4) == 0;
    (0..rng.below(most + 1))
        .map(|_| if any { rng.u64() as u8 } else { b"abcdefgh-0123"[rng.below(13) as usize] })
        .collect()
}

#[test]
fn the_table_does_what_its_model_does() {
    let rng = Rng::with_seed(41);
    let (mut table, mut model) = (DynamicTable::new(), Model::new());
    for step in 0..20_000 {
        match rng.below(60) {
            0 => {
                let size = [0, 31, 32, 100, 1000, 4096, 10_000][rng.below(7) as usize];
                table.set_max_size(size);
                model.set_max_size(size);
            }
            1 => {
                // Too large, or just not.
                let value = vec![b'v'; (model.max_size as usize + 2 - rng.below(3) as usize).saturating_sub(33)];
                table.insert(b"n", &value);
                model.insert((b"n".to_vec(), value));
            }
            _ => {
                let most = [3, 20, 200][rng.below(3) as usize];
                let (name, value) = (text(&rng, 20), text(&rng, most));
                table.insert(&name, &value);
                model.insert((name, value));
            }
        }
        assert_eq!(entries(&table), model.entries, "step {step}");
        assert_eq!(table.get(table.len()), None);
        assert!(table.memory() <= 20_000);
    }
}

#[test]
fn a_field_larger_than_the_table_empties_it() {
    let mut decoder = Decoder::new(4096);
    let mut block = vec![0x3f, 0x21, 0x40, 1, b'a', 1, b'b', 0x40, 1, b'c', 33];
    block.extend_from_slice(&[b'd'; 33]);
    assert_eq!(decode(&mut decoder, &block).expect("well-formed").len(), 2, "64 bytes are allowed, 66 do not fit");
    assert_eq!((decoder.table().len(), decoder.table().max_size()), (0, 64));
}

/// Any representation that a peer may choose, from a generator that keeps the model's table.
fn any_block(rng: &Rng, model: &mut Model, expected: &mut Vec<Field>) -> Vec<u8> {
    let mut block = Vec::new();
    for _ in 0..rng.below(5).saturating_sub(2) {
        let size = rng.below(10_001) as u32;
        model.set_max_size(size);
        integer::encode::<5>(0x20, size as usize, &mut block);
    }
    let string = |text: &[u8], block: &mut Vec<u8>| {
        if rng.below(2) == 0 {
            integer::encode::<7>(0x80, huffman::encoded_len(text), block);
            huffman::encode(text, block);
        } else {
            integer::encode::<7>(0, text.len(), block);
            block.extend_from_slice(text);
        }
    };
    let at = |model: &Model, index: usize| match static_table::field(index as u32) {
        Some((name, value)) => (name.to_vec(), value.to_vec()),
        None => model.entries[index - 62].clone(),
    };
    for _ in 0..rng.below(10) {
        let index = 1 + rng.below(61 + model.entries.len() as u64) as usize;
        let kind = rng.below(5);
        if kind < 2 {
            integer::encode::<7>(0x80, index, &mut block);
            expected.push(at(model, index));
            continue;
        }
        let name = if rng.below(2) == 0 { None } else { Some(at(model, index).0) };
        let index = name.as_ref().map_or(0, |_| index);
        match kind {
            2 => integer::encode::<4>(0, index, &mut block),
            3 => integer::encode::<4>(0x10, index, &mut block),
            _ => integer::encode::<6>(0x40, index, &mut block),
        }
        let name = name.unwrap_or_else(|| {
            let name = text(rng, 20);
            string(&name, &mut block);
            name
        });
        let value = text(rng, [10, 300][rng.below(2) as usize]);
        string(&value, &mut block);
        if kind == 4 {
            model.insert((name.clone(), value.clone()));
        }
        expected.push((name, value));
    }
    block
}

#[test]
fn the_decoder_reads_whatever_a_peer_may_choose() {
    let rng = Rng::with_seed(7541);
    for _ in 0..20 {
        let (mut decoder, mut model) = (Decoder::new(10_000), Model::new());
        let (mut fields, mut scratch) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            let mut expected = Vec::new();
            let block = any_block(&rng, &mut model, &mut expected);
            fields.clear();
            let decoded =
                decoder.decode(&block, &mut scratch, |name, value, _| fields.push((name.to_vec(), value.to_vec())));
            assert_eq!((decoded, &fields), (Ok(()), &expected));
            assert_eq!(entries(decoder.table()), model.entries);
        }
    }
}

/// Fields as connections have them: names that come again, with values that do or do not.
fn any_fields(rng: &Rng) -> Vec<Field> {
    let names = [
        ":method",
        ":path",
        ":status",
        "accept-encoding",
        "cookie",
        "date",
        "server",
        "user-agent",
        "x-request-id",
        "x-forwarded-proto",
        "x-envoy-upstream-service-time",
        "etag",
        "x",
        "",
    ];
    let fields = (0..rng.below(20)).map(|_| {
        let name = match rng.below(8) {
            0 => text(rng, 30),
            _ => names[rng.below(names.len() as u64) as usize].into(),
        };
        let value = match rng.below(8) {
            0 => text(rng, 60),
            1 => text(rng, 5000),
            2 => b"GET".to_vec(),
            _ => vec![b"abc.?0"[rng.below(6) as usize]; 1 + rng.below(30) as usize],
        };
        (name, value)
    });
    fields.collect()
}

#[test]
fn what_the_encoder_says_is_what_a_decoder_reads_and_their_tables_agree() {
    let rng = Rng::with_seed(9113);
    for _ in 0..10 {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
        for _ in 0..400 {
            for _ in 0..rng.below(30).saturating_sub(26) {
                encoder.set_max_size([0, 64, 500, 4096, 70_000][rng.below(5) as usize]);
            }
            let fields = any_fields(&rng);
            let block = encode(&mut encoder, &fields);
            assert_eq!(decode(&mut decoder, &block), Ok(fields));
            assert_eq!(entries(encoder.table()), entries(decoder.table()));
            assert_eq!(encoder.table().max_size(), decoder.table().max_size());
        }
        assert!(encoder.memory() <= 3 * 4096);
    }
}

#[test]
fn each_status_is_what_a_decoder_reads() {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
    for status in (100..600).chain([200, 404, 503, 503, 503]) {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        encoder.encode_status(status, &mut block);
        assert_eq!(decode(&mut decoder, &block), Ok(vec![field(":status", &status.to_string())]));
    }
    let mut block = Vec::new();
    encoder.encode_status(503, &mut block);
    encoder.encode_status(200, &mut block);
    assert_eq!(block, [0xbe, 0x88], "what came again is one byte");
}

#[test]
fn what_comes_again_is_indexed_and_the_rest_goes_by() {
    let mut encoder = Encoder::new();
    let request = |id: u32| {
        vec![
            field(":method", "GET"),
            field(":authority", "www.example.com"),
            field(":path", "/items/1"),
            field("user-agent", "a client"),
            field("x-forwarded-proto", "https"),
            field("x-request-id", &format!("{id:032x}")),
            field("etag", "\"1\""),
        ]
    };
    for id in 0..500 {
        encode(&mut encoder, &request(id));
    }
    let repeated: Vec<_> = [4, 3, 1].map(|at| request(0)[at].clone()).into();
    assert_eq!(entries(encoder.table()), repeated);
    let mut block = Vec::new();
    for (name, value) in &repeated {
        encoder.encode(name, value, &mut block);
    }
    assert_eq!(block, [0xbe, 0xbf, 0xc0]);
    // A name of the table lends itself to another value.
    block.clear();
    encoder.encode(b"x-forwarded-proto", b"ws", &mut block);
    assert_eq!(block, [0x0f, 62 - 15, 2, b'w', b's']);
}

/// RFC 7541 §6.2.3: who received it as one never indexed must forward it so.
#[test]
fn what_came_as_never_indexed_goes_on_so_even_if_a_table_holds_it() {
    // Appendix C.2.3, and a name and a field of the static table.
    let block = [&b"\x10\x08password\x06secret"[..], b"\x14\x01/", b"\x1f\x08\x01x"].concat();
    let (mut decoder, mut encoder) = (Decoder::new(4096), Encoder::new());
    for _ in 0..3 {
        encode(&mut encoder, &[field("password", "secret"), field("authorization", "x")]);
    }
    let mut again = Vec::new();
    let decoded = decoder.decode(&block, &mut Vec::new(), |name, value, never_indexed| {
        assert!(never_indexed, "{}", name.escape_ascii());
        encoder.encode_never_indexed(name, value, &mut again);
    });
    assert_eq!(decoded, Ok(()));
    let mut marks = Vec::new();
    let decoded = decoder.decode(&again, &mut Vec::new(), |name, value, never| {
        marks.push((name.to_vec(), value.to_vec(), never));
    });
    assert_eq!(decoded, Ok(()));
    let expected = [("password", "secret"), (":path", "/"), ("authorization", "x")];
    assert_eq!(marks, expected.map(|(name, value)| (name.into(), value.into(), true)));
    // Without indexing is another thing, and an index never is one.
    for block in [&b"\x00\x01x\x01y"[..], b"\x82", b"\x40\x01x\x01y", b"\xbe"] {
        let decoded = decoder.decode(block, &mut Vec::new(), |_, _, never_indexed| assert!(!never_indexed));
        assert_eq!(decoded, Ok(()));
    }
}

#[test]
fn fields_that_collide_are_found_all_the_same() {
    // As many as the table can hold, twice: chains have several entries, and the oldest left.
    let fields: Vec<_> = (0..160).map(|id| field("n", &format!("{id:x}"))).collect();
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
    for one in &fields {
        for _ in 0..3 {
            let block = encode(&mut encoder, std::slice::from_ref(one));
            assert_eq!(decode(&mut decoder, &block).as_deref(), Ok(std::slice::from_ref(one)));
        }
    }
    let held = encoder.table().len();
    assert!(held > 110, "{held}");
    for (age, one) in fields.iter().rev().take(held).enumerate() {
        let mut indexed = Vec::new();
        integer::encode::<7>(0x80, 62 + age, &mut indexed);
        assert_eq!(encode(&mut encoder, std::slice::from_ref(one)), indexed, "{age}");
    }
}

#[test]
fn secrets_never_enter_the_table() {
    let mut encoder = Encoder::new();
    for (name, index) in [("authorization", 23), ("cookie", 32), ("proxy-authorization", 49), ("set-cookie", 55)] {
        for _ in 0..3 {
            // §6.2.3 for what could be guessed, §6.2.2 otherwise.
            let block = encode(&mut encoder, &[field(name, "0123456789012345678")]);
            assert_eq!(block[..2], [0x1f, index - 15], "{name}");
            let block = encode(&mut encoder, &[field(name, "01234567890123456789")]);
            assert_eq!(block[..2], [0x0f, index - 15], "{name}");
        }
    }
    for (name, index) in [("age", 21), ("content-length", 28), ("etag", 34), ("if-modified-since", 40)] {
        for _ in 0..3 {
            assert_eq!(encode(&mut encoder, &[field(name, "17")]), [0x0f, index - 15, 2, b'1', b'7'], "{name}");
        }
    }
    for _ in 0..3 {
        assert_eq!(encode(&mut encoder, &[field(":path", "/a")]), [0x04, 2, b'/', b'a']);
    }
    assert_eq!((encoder.table().len(), encoder.memory()), (0, 0));
}

#[test]
fn a_new_size_is_said_at_the_start_of_the_next_block() {
    let mut encoder = Encoder::new();
    let mut begin = |sizes: &[u32]| {
        let mut block = Vec::new();
        sizes.iter().for_each(|&size| encoder.set_max_size(size));
        encoder.begin(&mut block);
        block
    };
    assert_eq!(begin(&[4096]), b"");
    // More than we use is no change.
    assert_eq!(begin(&[65536]), b"");
    assert_eq!(begin(&[30]), [0x3e]);
    assert_eq!(begin(&[]), b"");
    assert_eq!(begin(&[30, 30]), b"");
    assert_eq!(begin(&[4096]), [0x3f, 0xe1, 0x1f]);
    // The lowest between two blocks, then the last.
    assert_eq!(begin(&[100, 0, 300, 65536]), [0x20, 0x3f, 0xe1, 0x1f]);
    assert_eq!(begin(&[16, 16]), [0x30]);
}

#[test]
fn nothing_is_held_before_something_is_indexed_and_nothing_more_once_warm() {
    let (mut encoder, mut decoder, mut scratch) = (Encoder::new(), Decoder::new(4096), Vec::new());
    let mut block = Vec::new();
    for id in 0..100 {
        block.clear();
        encoder.begin(&mut block);
        encoder.encode(b":method", b"GET", &mut block);
        encoder.encode(b"x-request-id", format!("{id:032x}").as_bytes(), &mut block);
        decoder.decode(&block, &mut scratch, |_, _, _| {}).expect("well-formed");
    }
    assert_eq!((encoder.memory(), decoder.memory()), (0, 0));
    let mut warm = None;
    for round in 0..3000 {
        block.clear();
        encoder.begin(&mut block);
        for _ in 0..2 {
            let value = vec![b'a' + (round % 7) as u8; round % 61];
            encoder.encode(format!("name-{round}").as_bytes(), &value, &mut block);
        }
        decoder.decode(&block, &mut scratch, |_, _, _| {}).expect("well-formed");
        let held = (encoder.memory(), decoder.memory(), scratch.capacity());
        if round > 1000 {
            assert_eq!(*warm.get_or_insert(held), held);
        }
    }
    let (_, decoder, scratch) = warm.expect("set");
    assert!(decoder <= 2 * 4096 && scratch <= 200, "{decoder} {scratch}");
}

#[test]
fn a_block_that_breaks_the_rules_is_malformed() {
    let bytes = |parts: &[&[u8]]| parts.concat();
    let cases: &[(&str, Vec<u8>)] = &[
        ("an index that is in no table", vec![0x80]),
        ("an index that is in no table", vec![0xbe]),
        ("an index that is in no table", vec![0xff, 0x80, 0xff, 0xff, 0xff, 0x0f]),
        // A name's index, in each form of literal: one further than the tables.
        ("an index that is in no table", vec![0x7e, 1, b'a']),
        ("an index that is in no table", vec![0x0f, 47, 1, b'a']),
        ("an index that is in no table", vec![0x1f, 47, 1, b'a']),
        ("an index that is in no table", vec![0x40, 1, b'a', 1, b'b', 0xbf]),
        ("an integer above 32 bits", vec![0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        ("an integer of too many bytes", vec![0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00]),
        ("an integer that does not end", vec![0xff, 0x80]),
        ("an integer that does not end", vec![0x41, 0x7f, 0x80]),
        ("a string that is missing", vec![0x40]),
        ("a string that is missing", vec![0x40, 1, b'a']),
        ("a string that is missing", vec![0x04]),
        ("a string that does not end", vec![0x40, 2, b'a']),
        ("a string that does not end", vec![0x40, 1, b'a', 0x7f, 0xff, 0xff, 0xff, 0xff, 0x0e, b'b']),
        ("a string that does not end", vec![0x41, 0x84, 0x1f]),
        ("the end of a string within it", vec![0x41, 0x84, 0xff, 0xff, 0xff, 0xff]),
        ("padding of a byte or more", vec![0x41, 0x82, 0x1f, 0xff]),
        ("padding that is not of ones", vec![0x41, 0x81, 0x18]),
        ("a table size behind a field", vec![0x82, 0x20]),
        ("a table size behind a field", vec![0x20, 0x82, 0x3f, 0x21]),
        ("a table size above the agreed one", vec![0x3f, 0xe2, 0x1f]),
        ("a table size above the agreed one", bytes(&[&[0x20], &[0x3f, 0xe2, 0x1f]])),
    ];
    for (why, block) in cases {
        assert_eq!(decode(&mut Decoder::new(4096), block), Err(Malformed(why)), "{block:x?}");
        // The same from a peer that may have less, or more than it uses.
        if !why.contains("above the agreed") {
            assert_eq!(decode(&mut Decoder::new(65536), block), Err(Malformed(why)), "{block:x?}");
        }
    }
    // Several sizes at the start are fine (§4.2), and the same bytes elsewhere are not.
    assert_eq!(
        decode(&mut Decoder::new(4096), &[0x20, 0x3f, 0xe1, 0x1f, 0x21, 0x82]),
        Ok(vec![field(":method", "GET")])
    );
    assert_eq!(decode(&mut Decoder::new(4096), &[]), Ok(vec![]));
}

#[test]
fn a_lowered_size_holds_from_its_acknowledgement_on() {
    let full = [0x3f, 0xe1, 0x1f, 0x82];
    let mut decoder = Decoder::new(100);
    assert!(decode(&mut decoder, &full).is_ok(), "the peer does not know yet");
    decoder.acknowledged();
    assert_eq!(decode(&mut decoder, &full), Err(Malformed("a table size above the agreed one")));
    assert_eq!(decode(&mut decoder, &[0x82]), Err(Malformed("a table that did not shrink as agreed")));
    assert!(decode(&mut decoder, &[0x3f, 0x45, 0x82]).is_ok());
    assert!(decode(&mut decoder, &[0x82]).is_ok(), "once is enough");
    // A table that is small enough already has nothing to say.
    let mut decoder = Decoder::new(100);
    assert!(decode(&mut decoder, &[0x30, 0x82]).is_ok());
    decoder.acknowledged();
    assert!(decode(&mut decoder, &[0x82]).is_ok());
    // Nor has one that may be larger than the default.
    let mut decoder = Decoder::new(65536);
    decoder.acknowledged();
    assert!(decode(&mut decoder, &[0x82]).is_ok());
    assert!(decode(&mut decoder, &[0x3f, 0xe1, 0xff, 0x03, 0x82]).is_ok());
    assert_eq!(decoder.table().max_size(), 65536);
}

#[test]
fn all_fields_that_repeat_come_to_be_indexed() {
    let fields: Vec<_> = (0..40).map(|id| field(&format!("x-header-{id}"), &format!("value {id}"))).collect();
    let mut encoder = Encoder::new();
    encode(&mut encoder, &fields);
    encode(&mut encoder, &fields);
    assert_eq!(encode(&mut encoder, &fields).len(), fields.len());
}
