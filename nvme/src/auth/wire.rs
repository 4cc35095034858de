//! Messages of DH-HMAC-CHAP (NVMe Base 2.0 8.13.5.4): each is a struct that lies over its bytes. The
//! [`exchange`](super::exchange) decides which messages are legal.

use super::group::{Group, VALUE_MAX};
use super::hash::{DIGEST_MAX, Hash};
use lunar_core::codes;
use lunar_core::wire::le::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a message of the host at most: its longest reply, or an offer of more protocols than there are.
pub const MESSAGE_MAX: usize = 2048;
const _: () = assert!(size_of::<Reply>() + 2 * DIGEST_MAX + VALUE_MAX <= MESSAGE_MAX);

codes! {
    /// Messages, by type and identifier.
    pub struct Kind(u16) {
        NEGOTIATE = 0x0000, CHALLENGE = 0x0101, REPLY = 0x0102, SUCCESS1 = 0x0103, SUCCESS2 = 0x0104,
        FAILURE2 = 0x00f0, FAILURE1 = 0x00f1,
    }
}

codes! {
    /// Reason codes of failed authentications (NVMe Base 2.0 figure 458).
    pub struct Why(u8) {
        FAILED = 0x01, PROTOCOL = 0x02, CONCATENATION = 0x03, HASH = 0x04, GROUP = 0x05, PAYLOAD = 0x06,
        MESSAGE = 0x07,
    }
}

/// The header of all messages (NVMe Base 2.0 8.13).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Head {
    /// Common to all protocols, or DH-HMAC-CHAP's own.
    pub kind: u8,
    /// The message identifier.
    pub id: u8,
    /// Reserved.
    pub reserved: [u8; 2],
    /// The transaction identifier of the host.
    pub transaction: U16,
}

impl Head {
    /// The header of a message.
    #[must_use]
    pub fn of(kind: Kind, transaction: u16) -> Self {
        let [kind, id] = kind.0.to_be_bytes();
        Self { kind, id, reserved: [0; 2], transaction: transaction.into() }
    }

    /// The kind of the message.
    #[must_use]
    pub fn what(&self) -> Kind {
        Kind(u16::from_be_bytes([self.kind, self.id]))
    }
}

/// AUTH_Negotiate (NVMe Base 2.0 8.13); the protocols follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Negotiate {
    /// The header of all messages.
    pub head: Head,
    /// Secure channel concatenation (SC_C): whether and how a TLS PSK is generated.
    pub concatenation: u8,
    /// Protocols that follow.
    pub protocols: u8,
}

/// The descriptor of an authentication protocol (NVMe Base 2.0 8.13).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Protocol {
    /// The protocol identifier: [`DH_HMAC_CHAP`].
    pub id: u8,
    /// Reserved.
    pub reserved: u8,
    /// Hash functions.
    pub hashes: u8,
    /// Groups.
    pub groups: u8,
    /// Hash functions, 30 at most.
    pub hash_list: [u8; 30],
    /// Groups, 30 at most.
    pub group_list: [u8; 30],
}

/// The only protocol that the standard has.
pub const DH_HMAC_CHAP: u8 = 0x01;

/// DH-HMAC-CHAP_Challenge (NVMe Base 2.0 8.13.5); the challenge and the controller's Diffie-Hellman value follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Challenge {
    /// The header of all messages.
    pub head: Head,
    /// Bytes of the challenge.
    pub hash_len: u8,
    /// Reserved.
    pub reserved: u8,
    /// Hash function.
    pub hash: u8,
    /// Group.
    pub group: u8,
    /// Bytes of the controller's Diffie-Hellman value.
    pub value_len: U16,
    /// The sequence number, which the host's response contains.
    pub sequence: U32,
}

/// DH-HMAC-CHAP_Reply (NVMe Base 2.0 8.13.5); the response, the host's challenge and its Diffie-Hellman value follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Reply {
    /// The header of all messages.
    pub head: Head,
    /// Bytes of the response, and of the challenge.
    pub hash_len: u8,
    /// Reserved.
    pub reserved: u8,
    /// Whether the challenge is valid (CVALID).
    pub challenges: u8,
    /// Reserved.
    pub reserved2: u8,
    /// Bytes of the host's Diffie-Hellman value.
    pub value_len: U16,
    /// The sequence number, which the controller's response contains.
    pub sequence: U32,
}

/// DH-HMAC-CHAP_Success1 (NVMe Base 2.0 8.13.5); the controller's response follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Success1 {
    /// The header of all messages.
    pub head: Head,
    /// Bytes of the response.
    pub hash_len: u8,
    /// Reserved.
    pub reserved: u8,
    /// Whether the response is valid (RVALID).
    pub responds: u8,
    /// Reserved.
    pub reserved2: [u8; 7],
}

/// AUTH_Failure1 and AUTH_Failure2 (NVMe Base 2.0 8.13).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Failure {
    /// The header of all messages.
    pub head: Head,
    /// A constant.
    pub code: u8,
    /// The reason code explanation.
    pub why: u8,
}

const _: () = assert!(size_of::<Negotiate>() == 8 && size_of::<Protocol>() == 64 && size_of::<Challenge>() == 16);
const _: () = assert!(size_of::<Reply>() == 16 && size_of::<Success1>() == 16 && size_of::<Failure>() == 8);

/// A message of a host.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// AUTH_Negotiate, with the offered protocols.
    Negotiate(&'a Negotiate, &'a [Protocol]),
    /// DH-HMAC-CHAP_Reply.
    Reply {
        /// The fixed part of the message.
        reply: &'a Reply,
        /// The response.
        response: &'a [u8],
        /// The host's challenge, if it sent one.
        challenge: Option<&'a [u8]>,
        /// The host's Diffie-Hellman value.
        value: &'a [u8],
    },
    /// DH-HMAC-CHAP_Success2.
    Success(&'a Head),
    /// AUTH_Failure2.
    Failure(&'a Failure),
}

impl<'a> Message<'a> {
    /// Parses a message; more bytes may follow it.
    ///
    /// # Errors
    /// The reason code of the failure message.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Why> {
        let (head, _) = Head::ref_from_prefix(bytes).map_err(|_| Why::PAYLOAD)?;
        match head.what() {
            Kind::NEGOTIATE => {
                let (negotiate, rest) = Negotiate::ref_from_prefix(bytes).map_err(|_| Why::PAYLOAD)?;
                let count = negotiate.protocols.into();
                let (protocols, _) = <[Protocol]>::ref_from_prefix_with_elems(rest, count).map_err(|_| Why::PAYLOAD)?;
                Ok(Self::Negotiate(negotiate, protocols))
            }
            Kind::REPLY => Self::reply(bytes),
            Kind::SUCCESS2 => Ok(Self::Success(head)),
            Kind::FAILURE2 => {
                let (failure, _) = Failure::ref_from_prefix(bytes).map_err(|_| Why::PAYLOAD)?;
                Ok(Self::Failure(failure))
            }
            _ => Err(Why::MESSAGE),
        }
    }

    fn reply(bytes: &'a [u8]) -> Result<Self, Why> {
        let (reply, rest) = Reply::ref_from_prefix(bytes).map_err(|_| Why::PAYLOAD)?;
        let (hash_len, value_len) = (reply.hash_len.into(), reply.value_len.get().into());
        let (response, rest) = rest.split_at_checked(hash_len).ok_or(Why::PAYLOAD)?;
        // The message has space for the challenge whether it is valid or not.
        let (challenge, rest) = rest.split_at_checked(hash_len).ok_or(Why::PAYLOAD)?;
        let (value, _) = rest.split_at_checked(value_len).ok_or(Why::PAYLOAD)?;
        let challenge = match reply.challenges {
            0 => None,
            1 => Some(challenge),
            _ => return Err(Why::PAYLOAD),
        };
        Ok(Self::Reply { reply, response, challenge, value })
    }
}

impl Protocol {
    /// The hash functions and groups that are offered, known or not; `None` if there are more than the lists hold.
    #[must_use]
    pub fn offers(&self) -> Option<(&[u8], &[u8])> {
        Some((self.hash_list.get(..self.hashes.into())?, self.group_list.get(..self.groups.into())?))
    }
}

/// The transaction identifier of a message; 0 if the message is too short.
#[must_use]
pub fn transaction(message: &[u8]) -> u16 {
    Head::ref_from_prefix(message).map_or(0, |(head, _)| head.transaction.get())
}

/// DH-HMAC-CHAP_Challenge.
#[must_use]
pub fn challenge(
    transaction: u16,
    (hash, group): (Hash, Group),
    sequence: u32,
    challenge: &[u8],
    value: &[u8],
) -> Vec<u8> {
    let head = Challenge {
        head: Head::of(Kind::CHALLENGE, transaction),
        // The length fields are larger than the longest digest and value.
        hash_len: challenge.len() as u8,
        reserved: 0,
        hash: hash.0,
        group: group.0,
        value_len: (value.len() as u16).into(),
        sequence: sequence.into(),
    };
    [head.as_bytes(), challenge, value].concat()
}

/// Success1: the host is authenticated; with the response of the subsystem, if the host asked for it.
#[must_use]
pub fn success(transaction: u16, hash: Hash, response: Option<&[u8]>) -> Vec<u8> {
    let mut head = Success1::new_zeroed();
    head.head = Head::of(Kind::SUCCESS1, transaction);
    head.hash_len = hash.len() as u8;
    head.responds = response.is_some().into();
    let mut message = [head.as_bytes(), response.unwrap_or_default()].concat();
    message.resize(size_of::<Success1>() + hash.len(), 0);
    message
}

/// AUTH_Failure1.
#[must_use]
pub fn failure(transaction: u16, why: Why) -> Vec<u8> {
    /// The only reason code: authentication failed.
    const FAILED: u8 = 0x01;
    let failure = Failure { head: Head::of(Kind::FAILURE1, transaction), code: FAILED, why: why.0 };
    failure.as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        assert_eq!(failure(0x0102, Why::HASH), [0, 0xf1, 0, 0, 2, 1, 1, 4]);
        let told = challenge(7, (Hash::SHA384, Group::FFDHE2048), 0x0a0b_0c0d, &[0x5a; 48], &[0xc3; 256]);
        assert_eq!(told[..16], [1, 1, 0, 0, 7, 0, 48, 0, 2, 1, 0, 1, 0x0d, 0x0c, 0x0b, 0x0a]);
        assert_eq!((told.len(), told[16], told[63], told[64]), (16 + 48 + 256, 0x5a, 0x5a, 0xc3));
        assert_eq!(
            success(7, Hash::SHA256, Some(&[9; 32]))[..18],
            [1, 3, 0, 0, 7, 0, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 9]
        );
        assert_eq!(success(7, Hash::SHA512, None).len(), 16 + 64);
    }

    #[test]
    fn messages_are_taken_apart() {
        let mut negotiate = vec![0xa5; 8 + 64];
        negotiate[..8].copy_from_slice(&[0, 0, 0, 0, 0x34, 0x12, 0, 1]);
        negotiate[8..14].copy_from_slice(&[1, 0, 2, 1, 3, 1]);
        negotiate[42] = 5;
        let Ok(Message::Negotiate(head, [protocol])) = Message::parse(&negotiate) else { panic!("a negotiation") };
        assert_eq!((head.head.transaction.get(), protocol.offers()), (0x1234, Some((&[3, 1][..], &[5][..]))));
        for (at, value, why) in [(7, 2, Why::PAYLOAD), (1, 1, Why::MESSAGE), (0, 1, Why::MESSAGE)] {
            let mut other = negotiate.clone();
            other[at] = value;
            assert_eq!(Message::parse(&other).err(), Some(why));
        }
        let mut reply = vec![0; 16 + 64 + 5];
        reply[..16].copy_from_slice(&[1, 2, 0, 0, 0x34, 0x12, 32, 0, 1, 0, 5, 0, 1, 0, 0, 0]);
        (reply[16], reply[48], reply[80]) = (1, 2, 3);
        let Ok(Message::Reply { response, challenge, value, .. }) = Message::parse(&reply) else { panic!("a reply") };
        assert_eq!((response[0], challenge.map(|bytes| bytes[0]), value), (1, Some(2), &[3, 0, 0, 0, 0][..]));
        assert_eq!(Message::parse(&reply[..84]).err(), Some(Why::PAYLOAD), "cut off");
        reply[8] = 2;
        assert_eq!(Message::parse(&reply).err(), Some(Why::PAYLOAD));
        assert!(matches!(Message::parse(&[1, 4, 0, 0, 1, 0]), Ok(Message::Success(_))));
        assert!(matches!(Message::parse(&[0, 0xf0, 0, 0, 1, 0, 1, 1]), Ok(Message::Failure(_))));
        for short in [&[][..], &[0, 0, 0, 0, 0], &[0, 0xf0, 0, 0, 1, 0]] {
            assert_eq!(Message::parse(short).err(), Some(Why::PAYLOAD));
        }
        let crowded = Protocol { hashes: 31, ..Protocol::new_zeroed() };
        assert!(crowded.offers().is_none());
    }
}
