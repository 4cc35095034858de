//! The mark, which distinguishes a file from all others: a random number in an extended attribute of the file, or its
//! place, where the file system or the mode does not allow an attribute.

use crate::open::Options;
use lunar_control::files::{self, Access};
use lunar_reactor::log;
use rustix::fs::{FileType, Stat, XattrFlags, fgetxattr, fsetxattr, fstat, fstatvfs, fsync};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// The attribute: 32 hexadecimal digits, a space, and the inode number of the file that they were made for.
pub const ATTRIBUTE: &str = "user.lunar.identity";
/// The longest valid value: 32 digits, a space, 20 digits.
const VALUE_BYTES_MAX: usize = 64;

/// The source of the identity of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A random number that stays with the file.
    Stored([u8; 16]),
    /// The place of the file: file system, path, inode.
    Place(String),
}

/// The mark that the file at this path has, or will have when it is opened; `None` if there is no file, or if it will
/// get a number. A file that is opened `read_only` gets none.
#[must_use]
pub fn at(path: &Path, read_only: bool) -> Option<Mark> {
    let file = files::open(path, Access::Read).ok()?;
    found(file.as_fd(), path, &fstat(&file).ok()?, read_only)
}

/// The same of a file that is open.
pub(crate) fn found(file: BorrowedFd<'_>, path: &Path, stat: &Stat, read_only: bool) -> Option<Mark> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    match read(file) {
        Ok(Some((number, inode))) if inode == stat.st_ino => Some(Mark::Stored(number)),
        Err(Errno::OPNOTSUPP) => Some(place(file, path, stat)),
        _ if read_only => Some(place(file, path, stat)),
        _ => None,
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
        Ok(Some((number, inode))) if inode == stat.st_ino => return Mark::Stored(number),
        // Two volumes with one identity are one disk with two paths to a multipath initiator, which then writes to
        // either. So a copy is a new disk, even if it is the old file after a move.
        Ok(Some(_)) if !read_only => log!(
            "{}: is a copy of another volume, or was moved: it gets an identity of its own (attribute {ATTRIBUTE})",
            path.display()
        ),
        Ok(_) => {}
        // The file may have a mark, which a new one would replace.
        Err(why) => {
            tell(path, why, read_only);
            return place();
        }
    }
    if read_only {
        return place();
    }
    match keep(file, stat.st_ino, options.mark) {
        Ok(number) => Mark::Stored(number),
        Err(why) => {
            tell(path, why, read_only);
            place()
        }
    }
}

/// Logs that the mark of a file is its place, unless the file system or the mode explains it.
fn tell(path: &Path, why: Errno, read_only: bool) {
    if !is_expected(why, read_only) {
        log!(
            "{}: its identity (attribute {ATTRIBUTE}) could not be read or stored, so it is derived from the path: \
             {why}; a moved or copied file becomes another disk",
            path.display()
        );
    }
}

fn is_expected(why: Errno, read_only: bool) -> bool {
    why == Errno::OPNOTSUPP || read_only && matches!(why, Errno::ACCESS | Errno::PERM)
}

/// The number, and the inode that it was made for; `None` if the attribute is missing or malformed.
fn read(file: BorrowedFd<'_>) -> Result<Option<([u8; 16], u64)>, Errno> {
    let mut value = [0; VALUE_BYTES_MAX];
    match fgetxattr(file, ATTRIBUTE, &mut value[..]) {
        Ok(len) => Ok(value.get(..len).and_then(parse)),
        Err(Errno::NODATA | Errno::RANGE) => Ok(None),
        Err(why) => Err(why),
    }
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
    use rustix::fs::{Mode, OFlags};

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

    #[test]
    fn only_what_is_usual_goes_without_a_word() {
        for (why, writable, read_only) in [
            (Errno::OPNOTSUPP, true, true),
            (Errno::ACCESS, false, true),
            (Errno::PERM, false, true),
            (Errno::IO, false, false),
            (Errno::NOSPC, false, false),
        ] {
            assert_eq!((is_expected(why, false), is_expected(why, true)), (writable, read_only), "{why}");
        }
    }

    #[test]
    fn an_attribute_that_cannot_be_read_is_not_replaced() {
        let folder = crate::tests::Folder::new("unread");
        let path = folder.file();
        std::fs::write(&path, [7; 4096]).expect("a file");
        let open = |flags| rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty()).expect("it is there");
        // A file that is open with O_PATH cannot be read.
        let (closed, file) = (open(OFlags::PATH), open(OFlags::RDWR));
        assert_eq!(read(closed.as_fd()), Err(Errno::BADF));
        let stat = fstat(&file).expect("it is open");
        let options = crate::tests::OPTIONS;
        let long = [b'7'; VALUE_BYTES_MAX + 1];
        match fsetxattr(&file, ATTRIBUTE, &long, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP) => return eprintln!("skipped: no extended attributes here"),
            other => other.expect("it is written"),
        }
        assert!(matches!(of(closed.as_fd(), &path, &stat, &options), Mark::Place(_)));
        assert_eq!(read(file.as_fd()), Ok(None), "it is malformed");
        let Mark::Stored(number) = of(file.as_fd(), &path, &stat, &options) else { panic!("it gets one that does") };
        assert_eq!(
            (read(file.as_fd()), at(&path, false)),
            (Ok(Some((number, stat.st_ino))), Some(Mark::Stored(number)))
        );
    }
}
