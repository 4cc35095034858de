//! Groups of the Diffie-Hellman exchange: the finite fields of RFC 7919.
//!
//! All primes have the same form: 64 one bits, as many bits of e as fit, 64 one bits, and the smallest addend that
//! makes the number a safe prime.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use lunar_core::codes;
use std::fmt;
use zeroize::Zeroizing;

codes! {
    /// Groups by their identifiers (NVMe Base 2.0 figure 447).
    pub struct Group(u8) {
        NULL = 0, FFDHE2048 = 1, FFDHE3072 = 2, FFDHE4096 = 3, FFDHE6144 = 4, FFDHE8192 = 5,
    }
}

/// Bytes of the longest value of a group.
pub const VALUE_MAX: usize = 1024;
/// Random bytes that a private value takes at most.
pub const RANDOM: usize = 56;

/// The first 8,064 bits of e.
const E: &str = "\
    adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8\
    f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77\
    e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f468\
    1d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff\
    8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdc\
    de355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270\
    b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada\
    1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6\
    ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
    6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b\
    4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8\
    917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910\
    b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc1\
    94c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e\
    62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d6\
    3fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004cf600c8381e425a31d951ae64\
    fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd702\
    29388839d2af05e454504ac78b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e74\
    51a8a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0\
    a1fe3075a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e\
    2f741ef8c1fe86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d";

/// Bits of each prime, what is added, and bytes of private values: as many bits as RFC 7919 5.2 asks for at least, in
/// whole words.
const PRIMES: [(Group, usize, u32, usize); 5] = [
    (Group::FFDHE2048, 2048, 560_316, 32),
    (Group::FFDHE3072, 3072, 2_625_351, 40),
    (Group::FFDHE4096, 4096, 5_736_041, 48),
    (Group::FFDHE6144, 6144, 15_705_020, 48),
    (Group::FFDHE8192, 8192, 10_965_728, RANDOM),
];
/// Bytes of ones at both ends of a prime.
const ONES: usize = 8;

impl Group {
    /// All groups, in order of preference. The first protects a weak key from an eavesdropper at a low cost.
    pub const ALL: [Self; 6] =
        [Self::FFDHE3072, Self::FFDHE4096, Self::FFDHE2048, Self::FFDHE6144, Self::FFDHE8192, Self::NULL];

    /// The group of this identifier.
    #[must_use]
    pub fn of(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.0 == id)
    }

    fn row(self) -> Option<(usize, u32, usize)> {
        PRIMES.iter().find(|(group, ..)| *group == self).map(|(_, bits, plus, random)| (*bits, *plus, *random))
    }

    /// Bytes of its values; 0 for the null group.
    #[allow(clippy::len_without_is_empty)]
    #[must_use]
    pub fn len(self) -> usize {
        self.row().map_or(0, |(bits, ..)| bits / 8)
    }

    /// Its prime, the most significant byte first; empty for the null group.
    fn prime(self) -> Vec<u8> {
        let Some((bits, plus, _)) = self.row() else { return Vec::new() };
        let mut prime = vec![0xff; bits / 8];
        let last = prime.len() - ONES;
        for (byte, digits) in prime[ONES..last].iter_mut().zip(E.as_bytes().chunks_exact(2)) {
            *byte = digits.iter().fold(0, |byte, digit| byte << 4 | nibble(*digit));
        }
        // All of it less one, which is what makes the ones behind it.
        let mut carry = u64::from(plus) - 1;
        for byte in prime[ONES..last].iter_mut().rev() {
            carry += u64::from(*byte);
            *byte = carry as u8;
            carry >>= 8;
        }
        prime
    }

    /// `base` to the power of a private value.
    fn power(self, base: BoxedUint, exponent: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let bits = u32::try_from(self.len() * 8).ok()?;
        let prime = BoxedUint::from_be_slice(&self.prime(), bits).ok()?;
        let params = BoxedMontyParams::new(Odd::new(prime).into_option()?);
        let exponent_bits = u32::try_from(exponent.len() * 8).ok()?;
        let exponent = Zeroizing::new(BoxedUint::from_be_slice(exponent, exponent_bits).ok()?);
        let power = BoxedMontyForm::new(base, &params).pow(&exponent).retrieve();
        Some(Zeroizing::new(power.to_be_bytes().into()))
    }
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => digit - b'a' + 10,
    }
}

/// A private value of the controller, for one exchange.
#[derive(Clone)]
pub struct Private {
    group: Group,
    exponent: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Private({:?})", self.group)
    }
}

impl Private {
    /// Makes a private value from random bytes; `None` for the null group.
    #[must_use]
    pub fn from_random(group: Group, random: &[u8; RANDOM]) -> Option<Self> {
        let (_, _, len) = group.row()?;
        Some(Self { group, exponent: Zeroizing::new(random[..len].to_vec()) })
    }

    /// The public value for the other side.
    #[must_use]
    pub fn public(&self) -> Option<Vec<u8>> {
        const GENERATOR: [u8; 1] = [2];
        let bits = u32::try_from(self.group.len() * 8).ok()?;
        let generator = BoxedUint::from_be_slice(&GENERATOR, bits).ok()?;
        Some(self.group.power(generator, &self.exponent)?.to_vec())
    }

    /// The shared secret; `None` for an invalid public value: one that is too long, or 0, 1, or the prime less one.
    #[must_use]
    pub fn shared(&self, theirs: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (len, prime) = (self.group.len(), self.group.prime());
        if theirs.len() > len {
            return None;
        }
        let mut padded = vec![0; len - theirs.len()];
        padded.extend_from_slice(theirs);
        let mut last = prime;
        *last.last_mut()? -= 1;
        let one = padded.split_last().is_some_and(|(last, rest)| *last == 1 && rest.iter().all(|byte| *byte == 0));
        // Bytes are compared from the most significant one on, as numbers are.
        if one || padded >= last || padded.iter().all(|byte| *byte == 0) {
            return None;
        }
        let bits = u32::try_from(len * 8).ok()?;
        self.group.power(BoxedUint::from_be_slice(&padded, bits).ok()?, &self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::super::hash::Hash;
    use super::*;

    /// Digests of the primes that OpenSSL uses.
    #[test]
    fn the_primes_are_those_of_rfc_7919() {
        for (group, digest) in [
            (Group::FFDHE2048, "9cd3b7f336872f46"),
            (Group::FFDHE3072, "0eaf67db3a839156"),
            (Group::FFDHE4096, "4648414224ac881b"),
            (Group::FFDHE6144, "227ac9066b3ddd9e"),
            (Group::FFDHE8192, "770b14efaf6f0499"),
        ] {
            let found: String =
                Hash::SHA256.digest(&[&group.prime()])[..8].iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(found, digest, "{group:?}");
        }
        assert_eq!((Group::NULL.len(), Group::of(6), VALUE_MAX), (0, None, Group::FFDHE8192.len()));
    }

    #[test]
    fn both_sides_have_the_same_in_common() {
        for (group, ..) in PRIMES {
            let ours = Private::from_random(group, &[0x5a; RANDOM]).expect("a group");
            let theirs = Private::from_random(group, &[0xc3; RANDOM]).expect("a group");
            let (a, b) = (ours.public().expect("a value"), theirs.public().expect("a value"));
            assert_eq!((a.len(), b.len(), a == b), (group.len(), group.len(), false));
            assert_eq!(ours.shared(&b).expect("a value"), theirs.shared(&a).expect("a value"), "{group:?}");
        }
        assert!(Private::from_random(Group::NULL, &[1; RANDOM]).is_none());
    }

    #[test]
    fn values_that_leave_no_choice_are_none() {
        let ours = Private::from_random(Group::FFDHE2048, &[7; RANDOM]).expect("a group");
        let prime = Group::FFDHE2048.prime();
        let mut last = prime.clone();
        last[255] -= 1;
        let mut good = last.clone();
        good[255] -= 1;
        for bad in [&[][..], &[0], &[1], &[0; 256], &prime, &last, &[0xff; 256], &[2; 257]] {
            assert!(ours.shared(bad).is_none(), "{bad:?}");
        }
        assert!(ours.shared(&good).is_some() && ours.shared(&[2]).is_some());
        assert_eq!(ours.shared(&[2]).expect("a value").to_vec(), ours.public().expect("a value"));
    }
}
