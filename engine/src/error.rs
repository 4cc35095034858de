//! The errors of the engine.

use crate::host::PathError;
use crate::participant::ParticipantError;
use crate::volume::VolumeError;
use lunar_control::versions::Trouble;
use lunar_core::access::Mistake;
use lunar_core::io::Fault;
use lunar_reactor::os_error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// An error of a front, which only the front knows.
pub type FrontError = Box<dyn std::error::Error + Send + Sync>;

/// The errors of an engine, with messages that say what to do.
#[derive(Debug)]
pub enum EngineError {
    /// A core did not start.
    CoreStart(io::Error),
    /// A core has ended, or did not start.
    CoreEnded,
    /// A core panicked.
    CorePanicked,
    /// Units could not be flushed at the end: which, and why.
    NotFlushed(Vec<String>),
    /// A file of the state folder cannot be read or written.
    State(Trouble),
    /// A file of the state folder has another form.
    StateForm(PathBuf, serde_json::Error),
    /// An object of the plan is not in the configuration.
    NotConfigured,
    /// A volume would lose its end: it has this many bytes.
    VolumeShrinks(u64),
    /// There are as many volumes as there can be.
    TooManyVolumes(u16),
    /// A volume cannot lose its write cache, because the cache could not be flushed.
    NotFlushedBefore(Fault),
    /// A volume cannot be opened, or not in this way.
    Volume(VolumeError),
    /// Why something of this name cannot be done, where the name is not said elsewhere.
    About(String, Box<Self>),
    /// The size of a volume is no whole number of blocks of this many bytes.
    PartialBlock(u32),
    /// A portal cannot listen at its address; the last is how another one is chosen.
    Listen(SocketAddr, io::Error, String),
    /// The process may not use a path.
    Path(PathError),
    /// The access control of a target would not protect it; with the name of the target.
    Access(Option<String>, Mistake),
    /// There are more target ports than relative target port identifiers.
    TooManyPorts,
    /// This machine has no user of this name.
    NoUser(String),
    /// This machine has no group of users of this name.
    NoUserGroup(String),
    /// A front cannot do its part.
    Front(FrontError),
    /// A participant cannot do what is configured.
    Participant(ParticipantError),
    /// The folder of a pool is not there, or cannot be used.
    Pool(PathBuf, io::Error),
    /// The path of a pool is no folder.
    NoFolder(PathBuf),
    /// The file system of this path does not answer.
    NoAnswer(PathBuf),
    /// Which store a volume has is not certain, or not recorded.
    Identity(IdentityError),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CoreStart(why) => {
                write!(f, "starting a core (if io_uring is forbidden here, the driver epoll does without): {why}")
            }
            Self::CoreEnded => f.write_str("a core has ended: see the log, restart Lunar, and report this"),
            Self::CorePanicked => f.write_str("a core panicked: see the log, restart Lunar, and report this"),
            Self::NotFlushed(units) => f.write_str(&units.join("; ")),
            Self::State(why) => why.fmt(f),
            Self::StateForm(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Path(why) | Self::Participant(why) | Self::Front(why) => why.fmt(f),
            Self::NoUser(name) => {
                write!(f, "this machine has no user {name}: create it, or correct the key `owner`")
            }
            Self::NoUserGroup(name) => {
                write!(f, "this machine has no group {name}: create it, or correct the key `group`")
            }
            Self::Pool(folder, why) => write!(f, "{}: {why}; make the folder first", folder.display()),
            Self::NoFolder(path) => {
                write!(f, "{} is not a folder: set `folder` of the pool to a folder", path.display())
            }
            Self::NoAnswer(path) => write!(
                f,
                "the file system of {} does not answer: check its server or its disk (`findmnt -T {}`, `dmesg`)",
                path.display(),
                path.display()
            ),
            Self::Identity(why) => why.fmt(f),
            Self::NotConfigured => f.write_str("it is not in the configuration"),
            Self::VolumeShrinks(bytes) => write!(
                f,
                "the volume has {bytes} bytes and cannot become smaller, because hosts would lose the data after the \
                 new end: set `size` to at least this"
            ),
            Self::NotFlushedBefore(fault) => write!(
                f,
                "data in the write cache could not be flushed ({}), so the volume keeps its write cache: check its \
                 disk",
                os_error(*fault)
            ),
            Self::TooManyVolumes(most) => write!(f, "there are {most} volumes already: delete one first"),
            Self::Volume(why) => why.fmt(f),
            Self::About(name, why) => write!(f, "{name}: {why}"),
            Self::PartialBlock(block) => write!(f, "it is not a whole number of {block}-byte blocks"),
            Self::Listen(address, why, choose) => listen_error(f, *address, why, choose),
            Self::Access(None, why) => why.fmt(f),
            Self::Access(Some(target), why) => write!(f, "target {target}: {why}"),
            Self::TooManyPorts => f.write_str("there are more target ports than relative target port identifiers"),
        }
    }
}

impl EngineError {
    /// An error of a front.
    #[must_use]
    pub fn front(why: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Front(Box::new(why))
    }

    /// The same with the name of its subject, if there is one to add.
    #[must_use]
    pub(crate) fn about(self, name: Option<&str>) -> Self {
        match name {
            Some(name) => Self::About(name.to_owned(), Box::new(self)),
            None => self,
        }
    }
}

impl std::error::Error for EngineError {}

impl From<IdentityError> for EngineError {
    fn from(why: IdentityError) -> Self {
        Self::Identity(why)
    }
}

/// Why a volume is not served with the store that is at its place, or not recorded with it.
#[derive(Debug)]
pub enum IdentityError {
    /// The store at this path is not certainly the one with which the volume of this name was served.
    Another(PathBuf, String),
    /// The file that a volume serves is not at its path any more.
    Moved {
        /// The finding.
        words: String,
        /// The way out.
        remedy: String,
    },
    /// Another store is at this path than the one that the volume of this name serves.
    Replaced(PathBuf, String),
    /// The store at this path went away while the volume of this name was served with a write cache.
    MayHaveLostWrites(PathBuf, String),
    /// The store of the volume of this name is served, and the record that an operator accepted it was not written.
    AcceptanceNotKept(String, Fault),
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Another(path, volume) => write!(
                f,
                "{} is not certainly the store with which volume {volume} was served last: restore that store, or run \
                 `lunar volume accept {volume}`",
                path.display()
            ),
            Self::Moved { words, remedy } => write!(f, "{words}; {remedy}"),
            Self::Replaced(path, volume) => write!(
                f,
                "another store is at {} than the one that volume {volume} serves: put that one back. To serve the \
                 other one, delete the volume and create it again: to its clients it is another disk",
                path.display()
            ),
            Self::MayHaveLostWrites(path, volume) => write!(
                f,
                "{} went away while volume {volume} was served with a write cache: `lunar volume accept {volume}` \
                 serves it again",
                path.display()
            ),
            Self::AcceptanceNotKept(volume, why) => write!(
                f,
                "volume {volume} is served, but the state folder has no record that its store was accepted ({}): \
                 repair the state folder; after a restart of Lunar run `lunar volume accept {volume}` again",
                os_error(*why)
            ),
        }
    }
}

/// Why Lunar cannot listen at an address, in words that say what to do; `choose` says how another one is chosen.
fn listen_error(f: &mut fmt::Formatter<'_>, address: SocketAddr, why: &io::Error, choose: &str) -> fmt::Result {
    match why.kind() {
        io::ErrorKind::AddrInUse => {
            let next = SocketAddr::new(address.ip(), address.port().saturating_add(1));
            write!(
                f,
                "{address} is in use by another program (another target?): choose another port with {choose} {next}"
            )
        }
        io::ErrorKind::AddrNotAvailable => {
            write!(f, "{address} is not an address of this machine: see `ip address`")
        }
        io::ErrorKind::PermissionDenied if rustix::process::geteuid().is_root() => write!(
            f,
            "port {} is refused though this process is root: it lacks the capability CAP_NET_BIND_SERVICE, or a \
             security module (AppArmor, SELinux) forbids it; choose one above 1023 with {choose}",
            address.port()
        ),
        io::ErrorKind::PermissionDenied => {
            write!(f, "port {} is for root only: choose one above 1023 with {choose}", address.port())
        }
        _ => write!(f, "listening on {address}: {why}"),
    }
}
