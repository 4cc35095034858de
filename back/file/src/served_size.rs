//! The size with which a file was served last, in an extended attribute of the file: a file that was truncated while
//! no process served it is refused, instead of being extended by zeroes where it had data.

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, fsync};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// The attribute: the size in bytes, a space, and the inode number of the file. A copy of the file has another inode.
pub const ATTRIBUTE: &str = "user.lunar.size";
/// The longest valid value: two numbers of 20 digits and a space.
const VALUE_BYTES_MAX: usize = 41;

/// The recorded size; `None` if there is no valid record. A file whose attributes cannot be read is served without
/// one, as without a mark, which reports the reason.
pub(crate) fn read(file: BorrowedFd<'_>, inode: u64) -> Option<u64> {
    let mut value = [0; VALUE_BYTES_MAX];
    let len = fgetxattr(file, ATTRIBUTE, &mut value[..]).ok()?;
    parse(value.get(..len)?).filter(|(_, of)| *of == inode).map(|(size, _)| size)
}

/// Records the size, on the medium when this returns.
pub(crate) fn keep(file: BorrowedFd<'_>, inode: u64, size: u64) -> Result<(), Errno> {
    fsetxattr(file, ATTRIBUTE, format!("{size} {inode}").as_bytes(), XattrFlags::empty())?;
    fsync(file)
}

fn parse(value: &[u8]) -> Option<(u64, u64)> {
    let (size, inode) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    Some((number(size)?, number(inode)?))
}

fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_two_numbers_and_nothing_else() {
        assert_eq!(parse(b"67108864 77"), Some((67_108_864, 77)));
        assert_eq!(parse(format!("{} {}", u64::MAX, u64::MAX).as_bytes()), Some((u64::MAX, u64::MAX)));
        for wrong in ["", " ", "1", "1 ", " 1", "+1 7", "1 -7", "1 7 7", "18446744073709551616 1"] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
