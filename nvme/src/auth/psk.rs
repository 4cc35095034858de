//! Pre-shared keys of TLS (NVMe/TCP Transport 1.1 3.6.1): their interchange format, and the derivation of PSK
//! identities and TLS PSKs.
//!
//! The configured PSK belongs to a host NQN. The PSK identity, which the host sends in clear text, and the TLS PSK are
//! derived from it and from the subsystem NQN. The length of a key is that of the digest of its hash function, which
//! all derivations use: 32 bytes are for SHA-256 and TLS_AES_128_GCM_SHA256, 48 for SHA-384 and TLS_AES_256_GCM_SHA384.

use super::hash::{DIGEST_MAX, Hash};
use base64ct::{Base64, Encoding};
use lunar_core::access::written::{KeyMistake, Purpose, Written};
use std::fmt;
use zeroize::Zeroizing;

/// The hash functions of the cipher suites of TLS 1.3 that NVMe/TCP has.
pub const HASHES: [Hash; 2] = [Hash::SHA256, Hash::SHA384];
/// The text that enters the digest of a PSK identity.
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";

/// A configured PSK. Its bytes are wiped when it is dropped, and never shown.
#[derive(Clone)]
pub struct ConfiguredPsk {
    /// Whether the retained PSK is derived with the host NQN.
    is_bound: bool,
    /// The hash function of the derivations.
    hash: Hash,
    bytes: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for ConfiguredPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfiguredPsk")
    }
}

/// A PSK identity and its TLS PSK.
pub struct Offer {
    /// The identity, which is no secret.
    pub identity: String,
    /// The hash of the cipher suite.
    pub hash: Hash,
    /// The TLS PSK, as long as a digest.
    pub key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offer({})", self.identity)
    }
}

/// The variants of HKDF-Expand-Label.
#[derive(Clone, Copy)]
enum Labels {
    /// RFC 8446 7.1: with the lengths of label and context.
    Standard,
    /// Without these lengths, and with the output length in little-endian order, as some tools that are still in use
    /// compute it.
    Bare,
}

impl ConfiguredPsk {
    /// Parses the interchange format `NVMeTLSkey-1:01:BASE64:` of `nvme gen-tls-key`.
    ///
    /// # Errors
    /// The mistake in the text.
    pub fn parse(text: &[u8]) -> Result<Self, KeyMistake> {
        let Written { hash, bytes } = Written::parse(Purpose::TlsPsk, text)?;
        let fits = HASHES.into_iter().find(|hash| hash.len() == bytes.len());
        Ok(Self { is_bound: hash > 0, hash: fits.ok_or(KeyMistake::Length)?, bytes })
    }

    /// The hash function of the key.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The PSK identities that a host of this NQN may use for this subsystem, current formats before older ones.
    #[must_use]
    pub fn offers(&self, host: &str, subsystem: &str) -> Vec<Offer> {
        let all = [(Labels::Standard, 1), (Labels::Bare, 1), (Labels::Standard, 0)];
        all.into_iter().map(|(labels, version)| self.offer(labels, version, host, subsystem)).collect()
    }

    fn offer(&self, labels: Labels, version: u8, host: &str, subsystem: &str) -> Offer {
        const LABEL: &str = "tls13 nvme-tls-psk";
        let hash = self.hash;
        let retained = match self.is_bound {
            true => expand(hash, labels, &self.bytes, "tls13 HostNQN", host.as_bytes()),
            false => self.bytes.clone(),
        };
        let mut identity = format!("NVMe{version}R{:02} {host} {subsystem}", hash.0);
        if version == 0 {
            let key = expand(hash, labels, &retained, LABEL, identity.as_bytes());
            return Offer { identity, hash, key };
        }
        let digest = hash.hmac(&retained, &[host.as_bytes(), b" ", subsystem.as_bytes(), b" ", PURPOSE]);
        let digest = Base64::encode_string(&digest);
        let context = format!("{:02} {digest}", hash.0);
        identity = format!("{identity} {digest}");
        Offer { identity, hash, key: expand(hash, labels, &retained, LABEL, context.as_bytes()) }
    }
}

/// HKDF-Extract without a salt, and HKDF-Expand-Label to the length of a digest, which is one block (RFC 5869).
fn expand(hash: Hash, labels: Labels, key: &[u8], label: &str, context: &[u8]) -> Zeroizing<Vec<u8>> {
    const SALT: [u8; DIGEST_MAX] = [0; DIGEST_MAX];
    const FIRST: &[u8] = &[1];
    let extracted = hash.hmac(&SALT[..hash.len()], &[key]);
    // Labels and contexts have some hundred bytes; longer ones do not occur.
    let [label_len, context_len] = [label.len() as u8, context.len() as u8];
    let length = hash.len() as u16;
    match labels {
        Labels::Standard => {
            let length = length.to_be_bytes();
            hash.hmac(&extracted, &[&length, &[label_len], label.as_bytes(), &[context_len], context, FIRST])
        }
        Labels::Bare => hash.hmac(&extracted, &[&length.to_le_bytes(), label.as_bytes(), context, FIRST]),
    }
}

/// The fields of a PSK identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim<'a> {
    /// Whether its key is derived from a configured PSK; otherwise it was generated by secure channel concatenation.
    pub is_retained: bool,
    /// The hash function of its key.
    pub hash: Hash,
    /// NQN of the host.
    pub host: &'a str,
    /// NQN of the subsystem.
    pub subsystem: &'a str,
}

impl<'a> Claim<'a> {
    /// Parses an identity; `None` if it is not an NVMe/TCP PSK identity.
    #[must_use]
    pub fn parse(identity: &'a str) -> Option<Self> {
        let mut parts = identity.split(' ');
        let (is_retained, hash) = match parts.next()?.strip_prefix("NVMe")?.as_bytes() {
            [b'0' | b'1', kind @ (b'R' | b'G'), b'0', hash] => (*kind == b'R', Hash::of(hash.checked_sub(b'0')?)?),
            _ => return None,
        };
        let [host, subsystem] = [parts.next()?, parts.next()?];
        HASHES.contains(&hash).then_some(Self { is_retained, hash, host, subsystem })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const LONG: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
    const HOST: &str = "nqn.psk-test-host";
    const SUBSYSTEM: &str = "nqn.psk-test-subsys";

    fn offers(key: &str) -> Vec<Offer> {
        ConfiguredPsk::parse(key.as_bytes()).expect("a key").offers(HOST, SUBSYSTEM)
    }

    /// Identities as libnvme has them in its tests.
    #[test]
    fn golden() {
        for (key, hash, digests) in [
            (
                KEY,
                Hash::SHA256,
                ["iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=", "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM="],
            ),
            (
                LONG,
                Hash::SHA384,
                [
                    "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
                    "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
                ],
            ),
        ] {
            let offers = offers(key);
            let said: Vec<&str> = offers.iter().map(|offer| offer.identity.as_str()).collect();
            let names = format!("R{:02} {HOST} {SUBSYSTEM}", hash.0);
            let [today, once] = digests.map(|digest| format!("NVMe1{names} {digest}"));
            assert_eq!(said, [today, once, format!("NVMe0{names}")]);
            assert!(offers.iter().all(|offer| offer.hash == hash && offer.key.len() == hash.len()));
            let claim = Claim { is_retained: true, hash, host: HOST, subsystem: SUBSYSTEM };
            assert!(said.iter().all(|identity| Claim::parse(identity) == Some(claim)));
            let key = ConfiguredPsk::parse(key.as_bytes()).expect("a key");
            assert_eq!(format!("{key:?} {:?}", offers[2]), format!("ConfiguredPsk Offer({})", said[2]));
        }
    }

    /// Computed with Python's hmac.
    #[test]
    fn keys_of_sha384_are_expanded_to_its_length() {
        let start = |offer: &Offer| offer.key[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let offers = offers(LONG);
        assert_eq!((start(&offers[0]).as_str(), start(&offers[2]).as_str()), ("a2b2f943f479fc68", "f42ba63824cdfe42"));
        // A PSK without a hash for the transformation: its length selects the hash function of the derivations.
        let plain = ConfiguredPsk::parse(LONG.replace(":02:", ":00:").as_bytes()).expect("a key");
        assert!(!plain.is_bound && plain.hash() == Hash::SHA384);
        assert_ne!(plain.offers(HOST, SUBSYSTEM)[0].identity, offers[0].identity);
    }

    #[test]
    fn identities_are_parsed() {
        let claim = |hash| Claim { is_retained: true, hash, host: "a", subsystem: "b" };
        assert_eq!(Claim::parse("NVMe0R01 a b"), Some(claim(Hash::SHA256)));
        assert_eq!(Claim::parse("NVMe1R02 a b c"), Some(claim(Hash::SHA384)));
        assert_eq!(Claim::parse("NVMe1G01 a b c"), Some(Claim { is_retained: false, ..claim(Hash::SHA256) }));
        for bad in ["", "NVMe1R01", "NVMe1R01 a", "NVMe1R03 a b c", "NVMe1R00 a b", "NVMe2R01 a b", "NVMe1X01 a b"] {
            assert_eq!(Claim::parse(bad), None, "{bad}");
        }
        assert_eq!(Claim::parse("Client_identity"), None);
        assert!(ConfiguredPsk::parse(KEY.replace(":01:", ":00:").as_bytes()).is_ok_and(|key| !key.is_bound));
    }
}
