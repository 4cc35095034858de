//! A disk of a target of SCSI over Scheduled Transfer.

use crate::lan::{Disk, FrameEvent, FrameInitiator, Station};
use crate::options::{Options, random};
use crate::report::{Negotiated, TransferWindow};
use crate::session::{Request, Work};
use crate::target::{Capacity, OpenSessions};
use crate::url::mac;
use anyhow::{Context, Result};
use lunar_core::time::Instant;
use lunar_link::Header;
use lunar_sst::limits::DEPTH_MAX;
use lunar_sst::wire::DATA_MAX;
use lunar_sst_initiator::{self as initiator, DiskEvent, InitiatorConfig, Operation};
use lunar_st::{ETHER_TYPE, Path, Peer};
use std::rc::Rc;

/// The shortest frame, without its check sequence.
const FRAME_MIN: usize = 60;

/// A disk, and the address of its target.
pub(crate) struct StDisk {
    disk: initiator::Disk,
    path: Path,
    /// The header of frames; `None` over UDP.
    header: Option<Header>,
}

fn kept(event: DiskEvent<'_>) -> Option<FrameEvent> {
    let failed = |(status, key)| format!("SCSI status {status:02x}h, sense key {key:x}h");
    match event {
        DiskEvent::Ready => None,
        DiskEvent::Data(cookie, bytes) => Some(FrameEvent::Data(cookie, 0, bytes.to_vec())),
        DiskEvent::Done(cookie, result) => Some(FrameEvent::Done(cookie, result.map_err(failed))),
        DiskEvent::Refused(status) => Some(FrameEvent::Refused(format!("the target refuses the login: {status:?}"))),
        DiskEvent::Lost => Some(FrameEvent::Lost),
    }
}

impl FrameInitiator for StDisk {
    fn is_ready(&self) -> bool {
        self.disk.is_ready()
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        let (_, packet) = self.disk.next_packet()?;
        let Some(header) = self.header else { return Some(packet) };
        let mut frame = [&header.bytes()[..], &packet].concat();
        frame.resize(frame.len().max(FRAME_MIN), 0);
        Some(frame)
    }

    fn start(&mut self, request: &Request, now: Instant) {
        let lba = request.lba;
        let operation = match &request.work {
            Work::Read => Operation::Read { lba, count: request.blocks },
            Work::Write(data) => Operation::Write { lba, data: Rc::from(data.bytes()) },
            Work::Flush => Operation::Flush,
        };
        self.disk.start(request.cookie, operation, now);
    }

    fn receive(&mut self, header: &Header, bytes: &[u8], now: Instant, on: &mut dyn FnMut(FrameEvent)) {
        let is_peer =
            self.header.is_none_or(|own| (own.destination, own.ether_type) == (header.source, header.ether_type));
        if is_peer {
            self.disk.receive(self.path, bytes, now, &mut |event| kept(event).into_iter().for_each(&mut *on));
        }
    }

    fn tick(&mut self, now: Instant, on: &mut dyn FnMut(FrameEvent)) {
        self.disk.tick(now, &mut |event| kept(event).into_iter().for_each(&mut *on));
    }
}

/// Opens the disk.
pub(crate) fn open(options: &Options) -> Result<OpenSessions<Disk<StDisk>>> {
    options.check_for_st().map_err(anyhow::Error::msg)?;
    let url = &options.url;
    let address = url.host.strip_prefix("udp:").map(str::parse).transpose()?;
    let destination = url.target.as_deref().and_then(mac);
    let peer = match (address, destination) {
        (Some(address), _) => Peer::Ip(address),
        (None, Some(mac)) => Peer::Station(mac),
        (None, None) => anyhow::bail!("the MAC address of the target is missing"),
    };
    let path = Path { link: 0, peer };
    let depth = options.depth.clamp(1, DEPTH_MAX.into()) as u16;
    let disk = |(source, mtu): Station| {
        let header = destination.map(|destination| Header { destination, source, ether_type: ETHER_TYPE });
        let secret = [u64::from_le_bytes(random()), u64::from_le_bytes(random())];
        let name = options.initiator_name.clone();
        let timeout = options.timeout;
        let (target, paths, command_timeout) = (String::new(), vec![path], None);
        let config = InitiatorConfig { name, target, paths, mtu, depth, timeout, command_timeout, secret };
        StDisk { disk: initiator::Disk::new(config, url.unit as u8, Instant(0)), path, header }
    };
    let disk = Disk::open(options, (vec![ETHER_TYPE], Vec::new()), disk).with_context(|| url.to_string())?;
    let (mtu, stu) = (disk.mtu()?, disk.initiator.disk.initiator().stu().unwrap_or_default());
    let negotiated = Negotiated::St(TransferWindow { stu, mtu, window: depth.into() });
    let (blocks, block_size) = disk.initiator.disk.capacity();
    let (url, capacity) = (url.clone(), Capacity { blocks, block_size });
    let transfer_max = DATA_MAX;
    Ok(OpenSessions { url, active: vec![disk], idle: Vec::new(), capacity, transfer_max, negotiated, logins: None })
}
