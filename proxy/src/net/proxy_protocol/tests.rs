//! Headers as Envoy 1.40 took or refused them.

use super::*;

fn v2(command: u8, family: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = V2_SIGNATURE.to_vec();
    out.extend([0x20 | command, family]);
    out.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    out.extend(payload);
    out
}

const V4: [u8; 12] = [203, 0, 113, 9, 198, 51, 100, 1, 0x15, 0xb3, 0x01, 0xbb];

fn pair() -> (SocketAddr, SocketAddr) {
    ("203.0.113.9:5555".parse().unwrap(), "198.51.100.1:443".parse().unwrap())
}

fn ok(bytes: &[u8]) -> Header {
    match read(bytes, true) {
        Read::Header(header) => header,
        other => panic!("{other:?} for {}", bytes.escape_ascii()),
    }
}

#[test]
fn a_line_of_version_1_tells_the_addresses() {
    let header = ok(b"PROXY TCP4 203.0.113.9 198.51.100.1 5555 443\r\nGET");
    assert_eq!((header.length, header.addresses), (46, Some(pair())));
    let header = ok(b"PROXY TCP6 2001:db8::1 2001:db8::2 0 65535\r\n");
    assert_eq!(header.addresses.unwrap().1.to_string(), "[2001:db8::2]:65535");
    for unknown in ["PROXY UNKNOWN\r\nx", "PROXY UNKNOWN a b c\r\n"] {
        assert_eq!(ok(unknown.as_bytes()).addresses, None);
    }
    assert_eq!(ok(b"PROXY TCP4 203.0.113.9 198.51.100.1 05555 443\r\n").addresses, Some(pair()));
}

#[test]
fn lines_that_envoy_refuses_are_refused() {
    for line in [
        "PROXY TCP4 203.0.113.9 198.51.100.1 5555 443\nhello\r\n",
        "PROXY TCP4 203.0.113.9 198.51.100.1 5555 443 x\r\n",
        "PROXY  TCP4 203.0.113.9 198.51.100.1 5555 443\r\n",
        "PROXY UDP4 203.0.113.9 198.51.100.1 5555 443\r\n",
        "PROXY TCP6 203.0.113.9 198.51.100.1 5555 443\r\n",
        "PROXY TCP4 ::1 ::1 5555 443\r\n",
        "PROXY TCP4 0.0.0.0 198.51.100.1 1 443\r\n",
        "PROXY TCP4 203.0.113.9 224.0.0.1 1 443\r\n",
        "PROXY TCP4 203.0.113.9 198.51.100.1 99999 443\r\n",
        "PROXY TCP4 203.0.113.9 198.51.100.1 +1 443\r\n",
        "PROXY TCP6 fe80::1%1 fe80::2%1 1 443\r\n",
        "PROXY \r\n",
        "hello",
    ] {
        assert_eq!(read(line.as_bytes(), true), Read::Invalid(Version::V1), "{line}");
    }
    let long = format!("PROXY {}", "x".repeat(102));
    assert_eq!(read(long.as_bytes(), true), Read::Invalid(Version::V1));
    assert_eq!(read(&long.as_bytes()[..107], true), Read::NeedMore);
}

#[test]
fn a_header_of_version_2_tells_addresses_and_tlvs() {
    let header = ok(&v2(1, 0x11, &[&V4[..], b"\x04\0\x02ab\x05\0\0"].concat()));
    assert_eq!(header.addresses, Some(pair()));
    let tlv = |kind, value: &[u8]| Tlv { kind, value: value.to_vec() };
    assert_eq!(header.tlvs, [tlv(4, b"ab"), tlv(5, b"")]);
    assert_eq!(ok(&v2(1, 0x12, &V4)).addresses, Some(pair()));
    let local = ok(&v2(0, 0x11, &V4));
    assert_eq!((local.length, local.addresses), (28, None));
    assert_eq!(ok(&v2(0, 0, b"")).length, 16);
    let longest = ok(&v2(1, 0x11, &[&V4[..], b"\x20\xff\xf0", &[b'x'; 65520]].concat()));
    assert_eq!((longest.length, longest.tlvs[0].value.len()), (MAX_LENGTH, 65520));
}

#[test]
fn headers_of_version_2_that_envoy_refuses_are_refused() {
    let wrong = |bytes: &[u8]| assert_eq!(read(bytes, false), Read::Invalid(Version::V2), "{}", bytes.escape_ascii());
    wrong(&v2(1, 0x11, &[&V4[..], b"\x04\0\x09ab"].concat()));
    wrong(&v2(1, 0x11, &[&V4[..], b"\x04\0"].concat()));
    wrong(&v2(1, 0x11, &V4[..8]));
    wrong(&v2(1, 0x00, b""));
    wrong(&v2(1, 0x31, &[b'/'; 216]));
    wrong(&v2(1, 0x22, &V4));
    wrong(&v2(2, 0x11, &V4));
    wrong(&[V2_SIGNATURE, &[0x31, 0x11, 0, 12], &V4].concat());
    wrong(&v2(1, 0x11, &[0; 12]));
}

#[test]
fn any_cut_of_a_header_asks_for_more_and_what_is_none_is_known_at_once() {
    for whole in [&b"PROXY TCP4 203.0.113.9 198.51.100.1 5555 443\r\n"[..], &v2(1, 0x11, &V4)] {
        for cut in 0..whole.len() {
            assert_eq!(read(&whole[..cut], false), Read::NeedMore, "{cut}");
        }
    }
    for other in [&b"G"[..], b"PROXYx", b"\r\n\r\nx", b"\x16\x03\x01"] {
        assert_eq!(read(other, false), Read::Absent);
    }
}

#[test]
fn what_is_written_is_read_again() {
    let six = ("[2001:db8::1]:1".parse().unwrap(), "[2001:db8::2]:2".parse().unwrap());
    let tlvs = [Tlv { kind: 4, value: b"ab".to_vec() }];
    for addresses in [Some(pair()), Some(six), None] {
        let (mut one, mut two) = (Vec::new(), Vec::new());
        write_v1(addresses, &mut one);
        write_v2(addresses, &tlvs, &mut two);
        assert_eq!(ok(&one).addresses, addresses);
        let header = ok(&two);
        assert_eq!((header.addresses, header.length), (addresses, two.len()));
        assert_eq!(header.tlvs.len(), usize::from(addresses.is_some()));
    }
    let mut text = Vec::new();
    write_v1(Some(pair()), &mut text);
    assert_eq!(text, b"PROXY TCP4 203.0.113.9 198.51.100.1 5555 443\r\n");
}
