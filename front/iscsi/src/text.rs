//! `key=value` text of login and text PDUs (RFC 7143 6.1): parsing, building, and the forms of values.

use std::fmt::{self, Display, Write as _};
use std::str;

/// Most bytes of a key (RFC 7143 6.1).
pub const KEY_MAX: usize = 63;
/// Most bytes of a value, unless its key says otherwise (RFC 7143 6.1).
pub const VALUE_MAX: usize = 255;
/// The value that marks a key as irrelevant (RFC 7143 6.2).
pub const IRRELEVANT: &str = "Irrelevant";
/// The value that rejects an offer (RFC 7143 6.2).
pub const REJECT: &str = "Reject";
/// The value that answers an unknown key (RFC 7143 6.2).
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
/// The list value that selects nothing.
pub const NONE: &str = "None";

/// Why a text is malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// The last pair does not end with NUL.
    NoEnd,
    /// A pair has no `=`.
    NoEquals,
    /// A key is empty, too long, or has characters that RFC 7143 6.1 does not allow.
    Key,
    /// A value is not UTF-8.
    Value,
}

impl Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoEnd => "the last pair does not end with NUL",
            Self::NoEquals => "a pair has no equals sign",
            Self::Key => "a key is not valid",
            Self::Value => "a value is not UTF-8",
        })
    }
}

/// Iterates over the pairs of a complete text, and ends after an error.
#[derive(Clone, Debug)]
pub struct Pairs<'a>(&'a [u8]);

/// The pairs of a complete text as (key, value). Empty pairs are skipped, because some initiators pad with NUL.
#[must_use]
pub fn pairs(text: &[u8]) -> Pairs<'_> {
    Pairs(text)
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Result<(&'a str, &'a str), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        while let [0, rest @ ..] = self.0 {
            self.0 = rest;
        }
        if self.0.is_empty() {
            return None;
        }
        let pair = match self.0.iter().position(|&byte| byte == 0) {
            Some(end) => pair(&self.0[..end]).inspect(|_| self.0 = &self.0[end + 1..]),
            None => Err(Malformed::NoEnd),
        };
        if pair.is_err() {
            self.0 = &[];
        }
        Some(pair)
    }
}

fn pair(bytes: &[u8]) -> Result<(&str, &str), Malformed> {
    let equals = bytes.iter().position(|&byte| byte == b'=').ok_or(Malformed::NoEquals)?;
    let (key, value) = (&bytes[..equals], &bytes[equals + 1..]);
    if key.is_empty() || key.len() > KEY_MAX || !key.iter().all(|&byte| is_key_byte(byte)) {
        return Err(Malformed::Key);
    }
    let key = str::from_utf8(key).map_err(|_| Malformed::Key)?;
    let value = str::from_utf8(value).map_err(|_| Malformed::Value)?;
    Ok((key, value))
}

fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-+@_#/".contains(&byte)
}

/// Appends a pair.
pub fn put(text: &mut Vec<u8>, key: &str, value: impl Display) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    let start = text.len();
    text.extend_from_slice(value.to_string().as_bytes());
    debug_assert!(!text[start..].contains(&0), "a value has no NUL");
    text.push(0);
}

/// A text that arrives in several PDUs, up to a limit.
#[derive(Debug, Default)]
pub struct TextBuffer(Vec<u8>);

/// A text exceeds its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

impl TextBuffer {
    /// Appends the next part.
    ///
    /// # Errors
    /// [`TooLong`] when the text would have more than `limit` bytes.
    pub fn add(&mut self, part: &[u8], limit: usize) -> Result<(), TooLong> {
        if self.0.len() + part.len() > limit {
            return Err(TooLong);
        }
        self.0.extend_from_slice(part);
        Ok(())
    }

    /// The text received so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Takes the complete text; the buffer is empty afterwards.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// The value of `Yes` or `No`; `None` for other text.
#[must_use]
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// The text of a boolean.
#[must_use]
pub fn yes_or_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// A decimal or hexadecimal (0x) number; `None` for other text. RFC 7143 6.1: a decimal number other than 0 begins with
/// a digit that is not zero. With a leading zero, other implementations read an octal number.
#[must_use]
pub fn number(value: &str) -> Option<u64> {
    let (digits, radix) = match hex_digits(value) {
        Some(digits) => (digits, 16),
        None if value.len() > 1 && value.starts_with('0') => return None,
        None => (value, 10),
    };
    // `from_str_radix` also accepts a sign.
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if plain { u64::from_str_radix(digits, radix).ok() } else { None }
}

/// A range of numbers, `low~high`; `None` for other text.
#[must_use]
pub fn range(value: &str) -> Option<(u64, u64)> {
    let (low, high) = value.split_once('~')?;
    let (low, high) = (number(low)?, number(high)?);
    (low <= high).then_some((low, high))
}

/// The values of a list, in order of preference.
pub fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',')
}

/// Bytes in hexadecimal (0x) or base64 (0b); `None` for other text, and for more than `limit` bytes.
#[must_use]
pub fn binary(value: &str, limit: usize) -> Option<Vec<u8>> {
    let bytes = match (hex_digits(value), value.get(..2)) {
        (Some(digits), _) => hex(digits)?,
        (None, Some("0b" | "0B")) => base64(&value[2..])?,
        _ => return None,
    };
    (bytes.len() <= limit).then_some(bytes)
}

/// The hexadecimal text of bytes.
#[must_use]
pub fn as_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("0x"), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn hex_digits(value: &str) -> Option<&str> {
    value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"))
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let nibbles: Option<Vec<u8>> =
        digits.chars().map(|digit| digit.to_digit(16).and_then(|nibble| u8::try_from(nibble).ok())).collect();
    let nibbles = nibbles?;
    // With an odd number of digits, the first byte has one digit.
    let (odd, pairs) = nibbles.split_at(nibbles.len() % 2);
    Some(odd.iter().copied().chain(pairs.chunks_exact(2).map(|pair| pair[0] * 16 + pair[1])).collect())
}

fn base64(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0u32);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
            bits &= (1 << count) - 1;
        }
    }
    // The unused bits of the last digit must be zero, and fewer than one digit.
    (count < 6 && bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &[u8]) -> Result<Vec<(&str, &str)>, Malformed> {
        pairs(text).collect()
    }

    #[test]
    fn pairs_are_parsed() {
        assert_eq!(
            parsed(b"InitiatorName=iqn.a:b\0SessionType=Normal\0Empty=\0X-a=b=c\0"),
            Ok(vec![("InitiatorName", "iqn.a:b"), ("SessionType", "Normal"), ("Empty", ""), ("X-a", "b=c")])
        );
        assert_eq!(parsed(b""), Ok(vec![]));
        assert_eq!(parsed(b"\0\0A=b\0\0\0"), Ok(vec![("A", "b")]));
    }

    #[test]
    fn malformed_text_is_an_error() {
        assert_eq!(parsed(b"A=b"), Err(Malformed::NoEnd));
        assert_eq!(parsed(b"A=b\0C=d"), Err(Malformed::NoEnd));
        assert_eq!(parsed(b"Ab\0"), Err(Malformed::NoEquals));
        assert_eq!(parsed(b"=b\0"), Err(Malformed::Key));
        assert_eq!(parsed(b"A b=c\0"), Err(Malformed::Key));
        assert_eq!(parsed(b"A\xff=c\0"), Err(Malformed::Key));
        assert_eq!(parsed(&[&[b'k'; KEY_MAX + 1][..], b"=c\0"].concat()), Err(Malformed::Key));
        assert!(parsed(&[&[b'k'; KEY_MAX][..], b"=c\0"].concat()).is_ok());
        assert_eq!(parsed(b"A=\xff\0"), Err(Malformed::Value));
    }

    #[test]
    fn pairs_end_after_an_error() {
        let mut walk = pairs(b"bad\0A=b\0");
        assert_eq!(walk.next(), Some(Err(Malformed::NoEquals)));
        assert_eq!(walk.next(), None);
    }

    #[test]
    fn a_text_buffer_has_a_limit() {
        let mut gather = TextBuffer::default();
        assert_eq!(gather.add(b"A=", 4), Ok(()));
        assert_eq!(gather.add(b"b\0", 4), Ok(()));
        assert_eq!(gather.add(b"x", 4), Err(TooLong));
        assert_eq!(gather.bytes(), b"A=b\0");
        assert_eq!(gather.take(), b"A=b\0");
        assert_eq!(gather.bytes(), b"");
    }

    #[test]
    fn booleans_numbers_and_lists_are_parsed() {
        assert_eq!((boolean("Yes"), boolean("No"), boolean("yes")), (Some(true), Some(false), None));
        assert_eq!((yes_or_no(true), yes_or_no(false)), ("Yes", "No"));
        assert_eq!((number("0"), number("0x00")), (Some(0), Some(0)));
        assert_eq!((number("262144"), number("0x40000"), number("0X0a")), (Some(262_144), Some(262_144), Some(10)));
        for bad in ["", "+1", "-1", "1k", "0x", "0x+1", " 1", "99999999999999999999", "010", "00"] {
            assert_eq!(number(bad), None, "{bad}");
        }
        assert_eq!(range("1~0x10"), Some((1, 16)));
        assert_eq!((range("2~1"), range("2"), range("~2")), (None, None, None));
        assert_eq!(list("CHAP,None").collect::<Vec<_>>(), ["CHAP", "None"]);
    }

    #[test]
    fn bytes_are_hexadecimal_or_base64() {
        assert_eq!(as_hex(&[0x0a, 0xff]), "0x0aff");
        assert_eq!(binary("0x0aFF", 2), Some(vec![0x0a, 0xff]));
        assert_eq!(binary("0xaff", 2), Some(vec![0x0a, 0xff]));
        assert_eq!(binary("0bTHVuYXI=", 5), Some(b"Lunar".to_vec()));
        assert_eq!(binary("0bTHVuYXI=", 4), None);
        for bad in ["", "0", "aff", "0xag", "0b?", "0bT", "0bTH=x", "é"] {
            assert_eq!(binary(bad, 9), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn pairs_that_were_built_are_parsed(
            list in prop::collection::vec(("[A-Z][a-zA-Z0-9.+@_-]{0,62}", "[^\0]{0,40}"), 0..20)
        ) {
            let mut text = Vec::new();
            for (key, value) in &list {
                put(&mut text, key, value);
            }
            let found = parsed(&text).expect("was put");
            prop_assert_eq!(found.len(), list.len());
            for ((key, value), found) in list.iter().zip(found) {
                prop_assert_eq!((&key[..], &value[..]), found);
            }
        }

        #[test]
        fn any_bytes_are_parsed_to_an_end(bytes: Vec<u8>) {
            prop_assert!(pairs(&bytes).count() <= bytes.len() + 1);
        }

        #[test]
        fn any_value_is_parsed_or_refused(value: String) {
            let _ = (number(&value), range(&value), binary(&value, 10), boolean(&value), list(&value).count());
        }

        #[test]
        fn hexadecimal_bytes_are_parsed_as_they_were_built(bytes: Vec<u8>) {
            prop_assert_eq!(binary(&as_hex(&bytes), bytes.len()), Some(bytes));
        }
    }
}
