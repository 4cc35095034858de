//! The limits of a configuration, summed and compared with the machine at the start. A sum that cannot be met is an
//! error that names the setting to change; the alternative is a process that runs out of memory or descriptors under
//! load.

use std::fmt;

/// Bytes of memory that one session takes at most besides the data of its commands: its state, the memory of its
/// headers, and the answers that wait to be sent.
pub const SESSION_BYTES: u64 = 16 << 10;
/// Descriptors of a core that it always has: ring, event descriptor, timer, and descriptors of its helpers.
pub const CORE_DESCRIPTORS: u64 = 16;
/// Descriptors of the process that it always has: log, state folder, signal handling, API listeners and connections.
pub const PROCESS_DESCRIPTORS: u64 = 320;

/// The limits that a configuration asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// Cores.
    pub cores: u64,
    /// Bytes of data memory for each core.
    pub memory: u64,
    /// Bytes of memory that fronts take besides, such as for the queues of disks and the messages of RDMA devices.
    pub fronts: u64,
    /// Sessions at once.
    pub sessions: u64,
    /// Whether the configuration says how many sessions there may be: then they are a demand and not a default.
    pub are_sessions_configured: bool,
    /// Volumes, each open on each core.
    pub volumes: u64,
    /// Portals and listening sockets.
    pub listeners: u64,
}

/// The machine, as far as it bounds the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostLimits {
    /// Bytes of memory that the process may use; `None` if that is not known.
    pub memory: Option<u64>,
    /// Descriptors that the process may have; `None` if that is not known.
    pub descriptors: Option<u64>,
}

/// A demand that the machine cannot meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Excess {
    /// The data memory of all cores and the sessions need more memory than there is.
    Memory {
        /// Bytes of data memory of all cores.
        data: u64,
        /// Bytes of all sessions.
        sessions: u64,
        /// Bytes of fronts.
        fronts: u64,
        /// Bytes that the process may use.
        available: u64,
    },
    /// Connections, volumes and cores need more descriptors than the process may have.
    Descriptors {
        /// Descriptors that are needed.
        needed: u64,
        /// Descriptors of the sessions among them.
        sessions: u64,
        /// Descriptors that the process may have.
        available: u64,
    },
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        match *self {
            Self::Memory { data, sessions, fronts: 0, available } => write!(
                f,
                "the cores need {} MiB for data and the sessions {} MiB, and this process may use {} MiB: lower \
                 `memory` or `cores` in [server] (--memory, --cores), or `sessions` in [limits]",
                mib(data),
                mib(sessions),
                available >> 20
            ),
            Self::Memory { data, sessions, fronts, available } => write!(
                f,
                "the cores need {} MiB for data, the sessions {} MiB, disks and RDMA devices {} MiB, and this process \
                 may use {} MiB: lower `memory` or `cores` in [server] (--memory, --cores), `sessions` in [limits], \
                 `depth` or `queues` of disks, or have fewer ports on RDMA devices",
                mib(data),
                mib(sessions),
                mib(fronts),
                available >> 20
            ),
            Self::Descriptors { needed, sessions, available } => write!(
                f,
                "{needed} open files are needed, {sessions} of them for sessions, and this process may have \
                 {available}: lower `sessions` in [limits], or raise the limit (LimitNOFILE= of the systemd \
                 unit, `ulimit -Hn`)"
            ),
        }
    }
}

impl std::error::Error for Excess {}

impl Demand {
    /// Bytes of memory that are reserved for data, sessions and fronts.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.data_bytes().saturating_add(self.session_bytes()).saturating_add(self.fronts)
    }

    fn data_bytes(&self) -> u64 {
        self.cores.saturating_mul(self.memory)
    }

    fn session_bytes(&self) -> u64 {
        self.sessions.saturating_mul(SESSION_BYTES)
    }

    /// Descriptors that are needed when all sessions are there.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        let of_cores = self.cores.saturating_mul(CORE_DESCRIPTORS.saturating_add(self.volumes));
        let of_process = PROCESS_DESCRIPTORS.saturating_add(self.listeners);
        of_cores.saturating_add(of_process).saturating_add(self.sessions)
    }

    /// Compares the sums with the machine. Sessions that are not configured give way: a small machine serves fewer.
    ///
    /// # Errors
    /// The first sum that cannot be met.
    pub fn check(&self, machine: &HostLimits) -> Result<(), Excess> {
        let sessions = if self.are_sessions_configured { self.sessions } else { 1 };
        let demand = Self { sessions, ..*self };
        if let Some(available) = machine.memory.filter(|available| demand.memory_bytes() > *available) {
            let (data, sessions, fronts) = (demand.data_bytes(), demand.session_bytes(), demand.fronts);
            return Err(Excess::Memory { data, sessions, fronts, available });
        }
        let needed = demand.descriptors();
        match machine.descriptors.filter(|available| needed > *available) {
            Some(available) => Err(Excess::Descriptors { needed, sessions, available }),
            None => Ok(()),
        }
    }
}

impl HostLimits {
    /// This machine: the memory of the kernel or of the control group, whichever is less, and the hard limit of open
    /// files.
    #[must_use]
    pub fn here() -> Self {
        use rustix::process::{Resource, getrlimit};
        let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_memory(&text));
        let group = std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| group_memory(&text));
        let memory = [total, group].into_iter().flatten().min();
        Self { memory, descriptors: getrlimit(Resource::Nofile).maximum }
    }
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The memory limit of the control group (version 2) that `/proc/self/cgroup` names: the least of its parents and its
/// own.
fn group_memory(text: &str) -> Option<u64> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let limit = |folder: &std::path::Path| {
        let own = std::path::Path::new("/sys/fs/cgroup").join(folder.strip_prefix("/").unwrap_or(folder));
        std::fs::read_to_string(own.join("memory.max")).ok()?.trim().parse::<u64>().ok()
    };
    std::path::Path::new(path).ancestors().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: HostLimits = HostLimits { memory: Some(1 << 30), descriptors: Some(4096) };

    fn demand() -> Demand {
        Demand {
            cores: 2,
            memory: 128 << 20,
            fronts: 0,
            sessions: 1024,
            are_sessions_configured: true,
            volumes: 10,
            listeners: 4,
        }
    }

    #[test]
    fn a_demand_that_fits_is_accepted() {
        assert_eq!(demand().check(&SMALL), Ok(()));
        assert_eq!(
            Demand { memory: 1 << 40, ..demand() }.check(&HostLimits { memory: None, descriptors: None }),
            Ok(())
        );
    }

    #[test]
    fn data_memory_beyond_the_machine_names_memory_and_cores() {
        let why = Demand { cores: 64, ..demand() }.check(&SMALL).expect_err("8 GiB do not fit into 1 GiB").to_string();
        assert!(why.contains("8192 MiB for data") && why.contains("`memory`") && why.contains("`cores`"), "{why}");
    }

    #[test]
    fn the_memory_of_fronts_counts() {
        let why = Demand { fronts: 1 << 30, ..demand() }.check(&SMALL).expect_err("1 GiB and more").to_string();
        assert!(why.contains("RDMA devices 1024 MiB") && why.contains("`depth`"), "{why}");
        assert_eq!(Demand { fronts: 512 << 20, ..demand() }.check(&SMALL), Ok(()));
    }

    #[test]
    fn sessions_beyond_the_descriptors_name_sessions() {
        let many = Demand { sessions: 8192, ..demand() };
        let why = many.check(&SMALL).expect_err("more sessions than open files").to_string();
        assert!(why.contains("`sessions`") && why.contains("LimitNOFILE="), "{why}");
        assert_eq!(Demand { are_sessions_configured: false, ..many }.check(&SMALL), Ok(()));
    }

    #[test]
    fn each_volume_needs_a_descriptor_on_each_core() {
        let more = Demand { volumes: 11, ..demand() };
        assert_eq!(more.descriptors() - demand().descriptors(), demand().cores);
        assert!(Demand { volumes: 4096, ..demand() }.check(&SMALL).is_err());
    }

    #[test]
    fn the_memory_of_the_machine_is_read_from_the_kernel() {
        assert_eq!(total_memory("MemTotal:       24599416 kB\nMemFree: 1 kB\n"), Some(24_599_416 * 1024));
        assert_eq!(total_memory("MemFree: 1 kB\n"), None);
        let here = HostLimits::here();
        assert!(here.memory.is_some_and(|bytes| bytes > 1 << 20) && here.descriptors != Some(0));
    }
}
