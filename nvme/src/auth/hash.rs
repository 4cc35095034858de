//! Hash functions of DH-HMAC-CHAP, and their digests and keyed digests.

use hmac::{Hmac, KeyInit, Mac};
use lunar_core::codes;
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

codes! {
    /// Hash functions by their identifiers (NVMe Base 2.0 figure 446).
    pub struct Hash(u8) {
        SHA256 = 1, SHA384 = 2, SHA512 = 3,
    }
}

/// Bytes of the longest digest.
pub const DIGEST_MAX: usize = 64;

impl Hash {
    /// All hash functions, the strongest first.
    pub const ALL: [Self; 3] = [Self::SHA512, Self::SHA384, Self::SHA256];

    /// The function of this identifier.
    #[must_use]
    pub fn of(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.0 == id)
    }

    /// Bytes of a digest: 32, 48 or 64.
    #[allow(clippy::len_without_is_empty)]
    #[must_use]
    pub fn len(self) -> usize {
        // Other identifiers do not occur: `of` checks those of messages.
        match self {
            Self::SHA256 => 32,
            Self::SHA384 => 48,
            _ => DIGEST_MAX,
        }
    }

    /// The digest of the concatenated parts.
    #[must_use]
    pub fn digest(self, parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        match self {
            Self::SHA256 => digest::<Sha256>(parts),
            Self::SHA384 => digest::<Sha384>(parts),
            _ => digest::<Sha512>(parts),
        }
    }

    /// The keyed digest (RFC 2104) of the concatenated parts.
    #[must_use]
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        match self {
            Self::SHA256 => hmac::<Hmac<Sha256>>(key, parts),
            Self::SHA384 => hmac::<Hmac<Sha384>>(key, parts),
            _ => hmac::<Hmac<Sha512>>(key, parts),
        }
    }
}

fn digest<D: Digest>(parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let mut digest = D::new();
    parts.iter().for_each(|part| digest.update(part));
    Zeroizing::new(digest.finalize().to_vec())
}

fn hmac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    // HMAC accepts keys of any length. If a key were rejected, the digest would stay zero and match no response.
    let Ok(mut mac) = M::new_from_slice(key) else { return Zeroizing::default() };
    parts.iter().for_each(|part| mac.update(part));
    Zeroizing::new(mac.finalize().into_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 4231, test case 2; its first 16 bytes each.
    #[test]
    fn golden() {
        let found = |hash: Hash| hex(&hash.hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"]));
        assert!(found(Hash::SHA256).starts_with("5bdcc146bf60754e6a042426089575c7"));
        assert!(found(Hash::SHA384).starts_with("af45d2e376484031617f78d2b58a6b1b"));
        assert!(found(Hash::SHA512).starts_with("164b7a7bfcf819e2e395fbe73b56e0a3"));
        for hash in Hash::ALL {
            assert_eq!((hash.digest(&[]).len(), hash.hmac(b"", &[]).len()), (hash.len(), hash.len()));
            assert_eq!(Hash::of(hash.0), Some(hash));
        }
        assert_eq!((Hash::of(0), Hash::of(4)), (None, None));
    }
}
