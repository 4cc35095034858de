//! The rules of the file helper: they hold for any request, because the daemon that asks may have been taken over.

use lunar_control::files::Access;
use rustix::fs::{FileType, Mode, OFlags};
use std::path::{Component, Path, PathBuf};

/// The longest secret, key or certificate chain, as the API reads it.
pub const SECRET_BYTES_MAX: u64 = 1 << 20;
/// Folders of the system: their files are programs, permissions and interfaces of the kernel, and no volumes.
const NO_VOLUMES: [&str; 15] = [
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/lib/dpkg",
    "/var/lib/systemd",
    "/var/spool",
];
/// Folders of interfaces of the kernel, and secrets of other programs.
const NO_SECRETS: [&str; 5] = ["/etc/ssh", "/proc", "/sys", "/dev", "/usr"];
/// General folders, whose own files (`/etc/shadow`) are of other programs.
const NO_SECRETS_DIRECTLY: [&str; 2] = ["/", "/etc"];

/// Whether a request may name this path: absolute, and without `..`.
#[must_use]
pub fn allows_name(path: &Path) -> bool {
    path.is_absolute() && !path.components().any(|part| matches!(part, Component::ParentDir | Component::CurDir))
}

/// The folder of the settings of all programs.
const SETTINGS: &str = "/etc";
/// Folders of interfaces of the kernel: no request names a path in them.
const KERNEL: [&str; 2] = ["/proc", "/sys"];

/// Whether a request may name this path for this purpose. The path may have symbolic links, so [`allows_place`] is
/// asked about the place of the file, too.
#[must_use]
pub fn allows_path(path: &Path, access: Access) -> bool {
    allows_name(path)
        && match access {
            Access::Read | Access::Write | Access::Create => allows_volume(path),
            Access::ReadDevice
            | Access::WriteDevice
            | Access::ReadOwnDevice
            | Access::WriteOwnDevice
            | Access::ReadNamespace
            | Access::WriteNamespace => !is_below(path, &KERNEL),
            Access::ReadSecret => !is_below(path, &NO_SECRETS) && !is_hidden(path),
        }
}

/// Whether the file at this place, without symbolic links, may be opened for this purpose.
#[must_use]
pub fn allows_place(real: &Path, access: Access) -> bool {
    if !allows_name(real) {
        return false;
    }
    match access {
        Access::Read | Access::Write | Access::Create => allows_volume(real),
        Access::ReadDevice
        | Access::WriteDevice
        | Access::ReadOwnDevice
        | Access::WriteOwnDevice
        | Access::ReadNamespace
        | Access::WriteNamespace => real.starts_with("/dev"),
        Access::ReadSecret => {
            let is_general = real.parent().is_none_or(|folder| NO_SECRETS_DIRECTLY.iter().any(|own| folder == *own));
            !is_general && !is_below(real, &NO_SECRETS) && !is_hidden(real)
        }
    }
}

/// Whether the data of a volume may be in the file, or the files of the folder, at this place.
#[must_use]
pub fn allows_volume(real: &Path) -> bool {
    let is_device = real.starts_with("/dev") && !real.starts_with("/dev/shm");
    !is_device && !is_below(real, &NO_VOLUMES) && !is_hidden(real)
}

/// Whether an inode of this type may be opened for this purpose.
#[must_use]
pub fn allows_type(file: FileType, size: u64, access: Access) -> bool {
    match access {
        Access::Read | Access::Write | Access::Create => file == FileType::RegularFile,
        Access::ReadSecret => file == FileType::RegularFile && size <= SECRET_BYTES_MAX,
        Access::ReadDevice | Access::WriteDevice | Access::ReadOwnDevice | Access::WriteOwnDevice => {
            file == FileType::BlockDevice
        }
        Access::ReadNamespace | Access::WriteNamespace => file == FileType::CharacterDevice,
    }
}

/// Whether a file with this mode (`st_mode`) may be written or removed. A program, or a file with another
/// name elsewhere, is no volume, and a file of another user belongs to another program.
#[must_use]
pub fn allows_change(mode: u32, has_one_name: bool, is_own: bool) -> bool {
    let execute_or_set_id = Mode::XUSR | Mode::XGRP | Mode::XOTH | Mode::SUID | Mode::SGID;
    !Mode::from_raw_mode(mode).intersects(execute_or_set_id) && has_one_name && is_own
}

/// Whether the secret at this place, without symbolic links, may be read: below `/etc` only in the folders that had
/// secrets, or the configuration, when the daemon was started.
#[must_use]
pub fn allows_secret(real: &Path, folders: &[PathBuf]) -> bool {
    !real.starts_with(SETTINGS) || folders.iter().any(|folder| is_secrets_folder(folder) && real.starts_with(folder))
}

/// Whether the helper is told of this folder, which has secrets or the configuration.
#[must_use]
pub fn is_secrets_folder(folder: &Path) -> bool {
    folder.starts_with(SETTINGS) && folder != Path::new(SETTINGS)
}

/// Whether a device may be opened once more for this purpose, if the daemon has a file of it that is open in this way:
/// the new file permits nothing that the first one does not permit.
#[must_use]
pub fn allows_again(held: OFlags, access: Access) -> bool {
    // A file that was opened with O_PATH permits no I/O.
    let mode = Some(held & OFlags::RWMODE).filter(|_| !held.contains(OFlags::PATH));
    match access {
        Access::ReadOwnDevice => mode == Some(OFlags::RDONLY) || mode == Some(OFlags::RDWR),
        Access::WriteOwnDevice => mode == Some(OFlags::RDWR),
        _ => false,
    }
}

fn is_below(path: &Path, folders: &[&str]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

/// Whether the path has a hidden part: keys and settings of users (`.ssh`, `.bashrc`).
fn is_hidden(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_outside_of_the_folders_of_the_system() {
        for (path, is_allowed) in [
            ("/srv/new/disk.img", true),
            ("/mnt/disk.img", true),
            ("/var/lib/vms/disk.img", true),
            ("/home/alice/disk.img", true),
            ("/dev/shm/disk.img", true),
            ("/binary/disk.img", true),
            ("/etc/passwd", false),
            ("/usr/bin/env", false),
            ("/proc/self/mem", false),
            ("/run/lunar/x", false),
            ("/dev/sda", false),
            ("/home/alice/.ssh/authorized_keys", false),
            ("/home/alice/.bashrc", false),
            ("/srv/../etc/passwd", false),
            ("srv/disk.img", false),
            ("", false),
        ] {
            for access in [Access::Read, Access::Write, Access::Create] {
                assert_eq!(allows_place(Path::new(path), access), is_allowed, "{path} {access:?}");
            }
        }
    }

    #[test]
    fn the_named_path_is_outside_of_the_file_systems_of_the_kernel() {
        for access in Access::ALL {
            for path in ["/proc/1/root/srv/a", "/proc/self/fd/3", "/sys/a", "/srv/../dev/sdb", "srv/a"] {
                assert!(!allows_path(Path::new(path), access), "{path} {access:?}");
            }
            assert!(allows_path(Path::new("/srv/a"), access), "{access:?}");
        }
        assert!(allows_path(Path::new("/dev/disk/by-id/a"), Access::WriteDevice));
        assert!(allows_path(Path::new("/etc/lunar/secrets/a"), Access::ReadSecret));
    }

    #[test]
    fn only_own_files_with_one_name_that_are_no_programs_are_changed() {
        for mode in [0o100_600, 0o100_644, 0o100_666] {
            assert!(allows_change(mode, true, true), "{mode:o}");
            assert!(!allows_change(mode, true, false) && !allows_change(mode, false, true));
        }
        for mode in [0o100_700, 0o100_610, 0o100_601, 0o104_600, 0o102_600] {
            assert!(!allows_change(mode, true, true), "{mode:o}");
        }
    }

    #[test]
    fn secrets_of_other_programs_are_not_read() {
        let folders = ["/etc/lunar", "/etc", "/srv/keys"].map(PathBuf::from);
        for (path, is_allowed) in [
            ("/etc/lunar/alice", true),
            ("/etc/lunar/secrets/alice", true),
            ("/srv/secrets/alice", true),
            ("/etc/lunar2/alice", false),
            ("/etc/shadow", false),
            ("/etc/wireguard/wg0.conf", false),
        ] {
            assert_eq!(allows_secret(Path::new(path), &folders), is_allowed, "{path}");
        }
        assert!(!allows_secret(Path::new("/etc/lunar/alice"), &[]));
    }

    #[test]
    fn a_device_is_opened_once_more_in_no_wider_mode() {
        let (read, write) = (Access::ReadOwnDevice, Access::WriteOwnDevice);
        for (held, may_read, may_write) in [
            (OFlags::RDWR, true, true),
            (OFlags::RDWR | OFlags::DIRECT, true, true),
            (OFlags::RDONLY, true, false),
            (OFlags::WRONLY, false, false),
            (OFlags::PATH, false, false),
            (OFlags::RDWR | OFlags::PATH, false, false),
        ] {
            assert_eq!((allows_again(held, read), allows_again(held, write)), (may_read, may_write), "{held:?}");
            assert!(!allows_again(held, Access::Write) && !allows_again(held, Access::WriteDevice));
        }
    }

    #[test]
    fn devices_are_devices_and_secrets_are_small_files_of_their_own_folders() {
        let devices = [Access::ReadDevice, Access::WriteDevice, Access::ReadOwnDevice, Access::WriteOwnDevice];
        for access in devices {
            assert!(allows_place(Path::new("/dev/sdb"), access) && !allows_place(Path::new("/srv/sdb"), access));
            assert!(allows_type(FileType::BlockDevice, 0, access) && !allows_type(FileType::RegularFile, 0, access));
            assert!(!allows_type(FileType::CharacterDevice, 0, access));
        }
        for (path, is_allowed) in [
            ("/etc/lunar/secrets/alice", true),
            ("/srv/secrets/alice", true),
            ("/run/credentials/alice", true),
            ("/etc/shadow", false),
            ("/etc/ssh/ssh_host_ed25519_key", false),
            ("/home/alice/.ssh/id_ed25519", false),
            ("/proc/1/environ", false),
        ] {
            assert_eq!(allows_place(Path::new(path), Access::ReadSecret), is_allowed, "{path}");
        }
        assert!(allows_type(FileType::RegularFile, SECRET_BYTES_MAX, Access::ReadSecret));
        assert!(!allows_type(FileType::RegularFile, SECRET_BYTES_MAX + 1, Access::ReadSecret));
        for access in [Access::ReadNamespace, Access::WriteNamespace] {
            assert!(allows_place(Path::new("/dev/ng0n1"), access) && !allows_place(Path::new("/srv/ng0n1"), access));
            assert!(
                allows_type(FileType::CharacterDevice, 0, access) && !allows_type(FileType::BlockDevice, 0, access)
            );
        }
        for kind in [FileType::Fifo, FileType::Socket, FileType::CharacterDevice, FileType::Directory] {
            let is_node = |access: &Access| matches!(access, Access::ReadNamespace | Access::WriteNamespace);
            let others = Access::ALL.into_iter().filter(|access| kind != FileType::CharacterDevice || !is_node(access));
            assert!(others.into_iter().all(|access| !allows_type(kind, 0, access)), "{kind:?}");
        }
    }
}
