//! Chance, handed in: one generator per worker, seeded from the system in production and by a
//! constant in tests.

use std::cell::RefCell;
use std::rc::Rc;

/// A cloneable handle of a worker's generator. Not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(Rc<RefCell<fastrand::Rng>>);

impl Rng {
    /// Seeded by the operating system.
    pub fn from_os() -> Self {
        Self(Rc::new(RefCell::new(fastrand::Rng::new())))
    }

    pub fn with_seed(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(fastrand::Rng::with_seed(seed))))
    }

    pub fn u64(&self) -> u64 {
        self.0.borrow_mut().u64(..)
    }

    /// Uniform in `0..n`; 0 when `n` is 0.
    pub fn below(&self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.0.borrow_mut().u64(0..n) }
    }

    /// Uniform in `[0, 1)`.
    pub fn f64(&self) -> f64 {
        self.0.borrow_mut().f64()
    }

    /// A random (version 4) UUID in its text form, RFC 9562 §5.4.
    pub fn uuid_v4(&self) -> [u8; 36] {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut raw = [0u8; 16];
        {
            let mut rng = self.0.borrow_mut();
            raw[..8].copy_from_slice(&rng.u64(..).to_be_bytes());
            raw[8..].copy_from_slice(&rng.u64(..).to_be_bytes());
        }
        raw[6] = raw[6] & 0x0f | 0x40;
        raw[8] = raw[8] & 0x3f | 0x80;
        let mut out = [b'-'; 36];
        let mut at = 0;
        for (i, b) in raw.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                at += 1;
            }
            out[at] = HEX[usize::from(b >> 4)];
            out[at + 1] = HEX[usize::from(b & 15)];
            at += 2;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_the_version_and_variant_of_rfc_9562() {
        let rng = Rng::with_seed(7);
        for _ in 0..100 {
            let id = rng.uuid_v4();
            assert_eq!(id[14], b'4');
            assert!(matches!(id[19], b'8' | b'9' | b'a' | b'b'));
            assert_eq!([id[8], id[13], id[18], id[23]], [b'-'; 4]);
        }
    }
}
