//! The services that the engine needs from the machine besides its cores: clocks, randomness, threads, and the files of
//! the state folder. The simulator has its own implementation.

use crate::error::EngineError;
use crate::volume::metadata::{self, MetadataError};
use lunar_control::versions::{self, Trouble};
use lunar_core::metadata::MetadataStore;
use lunar_core::time::Instant;
use lunar_reactor::log;
use lunar_reactor::unix::Permission;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An error of a host about a path, which only the host knows: its sandbox is its own.
pub type PathError = Box<dyn std::error::Error + Send + Sync>;

/// Work for a thread.
pub type Work = Box<dyn FnOnce() + Send>;

/// The machine on which an engine runs.
pub trait Host: Send + Sync + fmt::Debug {
    /// The time of a clock that never goes back: that of the reactors.
    fn now(&self) -> Instant;

    /// Milliseconds since the beginning of 1970, UTC; zero if the machine does not know the date.
    fn wall_clock(&self) -> u64;

    /// Fills memory with cryptographically secure random bytes; returns whether it succeeded.
    fn random(&self, into: &mut [u8]) -> bool;

    /// A number that is hard to guess. Without a source of randomness it follows from the time.
    fn seed(&self) -> u64 {
        let mut seed = [0; 8];
        self.random(&mut seed);
        u64::from_be_bytes(seed) ^ self.now().0
    }

    /// Whether the cores, and slow work beside them, run on threads of their own. Without threads, the engine calls
    /// [`Host::step`] while it waits for the cores, and does slow work at once.
    fn has_threads(&self) -> bool;

    /// Without threads: runs the cores for a moment.
    fn step(&self);

    /// Runs a job on a new thread of this name.
    ///
    /// # Errors
    /// The work, if there can be no such thread.
    fn spawn(&self, name: &str, work: Work) -> Result<(), Work>;

    /// Waits between two checks of a state that a core does not report.
    fn pause(&self, time: Duration);

    /// Whether the process may use a volume or a folder at this path.
    ///
    /// # Errors
    /// An error of the host, with a message that says what to do.
    fn allows_path(&self, path: &Path) -> Result<(), PathError>;

    /// The number of the user of this name.
    fn user_number(&self, name: &str) -> Option<u32>;

    /// The number of the user group of this name.
    fn group_number(&self, name: &str) -> Option<u32>;

    /// The folder for sockets whose place is not configured.
    fn runtime(&self) -> &Path;

    /// The durable state of engines.
    fn state(&self) -> &dyn StateStore;
}

impl dyn Host {
    /// The users that may open a socket: permission bits, and the names of its owner and group where they are given.
    ///
    /// # Errors
    /// If this machine has no user or group of this name.
    pub fn permission(&self, mode: u32, owner: Option<&str>, group: Option<&str>) -> Result<Permission, EngineError> {
        let user = |name: &str| self.user_number(name).ok_or_else(|| EngineError::NoUser(name.to_owned()));
        let user_group = |name: &str| self.group_number(name).ok_or_else(|| EngineError::NoUserGroup(name.to_owned()));
        let owner = owner.map(user).transpose()?;
        let group = group.map(user_group).transpose()?;
        Ok(Permission { mode, owner, group })
    }
}

/// The durable state of an engine besides the configuration.
pub trait StateStore: Send + Sync + fmt::Debug {
    /// The state folder.
    fn path(&self) -> &Path;

    /// The metadata store of the NVM subsystem of this name.
    fn subsystem(&self, nqn: &str) -> Arc<dyn MetadataStore>;

    /// The metadata store of the target port of this name, in which a front keeps what a killed process cannot end.
    fn port(&self, name: &str) -> Arc<dyn MetadataStore>;

    /// The text of this name; empty if there is none.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn read(&self, name: &str) -> Result<String, Trouble>;

    /// Replaces the text of this name: durably when this returns.
    ///
    /// # Errors
    /// Why it cannot be written.
    fn write(&self, name: &str, text: &str) -> Result<(), Trouble>;

    /// The metadata store of the volume with this UUID. A volume that several processes may serve is not exclusive.
    ///
    /// # Errors
    /// When its metadata cannot be read.
    fn volume(&self, uuid: [u8; 16], is_exclusive: bool) -> Result<Arc<dyn MetadataStore>, MetadataError> {
        metadata::of_volume(self.path(), uuid, is_exclusive)
    }

    /// Removes the metadata of a volume.
    fn forget_volume(&self, uuid: [u8; 16]);
}

/// The state in a folder.
#[derive(Clone, Debug)]
pub struct StateFolder {
    path: PathBuf,
    /// Whether other engines use the folder at the same time.
    is_shared: bool,
}

impl StateFolder {
    /// The state in this folder, which is made if it is not there. The folder is locked: [`StateLock`].
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        Ok(Self { path: path.to_owned(), is_shared: false })
    }

    /// The state in a folder that several engines use: the state of volumes and subsystems is kept there, and the state
    /// of a whole engine is not.
    #[must_use]
    pub fn shared(path: &Path) -> Self {
        Self { path: path.to_owned(), is_shared: true }
    }
}

impl StateStore for StateFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn subsystem(&self, nqn: &str) -> Arc<dyn MetadataStore> {
        metadata::of_subsystem(&self.path, nqn)
    }

    fn port(&self, name: &str) -> Arc<dyn MetadataStore> {
        metadata::of_port(&self.path, name)
    }

    fn read(&self, name: &str) -> Result<String, Trouble> {
        if self.is_shared {
            return Ok(String::new());
        }
        versions::read(&self.path.join(name))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Trouble> {
        if self.is_shared {
            return Ok(());
        }
        versions::put(&self.path.join(name), text)
    }

    fn forget_volume(&self, uuid: [u8; 16]) {
        if let Err(why) = metadata::forget(&self.path, uuid) {
            log!(warning, "the metadata of a removed volume could not be removed: {why}");
        }
    }
}

/// A lock on a state folder: two engines with one folder would overwrite each other's identities of ports.
#[derive(Debug)]
pub struct StateLock {
    _folder: File,
}

impl StateLock {
    /// Locks a state folder, and waits for `patience` until another process has released it.
    ///
    /// # Errors
    /// When another process has it, or as the file system says.
    pub fn take(folder: &Path, patience: Duration) -> Result<Self, StateError> {
        let error = |why: io::Error| StateError { folder: folder.to_owned(), why };
        let file = File::open(folder).map_err(error)?;
        let lock = || file.try_lock().map_err(io::Error::from);
        lunar_reactor::linger::until_free(patience, lock, |why| why.kind() == io::ErrorKind::WouldBlock)
            .map_err(error)?;
        Ok(Self { _folder: file })
    }
}

/// Why a state folder cannot be used.
#[derive(Debug)]
pub struct StateError {
    folder: PathBuf,
    why: io::Error,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = self.folder.display();
        match self.why.kind() {
            io::ErrorKind::WouldBlock => write!(
                f,
                "{folder} is the state folder of another lunar daemon that runs: stop that one, or give this one a \
                 folder of its own (--state)"
            ),
            _ => write!(f, "{folder}: {}", self.why),
        }
    }
}

impl std::error::Error for StateError {}

/// The machine that this process runs on: the kernel's clocks, randomness and threads.
#[derive(Debug)]
pub struct SystemHost {
    /// See [`Host::state`].
    pub state: StateFolder,
    /// See [`Host::runtime`].
    pub runtime: PathBuf,
    /// See [`Host::allows_path`].
    pub allows_path: fn(&Path) -> Result<(), PathError>,
    /// See [`Host::user_number`].
    pub user_number: fn(&str) -> Option<u32>,
    /// See [`Host::group_number`].
    pub group_number: fn(&str) -> Option<u32>,
}

impl Host for SystemHost {
    fn now(&self) -> Instant {
        lunar_reactor::clock::now()
    }

    fn wall_clock(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn random(&self, into: &mut [u8]) -> bool {
        getrandom(&mut *into, GetRandomFlags::empty()).is_ok_and(|got| got == into.len())
    }

    fn has_threads(&self) -> bool {
        true
    }

    fn step(&self) {}

    fn spawn(&self, name: &str, work: Work) -> Result<(), Work> {
        // Shared, so that the work is still here if there is no thread for it.
        let shared = Arc::new(std::sync::Mutex::new(Some(work)));
        let in_thread = shared.clone();
        let take = |shared: &std::sync::Mutex<Option<Work>>| {
            shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
        };
        let thread = std::thread::Builder::new().name(name.into());
        match thread.spawn(move || take(&in_thread).into_iter().for_each(|work| work())) {
            Ok(_) => Ok(()),
            Err(_) => take(&shared).map_or(Ok(()), Err),
        }
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn allows_path(&self, path: &Path) -> Result<(), PathError> {
        (self.allows_path)(path)
    }

    fn user_number(&self, name: &str) -> Option<u32> {
        (self.user_number)(name)
    }

    fn group_number(&self, name: &str) -> Option<u32> {
        (self.group_number)(name)
    }

    fn runtime(&self) -> &Path {
        &self.runtime
    }

    fn state(&self) -> &dyn StateStore {
        &self.state
    }
}
