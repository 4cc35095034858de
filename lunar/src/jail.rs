//! The jails of the daemon: what it has no need of, nobody who takes it over gets. Landlock leaves it the files that
//! the configuration names and nothing else; seccomp leaves it the system calls that it makes. Both hold for ever, for
//! this thread and for all that it starts: they are entered before any other thread is there.

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope, make_bitflags,
};
use lunar_control::config::Config;
use lunar_control::model::{Protection, StoreKind};
use lunar_control::secret::SecretSource;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What the newest kernel that is known can hold back; an older one holds back what it can.
const NEWEST: ABI = ABI::V6;
/// What is looked at: users and groups, who the machine is, what its devices and its own process are.
const LOOKED_AT: [&str; 6] = ["/etc/passwd", "/etc/group", "/etc/machine-id", "/proc", "/sys", "/dev/null"];
/// Where it is written how names of hosts are looked up.
const LOOKED_UP: [&str; 5] = [RESOLVERS, "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"];
/// Where it is written who knows names.
const RESOLVERS: &str = "/etc/resolv.conf";

/// What may be done with paths.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Paths {
    /// Files and folders that are read.
    pub read: Vec<PathBuf>,
    /// Files and devices that are read and written.
    pub write: Vec<PathBuf>,
    /// Folders in which files are made, written, renamed and removed, and folders and sockets, too.
    pub keep: Vec<PathBuf>,
}

impl Paths {
    /// Those that a configuration in this file asks for; `state` is where state is kept, `socket` that of the API.
    #[must_use]
    pub fn of(config: &Config, file: &Path, state: &Path, socket: Option<&Path>) -> Self {
        let mut paths = Self::default();
        paths.read.extend(LOOKED_AT.iter().chain(&LOOKED_UP).map(PathBuf::from));
        // Where somebody else keeps it, it is written anew: then its folder stays.
        let kept = std::fs::canonicalize(RESOLVERS).ok();
        let folder = kept.as_deref().and_then(Path::parent).filter(|folder| *folder != Path::new("/etc"));
        paths.read.extend(folder.map(Path::to_owned));
        // What is written anew is made beside it and takes its place.
        let real = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        paths.keep.extend(real.parent().into_iter().chain(socket.and_then(Path::parent)).map(Path::to_owned));
        paths.keep.push(state.to_owned());
        paths.keep.extend(config.server.folders.iter().map(|folder| folder.path().to_owned()));
        paths.keep.extend(config.pools.values().map(|pool| pool.folder.path().to_owned()));
        let runtime = crate::live::runtime();
        paths.keep.extend(config.vms.iter().filter_map(|(name, vm)| {
            // Where the folder itself has to be made, the one above it is kept.
            let socket = vm.socket(name, &runtime);
            let usual = vm.socket.is_none().then(|| runtime.clone());
            usual.or_else(|| socket.parent().map(Path::to_owned))
        }));
        for volume in config.volumes.values() {
            let Some(path) = volume.path.as_ref().map(|path| path.path().to_owned()) else { continue };
            if volume.kind == StoreKind::File {
                let mut beside = path.as_os_str().to_owned();
                beside.push(".pi");
                let beside = PathBuf::from(beside);
                // What is not there is made in the folder: the file, or the one with its protection information.
                let is_whole = path.exists() && (volume.protection == Protection::None || beside.exists());
                let folder = path.parent().filter(|folder| !is_whole && *folder != Path::new("/"));
                paths.keep.extend(folder.map(Path::to_owned));
                paths.write.push(beside);
            }
            paths.write.push(path);
        }
        let users = config.users.values().map(|user| &user.secret);
        let keys = config.tls_keys.values().map(|key| &key.secret);
        for source in users.chain(keys).chain(config.api_tokens.values().map(|token| &token.secret)) {
            if let SecretSource::File(path) = source {
                paths.read.extend(renewed(path.path()));
            }
        }
        paths.read.extend(std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from));
        for listener in config.api_listeners.values() {
            let both = [&listener.certificate, &listener.key];
            paths.read.extend(both.into_iter().flatten().flat_map(|path| renewed(path.path())));
        }
        paths
    }

    /// Whether a volume in this place can be reached.
    fn reach(&self, volume: &Path) -> bool {
        let folder = real(volume.parent().unwrap_or(volume));
        self.write.iter().any(|path| path == volume) || self.keep.iter().any(|path| folder.starts_with(real(path)))
    }
}

fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// What is allowed so that a file can be read, and another that takes its place, too: permission is of what is there
/// now, so the folder is allowed, and that of the file that a link leads to. Not one that holds more than such files:
/// then a new one is read after a restart.
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

/// What this process was left, once its jail is shut.
static LEFT: OnceLock<Left> = OnceLock::new();

/// What a process was left: permission is of what was there then, whatever comes to be in its place.
#[derive(Debug)]
struct Left {
    paths: Paths,
    there: BTreeMap<PathBuf, (u64, u64)>,
}

/// Which file or folder is in a place.
fn which(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Left {
    fn of(paths: Paths) -> Self {
        let there = paths.write.iter().chain(&paths.keep);
        let there = there.filter_map(|path| Some((path.clone(), which(path)?))).collect();
        Self { paths, there }
    }

    /// Whether what is in this place came after the jail was shut: a device, or a file system with the volume in it.
    fn is_late(&self, volume: &Path) -> bool {
        let is_same = |path: &PathBuf| self.there.get(path).is_some_and(|was| which(path) == Some(*was));
        let folder = real(volume.parent().unwrap_or(volume));
        let is_left = is_same(&volume.to_owned())
            || self.paths.keep.iter().any(|path| folder.starts_with(real(path)) && is_same(path));
        volume.exists() && !is_left
    }
}

/// Whether a volume in this place can be reached by this process.
///
/// # Errors
/// When it cannot, in words that say what to do.
pub fn reaches(volume: &Path) -> Result<(), String> {
    match LEFT.get() {
        Some(left) if left.paths.reach(volume) && left.is_late(volume) => Err(format!(
            "{} came after Lunar had started, which keeps to what was there then: restart it",
            volume.display(),
        )),
        Some(left) if !left.paths.reach(volume) => Err(format!(
            "{} is out of reach: Lunar keeps to what was configured when it started; put the folder into `folders` in \
             [server], and restart it{}",
            volume.display(),
            of_unit(volume.parent().unwrap_or(volume))
        )),
        _ => Ok(()),
    }
}

/// What the unit keeps from a service besides, to be said behind what is out of reach; nothing if no unit started it.
pub(crate) fn of_unit(folder: &Path) -> String {
    of_unit_if(["INVOCATION_ID", "NOTIFY_SOCKET"].iter().any(|name| std::env::var_os(name).is_some()), folder)
}

fn of_unit_if(is_unit: bool, folder: &Path) -> String {
    if !is_unit {
        return String::new();
    }
    let folder = folder.display();
    format!(
        "; its unit lets it write to its own folders only: `systemctl edit lunar`, [Service], ReadWritePaths=-{folder}"
    )
}

/// Shuts both jails for this process.
///
/// # Errors
/// When the kernel refuses.
pub fn shut(paths: Paths) -> Result<Held, String> {
    let held = files(&paths).map_err(|why| format!("Landlock: {why}"))?;
    calls().map_err(|why| format!("seccomp: {why}"))?;
    if held != Held::No {
        // There is one for each process, and this is the first time.
        let _ = LEFT.set(Left::of(paths));
    }
    Ok(held)
}

/// How well a jail holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// As well as it can.
    Well,
    /// As well as this kernel can, which is older.
    Partly,
    /// Not at all: this kernel has no such thing.
    No,
}

/// Leaves this thread, and those that it starts, the files at these paths and nothing else. Programs cannot be started
/// any more.
///
/// # Errors
/// When the kernel refuses.
pub fn files(paths: &Paths) -> Result<Held, String> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let write = read | make_bitflags!(AccessFs::{WriteFile | Truncate | IoctlDev});
    let more = make_bitflags!(AccessFs::{MakeReg | MakeDir | MakeSock | RemoveFile | RemoveDir | Refer});
    let restrict = || {
        let all = AccessFs::from_all(NEWEST);
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .scope(Scope::AbstractUnixSocket)?
            .create()?;
        for (paths, access) in [(&paths.read, read), (&paths.write, write), (&paths.keep, write | more)] {
            for path in paths {
                ruleset = allow(ruleset, path, access)?;
            }
        }
        ruleset.restrict_self()
    };
    let status: RestrictionStatus = restrict().map_err(|why: landlock::RulesetError| why.to_string())?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Held::Well,
        RulesetStatus::PartiallyEnforced => Held::Partly,
        RulesetStatus::NotEnforced => Held::No,
    })
}

/// What is not there needs no permission; what a file cannot have is left out.
fn allow(
    ruleset: landlock::RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, landlock::RulesetError> {
    let Ok(handle) = PathFd::new(path) else { return Ok(ruleset) };
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
    ruleset.add_rule(PathBeneath::new(handle, access))
}

/// Leaves this process, all of its threads, the system calls that it makes.
///
/// # Errors
/// When the kernel refuses.
pub fn calls() -> Result<(), String> {
    let program = filter().map_err(|why| why.to_string())?;
    seccompiler::apply_filter_all_threads(&program).map_err(|why| why.to_string())
}

/// Rules of a call whose argument of this number, without the bits of the mask, is one of these values.
fn only(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let is = |value: &u64| {
        SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, *value)?])
    };
    values.iter().map(is).collect()
}

/// Rules of a call that makes memory: never such as can be executed.
fn no_code() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let executable = libc::PROT_EXEC as u64;
    let op = SeccompCmpOp::MaskedEq(executable);
    Ok(vec![SeccompRule::new(vec![SeccompCondition::new(2, SeccompCmpArgLen::Dword, op, 0)?])?])
}

fn filter() -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6].map(|family| family as u64);
    rules.insert(libc::SYS_socket, only(0, &families)?);
    rules.insert(libc::SYS_socketpair, only(0, &families[..1])?);
    rules.insert(libc::SYS_mmap, no_code()?);
    rules.insert(libc::SYS_mprotect, no_code()?);
    // What is asked for beyond that fails as if there were no permission; a log line tells who asked.
    let (refused, allowed) = (SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow);
    let architecture = std::env::consts::ARCH.try_into().map_err(seccompiler::Error::Backend)?;
    let filter = SeccompFilter::new(rules, refused, allowed, architecture).map_err(seccompiler::Error::Backend)?;
    filter.try_into().map_err(seccompiler::Error::Backend)
}

/// The system calls of the daemon, by what they are for. What glibc may choose instead of another is here, too.
#[rustfmt::skip]
const CALLS: &[i64] = &[
    // Files.
    libc::SYS_openat, libc::SYS_openat2, libc::SYS_close, libc::SYS_close_range, libc::SYS_read, libc::SYS_readv,
    libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2, libc::SYS_write, libc::SYS_writev, libc::SYS_pwrite64,
    libc::SYS_pwritev, libc::SYS_pwritev2, libc::SYS_lseek, libc::SYS_statx, libc::SYS_newfstatat, libc::SYS_fstat,
    libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_getdents64, libc::SYS_readlinkat, libc::SYS_faccessat,
    libc::SYS_faccessat2, libc::SYS_fallocate, libc::SYS_ftruncate, libc::SYS_truncate, libc::SYS_fsync,
    libc::SYS_fdatasync, libc::SYS_sync_file_range, libc::SYS_fadvise64, libc::SYS_copy_file_range, libc::SYS_sendfile,
    libc::SYS_splice, libc::SYS_ioctl, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_dup, libc::SYS_dup3, libc::SYS_pipe2,
    libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_fchmod,
    libc::SYS_fchmodat, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_utimensat, libc::SYS_umask, libc::SYS_getcwd,
    libc::SYS_fgetxattr, libc::SYS_fsetxattr,
    // Sockets; which families, the filter says.
    libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4, libc::SYS_connect, libc::SYS_getsockname,
    libc::SYS_getpeername, libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_sendto, libc::SYS_sendmsg,
    libc::SYS_sendmmsg, libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg, libc::SYS_shutdown,
    // Waiting.
    libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_ppoll, libc::SYS_pselect6,
    libc::SYS_eventfd2, libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep, libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_gettimeofday,
    // Memory; without any that is code, the filter says.
    libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk, libc::SYS_mlock, libc::SYS_mlock2,
    libc::SYS_munlock, libc::SYS_memfd_create, libc::SYS_membarrier,
    // Threads.
    libc::SYS_clone, libc::SYS_clone3, libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_set_tid_address,
    libc::SYS_futex, libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_gettid,
    libc::SYS_getcpu, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_restart_syscall,
    // Signals; to itself, for who panics aborts.
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack, libc::SYS_tgkill,
    // Who and what it is.
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid,
    libc::SYS_getrandom, libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_prlimit64, libc::SYS_getrusage, libc::SYS_prctl,
    // What x86-64 has besides, from before there were better ones.
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
