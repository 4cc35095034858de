//! CHAP over iSCSI (RFC 1994, RFC 7143 12.1.3): algorithms, and the values that both sides send. The states that
//! exchange them are in [`login`](crate::login); secrets stay with the [`authenticator`](crate::authenticator), which
//! computes responses here.

use lunar_core::access::Secret;
use lunar_core::codes;
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use sha3::Sha3_256;
use std::fmt;
use std::sync::Arc;
use subtle::ConstantTimeEq;

codes! {
    /// Values of CHAP_A: the PPP authentication algorithms of IANA's registry that iSCSI uses.
    pub struct Algorithm(u8) {
        MD5 = 5, SHA1 = 6, SHA256 = 7, SHA3_256 = 8,
    }
}

/// Bytes of a challenge of the target: as many as the longest response, so that the challenge weakens no algorithm.
pub const CHALLENGE_LEN: usize = 32;
/// Most bytes of a challenge of the initiator (RFC 7143 12.1.3).
pub const CHALLENGE_MAX: usize = 1024;
/// Bytes of the longest response.
pub const RESPONSE_MAX: usize = 32;

impl Algorithm {
    /// All algorithms, the strongest first.
    pub const ALL: [Self; 4] = [Self::SHA3_256, Self::SHA256, Self::SHA1, Self::MD5];

    /// The response to a challenge: the digest of identifier, secret and challenge (RFC 1994 4.1).
    #[must_use]
    pub fn response(self, identifier: u8, secret: &Secret, challenge: &[u8]) -> Response {
        match self {
            Self::MD5 => digest::<Md5>(identifier, secret, challenge),
            Self::SHA1 => digest::<Sha1>(identifier, secret, challenge),
            Self::SHA256 => digest::<Sha256>(identifier, secret, challenge),
            // The configuration check allows no other algorithms.
            _ => digest::<Sha3_256>(identifier, secret, challenge),
        }
    }
}

fn digest<D: Digest>(identifier: u8, secret: &Secret, challenge: &[u8]) -> Response {
    let digest = D::new().chain_update([identifier]).chain_update(secret.bytes()).chain_update(challenge).finalize();
    Response(digest.to_vec())
}

/// A response. It is compared in constant time.
#[derive(Clone)]
pub struct Response(Vec<u8>);

impl Response {
    /// A response that was received; `None` if it is empty or has more than [`RESPONSE_MAX`] bytes.
    #[must_use]
    pub fn of(bytes: Vec<u8>) -> Option<Self> {
        (1..=RESPONSE_MAX).contains(&bytes.len()).then_some(Self(bytes))
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for Response {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Response {}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A weak secret can be guessed from the response and the challenge.
        write!(f, "Response({} bytes)", self.0.len())
    }
}

/// A challenge of the target, from random bytes: it must never repeat or be predictable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Challenge {
    /// CHAP_I.
    pub identifier: u8,
    /// CHAP_C.
    pub bytes: [u8; CHALLENGE_LEN],
}

impl Challenge {
    /// Random bytes per challenge.
    pub const RANDOM: usize = 1 + CHALLENGE_LEN;

    /// A challenge of these random bytes.
    #[must_use]
    pub fn from_random(random: [u8; Self::RANDOM]) -> Self {
        let mut bytes = [0; CHALLENGE_LEN];
        bytes.copy_from_slice(&random[1..]);
        Self { identifier: random[0], bytes }
    }
}

/// A challenge of the initiator, which requests authentication of the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MutualChallenge {
    /// CHAP_I.
    pub identifier: u8,
    /// CHAP_C, 1 to [`CHALLENGE_MAX`] bytes.
    pub challenge: Vec<u8>,
}

/// The CHAP answer of the initiator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChapAnswer {
    /// CHAP_N: the user name.
    pub user: Arc<str>,
    /// CHAP_A: the negotiated algorithm.
    pub algorithm: Algorithm,
    /// The challenge that it answers.
    pub challenge: Challenge,
    /// CHAP_R.
    pub response: Response,
    /// Its own challenge, for mutual authentication.
    pub mutual: Option<MutualChallenge>,
}

/// The CHAP answer of the target: CHAP_N and CHAP_R.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetAnswer {
    /// CHAP_N: the user name of the target.
    pub name: Arc<str>,
    /// CHAP_R: the response to the initiator's challenge.
    pub response: Response,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::as_hex;

    /// Computed with Python's hashlib.
    #[test]
    fn responses_match_an_independent_implementation() {
        let challenge: Vec<u8> = (0..32).collect();
        let secret = Secret::new(b"twelve bytes and more".to_vec()).expect("long enough");
        for (algorithm, response) in [
            (Algorithm::MD5, "0x2674d6891f940df07f78d3cb92400280"),
            (Algorithm::SHA1, "0x4e3d860f14c5720561cbc1a9bea4959ddfea5fdd"),
            (Algorithm::SHA256, "0x00b8400f933cfaa671be2b7a58bb6298d77a1d82906472f97fc5176a8a9bcf4a"),
            (Algorithm::SHA3_256, "0x6684db1d7d70a7f3c9521ef87d74afc2c75931911647571f2d254a91eb6ff239"),
        ] {
            let found = algorithm.response(0x2a, &secret, &challenge);
            assert_eq!(as_hex(found.bytes()), response, "{algorithm:?}");
        }
        let longest = Secret::new(vec![b'x'; 255]).expect("not too long");
        for (algorithm, response) in [
            (Algorithm::MD5, "0x480187f24081ac8fc6b736ebecfd1406"),
            (Algorithm::SHA1, "0xc547dcc4b8659d0d08b7e0a138683d3bf956f363"),
            (Algorithm::SHA256, "0xeb320079dcb38aedb6330f5345afa45fd49e20e9830297271b5cf1ab882bf081"),
            (Algorithm::SHA3_256, "0xa769c628e981f72879d714793977a1bf70134702cec748d4c7e473d9ca0e2bde"),
        ] {
            let found = algorithm.response(0, &longest, &[0xff]);
            assert_eq!(as_hex(found.bytes()), response, "{algorithm:?}");
        }
    }

    #[test]
    fn responses_are_compared_whole_and_not_printed() {
        let of = |bytes: &[u8]| Response::of(bytes.to_vec()).expect("short");
        assert_eq!(of(&[1, 2]), of(&[1, 2]));
        assert_ne!(of(&[1, 2]), of(&[1, 3]));
        assert_ne!(of(&[1, 2]), of(&[1]));
        assert_eq!(format!("{:?}", of(&[0x5a])), "Response(1 bytes)");
        assert_eq!(Response::of(vec![0; RESPONSE_MAX + 1]), None);
    }
}
