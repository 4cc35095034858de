//! Why a disk cannot be made, served or ended, with messages that say what to do.
//!
//! * [`DeviceError`]: the kernel or the state of a device, at a control command
//! * [`ServeError`]: a core, which gives the commands and serves the queues
//! * [`DiskError`]: a disk of the configuration

use crate::life::feature_names;
use crate::user::DiskUser;
use crate::wire::disk_at;
use lunar_core::io::Fault;
use std::fmt;
use std::io;
use std::sync::Arc;

pub(crate) const EPERM: i32 = 1;
pub(crate) const EACCES: i32 = 13;
pub(crate) const EBUSY: i32 = 16;
pub(crate) const EEXIST: i32 = 17;

/// A step in the life of a device, with its number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// The driver is asked for its features.
    Driver,
    /// The kernel describes a device.
    Look(u32),
    /// The disk of this name looks for its device.
    Find(String, u32),
    /// The disk of this name gets a device.
    Make(String),
    /// A device that was left is taken over.
    Recover(u32),
    /// The parameters are set or read.
    Parameters(u32),
    /// It is started.
    Start(u32),
    /// It is stopped.
    Stop(u32),
    /// It is removed.
    Remove(u32),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver => f.write_str("ublk"),
            Self::Look(number) => f.write_str(&disk_at(*number)),
            Self::Find(name, number) => write!(f, "ublk {name}: {}", disk_at(*number)),
            Self::Make(name) => write!(f, "ublk {name}: making its disk"),
            Self::Recover(number) => write!(f, "recovering {}", disk_at(*number)),
            Self::Parameters(number) => write!(f, "the parameters of {}", disk_at(*number)),
            Self::Start(number) => write!(f, "starting {}", disk_at(*number)),
            Self::Stop(number) => write!(f, "stopping {}", disk_at(*number)),
            Self::Remove(number) => write!(f, "removing {}", disk_at(*number)),
        }
    }
}

/// Why a control command does not have its effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceError {
    /// The kernel refuses a step.
    Refused(Step, Fault),
    /// A new or an old device is not one that can be served.
    Unfit(Step, Unfit),
    /// The device that a disk finds is not free; with the name of the disk and the number of the device.
    Taken(String, u32, Taken),
    /// The volume does not fit the device of this number any more.
    Changed(u32, Changed),
    /// The kernel does not start the device for this process.
    PidNamespace(u32),
    /// A device keeps its size, because the kernel cannot change it, or refuses.
    KeepsSize(u32, Option<Fault>),
    /// A device that was left stays.
    Stays(u32, Stays),
}

/// Why a device cannot be served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// The kernel does not give it these features.
    Lacks(u64),
    /// The kernel has given it these features, which change the meaning of commands.
    Has(u64),
    /// Its number would be too large: this number, and the count of numbers.
    Number(u32, u32),
    /// The kernel does not keep the UUID of its volume.
    NoUuid,
    /// The node of the device of this number does not become that of the user of this process.
    NotOwned(u32),
    /// The kernel does not describe it.
    Unknown(Box<DeviceError>),
}

/// Why the device that a disk finds is not free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// This process still ends it.
    Ending,
    /// This process serves it, if it is known.
    Served(Option<u32>),
    /// This process makes it.
    Made(u32),
    /// A program has it open.
    Open,
    /// Its requests wait for the volume of this UUID.
    OtherVolume([u8; 16]),
    /// The disk is to have another number.
    OtherNumber,
}

/// How a volume differs from its device that was left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changed {
    /// The binary logarithms of the block sizes: of the device, and of the volume.
    BlockSize(u8, u8),
    /// The sectors of the device, and of the volume, which has fewer.
    Smaller(u64, u64),
    /// The volume is read-only.
    ReadOnly,
    /// The sectors of the longest request: of the device, and of the volume.
    Requests(u32, u32),
}

/// Why a device that was left stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stays {
    /// Another process serves it.
    Served,
    /// It is used in this way.
    Used(DiskUser),
    /// A program has it open.
    Open,
}

/// A UUID as it is written.
pub(crate) fn uuid(bytes: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

fn refused(f: &mut fmt::Formatter<'_>, step: &Step, why: Fault) -> fmt::Result {
    write!(f, "{step}: ")?;
    match why {
        Fault::Os(EPERM | EACCES) => f.write_str(
            "the kernel refuses it: ublk needs the capability CAP_SYS_ADMIN: run Lunar as root, or give the service \
             AmbientCapabilities=CAP_SYS_ADMIN",
        ),
        Fault::Os(EEXIST) => f.write_str("another ublk device has this number: choose another one"),
        Fault::Os(EBUSY) => f.write_str("another process uses the device: end it, and apply again"),
        Fault::Unsupported => f.write_str("this kernel does not support it: Linux 6.5 or newer is needed"),
        Fault::NoMemory => {
            f.write_str("there is no memory: lower `depth` and `queues` of the disk, or `memory` in [server]")
        }
        Fault::Gone => f.write_str("the device was removed meanwhile: apply the configuration again"),
        why => write!(f, "the kernel refuses it ({why:?}): see its log (dmesg), and apply again"),
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lacks(features) => write!(
                f,
                "the kernel does not give it {}, and it would not outlast a kill: use Linux 6.5 or newer",
                feature_names(*features).join(", ")
            ),
            Self::Has(features) => write!(
                f,
                "the kernel has given it features that Lunar does not serve ({}): use another kernel, and report this",
                feature_names(*features).join(", ")
            ),
            Self::Number(number, most) => {
                write!(f, "its number would be {number}, and {most} are the most: remove other ublk disks")
            }
            Self::NoUuid => {
                f.write_str("this kernel does not keep the UUID of its volume: use another one, and report this")
            }
            Self::NotOwned(number) => write!(
                f,
                "/dev/ublkc{number} does not become that of this user: add the rules for udev of docs/ublk.md, or run \
                 it with the capability CAP_SYS_ADMIN; as root, `lunar ublk-server --remove {number}` removes the rest"
            ),
            Self::Unknown(why) => why.fmt(f),
        }
    }
}

fn taken(f: &mut fmt::Formatter<'_>, name: &str, number: u32, why: &Taken) -> fmt::Result {
    let disk = disk_at(number);
    write!(f, "ublk {name}: ")?;
    match why {
        Taken::Ending => {
            write!(f, "{disk} is still ending, because its volume does not answer: apply again later")
        }
        Taken::Served(server) => {
            let server = server.map_or_else(|| "unknown".to_owned(), |server| server.to_string());
            write!(f, "{disk} is served by another process ({server}): end it, or choose another name")
        }
        Taken::Made(server) => {
            write!(f, "{disk} is being made by another process ({server}): end it, or choose another name")
        }
        Taken::Open => write!(
            f,
            "{disk} has stopped, but a program still has it open: close it (lsof {disk} shows which), and apply again"
        ),
        Taken::OtherVolume(volume) => write!(
            f,
            "{disk} was left by another process, and its requests wait for another volume ({}): serve that volume \
             under this name once more, or choose another name",
            uuid(*volume)
        ),
        Taken::OtherNumber => {
            write!(f, "a process before this one has left it as {disk}: choose that number, or none")
        }
    }
}

fn changed(f: &mut fmt::Formatter<'_>, disk: &str, how: &Changed) -> fmt::Result {
    match *how {
        Changed::BlockSize(old, new) => write!(
            f,
            "{disk} has blocks of {} bytes and its volume now has blocks of {}: serve the volume with its old block \
             size",
            1_u64 << old.min(63),
            1_u64 << new.min(63)
        ),
        Changed::Smaller(old, new) => write!(
            f,
            "{disk} has {old} sectors of 512 bytes and its volume now has only {new}: requests that wait may be for \
             the part that is missing: give the volume its old size again"
        ),
        Changed::ReadOnly => {
            write!(f, "{disk} is writable and its volume is now read-only: let it be writable once more")
        }
        Changed::Requests(old, new) => write!(
            f,
            "{disk} has requests of up to {old} sectors and its volume now takes only {new}: serve the volume with \
             its old limits"
        ),
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(step, why) => refused(f, step, *why),
            Self::Unfit(step, why) => write!(f, "{step}: {why}"),
            Self::Taken(name, number, why) => taken(f, name, *number, why),
            Self::Changed(number, how) => changed(f, &disk_at(*number), how),
            Self::PidNamespace(number) => write!(
                f,
                "{}: the kernel does not start it: in a container, ublk needs the PID namespace of the host",
                disk_at(*number)
            ),
            Self::KeepsSize(number, why) => {
                write!(f, "{} keeps its old size, for ", disk_at(*number))?;
                match why {
                    None => f.write_str("this kernel cannot change it")?,
                    Some(why) => write!(f, "the kernel refuses ({why:?})")?,
                }
                f.write_str(": unmount it and start Lunar anew, or use Linux 6.16 or newer")
            }
            Self::Stays(number, why) => {
                let disk = disk_at(*number);
                match why {
                    Stays::Served => write!(f, "{disk} is not left any more: another process serves it"),
                    Stays::Used(user) => write!(
                        f,
                        "{disk} stays, because {user}: serve its volume under the old name once more, and run: {}",
                        user.remedy()
                    ),
                    Stays::Open => {
                        write!(f, "{disk} stays, because a program has it open (lsof {disk} shows which): close it")
                    }
                }
            }
        }
    }
}

impl std::error::Error for DeviceError {}

/// The kernel refuses the commands of a queue, which is not served any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueBroken {
    /// The name of the disk.
    pub name: String,
    /// The number of the queue.
    pub queue: u16,
    /// Why.
    pub why: Fault,
}

impl fmt::Display for QueueBroken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, queue, why } = self;
        write!(
            f,
            "ublk {name}: queue {queue} is not served any more, because the kernel refuses its commands ({why:?}): \
             programs that use the disk wait until Lunar is restarted, which takes the disk over again"
        )
    }
}

impl std::error::Error for QueueBroken {}

/// Why a core does not do its part.
#[derive(Debug)]
pub enum ServeError {
    /// A control command does not have its effect.
    Device(DeviceError),
    /// The control device cannot be opened.
    NoControl(io::Error),
    /// The same, and this process began without a section of a disk.
    NoSandbox {
        /// The section that a start needs.
        section: String,
        /// Why.
        why: io::Error,
    },
    /// The character device of a device cannot be opened.
    NoDevice(io::Error),
    /// The volume is not served.
    NotServed,
    /// There is no memory for a queue.
    Memory {
        /// The queue.
        queue: u16,
        /// Its tags.
        depth: u16,
        /// The most bytes of a request.
        buffer_bytes: u32,
        /// Why.
        why: io::Error,
    },
    /// A queue cannot be opened: its number, and that of the device.
    Attach(u16, u32, io::Error),
    /// A queue is not served any more.
    Broken(QueueBroken),
    /// The device of this number does not start within so many seconds.
    StartsLate(u32, u64),
    /// The device of this number does not end within so many seconds.
    EndsLate(u32, u64),
    /// The device of this number is not removed in time.
    RemovedLate(u32),
    /// Another device has this number now.
    OtherDevice(u32),
    /// A core has ended.
    CoreEnded,
}

fn no_control(f: &mut fmt::Formatter<'_>, why: &io::Error) -> fmt::Result {
    match why.kind() {
        io::ErrorKind::NotFound => f.write_str(
            "this kernel has no ublk, or its module is not loaded: modprobe ublk_drv (Linux 6.5 or newer; as a \
             service, put ublk_drv into /etc/modules-load.d/lunar.conf)",
        ),
        io::ErrorKind::PermissionDenied => f.write_str(
            "/dev/ublk-control may not be opened: run Lunar as root, or give the service \
             AmbientCapabilities=CAP_SYS_ADMIN and CAP_DAC_OVERRIDE; `lunar ublk-server` needs neither with the rules \
             for udev of docs/ublk.md",
        ),
        io::ErrorKind::Unsupported => write!(
            f,
            "{why}: ublk needs io_uring: choose the driver io_uring, or none, and set kernel.io_uring_disabled=0"
        ),
        _ => write!(f, "ublk: {why}"),
    }
}

fn no_device(f: &mut fmt::Formatter<'_>, why: &io::Error) -> fmt::Result {
    let advice = match why.kind() {
        io::ErrorKind::PermissionDenied => {
            "run Lunar as root, or give the service CAP_DAC_OVERRIDE and DeviceAllow=char-ublk-char rw; restart Lunar \
             if it was started without a ublk section, because its sandbox does not include /dev then"
        }
        io::ErrorKind::NotFound => "the folder /dev has to be a devtmpfs, in which the kernel makes devices",
        io::ErrorKind::ResourceBusy => "another process has it open: end it, and apply again",
        io::ErrorKind::InvalidInput => {
            "a process was killed while it took the disk over, and this kernel (older than 6.15) cannot repeat that: \
             restart the machine, or remove the section, and the disk with the requests that wait"
        }
        io::ErrorKind::OutOfMemory => "lower `depth` and `queues` of the disk, or `memory` in [server]",
        _ => "apply the configuration again",
    };
    write!(f, "{why}: {advice}")
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(why) => why.fmt(f),
            Self::NoControl(why) => no_control(f, why),
            Self::NoSandbox { section, why } => write!(
                f,
                "Lunar was started without a section [ublk.NAME], and its sandbox does not include the devices of ublk \
                 then ({why}): write the section into the configuration file ({section}), and restart Lunar \
                 (systemctl restart lunar); further disks need no restart. If the start is refused: it has to run as \
                 root, or the service needs AmbientCapabilities=CAP_SYS_ADMIN and CAP_DAC_OVERRIDE"
            ),
            Self::NoDevice(why) => no_device(f, why),
            Self::NotServed => f.write_str("its volume is not served"),
            Self::Memory { queue, depth, buffer_bytes, why } => write!(
                f,
                "queue {queue} needs memory for {depth} requests of {} KiB ({why}): lower `depth` or `queues`",
                buffer_bytes >> 10
            ),
            Self::Attach(queue, device, why) => {
                write!(f, "queue {queue} of {}: {why}: apply the configuration again", disk_at(*device))
            }
            Self::Broken(why) => why.fmt(f),
            Self::StartsLate(device, seconds) => write!(
                f,
                "{} does not start within {seconds} s, because its volume does not answer: apply again later",
                disk_at(*device)
            ),
            Self::EndsLate(device, seconds) => write!(
                f,
                "{} does not end within {seconds} s, because its volume does not answer: it is removed as soon as that \
                 is possible. If Lunar ends before, the next start with the same name and volume serves it again",
                disk_at(*device)
            ),
            Self::RemovedLate(device) => write!(f, "{} is being removed: this takes long", disk_at(*device)),
            Self::OtherDevice(device) => write!(f, "{} is another device now: apply again", disk_at(*device)),
            Self::CoreEnded => f.write_str("a core has ended: see the log, restart Lunar, and report this"),
        }
    }
}

impl std::error::Error for ServeError {}

impl From<DeviceError> for ServeError {
    fn from(why: DeviceError) -> Self {
        Self::Device(why)
    }
}

/// Why a disk of the configuration is not served, or not ended. Several places report it.
#[derive(Clone, Debug)]
pub enum DiskError {
    /// Its device cannot be had.
    Claim(Arc<ServeError>),
    /// The disk of this name cannot be served, or does not end.
    Serve(String, Arc<ServeError>),
    /// The takeover of the disk of this name has begun with other settings.
    OtherSettings(String),
    /// The host group shows the disk of this name no volume that is available.
    NoVolume(String),
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(why) => why.fmt(f),
            Self::Serve(name, why) => write!(f, "ublk {name}: {why}"),
            Self::OtherSettings(name) => write!(
                f,
                "ublk {name}: its takeover has begun with other settings: restart Lunar, or give it the old ones"
            ),
            Self::NoVolume(name) => write!(
                f,
                "ublk {name}: there is no disk: its host group shows it no such volume, or the volume is not \
                 available: `lunar status` tells"
            ),
        }
    }
}

impl std::error::Error for DiskError {}
