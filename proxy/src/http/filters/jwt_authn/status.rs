//! What became of a token: the words that clients, logs and metadata get, and Envoy's numbers for them.

macro_rules! statuses {
    ($($name:ident $code:literal $text:literal,)*) => {
        /// The outcome of a verification.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Status { $($name,)* }

        impl Status {
            pub(super) fn text(self) -> &'static str { match self { $(Self::$name => $text,)* } }
            /// As `failed_status_in_metadata` tells it.
            pub(super) fn code(self) -> u32 { match self { $(Self::$name => $code,)* } }
        }
    };
}

statuses! {
    Ok 0 "OK",
    Missed 1 "Jwt is missing",
    NotYetValid 2 "Jwt not yet valid",
    Expired 3 "Jwt is expired",
    BadFormat 4 "Jwt is not in the form of Header.Payload.Signature with two dots and 3 sections",
    HeaderBadBase64 5 "Jwt header is an invalid Base64url encoded",
    HeaderBadJson 6 "Jwt header is an invalid JSON",
    HeaderBadAlg 7 "Jwt header [alg] field is required and must be a string",
    HeaderNotImplementedAlg 8 "Jwt header [alg] is not supported",
    HeaderBadKid 9 "Jwt header [kid] field is not a string",
    PayloadBadBase64 10 "Jwt payload is an invalid Base64url encoded",
    PayloadBadJson 11 "Jwt payload is an invalid JSON",
    IssNotString 12 "Jwt payload [iss] field is not a string",
    SubNotString 13 "Jwt payload [sub] field is not a string",
    IatNotInteger 14 "Jwt payload [iat] field is not an integer",
    IatOutOfRange 15 "Jwt payload [iat] field is not a positive 64 bit integer",
    NbfNotInteger 16 "Jwt payload [nbf] field is not an integer",
    NbfOutOfRange 17 "Jwt payload [nbf] field is not a positive 64 bit integer",
    ExpNotInteger 18 "Jwt payload [exp] field is not an integer",
    ExpOutOfRange 19 "Jwt payload [exp] field is not a positive 64 bit integer",
    JtiNotString 20 "Jwt payload [jti] field is not a string",
    AudNotString 21 "Jwt payload [aud] field is not a string or string list",
    SignatureBadBase64 22 "Jwt signature is an invalid Base64url encoded",
    UnknownIssuer 24 "Jwt issuer is not configured",
    AudienceNotAllowed 25 "Audiences in Jwt are not allowed",
    VerificationFail 26 "Jwt verification fails",
    JwksKidAlgMismatch 32 "Jwks doesn't have key to match kid or alg from Jwt",
    JwksFetchFail 40 "Jwks remote fetch is failed",
}
