//! The part of the FUSE kernel protocol (version 7) that one regular file as the root of a mount needs.

/// The opcodes (`enum fuse_opcode` of the kernel's interface).
mod op {
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
}

/// Bytes of the header of a request.
const HEADER_LEN: usize = 40;
/// Bytes of the parameters of WRITE, before its data.
const WRITE_LEN: usize = 40;
/// The longest write that is agreed on.
pub(super) const WRITE_MAX: usize = 1 << 20;
/// The longest request.
pub(super) const REQUEST_MAX: usize = HEADER_LEN + WRITE_LEN + WRITE_MAX;
/// Pages of the longest request, and the flag that declares this limit.
const PAGES_MAX: u16 = (WRITE_MAX / 4096) as u16;
const FLAG_MAX_PAGES: u32 = 1 << 22;
/// The newest minor version whose formats are used here.
const MINOR: u32 = 31;
/// The mode of a regular file that only its owner may use.
const MODE: u32 = 0o100_600;
/// FALLOC_FL_PUNCH_HOLE and FALLOC_FL_ZERO_RANGE.
const ZEROES: u32 = 0x02 | 0x10;
/// Error numbers of Linux.
pub(super) const EIO: i32 = 5;
pub(super) const ENOSYS: i32 = 38;

/// A request of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    Init,
    Attributes,
    Open,
    Read {
        offset: u64,
        len: usize,
    },
    Write {
        offset: u64,
        data: &'a [u8],
    },
    Sync,
    /// The range becomes zeroes.
    Zero {
        offset: u64,
        len: u64,
    },
    FileSystem,
    /// Nothing has to be done, but the kernel waits for the reply.
    Nothing,
    /// A request without a reply.
    Unanswered,
    Unknown,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Parses a request; returns it with its unique number, or `None` if it is too short.
pub(super) fn parse(bytes: &[u8]) -> Option<(u64, Request<'_>)> {
    let (opcode, unique) = (u32_at(bytes, 4)?, u64_at(bytes, 8)?);
    let body = bytes.get(HEADER_LEN..)?;
    let request = match opcode {
        op::INIT => Request::Init,
        op::GETATTR => Request::Attributes,
        op::OPEN => Request::Open,
        op::READ => Request::Read { offset: u64_at(body, 8)?, len: u32_at(body, 16)? as usize },
        op::WRITE => {
            let len = u32_at(body, 16)? as usize;
            Request::Write { offset: u64_at(body, 8)?, data: body.get(WRITE_LEN..WRITE_LEN + len)? }
        }
        op::FSYNC => Request::Sync,
        op::FALLOCATE if u32_at(body, 24)? & ZEROES != 0 => {
            Request::Zero { offset: u64_at(body, 8)?, len: u64_at(body, 16)? }
        }
        op::STATFS => Request::FileSystem,
        op::RELEASE | op::FLUSH => Request::Nothing,
        op::FORGET | op::BATCH_FORGET | op::INTERRUPT => Request::Unanswered,
        _ => Request::Unknown,
    };
    Some((unique, request))
}

/// Encodes a reply with its payload, or with an error number.
pub(super) fn reply(unique: u64, result: Result<&[u8], i32>) -> Vec<u8> {
    let (error, payload) = match result {
        Ok(payload) => (0, payload),
        Err(number) => (-number, &[][..]),
    };
    let len = 16 + payload.len() as u32;
    [&len.to_le_bytes()[..], &error.to_le_bytes(), &unique.to_le_bytes(), payload].concat()
}

/// The payload of the reply to INIT.
pub(super) fn init() -> Vec<u8> {
    let mut out = vec![0; 64];
    out[0..4].copy_from_slice(&7_u32.to_le_bytes());
    out[4..8].copy_from_slice(&MINOR.to_le_bytes());
    out[12..16].copy_from_slice(&FLAG_MAX_PAGES.to_le_bytes());
    // Requests in progress in the background, and the number from which on the kernel takes the file for congested.
    out[16..18].copy_from_slice(&64_u16.to_le_bytes());
    out[18..20].copy_from_slice(&48_u16.to_le_bytes());
    out[20..24].copy_from_slice(&(WRITE_MAX as u32).to_le_bytes());
    out[24..28].copy_from_slice(&1_u32.to_le_bytes());
    out[28..30].copy_from_slice(&PAGES_MAX.to_le_bytes());
    out
}

/// The attributes of the file, valid for an hour: they never change.
pub(super) fn attributes(size: u64) -> Vec<u8> {
    let mut out = vec![0; 104];
    out[0..8].copy_from_slice(&3600_u64.to_le_bytes());
    out[16..24].copy_from_slice(&1_u64.to_le_bytes());
    out[24..32].copy_from_slice(&size.to_le_bytes());
    out[32..40].copy_from_slice(&(size / 512).to_le_bytes());
    out[76..80].copy_from_slice(&MODE.to_le_bytes());
    out[80..84].copy_from_slice(&1_u32.to_le_bytes());
    out[96..100].copy_from_slice(&4096_u32.to_le_bytes());
    out
}

/// The payload of the reply to OPEN: the kernel caches nothing (FOPEN_DIRECT_IO).
pub(super) fn opened() -> Vec<u8> {
    let mut out = vec![0; 16];
    (out[0], out[8]) = (1, 1);
    out
}

/// The payload of the reply to WRITE.
pub(super) fn written(len: usize) -> Vec<u8> {
    [&(len as u32).to_le_bytes()[..], &[0; 4]].concat()
}

/// The payload of the reply to STATFS: blocks of 4 KiB, of which a loop device derives what it can discard.
pub(super) fn file_system(size: u64) -> Vec<u8> {
    let mut out = vec![0; 80];
    out[0..8].copy_from_slice(&(size / 4096).to_le_bytes());
    out[40..44].copy_from_slice(&4096_u32.to_le_bytes());
    out[44..48].copy_from_slice(&255_u32.to_le_bytes());
    out[48..52].copy_from_slice(&4096_u32.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..8].copy_from_slice(&opcode.to_le_bytes());
        bytes[8] = 9;
        bytes.extend(body);
        bytes
    }

    #[test]
    fn requests_are_parsed_at_the_offsets_of_the_interface() {
        let mut body = vec![0; 40];
        (body[9], body[16]) = (0x10, 3);
        let read = request(15, &body);
        assert_eq!(parse(&read), Some((9, Request::Read { offset: 0x1000, len: 3 })));
        body.extend([7, 8, 9]);
        let write = request(16, &body);
        assert_eq!(parse(&write), Some((9, Request::Write { offset: 0x1000, data: &[7, 8, 9] })));
        assert_eq!(parse(&write[..write.len() - 1]), None);
        body[24] = 3;
        assert_eq!(parse(&request(43, &body)), Some((9, Request::Zero { offset: 0x1000, len: 3 })));
        body[24] = 0;
        assert_eq!(parse(&request(43, &body)), Some((9, Request::Unknown)));
        assert_eq!(parse(&request(20, &[])), Some((9, Request::Sync)));
        assert_eq!(parse(&request(2, &[])), Some((9, Request::Unanswered)));
    }

    #[test]
    fn replies_have_their_length_their_error_and_the_number_of_their_request() {
        assert_eq!(reply(9, Ok(&[1, 2])), [18, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(reply(9, Err(EIO))[..8], [16, 0, 0, 0, 0xfb, 0xff, 0xff, 0xff]);
        assert_eq!((init().len(), attributes(1).len(), opened().len(), file_system(1).len()), (64, 104, 16, 80));
    }
}
