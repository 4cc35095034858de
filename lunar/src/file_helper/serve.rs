//! The helper process: it opens one file after the other and passes each on.

use super::message::{Operation, REQUEST_BYTES_MAX, Reply, Request};
use super::{rules, socket};
use crate::jail;
use anyhow::{Context, Result};
use lunar_control::files::Access;
use lunar_reactor::nvme_generic;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fcntl_getfl, fstat, fsync, openat, openat2, readlinkat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Resource, Rlimit, Signal, geteuid, set_parent_process_death_signal, setrlimit};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Open files of the helper: its standard ones, the three of a request, and those of the start of a program.
const FILES_MAX: u64 = 32;

/// The helper, with the socket to its daemon as standard input, until the daemon ends. `secrets` are the folders below
/// `/etc` with secrets.
///
/// # Errors
/// When the process cannot be confined, or the socket fails.
pub fn run(secrets: Vec<PathBuf>) -> Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("the file helper is started by the daemon")?;
    jail::forbid_core_dumps()?;
    // It also ends while it waits for a file system that does not answer.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let opener = Opener { owner: geteuid().as_raw(), secrets };
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::Nofile, limit(FILES_MAX))?;
    setrlimit(Resource::Nproc, limit(0))?;
    jail::helper_calls()?;
    serve(&socket, &opener)
}

/// Answers requests until the other end closes the socket.
pub(super) fn serve(daemon: &OwnedFd, opener: &Opener) -> Result<()> {
    // One byte more shows that a request is too long.
    let mut bytes = vec![0; REQUEST_BYTES_MAX + 1];
    loop {
        let (got, held) = match socket::receive(daemon, &mut bytes, RecvFlags::empty()) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(()),
            other => other?,
        };
        let request = bytes.get(..got).and_then(Request::parse).context("a request of the daemon is malformed")?;
        let done = opener.perform(request.operation, request.path, held.as_ref().map(AsFd::as_fd));
        let errno = done.as_ref().err().map_or(0, |why| why.raw_os_error());
        let reply = Reply { number: request.number, errno };
        let file = done.ok().flatten();
        match socket::send(daemon, &reply.emit(), file.as_ref().map(AsFd::as_fd), SendFlags::empty()) {
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
            other => other?,
        }
    }
}

/// Opens files by the rules.
pub(super) struct Opener {
    /// The user of this process. Files of other users are not changed.
    pub(super) owner: u32,
    /// The folders below `/etc` with secrets.
    pub(super) secrets: Vec<PathBuf>,
}

impl Opener {
    /// Performs an operation by the rules; `held` is an open file of the device that the daemon has for itself.
    fn perform(
        &self,
        operation: Operation,
        path: &Path,
        held: Option<BorrowedFd<'_>>,
    ) -> Result<Option<OwnedFd>, Errno> {
        let access = match operation {
            Operation::Open(access) => access,
            Operation::Remove | Operation::SyncFolder => Access::Write,
        };
        if !rules::allows_path(path, access) {
            return Err(Errno::ACCESS);
        }
        match operation {
            Operation::Open(Access::Create) => create(path).map(Some),
            Operation::Open(access) => self.open(path, access, held).map(Some),
            Operation::Remove => self.remove(path).map(|()| None),
            Operation::SyncFolder => sync_folder(path).map(|()| None),
        }
    }

    /// Looks at the inode before it opens it: to open a device may have effects, and a path may change meanwhile.
    fn open(&self, path: &Path, access: Access, held: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno> {
        let found = find(path, OFlags::PATH)?;
        let stat = fstat(&found)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return Err(Errno::ISDIR);
        }
        // A file without a name has no place.
        if kind == FileType::RegularFile && stat.st_nlink == 0 {
            return Err(Errno::ACCESS);
        }
        let (size, place) = (u64::try_from(stat.st_size).unwrap_or(0), place(found.as_fd())?);
        let is_allowed = rules::allows_type(kind, size, access)
            && rules::allows_place(&place, access)
            && match access {
                Access::Write => self.allows_change(&stat),
                Access::ReadSecret => rules::allows_secret(&place, &self.secrets),
                // Other character devices are terminals, memory, and interfaces of drivers.
                Access::ReadNamespace | Access::WriteNamespace => nvme_generic::is_node(stat.st_rdev),
                _ => true,
            };
        if !is_allowed {
            return Err(Errno::ACCESS);
        }
        let is_own = matches!(access, Access::ReadOwnDevice | Access::WriteOwnDevice);
        if is_own && !held.is_some_and(|held| holds(held, stat.st_rdev, access)) {
            return Err(Errno::ACCESS);
        }
        rustix::fs::open(link(found.as_fd()), access.flags(), Mode::empty())
    }

    /// Removes a regular file.
    fn remove(&self, path: &Path) -> Result<(), Errno> {
        let (folder, name) = folder_of(path)?;
        let found = openat(&folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(found)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if self.allows_change(&stat) => unlinkat(folder, name, AtFlags::empty()),
            _ => Err(Errno::ACCESS),
        }
    }

    fn allows_change(&self, stat: &Stat) -> bool {
        rules::allows_change(stat.st_mode, stat.st_nlink == 1, stat.st_uid == self.owner)
    }
}

/// Whether an open file is this device, open in a mode that permits this access already.
fn holds(held: BorrowedFd<'_>, device: u64, access: Access) -> bool {
    let (Ok(stat), Ok(flags)) = (fstat(held), fcntl_getfl(held)) else { return false };
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice && stat.st_rdev == device;
    is_device && rules::allows_again(flags, access)
}

/// Opens a path, but not through the magic links of /proc, which are open files and folders of processes.
fn find(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

/// The path below /proc that is this open file.
fn link(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// The place of an open file or folder, without symbolic links.
fn place(file: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    let place = readlinkat(CWD, link(file), Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(place.into_bytes())))
}

/// The folder of a file in a place for volumes, and the name of the file in it.
fn folder_of(path: &Path) -> Result<(OwnedFd, &std::ffi::OsStr), Errno> {
    let (folder, name) = path.parent().zip(path.file_name()).ok_or(Errno::ACCESS)?;
    let folder = find(folder, OFlags::PATH | OFlags::DIRECTORY)?;
    match rules::allows_volume(&place(folder.as_fd())?.join(name)) {
        true => Ok((folder, name)),
        false => Err(Errno::ACCESS),
    }
}

fn create(path: &Path) -> Result<OwnedFd, Errno> {
    let (folder, name) = folder_of(path)?;
    openat(folder, name, Access::Create.flags(), Access::Create.mode())
}

/// Syncs a folder in a place for volumes.
fn sync_folder(path: &Path) -> Result<(), Errno> {
    let folder = find(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    match rules::allows_volume(&place(folder.as_fd())?) {
        true => fsync(folder),
        false => Err(Errno::ACCESS),
    }
}
