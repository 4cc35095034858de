//! A disk of an ATA over Ethernet target.

use crate::lan::{Disk, FrameEvent, FrameInitiator};
use crate::options::Options;
use crate::report::{FrameWindow, Negotiated};
use crate::session::{Request, Work};
use crate::target::{Capacity, OpenSessions};
use anyhow::{Context, Result};
use lunar_aoe::wire::{ETHER_TYPE, SECTOR};
use lunar_aoe_initiator::{Initiator, InitiatorConfig, InitiatorEvent, Operation};
use lunar_core::time::Instant;
use lunar_link::Header;
use std::rc::Rc;

/// The most frames of a command: commands of the longest length of other protocols.
const FRAMES_PER_COMMAND: u32 = 4096;

fn kept(event: InitiatorEvent<'_>) -> Option<FrameEvent> {
    let failed = |(status, error)| format!("ATA status {status:02x}h, error {error:02x}h");
    match event {
        InitiatorEvent::Ready => None,
        InitiatorEvent::Data(cookie, offset, bytes) => Some(FrameEvent::Data(cookie, offset, bytes.to_vec())),
        InitiatorEvent::Done(cookie, result) => Some(FrameEvent::Done(cookie, result.map_err(failed))),
        InitiatorEvent::Lost => Some(FrameEvent::Lost),
    }
}

impl FrameInitiator for Initiator {
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
        if header.ether_type == ETHER_TYPE {
            Self::receive(self, header.source, bytes, now, &mut |event| kept(event).into_iter().for_each(&mut *on));
        }
    }

    fn tick(&mut self, now: Instant, on: &mut dyn FnMut(FrameEvent)) {
        Self::tick(self, now, &mut |event| kept(event).into_iter().for_each(&mut *on));
    }
}

/// Opens the disk.
pub(crate) fn open(options: &Options) -> Result<OpenSessions<Disk<Initiator>>> {
    options.check_for_frames().map_err(anyhow::Error::msg)?;
    let (target, timeout) = (options.url.address(), options.timeout);
    let initiator =
        |(mac, mtu)| Initiator::new(InitiatorConfig { mac, target, mtu, timeout, fresh_tags: false }, Instant(0));
    let disk = Disk::open(options, (vec![ETHER_TYPE], Vec::new()), initiator);
    let disk = disk.with_context(|| options.url.to_string())?;
    let sectors = disk.initiator.sectors_per_frame();
    let negotiated = Negotiated::Aoe(FrameWindow {
        sectors_per_frame: sectors,
        mtu: disk.mtu()?,
        window: disk.initiator.buffers() as u32,
    });
    let capacity = Capacity { blocks: disk.initiator.capacity(), block_size: SECTOR as u32 };
    let transfer_max = u32::from(sectors) * SECTOR as u32 * FRAMES_PER_COMMAND;
    let url = options.url.clone();
    Ok(OpenSessions { url, active: vec![disk], idle: Vec::new(), capacity, transfer_max, negotiated, logins: None })
}
