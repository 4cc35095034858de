//! The facts that the checks look at: plain values, gathered from the API, the kernel and the files of this machine.

use crate::config::Config;
use crate::counters::CountersView;
use crate::rates::Rates;
use serde_json::Value as Json;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Everything that is known. A part that could not be gathered is empty, and its check finds nothing.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Why the service does not answer; `None`: it answers.
    pub silent: Option<String>,
    /// The configuration file.
    pub file: PathBuf,
    /// The configuration.
    pub config: Config,
    /// The mistakes in the configuration file of a service that does not run.
    pub mistakes: Option<String>,
    /// The status of the service.
    pub status: Option<Json>,
    /// Its sessions.
    pub sessions: Vec<Json>,
    /// Its statistics.
    pub statistics: Option<Json>,
    /// Its counters at the end of the time for which it was watched.
    pub counters: Option<CountersView>,
    /// The rates of that time.
    pub rates: Option<Rates>,
    /// The process of the service.
    pub process: Option<Process>,
    /// The user that the service runs as, or is to run as.
    pub user: User,
    /// The kernel and the processors.
    pub machine: ThisMachine,
    /// The network.
    pub network: Network,
    /// The portals.
    pub portals: Vec<Portal>,
    /// The stores of volumes with a path.
    pub stores: Vec<Store>,
    /// The programs for images of Ceph, if a volume is one.
    pub ceph: Option<Ceph>,
    /// The file systems of stores and of the state folder, each once.
    pub file_systems: Vec<FileSystem>,
    /// The state folder.
    pub state: Option<Store>,
    /// Files with secrets.
    pub secrets: Vec<SecretFile>,
    /// The certificates of listeners of the API.
    pub certificates: Vec<Certificate>,
}

impl Facts {
    /// Whether the service runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.silent.is_none()
    }

    /// The file system of a store.
    #[must_use]
    pub fn file_system(&self, store: &Store) -> Option<&FileSystem> {
        self.file_systems.iter().find(|found| Some(found.number) == store.file_system)
    }
}

/// The programs for images of Ceph on this machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ceph {
    /// The place of the program that serves them.
    pub program: PathBuf,
    /// Whether it is there.
    pub has_program: bool,
    /// Whether the library of Ceph is there.
    pub has_library: bool,
}

/// A process.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// The most file descriptors that it may have.
    pub descriptors: Option<u64>,
    /// The most bytes that it may lock; `None`: without a limit, or not known.
    pub locked: Option<u64>,
    /// Its effective capabilities.
    pub capabilities: u64,
    /// Bytes that are swapped out.
    pub swapped: u64,
    /// How often its control group was stopped for its quota, and for how many microseconds in all.
    pub throttled: (u64, u64),
}

/// CAP_DAC_OVERRIDE: files are opened whatever their permissions are.
pub const DAC_OVERRIDE: u32 = 1;
/// CAP_NET_BIND_SERVICE.
pub const NET_BIND_SERVICE: u32 = 10;
/// CAP_IPC_LOCK.
pub const IPC_LOCK: u32 = 14;
/// CAP_SYS_ADMIN.
pub const SYS_ADMIN: u32 = 21;

/// A user, with the rights of a process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// The numbers of its groups.
    pub groups: Vec<u32>,
    /// Its capabilities.
    pub capabilities: u64,
}

impl User {
    /// Whether it has this capability.
    #[must_use]
    pub fn can(&self, capability: u32) -> bool {
        (self.capabilities >> capability) & 1 == 1
    }

    /// Its name as `chown` takes it: a number if it has none.
    #[must_use]
    pub fn owner(&self) -> String {
        if self.name.is_empty() || self.name.starts_with("uid.") { self.id.to_string() } else { self.name.clone() }
    }

    /// Whether it has these rights to a file: bits of read (4), write (2) and execute (1).
    #[must_use]
    pub fn may(&self, file: &FileMode, rights: u32) -> bool {
        if self.can(DAC_OVERRIDE) || file.has_acl {
            return true;
        }
        let shift = match () {
            () if file.owner == self.id => 6,
            () if self.groups.contains(&file.group) => 3,
            () => 0,
        };
        (file.mode >> shift) & rights == rights
    }
}

/// The owner and the permissions of a file or folder.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileMode {
    /// Its path.
    pub path: PathBuf,
    /// Its permissions.
    pub mode: u32,
    /// Its owner.
    pub owner: u32,
    /// Its group.
    pub group: u32,
    /// Whether it has an access control list, which may allow more.
    pub has_acl: bool,
}

/// The kernel and the processors.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ThisMachine {
    /// The version of the kernel: its first two numbers.
    pub kernel: Option<(u32, u32)>,
    /// `kernel.io_uring_disabled`.
    pub io_uring_disabled: u32,
    /// The clock source.
    pub clock: String,
    /// Processors that this machine has.
    pub processors: usize,
    /// Drivers and governors of the frequency of processors.
    pub governors: Vec<(String, String)>,
    /// The choice for transparent huge pages.
    pub huge_pages: String,
}

/// The network of this machine.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Network {
    /// The interfaces.
    pub interfaces: Vec<Interface>,
    /// `net.ipv4.conf.all.arp_ignore`.
    pub arp_ignore: u32,
    /// The congestion control of TCP.
    pub congestion: String,
    /// The first port that all users may use.
    pub first_port: u16,
    /// TCP segments sent, and sent again, since the start of this machine.
    pub segments: (u64, u64),
}

/// A network interface.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MTU.
    pub mtu: u64,
    /// Its state: `UP`, `DOWN`, `UNKNOWN`.
    pub state: String,
    /// Its addresses, with the bits of their networks.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Packets received and sent.
    pub packets: u64,
    /// Packets with errors, and dropped ones.
    pub lost: u64,
}

/// A portal of the configuration.
#[derive(Clone, PartialEq, Debug)]
pub struct Portal {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: SocketAddr,
    /// The address that clients learn.
    pub advertise: Option<SocketAddr>,
    /// Why no connection was possible; `Some(None)`: there was one. `None`: not tried.
    pub connected: Option<Option<String>>,
}

/// A file or a device.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Store {
    /// The volume; empty for the state folder.
    pub volume: String,
    /// Its path.
    pub path: PathBuf,
    /// Whether the path exists; `None`: that cannot be seen.
    pub exists: Option<bool>,
    /// Its size in bytes.
    pub size: u64,
    /// The space that it takes.
    pub allocated: u64,
    /// Its folders from the root, and the file itself.
    pub modes: Vec<FileMode>,
    /// The number of its file system.
    pub file_system: Option<u64>,
    /// The alignment of direct I/O, in bytes: 0: not supported; `None`: not known.
    pub direct_alignment: Option<u32>,
    /// The block devices that hold it, down to the disks.
    pub devices: Vec<Device>,
    /// Its users on this machine, if it is a device: `mounted at /srv`, `used by dm-0`.
    pub users: Vec<String>,
}

/// A block device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Errors that it has reported.
    pub errors: u64,
    /// Missing disks of a RAID.
    pub degraded: u64,
    /// Bytes from the start of the partition to the next physical block.
    pub misalignment: u64,
    /// The kind of its write cache, as the disk tells it.
    pub cache: String,
    /// The kind that the kernel assumes.
    pub cache_of_kernel: String,
}

/// A mounted file system.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FileSystem {
    /// Its number.
    pub number: u64,
    /// Where it is mounted.
    pub place: PathBuf,
    /// Its type.
    pub kind: String,
    /// Its options.
    pub options: Vec<String>,
    /// Its size in bytes.
    pub size: u64,
    /// Free bytes, for the user of the service.
    pub free: u64,
    /// Whether space inside of a file can be freed; `None`: that was not tried.
    pub punches: Option<bool>,
}

impl FileSystem {
    /// Whether it has this option.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|found| found == option)
    }

    /// The part of it that is free.
    #[must_use]
    pub fn free_part(&self) -> f64 {
        if self.size == 0 { 1.0 } else { self.free as f64 / self.size as f64 }
    }

    /// Its name for people.
    #[must_use]
    pub fn subject(&self) -> String {
        format!("file system {}", self.place.display())
    }
}

/// A file with a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SecretFile {
    /// The resource: `user esx`.
    pub owner: String,
    /// Its path.
    pub path: PathBuf,
    /// Its permissions.
    pub mode: u32,
    /// Whether the secret ends with a blank; `None`: it cannot be read.
    pub ends_blank: Option<bool>,
}

/// A certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// The listener of the API.
    pub listener: String,
    /// Its path.
    pub path: PathBuf,
    /// Days until it expires.
    pub days: i32,
}

/// A path for a command of the shell.
#[must_use]
pub fn shell(path: &Path) -> String {
    super::finding::quoted(&path.display().to_string())
}
