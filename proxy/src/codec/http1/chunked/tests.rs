use super::*;

fn decode_all(wire: &[u8], split: usize) -> Result<(Vec<u8>, usize, bool), BadChunk> {
    let mut decoder = ChunkDecoder::new();
    let (mut body, mut consumed) = (Vec::new(), 0);
    for part in [&wire[..split], &wire[split..]] {
        let mut part = part.to_vec();
        let d = decoder.decode(&mut part)?;
        body.extend_from_slice(&part[..d.data]);
        consumed += d.consumed;
        if d.until != Until::More {
            return Ok((body, consumed, d.until == Until::End));
        }
    }
    Ok((body, consumed, false))
}

#[test]
fn a_body_is_the_same_wherever_it_is_split() {
    let wire = b"3;a=b\r\nabc\r\n000A \r\n0123456789\r\n0\r\n\r\nGET /";
    let end = wire.len() - 5;
    for split in 0..=wire.len() {
        let (body, consumed, ended) = decode_all(wire, split).unwrap();
        assert_eq!(body, b"abc0123456789");
        if split != end {
            assert_eq!((consumed, ended), (end, true), "split at {split}");
        }
    }
}
