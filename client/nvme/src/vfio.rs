//! The client's side of vfio-user, as far as a driver of an NVMe controller needs it: commands out, replies in. It
//! knows no socket.

use crate::Error;
use lunar_core::wire::Cursor;
use lunar_vfio_user::machine::{DOORBELLS, DOORBELLS_LEN};
use lunar_vfio_user::wire::{
    Access, Code, DmaMap, ERROR, Errno, HEADER_LEN, Header, IRQ_DATA_EVENTFD, IRQ_MSIX, IRQ_TRIGGER, KIND,
    MAP_WRITABLE, NO_REPLY, REGION_BAR0, REPLY, RegionInfo, SetIrqs, Sparse, Version,
};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a reply at most, its header included: the version's text is the longest.
pub const REPLY_MAX: usize = 64 << 10;
/// What is told of this side: as much as is needed to be taken for one that is told of interrupts and doorbells.
const CAPABILITIES: &[u8] = b"{\"capabilities\":{\"max_msg_fds\":1}}\0";
/// DMA_MAP: it may be read.
const MAP_READABLE: u32 = 0x01;
/// Bytes of a region's description, with that of the part that can be mapped and room for others.
const DESCRIPTION: u32 = 4096;

/// The numbers of commands, and what their replies must be.
#[derive(Debug, Default)]
pub struct Conversation {
    id: u16,
}

impl Conversation {
    /// A command with its payload; one that is not `answered` has no reply.
    #[must_use]
    pub fn command(&mut self, code: Code, payload: &[u8], answered: bool) -> Vec<u8> {
        self.id = self.id.wrapping_add(1);
        let header = Header {
            id: self.id.into(),
            code: code.0.into(),
            // What is sent is a few hundred bytes.
            size: ((HEADER_LEN + payload.len()) as u32).into(),
            flags: (if answered { 0 } else { NO_REPLY }).into(),
            errno: 0.into(),
        };
        [header.as_bytes(), payload].concat()
    }

    /// Bytes that follow the header of the reply to the last command.
    ///
    /// # Errors
    /// When it is no such reply, or the command was refused.
    pub fn reply(&self, head: &[u8; HEADER_LEN]) -> Result<usize, Error> {
        let header = Header::read_from_bytes(head).map_err(|_| Error::Protocol("a header that is none"))?;
        if header.flags.get() & KIND != REPLY || header.id.get() != self.id {
            return Err(Error::Protocol("what comes is not the reply to the last command"));
        }
        if header.flags.get() & ERROR != 0 {
            return Err(Error::Errno(Code(header.code.get()), Errno(header.errno.get())));
        }
        let size = header.size.get() as usize;
        (size.checked_sub(HEADER_LEN).filter(|_| size <= REPLY_MAX))
            .ok_or(Error::Protocol("a reply of impossible length"))
    }
}

/// VERSION. Who tells nothing of himself wants doorbells that can be mapped.
#[must_use]
pub fn version(announces: bool) -> Vec<u8> {
    let version = Version { major: 0.into(), minor: 1.into() };
    [version.as_bytes(), if announces { CAPABILITIES } else { &[] }].concat()
}

/// DMA_MAP of `size` bytes of the file that goes with it, from `offset` on, to `address`.
#[must_use]
pub fn map(address: u64, offset: u64, size: u64) -> Vec<u8> {
    let argsz = (size_of::<DmaMap>() as u32).into();
    let flags = (MAP_READABLE | MAP_WRITABLE).into();
    DmaMap { argsz, flags, offset: offset.into(), address: address.into(), size: size.into() }.as_bytes().to_vec()
}

/// DEVICE_GET_REGION_INFO of the registers.
#[must_use]
pub fn registers_info() -> Vec<u8> {
    let none = 0.into();
    let (argsz, index) = (DESCRIPTION.into(), REGION_BAR0.into());
    RegionInfo { argsz, flags: none, index, capabilities: none, size: 0.into(), offset: 0.into() }.as_bytes().to_vec()
}

/// Where the page of doorbells is in the file that came with the description of the registers.
///
/// # Errors
/// When it cannot be mapped.
pub fn doorbells(answer: &[u8]) -> Result<u64, Error> {
    const NO: Error = Error::Protocol("the doorbells cannot be mapped");
    let mut cursor = Cursor::new(answer);
    let info = *cursor.take::<RegionInfo>().map_err(|_| NO)?;
    let at = (info.capabilities.get() as usize).checked_sub(size_of::<RegionInfo>()).ok_or(NO)?;
    let (sparse, _) = cursor.rest().get(at..).and_then(|rest| Sparse::read_from_prefix(rest).ok()).ok_or(NO)?;
    let (start, end) = (u64::from(DOORBELLS), u64::from(DOORBELLS) + DOORBELLS_LEN as u64);
    let area = sparse.offset.get()..sparse.offset.get().saturating_add(sparse.size.get());
    if sparse.id.get() != Sparse::ID || sparse.areas.get() != 1 || area.start > start || area.end < end {
        return Err(NO);
    }
    info.offset.get().checked_add(start).ok_or(NO)
}

/// DEVICE_SET_IRQS: vector `at` of MSI-X is told by the descriptor that goes with it.
#[must_use]
pub fn interrupt(at: u16) -> Vec<u8> {
    let argsz = (size_of::<SetIrqs>() as u32).into();
    let flags = (IRQ_TRIGGER | IRQ_DATA_EVENTFD).into();
    let (index, start, count) = (IRQ_MSIX.into(), u32::from(at).into(), 1.into());
    SetIrqs { argsz, flags, index, start, count }.as_bytes().to_vec()
}

/// REGION_READ.
#[must_use]
pub fn read(region: u32, offset: u64, count: u32) -> Vec<u8> {
    Access { offset: offset.into(), region: region.into(), count: count.into() }.as_bytes().to_vec()
}

/// The bytes that were read.
///
/// # Errors
/// When there are not as many as were asked for.
pub fn read_data(answer: &[u8], count: usize) -> Result<&[u8], Error> {
    let bytes = answer.get(size_of::<Access>()..).filter(|bytes| bytes.len() == count);
    bytes.ok_or(Error::Protocol("a read gives another number of bytes than were asked for"))
}

/// REGION_WRITE.
#[must_use]
pub fn write(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    // A register, or two.
    let access = Access { offset: offset.into(), region: region.into(), count: (data.len() as u32).into() };
    [access.as_bytes(), data].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_vfio_user::session::{self, Request};

    #[test]
    fn what_is_asked_is_understood() {
        let mut conversation = Conversation::default();
        let bytes = conversation.command(Code::REGION_WRITE, &write(REGION_BAR0, 0x14, &[1, 2, 3, 4]), false);
        let (head, payload) = bytes.split_first_chunk().expect("a header");
        let head = session::head(head).expect("a command");
        assert!(!head.is_answered && head.len == payload.len());
        let Ok(Request::Write(access, data)) = session::parse(Code::REGION_WRITE, payload) else { panic!("a write") };
        assert_eq!((access.offset.get(), data), (0x14, &[1, 2, 3, 4][..]));
        let told = |announces| match session::parse(Code::VERSION, &version(announces)) {
            Ok(Request::Version { told, .. }) => told,
            other => panic!("{other:?}"),
        };
        assert!(told(true) && !told(false));
        let payload = map(1 << 32, 4096, 8192);
        let Ok(Request::Map(map)) = session::parse(Code::DMA_MAP, &payload) else { panic!("a map") };
        assert_eq!((map.address.get(), map.offset.get(), map.size.get()), (1 << 32, 4096, 8192));
        let payload = interrupt(3);
        let Ok(Request::SetIrqs(set, [])) = session::parse(Code::SET_IRQS, &payload) else { panic!("interrupts") };
        assert_eq!((set.start.get(), set.count.get()), (3, 1));
    }

    #[test]
    fn only_the_reply_to_the_last_command_is_one() {
        let mut conversation = Conversation::default();
        let command = conversation.command(Code::REGION_INFO, &registers_info(), true);
        let (head, payload) = command.split_first_chunk::<HEADER_LEN>().expect("a header");
        assert!(conversation.reply(head).is_err(), "a command");
        let head = session::head(head).expect("a command");
        let (answer, file) = RegionInfo::read_from_bytes(payload)
            .map(|command| session::region_info(&command, true))
            .expect("32 bytes")
            .expect("there");
        let reply = session::reply(&head.header, &Ok(answer.clone()));
        let len = conversation.reply(reply.first_chunk().expect("a header")).expect("the reply");
        assert_eq!((len, file, doorbells(&answer)), (reply.len() - HEADER_LEN, true, Ok(u64::from(DOORBELLS))));
        for cut in 0..answer.len() {
            assert!(doorbells(&answer[..cut]).is_err());
        }
        let refused = session::reply(&head.header, &Err(Errno::NOTSUP));
        assert_eq!(
            conversation.reply(refused.first_chunk().expect("a header")),
            Err(Error::Errno(Code::REGION_INFO, Errno::NOTSUP))
        );
        let _ = conversation.command(Code::RESET, &[], true);
        assert!(conversation.reply(reply.first_chunk().expect("a header")).is_err(), "an older one");
    }
}
