//! The files of Unix sockets.

use rustix::fs::{Gid, Mode, Uid, chmod, chown};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Sets the permissions of the socket at `path`, and the numbers of its user and group where they are given.
///
/// # Errors
/// Those of the operating system.
pub fn permit(path: &Path, mode: u32, owner: Option<u32>, group: Option<u32>) -> io::Result<()> {
    if owner.is_some() || group.is_some() {
        chown(path, owner.map(Uid::from_raw), group.map(Gid::from_raw))?;
    }
    Ok(chmod(path, Mode::from_raw_mode(mode))?)
}

/// Removes the file of a socket at which no process listens. The path is not removed unless it is a socket: it may be
/// a user's file.
///
/// # Errors
/// `AlreadyExists` when it is something else, and those of the operating system.
pub fn clear(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path)?.file_type().is_socket() {
        true => std::fs::remove_file(path),
        false => {
            let what = format!("{} exists and is not a socket: remove it, or choose another path", path.display());
            Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
        }
    }
}
