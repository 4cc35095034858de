//! A device that is served, for all cores: it may vanish and come back, perhaps under another number.

use crate::connection::Connection;
use crate::identify::{self, Found};
use crate::resolve::{self, Nodes};
use crate::timeouts::Timeouts;
use lunar_engine::backend::{Condition, Mark, OpenedDevice, StoreTrouble};
use lunar_reactor::scsi_generic::{LANE_COMMANDS, Node};
use lunar_reactor::{Reactor, log};
use lunar_scsi::device_server::{DeviceServer, FORWARDED_BYTES_MAX};
use lunar_scsi::forwarding::{DeviceFacts, Terms};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Commands of one core in progress at a device: more do not make a device faster, and each takes memory of the kernel.
const CORE_COMMANDS_MAX: usize = 4 * LANE_COMMANDS;

/// Where devices are found and opened.
pub(crate) trait Machine: Send + Sync + fmt::Debug {
    /// The nodes of the device at this path.
    fn resolve(&self, path: &Path) -> io::Result<Nodes>;
    /// The nodes of all devices with this vendor and product.
    fn alike(&self, vendor: &str, product: &str) -> Vec<Nodes>;
    /// Opens a generic node.
    fn open(&self, path: &Path) -> io::Result<Node>;
    /// Bytes of the longest transfer of an open device.
    fn transfer_bytes_max(&self, node: &Node) -> io::Result<usize>;
}

/// The machine that this process runs on.
#[derive(Debug)]
pub(crate) struct ThisMachine;

impl Machine for ThisMachine {
    fn resolve(&self, path: &Path) -> io::Result<Nodes> {
        resolve::resolve(path)
    }

    fn alike(&self, vendor: &str, product: &str) -> Vec<Nodes> {
        resolve::alike(vendor, product)
    }

    fn open(&self, path: &Path) -> io::Result<Node> {
        Node::open(path)
    }

    fn transfer_bytes_max(&self, node: &Node) -> io::Result<usize> {
        node.transfer_bytes_max()
    }
}

/// A device that was opened, on the terms of its configuration.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) shared: Arc<Shared>,
    pub(crate) terms: Terms,
}

/// The state of a device that all cores share.
#[derive(Debug)]
pub(crate) struct Shared {
    machine: Box<dyn Machine>,
    /// The configured path, which also names it in logs.
    pub(crate) path: PathBuf,
    pub(crate) found: Found,
    pub(crate) timeouts: Timeouts,
    pub(crate) facts: DeviceFacts,
    pub(crate) transfer_bytes_max: usize,
    /// Where it is now.
    nodes: Mutex<Nodes>,
    /// Programs that mount the disk or CD are refused while this is open.
    claim: Mutex<Option<File>>,
    /// Whether other programs of this machine may use it.
    is_claimed: bool,
    /// How often it has come back.
    generation: AtomicU64,
    is_away: AtomicBool,
    /// Whether all nexuses are to be told that it came back.
    has_event: AtomicBool,
    /// Whether the log says that it cannot be reset.
    is_reset_refused: AtomicBool,
}

/// How a device is opened.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) path: &'a Path,
    /// Whether programs that mount it are refused.
    pub(crate) is_claimed: bool,
}

/// Why a device cannot be opened.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// The path leads to no SCSI device.
    NoDevice(io::Error),
    /// Its generic node cannot be opened.
    Closed(PathBuf, io::Error),
    /// The disk or CD is in use, for example mounted.
    InUse(PathBuf),
    /// It does not answer.
    Silent(io::Error),
}

impl Shared {
    /// Opens a device for the first time.
    pub(crate) fn open(machine: Box<dyn Machine>, wanted: &Wanted<'_>) -> Result<Self, Unusable> {
        let nodes = machine.resolve(wanted.path).map_err(Unusable::NoDevice)?;
        let claim = match &nodes.block {
            Some(block) if wanted.is_claimed => claim(block)?,
            _ => None,
        };
        let closed = |why| Unusable::Closed(nodes.generic.clone(), why);
        let mut node = machine.open(&nodes.generic).map_err(closed)?;
        let found = identify::identify(&mut node).map_err(Unusable::Silent)?;
        identify::settle(&mut node);
        let limit = machine.transfer_bytes_max(&node).map_err(closed)?;
        Ok(Self {
            timeouts: identify::timeouts(&mut node),
            found,
            facts: DeviceFacts::default(),
            transfer_bytes_max: limit.min(FORWARDED_BYTES_MAX),
            path: wanted.path.to_owned(),
            nodes: Mutex::new(nodes),
            claim: Mutex::new(claim),
            is_claimed: wanted.is_claimed,
            machine,
            generation: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            has_event: AtomicBool::new(false),
            is_reset_refused: AtomicBool::new(false),
        })
    }

    /// Whether this device was opened at this path, for the same use of other programs.
    pub(crate) fn is_at(&self, wanted: &Wanted<'_>) -> bool {
        self.path == wanted.path && self.is_claimed == wanted.is_claimed
    }

    fn nodes(&self) -> Nodes {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Commands of one core in progress, and whether the kernel may wait for room in the host adapter nevertheless.
    pub(crate) fn depth(&self) -> (usize, bool) {
        let Nodes { queue_depth, adapter_depth, .. } = self.nodes();
        let depth = queue_depth.clamp(1, CORE_COMMANDS_MAX);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (depth, depth * cores >= adapter_depth)
    }

    /// How often the device has come back.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// A core whose connection is of this generation has noticed that the device is unavailable.
    pub(crate) fn lose(&self, generation: u64) {
        if generation == self.generation() && !self.is_away.swap(true, Ordering::AcqRel) {
            log!(
                warning,
                "the SCSI device {} is gone: commands end with NOT READY until it comes back",
                self.path.display()
            );
        }
    }

    /// Opens the device for one core: one node for each 16 commands. May wait.
    ///
    /// # Errors
    /// `NotFound` while it is unavailable; the error of the operating system.
    pub(crate) fn connect(&self) -> io::Result<(Vec<Node>, u64)> {
        let own = self.machine.resolve(&self.path).ok();
        let is_unique = self.found.name.is_some();
        // Without a name, it is only recognized at its path.
        let alike = || self.machine.alike(&self.found.vendor, &self.found.product).into_iter().filter(|_| is_unique);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for nodes in own.into_iter().chain(alike()) {
            match self.connect_to(&nodes) {
                Ok(opened) => {
                    self.take_up(nodes);
                    return Ok((opened, self.generation()));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn connect_to(&self, nodes: &Nodes) -> io::Result<Vec<Node>> {
        let mut first = self.machine.open(&nodes.generic)?;
        let found = identify::identify(&mut first)?;
        if !found.is_same(&self.found) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "another device is there"));
        }
        let mut opened = vec![first];
        for _ in 1..nodes.queue_depth.clamp(1, CORE_COMMANDS_MAX).div_ceil(LANE_COMMANDS) {
            opened.push(self.machine.open(&nodes.generic)?);
        }
        Ok(opened)
    }

    /// The device is at these nodes now.
    fn take_up(&self, nodes: Nodes) {
        if self.is_away.swap(false, Ordering::AcqRel) {
            self.generation.fetch_add(1, Ordering::AcqRel);
            self.has_event.store(true, Ordering::Release);
            log!("the SCSI device {} is back as {}", self.path.display(), nodes.generic.display());
            let mut held = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(block) = nodes.block.as_ref().filter(|_| self.is_claimed) {
                // A program that has mounted it meanwhile keeps it: initiators are served all the same.
                *held = claim(block).ok().flatten();
            }
        }
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// Whether all nexuses are to be told that the device came back; true once.
    pub(crate) fn take_event(&self) -> bool {
        self.has_event.load(Ordering::Acquire) && self.has_event.swap(false, Ordering::AcqRel)
    }

    /// Resets the logical unit, and takes the unit attention condition that follows. Waits for it.
    ///
    /// # Errors
    /// When the host adapter cannot reset it.
    pub(crate) fn reset(&self) -> io::Result<()> {
        let mut node = match self.machine.open(&self.nodes().generic) {
            Ok(node) => node,
            // Commands of an unavailable device have ended.
            Err(_) if self.is_away.load(Ordering::Acquire) => return Ok(()),
            Err(error) => return Err(error),
        };
        match node.reset() {
            Ok(()) => {
                identify::settle(&mut node);
                Ok(())
            }
            // Without the permission, commands end by themselves or by their time-outs, which the caller waits for.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                if !self.is_reset_refused.swap(true, Ordering::Relaxed) {
                    log!(
                        warning,
                        "the SCSI device {} cannot be reset without the capabilities CAP_SYS_ADMIN and \
                         CAP_SYS_RAWIO: a reset by an initiator waits for the commands in progress instead",
                        self.path.display()
                    );
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Opens a disk or CD drive in such a way that it cannot be mounted. `None` if this user may not open it.
fn claim(block: &Path) -> Result<Option<File>, Unusable> {
    let flags = rustix::fs::OFlags::EXCL | rustix::fs::OFlags::NONBLOCK;
    let opened = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(block);
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(Unusable::InUse(block.to_owned())),
        // A drive without a medium, or no permission: then nothing is claimed.
        Err(_) => Ok(None),
    }
}

impl OpenedDevice for Device {
    fn mark(&self) -> Option<Mark> {
        let Shared { found, path, .. } = &*self.shared;
        Some(match &found.name {
            Some(name) => Mark::Global { space: "scsi", name: name.clone() },
            None => Mark::Local { space: "scsi place", parts: vec![path.display().to_string()] },
        })
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Rc<dyn DeviceServer>> {
        let connection: Rc<dyn DeviceServer> = Connection::open(reactor, self)?;
        Ok(connection)
    }

    fn finalize(&self) {}

    fn examine(&self) -> Vec<StoreTrouble> {
        if !self.shared.is_away.load(Ordering::Acquire) {
            return Vec::new();
        }
        vec![StoreTrouble {
            condition: Condition::Gone,
            words: format!("the SCSI device {} is gone", self.shared.path.display()),
            remedy: "connect it again: it is served as soon as the kernel finds it (`lsscsi -g`)".to_owned(),
        }]
    }
}
