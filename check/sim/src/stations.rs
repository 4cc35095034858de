//! The initiators of the scenarios on a network that loses packets: ATA over Ethernet, Fibre Channel over Ethernet,
//! SCSI over Scheduled Transfer, and SRP and NVMe over RDMA.

use crate::iser_disk as iser;
use crate::nvme_rdma_disk as nvme_rdma;
use crate::operation::{Operation, StationEvent};
use crate::srp_disk as srp;
use lunar_aoe::wire::Address;
use lunar_aoe_initiator::{self as aoe, InitiatorEvent};
use lunar_core::time::Instant;
use lunar_fcoe::wire::names::Wwn;
use lunar_fcoe_initiator::{self as fcoe, DiskEvent};
use lunar_link::{Header, MacAddress};
use lunar_sst_initiator as sst;
use lunar_st::{ETHER_TYPE, Path, Peer};
use std::time::Duration;

/// The times after which a target without an answer is given up. Of a Fibre Channel, each lost frame costs three
/// seconds and more.
const AOE_TIMEOUT: Duration = Duration::from_secs(180);
const FCOE_TIMEOUT: Duration = Duration::from_secs(900);

/// The target of Scheduled Transfer.
const ST_PATH: Path = Path { link: 0, peer: Peer::Station(MacAddress([2, 0, 0, 0, 0, 0])) };

/// The protocol of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names of the protocols")]
pub enum Protocol {
    Aoe,
    Fcoe,
    St,
    Srp,
    NvmeRdma,
    Iser,
}

/// The protocol of a scenario, with what differs between seeds.
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
    /// SCSI over Scheduled Transfer.
    St,
    /// SRP over RDMA.
    Srp,
    /// NVMe over RDMA.
    NvmeRdma,
    /// iSCSI over RDMA.
    Iser,
}

/// An initiator with one disk.
pub enum Station {
    /// ATA over Ethernet.
    Aoe(Box<aoe::Initiator>),
    /// Fibre Channel over Ethernet.
    Fcoe(Box<fcoe::Disk>),
    /// SCSI over Scheduled Transfer, and the address of this station.
    St(Box<sst::Disk>, MacAddress),
    /// SRP over RDMA.
    Srp(Box<srp::Disk>),
    /// NVMe over RDMA.
    NvmeRdma(Box<nvme_rdma::Disk>),
    /// iSCSI over RDMA.
    Iser(Box<iser::Disk>),
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
            Kind::St => {
                let seed = mac.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
                let config = sst::InitiatorConfig {
                    name: format!("iqn.2026-01.io.lunar:{mac}"),
                    target: String::new(),
                    paths: vec![ST_PATH],
                    mtu,
                    depth: 8,
                    timeout: FCOE_TIMEOUT,
                    command_timeout: None,
                    // Connections of an initiator that begins anew have other Keys.
                    secret: [seed, now.0],
                };
                Self::St(Box::new(sst::Disk::new(config, lun, now)), mac)
            }
            Kind::Srp => Self::Srp(Box::new(srp::Disk::new(mac.0[5], lun, now))),
            Kind::NvmeRdma => Self::NvmeRdma(Box::new(nvme_rdma::Disk::new(mac.0[5], lun, now))),
            Kind::Iser => Self::Iser(Box::new(iser::Disk::new(mac.0[5], lun, now))),
        }
    }

    /// Whether commands may start.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match self {
            Self::Aoe(initiator) => initiator.is_ready(),
            Self::Fcoe(disk) => disk.is_ready(),
            Self::St(disk, _) => disk.is_ready(),
            Self::Srp(disk) => disk.is_ready(),
            Self::NvmeRdma(disk) => disk.is_ready(),
            Self::Iser(disk) => disk.is_ready(),
        }
    }

    /// The next frame or datagram to send.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Aoe(initiator) => initiator.next_frame(),
            Self::Fcoe(disk) => disk.next_frame(),
            Self::St(disk, mac) => {
                let (path, packet) = disk.next_packet()?;
                let Peer::Station(destination) = path.peer else { return None };
                let header = Header { destination, source: *mac, ether_type: ETHER_TYPE };
                Some([&header.bytes()[..], &packet].concat())
            }
            Self::Srp(disk) => disk.next_datagram(),
            Self::NvmeRdma(disk) => disk.next_datagram(),
            Self::Iser(disk) => disk.next_datagram(),
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
            Self::St(disk, _) => {
                let operation = match operation {
                    Operation::Read { lba, count } => sst::Operation::Read { lba, count },
                    Operation::Write { lba, data } => sst::Operation::Write { lba, data },
                    Operation::Flush => sst::Operation::Flush,
                };
                disk.start(cookie, operation, now);
            }
            Self::Srp(disk) => disk.start(cookie, operation, now),
            Self::NvmeRdma(disk) => disk.start(cookie, operation, now),
            Self::Iser(disk) => disk.start(cookie, operation, now),
        }
    }

    /// Takes a frame with its header, or a datagram.
    pub fn receive(
        &mut self,
        header: Option<&Header>,
        bytes: &[u8],
        now: Instant,
        on: &mut dyn FnMut(StationEvent<'_>),
    ) {
        match (self, header) {
            (Self::Srp(disk), _) => disk.receive(bytes, now, on),
            (Self::NvmeRdma(disk), _) => disk.receive(bytes, now, on),
            (Self::Iser(disk), _) => disk.receive(bytes, now, on),
            (Self::Aoe(initiator), Some(header)) => {
                initiator.receive(header.source, bytes, now, &mut |event| on(of_aoe(event)));
            }
            (Self::Fcoe(disk), Some(header)) => disk.receive(header, bytes, now, &mut |event| on(of_fcoe(event))),
            (Self::St(disk, _), Some(header)) => {
                let path = Path { link: 0, peer: Peer::Station(header.source) };
                disk.receive(path, bytes, now, &mut |event| of_st(event).into_iter().for_each(&mut *on));
            }
            (Self::Aoe(_) | Self::Fcoe(_) | Self::St(..), None) => {}
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, on: &mut dyn FnMut(StationEvent<'_>)) {
        match self {
            Self::Aoe(initiator) => initiator.tick(now, &mut |event| on(of_aoe(event))),
            Self::Fcoe(disk) => disk.tick(now, &mut |event| on(of_fcoe(event))),
            Self::St(disk, _) => disk.tick(now, &mut |event| of_st(event).into_iter().for_each(&mut *on)),
            Self::Srp(disk) => disk.tick(now, on),
            Self::NvmeRdma(disk) => disk.tick(now, on),
            Self::Iser(disk) => disk.tick(now, on),
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

/// Refused logins are repeated: the target may be stopping.
fn of_st(event: sst::DiskEvent<'_>) -> Option<StationEvent<'_>> {
    Some(match event {
        sst::DiskEvent::Ready => StationEvent::Ready,
        sst::DiskEvent::Data(cookie, bytes) => StationEvent::Data(cookie, 0, bytes),
        sst::DiskEvent::Done(cookie, result) => StationEvent::Done(cookie, result),
        sst::DiskEvent::Refused(_) => return None,
        sst::DiskEvent::Lost => StationEvent::Lost,
    })
}
