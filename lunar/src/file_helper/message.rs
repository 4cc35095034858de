//! The messages between the daemon and its file helper.
//!
//! A request is a number (8 bytes, little endian), an operation (1 byte) and a path. A reply is the number of its
//! request and an error number, 0 if there is none (4 bytes, little endian); a file goes with it.

use lunar_control::files::Access;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest path that the kernel takes (PATH_MAX).
pub const PATH_BYTES_MAX: usize = 4096;
/// The bytes of a request before its path.
const HEAD_BYTES: usize = 9;
/// The bytes of the longest request.
pub const REQUEST_BYTES_MAX: usize = HEAD_BYTES + PATH_BYTES_MAX;
/// The bytes of a reply.
pub const REPLY_BYTES: usize = 12;
/// The codes of operations other than [`Operation::Open`].
const REMOVE: u8 = 0x80;
const SYNC_FOLDER: u8 = 0x81;

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Opens a file.
    Open(Access),
    /// Removes a file.
    Remove,
    /// Syncs a folder.
    SyncFolder,
}

impl Operation {
    fn code(self) -> u8 {
        match self {
            Self::Open(access) => access as u8,
            Self::Remove => REMOVE,
            Self::SyncFolder => SYNC_FOLDER,
        }
    }

    fn of(code: u8) -> Option<Self> {
        match code {
            REMOVE => Some(Self::Remove),
            SYNC_FOLDER => Some(Self::SyncFolder),
            code => Access::ALL.into_iter().find(|access| *access as u8 == code).map(Self::Open),
        }
    }

    /// The operation for the log, after it.
    #[must_use]
    pub fn past(self) -> &'static str {
        match self {
            Self::Open(Access::Create) => "created",
            Self::Open(Access::Write | Access::WriteDevice | Access::WriteOwnDevice | Access::WriteNamespace) => {
                "opened for writing"
            }
            Self::Open(_) => "opened for reading",
            Self::Remove => "removed",
            Self::SyncFolder => "synced",
        }
    }
}

/// A request of the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Its number.
    pub number: u64,
    /// The operation.
    pub operation: Operation,
    /// The file or folder.
    pub path: &'a Path,
}

impl<'a> Request<'a> {
    /// Its bytes; `None` if the path is too long.
    #[must_use]
    pub fn emit(&self) -> Option<Vec<u8>> {
        let path = self.path.as_os_str().as_bytes();
        let bytes = || [&self.number.to_le_bytes()[..], &[self.operation.code()], path].concat();
        (path.len() <= PATH_BYTES_MAX).then(bytes)
    }

    /// Reads a request; `None` if it is malformed.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (code, path) = rest.split_first()?;
        let is_path = (1..=PATH_BYTES_MAX).contains(&path.len()) && !path.contains(&0);
        let operation = Operation::of(*code).filter(|_| is_path)?;
        Some(Self { number: u64::from_le_bytes(*number), operation, path: Path::new(OsStr::from_bytes(path)) })
    }
}

/// A reply of the helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The number of the request.
    pub number: u64,
    /// The error number; 0: none.
    pub errno: i32,
}

impl Reply {
    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; REPLY_BYTES] {
        let mut bytes = [0; REPLY_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&self.errno.to_le_bytes());
        bytes
    }

    /// Reads a reply; `None` if it is malformed.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (number, errno) = bytes.split_first_chunk()?;
        let errno = i32::from_le_bytes(errno.try_into().ok()?);
        // The kernel has no other error numbers (MAX_ERRNO).
        (0..=4095).contains(&errno).then_some(Self { number: u64::from_le_bytes(*number), errno })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_are_read_as_they_are_written() {
        let opens = Access::ALL.into_iter().map(Operation::Open);
        for operation in opens.chain([Operation::Remove, Operation::SyncFolder]) {
            let request = Request { number: 7, operation, path: Path::new("/srv/a") };
            let bytes = request.emit().expect("it is short");
            assert_eq!(Request::parse(&bytes), Some(request));
        }
        let golden = Request { number: 0x0102, operation: Operation::Open(Access::Create), path: Path::new("/a") };
        assert_eq!(golden.emit().expect("it is short"), [2, 1, 0, 0, 0, 0, 0, 0, 3, b'/', b'a']);
        let reply = Reply { number: 0x0102, errno: 13 };
        assert_eq!(reply.emit(), [2, 1, 0, 0, 0, 0, 0, 0, 13, 0, 0, 0]);
        assert_eq!(Reply::parse(&reply.emit()), Some(reply));
    }

    #[test]
    fn malformed_messages_are_refused() {
        let good = [0, 0, 0, 0, 0, 0, 0, 0, 1, b'/'];
        assert!(Request::parse(&good).is_some());
        for length in 0..good.len() {
            assert_eq!(Request::parse(&good[..length]), None, "{length} bytes");
        }
        for code in [0, 0x40, 0x7f, 0x82, 0xff] {
            assert_eq!(Request::parse(&[0, 0, 0, 0, 0, 0, 0, 0, code, b'/']), None, "{code}");
        }
        assert_eq!(Request::parse(&[0, 0, 0, 0, 0, 0, 0, 0, 1, b'/', 0]), None, "NUL ends the path for the kernel");
        let long = vec![b'a'; PATH_BYTES_MAX + 1];
        assert_eq!(Request::parse(&[&good[..9], &long].concat()), None);
        let path = Path::new(OsStr::from_bytes(&long));
        assert_eq!(Request { number: 1, operation: Operation::Remove, path }.emit(), None);
        for errno in [-1, 4096] {
            assert_eq!(Reply::parse(&Reply { number: 1, errno }.emit()), None, "{errno}");
        }
        assert_eq!((Reply::parse(&[0; 11]), Reply::parse(&[0; 13])), (None, None));
    }
}
