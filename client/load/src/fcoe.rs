//! A disk of a Fibre Channel over Ethernet target, without a switch or behind one.

use crate::lan::{Disk, FrameEvent, FrameInitiator};
use crate::options::{Options, random};
use crate::report::{ExchangeWindow, Negotiated};
use crate::session::{Request, Work};
use crate::target::{Capacity, OpenSessions};
use anyhow::{Context, Result};
use lunar_core::time::Instant;
use lunar_fcoe::wire::frame::payload_of;
use lunar_fcoe::wire::names::Wwn;
use lunar_fcoe::wire::{fip, frame};
use lunar_fcoe_initiator::{self as initiator, DiskEvent, InitiatorConfig, Operation};
use lunar_link::{Filter, Header};
use std::rc::Rc;

/// The longest command, in bytes: the target moves larger ones in parts.
const TRANSFER_MAX: u32 = 16 << 20;
/// Prefixes of names that are made of a MAC address (NAA 2 and NAA 1), as Linux makes them.
const NAMES: (u64, u64) = (0x2000 << 48, 0x1000 << 48);

fn kept(event: DiskEvent<'_>) -> Option<FrameEvent> {
    let failed = |(status, key)| format!("SCSI status {status:02x}h, sense key {key:x}h");
    match event {
        DiskEvent::Ready => None,
        DiskEvent::Data(cookie, offset, bytes) => Some(FrameEvent::Data(cookie, offset, bytes.to_vec())),
        DiskEvent::Done(cookie, result) => Some(FrameEvent::Done(cookie, result.map_err(failed))),
        DiskEvent::Lost => Some(FrameEvent::Lost),
    }
}

impl FrameInitiator for initiator::Disk {
    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        Self::next_frame(self)
    }

    fn start(&mut self, request: &Request, now: Instant) {
        let lba = request.lba;
        let operation = match &request.work {
            Work::Read => Operation::Read { lba, count: request.blocks },
            Work::Write(data) => Operation::Write { lba, data: Rc::from(data.bytes()) },
            Work::Flush => Operation::Flush,
        };
        Self::start(self, request.cookie, operation, now);
    }

    fn receive(&mut self, header: &Header, bytes: &[u8], now: Instant, on: &mut dyn FnMut(FrameEvent)) {
        Self::receive(self, header, bytes, now, &mut |event| kept(event).into_iter().for_each(&mut *on));
    }

    fn tick(&mut self, now: Instant, on: &mut dyn FnMut(FrameEvent)) {
        Self::tick(self, now, &mut |event| kept(event).into_iter().for_each(&mut *on));
    }
}

/// Opens the disk.
pub(crate) fn open(options: &Options) -> Result<OpenSessions<Disk<initiator::Disk>>> {
    options.check_for_frames().map_err(anyhow::Error::msg)?;
    let target = options.url.target.as_deref().map(str::parse::<Wwn>);
    let target = target.transpose().ok().context("the name of the target is no WWPN")?;
    let (timeout, lun) = (options.timeout, options.url.unit as u8);
    let disk = |(station, mtu): crate::lan::Station| {
        let number = station.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let names = (Wwn(NAMES.0 | number), Wwn(NAMES.1 | number));
        let seed = u64::from_le_bytes(random());
        let config = InitiatorConfig { station, names, target, mtu, timeout, seed };
        match options.url.link() {
            (_, true) => initiator::Disk::in_fabric(config, lun, Instant(0)),
            (_, false) => initiator::Disk::new(config, lun, Instant(0)),
        }
    };
    // The address of the port is known later.
    let settings = (vec![frame::ETHER_TYPE, fip::ETHER_TYPE], vec![Filter::Promiscuous]);
    let disk = Disk::open(options, settings, disk).with_context(|| options.url.to_string())?;
    let mtu = disk.mtu()?;
    let negotiated = Negotiated::Fcoe(ExchangeWindow { payload: payload_of(mtu), mtu, window: options.depth });
    let (blocks, block_size) = disk.initiator.capacity();
    let (url, capacity) = (options.url.clone(), Capacity { blocks, block_size });
    let transfer_max = TRANSFER_MAX;
    Ok(OpenSessions { url, active: vec![disk], idle: Vec::new(), capacity, transfer_max, negotiated, logins: None })
}
