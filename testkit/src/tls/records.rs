//! Records that no library would send, under the right keys.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::{ConnectionTrafficSecrets, ProtocolVersion};

/// Content types of RFC 8446 §5.1.
pub const ALERT: u8 = 21;
pub const HANDSHAKE: u8 = 22;
pub const APPLICATION_DATA: u8 = 23;

/// The client's half of a connection whose handshake is done.
pub struct Records {
    socket: TcpStream,
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
    tls13: bool,
}

impl Records {
    /// TLS 1.2 only with AES.
    pub(super) fn new(
        socket: TcpStream,
        version: Option<ProtocolVersion>,
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
    ) -> Self {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => panic!("no key of a known kind"),
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).expect("a key"));
        let iv = iv.as_ref().try_into().expect("twelve bytes");
        Self { socket, key, iv, sequence, tls13: version == Some(ProtocolVersion::TLSv1_3) }
    }

    /// As many records of this kind and content.
    pub fn send(&mut self, kind: u8, content: &[u8], times: usize) -> io::Result<()> {
        for _ in 0..times {
            let record = self.seal(kind, content);
            self.socket.write_all(&record)?;
        }
        Ok(())
    }

    /// Reads to the end: whether the peer closed.
    pub fn is_closed(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return e.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Says that nothing more will come.
    pub fn finish(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    fn seal(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let sequence = self.sequence.to_be_bytes();
        self.sequence += 1;
        let mut nonce = self.iv;
        let mut sealed = content.to_vec();
        let mut record = vec![kind, 3, 3];
        let length = |n: usize| u16::try_from(n).expect("a short record").to_be_bytes();
        if self.tls13 {
            sealed.push(kind);
            nonce[4..].iter_mut().zip(sequence).for_each(|(byte, n)| *byte ^= n);
            record[0] = APPLICATION_DATA;
            record.extend(length(sealed.len() + 16));
            self.encrypt(nonce, &record, &mut sealed);
        } else {
            // RFC 5288 §3: the nonce's second part is ours to choose, and stands before the text.
            nonce[4..].copy_from_slice(&sequence);
            let known = [&sequence[..], &record, &length(content.len())].concat();
            record.extend(length(8 + sealed.len() + 16));
            record.extend(sequence);
            self.encrypt(nonce, &known, &mut sealed);
        }
        record.extend(sealed);
        record
    }

    fn encrypt(&self, nonce: [u8; 12], known: &[u8], text: &mut Vec<u8>) {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, Aad::from(known), text).expect("encrypts");
    }
}
