//! The rights that raw frames need.

/// Capabilities, as linux/capability.h numbers them.
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_BPF: u32 = 39;

/// A capability, and its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Capability {
    name: &'static str,
    /// Each of these grants it.
    numbers: &'static [u32],
}

/// For packet sockets, and for sockets of the kind AF_XDP.
pub(super) const NET_RAW: Capability = Capability { name: "CAP_NET_RAW", numbers: &[CAP_NET_RAW] };
/// For programs of interfaces.
pub(super) const NET_ADMIN: Capability = Capability { name: "CAP_NET_ADMIN", numbers: &[CAP_NET_ADMIN, CAP_SYS_ADMIN] };
/// For programs of the kernel.
pub(super) const BPF: Capability = Capability { name: "CAP_BPF", numbers: &[CAP_BPF, CAP_SYS_ADMIN] };

/// The names of those capabilities that this thread has not.
pub(super) fn missing(wanted: &[Capability]) -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    let has = |one: &&Capability| one.numbers.iter().any(|number| bits >> number & 1 == 1);
    wanted.iter().filter(|one| !has(one)).map(|one| one.name).collect()
}

/// The commands that grant capabilities to this program.
pub(super) fn remedy(names: &[&str]) -> String {
    let program = std::env::current_exe().map_or_else(|_| "PROGRAM".into(), |path| path.display().to_string());
    format!(
        "`setcap {}+ep {program}`, or AmbientCapabilities={} in the systemd unit",
        names.join(",").to_lowercase(),
        names.join(" ")
    )
}
