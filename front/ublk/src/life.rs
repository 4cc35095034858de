//! The control commands that make, recover, resize and remove a device, in their order, and what their failures mean.
//!
//! A device that outlives a killed process is found again by what the kernel keeps for it: a digest of its name in the
//! configuration, and the UUID of its volume. A device of the same name with another volume is never taken over:
//! requests that wait in it are for the other volume.
//!
//! Taking over: [`claim`] finds the device and changes nothing. [`set_params`] compares it with its volume. Memory is
//! taken. [`recover`] is the first command that changes the device, and it may be repeated. Then its queues are opened,
//! and their tags ask for requests; [`start`] is the last step, and it may be repeated, too.

use crate::error::{Changed, DeviceError, EACCES, EBUSY, EPERM, Stays, Step, Taken, Unfit, uuid};
use crate::params::TRANSFER_BYTES;
use crate::user::DiskUser;
use crate::wire::{ANY_NUMBER, Control, ControlCommand, DeviceInfo, Params, State, attribute, disk_at, feature};
use lunar_core::digest::fnv_64;
use lunar_core::io::Fault;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Numbers of devices among which one that was left behind is searched: the kernel gives the lowest free one. A device
/// with a higher number is not made, because it would not be found again.
const SEARCHED: u32 = 256;
/// How often, and for how long in all, a device is asked whether the process that served it is gone.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 500;
/// The same for a device that never started or has stopped: a process makes or removes it in a moment.
const LOOKS_DEAD: u32 = 100;
/// The same for a device that is removed, until its number is free.
const LOOKS_REMOVED: u32 = 50;
/// How long the kernel waits for a tag without a request in each queue when a device is quiesced; the command is then
/// repeated.
const QUIESCE_MS: u64 = 1000;
/// The features that a device gets when its volume survives the process.
const RECOVERY: u64 = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
/// Features that are used where the kernel has them.
const WELCOME: u64 = feature::UPDATE_SIZE | feature::QUIESCE;
/// All features that a disk may use, where the kernel has them.
pub const USED: u64 = RECOVERY | WELCOME | feature::CMD_IOCTL_ENCODE;
/// Features under which commands and data mean something else than here, or the kernel treats the process in another
/// way.
const UNFIT: u64 = feature::SUPPORT_ZERO_COPY
    | feature::NEED_GET_DATA
    | feature::UNPRIVILEGED_DEV
    | feature::USER_COPY
    | feature::ZONED
    | feature::USER_RECOVERY_FAIL_IO
    | feature::AUTO_BUF_REG
    | feature::BATCH_IO
    | feature::INTEGRITY;

const ENOENT: i32 = 2;
const EINVAL: i32 = 22;

/// The rights of the process, as far as they change the life of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// It has CAP_SYS_ADMIN.
    Privileged,
    /// It is that of an ordinary user, who must own the nodes of its devices. Such a device ends with its process, and
    /// the kernel kills a process that has not answered a request for 30 seconds.
    Unprivileged,
}

/// The kernel, as far as control commands reach it.
pub trait Kernel {
    /// The rights of this process.
    fn rights(&self) -> Rights;

    /// Gives it a command whose memory it reads and fills; returns its result.
    fn call(&self, command: ControlCommand, memory: &mut [u8]) -> impl Future<Output = Result<u32, Fault>>;

    /// Waits.
    fn pause(&self, time: Duration) -> impl Future<Output = ()>;

    /// Whether a process of this number exists.
    fn lives(&self, pid: u32) -> bool;

    /// The user of a disk: a mounted file system, a disk on top of it; `None`: nothing that is known.
    fn user_of(&self, number: u32) -> Option<DiskUser>;
}

/// The request for a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskRequest {
    /// Its name in the configuration.
    pub name: String,
    /// The marks by which it is found again.
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

/// The marks of a device, which the kernel only keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    private: u64,
    volume: [u8; 16],
}

/// The first 16 bits of the number that the kernel keeps for a device of Lunar: "LU".
const OURS: u64 = 0x4c55 << 48;
const NAME: u64 = (1 << 48) - 1;

impl Key {
    /// The key of a device of this name with the volume of this UUID.
    #[must_use]
    pub fn of(name: &str, volume: [u8; 16]) -> Self {
        let digest = fnv_64(name);
        Self { private: OURS | (digest ^ digest >> 48) & NAME, volume }
    }

    fn is_same_name(&self, found: &DeviceInfo) -> bool {
        self.private == found.private
    }
}

/// A device that this process may serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Its number.
    pub number: u32,
    /// Its queues.
    pub queues: u16,
    /// Tags of each.
    pub depth: u16,
    /// The most bytes of a request.
    pub buffer_bytes: u32,
    /// Whether it was left behind by a process before this one.
    pub is_old: bool,
    /// The features of the driver.
    pub features: u64,
    /// Its own features.
    pub flags: u64,
}

impl Claim {
    /// Whether the kernel can be told to keep further requests.
    #[must_use]
    pub fn quiesces(&self) -> bool {
        self.flags & feature::QUIESCE != 0
    }
}

/// A control command.
fn plain(number: Control, device: u32, data: u64) -> ControlCommand {
    ControlCommand { number, device, data }
}

/// The features of the driver.
///
/// # Errors
/// Why ublk cannot be used.
pub async fn features<K: Kernel>(kernel: &K) -> Result<u64, DeviceError> {
    let mut answer = [0; 8];
    match kernel.call(plain(Control::GET_FEATURES, ANY_NUMBER, 0), &mut answer).await {
        Ok(_) => Ok(u64::from_ne_bytes(answer)),
        Err(why) => Err(DeviceError::Refused(Step::Driver, why)),
    }
}

/// The description of a device by the kernel; `None`: there is none of this number, or one that is not Lunar's.
async fn info<K: Kernel>(kernel: &K, number: u32) -> Result<Option<DeviceInfo>, DeviceError> {
    let mut info = DeviceInfo::default();
    let is_privileged = kernel.rights() == Rights::Privileged;
    let ask = if is_privileged { Control::GET_DEV_INFO } else { Control::GET_DEV_INFO2 };
    match kernel.call(plain(ask, number, 0), info.as_mut_bytes()).await {
        Ok(_) => Ok(Some(info)),
        // The node of the device belongs to another user, or does not exist yet.
        Err(Fault::Os(EPERM | EACCES | ENOENT)) if !is_privileged => Ok(None),
        // EINVAL: an unprivileged device; the kernel describes it only to callers that give its path (GET_DEV_INFO2).
        Err(Fault::Gone | Fault::Os(EINVAL)) => Ok(None),
        Err(why) => Err(DeviceError::Refused(Step::Look(number), why)),
    }
}

/// Finds the device that a process before this one has left, or makes one. One that was left is not changed before
/// [`recover`]. `pid` is this process.
///
/// # Errors
/// Why there cannot be such a device.
pub async fn claim<K: Kernel>(kernel: &K, request: &DiskRequest, pid: u32) -> Result<Claim, DeviceError> {
    let features = features(kernel).await?;
    for number in 0..SEARCHED {
        let found = info(kernel, number).await?;
        if found.is_some_and(|found| request.key.is_same_name(&found))
            && let Some(old) = settle(kernel, request, number, pid).await?
        {
            check_old(request, &old)?;
            return Ok(claimed(&old, true, features));
        }
    }
    make(kernel, request, features, pid).await
}

fn claimed(info: &DeviceInfo, is_old: bool, features: u64) -> Claim {
    let DeviceInfo { number, queues, depth, buffer_bytes, flags, .. } = *info;
    Claim { number, queues, depth, buffer_bytes, is_old, features, flags }
}

/// Waits until no other process works on a device of the same name; `None`: it is gone, because it had no requests.
async fn settle<K: Kernel>(
    kernel: &K,
    request: &DiskRequest,
    number: u32,
    pid: u32,
) -> Result<Option<DeviceInfo>, DeviceError> {
    let taken = |why| Err(DeviceError::Taken(request.name.clone(), number, why));
    for look in 0..LOOKS {
        let Some(found) = info(kernel, number).await?.filter(|found| request.key.is_same_name(found)) else {
            return Ok(None);
        };
        let server = u32::try_from(found.pid).ok().filter(|server| *server > 0);
        match State(found.state) {
            State::LIVE if server == Some(pid) => {
                return taken(Taken::Ending);
            }
            // A process that was killed a moment ago may still be ending.
            State::LIVE if look + 1 == LOOKS => {
                return taken(Taken::Served(server));
            }
            State::LIVE => {}
            // It never started or has stopped, so nothing waits in it. A process that makes or removes it is quick.
            State::DEAD if server == Some(pid) || look >= LOOKS_DEAD => {
                if let Some(server) = server.filter(|server| *server != pid && kernel.lives(*server)) {
                    return taken(Taken::Made(server));
                }
                // The kernel has one way to remove an unprivileged one, which waits.
                return match remove(kernel, number, kernel.rights() == Rights::Unprivileged).await? {
                    Removal::Done => Ok(None),
                    Removal::Held => taken(Taken::Open),
                };
            }
            State::DEAD => {}
            _ => return Ok(Some(found)),
        }
        kernel.pause(LOOK).await;
    }
    Err(DeviceError::Refused(Step::Find(request.name.clone(), number), Fault::Os(EBUSY)))
}

/// Whether a device that was left is the requested one.
fn check_old(request: &DiskRequest, found: &DeviceInfo) -> Result<(), DeviceError> {
    let (name, number) = (request.name.clone(), found.number);
    if found.volume != request.key.volume {
        return Err(DeviceError::Taken(name, number, Taken::OtherVolume(found.volume)));
    }
    if request.number.is_some_and(|wanted| wanted != found.number) {
        return Err(DeviceError::Taken(name, number, Taken::OtherNumber));
    }
    check_flags(RECOVERY, found.flags).map_err(|why| DeviceError::Unfit(Step::Find(name, number), why))
}

/// Compares the features of a device with those that it must have. Further ones that change nothing are accepted: newer
/// kernels set some by themselves.
fn check_flags(needed: u64, given: u64) -> Result<(), Unfit> {
    match (needed & !given, given & UNFIT & !needed) {
        (0, 0) => Ok(()),
        (0, unfit) => Err(Unfit::Has(unfit)),
        (missing, _) => Err(Unfit::Lacks(missing)),
    }
}

/// The description of a new device. The node of an unprivileged one belongs to root, until the service of nodes (udev)
/// gives it to its user.
async fn info_of_new<K: Kernel>(kernel: &K, number: u32) -> Result<Option<DeviceInfo>, DeviceError> {
    for _ in 1..LOOKS {
        let found = info(kernel, number).await?;
        if found.is_some() || kernel.rights() == Rights::Privileged {
            return Ok(found);
        }
        kernel.pause(LOOK).await;
    }
    info(kernel, number).await
}

/// Makes a device.
async fn make<K: Kernel>(kernel: &K, request: &DiskRequest, features: u64, pid: u32) -> Result<Claim, DeviceError> {
    let is_privileged = kernel.rights() == Rights::Privileged;
    let survives = request.survives && is_privileged;
    let recovery = if survives { RECOVERY } else { 0 };
    // The kernel quiesces only what can be recovered.
    let welcome = WELCOME & features & if survives { u64::MAX } else { !feature::QUIESCE };
    let rights = if is_privileged { 0 } else { feature::UNPRIVILEGED_DEV };
    let mut info = DeviceInfo {
        queues: request.queues,
        depth: request.depth,
        buffer_bytes: TRANSFER_BYTES,
        number: request.number.unwrap_or(ANY_NUMBER),
        pid: i32::try_from(pid).unwrap_or(0),
        flags: recovery | welcome | rights | feature::CMD_IOCTL_ENCODE,
        private: request.key.private,
        volume: request.key.volume,
        ..DeviceInfo::default()
    };
    let step = Step::Make(request.name.clone());
    let add = plain(Control::ADD_DEV, info.number, 0);
    kernel.call(add, info.as_mut_bytes()).await.map_err(|why| DeviceError::Refused(step.clone(), why))?;
    let kept = info_of_new(kernel, info.number).await;
    let fits = match kept {
        _ if info.number >= SEARCHED => Err(Unfit::Number(info.number, SEARCHED)),
        Ok(Some(kept)) if (kept.private, kept.volume) == (request.key.private, request.key.volume) => {
            check_flags(recovery | rights, kept.flags).map(|()| kept)
        }
        Ok(None) if !is_privileged => Err(Unfit::NotOwned(info.number)),
        Ok(_) => Err(Unfit::NoUuid),
        Err(why) => Err(Unfit::Unknown(Box::new(why))),
    };
    match fits {
        Ok(kept) => Ok(claimed(&kept, false, features)),
        Err(why) => {
            // It has never started, and is removed at once.
            let _ = remove(kernel, info.number, false).await;
            Err(DeviceError::Unfit(step, why))
        }
    }
}

/// Begins to take over a device that was left.
///
/// # Errors
/// Why the kernel does not give it.
pub async fn recover<K: Kernel>(kernel: &K, claim: &Claim) -> Result<(), DeviceError> {
    let refused = |why| Err(DeviceError::Refused(Step::Recover(claim.number), why));
    let recover = plain(Control::START_USER_RECOVERY, claim.number, 0);
    let mut last = Fault::Timeout;
    for _ in 0..LOOKS {
        match kernel.call(recover, &mut []).await {
            Ok(_) => return Ok(()),
            Err(why @ Fault::Os(EINVAL)) => {
                // Kernels before 6.15 refuse it after a recovery that began and did not come to its queues: then the
                // device is where the command would have led it.
                let found = info(kernel, claim.number).await?;
                let has_begun = found
                    .is_some_and(|found| found.state == State::QUIESCED.0 && found.flags & feature::USER_RECOVERY != 0);
                return if has_begun { Ok(()) } else { refused(why) };
            }
            // The files of the process that served it are not closed yet.
            Err(why @ Fault::Os(EBUSY)) => last = why,
            Err(why) => return refused(why),
        }
        kernel.pause(LOOK).await;
    }
    refused(last)
}

/// The parameters of a device that are in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InForce {
    /// Its size, which may be another one than that of the volume.
    pub sectors: u64,
    /// Whether the kernel flushes. A kernel that does not expects every acknowledged write on the medium.
    pub has_volatile_cache: bool,
}

/// Sets the parameters of a new device. Those of an old one stay: a disk that is in use keeps its blocks and its write
/// cache. Returns those in force.
///
/// # Errors
/// Why the kernel refuses them, or the volume does not fit the device any more.
pub async fn set_params<K: Kernel>(kernel: &K, claim: &Claim, params: &Params) -> Result<InForce, DeviceError> {
    let refused = |why| DeviceError::Refused(Step::Parameters(claim.number), why);
    let changed = |how| Err(DeviceError::Changed(claim.number, how));
    if !claim.is_old {
        let mut params = *params;
        let set = kernel.call(plain(Control::SET_PARAMS, claim.number, 0), params.as_mut_bytes()).await;
        set.map_err(refused)?;
        return Ok(in_force(&params));
    }
    let mut old = Params { len: params.len, ..Params::default() };
    let get = kernel.call(plain(Control::GET_PARAMS, claim.number, 0), old.as_mut_bytes()).await;
    get.map_err(refused)?;
    if old.logical_shift != params.logical_shift {
        return changed(Changed::BlockSize(old.logical_shift, params.logical_shift));
    }
    if old.sectors > params.sectors {
        return changed(Changed::Smaller(old.sectors, params.sectors));
    }
    if params.attributes & !old.attributes & attribute::READ_ONLY != 0 {
        return changed(Changed::ReadOnly);
    }
    // The kernel keeps the limits of the device, and would give requests that fail.
    if old.sectors_max > params.sectors_max {
        return changed(Changed::Requests(old.sectors_max, params.sectors_max));
    }
    Ok(in_force(&old))
}

fn in_force(params: &Params) -> InForce {
    InForce { sectors: params.sectors, has_volatile_cache: params.attributes & attribute::VOLATILE_CACHE != 0 }
}

/// Starts a device: ends when every tag of every queue has asked for a request, and the kernel has looked for
/// partitions.
///
/// # Errors
/// Why the kernel does not start it.
pub async fn start<K: Kernel>(kernel: &K, claim: &Claim, pid: u32) -> Result<(), DeviceError> {
    let number = if claim.is_old { Control::END_USER_RECOVERY } else { Control::START_DEV };
    match kernel.call(plain(number, claim.number, pid.into()), &mut []).await {
        Ok(_) => Ok(()),
        Err(Fault::Os(EINVAL)) => Err(DeviceError::PidNamespace(claim.number)),
        Err(why) => Err(DeviceError::Refused(Step::Start(claim.number), why)),
    }
}

/// Changes the size of a device.
///
/// # Errors
/// Why it keeps its size.
pub async fn resize<K: Kernel>(kernel: &K, claim: &Claim, sectors: u64) -> Result<(), DeviceError> {
    if claim.features & feature::UPDATE_SIZE == 0 {
        return Err(DeviceError::KeepsSize(claim.number, None));
    }
    let update = kernel.call(plain(Control::UPDATE_SIZE, claim.number, sectors), &mut []).await;
    update.map(drop).map_err(|why| DeviceError::KeepsSize(claim.number, Some(why)))
}

/// The outcome of [`quiesce`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quiet {
    /// The kernel keeps further requests, and the tags that have none end. Those that answer one later end when the
    /// command is given again.
    Begun,
    /// No tag has room for the command now: it is to be given again.
    Busy,
    /// The kernel does not do it.
    Never,
}

/// Has the kernel keep further requests.
pub async fn quiesce<K: Kernel>(kernel: &K, claim: &Claim) -> Quiet {
    if !claim.quiesces() {
        return Quiet::Never;
    }
    match kernel.call(plain(Control::QUIESCE_DEV, claim.number, QUIESCE_MS), &mut []).await {
        Ok(_) => Quiet::Begun,
        Err(Fault::Os(EBUSY)) => Quiet::Busy,
        Err(_) => Quiet::Never,
    }
}

/// Stops a device: its disk is gone, requests that wait fail, and every tag ends. A device that is live must be served
/// until then.
///
/// # Errors
/// Why the kernel does not stop it.
pub async fn stop<K: Kernel>(kernel: &K, number: u32) -> Result<(), DeviceError> {
    let stopped = kernel.call(plain(Control::STOP_DEV, number, 0), &mut []).await;
    stopped.map(drop).map_err(|why| DeviceError::Refused(Step::Stop(number), why))
}

/// The outcome of [`stop_unused`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// It has stopped.
    Done,
    /// A program has it open.
    Open,
    /// The kernel does not tell whether a program has it open, and was not asked to stop it.
    Unknown,
}

/// Stops a device like [`stop`], unless a program has it open. `features`: those of the driver.
///
/// # Errors
/// Why the kernel does not stop it.
pub async fn stop_unused<K: Kernel>(kernel: &K, number: u32, features: u64) -> Result<Stopped, DeviceError> {
    if features & feature::SAFE_STOP == 0 {
        return Ok(Stopped::Unknown);
    }
    match kernel.call(plain(Control::TRY_STOP_DEV, number, 0), &mut []).await {
        Ok(_) => Ok(Stopped::Done),
        Err(Fault::Os(EBUSY)) => Ok(Stopped::Open),
        Err(why) => Err(DeviceError::Refused(Step::Stop(number), why)),
    }
}

/// The outcome of a removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// The device is gone, and its number is free.
    Done,
    /// The kernel removes it when the last program closes it.
    Held,
}

/// Removes a device that was stopped; the kernel does so when nothing has it open any more. `waits`: this ends no
/// earlier, on a kernel that has no other way.
///
/// # Errors
/// Why the kernel does not remove it.
pub async fn remove<K: Kernel>(kernel: &K, number: u32, waits: bool) -> Result<Removal, DeviceError> {
    let mut removed = kernel.call(plain(Control::DEL_DEV_ASYNC, number, 0), &mut []).await;
    // The kernel takes the command that does not wait from privileged processes only.
    let has_other = removed == Err(Fault::Unsupported)
        || removed == Err(Fault::Os(EINVAL)) && kernel.rights() == Rights::Unprivileged;
    if has_other && waits {
        removed = kernel.call(plain(Control::DEL_DEV, number, 0), &mut []).await;
    }
    match removed {
        Ok(_) => {}
        Err(Fault::Gone) => return Ok(Removal::Done),
        Err(why) => return Err(DeviceError::Refused(Step::Remove(number), why)),
    }
    for _ in 0..LOOKS_REMOVED {
        if info(kernel, number).await?.is_none() {
            return Ok(Removal::Done);
        }
        kernel.pause(LOOK).await;
    }
    Ok(Removal::Held)
}

/// The devices that processes of Lunar have left, and that no section of the configuration names.
///
/// # Errors
/// Why that cannot be known.
pub async fn left_behind<K: Kernel>(kernel: &K, names: &[String]) -> Result<Vec<DeviceInfo>, DeviceError> {
    let known: Vec<u64> = names.iter().map(|name| Key::of(name, [0; 16]).private).collect();
    let mut left = Vec::new();
    for number in 0..SEARCHED {
        let is_left = |found: &DeviceInfo| {
            found.private & !NAME == OURS && found.state == State::QUIESCED.0 && !known.contains(&found.private)
        };
        left.extend(info(kernel, number).await?.filter(is_left));
    }
    Ok(left)
}

/// Whether the device of this number is the disk of this name, and served or waiting for the process that will serve
/// it. `is_wanted`: the configuration of this process has the disk.
///
/// # Errors
/// Why that cannot be known.
pub async fn bears<K: Kernel>(kernel: &K, number: u32, name: &str, is_wanted: bool) -> Result<bool, DeviceError> {
    let key = Key::of(name, [0; 16]);
    let is_it = |found: &DeviceInfo| key.is_same_name(found) && (is_wanted || found.state != State::QUIESCED.0);
    Ok(info(kernel, number).await?.is_some_and(|found| is_it(&found)))
}

/// The advice about a device that was left.
#[must_use]
pub fn about_left(found: &DeviceInfo, session: &str) -> String {
    format!(
        "{} was left by a process of Lunar that has ended, and no section has its name: programs that use it wait. \
         Serve volume {} under the old name once more, or remove the disk, with the requests that wait: lunar session \
         kick {session}",
        disk_at(found.number),
        uuid(found.volume)
    )
}

/// Removes a device that was left, with the requests that wait in it, unless it is in use.
///
/// # Errors
/// Why it stays.
pub async fn discard_left<K: Kernel>(kernel: &K, number: u32) -> Result<Removal, DeviceError> {
    let stays = |why| Err(DeviceError::Stays(number, why));
    let features = features(kernel).await?;
    match info(kernel, number).await? {
        None => return Ok(Removal::Done),
        Some(found) if found.private & !NAME == OURS && found.state == State::QUIESCED.0 => {}
        Some(_) => return stays(Stays::Served),
    }
    if let Some(user) = kernel.user_of(number) {
        return stays(Stays::Used(user));
    }
    match stop_unused(kernel, number, features).await? {
        Stopped::Done => {}
        Stopped::Open => return stays(Stays::Open),
        Stopped::Unknown => stop(kernel, number).await?,
    }
    remove(kernel, number, false).await
}

/// Removes a device of Lunar that no process serves, in whatever state it was left, unless it is in use.
///
/// # Errors
/// Why it stays.
pub async fn clear_away<K: Kernel>(kernel: &K, number: u32) -> Result<Removal, DeviceError> {
    let stays = |why| Err(DeviceError::Stays(number, why));
    let lives = |pid: i32| u32::try_from(pid).is_ok_and(|pid| pid > 0 && kernel.lives(pid));
    match info(kernel, number).await? {
        None => return Ok(Removal::Done),
        Some(found) if found.private & !NAME != OURS || found.state == State::LIVE.0 && lives(found.pid) => {
            return stays(Stays::Served);
        }
        Some(_) => {}
    }
    if let Some(user) = kernel.user_of(number) {
        return stays(Stays::Used(user));
    }
    stop(kernel, number).await?;
    remove(kernel, number, true).await
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
