//! Files that are created or replaced as a whole: after a power failure there is the old one or the new one.
//!
//! [`replace`] and [`create`] write a file; [`NewFile`] is one that has not taken its place yet, for callers that
//! exchange files themselves.

use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// The end of the name of a file that is not complete, or not in its place yet. A process that is killed leaves it; the
/// next writer of the file removes it.
pub const UNFINISHED: &str = ".new";

/// The permissions of a new file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// These, without those of the umask of the process.
    AtMost(u32),
    /// Exactly these, and this user and group if there are some. Until the file is complete, only its owner can read
    /// it.
    Exactly(u32, Option<(u32, u32)>),
}

/// Why a file was not replaced.
#[derive(Debug)]
pub struct ReplaceError {
    /// The reason.
    pub why: io::Error,
    /// The new file is in its place, and a power failure may bring the old one back.
    pub is_in_place: bool,
}

impl From<io::Error> for ReplaceError {
    fn from(why: io::Error) -> Self {
        Self { why, is_in_place: false }
    }
}

impl fmt::Display for ReplaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl std::error::Error for ReplaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}

/// A complete file beside the place that it will take. It is removed unless it takes its place.
#[derive(Debug)]
pub struct NewFile<'a> {
    place: &'a Path,
    path: PathBuf,
    is_in_place: bool,
}

impl<'a> NewFile<'a> {
    /// Writes a file that will be at `place`. It is on the medium when this returns. One process at a time writes it.
    ///
    /// # Errors
    /// Errors of `fill` and of the file system; there is no new file then.
    pub fn write(place: &'a Path, access: Access, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<Self> {
        let mut path = place.as_os_str().to_owned();
        path.push(UNFINISHED);
        let path = PathBuf::from(path);
        // One that is left has permissions of its own.
        if let Err(why) = fs::remove_file(&path)
            && why.kind() != ErrorKind::NotFound
        {
            return Err(why);
        }
        let mode = match access {
            Access::AtMost(mode) => mode,
            Access::Exactly(..) => 0o600,
        };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        // From here on, an error removes it.
        let new = Self { place, path, is_in_place: false };
        fill(&mut file)?;
        if let Access::Exactly(mode, owner) = access {
            let now = file.metadata()?;
            if let Some((user, group)) = owner.filter(|owner| *owner != (now.uid(), now.gid())) {
                fchown(&file, Some(user), Some(group))?;
            }
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.sync_all()?;
        Ok(new)
    }

    /// Its path, until it takes its place.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file at its place, or creates it there.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn take_place(mut self) -> Result<(), ReplaceError> {
        fs::rename(&self.path, self.place)?;
        self.is_in_place = true;
        sync_folder_of(self.place).map_err(|why| ReplaceError { why, is_in_place: true })
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.is_in_place {
            // It takes space, may hold secrets, and is of no use.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Replaces a file, or creates it. It is on the medium when this returns.
///
/// # Errors
/// Errors of the file system.
pub fn replace(path: &Path, access: Access, content: &[u8]) -> Result<(), ReplaceError> {
    replace_with(path, access, |file| file.write_all(content))
}

/// Replaces a file, or creates it, with the content that `fill` writes.
///
/// # Errors
/// Errors of `fill` and of the file system.
pub fn replace_with(
    path: &Path,
    access: Access,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), ReplaceError> {
    NewFile::write(path, access, fill)?.take_place()
}

/// Creates a file. One process at a time creates files in its folder.
///
/// # Errors
/// Errors of `fill` and of the file system, and when there is a file.
pub fn create(path: &Path, access: Access, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if path.try_exists()? {
        return Err(ErrorKind::AlreadyExists.into());
    }
    replace_with(path, access, fill).map_err(|failed| failed.why)
}

/// Brings the names in the folder of a file to the medium.
///
/// # Errors
/// Errors of the file system.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    #[cfg(any(test, feature = "testing"))]
    testing::fail_once()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests;
