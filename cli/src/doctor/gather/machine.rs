//! The kernel, the processors, and the process of the service.

use lunar_api::system::{user_name, user_number};
use lunar_control::doctor::facts::{Process, ThisMachine, User};
use std::path::Path;

/// The name of an installed service, and of its user.
const SERVICE: &str = "lunar";

/// The text of a small file, without spaces at its ends.
pub(super) fn text(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The number in a file.
pub(super) fn number<T: std::str::FromStr>(path: impl AsRef<Path>) -> Option<T> {
    text(path)?.parse().ok()
}

/// The kernel and the processors.
pub(super) fn read() -> ThisMachine {
    let huge_pages = text("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    ThisMachine {
        kernel: text("/proc/sys/kernel/osrelease").and_then(|release| version(&release)),
        io_uring_disabled: number("/proc/sys/kernel/io_uring_disabled").unwrap_or(0),
        clock: text("/sys/devices/system/clocksource/clocksource0/current_clocksource").unwrap_or_default(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        governors: governors(),
        huge_pages: chosen(&huge_pages).to_owned(),
    }
}

/// The first two numbers of `6.1.0-13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The word in brackets of `always [madvise] never`.
fn chosen(choices: &str) -> &str {
    choices.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(word, _)| word)
}

fn governors() -> Vec<(String, String)> {
    let folders = std::fs::read_dir("/sys/devices/system/cpu/cpufreq").into_iter().flatten().flatten();
    let read = |folder: std::fs::DirEntry| {
        Some((text(folder.path().join("scaling_driver"))?, text(folder.path().join("scaling_governor"))?))
    };
    folders.filter_map(read).collect()
}

/// The value of a line `Name:  value` of a file of /proc.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// A soft limit of /proc/PID/limits; `None`: there is none.
fn limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The process with this number and its user, if it can be seen and is a `lunar`.
pub(super) fn process(id: u32) -> Option<(Process, User)> {
    let of = |name: &str| text(format!("/proc/{id}/{name}"));
    let (status, limits) = (of("status")?, of("limits")?);
    if !field(&status, "Name")?.starts_with(SERVICE) {
        return None;
    }
    let user = user(&status)?;
    let kibibytes = |value: &str| value.split(' ').next().and_then(|number| number.parse::<u64>().ok());
    let process = Process {
        id,
        descriptors: limit(&limits, "Max open files"),
        locked: limit(&limits, "Max locked memory"),
        capabilities: user.capabilities,
        swapped: field(&status, "VmSwap").and_then(kibibytes).unwrap_or(0) << 10,
        throttled: of("cgroup").and_then(|groups| throttled(&groups)).unwrap_or_default(),
    };
    Some((process, user))
}

/// How often the group of a process was stopped, and for how many microseconds.
fn throttled(groups: &str) -> Option<(u64, u64)> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let stat = text(Path::new("/sys/fs/cgroup").join(group).join("cpu.stat"))?;
    let of = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((of("nr_throttled ")?, of("throttled_usec ")?))
}

fn user(status: &str) -> Option<User> {
    let numbers =
        |name| field(status, name).into_iter().flat_map(str::split_whitespace).filter_map(|id| id.parse().ok());
    let id = numbers("Uid").nth(1)?;
    let groups = numbers("Gid").skip(1).take(1).chain(numbers("Groups")).collect();
    let capabilities = field(status, "CapEff").and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(0);
    Some(User { name: user_name(id), id, groups, capabilities })
}

/// The user of a service that does not run: that of an installed service for its configuration, else the caller.
pub(super) fn user_of_service(config: &Path) -> User {
    let installed = user_number(SERVICE).filter(|_| config.starts_with("/etc/lunar"));
    let groups = |id| text("/etc/passwd").and_then(|all| group_of(&all, id)).into_iter().collect();
    match installed {
        Some(id) => User { name: SERVICE.to_owned(), id, groups: groups(id), capabilities: 0 },
        None => text("/proc/self/status").and_then(|status| user(&status)).unwrap_or_default(),
    }
}

/// The group of a user in a text like /etc/passwd.
fn group_of(users: &str, id: u32) -> Option<u32> {
    let mut all = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = all.find(|fields| fields.get(2).is_some_and(|number| number.parse() == Ok(id)))?;
    found.get(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!((version("6.1.0-13-amd64"), version("5.15"), version("x")), (Some((6, 1)), Some((5, 15)), None));
        assert_eq!((chosen("always [madvise] never"), chosen("")), ("madvise", ""));
        let limits =
            "Limit  Soft\nMax open files            1024                 4096  files\nMax locked memory  unlimited  x";
        assert_eq!((limit(limits, "Max open files"), limit(limits, "Max locked memory")), (Some(1024), None));
        let status = "Name:\tlunar\nUid:\t0\t990\t0\t0\nGid:\t0\t991\t0\t0\nGroups:\t5 6 \nCapEff:\t0000000000000402\n";
        let found = user(status).expect("a user");
        assert_eq!((found.id, found.groups, found.capabilities), (990, vec![991, 5, 6], 0x402));
        assert_eq!(group_of("root:x:0:0::/:\nlunar:x:990:991::/:\n", 990), Some(991));
        assert!(read().processors > 0);
    }

    #[test]
    fn the_present_process_is_no_lunar_and_has_a_user() {
        assert!(process(u32::MAX).is_none());
        let own = user_of_service(Path::new("/srv/lunar.toml"));
        assert_eq!(own.id, rustix::process::geteuid().as_raw());
    }
}
