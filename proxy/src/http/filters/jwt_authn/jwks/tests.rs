use super::*;

/// The payload of RFC 7515 A.1 to A.3: issuer joe, expires in 2011.
const JOE: &str = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";

const A1_KEY: &str =
    r#"{"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}"#;
const A1_SIGNATURE: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const A2_KEY: &str = r#"{"kty":"RSA","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ","e":"AQAB"}"#;
const A2_SIGNATURE: &str = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
const A3_KEY: &str = r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#;
const A3_SIGNATURE: &str = "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
const A4_KEY: &str = r#"{"kty":"EC","crv":"P-521","x":"AekpBQ8ST8a8VcfVOTNl353vSrDCLLJXmPk06wTjxrrjcBpXp5EOnYG_NjFZ6OvLFV1jSfS9tsz4qUxcWceqwQGk","y":"ADSmRA43Z1DSNx_RvcLI87cdL07l6jQyyBXMoxVg_l2Th-x3S1WDhjDly79ajL4Kkd0AZMaZmh9ubmf63e3kyMj2"}"#;
const A4_SIGNATURE: &str = "AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7XdtAG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn";
const ED25519_KEY: &str = r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
const ED25519_SIGNATURE: &str =
    "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";

fn keys(list: &[&str]) -> Jwks {
    Jwks::parse(format!(r#"{{"keys":[{}]}}"#, list.join(",")).as_bytes()).unwrap()
}

fn encoded(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

fn verify(jwks: &Jwks, header: &str, payload: &str, signature: &str) -> Status {
    Jwt::parse(format!("{header}.{payload}.{signature}").as_bytes())
        .map_or_else(|status| status, |jwt| jwks.verify(&jwt))
}

// RFC 7515 A.1 (also RFC 7519 §3.1), A.2, A.3.
#[test]
fn the_tokens_of_the_rfc_are_good_and_changed_ones_are_not() {
    let all = keys(&[A1_KEY, A2_KEY, A3_KEY]);
    let a1 = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9";
    for (header, signature) in
        [(a1, A1_SIGNATURE), ("eyJhbGciOiJSUzI1NiJ9", A2_SIGNATURE), ("eyJhbGciOiJFUzI1NiJ9", A3_SIGNATURE)]
    {
        assert_eq!(verify(&all, header, JOE, signature), Status::Ok, "{header}");
        let other = encoded(r#"{"iss":"joe","admin":true}"#);
        assert_eq!(verify(&all, header, &other, signature), Status::VerificationFail, "{header}");
    }
}

// RFC 7515 A.4 and RFC 8037 A.4: their payloads are no JSON, so only the signature is asked about.
#[test]
fn es512_and_ed25519_signatures_of_the_rfcs_are_good() {
    for (key, signed, signature, algorithm) in [
        (A4_KEY, "eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA", A4_SIGNATURE, Algorithm::Es512),
        (ED25519_KEY, "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc", ED25519_SIGNATURE, Algorithm::EdDsa),
    ] {
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let material = &keys(&[key]).0[0].material;
        assert!(material.verifies(algorithm, signed.as_bytes(), &signature), "{algorithm:?}");
        assert!(!material.verifies(algorithm, b"else", &signature), "{algorithm:?}");
        assert!(!material.verifies(Algorithm::Es256, signed.as_bytes(), &signature), "{algorithm:?}");
    }
}

// RFC 7515 A.5, RFC 8725 §2.1: `none` is no algorithm, in whatever spelling, with or without a signature.
#[test]
fn a_token_that_says_it_needs_no_signature_is_refused() {
    let all = keys(&[A1_KEY, A2_KEY, A3_KEY]);
    assert_eq!(verify(&all, "eyJhbGciOiJub25lIn0", JOE, ""), Status::BadFormat);
    for none in ["none", "None", "NONE", "nOnE", ""] {
        let header = encoded(&format!(r#"{{"alg":"{none}"}}"#));
        assert_eq!(verify(&all, &header, JOE, A1_SIGNATURE), Status::HeaderNotImplementedAlg, "{none}");
    }
}

// RFC 8725 §2.1: the public RSA key, used as if it were an HMAC secret, must not verify.
#[test]
fn a_public_key_is_never_a_secret() {
    let value: Value = serde_json::from_str(A2_KEY).unwrap();
    let header = encoded(r#"{"alg":"HS256"}"#);
    let signed = format!("{header}.{JOE}");
    let rsa = keys(&[A2_KEY]);
    for secret in [A2_KEY.as_bytes(), value["n"].as_str().unwrap().as_bytes()] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
        assert_eq!(verify(&rsa, &header, JOE, &URL_SAFE_NO_PAD.encode(tag)), Status::VerificationFail);
    }
    // And a key that names its algorithm is not even tried.
    let named = keys(&[&A2_KEY.replace('}', r#","alg":"RS256"}"#)]);
    assert_eq!(verify(&named, &header, JOE, A1_SIGNATURE), Status::JwksKidAlgMismatch);
}

#[test]
fn the_key_id_chooses_and_unreadable_keys_are_left_out() {
    let with_kid = |key: &str, kid: &str| key.replace('}', &format!(r#","kid":"{kid}"}}"#));
    let jwks = keys(&[&with_kid(A3_KEY, "ec"), &with_kid(A2_KEY, "rsa"), r#"{"kty":"weird"}"#]);
    assert_eq!(jwks.0.len(), 2);
    let header = |kid: &str| encoded(&format!(r#"{{"alg":"RS256","kid":"{kid}"}}"#));
    assert_eq!(verify(&jwks, &header("nobody"), JOE, A2_SIGNATURE), Status::JwksKidAlgMismatch);
    assert_eq!(verify(&jwks, &header("ec"), JOE, A2_SIGNATURE), Status::VerificationFail);
    assert_eq!(verify(&jwks, "eyJhbGciOiJSUzI1NiJ9", JOE, A2_SIGNATURE), Status::Ok);
    for bad in
        ["nonsense", r#"{"x":1}"#, r#"{"keys":[]}"#, r#"{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]}"#]
    {
        assert!(Jwks::parse(bad.as_bytes()).is_err(), "{bad}");
    }
}
