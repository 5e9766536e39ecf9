use std::io::Read;

use super::super::testing::{Bench, FILTERS};

const GZIP: &str = "type.googleapis.com/envoy.extensions.compression.gzip.compressor.v3.Gzip";

fn filter(rest: &str) -> String {
    format!(
        r#"{{name: c, typed_config: {{"@type": {FILTERS}.compressor.v3.Compressor, compressor_library: {{name: text, typed_config: {{"@type": {GZIP}}}}}, {rest}}}}}"#
    )
}

fn routes() -> String {
    format!(
        r#"{{match: {{prefix: /off}}, route: {{cluster: c}}, typed_per_filter_config: {{c: {{"@type": {FILTERS}.compressor.v3.CompressorPerRoute, disabled: true}}}}}}, {{match: {{prefix: /}}, route: {{cluster: c}}}}"#
    )
}

fn answer(fields: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{fields}content-length: {}\r\n\r\n{body}", body.len())
}

const ASK: &str = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\naccept-encoding: gzip\r\n\r\n";

// Expected: recorded from Envoy 1.40 (filter_compressor).
#[tokio::test(flavor = "local", start_paused = true)]
async fn only_what_is_worth_it_and_may_be_changed_is_compressed() {
    let bench = Bench::new(&filter("response_direction_config: {}"), &routes());
    let text = "compress me please ".repeat(40);
    for (fields, compressed) in [
        ("content-type: text/plain\r\n", true),
        ("", true),
        ("content-type: TEXT/PLAIN; charset=x\r\n", true),
        ("content-type: image/png\r\n", false),
        ("content-encoding: identity\r\n", false),
        ("cache-control: public, No-Transform\r\n", false),
        ("etag: \"strong\"\r\n", true),
    ] {
        let answer = bench.ask(ASK, &answer(fields, &text)).await;
        assert_eq!(answer.field("content-encoding") == Some("gzip"), compressed, "{fields}");
        assert_eq!(answer.field("vary").is_some(), compressed, "{fields}");
        assert_eq!(answer.field("content-length").is_none(), compressed, "{fields}");
        assert_eq!(answer.field("etag"), None, "{fields}");
    }
    let answer = bench.ask(ASK, &answer("content-type: text/plain\r\n", &text[..29])).await;
    assert_eq!((answer.field("content-encoding"), answer.body()), (None, &text[..29]));
    let stats = ["response.compressed", "response.not_compressed", "response.content_length_too_small"];
    assert_eq!(stats.map(|s| bench.stat(&format!("http.in.compressor.text.gzip.{s}"))), [4, 4, 1]);
    assert_eq!(bench.stat("http.in.compressor.text.gzip.request.not_compressed"), 8);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_route_may_switch_it_off_and_an_etag_be_weakened() {
    let bench = Bench::new(&filter("response_direction_config: {weaken_etag_on_compress: true}"), &routes());
    let text = "compress me please ".repeat(40);
    let answered = bench.ask(ASK, &answer("etag: \"v1\"\r\n", &text)).await;
    assert_eq!(answered.field("etag"), Some("W/\"v1\""));
    let off = ASK.replace("GET /", "GET /off");
    assert_eq!(bench.ask(&off, &answer("", &text)).await.body(), text);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_request_body_is_compressed_where_that_is_configured() {
    let bench = Bench::new(&filter("request_direction_config: {}"), &routes());
    let body = "x".repeat(1_000);
    let answer = bench.request("POST", "/", "", &body).await;
    assert_eq!(answer.upstream_field("content-encoding"), Some("gzip"));
    assert_eq!(answer.upstream_field("content-length"), None);
    let mut plain = String::new();
    flate2::read::GzDecoder::new(&unchunk(answer.upstream_body())[..]).read_to_string(&mut plain).unwrap();
    assert_eq!(plain, body);
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = bytes.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..at]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        out.extend_from_slice(&bytes[at + 2..at + 2 + size]);
        bytes = &bytes[at + 4 + size..];
    }
    out
}

// Expected: Envoy 1.40 with the same settings.
#[tokio::test(flavor = "local", start_paused = true)]
async fn a_response_tells_what_became_of_it_and_why() {
    let settings = "response_direction_config: {status_header_enabled: true, disable_on_etag_header: true, \
                    uncompressible_response_codes: [203]}";
    let bench = Bench::new(&filter(settings), &routes());
    let text = "compress me please ".repeat(40);
    let (plain, png) = ("content-type: text/plain\r\n", "content-type: image/png\r\n");
    for (status, fields, body, told) in [
        (200, plain.to_owned(), &text[..], Some("gzip;Compressed;OriginalLength=760")),
        (200, png.to_owned(), &text[..1], Some("gzip;ContentLengthTooSmall")),
        (203, format!("{png}etag: a\r\n"), &text, Some("gzip;ContentTypeNotAllowed")),
        (203, format!("{plain}etag: a\r\n"), &text, Some("gzip;EtagNotAllowed")),
        (203, plain.to_owned(), &text, Some("gzip;StatusCodeNotAllowed")),
        (200, format!("{plain}content-encoding: br\r\n"), &text, None),
        (200, format!("{plain}cache-control: no-transform\r\n"), &text, None),
    ] {
        let upstream = answer(&fields, body).replace("200 OK", &format!("{status} X"));
        let answer = bench.ask(ASK, upstream).await;
        assert_eq!(answer.field("x-envoy-compression-status"), told, "{status} {fields}");
    }
    // That a client does not accept it is no news to the client.
    let ask = ASK.replace("gzip", "br");
    let answer = bench.ask(ask, answer(plain, &text)).await;
    assert_eq!(answer.field("x-envoy-compression-status"), None);
}
