//! Messages to a back-end, and its answers. The formats are those of the front `vhost-user`.

use crate::Defect;
use lunar_vhost_user::blk::ConfigSpace;
use lunar_vhost_user::config::PAYLOAD_MAX;
use lunar_vhost_user::wire::{
    BackendCode, Code, ConfigHead, HEADER_LEN, Header, MemoryRegion, MemoryTable, NEED_REPLY, REPLY, VERSION,
    VERSION_MASK, VringAddress, VringState,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The address of the shared memory in messages: any one, because no process uses it as an address. Zero would stand
/// for no ring.
pub const BASE: u64 = 1 << 40;

/// A message with this payload, which the back-end acknowledges if `needs_reply`.
#[must_use]
pub fn message(code: Code, payload: &[u8], needs_reply: bool) -> Vec<u8> {
    let flags = VERSION | if needs_reply { NEED_REPLY } else { 0 };
    // A payload is far smaller than 4 GiB.
    let header = Header { code: code.0.into(), flags: flags.into(), size: (payload.len() as u32).into() };
    [header.as_bytes(), payload].concat()
}

/// The payload of messages about a ring with one number.
#[must_use]
pub fn state(ring: u16, number: u32) -> Vec<u8> {
    VringState { index: u32::from(ring).into(), num: number.into() }.as_bytes().to_vec()
}

/// The payload of SET_VRING_ADDR, for parts at these places of the shared memory: descriptors, available, used.
#[must_use]
pub fn address(ring: u16, parts: [usize; 3]) -> Vec<u8> {
    let [descriptors, available, used] = parts.map(|at| (BASE + at as u64).into());
    let index = u32::from(ring).into();
    VringAddress { index, flags: 0.into(), descriptors, used, available, log: 0.into() }.as_bytes().to_vec()
}

/// The payload of SET_MEM_TABLE: one region of `len` bytes, at guest address zero.
#[must_use]
pub fn memory(len: usize) -> Vec<u8> {
    let head = MemoryTable { count: 1.into(), padding: 0.into() };
    let (guest, offset) = (0.into(), 0.into());
    let region = MemoryRegion { guest, size: (len as u64).into(), user: BASE.into(), offset };
    [head.as_bytes(), region.as_bytes()].concat()
}

/// Bytes of the configuration space that describe a disk. Back-ends that are older than secure erase and zones have no
/// more, and refuse a question for more.
const SPACE_LEN: usize = std::mem::offset_of!(ConfigSpace, unsupported);

/// The payload of GET_CONFIG: the configuration space, without secure erase and zones.
#[must_use]
pub fn config() -> Vec<u8> {
    let size = SPACE_LEN;
    // A few dozen bytes.
    let head = ConfigHead { offset: 0.into(), size: (size as u32).into(), flags: 0.into() };
    [head.as_bytes(), &vec![0; size]].concat()
}

/// The header of a message of the back-end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its number.
    pub code: u32,
    /// Bytes that follow: no more than a message has.
    pub len: usize,
}

fn head(bytes: &[u8; HEADER_LEN], reply: u32) -> Result<Head, Defect> {
    let header = Header::ref_from_bytes(bytes).map_err(|_| Defect::Message)?;
    let (flags, len) = (header.flags.get(), header.size.get() as usize);
    if flags & (VERSION_MASK | REPLY) != VERSION | reply || len > PAYLOAD_MAX {
        return Err(Defect::Message);
    }
    Ok(Head { code: header.code.get(), len })
}

/// The header of a reply.
///
/// # Errors
/// [`Defect::Message`]: it is none, or too long.
pub fn reply(bytes: &[u8; HEADER_LEN]) -> Result<Head, Defect> {
    head(bytes, REPLY)
}

/// The header of a message of the back-end on its own channel.
///
/// # Errors
/// [`Defect::Message`]: it is none, or too long.
pub fn notice(bytes: &[u8; HEADER_LEN]) -> Result<Head, Defect> {
    head(bytes, 0)
}

/// Whether the back-end says that its configuration space has changed.
#[must_use]
pub fn has_changed(head: &Head) -> bool {
    head.code == BackendCode::CONFIG_CHANGE.0
}

/// The number in a reply.
///
/// # Errors
/// [`Defect::Message`]: it has another length.
pub fn number(payload: &[u8]) -> Result<u64, Defect> {
    payload.try_into().map(u64::from_le_bytes).map_err(|_| Defect::Message)
}

/// Takes an acknowledgement apart.
///
/// # Errors
/// [`Defect::Refused`], [`Defect::Message`].
pub fn acknowledged(code: Code, payload: &[u8]) -> Result<(), Defect> {
    if number(payload)? == 0 { Ok(()) } else { Err(Defect::Refused(code.0)) }
}

/// The configuration space in a reply to [`config`].
///
/// # Errors
/// [`Defect::Refused`]: there is none. [`Defect::Message`].
pub fn space(payload: &[u8]) -> Result<ConfigSpace, Defect> {
    if payload.is_empty() {
        return Err(Defect::Refused(Code::GET_CONFIG.0));
    }
    let (_, known) = payload.split_at_checked(size_of::<ConfigHead>()).ok_or(Defect::Message)?;
    if known.len() != SPACE_LEN {
        return Err(Defect::Message);
    }
    let mut space = ConfigSpace::new_zeroed();
    space.as_mut_bytes()[..SPACE_LEN].copy_from_slice(known);
    Ok(space)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_vhost_user::session::{self, Request, RingIndex};
    use proptest::prelude::*;

    fn parsed(code: Code, payload: &[u8]) -> Request<'_> {
        session::parse(code, payload).expect("the back-end of this repository takes it")
    }

    #[test]
    fn the_back_end_takes_the_messages_apart() {
        let bytes = message(Code::SET_FEATURES, &7_u64.to_le_bytes(), true);
        let head = session::head(bytes.first_chunk().expect("a header")).expect("good");
        assert_eq!((head.code, head.len, head.needs_reply), (Code::SET_FEATURES, 8, true));
        assert_eq!(parsed(Code::SET_VRING_NUM, &state(3, 512)), Request::SetVringNum(RingIndex::from(3), 512));
        let Request::SetVringAddr(ring, found) = &parsed(Code::SET_VRING_ADDR, &address(1, [0, 16, 32])) else {
            panic!("it is an address")
        };
        assert_eq!((ring.at(), found.available.get(), found.used.get()), (1, BASE + 16, BASE + 32));
        let Request::SetMemTable(table) = &parsed(Code::SET_MEM_TABLE, &memory(8192)) else { panic!("it is a table") };
        assert_eq!((table.len(), table[0].size.get(), table[0].user.get()), (1, 8192, BASE));
        assert_eq!(parsed(Code::GET_CONFIG, &config()), Request::GetConfig(0, 60));
    }

    #[test]
    fn replies_and_notices_are_told_apart() {
        let made = session::reply(Code::GET_QUEUE_NUM, &64_u64.to_le_bytes());
        let head = made.first_chunk().expect("a header");
        assert_eq!(reply(head), Ok(Head { code: 17, len: 8 }));
        assert_eq!((notice(head), number(&made[HEADER_LEN..])), (Err(Defect::Message), Ok(64)));
        let made = session::notice(BackendCode::CONFIG_CHANGE.0);
        let head = made.first_chunk().expect("a header");
        assert!(notice(head).is_ok_and(|head| has_changed(&head)) && reply(head).is_err());
        assert_eq!(acknowledged(Code::SET_MEM_TABLE, &[0; 8]), Ok(()));
        assert_eq!(acknowledged(Code::SET_MEM_TABLE, &[1, 0, 0, 0, 0, 0, 0, 0]), Err(Defect::Refused(5)));
        assert_eq!(acknowledged(Code::SET_MEM_TABLE, &[0; 7]), Err(Defect::Message));
        assert!(space(&config()).is_ok() && space(&config()[1..]).is_err());
        assert_eq!(space(&[]), Err(Defect::Refused(24)), "there is no disk");
    }

    proptest! {
        #[test]
        fn no_reply_causes_a_panic(
            head in any::<[u8; HEADER_LEN]>(),
            payload in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            prop_assert!(!reply(&head).is_ok_and(|head| head.len > PAYLOAD_MAX));
            let _ = (notice(&head), number(&payload), space(&payload));
        }
    }
}
