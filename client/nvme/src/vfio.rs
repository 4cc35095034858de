//! The client's side of vfio-user, as far as a driver of an NVMe controller needs it: encodes commands and parses
//! replies. It has no socket.

use crate::Error;
use lunar_core::wire::Cursor;
use lunar_vfio_user::registers::{DOORBELLS, DOORBELLS_LEN};
use lunar_vfio_user::wire::{
    Access, Code, DmaMap, DmaUnmap, ERROR, Errno, HEADER_LEN, Header, IRQ_DATA_EVENTFD, IRQ_MSIX, IRQ_TRIGGER, KIND,
    MAP_READABLE, MAP_WRITABLE, NO_REPLY, REGION_BAR0, REPLY, RegionInfo, SetIrqs, Sparse, Version,
};
use zerocopy::{FromBytes, IntoBytes};

/// The longest reply with its header, in bytes: that to VERSION, whose capabilities are a JSON text.
pub const REPLY_MAX: usize = 64 << 10;
/// The capabilities of a client that supports interrupts and notified doorbells: at least one file descriptor per
/// message.
const CAPABILITIES: &[u8] = b"{\"capabilities\":{\"max_msg_fds\":1}}\0";
/// Flag of DMA_MAP: the server may read the memory.
/// The largest reply to DEVICE_GET_REGION_INFO, in bytes: the description with its sparse mmap capability and others.
const DESCRIPTION: u32 = 4096;

/// Numbers the commands and checks that replies belong to them.
#[derive(Debug, Default)]
pub struct Conversation {
    id: u16,
}

impl Conversation {
    /// Encodes a command. The server sends a reply if `answered`.
    #[must_use]
    pub fn command(&mut self, code: Code, payload: &[u8], answered: bool) -> Vec<u8> {
        self.id = self.id.wrapping_add(1);
        let header = Header {
            id: self.id.into(),
            code: code.0.into(),
            // Payloads are a few hundred bytes.
            size: ((HEADER_LEN + payload.len()) as u32).into(),
            flags: (if answered { 0 } else { NO_REPLY }).into(),
            errno: 0.into(),
        };
        [header.as_bytes(), payload].concat()
    }

    /// Parses the header of the reply to the last command. Returns the length of its payload, in bytes.
    ///
    /// # Errors
    /// If it is not a reply to that command, if it is too long, or if the server refused the command.
    pub fn reply(&self, head: &[u8; HEADER_LEN]) -> Result<usize, Error> {
        let header = Header::read_from_bytes(head).map_err(|_| Error::Protocol("a message header cannot be parsed"))?;
        if header.flags.get() & KIND != REPLY || header.id.get() != self.id {
            return Err(Error::Protocol("a message is not the reply to the last command"));
        }
        if header.flags.get() & ERROR != 0 {
            return Err(Error::Errno(Code(header.code.get()), Errno(header.errno.get())));
        }
        let size = header.size.get() as usize;
        (size.checked_sub(HEADER_LEN).filter(|_| size <= REPLY_MAX))
            .ok_or(Error::Protocol("a reply has an invalid length"))
    }
}

/// The payload of VERSION. To a client that does not announce its capabilities, the server offers doorbells that can be
/// mapped.
#[must_use]
pub fn version(announces: bool) -> Vec<u8> {
    let version = Version { major: 0.into(), minor: 1.into() };
    [version.as_bytes(), if announces { CAPABILITIES } else { &[] }].concat()
}

/// The payload of DMA_MAP: maps `size` bytes at `offset` of the file that is sent along to the guest address `address`.
#[must_use]
pub fn map(address: u64, offset: u64, size: u64) -> Vec<u8> {
    let argsz = (size_of::<DmaMap>() as u32).into();
    let flags = (MAP_READABLE | MAP_WRITABLE).into();
    DmaMap { argsz, flags, offset: offset.into(), address: address.into(), size: size.into() }.as_bytes().to_vec()
}

/// The payload of DMA_UNMAP: removes memory that was mapped with exactly this address and size.
#[must_use]
pub fn unmap(address: u64, size: u64) -> Vec<u8> {
    let argsz = (size_of::<DmaUnmap>() as u32).into();
    DmaUnmap { argsz, flags: 0.into(), address: address.into(), size: size.into() }.as_bytes().to_vec()
}

/// The payload of DEVICE_GET_REGION_INFO for BAR0, the registers.
#[must_use]
pub fn registers_info() -> Vec<u8> {
    let none = 0.into();
    let (argsz, index) = (DESCRIPTION.into(), REGION_BAR0.into());
    RegionInfo { argsz, flags: none, index, capabilities: none, size: 0.into(), offset: 0.into() }.as_bytes().to_vec()
}

/// The offset of the doorbell page in the file that was received with `answer`, the description of BAR0.
///
/// # Errors
/// If the doorbell page cannot be mapped.
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

/// The payload of DEVICE_SET_IRQS: the server signals MSI-X vector `at` with the eventfd that is sent along.
#[must_use]
pub fn interrupt(at: u16) -> Vec<u8> {
    let argsz = (size_of::<SetIrqs>() as u32).into();
    let flags = (IRQ_TRIGGER | IRQ_DATA_EVENTFD).into();
    let (index, start, count) = (IRQ_MSIX.into(), u32::from(at).into(), 1.into());
    SetIrqs { argsz, flags, index, start, count }.as_bytes().to_vec()
}

/// The payload of REGION_READ.
#[must_use]
pub fn read(region: u32, offset: u64, count: u32) -> Vec<u8> {
    Access { offset: offset.into(), region: region.into(), count: count.into() }.as_bytes().to_vec()
}

/// The data in the reply to a REGION_READ of `count` bytes.
///
/// # Errors
/// If it has a different length.
pub fn read_data(answer: &[u8], count: usize) -> Result<&[u8], Error> {
    let bytes = answer.get(size_of::<Access>()..).filter(|bytes| bytes.len() == count);
    bytes.ok_or(Error::Protocol("a reply to REGION_READ has a different length than requested"))
}

/// The payload of REGION_WRITE.
#[must_use]
pub fn write(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    // One register or two: the length fits.
    let access = Access { offset: offset.into(), region: region.into(), count: (data.len() as u32).into() };
    [access.as_bytes(), data].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_vfio_user::session::{self, Request};

    #[test]
    fn the_server_parses_the_commands() {
        let mut conversation = Conversation::default();
        let bytes = conversation.command(Code::REGION_WRITE, &write(REGION_BAR0, 0x14, &[1, 2, 3, 4]), false);
        let (head, payload) = bytes.split_first_chunk().expect("a header");
        let head = session::head(head).expect("a command");
        assert!(!head.is_answered && head.len == payload.len());
        let Ok(Request::Write(access, data)) = session::parse(Code::REGION_WRITE, payload) else { panic!("a write") };
        assert_eq!((access.offset.get(), data), (0x14, &[1, 2, 3, 4][..]));
        let has_capabilities = |announces| match session::parse(Code::VERSION, &version(announces)) {
            Ok(Request::Version { has_capabilities, .. }) => has_capabilities,
            other => panic!("{other:?}"),
        };
        assert!(has_capabilities(true) && !has_capabilities(false));
        let payload = map(1 << 32, 4096, 8192);
        let Ok(Request::Map(map)) = session::parse(Code::DMA_MAP, &payload) else { panic!("a map") };
        assert_eq!((map.address.get(), map.offset.get(), map.size.get()), (1 << 32, 4096, 8192));
        let payload = unmap(1 << 32, 8192);
        let Ok(Request::Unmap(_, range)) = session::parse(Code::DMA_UNMAP, &payload) else { panic!("an unmap") };
        assert_eq!(range, Some((1 << 32, 8192)));
        let payload = interrupt(3);
        let Ok(Request::SetIrqs(set, [])) = session::parse(Code::SET_IRQS, &payload) else { panic!("interrupts") };
        assert_eq!((set.start.get(), set.count.get()), (3, 1));
    }

    #[test]
    fn only_the_reply_to_the_last_command_is_accepted() {
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
        assert!(conversation.reply(reply.first_chunk().expect("a header")).is_err(), "the reply to an older command");
    }
}
