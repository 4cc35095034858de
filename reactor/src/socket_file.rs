//! The files of Unix sockets, and their folders.

use rustix::fs::{Gid, Mode, Uid, chmod, chown};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// Permissions of the folders of sockets: all users may pass through, because each socket has its own permissions.
const FOLDER_MODE: u32 = 0o711;

/// The most bytes of the path of a socket (`sun_path` of unix(7), without the zero at its end).
pub const SOCKET_PATH_MAX: usize = 107;

/// The users that may open a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permission {
    /// Permission bits.
    pub mode: u32,
    /// User ID of the owner; `None`: that of the process.
    pub owner: Option<u32>,
    /// Group ID; `None`: that of the process.
    pub group: Option<u32>,
}

impl Permission {
    /// Sets mode, owner and group of the socket at this path.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn grant(self, path: &Path) -> io::Result<()> {
        if self.owner.is_some() || self.group.is_some() {
            chown(path, self.owner.map(Uid::from_raw), self.group.map(Gid::from_raw))?;
        }
        Ok(chmod(path, Mode::from_raw_mode(self.mode))?)
    }
}

/// Creates a folder for sockets, with its parents.
///
/// # Errors
/// Errors of the operating system.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    folder.parent().map_or(Ok(()), make_folder)?;
    match std::fs::create_dir(folder) {
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| std::fs::set_permissions(folder, std::fs::Permissions::from_mode(FOLDER_MODE))),
    }
}

/// Removes the file of a socket at which no process listens. The path is not removed unless it is a socket: it may be
/// a user's file.
///
/// # Errors
/// `AlreadyExists` when the file is not a socket, and those of the operating system.
pub fn clear(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path)?.file_type().is_socket() {
        true => std::fs::remove_file(path),
        false => {
            let what = format!("{} exists and is not a socket: remove it, or choose another path", path.display());
            Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_sockets_can_be_passed_through() {
        let root = std::env::temp_dir().join(format!("lunar-socket-folders-{}", std::process::id()));
        let folder = root.join("vm/web");
        make_folder(&folder).expect("a folder for temporary files");
        make_folder(&folder).expect("it exists already");
        let mode = |folder: &Path| std::fs::metadata(folder).expect("it exists").permissions().mode() & 0o777;
        assert_eq!([mode(&folder), mode(&root)], [FOLDER_MODE; 2]);
        std::fs::remove_dir_all(&root).expect("it is our own");
    }
}
