//! The host's side of DH-HMAC-CHAP: its messages, and the checks of the messages of the controller.

use super::group::{Group, Private, RANDOM as PRIVATE};
use super::hash::{DIGEST_MAX, Hash};
use super::key::Key;
use super::wire::{Challenge, DH_HMAC_CHAP, Head, Kind, Negotiate, Protocol, Reply, Success1};
use std::fmt;
use subtle::ConstantTimeEq;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A host that authenticates.
#[derive(Clone)]
pub struct Host {
    /// Its NQN.
    pub name: String,
    /// NQN of the subsystem.
    pub subsystem: String,
    /// The key of the host.
    pub key: Key,
    /// The key of the subsystem, if the host authenticates it.
    pub other: Option<Key>,
    /// The transaction identifier.
    pub transaction: u16,
    /// The randomness of the host.
    pub random: Random,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.name)
    }
}

/// Random bytes of one exchange: the private value, the challenge and the sequence number.
pub const RANDOM: usize = PRIVATE + DIGEST_MAX + size_of::<u32>();

/// The random bytes.
pub type Random = [u8; RANDOM];

/// A parsed challenge and the values computed from it.
struct Looked<'a> {
    head: &'a Challenge,
    bytes: &'a [u8],
    shared: Option<Vec<u8>>,
    public: Vec<u8>,
}

impl Host {
    /// AUTH_Negotiate with these offers.
    #[must_use]
    pub fn negotiate(&self, hashes: &[u8], groups: &[u8]) -> Vec<u8> {
        let head = Head::of(Kind::NEGOTIATE, self.transaction);
        let negotiate = Negotiate { head, concatenation: 0, protocols: 1 };
        let mut offer = Protocol::new_zeroed();
        (offer.id, offer.hashes, offer.groups) = (DH_HMAC_CHAP, hashes.len() as u8, groups.len() as u8);
        offer.hash_list.iter_mut().zip(hashes).for_each(|(to, from)| *to = *from);
        offer.group_list.iter_mut().zip(groups).for_each(|(to, from)| *to = *from);
        [negotiate.as_bytes(), offer.as_bytes()].concat()
    }

    /// The reply to a challenge; `None` if the message is malformed.
    #[must_use]
    pub fn reply(&self, message: &[u8]) -> Option<Vec<u8>> {
        let Looked { head, bytes, shared, public } = self.look(message)?;
        let hash = Hash::of(head.hash)?;
        let names = [self.name.as_str(), self.subsystem.as_str()];
        let key = self.key.bound_to(&self.name);
        let response = respond(
            hash,
            &key,
            &augmented(hash, shared.as_deref(), bytes),
            head.sequence.get(),
            self,
            b"HostHost",
            names,
        );
        let reply = Reply {
            head: Head::of(Kind::REPLY, self.transaction),
            hash_len: head.hash_len,
            reserved: 0,
            challenges: self.other.is_some().into(),
            reserved2: 0,
            value_len: (public.len() as u16).into(),
            sequence: self.sequence().into(),
        };
        Some([reply.as_bytes(), &response, self.challenge(hash), &public].concat())
    }

    /// Whether the response of the subsystem is right, if the reply to this challenge asked for one.
    #[must_use]
    pub fn believes(&self, challenge: &[u8], message: &[u8]) -> bool {
        let authenticated = || {
            let Looked { head, shared, .. } = self.look(challenge)?;
            let hash = Hash::of(head.hash)?;
            let (success, response) = Success1::ref_from_prefix(message).ok()?;
            let key = self.other.as_ref()?.bound_to(&self.subsystem);
            let names = [self.subsystem.as_str(), self.name.as_str()];
            let counter = augmented(hash, shared.as_deref(), self.challenge(hash));
            let expected = respond(hash, &key, &counter, self.sequence(), self, b"Controller", names);
            // The rest of the host's buffer follows the response.
            let response = response.get(..hash.len())?;
            let is_proof = success.head.what() == Kind::SUCCESS1 && success.responds == 1;
            Some(is_proof && bool::from(response.ct_eq(&expected)))
        };
        authenticated().unwrap_or(false)
    }

    /// DH-HMAC-CHAP_Success2.
    #[must_use]
    pub fn success(&self) -> Vec<u8> {
        [Head::of(Kind::SUCCESS2, self.transaction).as_bytes(), &[0; 10]].concat()
    }

    /// AUTH_Failure2.
    #[must_use]
    pub fn failure(&self) -> Vec<u8> {
        [Head::of(Kind::FAILURE2, self.transaction).as_bytes(), &[1, 1]].concat()
    }

    fn challenge(&self, hash: Hash) -> &[u8] {
        &self.random[PRIVATE..PRIVATE + hash.len()]
    }

    /// Sequence number 0 means that there is no challenge.
    fn sequence(&self) -> u32 {
        self.random.last_chunk().map_or(1, |bytes| u32::from_le_bytes(*bytes).max(1))
    }

    /// The challenge, the shared secret, and the host's public value.
    fn look<'a>(&self, message: &'a [u8]) -> Option<Looked<'a>> {
        let (head, rest) = Challenge::ref_from_prefix(message).ok()?;
        let (bytes, rest) = rest.split_at_checked(head.hash_len.into())?;
        let value = rest.get(..head.value_len.get().into())?;
        let Some(private) = Private::from_random(Group(head.group), self.random.first_chunk()?) else {
            return Some(Looked { head, bytes, shared: None, public: Vec::new() });
        };
        Some(Looked { head, bytes, shared: Some(private.shared(value)?.to_vec()), public: private.public()? })
    }
}

fn augmented(hash: Hash, shared: Option<&[u8]>, challenge: &[u8]) -> Vec<u8> {
    match shared {
        None => challenge.to_vec(),
        Some(shared) => hash.hmac(&hash.digest(&[shared]), &[challenge]).to_vec(),
    }
}

fn respond(
    hash: Hash,
    key: &[u8],
    challenge: &[u8],
    sequence: u32,
    host: &Host,
    side: &[u8],
    [first, second]: [&str; 2],
) -> Vec<u8> {
    let mut text = challenge.to_vec();
    text.extend_from_slice(&sequence.to_le_bytes());
    text.extend_from_slice(&host.transaction.to_le_bytes());
    text.push(0);
    text.extend_from_slice(side);
    text.extend_from_slice(first.as_bytes());
    text.push(0);
    text.extend_from_slice(second.as_bytes());
    hash.hmac(key, &[&text]).to_vec()
}
