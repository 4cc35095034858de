//! The initiators of the scenarios on Ethernet frames: ATA over Ethernet, and Fibre Channel over Ethernet.

use lunar_aoe::wire::Address;
use lunar_aoe_initiator::{self as aoe, InitiatorEvent};
use lunar_core::time::Instant;
use lunar_fcoe::wire::names::Wwn;
use lunar_fcoe_initiator::{self as fcoe, DiskEvent};
use lunar_link::{Header, MacAddress};
use std::rc::Rc;
use std::time::Duration;

/// The times after which a target without an answer is given up. Of a Fibre Channel, each lost frame costs three
/// seconds and more.
const AOE_TIMEOUT: Duration = Duration::from_secs(180);
const FCOE_TIMEOUT: Duration = Duration::from_secs(900);

/// The protocol of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// ATA over Ethernet.
    Aoe {
        /// Whether stations send a request again with another tag, as the initiator of Linux does.
        fresh_tags: bool,
    },
    /// Fibre Channel over Ethernet.
    Fcoe {
        /// Whether the name of the target port is larger than those of the initiators: then it sends PLOGI.
        is_larger: bool,
    },
}

/// An operation on a disk.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Reads sectors.
    Read {
        /// The first one.
        lba: u64,
        /// Their number.
        count: u32,
    },
    /// Writes sectors.
    Write {
        /// The first one.
        lba: u64,
        /// The data.
        data: Rc<[u8]>,
    },
    /// Brings what was written to the medium.
    Flush,
}

/// An event of a disk or of a command.
pub enum StationEvent<'a> {
    /// The disk was found.
    Ready,
    /// Data of a command, from this offset on.
    Data(u32, usize, &'a [u8]),
    /// A command has ended, or failed with these codes of its protocol.
    Done(u32, Result<(), (u8, u8)>),
    /// The target is silent.
    Lost,
}

/// An initiator with one disk.
pub enum Station {
    /// ATA over Ethernet.
    Aoe(Box<aoe::Initiator>),
    /// Fibre Channel over Ethernet.
    Fcoe(Box<fcoe::Disk>),
}

impl Station {
    /// The initiator at a station with this address, for the disk of this LUN, or at this address of a shelf.
    #[must_use]
    pub fn new(kind: Kind, mac: MacAddress, mtu: usize, (target, lun): (Address, u8), now: Instant) -> Self {
        match kind {
            Kind::Aoe { fresh_tags } => {
                let config = aoe::InitiatorConfig { mac, target, mtu, timeout: AOE_TIMEOUT, fresh_tags };
                Self::Aoe(Box::new(aoe::Initiator::new(config, now)))
            }
            Kind::Fcoe { .. } => {
                let seed = mac.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
                let names = (Wwn(0x2000 << 48 | seed), Wwn(0x1000 << 48 | seed));
                let config =
                    fcoe::InitiatorConfig { station: mac, names, target: None, mtu, timeout: FCOE_TIMEOUT, seed };
                Self::Fcoe(Box::new(fcoe::Disk::new(config, lun, now)))
            }
        }
    }

    /// Whether commands may start.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match self {
            Self::Aoe(initiator) => initiator.is_ready(),
            Self::Fcoe(disk) => disk.is_ready(),
        }
    }

    /// The next frame to send.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Aoe(initiator) => initiator.next_frame(),
            Self::Fcoe(disk) => disk.next_frame(),
        }
    }

    /// Starts a command.
    pub fn start(&mut self, cookie: u32, operation: Operation, now: Instant) {
        match self {
            Self::Aoe(initiator) => {
                let operation = match operation {
                    Operation::Read { lba, count } => aoe::Operation::Read { lba, count },
                    Operation::Write { lba, data } => aoe::Operation::Write { lba, data },
                    Operation::Flush => aoe::Operation::Flush,
                };
                initiator.start(cookie, operation, now);
            }
            Self::Fcoe(disk) => {
                let operation = match operation {
                    Operation::Read { lba, count } => fcoe::Operation::Read { lba, count },
                    Operation::Write { lba, data } => fcoe::Operation::Write { lba, data },
                    Operation::Flush => fcoe::Operation::Flush,
                };
                disk.start(cookie, operation, now);
            }
        }
    }

    /// Takes a frame.
    pub fn receive(&mut self, header: &Header, bytes: &[u8], now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        match self {
            Self::Aoe(initiator) => initiator.receive(header.source, bytes, now, &mut |event| on(of_aoe(event))),
            Self::Fcoe(disk) => disk.receive(header, bytes, now, &mut |event| on(of_fcoe(event))),
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        match self {
            Self::Aoe(initiator) => initiator.tick(now, &mut |event| on(of_aoe(event))),
            Self::Fcoe(disk) => disk.tick(now, &mut |event| on(of_fcoe(event))),
        }
    }
}

fn of_aoe(event: InitiatorEvent<'_>) -> StationEvent<'_> {
    match event {
        InitiatorEvent::Ready => StationEvent::Ready,
        InitiatorEvent::Data(cookie, offset, bytes) => StationEvent::Data(cookie, offset, bytes),
        InitiatorEvent::Done(cookie, result) => StationEvent::Done(cookie, result),
        InitiatorEvent::Lost => StationEvent::Lost,
    }
}

fn of_fcoe(event: DiskEvent<'_>) -> StationEvent<'_> {
    match event {
        DiskEvent::Ready => StationEvent::Ready,
        DiskEvent::Data(cookie, offset, bytes) => StationEvent::Data(cookie, offset, bytes),
        DiskEvent::Done(cookie, result) => StationEvent::Done(cookie, result),
        DiskEvent::Lost => StationEvent::Lost,
    }
}
