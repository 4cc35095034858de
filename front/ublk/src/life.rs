//! The control commands that make, recover, resize and remove a device, in their order, and what their failures mean.
//!
//! A device that outlives a killed process is found again by a number that the kernel keeps for it: a digest of its
//! name in the configuration and of its volume. A device of the same name with another volume is never taken over:
//! requests that wait in it are for the other volume.

use crate::params::TRANSFER_BYTES;
use crate::wire::{ANY_NUMBER, Control, ControlCommand, DeviceInfo, Params, State, attribute, disk_at, feature};
use lunar_core::io::Fault;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Numbers among which a device that was left behind is searched: the kernel gives the lowest free one, and no machine
/// has more such disks.
const SEARCHED: u32 = 256;
/// How often, and for how long in all, a device is asked whether the process that served it is gone.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 500;
/// How long the kernel waits for requests in progress when a device is left to the next process.
const QUIESCE_MS: u64 = 5000;
/// The features that a device gets when its volume survives the process.
const RECOVERY: u64 = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;

/// The kernel, as far as control commands reach it.
pub trait Kernel {
    /// Gives it a command whose memory it reads and fills; returns its result.
    fn call(&self, command: ControlCommand, memory: &mut [u8]) -> impl Future<Output = Result<u32, Fault>>;

    /// Waits.
    fn pause(&self, time: Duration) -> impl Future<Output = ()>;
}

/// The request for a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskRequest {
    /// Its name in the configuration.
    pub name: String,
    /// The digests by which it is found again.
    pub key: Key,
    /// Its number; `None`: any.
    pub number: Option<u32>,
    /// Queues at most.
    pub queues: u16,
    /// Tags of each queue.
    pub depth: u16,
    /// Whether it survives this process: its volume does.
    pub survives: bool,
}

/// The number that the kernel keeps for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key(u64);

/// FNV-1a: a digest that is the same in every version of Lunar.
fn digest(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |digest, byte| (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl Key {
    /// The key of a device of this name with this volume.
    #[must_use]
    pub fn of(name: &str, volume: &str) -> Self {
        Self(u64::from(digest(&format!("lunar ublk {name}"))) << 32 | u64::from(digest(volume)))
    }

    fn is_same_name(self, private: u64) -> bool {
        self.0 >> 32 == private >> 32
    }
}

/// A device that this process may serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Its number.
    pub number: u32,
    /// Its queues.
    pub queues: u16,
    /// The most bytes of a request.
    pub buffer_bytes: u32,
    /// Whether it was left behind by a process before this one.
    pub is_old: bool,
    /// The features of the driver.
    pub features: u64,
}

/// A control command.
fn plain(number: Control, device: u32, data: u64) -> ControlCommand {
    ControlCommand { number, device, data }
}

/// The meaning of a failed command, in words that say what to do.
fn told(what: &str, why: Fault) -> String {
    const EPERM: i32 = 1;
    const EACCES: i32 = 13;
    const EEXIST: i32 = 17;
    match why {
        Fault::Os(EPERM | EACCES) => format!(
            "{what}: the kernel refuses it: ublk needs the capability CAP_SYS_ADMIN: run Lunar as root, or give the \
             service AmbientCapabilities=CAP_SYS_ADMIN"
        ),
        Fault::Os(EEXIST) => format!("{what}: another ublk device has this number: choose another one"),
        Fault::Unsupported => format!("{what}: this kernel does not support it: Linux 6.5 or newer is needed"),
        why => format!("{what}: {why:?}"),
    }
}

/// The features of the driver.
///
/// # Errors
/// Why ublk cannot be used.
pub async fn features<K: Kernel>(kernel: &K) -> Result<u64, String> {
    let mut answer = [0; 8];
    match kernel.call(plain(Control::GET_FEATURES, ANY_NUMBER, 0), &mut answer).await {
        Ok(_) => Ok(u64::from_ne_bytes(answer)),
        Err(why) => Err(told("ublk", why)),
    }
}

/// The description of a device by the kernel; `None`: there is none of this number.
async fn info<K: Kernel>(kernel: &K, number: u32) -> Option<DeviceInfo> {
    let mut info = DeviceInfo::default();
    kernel.call(plain(Control::GET_DEV_INFO, number, 0), info.as_mut_bytes()).await.ok().map(|_| info)
}

/// Finds the device that a process before this one has left, or makes one.
///
/// # Errors
/// Why there cannot be such a device.
pub async fn claim<K: Kernel>(kernel: &K, request: &DiskRequest) -> Result<Claim, String> {
    let features = features(kernel).await?;
    for number in 0..SEARCHED {
        let Some(found) = info(kernel, number).await.filter(|found| request.key.is_same_name(found.private)) else {
            continue;
        };
        match take_over(kernel, request, found).await? {
            true => return Ok(claimed(found, true, features)),
            false => break,
        }
    }
    let recovery = if request.survives { RECOVERY } else { 0 };
    let mut info = DeviceInfo {
        queues: request.queues,
        depth: request.depth,
        buffer_bytes: TRANSFER_BYTES,
        number: request.number.unwrap_or(ANY_NUMBER),
        flags: (recovery | feature::CMD_IOCTL_ENCODE) & (features | feature::CMD_IOCTL_ENCODE),
        private: request.key.0,
        ..DeviceInfo::default()
    };
    let add = plain(Control::ADD_DEV, info.number, 0);
    match kernel.call(add, info.as_mut_bytes()).await {
        Ok(_) => Ok(claimed(info, false, features)),
        Err(why) => Err(told(&format!("ublk {}: making its disk", request.name), why)),
    }
}

fn claimed(info: DeviceInfo, is_old: bool, features: u64) -> Claim {
    let DeviceInfo { number, queues, buffer_bytes, .. } = info;
    Claim { number, queues, buffer_bytes, is_old, features }
}

/// Takes over a device that was found; `false`: it is removed, because it is dead.
async fn take_over<K: Kernel>(kernel: &K, request: &DiskRequest, found: DeviceInfo) -> Result<bool, String> {
    let (name, disk, pid) = (&request.name, disk_at(found.number), found.pid);
    let mut state = State(found.state);
    // A process that was killed a moment ago may still be ending.
    for _ in 0..LOOKS {
        if state != State::LIVE {
            break;
        }
        kernel.pause(LOOK).await;
        state = info(kernel, found.number).await.map_or(State::DEAD, |found| State(found.state));
    }
    if state == State::LIVE {
        return Err(format!(
            "ublk {name}: {disk} is served by another process ({pid}): end it, or choose another name"
        ));
    }
    if state == State::DEAD {
        // Without requests: nothing waits in it.
        let _ = remove(kernel, found.number, false).await;
        return Ok(false);
    }
    if found.private != request.key.0 {
        return Err(format!(
            "ublk {name}: {disk} was left by another process, and its requests wait for another volume: serve that \
             volume under this name once more, or choose another name"
        ));
    }
    if request.number.is_some_and(|wanted| wanted != found.number) {
        return Err(format!(
            "ublk {name}: a process before this one has left it as {disk}: choose that number, or none"
        ));
    }
    let recover = plain(Control::START_USER_RECOVERY, found.number, 0);
    let mut last = Fault::Timeout;
    for _ in 0..LOOKS {
        match kernel.call(recover, &mut []).await {
            Ok(_) => return Ok(true),
            Err(why) => last = why,
        }
        kernel.pause(LOOK).await;
    }
    Err(told(&format!("ublk {name}: recovering {disk}"), last))
}

/// The parameters of a device that are in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InForce {
    /// Whether its size is another one than that of the volume.
    pub resizes: bool,
    /// Whether the kernel flushes. A kernel that does not expects every acknowledged write on the medium.
    pub has_volatile_cache: bool,
}

/// Sets the parameters of a new device. Those of an old one stay: a disk that is in use keeps its blocks and its write
/// cache. Returns those in force.
///
/// # Errors
/// Why the kernel refuses them.
pub async fn set_params<K: Kernel>(kernel: &K, claim: &Claim, params: &Params) -> Result<InForce, String> {
    let disk = disk_at(claim.number);
    if !claim.is_old {
        let mut params = *params;
        let set = kernel.call(plain(Control::SET_PARAMS, claim.number, 0), params.as_mut_bytes()).await;
        let in_force =
            InForce { resizes: false, has_volatile_cache: params.attributes & attribute::VOLATILE_CACHE != 0 };
        return set.map(|_| in_force).map_err(|why| told(&format!("the parameters of {disk}"), why));
    }
    let mut old = Params { len: params.len, ..Params::default() };
    let get = kernel.call(plain(Control::GET_PARAMS, claim.number, 0), old.as_mut_bytes()).await;
    get.map_err(|why| told(&format!("the parameters of {disk}"), why))?;
    if old.logical_shift != params.logical_shift {
        return Err(format!(
            "{disk} has blocks of another size than its volume: remove whatever uses it, and the disk"
        ));
    }
    Ok(InForce {
        resizes: old.sectors != params.sectors,
        has_volatile_cache: old.attributes & attribute::VOLATILE_CACHE != 0,
    })
}

/// Starts a device: ends when every tag of every queue has asked for a request, and the kernel has looked for
/// partitions.
///
/// # Errors
/// Why the kernel does not start it.
pub async fn start<K: Kernel>(kernel: &K, claim: &Claim, pid: u32) -> Result<(), String> {
    const EINVAL: i32 = 22;
    let number = if claim.is_old { Control::END_USER_RECOVERY } else { Control::START_DEV };
    match kernel.call(plain(number, claim.number, pid.into()), &mut []).await {
        Ok(_) => Ok(()),
        Err(Fault::Os(EINVAL)) => Err(format!(
            "{}: the kernel does not start it: in a container, ublk needs the PID namespace of the host",
            disk_at(claim.number)
        )),
        Err(why) => Err(told(&disk_at(claim.number), why)),
    }
}

/// Changes the size of a device.
///
/// # Errors
/// Why it keeps its size.
pub async fn resize<K: Kernel>(kernel: &K, claim: &Claim, sectors: u64) -> Result<(), String> {
    let disk = disk_at(claim.number);
    let told = |why: &str| {
        format!("{disk} keeps its old size, for {why}: unmount it and start Lunar anew, or use Linux 6.16 or newer")
    };
    if claim.features & feature::UPDATE_SIZE == 0 {
        return Err(told("this kernel cannot change it"));
    }
    let update = kernel.call(plain(Control::UPDATE_SIZE, claim.number, sectors), &mut []).await;
    update.map(drop).map_err(|why| told(&format!("the kernel refuses ({why:?})")))
}

/// Stops a device, whose queues are served until then: its disk is gone, and every tag ends.
///
/// # Errors
/// Why the kernel does not stop it.
pub async fn stop<K: Kernel>(kernel: &K, number: u32) -> Result<(), String> {
    let stopped = kernel.call(plain(Control::STOP_DEV, number, 0), &mut []).await;
    stopped.map(drop).map_err(|why| told(&format!("stopping {}", disk_at(number)), why))
}

/// Removes a device that was stopped; the kernel does so when nothing has it open any more. `waits`: this ends no
/// earlier, on a kernel that has no other way.
///
/// # Errors
/// Why the kernel does not remove it.
pub async fn remove<K: Kernel>(kernel: &K, number: u32, waits: bool) -> Result<(), String> {
    let mut removed = kernel.call(plain(Control::DEL_DEV_ASYNC, number, 0), &mut []).await;
    if removed == Err(Fault::Unsupported) && waits {
        removed = kernel.call(plain(Control::DEL_DEV, number, 0), &mut []).await;
    }
    removed.map(drop).map_err(|why| told(&format!("removing {}", disk_at(number)), why))
}

/// Leaves a device to the next process: its tags end, and further requests wait. Without the feature nothing happens:
/// then the end of this process has the same effect, and requests in progress are issued again.
pub async fn leave<K: Kernel>(kernel: &K, claim: &Claim) {
    if claim.features & feature::QUIESCE != 0 {
        // Otherwise the end of the process has the same effect.
        let _ = kernel.call(plain(Control::QUIESCE_DEV, claim.number, QUIESCE_MS), &mut []).await;
    }
}

/// The names of features.
#[must_use]
pub fn feature_names(features: u64) -> Vec<&'static str> {
    let has = |(bit, name): (usize, &'static str)| (features >> bit & 1 == 1).then_some(name);
    feature::NAMES.into_iter().enumerate().filter_map(has).collect()
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
