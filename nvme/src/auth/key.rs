//! DH-HMAC-CHAP keys of hosts and controllers: their interchange format and their transformation (NVMe Base 2.0
//! 8.13.5.7 and 8.13.5.8).

use super::hash::Hash;
use lunar_core::access::written::{KeyMistake, Purpose, Written};
use std::fmt;
use zeroize::Zeroizing;

/// The text that enters the transformation of a key with its NQN.
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";

/// A key. Its bytes are wiped when it is dropped, and never shown.
#[derive(Clone)]
pub struct Key {
    /// The hash function of its transformation; `None`: the key is used without transformation.
    hash: Option<Hash>,
    bytes: Zeroizing<Vec<u8>>,
}

impl Key {
    /// Parses the interchange format `DHHC-1:01:BASE64:` of `nvme gen-dhchap-key`.
    ///
    /// # Errors
    /// The mistake in the text.
    pub fn parse(text: &[u8]) -> Result<Self, KeyMistake> {
        let Written { hash, bytes } = Written::parse(Purpose::DhHmacChap, text)?;
        Ok(Self { hash: Hash::of(hash), bytes })
    }

    /// The transformed key of the host or subsystem `nqn`.
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
}
