//! RFC 7541: every representation is understood, and blocks that cannot be decoded end the connection.

use nuncio_testkit::http2::frame::code::COMPRESSION_ERROR;
use nuncio_testkit::http2::frame::{flag, frame, kind::*};
use nuncio_testkit::http2::hpack::{GET, Literal, block, huffman, indexed, indexed_name, literal, string, table_size};

use super::{Case, Want, case};

pub(super) fn cases() -> Vec<Case> {
    [representations(), tables(), errors()].into_iter().flatten().collect()
}

/// A GET with these bytes behind its fields.
fn with(more: &[u8]) -> Vec<u8> {
    frame(HEADERS, flag::WHOLE, 1, &[&block(GET), more].concat())
}

fn fine(section: &'static str, what: &'static str, bytes: Vec<u8>) -> Case {
    case(section, what, &[bytes], Want::Answer(1))
}

fn broken(section: &'static str, what: &'static str, bytes: Vec<u8>) -> Case {
    case(section, what, &[bytes], Want::Connection(&[COMPRESSION_ERROR]))
}

/// "custom-key", "custom-value" and "no-cache" (RFC 7541, appendix C).
const KEY: &[u8] = &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f];
const VALUE: &[u8] = &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf];
const NO_CACHE: &[u8] = &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf];
/// Entry 24 of the static table.
const CACHE_CONTROL: usize = 24;

fn representations() -> Vec<Case> {
    let mut all = vec![fine(
        "6.1",
        "indexed fields",
        frame(
            HEADERS,
            flag::WHOLE,
            1,
            &[&indexed(2)[..], &indexed(6), &indexed(4), &indexed_name(Literal::Without, 1, &string(b"a"))].concat(),
        ),
    )];
    for (section, how, name) in [
        ("6.2.1", Literal::Incremental, "with indexing"),
        ("6.2.2", Literal::Without, "without indexing"),
        ("6.2.3", Literal::Never, "never indexed"),
    ] {
        let what = |text: &str| -> &'static str { String::leak(format!("{name}, {text}")) };
        let field = |value: &[u8]| with(&indexed_name(how, CACHE_CONTROL, value));
        all.push(fine(section, what("indexed name"), field(&string(b"no-cache"))));
        all.push(fine(section, what("indexed name, Huffman"), field(&huffman(NO_CACHE))));
        all.push(fine(section, what("new name"), with(&literal(how, &string(b"custom-key"), &string(b"v")))));
        all.push(fine(section, what("new name, Huffman"), with(&literal(how, &huffman(KEY), &huffman(VALUE)))));
    }
    all
}

fn tables() -> Vec<Case> {
    let remembered = literal(Literal::Incremental, &string(b"custom-key"), &string(b"v"));
    let size = |sizes: &[usize]| {
        let updates: Vec<u8> = sizes.iter().flat_map(|s| table_size(*s)).collect();
        frame(HEADERS, flag::WHOLE, 1, &[updates, block(GET)].concat())
    };
    vec![
        fine("2.3.2", "an entry of the dynamic table", with(&[remembered, indexed(62)].concat())),
        fine("6.3", "a size update", size(&[1])),
        fine("6.3", "several size updates", size(&[128, 4096])),
        fine("4.3", "a size of 0 empties the table", size(&[0])),
        fine(
            "4.4",
            "an entry larger than the table",
            frame(
                HEADERS,
                flag::WHOLE,
                1,
                &[table_size(64), block(GET), literal(Literal::Incremental, &string(b"x"), &string(&[b'y'; 200]))]
                    .concat(),
            ),
        ),
    ]
}

fn errors() -> Vec<Case> {
    // 'a' is 00011: what follows it is the padding.
    let padding = |coded: &[u8]| with(&indexed_name(Literal::Without, CACHE_CONTROL, &huffman(coded)));
    vec![
        broken("2.3.3", "an index beyond the tables", with(&indexed(70))),
        broken(
            "2.3.3",
            "an indexed name beyond the tables",
            with(&indexed_name(Literal::Incremental, 70, &string(b"x"))),
        ),
        broken("4.2", "a size update behind a field", with(&table_size(1))),
        broken(
            "5.1",
            "an integer without an end",
            with(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ),
        broken("5.2", "a string longer than the block", with(&[0x00, 0x01, b'x', 0x7e, b'y'])),
        broken("5.2", "Huffman padding of 8 bits", padding(&[0b0001_1111, 0xff])),
        broken("5.2", "Huffman padding of zeros", padding(&[0b0001_1000])),
        broken("5.2", "Huffman code with EOS", padding(&[0b0001_1111, 0xff, 0xff, 0xff, 0xff])),
        broken("6.1", "index 0", with(&[0x80])),
        broken(
            "6.3",
            "a size above SETTINGS_HEADER_TABLE_SIZE",
            frame(HEADERS, flag::WHOLE, 1, &[table_size(4097), block(GET)].concat()),
        ),
    ]
}
