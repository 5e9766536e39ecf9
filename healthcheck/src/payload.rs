//! Bytes that a check sends or wants to see: written as hexadecimal text, or as they are.

use memchr::memmem;
use nuncio_api::pb::envoy::config::core::v3::health_check::{Payload as Message, payload::Payload as Form};
use nuncio_core::error::ConfigError;

/// Reads one payload.
pub fn read(message: &Message) -> Result<Vec<u8>, ConfigError> {
    match &message.payload {
        Some(Form::Text(text)) => {
            from_hex(text).ok_or_else(|| ConfigError::new("text", format!("invalid hex string '{text}'")))
        }
        Some(Form::Binary(bytes)) => Ok(bytes.clone()),
        None => Err(ConfigError::new("payload", "value is required")),
    }
}

/// Reads a list of them; `path` is its field.
pub fn read_list(messages: &[Message], path: &str) -> Result<Vec<Vec<u8>>, ConfigError> {
    let each = messages.iter().enumerate();
    each.map(|(at, message)| read(message).map_err(|e| e.within(&format!("{path}[{at}]")))).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// All of `expected` are in `received`, in this order, whatever stands between them.
pub fn matches(expected: &[Vec<u8>], received: &[u8]) -> bool {
    let mut rest = received;
    expected.iter().all(|wanted| match memmem::find(rest, wanted) {
        Some(at) => {
            rest = &rest[at + wanted.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_hexadecimal() {
        let text = |text: &str| read(&Message { payload: Some(Form::Text(text.into())) });
        assert_eq!(text("50494e47").unwrap(), b"PING");
        assert_eq!(text("aab").unwrap_err().to_string(), "text: invalid hex string 'aab'");
        assert_eq!(text("zz").unwrap_err().to_string(), "text: invalid hex string 'zz'");
        assert_eq!(read(&Message { payload: Some(Form::Binary(vec![0, 1])) }).unwrap(), [0, 1]);
    }

    #[test]
    fn blocks_are_found_in_order_with_gaps_between() {
        let expected = [b"ab".to_vec(), b"cd".to_vec()];
        assert!(matches(&expected, b"xabyycdz"));
        assert!(matches(&expected, b"abcd"));
        assert!(!matches(&expected, b"cdab"));
        assert!(!matches(&expected, b"abc"));
        assert!(matches(&[], b""));
        // A byte that one block took is not there for the next.
        assert!(!matches(&[b"aa".to_vec(), b"aa".to_vec()], b"aaa"));
    }
}
