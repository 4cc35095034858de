//! The text form of NVMe keys: a prefix for the purpose, a hash function, and the key in base64 followed by a
//! checksum, separated by colons (NVMe Base 2.0 8.13.5.8, NVMe/TCP Transport 1.1 3.6.1.5).

use base64ct::{Base64, Encoding};
use crc::{CRC_32_ISO_HDLC, Crc};
use std::fmt;
use zeroize::Zeroizing;

/// Bytes of the checksum of a key.
const CHECK_LEN: usize = 4;

static CHECK: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// The purpose of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Authentication: DH-HMAC-CHAP.
    DhHmacChap,
    /// TLS pre-shared key.
    TlsPsk,
}

impl Purpose {
    /// The prefix of the text.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::DhHmacChap => "DHHC-1:",
            Self::TlsPsk => "NVMeTLSkey-1:",
        }
    }

    /// The hash functions, by their numbers in the text: 0 is none.
    fn hashes(self) -> u8 {
        match self {
            Self::DhHmacChap => 3,
            Self::TlsPsk => 2,
        }
    }

    /// The lengths of a key with this hash function, in bytes: a TLS key is as long as the digest.
    fn lengths(self, hash: u8) -> &'static [usize] {
        match (self, hash) {
            (Self::DhHmacChap, _) => &[32, 48, 64],
            (Self::TlsPsk, 0) => &[32, 48],
            (Self::TlsPsk, 1) => &[32],
            (Self::TlsPsk, _) => &[48],
        }
    }
}

/// A key with its hash function. Its bytes are wiped when it is dropped, and never printed.
#[derive(Clone)]
pub struct Written {
    /// The hash function: 1 SHA-256, 2 SHA-384, 3 SHA-512; 0: the key is used as it is.
    pub hash: u8,
    /// The key.
    pub bytes: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

impl Written {
    /// Parses the text of a key: `DHHC-1:01:BASE64:`, `NVMeTLSkey-1:01:BASE64:`.
    ///
    /// # Errors
    /// [`KeyMistake`].
    pub fn parse(purpose: Purpose, text: &[u8]) -> Result<Self, KeyMistake> {
        let text = std::str::from_utf8(text).map_err(|_| KeyMistake::Shape)?;
        let rest = text.strip_prefix(purpose.prefix()).ok_or(KeyMistake::Shape)?;
        let (hash, rest) = rest.split_once(':').ok_or(KeyMistake::Shape)?;
        let hash = match hash.as_bytes() {
            [b'0', digit @ b'0'..=b'3'] if digit - b'0' <= purpose.hashes() => digit - b'0',
            _ => return Err(KeyMistake::Hash),
        };
        let encoded = rest.strip_suffix(':').ok_or(KeyMistake::Shape)?;
        let mut bytes = Zeroizing::new(Base64::decode_vec(encoded).map_err(|_| KeyMistake::Encoding)?);
        let len = bytes.len().checked_sub(CHECK_LEN).filter(|len| purpose.lengths(hash).contains(len));
        let len = len.ok_or(KeyMistake::Length)?;
        if bytes[len..] != CHECK.checksum(&bytes[..len]).to_le_bytes() {
            return Err(KeyMistake::Check);
        }
        bytes.truncate(len);
        Ok(Self { hash, bytes })
    }
}

/// Why a text is no valid key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyMistake {
    /// The text does not have the form of a key.
    Shape,
    /// The number of the hash function is not defined.
    Hash,
    /// The text between the last two colons is not base64.
    Encoding,
    /// The key has a length that is not allowed.
    Length,
    /// The checksum does not match: the key was not copied completely.
    Check,
}

impl fmt::Display for KeyMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shape => {
                "a key has the form DHHC-1:01:...: (nvme gen-dhchap-key makes one), a TLS key NVMeTLSkey-1:01:...: \
                 (nvme gen-tls-key)"
            }
            Self::Hash => {
                "the hash of a key, after its first colon, is 00, 01, 02 or 03; that of a TLS key 00, 01 or 02"
            }
            Self::Encoding => "the text between the last two colons of a key is not base64",
            Self::Length => "a key has 32, 48 or 64 bytes; a TLS key has 32 after 01, 48 after 02, either after 00",
            Self::Check => "the checksum of the key does not match: the key was not copied completely",
        })
    }
}

impl std::error::Error for KeyMistake {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification (NVMe Base 2.0 8.13.5.8).
    const EXAMPLE: &str = "ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n";
    /// A key from the tests of libnvme.
    const CHANNEL: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const LONG: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

    #[test]
    fn keys_are_read() {
        for hash in 0..=3 {
            let text = format!("DHHC-1:0{hash}:{EXAMPLE}:");
            let found = Written::parse(Purpose::DhHmacChap, text.as_bytes()).expect("a key");
            assert_eq!((found.hash, found.bytes.len(), found.bytes[0], found.bytes[31]), (hash, 32, 0x89, 0x4c));
            assert_eq!(format!("{found:?}"), "Written");
        }
        for (text, hash, len) in [(CHANNEL, 1, 32), (LONG, 2, 48)] {
            for (text, hash) in [(text.to_owned(), hash), (text.replace(&format!(":0{hash}:"), ":00:"), 0)] {
                let found = Written::parse(Purpose::TlsPsk, text.as_bytes()).expect("a key");
                assert_eq!((found.hash, found.bytes.len()), (hash, len));
            }
        }
    }

    #[test]
    fn texts_that_are_no_keys_are_refused() {
        let wrong = |purpose, text: &str| Written::parse(purpose, text.as_bytes()).map(|_| ()).expect_err("wrong");
        for (text, why) in [
            (String::new(), KeyMistake::Shape),
            ("secret of twelve bytes".to_owned(), KeyMistake::Shape),
            (format!("DHHC-1:00:{EXAMPLE}"), KeyMistake::Shape),
            (format!("DHHC-2:00:{EXAMPLE}:"), KeyMistake::Shape),
            (format!("DHHC-1:04:{EXAMPLE}:"), KeyMistake::Hash),
            (format!("DHHC-1:1:{EXAMPLE}:"), KeyMistake::Hash),
            ("DHHC-1:00:ia6z!odO:".to_owned(), KeyMistake::Encoding),
            ("DHHC-1:00:AAAA:".to_owned(), KeyMistake::Length),
            ("DHHC-1:00::".to_owned(), KeyMistake::Length),
            (format!("DHHC-1:00:j{}:", &EXAMPLE[1..]), KeyMistake::Check),
            (CHANNEL.to_owned(), KeyMistake::Shape),
        ] {
            assert_eq!(wrong(Purpose::DhHmacChap, &text), why, "{text}");
        }
        for (text, why) in [
            (format!("DHHC-1:01:{EXAMPLE}:"), KeyMistake::Shape),
            (CHANNEL.replace(":01:", ":03:"), KeyMistake::Hash),
            (CHANNEL.replace(":01:", ":02:"), KeyMistake::Length),
            (LONG.replace(":02:", ":01:"), KeyMistake::Length),
            (LONG.replace("VRLb", "WRLb"), KeyMistake::Check),
            (CHANNEL.replace("VRLb", "WRLb"), KeyMistake::Check),
            (CHANNEL.replace("VRLb", ""), KeyMistake::Length),
            (CHANNEL.replace("VRLb", "!!!!"), KeyMistake::Encoding),
            (CHANNEL.trim_end_matches(':').to_owned(), KeyMistake::Shape),
        ] {
            assert_eq!(wrong(Purpose::TlsPsk, &text), why, "{text}");
        }
        assert!(Written::parse(Purpose::DhHmacChap, b"DHHC-1:\xff").is_err());
    }
}
