//! Keys of hosts and controllers, as they are written and as they are used (NVMe Base 2.0 8.13.5.7 and 8.13.5.8).

use super::hash::Hash;
use base64ct::{Base64, Encoding};
use crc::{CRC_32_ISO_HDLC, Crc};
use std::fmt;
use zeroize::Zeroizing;

/// What the text of a key begins with.
pub const PREFIX: &str = "DHHC-1:";
/// Bytes that a key may have.
pub const LENGTHS: [usize; 3] = [32, 48, 64];
/// Bytes of the check behind them.
pub(super) const CHECK_LEN: usize = 4;
/// What a key is bound to its owner with.
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";

pub(super) static CHECK: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// A key. Its bytes are wiped when it is dropped, and never shown.
#[derive(Clone)]
pub struct Key {
    /// How it is bound to its owner; `None`: it is used as it is.
    hash: Option<Hash>,
    bytes: Zeroizing<Vec<u8>>,
}

impl Key {
    /// The key that is written so: `DHHC-1:01:BASE64:`, as `nvme gen-dhchap-key` does.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, KeyMistake> {
        let text = std::str::from_utf8(text).map_err(|_| KeyMistake::Shape)?;
        let (hash, rest) = text.strip_prefix(PREFIX).and_then(|rest| rest.split_once(':')).ok_or(KeyMistake::Shape)?;
        let hash = match hash {
            "00" => None,
            "01" => Some(Hash::SHA256),
            "02" => Some(Hash::SHA384),
            "03" => Some(Hash::SHA512),
            _ => return Err(KeyMistake::Hash),
        };
        let encoded = rest.strip_suffix(':').ok_or(KeyMistake::Shape)?;
        let mut bytes = Zeroizing::new(Base64::decode_vec(encoded).map_err(|_| KeyMistake::Encoding)?);
        let len = bytes.len().checked_sub(CHECK_LEN).filter(|len| LENGTHS.contains(len)).ok_or(KeyMistake::Length)?;
        if bytes[len..] != CHECK.checksum(&bytes[..len]).to_le_bytes() {
            return Err(KeyMistake::Check);
        }
        bytes.truncate(len);
        Ok(Self { hash, bytes })
    }

    /// What its owner, who is called `nqn`, computes with.
    #[must_use]
    pub fn bound_to(&self, nqn: &str) -> Zeroizing<Vec<u8>> {
        match self.hash {
            None => self.bytes.clone(),
            Some(hash) => hash.hmac(&self.bytes, &[nqn.as_bytes(), PURPOSE]),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Why a text is no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyMistake {
    /// It does not look like one.
    Shape,
    /// The hash function is none.
    Hash,
    /// What is between the colons is not base64.
    Encoding,
    /// It has another length than keys have.
    Length,
    /// Its check does not fit: it was not copied whole.
    Check,
}

impl fmt::Display for KeyMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shape => {
                "a key looks like DHHC-1:01:...: (nvme gen-dhchap-key makes one), that of a channel like \
                 NVMeTLSkey-1:01:...: (nvme gen-tls-key)"
            }
            Self::Hash => {
                "the hash of a key, behind its first colon, is 00, 01, 02 or 03; that of a channel's key 00 or 01"
            }
            Self::Encoding => "what is between the last two colons of a key is not base64",
            Self::Length => "a key has 32, 48 or 64 bytes, that of a channel 32",
            Self::Check => "the key's check does not fit: it was not copied whole",
        })
    }
}

impl std::error::Error for KeyMistake {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification (NVMe Base 2.0 8.13.5.8).
    const EXAMPLE: &str = "ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n";

    #[test]
    fn keys_are_read_with_every_hash() {
        for (hash, name) in [(None, "00"), (Some(Hash::SHA256), "01"), (Some(Hash::SHA384), "02")] {
            let key = Key::parse(format!("DHHC-1:{name}:{EXAMPLE}:").as_bytes()).expect("a key");
            assert_eq!((key.hash, key.bytes.len(), key.bytes[0], key.bytes[31]), (hash, 32, 0x89, 0x4c));
            assert_eq!(format!("{key:?}"), "Key");
        }
    }

    /// Computed with Python's hmac.
    #[test]
    fn keys_are_bound_to_their_owners() {
        let of = |hash: &str| {
            let key = Key::parse(format!("DHHC-1:{hash}:{EXAMPLE}:").as_bytes()).expect("a key");
            let bound = key.bound_to("nqn.2014-08.org.nvmexpress:uuid:rig");
            (bound.len(), bound[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        };
        for (hash, (len, start)) in [
            ("00", (32, "89aeb31a874eaf84")),
            ("01", (32, "a278415fd4c7ee28")),
            ("02", (48, "6f6e2f6b845948d9")),
            ("03", (64, "79326e4e5e41ab76")),
        ] {
            assert_eq!(of(hash), (len, start.to_owned()));
        }
    }

    #[test]
    fn what_is_no_key() {
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
        ] {
            assert_eq!(Key::parse(text.as_bytes()).err(), Some(why), "{text}");
        }
        assert_eq!(Key::parse(b"DHHC-1:\xff").err(), Some(KeyMistake::Shape));
    }
}
