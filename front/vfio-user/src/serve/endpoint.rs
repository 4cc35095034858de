//! Where virtual machines find their controllers, and who may open the sockets.

use lunar_nvme::Tenant;
use lunar_reactor::unix;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Permissions of the folders of sockets: everybody may pass through, because each socket says who may open it.
const FOLDER_MODE: u32 = 0o711;

/// A socket at which a virtual machine finds its controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Name of the virtual machine, for logs.
    pub name: String,
    /// Path of the socket.
    pub path: PathBuf,
    /// The users that may open the socket.
    pub permission: Permission,
    /// The host that the virtual machine is, and what it sees.
    pub tenant: Tenant,
}

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
    /// Those of the operating system.
    pub fn grant(self, path: &Path) -> io::Result<()> {
        unix::permit(path, self.mode, self.owner, self.group)
    }
}

/// Creates a folder for sockets, with its parents.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    folder.parent().map_or(Ok(()), make_folder)?;
    match std::fs::create_dir(folder) {
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| std::fs::set_permissions(folder, std::fs::Permissions::from_mode(FOLDER_MODE))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_sockets_can_be_passed_through() {
        let root = std::env::temp_dir().join(format!("lunar-vfio-user-{}", std::process::id()));
        let folder = root.join("vm/web");
        make_folder(&folder).expect("a folder for temporary files");
        make_folder(&folder).expect("it exists already");
        let mode = |folder: &Path| std::fs::metadata(folder).expect("it exists").permissions().mode() & 0o777;
        assert_eq!([mode(&folder), mode(&root)], [FOLDER_MODE; 2]);
        std::fs::remove_dir_all(&root).expect("it is our own");
    }
}
