//! Keys of secure channels (NVMe/TCP Transport 1.1 3.6.1): how they are written, and what both ends of a TLS channel
//! make of them.
//!
//! What a host is given is configured for its name; from it and the name of the subsystem come the identity that the
//! host says in the clear, and the key of the channel. Keys are those of TLS_AES_128_GCM_SHA256, with SHA-256.

use super::hash::Hash;
use base64ct::{Base64, Encoding};
use lunar_core::access::written::{KeyMistake, Purpose, Written};
use std::fmt;
use zeroize::Zeroizing;

/// Bytes of a key.
pub const LENGTH: usize = 32;
/// The one hash function.
const HASH: Hash = Hash::SHA256;
/// What a key is bound to both names with.
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";

/// A key of secure channels. Its bytes are wiped when it is dropped, and never shown.
#[derive(Clone)]
pub struct ChannelKey {
    /// Whether it is bound to the host's name first.
    is_bound: bool,
    bytes: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for ChannelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelKey")
    }
}

/// What a host says, and the key that goes with it.
pub struct Offer {
    /// The identity, which is no secret.
    pub identity: String,
    /// The key of the channel.
    pub key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offer({})", self.identity)
    }
}

/// How labels are expanded.
#[derive(Clone, Copy)]
enum Labels {
    /// As RFC 8446 7.1 has it: with the lengths of label and context.
    Standard,
    /// Without those, and the other length in the other order: as tools do it that are still around.
    Bare,
}

impl ChannelKey {
    /// The key that is written so: `NVMeTLSkey-1:01:BASE64:`, as `nvme gen-tls-key` does.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, KeyMistake> {
        let Written { hash, bytes } = Written::parse(Purpose::Channel, text)?;
        Ok(Self { is_bound: hash > 0, bytes })
    }

    /// What a host of this name may say to this subsystem, what is said today before what was said once.
    #[must_use]
    pub fn offers(&self, host: &str, subsystem: &str) -> Vec<Offer> {
        let all = [(Labels::Standard, 1), (Labels::Bare, 1), (Labels::Standard, 0)];
        all.into_iter().map(|(labels, version)| self.offer(labels, version, host, subsystem)).collect()
    }

    fn offer(&self, labels: Labels, version: u8, host: &str, subsystem: &str) -> Offer {
        let retained = match self.is_bound {
            true => expand(labels, &self.bytes, "tls13 HostNQN", host.as_bytes()),
            false => self.bytes.clone(),
        };
        let mut identity = format!("NVMe{version}R{:02} {host} {subsystem}", HASH.0);
        if version == 0 {
            let key = expand(labels, &retained, "tls13 nvme-tls-psk", identity.as_bytes());
            return Offer { identity, key };
        }
        let digest = HASH.hmac(&retained, &[host.as_bytes(), b" ", subsystem.as_bytes(), b" ", PURPOSE]);
        let digest = Base64::encode_string(&digest);
        let context = format!("{:02} {digest}", HASH.0);
        identity = format!("{identity} {digest}");
        Offer { identity, key: expand(labels, &retained, "tls13 nvme-tls-psk", context.as_bytes()) }
    }
}

/// HKDF-Extract without a salt, and HKDF-Expand-Label to the length of a digest, which is one block (RFC 5869).
fn expand(labels: Labels, key: &[u8], label: &str, context: &[u8]) -> Zeroizing<Vec<u8>> {
    const SALT: [u8; 32] = [0; 32];
    const FIRST: &[u8] = &[1];
    let extracted = HASH.hmac(&SALT, &[key]);
    // Labels and contexts have some hundred bytes; of longer ones no host makes a key.
    let [label_len, context_len] = [label.len() as u8, context.len() as u8];
    let length = HASH.len() as u16;
    match labels {
        Labels::Standard => {
            let length = length.to_be_bytes();
            HASH.hmac(&extracted, &[&length, &[label_len], label.as_bytes(), &[context_len], context, FIRST])
        }
        Labels::Bare => HASH.hmac(&extracted, &[&length.to_le_bytes(), label.as_bytes(), context, FIRST]),
    }
}

/// The names of host and subsystem in an identity of ours; `None` if it is another's.
#[must_use]
pub fn names(identity: &str) -> Option<(&str, &str)> {
    let mut parts = identity.split(' ');
    let kind = parts.next()?;
    let is_ours = ["NVMe0R01", "NVMe1R01"].contains(&kind);
    Some((parts.next()?, parts.next()?)).filter(|_| is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    /// Identities as libnvme has them in its tests.
    #[test]
    fn golden() {
        let key = ChannelKey::parse(KEY.as_bytes()).expect("a key");
        let offers = key.offers("nqn.psk-test-host", "nqn.psk-test-subsys");
        let said: Vec<&str> = offers.iter().map(|offer| offer.identity.as_str()).collect();
        assert_eq!(
            said,
            [
                "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
                "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys 66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=",
                "NVMe0R01 nqn.psk-test-host nqn.psk-test-subsys",
            ]
        );
        assert!(offers.iter().all(|offer| offer.key.len() == LENGTH));
        assert_eq!(names(said[0]), Some(("nqn.psk-test-host", "nqn.psk-test-subsys")));
        assert_eq!(format!("{key:?} {:?}", offers[2]), format!("ChannelKey Offer({})", said[2]));
    }

    #[test]
    fn what_is_no_identity() {
        assert!(ChannelKey::parse(KEY.replace(":01:", ":00:").as_bytes()).is_ok_and(|key| !key.is_bound));
        for bad in ["", "NVMe1R01", "NVMe1R01 a", "NVMe1R02 a b c", "NVMe1G01 a b c", "Client_identity"] {
            assert_eq!(names(bad), None, "{bad}");
        }
    }
}
