//! JSON Web Keys (RFC 7517) and what they verify. A key serves the algorithms of its kind alone, whatever
//! a token claims: an RSA key is never a shared secret.

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{
    self, EcdsaVerificationAlgorithm, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::status::Status;
use super::token::{Algorithm, Jwt};

/// A set of keys, of which those that could not be read were left out.
#[derive(Debug)]
pub(super) struct Jwks(Vec<Key>);

#[derive(Debug)]
struct Key {
    kid: Option<String>,
    algorithm: Option<String>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    Ec { curve: Curve, point: Vec<u8> },
    Secret(Vec<u8>),
    Ed25519(Vec<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Curve {
    P256,
    P384,
    P521,
}

impl Curve {
    fn algorithm(self) -> Algorithm {
        match self {
            Self::P256 => Algorithm::Es256,
            Self::P384 => Algorithm::Es384,
            Self::P521 => Algorithm::Es512,
        }
    }

    /// Bytes of a coordinate.
    fn size(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }
}

impl Jwks {
    /// The error is Envoy's sentence.
    pub(super) fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let value: Value = serde_json::from_slice(text).map_err(|_| "Jwks is an invalid JSON")?;
        let keys = value.get("keys").ok_or("Jwks does not have [keys] field")?;
        let keys = keys.as_array().ok_or("[keys] in Jwks is not an array")?;
        let read: Vec<Key> = keys.iter().filter_map(Key::parse).collect();
        if read.is_empty() { Err("Jwks doesn't have any valid public key") } else { Ok(Self(read)) }
    }

    /// With each key that the token's `kid` and `alg` may mean.
    pub(super) fn verify(&self, jwt: &Jwt) -> Status {
        let name = jwt.header.get("alg").and_then(Value::as_str);
        let may_mean = |key: &&Key| {
            let named = jwt.kid.is_none() || key.kid.is_none() || key.kid == jwt.kid;
            named && (key.algorithm.is_none() || key.algorithm.as_deref() == name)
        };
        let mut keys = self.0.iter().filter(may_mean).peekable();
        if keys.peek().is_none() {
            return Status::JwksKidAlgMismatch;
        }
        match keys.any(|key| key.material.verifies(jwt.algorithm, jwt.signed.as_bytes(), &jwt.signature)) {
            true => Status::Ok,
            false => Status::VerificationFail,
        }
    }
}

impl Key {
    fn parse(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?.trim_end_matches('=')).ok();
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let material = match (text("kty")?, text("crv")) {
            ("RSA", _) => {
                let number = |name| bytes(name).map(|b| b.into_iter().skip_while(|b| *b == 0).collect::<Vec<u8>>());
                Material::Rsa { n: number("n").filter(|n| !n.is_empty())?, e: number("e").filter(|e| !e.is_empty())? }
            }
            ("EC", crv) => {
                let curve = match crv? {
                    "P-256" => Curve::P256,
                    "P-384" => Curve::P384,
                    "P-521" => Curve::P521,
                    _ => return None,
                };
                let coordinate = |name| bytes(name).filter(|b| b.len() == curve.size());
                Material::Ec { curve, point: [&[4][..], &coordinate("x")?, &coordinate("y")?].concat() }
            }
            ("oct", _) => Material::Secret(bytes("k").filter(|k| !k.is_empty())?),
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes("x").filter(|x| x.len() == 32)?),
            _ => return None,
        };
        Some(Self { kid: text("kid").map(str::to_owned), algorithm: text("alg").map(str::to_owned), material })
    }
}

impl Material {
    fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Rsa { n, e } => rsa(algorithm)
                .is_some_and(|with| RsaPublicKeyComponents { n, e }.verify(with, message, signature).is_ok()),
            Self::Ec { curve, point } => {
                curve.algorithm() == algorithm
                    && UnparsedPublicKey::new(ecdsa(*curve), point).verify(message, signature).is_ok()
            }
            Self::Secret(key) => hmac_of(algorithm)
                .is_some_and(|with| hmac::verify(&hmac::Key::new(with, key), message, signature).is_ok()),
            Self::Ed25519(key) => {
                algorithm == Algorithm::EdDsa
                    && UnparsedPublicKey::new(&signature::ED25519, key).verify(message, signature).is_ok()
            }
        }
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
        Algorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
        Algorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn ecdsa(curve: Curve) -> &'static EcdsaVerificationAlgorithm {
    match curve {
        Curve::P256 => &signature::ECDSA_P256_SHA256_FIXED,
        Curve::P384 => &signature::ECDSA_P384_SHA384_FIXED,
        Curve::P521 => &signature::ECDSA_P521_SHA512_FIXED,
    }
}

fn hmac_of(algorithm: Algorithm) -> Option<hmac::Algorithm> {
    Some(match algorithm {
        Algorithm::Hs256 => hmac::HMAC_SHA256,
        Algorithm::Hs384 => hmac::HMAC_SHA384,
        Algorithm::Hs512 => hmac::HMAC_SHA512,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
