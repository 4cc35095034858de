//! A virtio-blk device: its requests on their way to the block command set and back.

use super::rings::DeviceRings;
use super::transfer::{self, DataPath};
use crate::blk::{self, BlockRequest, HEADER_LEN, ID_LEN, IDENTITY_LEN, Parsed, Status, WRITEBACK_AT};
use crate::bytes;
use crate::ring::Chain;
use crate::session::RingIndex;
use lunar_blk::{Answer, Attachment, BlockSet, Error, Reply, Request};
use lunar_core::step::SlotContext;
use lunar_core::task::Task;
use lunar_guest::data_path::Lent;
use lunar_reactor::slots::contain;
use std::cell::Cell;
use std::rc::Rc;
use zerocopy::IntoBytes;

/// Where the data of a request begins in the readable and in the writable part.
const DATA: (usize, usize) = (HEADER_LEN, 0);

/// The note of a driver that has not switched the write cache.
const NO_CHOICE: u8 = 2;

/// The features before the driver has accepted any: front-ends read the configuration space once, before that, and show
/// it to every driver. A driver that does not flush need not know whether there is a write cache.
const FEATURES_BEFORE: u64 = blk::feature::FLUSH;

/// A virtio-blk device.
pub(super) struct BlkDevice {
    pub(super) set: Rc<BlockSet>,
    pub(super) attachment: Rc<Attachment>,
    /// Rings.
    pub(super) rings: usize,
    /// Whether the driver has switched the write cache on or off.
    choice: Cell<Option<bool>>,
    /// The features that the driver has accepted; before that, those that decide what the configuration space says.
    features: Cell<u64>,
}

impl BlkDevice {
    pub(super) fn new(set: &Rc<BlockSet>, attachment: Rc<Attachment>, rings: usize) -> Self {
        let features = Cell::new(FEATURES_BEFORE);
        let device = Self { set: set.clone(), attachment, rings, choice: Cell::default(), features };
        device.switch_cache();
        device
    }

    /// Another driver may come. The choice of the one before stays: front-ends keep it over a reset, and do not repeat
    /// it.
    pub(super) fn reset(&self) {
        self.set_features(FEATURES_BEFORE);
    }

    /// The driver has switched the write cache on or off; `None`: it has not.
    fn choose(&self, choice: Option<bool>) {
        self.choice.set(choice);
        self.switch_cache();
    }

    /// Switches the write cache of the unit: a driver that does not flush gets its writes on the medium.
    fn switch_cache(&self) {
        let has_cache = self.attachment.limits().is_some_and(|limits| limits.has_write_cache);
        let flushes = self.features.get() & blk::feature::FLUSH != 0;
        self.attachment.set_write_cache(has_cache && flushes && self.choice.get() != Some(false));
    }

    /// The choice of the driver as a byte, for the next process.
    pub(super) fn noted_choice(&self) -> u8 {
        self.choice.get().map_or(NO_CHOICE, u8::from)
    }

    /// Takes over the choice that the driver has made with a process before this one. Without a note of it every write
    /// is on the medium when it ends: the driver may rely on that. Returns whether the driver has made a choice with
    /// this process, which is the newer one and stays.
    pub(super) fn recall(&self, noted: Option<u8>) -> bool {
        if self.choice.get().is_some() {
            return true;
        }
        self.choose(match noted {
            Some(NO_CHOICE) => None,
            Some(value) => Some(value == 1),
            None => Some(false),
        });
        false
    }

    pub(super) fn features(&self) -> u64 {
        self.attachment.limits().map_or(0, |limits| blk::features(&limits, self.rings))
    }

    /// The driver has accepted features.
    pub(super) fn set_features(&self, features: u64) {
        self.features.set(features);
        self.switch_cache();
    }

    /// The configuration space; `None` while the unit is not served.
    pub(super) fn config_space(&self) -> Option<Vec<u8>> {
        let limits = self.attachment.limits()?;
        Some(blk::config_space(&limits, self.rings, self.attachment.caches_writes()).as_bytes().to_vec())
    }

    /// The driver has written bytes of the configuration space; returns whether it may.
    pub(super) fn write_config(&self, offset: usize, bytes: &[u8]) -> bool {
        let value = match (offset, bytes) {
            (WRITEBACK_AT, [value]) => *value,
            // The front-end of a virtual machine that has migrated writes all of it.
            (0, bytes) if bytes.len() > WRITEBACK_AT => bytes[WRITEBACK_AT],
            _ => return false,
        };
        self.choose(Some(value != 0));
        true
    }
}

/// A request in a slot.
pub(super) struct BlkWork {
    request: BlockRequest,
    task: Task<u64>,
    lent: Lent,
}

impl BlkWork {
    /// A request of this chain, which the device can abort from now on.
    pub(super) fn new(blk: &BlkDevice, chain: &Chain, request: BlockRequest) -> Self {
        Self { request, task: blk.attachment.tasks.enter(chain.id.into()), lent: Lent::default() }
    }

    /// The path of its data.
    pub(super) fn path<'a>(&'a self, device: &'a DeviceRings, chain: &'a Chain) -> DataPath<'a, u64> {
        transfer::path(device, chain, DATA, Some(&self.task), &self.lent)
    }

    /// Carries out the request and answers it.
    pub(super) async fn run(
        &self,
        device: &DeviceRings,
        blk: &BlkDevice,
        (ring, chain): (RingIndex, &Chain),
        slot: &mut SlotContext,
    ) {
        let Self { request, task, .. } = self;
        let mut reply = Reply::default();
        let path = self.path(device, chain);
        blk.set.execute(&blk.attachment, &request_of(request), &path, slot, &mut reply).await;
        if task.aborted() && device.over.has_come() {
            // The record of requests in progress says that it was not answered: it is repeated.
            device.forget(ring);
        } else {
            answer(device, ring, chain, request, &path, reply);
        }
    }

    /// Answers the request, which a panic has ended.
    pub(super) fn fail(&self, device: &DeviceRings, ring: RingIndex, chain: &Chain) {
        transfer::mark(device, chain, DATA, &self.lent);
        refuse(device, ring, chain);
    }
}

fn request_of(request: &BlockRequest) -> Request<'_> {
    Request { unmap: request.unmap, ..Request::new(request.code, &request.ranges) }
}

/// Starts the request of a chain: at once, if it waits for nothing; else it is returned, for a slot.
pub(super) fn start(device: &DeviceRings, blk: &BlkDevice, ring: RingIndex, chain: Chain) -> Option<(Chain, BlkWork)> {
    let parsed = blk::parse(&device.state().memory, &chain);
    let request = match parsed {
        Ok(Parsed::Block(request)) => request,
        Ok(Parsed::Refused(status)) => {
            end(device, ring, &chain, status, 0);
            return None;
        }
        Err(why) => {
            device.break_down(ring, &format!("{why:?}"));
            return None;
        }
    };
    let mut reply = Reply::default();
    let lent = Lent::default();
    let path: DataPath<'_, u64> = transfer::path(device, &chain, DATA, None, &lent);
    let now = || blk.set.execute_now(&blk.attachment, &request_of(&request), &path, device.arena(), &mut reply);
    match contain(now) {
        Some(true) => answer(device, ring, &chain, &request, &path, reply),
        Some(false) => {
            let work = BlkWork::new(blk, &chain, request);
            return Some((chain, work));
        }
        None => {
            path.mark_lent();
            end(device, ring, &chain, Status::IOERR, 0);
        }
    }
    None
}

/// Answers a request for which there is no slot.
pub(super) fn refuse(device: &DeviceRings, ring: RingIndex, chain: &Chain) {
    end(device, ring, chain, Status::IOERR, 0);
}

fn answer(
    device: &DeviceRings,
    ring: RingIndex,
    chain: &Chain,
    request: &BlockRequest,
    path: &DataPath<'_, u64>,
    reply: Reply,
) {
    let is_there = transfer::end(path, &reply.final_data);
    let mut result = if is_there { reply.result } else { Err(Error::IoError) };
    if let (Ok(()), Answer::Identity(identity)) = (&result, &reply.answer) {
        let mut id = [0; IDENTITY_LEN];
        let serial = identity.serial.as_bytes();
        let len = serial.len().min(ID_LEN);
        id[..len].copy_from_slice(&serial[..len]);
        id[ID_LEN..].copy_from_slice(&identity.uuid);
        // Room for fewer bytes gets the first ones: no more than the length of `id`.
        let id = &id[..request.returned as usize];
        if !bytes::write(&device.state().memory, &chain.writable, 0, id) {
            result = Err(Error::IoError);
        }
    }
    match result {
        Ok(()) => end(device, ring, chain, Status::OK, request.returned),
        Err(why) => end(device, ring, chain, why.into(), 0),
    }
}

/// Answers a request with this status, after so many bytes of data.
fn end(device: &DeviceRings, ring: RingIndex, chain: &Chain, status: Status, returned: u64) {
    // A request without room for its status was refused before.
    let at = chain.writable_len.saturating_sub(1);
    let is_there = bytes::write(&device.state().memory, &chain.writable, at, &[status.0]);
    if !is_there {
        return device.break_down(ring, "the status of a request has no memory");
    }
    device.put_back(ring, chain, returned.saturating_add(1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blk::feature::{CONFIG_WCE, FLUSH};
    use lunar_blk::Client;
    use lunar_blk::testing::{Rig, UNIT};

    fn device(rig: &Rig) -> BlkDevice {
        let client = Client { name: "iqn.x".into(), group: 0, read_only: false };
        BlkDevice::new(&rig.set, rig.set.attach(UNIT, client).expect("it is served"), 1)
    }

    fn says(device: &BlkDevice) -> u8 {
        device.config_space().expect("it is served")[WRITEBACK_AT]
    }

    #[test]
    fn writes_are_cached_only_for_a_driver_that_flushes_and_has_not_switched_the_cache_off() {
        let rig = Rig::default();
        let device = device(&rig);
        assert_eq!(says(&device), 1, "what the front-end shows to every driver");
        let features = [(0, false), (CONFIG_WCE, false), (FLUSH, true), (FLUSH | CONFIG_WCE, true)];
        for (features, is_cached) in features {
            for (value, is_on) in [(1, is_cached), (0, false), (1, is_cached)] {
                device.set_features(features);
                assert!(device.write_config(WRITEBACK_AT, &[value]));
                assert_eq!(device.attachment.caches_writes(), is_on, "{features:x} {value}");
                device.set_features(features);
                assert_eq!(device.attachment.caches_writes(), is_on, "{features:x} {value}");
            }
        }
    }

    #[test]
    fn a_choice_outlasts_a_reset_and_a_record_of_an_older_one() {
        let rig = Rig::default();
        let device = device(&rig);
        device.set_features(FLUSH | CONFIG_WCE);
        assert!(device.write_config(WRITEBACK_AT, &[0]));
        device.reset();
        assert_eq!(says(&device), 0);
        device.set_features(FLUSH | CONFIG_WCE);
        assert!(device.recall(Some(1)), "the choice before the driver switched the cache off");
        assert_eq!((says(&device), device.noted_choice()), (0, 0));
    }

    #[test]
    fn a_configuration_space_that_is_written_as_a_whole_has_the_choice_in_it() {
        let rig = Rig::default();
        let device = device(&rig);
        device.set_features(FLUSH | CONFIG_WCE);
        let mut space = device.config_space().expect("it is served");
        space[WRITEBACK_AT] = 0;
        assert!(device.write_config(0, &space));
        assert_eq!(says(&device), 0);
        space[WRITEBACK_AT] = 1;
        assert!(device.write_config(0, &space));
        assert_eq!(says(&device), 1);
        assert!(!device.write_config(0, &space[..WRITEBACK_AT]) && !device.write_config(1, &space));
    }
}
