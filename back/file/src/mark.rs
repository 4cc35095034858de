//! What tells a file from any other, for ever: a random number in an extended attribute of the file, or, where
//! the file system or the mode does not let us keep one, the place where the file lies.

use crate::open::Options;
use rustix::fs::{FileType, Mode, OFlags, Stat, XattrFlags, fgetxattr, fsetxattr, fstat, fstatvfs, fsync};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// The attribute: 32 hexadecimal digits, a space, and the inode number of the file that they were made for.
pub const ATTRIBUTE: &str = "user.lunar.identity";
/// Longest value that makes sense: 32 digits, a space, 20 digits.
const VALUE_BYTES_MAX: usize = 64;

/// Where a volume's identity comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A random number that stays with the file.
    Kept([u8; 16]),
    /// Where the file lies: file system, path, inode.
    Place(String),
}

/// The mark of the file at this path, if there is one that has a mark or cannot have any.
#[must_use]
pub fn at(path: &Path) -> Option<Mark> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let stat = fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    match fgetxattr(&file, ATTRIBUTE, &mut [0; VALUE_BYTES_MAX][..]) {
        Ok(_) => read(file.as_fd()).filter(|(_, inode)| *inode == stat.st_ino).map(|(number, _)| Mark::Kept(number)),
        Err(Errno::OPNOTSUPP) => Some(place(file.as_fd(), path, &stat)),
        Err(_) => None,
    }
}

fn place(file: BorrowedFd<'_>, path: &Path, stat: &Stat) -> Mark {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    // The number of the file system, not of the device: devices are numbered anew when the machine starts.
    let system = fstatvfs(file).map_or(0, |system| system.f_fsid);
    Mark::Place(format!("{system:x} {} {}", stat.st_ino, path.display()))
}

/// The mark of an open file; gives it one if it has none.
#[must_use]
pub fn of(file: BorrowedFd<'_>, path: &Path, stat: &Stat, options: &Options) -> Mark {
    let read_only = options.read_only;
    let place = || place(file, path, stat);
    match read(file) {
        Some((number, inode)) if inode == stat.st_ino => return Mark::Kept(number),
        // Two volumes with one identity are one disk with two paths to any multipath initiator, which then
        // writes to whichever it likes. So a copy is a new disk, even if it is in truth the old one that moved.
        Some(_) if !read_only => eprintln!(
            "{}: is a copy of another volume, or was moved: it gets an identity of its own (attribute {ATTRIBUTE})",
            path.display()
        ),
        _ => {}
    }
    if read_only {
        return place();
    }
    match keep(file, stat.st_ino, options.mark) {
        Ok(number) => Mark::Kept(number),
        Err(_) => place(),
    }
}

fn read(file: BorrowedFd<'_>) -> Option<([u8; 16], u64)> {
    let mut value = [0; VALUE_BYTES_MAX];
    let len = fgetxattr(file, ATTRIBUTE, &mut value[..]).ok()?;
    parse(value.get(..len)?)
}

fn parse(value: &[u8]) -> Option<([u8; 16], u64)> {
    let (digits, inode) = std::str::from_utf8(value).ok()?.trim_end().split_once(' ')?;
    let is_hex = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
    Some((number.to_be_bytes(), inode.parse().ok()?))
}

/// Makes a number and writes it to the file's attribute, and to the medium.
fn keep(file: BorrowedFd<'_>, inode: u64, wanted: Option<[u8; 16]>) -> Result<[u8; 16], Errno> {
    let mut number = wanted.unwrap_or_default();
    if wanted.is_none() && rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())? != number.len()
    {
        return Err(Errno::IO);
    }
    let value = format!("{:032x} {inode}", u128::from_be_bytes(number));
    fsetxattr(file, ATTRIBUTE, value.as_bytes(), XattrFlags::empty())?;
    fsync(file)?;
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_digits_and_an_inode_and_nothing_else() {
        let digits = "000102030405060708090a0b0c0d0e0f";
        let number = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(parse(format!("{digits} 77").as_bytes()), Some((number, 77)));
        assert_eq!(parse(format!("{digits} 77\n").as_bytes()), Some((number, 77)));
        for wrong in ["", " ", digits, "7 7", &format!("{digits} x"), &format!("+{} 7", &digits[1..])] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(parse(&[0xff; 40]), None);
    }
}
