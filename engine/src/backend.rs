//! The contract of a kind of store.
//!
//! * [`Backend`]: a kind of store, as the registry lists it
//! * [`OpenedStore`], [`OpenedDevice`]: what it opened, for all cores
//! * [`StoreRequest`], [`ProtectionRequest`]: how it is opened
//! * [`Refusal`]: why it cannot be opened
//! * [`StoreTrouble`]: what is wrong with its medium while it is served
//!
//! A volume is opened once for a process, and then once for each core. No method of this contract is called for a
//! command: a core executes commands on its own [`Store`].

mod refusal;
mod request;
mod trouble;

pub use refusal::Refusal;
pub use request::{ProtectionRequest, StoreRequest, UnevenSize};
pub use trouble::{Condition, StoreTrouble};

use lunar_control::api::HandlerView;
use lunar_control::live::Making;
use lunar_control::schema::StoreSchema;
use lunar_core::io::{Store, Traits};
use lunar_reactor::Reactor;
use lunar_scsi::device_server::DeviceServer;
use std::any::Any;
use std::fmt::{self, Debug};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of the longest name of a back end. The name is a word of the configuration and a prefix on the command line.
pub const NAME_BYTES_MAX: usize = 32;

/// Back ends of a program at most: far more than there are kinds of store, and few enough to be searched one by one.
pub const BACKENDS_MAX: usize = 64;

/// A kind of store, as the registry lists it.
pub trait Backend: Sync {
    /// Its declarations for the configuration. Its word is one of at most [`NAME_BYTES_MAX`] lower-case letters, digits
    /// and dashes.
    fn schema(&self) -> &'static StoreSchema;

    /// How a volume of this kind is named on the command line.
    fn form(&self) -> TextForm;

    /// Volume texts that show the form: `["disk.img", "disk.img:20G"]`.
    fn examples(&self) -> &'static [&'static str];

    /// Where the data of a volume is. A place that is no path is passed like one.
    fn location(&self) -> Location;

    /// Whether the data of a volume outlives the process.
    fn durability(&self) -> Durability;

    /// The paths that the process needs for a volume at this path. `is_protected`: the volume keeps protection
    /// information.
    fn jail_paths(&self, path: &Path, is_protected: bool) -> JailPaths;

    /// The ends of the names of files that belong to a volume with protection information, besides its own file.
    fn companions(&self) -> &'static [&'static str] {
        &[]
    }

    /// The mark of the volume at this path; `None` if there is no volume, or if it gets its mark when it is opened.
    /// A volume that is opened `read_only` gets none.
    fn mark_at(&self, path: &Path, read_only: bool) -> Option<Mark>;

    /// The fingerprint of the store at this path; `None` if there is none, or if any store may be there. A store that
    /// was unavailable is served again by itself only if it has the fingerprint of the one before, with its origin.
    fn fingerprint(&self, path: &Path, read_only: bool) -> Option<Fingerprint> {
        Some(Fingerprint::of_mark(&self.mark_at(path, read_only)?))
    }

    /// Commands that show an operator why the store at this path is unavailable.
    fn inspection(&self, path: &Path) -> String {
        let _ = path;
        "`findmnt`, `lsblk`".to_owned()
    }

    /// Whether there may be a store at this path, or the reason has changed why there is none, so that it is worth
    /// opening it. It may take as long as the disk takes.
    fn is_there(&self, path: &Path) -> bool {
        crate::answering::is_there(path)
    }

    /// The work that makes the store of a request in the system that keeps stores of this kind: a copy of `source`, or
    /// an empty one of the size that is requested. `None`: no such system makes stores of this kind.
    fn make(&self, request: &StoreRequest<'_>, source: Option<&Opened>) -> Option<Making> {
        let _ = (request, source);
        None
    }

    /// Opens a volume. `previous` is what the process has open at the same path or of the same volume, perhaps of
    /// another kind. Both may be used at the same time, until one is dropped.
    ///
    /// # Errors
    /// [`Refusal::Store`] with an error of this kind, or another [`Refusal`].
    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal>;

    /// The process ends: all stores of this kind are dropped. Waits until what they had is free for the next process.
    fn finish(&self) {}
}

impl dyn Backend {
    /// Its name in the configuration (`kind`), on the command line, in the API and in logs: the word of its schema.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.schema().word
    }
}

/// The back end of this name.
#[must_use]
pub fn find(backends: &[&'static dyn Backend], name: &str) -> Option<&'static dyn Backend> {
    backends.iter().copied().find(|backend| backend.name() == name)
}

/// A mistake in a registry, for its developer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegistryMistake {
    /// There are so many back ends, more than [`BACKENDS_MAX`].
    TooMany(usize),
    /// This is no name of a back end.
    NoName(&'static str),
    /// The name is taken.
    Taken(&'static str),
    /// The back end of this name has no example.
    NoExample(&'static str),
    /// So many back ends take all paths that no other takes.
    OtherPaths(usize),
}

/// Checks the back ends of a registry: their number, their names, their forms.
///
/// # Errors
/// The first mistake.
pub fn verify(backends: &[&'static dyn Backend]) -> Result<(), RegistryMistake> {
    if backends.len() > BACKENDS_MAX {
        return Err(RegistryMistake::TooMany(backends.len()));
    }
    for (at, backend) in backends.iter().enumerate() {
        let name = backend.name();
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_word) {
            return Err(RegistryMistake::NoName(name));
        }
        // `cd:` and `removable:` name the medium.
        if matches!(name, "cd" | "removable") || backends[..at].iter().any(|other| other.name() == name) {
            return Err(RegistryMistake::Taken(name));
        }
        if backend.examples().is_empty() {
            return Err(RegistryMistake::NoExample(name));
        }
    }
    match backends.iter().filter(|backend| matches!(backend.form(), TextForm::OtherPath)).count() {
        0 | 1 => Ok(()),
        count => Err(RegistryMistake::OtherPaths(count)),
    }
}

/// How a volume is named on the command line.
#[derive(Clone, Copy, Debug)]
pub enum TextForm {
    /// `NAME:SIZE`, with the name of the back end.
    NameAndSize,
    /// `NAME:`, with the name of the back end.
    Name,
    /// `NAME:PATH`, with the name of the back end.
    NameAndPath,
    /// `NAME:PLACE`, with the name of the back end. The place is the value of this key of its own, and no path.
    NameAndKey(&'static str),
    /// `NAME:PATH:SIZE`, with the name of the back end; `NAME:PATH:WORD` with a word of this key of its own.
    NameAndPathAndSizeOr(&'static str, &'static [(&'static str, &'static str)]),
    /// A path for which this function returns true.
    PathIf(fn(&Path) -> bool),
    /// A path for which this function returns true, or any path with the name of the back end: `NAME:PATH`. Its bytes
    /// are blocks.
    NameAndPathOrPathIf(fn(&Path) -> bool),
    /// A path that no other back end takes. One back end of a registry has this form.
    OtherPath,
}

/// Where the data of a volume is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// At a path, which the configuration must give.
    Path,
    /// At no path; the configuration must give none.
    Process,
}

/// Whether the data of a volume outlives the process. Metadata does if the data does: it is in the state folder then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// The data and the metadata outlive the process.
    Durable,
    /// The data and the metadata end with the process.
    Volatile,
}

/// The paths that the process needs for a volume.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct JailPaths {
    /// Files and devices that are read and written.
    pub write: Vec<PathBuf>,
    /// Folders in which files are created.
    pub create: Vec<PathBuf>,
    /// Folders in which a device appears again under another name, and is opened without ioctl(2).
    pub devices: Vec<PathBuf>,
}

/// The mark distinguishes a volume from all others. The identity of the volume is derived from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A random number that is stored with the data.
    Number([u8; 16]),
    /// A name that is the same on every server that has access to the data.
    Global {
        /// The kind of name, so that equal names of different kinds differ.
        space: &'static str,
        /// The name.
        name: String,
    },
    /// A place on this server.
    Local {
        /// The kind of place, so that equal places of different kinds differ.
        space: &'static str,
        /// The parts of the place.
        parts: Vec<String>,
    },
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "number {:032x}", u128::from_be_bytes(*number)),
            Self::Global { space, name } => write!(f, "{space} {name}"),
            Self::Local { space, parts } => write!(f, "{space} {}", parts.join(" ")),
        }
    }
}

/// The properties that distinguish a store from others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fingerprint {
    /// Its mark, as text.
    pub mark: String,
    /// Properties that only the kind of store knows: when a file was created, and the device that it is on. `None`: a
    /// copy of the store may have the same mark.
    pub origin: Option<String>,
}

impl Fingerprint {
    /// The fingerprint of a store that its mark alone identifies beyond doubt.
    #[must_use]
    pub fn of_mark(mark: &Mark) -> Self {
        Self { mark: mark.to_string(), origin: Some(String::new()) }
    }
}

/// The store or device that a back end opened.
#[derive(Clone, Debug)]
pub enum Opened {
    /// A store: Lunar executes the commands of all command sets on it.
    Store(Arc<dyn OpenedStore>),
    /// A device: SCSI commands are forwarded to it. It has no blocks that NVMe or the block command set could address.
    Device(Arc<dyn OpenedDevice>),
}

impl Opened {
    /// The store, if it is one.
    #[must_use]
    pub fn store(&self) -> Option<&Arc<dyn OpenedStore>> {
        match self {
            Self::Store(store) => Some(store),
            Self::Device(_) => None,
        }
    }

    /// The mark of the volume; `None` if it ends with the process.
    #[must_use]
    pub fn mark(&self) -> Option<Mark> {
        match self {
            Self::Store(store) => store.mark(),
            Self::Device(device) => device.mark(),
        }
    }

    /// The opened store or device as this type: a back end recognizes its own.
    #[must_use]
    pub fn downcast<T: Any>(&self) -> Option<&T> {
        let any: &dyn Any = match self {
            Self::Store(store) => &**store,
            Self::Device(device) => &**device,
        };
        any.downcast_ref()
    }
}

/// A store that was opened, locked and checked once, for all cores.
pub trait OpenedStore: Any + Debug + Send + Sync {
    /// The properties of the store, which all cores see.
    fn traits(&self) -> &Traits;

    /// The mark of the volume; `None` if its data ends with the process.
    fn mark(&self) -> Option<Mark>;

    /// The fingerprint of the store that is open: see [`Backend::fingerprint`].
    fn fingerprint(&self) -> Option<Fingerprint> {
        self.mark().as_ref().map(Fingerprint::of_mark)
    }

    /// Whether its I/O bypasses the page cache. Memory that is registered with the kernel makes that faster.
    fn is_direct(&self) -> bool;

    /// The store of one core.
    ///
    /// # Errors
    /// When there is no room for open files or memory.
    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>>;

    /// The connection of one core to the process that executes SCSI commands that Lunar does not have, if the store can
    /// have one.
    fn open_commands(&self, reactor: &Reactor) -> Option<Rc<dyn DeviceServer>> {
        let _ = reactor;
        None
    }

    /// The same store, locked for this process alone, or together with other processes that ask for the same.
    ///
    /// # Errors
    /// When another process has it open.
    fn with_sharing(&self, is_shared: bool) -> Result<Arc<dyn OpenedStore>, Refusal>;

    /// Declares that of all the ways in which the process has this volume open, this is the one that stays. Locks
    /// become what it says.
    fn finalize(&self);

    /// Whether the store has another size than its properties say: it is to be opened again. It never waits.
    fn has_other_size(&self) -> bool {
        false
    }

    /// Looks at the medium itself: what is wrong with it now. A thread that may wait for a disk calls it from time to
    /// time, apart from all commands. Memory has nothing to look at.
    fn examine(&self) -> Vec<StoreTrouble> {
        Vec::new()
    }

    /// The handler that serves the data, if another process does. Called as [`OpenedStore::examine`] is.
    fn handler(&self) -> Option<HandlerView> {
        None
    }

    /// The space that this store may still take, where several stores take it from one pool, such as a file system.
    /// Called as [`OpenedStore::examine`] is.
    fn pool_space(&self) -> Option<PoolSpace> {
        None
    }

    /// Opens the store of the protection information of this volume, where this kind of store keeps it.
    ///
    /// # Errors
    /// When this kind keeps none, or the store cannot be opened.
    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal>;
}

/// The space of a store in the pool that it takes space from when blocks are first written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolSpace {
    /// The number of the pool, the same for all stores in it.
    pub pool: u64,
    /// The kind of pool in a sentence: `file system`, `Ceph pool`.
    pub noun: &'static str,
    /// A path in the pool, or else its name, for the operator.
    pub place: String,
    /// The command that shows an operator the space of the pool: `df /srv`, `ceph df`.
    pub inspection: String,
    /// Free bytes of the pool.
    pub free: u64,
    /// Bytes of the pool.
    pub size: u64,
    /// Bytes that this store has.
    pub allocated: u64,
    /// Bytes that this store does not have yet, and may take.
    pub missing: u64,
}

/// A device that was opened and checked once, for all cores.
pub trait OpenedDevice: Any + Debug + Send + Sync {
    /// The mark of the device; `None` if it ends with the process.
    fn mark(&self) -> Option<Mark>;

    /// The connection of one core to the device.
    ///
    /// # Errors
    /// When the device cannot be reached, or there is no room for open files or memory.
    fn open(&self, reactor: &Reactor) -> io::Result<Rc<dyn DeviceServer>>;

    /// See [`OpenedStore::finalize`].
    fn finalize(&self);

    /// See [`OpenedStore::examine`].
    fn examine(&self) -> Vec<StoreTrouble> {
        Vec::new()
    }

    /// See [`OpenedStore::handler`].
    fn handler(&self) -> Option<HandlerView> {
        None
    }
}
