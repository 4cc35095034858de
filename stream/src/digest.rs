//! CRC32C (RFC 7143 13.1, NVMe/TCP Transport 1.0 3.3.1.1), the digest of headers and of data in both transports.

use lunar_core::wire::round_up;

/// Bytes of a digest.
pub const DIGEST_LEN: usize = 4;

/// CRC32C over bytes that arrive in parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Digest(u32);

impl Digest {
    /// The digest of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) -> &mut Self {
        self.0 = crc32c::crc32c_append(self.0, bytes);
        self
    }

    /// Adds the zeroes that pad `len` bytes to a multiple of four.
    #[inline]
    pub fn pad(&mut self, len: usize) -> &mut Self {
        self.update(&[0; 3][..round_up(len, 4) - len])
    }

    /// The bytes of the digest, in the order in which they are sent.
    #[must_use]
    pub fn bytes(self) -> [u8; DIGEST_LEN] {
        self.0.to_le_bytes()
    }
}

/// The digest of `bytes`.
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    Digest::new().update(bytes).bytes()
}

/// The digests that were negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Digests {
    /// Header digest.
    pub header: bool,
    /// Data digest.
    pub data: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_match_the_vectors_of_rfc_7143() {
        // RFC 7143 appendix A.4.
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(digest(&rising), [0x4e, 0x79, 0xdd, 0x46]);
        let mut parts = Digest::new();
        parts.update(&rising[..5]).update(&[]).update(&rising[5..]);
        assert_eq!(parts.bytes(), digest(&rising));
        assert_eq!(Digest::new().update(b"a").pad(1).bytes(), digest(b"a\0\0\0"));
    }
}
