//! The device of this repository, as the back-end of one lane.

use crate::layout::Layout;
use crate::message::{self, BASE};
use lunar_core::mem::Region;
use lunar_guest::memory::Memory;
use lunar_vhost_user::bytes;
use lunar_vhost_user::ring::Chain;
use lunar_vhost_user::session::{self, Request, RingIndex};
use lunar_vhost_user::virtio::VirtioDevice;
use lunar_vhost_user::wire::{Code as Message, feature};

/// A device with one ring.
pub(crate) struct BackEnd {
    pub(crate) device: VirtioDevice,
    pub(crate) memory: Region,
    /// The requests that it has not answered.
    pub(crate) taken: Vec<Chain>,
}

impl BackEnd {
    /// Starts the ring by the messages that a front-end sends.
    pub(crate) fn new(memory: &Region, layout: &Layout) -> Self {
        let mut device = VirtioDevice::new(0, 1);
        let features = feature::VERSION_1 | feature::PROTOCOL_FEATURES;
        device.set_features(features).expect("no ring is started");
        let Ok(Request::SetMemTable(table)) = session::parse(Message::SET_MEM_TABLE, &message::memory(memory.len()))
        else {
            panic!("it is a table")
        };
        device.set_memory(table.into_iter().map(|region| (region, memory.clone())).collect()).expect("one region");
        let Ok(Request::SetVringAddr(ring, address)) =
            session::parse(Message::SET_VRING_ADDR, &message::address(0, layout.ring(0)))
        else {
            panic!("it is an address")
        };
        assert!(address.used.get() > BASE);
        device.set_size(ring, layout.ring_size()).expect("it exists");
        device.set_address(ring, address).expect("it exists");
        device.set_base(ring, 0).expect("it exists");
        device.start(ring).expect("its parts are in memory");
        device.enable(ring, true).expect("it exists");
        Self { device, memory: memory.clone(), taken: Vec::new() }
    }

    /// Takes all that is available; returns what `parse` makes of each request.
    pub(crate) fn take_with<T>(&mut self, parse: impl Fn(&Memory, &Chain) -> T) -> Vec<T> {
        let mut requests = Vec::new();
        while let Some(chain) = self.device.take(RingIndex::from(0)).expect("a good driver") {
            requests.push(parse(&self.device.memory, &chain));
            self.taken.push(chain);
        }
        requests
    }

    /// Returns one of the requests that were taken, after these bytes were written from this one on.
    pub(crate) fn put_back(&mut self, at: usize, offset: u64, written: &[u8]) {
        let chain = self.taken.remove(at);
        assert!(bytes::write(&self.device.memory, &chain.writable, offset, written));
        self.device.put_back(RingIndex::from(0), (chain.id, chain.entries), chain.writable_len as u32);
    }
}
