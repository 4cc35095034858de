//! Opens the files and devices that a configuration names: volumes, secrets, certificates.
//!
//! The sandbox of the daemon allows only files that were configured at its start. A file outside of them is opened by
//! the [`FileHelper`], if the program has one; a program without a sandbox needs none.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;

/// The purposes for which a file is opened. There are no others, so a helper checks each of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Access {
    /// A regular file with the data of a volume, read-only.
    Read = 1,
    /// A regular file with the data of a volume.
    Write = 2,
    /// A regular file with the data of a volume, which is created, for its owner alone; it must not exist.
    Create = 3,
    /// A block device, read-only, and no other program may use it.
    ReadDevice = 4,
    /// A block device, and no other program may use it.
    WriteDevice = 5,
    /// A block device that this process has for itself already, read-only.
    ReadOwnDevice = 6,
    /// A block device that this process has for itself already.
    WriteOwnDevice = 7,
    /// A small regular file: a secret, a key or a certificate, read-only.
    ReadSecret = 8,
    /// The generic node of an NVMe namespace, read-only. Other programs may use it.
    ReadNamespace = 9,
    /// The generic node of an NVMe namespace. Other programs may use it.
    WriteNamespace = 10,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Read,
        Self::Write,
        Self::Create,
        Self::ReadDevice,
        Self::WriteDevice,
        Self::ReadOwnDevice,
        Self::WriteOwnDevice,
        Self::ReadSecret,
        Self::ReadNamespace,
        Self::WriteNamespace,
    ];

    /// The flags of open(2).
    #[must_use]
    pub fn flags(self) -> OFlags {
        // Not blocking: a FIFO would wait for its other end before its type is seen.
        let file = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match self {
            Self::Read | Self::ReadSecret => OFlags::RDONLY | file,
            Self::Write => OFlags::RDWR | file,
            Self::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | file,
            Self::ReadDevice => OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC,
            Self::WriteDevice => OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC,
            Self::ReadOwnDevice | Self::ReadNamespace => OFlags::RDONLY | OFlags::CLOEXEC,
            Self::WriteOwnDevice | Self::WriteNamespace => OFlags::RDWR | OFlags::CLOEXEC,
        }
    }

    /// The mode of a file that is created: the content of a disk is confidential.
    #[must_use]
    pub fn mode(self) -> Mode {
        if self == Self::Create { Mode::RUSR | Mode::WUSR } else { Mode::empty() }
    }
}

/// A process outside of the sandbox that opens files for this one.
pub trait FileHelper: Send + Sync + fmt::Debug {
    /// Opens a file. `held` is an open file of the device, if this process has it for itself already.
    ///
    /// # Errors
    /// Errors of open(2); EACCES, too, if the rules of the helper forbid it.
    fn open(&self, path: &Path, access: Access, held: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno>;

    /// Removes a file with data of a volume.
    ///
    /// # Errors
    /// Errors of unlink(2); EACCES, too, if the rules of the helper forbid it.
    fn remove(&self, path: &Path) -> Result<(), Errno>;

    /// Syncs a folder, so that the names of new files are on the medium.
    ///
    /// # Errors
    /// Errors of open(2) and fsync(2).
    fn sync_folder(&self, folder: &Path) -> Result<(), Errno>;
}

static HELPER: OnceLock<Box<dyn FileHelper>> = OnceLock::new();

/// Sets the helper of this process; the first one stays.
pub fn set_helper(helper: Box<dyn FileHelper>) {
    // A process enters its sandbox once, so it has one helper.
    let _ = HELPER.set(helper);
}

/// Tries a helper, if this process was not permitted.
fn or_by_helper<T>(
    own: Result<T, Errno>,
    by_helper: impl FnOnce(&dyn FileHelper) -> Result<T, Errno>,
) -> Result<T, Errno> {
    match (own, HELPER.get()) {
        (Err(Errno::ACCESS), Some(helper)) => by_helper(helper.as_ref()),
        (own, _) => own,
    }
}

/// Opens a file that the configuration names.
///
/// # Errors
/// Errors of open(2).
pub fn open(path: &Path, access: Access) -> Result<OwnedFd, Errno> {
    or_by_helper(rustix::fs::open(path, access.flags(), access.mode()), |helper| helper.open(path, access, None))
}

/// Opens a block device once more, of which this process holds an open file.
///
/// # Errors
/// Errors of open(2).
pub fn open_again(path: &Path, access: Access, held: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    or_by_helper(rustix::fs::open(path, access.flags(), access.mode()), |helper| helper.open(path, access, Some(held)))
}

/// Removes a file with data of a volume.
///
/// # Errors
/// Errors of unlink(2).
pub fn remove(path: &Path) -> Result<(), Errno> {
    or_by_helper(rustix::fs::unlink(path), |helper| helper.remove(path))
}

/// Syncs a folder, so that the names of new files in it are on the medium.
///
/// # Errors
/// Errors of open(2) and fsync(2).
pub fn sync_folder(folder: &Path) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = rustix::fs::open(folder, flags, Mode::empty()).and_then(|folder| rustix::fs::fsync(folder.as_fd()));
    or_by_helper(own, |helper| helper.sync_folder(folder))
}

/// Reads a secret, a key or a certificate: at most `most` bytes and one more, which shows that the file is longer.
///
/// # Errors
/// Errors of open(2) and read(2).
pub fn read_secret(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::from(open(path, Access::ReadSecret)?);
    let mut bytes = Vec::with_capacity(usize::try_from(most).unwrap_or(0) + 1);
    file.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_files_are_created_and_nothing_is_truncated() {
        for access in Access::ALL {
            let flags = access.flags();
            assert_eq!(flags.contains(OFlags::CREATE), access == Access::Create, "{access:?}");
            assert!(!flags.contains(OFlags::TRUNC) && flags.contains(OFlags::CLOEXEC), "{access:?}");
            assert!(!flags.contains(OFlags::CREATE) || flags.contains(OFlags::EXCL), "{access:?}");
        }
    }

    #[test]
    fn the_helper_is_asked_only_about_a_refusal() {
        #[derive(Debug)]
        struct Refusing;
        impl FileHelper for Refusing {
            fn open(&self, _: &Path, _: Access, _: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno> {
                Err(Errno::NOSPC)
            }
            fn remove(&self, _: &Path) -> Result<(), Errno> {
                Err(Errno::NOSPC)
            }
            fn sync_folder(&self, _: &Path) -> Result<(), Errno> {
                Err(Errno::NOSPC)
            }
        }
        set_helper(Box::new(Refusing));
        let asked = |own| or_by_helper::<()>(own, |helper| helper.remove(Path::new("/x")));
        assert_eq!(asked(Err(Errno::ACCESS)), Err(Errno::NOSPC));
        assert_eq!((asked(Err(Errno::NOENT)), asked(Ok(()))), (Err(Errno::NOENT), Ok(())));
    }

    #[test]
    fn a_secret_is_read_up_to_its_limit_and_one_byte_more() {
        let path = std::env::temp_dir().join(format!("lunar-files-{}", std::process::id()));
        std::fs::write(&path, [7; 9]).expect("a file");
        assert_eq!(read_secret(&path, 4).expect("it is read").len(), 5);
        assert_eq!(read_secret(&path, 20).expect("it is read").len(), 9);
        std::fs::remove_file(path).expect("our file");
    }
}
