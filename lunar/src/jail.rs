//! The confinement of the daemon, which limits an attacker who takes it over. Landlock allows only the files of the
//! configuration; seccomp allows only the system calls that the daemon makes. Both are permanent, for this thread and
//! for all threads that it starts, so they are entered before any other thread exists.

use crate::file_helper::{Connection, rules};
use crate::program_helper;
use crate::registry::REGISTRY;
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope, make_bitflags,
};
use lunar_block::zvol::program as zfs;
use lunar_control::common_sections::Protection;
use lunar_control::config::Config;
use lunar_control::secret::SecretSource;
use lunar_engine::answering::{answers, ask_all};
use lunar_engine::backend::{self, JailPaths};
use lunar_engine::service_unit;
use lunar_handler_store::rbd::process;
use lunar_handler_store::rbd::schema::RbdKeys;
use lunar_reactor::endpoint::packet::BPF_COMMANDS;
use lunar_reactor::nvme_generic;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The newest Landlock ABI that is used; an older kernel restricts as much as it can.
const NEWEST: ABI = ABI::V6;
/// Files that are read: users and groups, the machine ID, devices, the process itself.
const LOOKED_AT: [&str; 6] = ["/etc/passwd", "/etc/group", "/etc/machine-id", "/proc", "/sys", "/dev/null"];
/// The configuration of host name lookups.
const LOOKED_UP: [&str; 5] = [RESOLVERS, "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"];
/// The configuration of DNS servers.
const RESOLVERS: &str = "/etc/resolv.conf";

/// The allowed paths.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Paths {
    /// Files and folders that are read.
    pub read: Vec<PathBuf>,
    /// Files and devices that are read and written.
    pub write: Vec<PathBuf>,
    /// Folders in which files, folders and sockets are created, written, renamed and removed.
    pub keep: Vec<PathBuf>,
    /// Folders in which devices appear that are opened, and used without ioctl(2).
    pub devices: Vec<PathBuf>,
    /// Folders in which folders and symbolic links are made, replaced and removed.
    pub links: Vec<PathBuf>,
    /// Whether programs are loaded into the kernel (bpf(2)).
    pub loads_programs: bool,
}

impl Paths {
    /// The paths of a configuration in this file; `state` is the state folder, `socket` the socket of the API.
    #[must_use]
    pub fn of(config: &Config, file: &Path, state: &Path, socket: Option<&Path>) -> Self {
        let mut paths = Self::default();
        paths.read.extend(LOOKED_AT.iter().chain(&LOOKED_UP).map(PathBuf::from));
        // A service that manages the file replaces it: then its folder is allowed.
        let kept = std::fs::canonicalize(RESOLVERS).ok();
        let folder = kept.as_deref().and_then(Path::parent).filter(|folder| *folder != Path::new("/etc"));
        paths.read.extend(folder.map(Path::to_owned));
        // A file is replaced by a new file in the same folder.
        let real = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        paths.keep.extend(real.parent().into_iter().chain(socket.and_then(Path::parent)).map(Path::to_owned));
        paths.keep.push(state.to_owned());
        paths.keep.extend(config.server.folders.iter().map(|folder| folder.path().to_owned()));
        // The rules of the sandbox would wait for a file system that does not answer. The file helper opens its files.
        let pools: Vec<_> = config.pools.values().map(|pool| pool.folder.path().join("any")).collect();
        let volumes = config.volumes.values().filter_map(|volume| Some(volume.path.as_ref()?.path()));
        ask_all(volumes.chain(pools.iter().map(PathBuf::as_path)));
        let pools = pools.iter().filter(|any| answers(any)).filter_map(|any| any.parent());
        paths.keep.extend(pools.map(Path::to_owned));
        let runtime = crate::assembly::runtime();
        for of_front in REGISTRY.fronts.iter().map(|entry| entry.front.paths(config, &runtime)) {
            paths.read.extend(of_front.read);
            paths.write.extend(of_front.write);
            paths.keep.extend(of_front.keep);
            paths.devices.extend(of_front.devices);
            paths.links.extend(of_front.links);
            paths.loads_programs |= of_front.loads_programs;
        }
        for volume in config.volumes.values() {
            // A place that is no path is on no file system that could fail to answer.
            let Some(path) = volume.place().filter(|path| volume.path.is_none() || answers(path)) else { continue };
            let Some(backend) = backend::find(REGISTRY.backends, volume.kind.word()) else { continue };
            let JailPaths { write, create, devices } = backend.jail_paths(path, volume.protection != Protection::None);
            paths.keep.extend(create);
            paths.write.extend(write);
            paths.devices.extend(devices);
        }
        paths.read.extend(secrets(config).iter().flat_map(|file| renewed(file)));
        paths.read.extend(std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from));
        paths
    }

    /// Whether a volume at this path can be reached without the file helper.
    fn reach(&self, volume: &Path) -> bool {
        let folder = real(volume.parent().unwrap_or(volume));
        self.write.iter().any(|path| path == volume) || self.keep.iter().any(|path| folder.starts_with(real(path)))
    }
}

/// The files with secrets, keys and certificates.
fn secrets(config: &Config) -> Vec<PathBuf> {
    let users = config.users.values().map(|user| &user.secret);
    let keys = config.tls_keys.values().map(|key| &key.secret);
    let sources = users.chain(keys).chain(config.api_tokens.values().map(|token| &token.secret));
    let files = sources.filter_map(|source| match source {
        SecretSource::File(path) => Some(path.path().to_owned()),
        _ => None,
    });
    let listeners = config.api_listeners.values().flat_map(|listener| [&listener.certificate, &listener.key]);
    files.chain(listeners.flatten().map(|path| path.path().to_owned())).collect()
}

/// The folders below `/etc` with the secrets of a configuration, and with the configuration itself, which is in this
/// file: with and without symbolic links.
#[must_use]
pub fn secret_folders(config: &Config, file: &Path) -> BTreeSet<PathBuf> {
    let folders = |file: PathBuf| [file.parent().map(real), real(&file).parent().map(Path::to_owned)];
    let all = secrets(config).into_iter().chain([file.to_owned()]).flat_map(folders).flatten();
    all.filter(|folder| rules::is_secrets_folder(folder)).collect()
}

fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The paths to allow so that a file can be read, and a file that replaces it: Landlock allows existing inodes, so the
/// folder is allowed, and the folder of the target of a symbolic link. General folders are not allowed: a replaced file
/// there is read after a restart.
fn renewed(file: &Path) -> BTreeSet<PathBuf> {
    const SHARED: [&str; 11] =
        ["/", "/etc", "/root", "/home", "/run", "/var", "/usr", "/srv", "/mnt", "/tmp", "/etc/ssl/private"];
    let is_shared = |folder: &Path| {
        SHARED.iter().any(|shared| Path::new(shared) == folder) || folder.parent() == Some(Path::new("/home"))
    };
    let folder = |file: &Path| file.parent().filter(|folder| !is_shared(folder)).map(Path::to_owned);
    let real = std::fs::canonicalize(file).ok();
    let folders = [folder(file), real.as_deref().and_then(folder)];
    folders.into_iter().flatten().chain([file.to_owned()]).collect()
}

/// The permissions of this process, once it is confined.
static LEFT: OnceLock<Left> = OnceLock::new();

/// The permissions of a process: they hold for the inodes of that time, not for files that replace them.
#[derive(Debug)]
struct Left {
    paths: Paths,
    there: BTreeMap<PathBuf, (u64, u64)>,
}

/// The file or folder at a path: device and inode.
fn which(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Left {
    fn of(paths: Paths) -> Self {
        let there = paths.write.iter().chain(&paths.keep);
        let there = there.filter_map(|path| Some((path.clone(), which(path)?))).collect();
        Self { paths, there }
    }

    /// Whether the file at this path is newer than the confinement: a device, or a file system with the volume in it.
    fn is_late(&self, volume: &Path) -> bool {
        let is_same = |path: &PathBuf| self.there.get(path).is_some_and(|was| which(path) == Some(*was));
        let folder = real(volume.parent().unwrap_or(volume));
        let is_left = is_same(&volume.to_owned())
            || self.paths.keep.iter().any(|path| folder.starts_with(real(path)) && is_same(path));
        volume.exists() && !is_left
    }
}

/// The file helper of this process, once it was started.
static HELPER: OnceLock<Connection> = OnceLock::new();

/// Starts the file helper, which opens volumes and secrets that are configured later. Without one, they need a restart.
/// `secrets` are the folders below `/etc` with secrets.
/// To be called before [`shut`].
///
/// # Errors
/// When it cannot be started.
pub fn start_helper(secrets: &BTreeSet<PathBuf>) -> io::Result<()> {
    let started = Connection::start(secrets)?;
    lunar_control::files::set_helper(Box::new(HELPER.get_or_init(|| started)));
    Ok(())
}

/// Starts the program helper, which starts the processes of images of Ceph and the program `zfs`, if one of them is
/// installed.
/// To be called before [`shut`].
///
/// # Errors
/// When it cannot be started.
pub fn start_program_helper(config: &Config) -> io::Result<()> {
    if process::program()?.exists() || zfs::program().is_some() {
        let keys = config.volumes.values().filter_map(|volume| volume.own.get::<RbdKeys>());
        let files = keys.flat_map(RbdKeys::files).map(Path::to_owned).collect();
        let helper = program_helper::Connection::start(&files)?;
        process::set_starter(Box::new(helper.clone()));
        zfs::set_starter(Box::new(helper));
    }
    Ok(())
}

/// Why this process cannot use a volume, with a message that says what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unreachable {
    /// The volume is in this folder, which is one of the system or hidden.
    SystemFolder(PathBuf, PathBuf),
    /// The volume is newer than the sandbox.
    Newer(PathBuf),
    /// The sandbox does not include this folder.
    Outside(PathBuf),
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SystemFolder(volume, folder) => write!(
                f,
                "{} is in a folder of the system or in a hidden folder, and the sandbox of the running process does \
                 not include {}: choose another folder, or restart Lunar: systemctl restart lunar",
                volume.display(),
                folder.display()
            ),
            Self::Newer(volume) => write!(
                f,
                "{} is newer than the start of Lunar, and the sandbox of the running process does not include it: \
                 restart: systemctl restart lunar",
                volume.display(),
            ),
            Self::Outside(folder) => write!(
                f,
                "the sandbox of the running process does not include {}: put the folder into `folders` in [server], \
                 and restart: systemctl restart lunar{}",
                folder.display(),
                service_unit::write_advice(folder)
            ),
        }
    }
}

impl std::error::Error for Unreachable {}

/// Whether this process can reach a volume at this path.
///
/// # Errors
/// When the process cannot reach it.
pub fn reaches(volume: &Path) -> Result<(), Unreachable> {
    if HELPER.get().is_some_and(|helper| !helper.is_lost()) {
        return helper_reaches(volume);
    }
    reaches_alone(volume)
}

/// Whether the file helper opens volumes in this place.
fn helper_reaches(volume: &Path) -> Result<(), Unreachable> {
    let folder = real(volume.parent().unwrap_or(volume));
    let place = volume.file_name().map_or_else(|| folder.clone(), |name| folder.join(name));
    let is_device = std::fs::metadata(volume).is_ok_and(|found| {
        found.file_type().is_block_device() || found.file_type().is_char_device() && nvme_generic::is_node(found.rdev())
    });
    if is_device || reaches_alone(volume).is_ok() || (rules::allows_volume(volume) && rules::allows_volume(&place)) {
        return Ok(());
    }
    Err(Unreachable::SystemFolder(volume.to_owned(), folder))
}

fn reaches_alone(volume: &Path) -> Result<(), Unreachable> {
    match LEFT.get() {
        Some(left) if left.paths.reach(volume) && left.is_late(volume) => Err(Unreachable::Newer(volume.to_owned())),
        Some(left) if !left.paths.reach(volume) => {
            Err(Unreachable::Outside(volume.parent().unwrap_or(volume).to_owned()))
        }
        _ => Ok(()),
    }
}

/// Why the kernel refuses to confine the process.
#[derive(Debug)]
pub enum JailError {
    /// Core dumps cannot be forbidden.
    CoreDumps(io::Error),
    /// Access to files cannot be restricted.
    Files(landlock::RulesetError),
    /// System calls cannot be restricted.
    Calls(seccompiler::Error),
}

impl fmt::Display for JailError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CoreDumps(why) => write!(f, "core dumps cannot be forbidden: {why}"),
            Self::Files(why) => write!(f, "Landlock: {why}"),
            Self::Calls(why) => write!(f, "seccomp: {why}"),
        }
    }
}

impl std::error::Error for JailError {}

/// The kinds of memory in a core dump (core(5)): none.
const DUMPED_MEMORY: &str = "0";

/// Forbids core dumps of this process, and other processes of its user to trace it or to read its memory: the memory
/// holds secrets and data of volumes. If an administrator permits a dump later, it has no memory.
///
/// # Errors
/// When the kernel refuses.
pub fn forbid_core_dumps() -> Result<(), JailError> {
    // A process that may not be dumped cannot write this file. Without /proc, the other two settings hold.
    let _ = std::fs::write("/proc/self/coredump_filter", DUMPED_MEMORY);
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let forbidden = setrlimit(Resource::Core, none).and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable));
    forbidden.map_err(|why| JailError::CoreDumps(why.into()))
}

/// Shuts both jails for this process.
///
/// # Errors
/// When the kernel refuses.
pub fn shut(paths: Paths) -> Result<Held, JailError> {
    let held = files(&paths)?;
    calls(paths.loads_programs)?;
    if held != Held::No {
        // The confinement is entered once for each process.
        let _ = LEFT.set(Left::of(paths));
    }
    Ok(held)
}

/// The strength of the confinement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// Full.
    Well,
    /// As much as this older kernel supports.
    Partly,
    /// None: the kernel does not support it.
    No,
}

/// Restricts this thread, and the threads that it starts, to the files at these paths. Programs can no longer be
/// started.
///
/// # Errors
/// When the kernel refuses.
pub fn files(paths: &Paths) -> Result<Held, JailError> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let write = read | make_bitflags!(AccessFs::{WriteFile | Truncate | IoctlDev});
    let open = make_bitflags!(AccessFs::{ReadFile | WriteFile});
    let links = make_bitflags!(AccessFs::{ReadFile | ReadDir | MakeSym | MakeDir | RemoveFile});
    let more = make_bitflags!(AccessFs::{MakeReg | MakeDir | MakeSock | RemoveFile | RemoveDir | Refer});
    let restrict = || {
        let all = AccessFs::from_all(NEWEST);
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .scope(Scope::AbstractUnixSocket)?
            .create()?;
        let rules = [
            (&paths.read, read),
            (&paths.write, write),
            (&paths.keep, write | more),
            (&paths.devices, open),
            (&paths.links, links),
        ];
        for (paths, access) in rules {
            for path in paths {
                ruleset = allow(ruleset, path, access)?;
            }
        }
        ruleset.restrict_self()
    };
    let status: RestrictionStatus = restrict().map_err(JailError::Files)?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Held::Well,
        RulesetStatus::PartiallyEnforced => Held::Partly,
        RulesetStatus::NotEnforced => Held::No,
    })
}

/// Missing paths get no permission; rights that do not apply to files are left out.
fn allow(
    ruleset: landlock::RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, landlock::RulesetError> {
    let Ok(handle) = PathFd::new(path) else { return Ok(ruleset) };
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
    ruleset.add_rule(PathBeneath::new(handle, access))
}

/// Restricts all threads of this process to the system calls that it makes, with bpf(2) if it loads programs.
///
/// # Errors
/// When the kernel refuses.
pub fn calls(loads_programs: bool) -> Result<(), JailError> {
    let program = filter(loads_programs).map_err(JailError::Calls)?;
    seccompiler::apply_filter_all_threads(&program).map_err(JailError::Calls)
}

/// Restricts this process to the system calls of the file helper.
///
/// # Errors
/// When the kernel refuses.
pub fn helper_calls() -> Result<(), JailError> {
    let program = helper_filter().map_err(JailError::Calls)?;
    seccompiler::apply_filter(&program).map_err(JailError::Calls)
}

/// Rules of a call whose argument of this number, without the bits of the mask, is one of these values.
fn only(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let is = |value: &u64| {
        SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, *value)?])
    };
    values.iter().map(is).collect()
}

/// Rules of a call whose argument of this number has none of these bits.
fn without(argument: u8, bits: u32) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let op = SeccompCmpOp::MaskedEq(bits.into());
    Ok(vec![SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, 0)?])?])
}

fn helper_filter() -> Result<BpfProgram, seccompiler::Error> {
    program(HELPER_CALLS.iter().map(|call| (*call, Vec::new())).collect())
}

/// The filter of the daemon.
fn filter(loads_programs: bool) -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    // The kernel grants the last two with the capability CAP_NET_RAW only.
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_PACKET, libc::AF_XDP];
    let families = families.map(|family| family as u64);
    rules.insert(libc::SYS_socket, only(0, &families)?);
    rules.insert(libc::SYS_socketpair, only(0, &families[..1])?);
    if loads_programs {
        // The kernel grants them with the capability CAP_BPF only.
        rules.insert(libc::SYS_bpf, only(0, &BPF_COMMANDS.map(|command| command as u64))?);
    }
    for (call, mode) in MODE_CALLS {
        rules.insert(*call, without(*mode, libc::S_ISUID | libc::S_ISGID)?);
    }
    program(rules)
}

/// The program that allows these calls.
fn program(mut rules: BTreeMap<i64, Vec<SeccompRule>>) -> Result<BpfProgram, seccompiler::Error> {
    // Never executable memory.
    rules.insert(libc::SYS_mmap, without(2, libc::PROT_EXEC as u32)?);
    rules.insert(libc::SYS_mprotect, without(2, libc::PROT_EXEC as u32)?);
    // Other calls fail with EPERM, and the caller logs the failure.
    let (refused, allowed) = (SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow);
    let architecture = std::env::consts::ARCH.try_into().map_err(seccompiler::Error::Backend)?;
    let filter = SeccompFilter::new(rules, refused, allowed, architecture).map_err(seccompiler::Error::Backend)?;
    filter.try_into().map_err(seccompiler::Error::Backend)
}

/// The system calls of the file helper: it opens files, and passes them through a socket that it has.
#[rustfmt::skip]
const HELPER_CALLS: &[i64] = &[
    libc::SYS_openat, libc::SYS_openat2, libc::SYS_close, libc::SYS_read, libc::SYS_write, libc::SYS_statx,
    libc::SYS_newfstatat, libc::SYS_fstat, libc::SYS_readlinkat, libc::SYS_fsync, libc::SYS_unlinkat, libc::SYS_fcntl,
    libc::SYS_recvmsg, libc::SYS_sendmsg, libc::SYS_poll, libc::SYS_ppoll,
    // Memory; the filter refuses executable memory.
    libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk,
    // The end, and a panic, which aborts.
    libc::SYS_futex, libc::SYS_sigaltstack, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn,
    libc::SYS_getpid, libc::SYS_gettid, libc::SYS_tgkill, libc::SYS_exit, libc::SYS_exit_group,
    libc::SYS_restart_syscall, libc::SYS_clock_gettime, libc::SYS_getrandom,
    #[cfg(target_arch = "x86_64")] libc::SYS_open, #[cfg(target_arch = "x86_64")] libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_unlink,
];

/// The calls that set the mode of a file, with the number of the argument: never set-user-ID or set-group-ID. glibc
/// passes zero as the mode when it opens a file that exists. openat2(2) is not allowed: a filter does not see its mode.
#[rustfmt::skip]
const MODE_CALLS: &[(i64, u8)] = &[
    (libc::SYS_openat, 3), (libc::SYS_mkdirat, 2), (libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2),
    #[cfg(target_arch = "x86_64")] (libc::SYS_open, 2), #[cfg(target_arch = "x86_64")] (libc::SYS_mkdir, 1),
    #[cfg(target_arch = "x86_64")] (libc::SYS_chmod, 1),
];

/// The system calls of the daemon, by purpose, with the alternatives that glibc may choose.
#[rustfmt::skip]
const CALLS: &[i64] = &[
    // Files.
    libc::SYS_openat, libc::SYS_close, libc::SYS_close_range, libc::SYS_read, libc::SYS_readv,
    libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2, libc::SYS_write, libc::SYS_writev, libc::SYS_pwrite64,
    libc::SYS_pwritev, libc::SYS_pwritev2, libc::SYS_lseek, libc::SYS_statx, libc::SYS_newfstatat, libc::SYS_fstat,
    libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_getdents64, libc::SYS_readlinkat, libc::SYS_faccessat,
    libc::SYS_faccessat2, libc::SYS_fallocate, libc::SYS_ftruncate, libc::SYS_truncate, libc::SYS_fsync,
    libc::SYS_fdatasync, libc::SYS_sync_file_range, libc::SYS_fadvise64, libc::SYS_copy_file_range, libc::SYS_sendfile,
    libc::SYS_splice, libc::SYS_ioctl, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_dup, libc::SYS_dup3, libc::SYS_pipe2,
    libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_linkat,
    libc::SYS_symlinkat, libc::SYS_fchmod,
    libc::SYS_fchmodat, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_utimensat, libc::SYS_umask, libc::SYS_getcwd,
    libc::SYS_fgetxattr, libc::SYS_fsetxattr,
    // Sockets; the filter restricts the families.
    libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4, libc::SYS_connect, libc::SYS_getsockname,
    libc::SYS_getpeername, libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_sendto, libc::SYS_sendmsg,
    libc::SYS_sendmmsg, libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg, libc::SYS_shutdown,
    // Waiting.
    libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_ppoll, libc::SYS_pselect6,
    libc::SYS_eventfd2, libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep, libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_gettimeofday,
    // Memory; the filter refuses executable memory.
    libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk, libc::SYS_mlock, libc::SYS_mlock2,
    libc::SYS_munlock, libc::SYS_memfd_create, libc::SYS_membarrier,
    // Threads.
    libc::SYS_clone, libc::SYS_clone3, libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_set_tid_address,
    libc::SYS_futex, libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_gettid,
    libc::SYS_getcpu, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_restart_syscall,
    // Signals; to the process itself, because a panic aborts.
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack, libc::SYS_tgkill,
    // Whether the process of a handler lives.
    libc::SYS_pidfd_open,
    // Identity and resources.
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid,
    libc::SYS_getrandom, libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_prlimit64, libc::SYS_getrusage, libc::SYS_prctl,
    // Older calls that only x86-64 has.
    #[cfg(target_arch = "x86_64")] libc::SYS_open, #[cfg(target_arch = "x86_64")] libc::SYS_stat,
    #[cfg(target_arch = "x86_64")] libc::SYS_lstat, #[cfg(target_arch = "x86_64")] libc::SYS_access,
    #[cfg(target_arch = "x86_64")] libc::SYS_readlink, #[cfg(target_arch = "x86_64")] libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_rename, #[cfg(target_arch = "x86_64")] libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")] libc::SYS_rmdir, #[cfg(target_arch = "x86_64")] libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")] libc::SYS_chown, #[cfg(target_arch = "x86_64")] libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")] libc::SYS_dup2, #[cfg(target_arch = "x86_64")] libc::SYS_pipe,
    #[cfg(target_arch = "x86_64")] libc::SYS_poll, #[cfg(target_arch = "x86_64")] libc::SYS_select,
    #[cfg(target_arch = "x86_64")] libc::SYS_epoll_wait, #[cfg(target_arch = "x86_64")] libc::SYS_arch_prctl,
];

#[cfg(test)]
#[path = "jail_tests.rs"]
mod tests;
