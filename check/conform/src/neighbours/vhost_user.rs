//! vhost-user: attackers that are a guest and its emulator in one, with a disk (virtio-blk) or a SCSI host adapter
//! (virtio-scsi).

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::scsi_commands::{self, IDENTIFICATION, Payload, SCATTERED_BLOCKS};
use super::transport::{
    Attacker, Held, LARGE_BLOCKS, RECEIVE_LIMIT, Request, SEND_LIMIT, SMALL_BLOCKS, Source, Stage, Transport, Victim,
    volume,
};
use crate::copies;
use crate::test_data::pattern;
use crate::vfio;
use crate::vhost::{
    DATA, ENTRIES, FrontEnd, IN, Kind, Layout, MEMORY, NEXT, OUT, Piece, USER, answer_at, code, command_header,
    disk_header, message, region, task_management,
};

/// The virtual machines of attackers.
const ATTACKERS: u16 = 4;
/// Rings for requests of an attacker.
const QUEUES: u16 = 2;
/// Requests of an attacker in progress, which nearly fill its rings.
const REQUESTS: usize = QUEUES as usize * (ENTRIES as usize - 2);
/// Task management functions of an attacker in progress.
const CONTROLS: usize = 256;
/// Messages of an attacker in progress: their replies fill the socket, if the attacker does not read them, and the
/// messages fit into it.
const MESSAGES: usize = 400;
/// Data of requests in guest memory: to the device, zeroes to the device; the table of a scattered read, its pieces
/// and bytes of each.
const PARAMETERS: u64 = DATA + (4 << 20);
const ZEROES: u64 = DATA + (8 << 20);
const TABLE: u64 = DATA + (12 << 20);
const PIECES: u32 = SCATTERED_BLOCKS;
const PIECE: u32 = 512;
/// Notifications, and changes of the memory map, of one attack request.
const KICKS_AT_ONCE: u16 = 64;
const MAPS_AT_ONCE: u64 = 8;
/// Requests that are in the rings when the device is reset.
const RESET_REQUESTS: usize = 8;
/// A record of requests in progress of nearly the greatest length: rings, entries.
const RECORD: (u16, u16) = (250, 8192);
/// Ranges of one discard, and sectors of each.
const DISCARD_RANGES: u32 = 32;
const DISCARD_SECTORS: u32 = 1 << 21;
/// The functions ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET of virtio-scsi.
const FUNCTIONS: [u32; 4] = [0, 1, 3, 5];

pub(super) struct VhostUser {
    /// The folder with the sockets of all virtual machines.
    pub(super) folder: PathBuf,
    pub(super) kind: Kind,
}

/// A device of a virtual machine, as the configuration declares it.
pub(super) struct Device {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// The unit of a disk.
    pub(super) lun: Option<u16>,
}

/// All devices: those of the victim, of the visitor and of the attackers, which need a disk for each unit.
pub(super) fn devices() -> Vec<Device> {
    let disk = |name: &str, lun| Device { name: disk_name(name, lun), kind: Kind::Blk, lun: Some(lun) };
    let adapter = |name: &str| Device { name: format!("{name}-scsi"), kind: Kind::Scsi, lun: None };
    let mut all = Vec::new();
    for name in ["victim", "visitor"] {
        all.extend([disk(name, volume::VICTIM), adapter(name)]);
    }
    for number in 0..ATTACKERS {
        let name = format!("attacker{number}");
        all.extend([disk(&name, volume::SMALL), disk(&name, volume::LARGE), adapter(&name)]);
    }
    all
}

fn disk_name(name: &str, lun: u16) -> String {
    format!("{name}-disk{lun}")
}

impl VhostUser {
    fn socket(&self, name: &str, unit: u16) -> PathBuf {
        let name = match self.kind {
            Kind::Blk => disk_name(name, unit),
            Kind::Scsi => format!("{name}-scsi"),
        };
        self.folder.join(name + ".sock")
    }

    fn boot(&self, name: &str, unit: u16, queues: u16) -> Result<FrontEnd> {
        FrontEnd::boot(&self.socket(name, unit), self.kind, Layout::Split, queues)
    }

    fn guest(&self, name: &str) -> Result<VmVictim> {
        Ok(VmVictim(self.boot(name, volume::VICTIM, 1)?))
    }

    fn attacking(&self, number: u16, request: Request) -> Result<VmAttacker> {
        let unit = scsi_commands::unit(request);
        VmAttacker::new(self.boot(&format!("attacker{number}"), unit, QUEUES)?, request)
    }
}

impl Transport for VhostUser {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Blk => "vhost-user-blk",
            Kind::Scsi => "vhost-user-scsi",
        }
    }

    fn has_request(&self, request: Request) -> bool {
        match request {
            Request::Doorbell | Request::Remap | Request::Reset | Request::SetUp | Request::Ping => true,
            Request::Abort => self.kind == Kind::Scsi,
            request => work(self.kind, request, 0, &[]).is_some(),
        }
    }

    fn has_stage(&self, stage: Stage) -> bool {
        !matches!(stage, Stage::Discovery | Stage::Vanished)
    }

    fn has_addresses(&self) -> bool {
        false
    }

    fn shares_command_set(&self) -> bool {
        // iSCSI has it.
        self.kind == Kind::Scsi
    }

    fn attackers_max(&self) -> u16 {
        ATTACKERS
    }

    fn victim(&self) -> Result<Box<dyn Victim>> {
        let mut victim = self.guest("victim")?;
        victim.write_blocks(32_768, &pattern(0, 1, 4096))?;
        Ok(Box::new(victim))
    }

    fn visit(&self) -> Result<()> {
        self.guest("visitor")?.read_blocks(0, 4096).map(drop)
    }

    fn attacker(&self, _: Source, number: u16, request: Request) -> Result<Box<dyn Attacker>> {
        Ok(Box::new(self.attacking(number, request)?))
    }

    fn connection(&self, _: Source, number: u16, stage: Stage) -> Result<Held> {
        let name = format!("attacker{}", number % ATTACKERS);
        let mut front = match stage {
            Stage::LoggedIn => return Ok(Box::new(self.boot(&name, volume::SMALL, QUEUES)?)),
            _ => FrontEnd::connect(&self.socket(&name, volume::SMALL), self.kind)?,
        };
        if stage == Stage::HalfRequest {
            front.send_raw(&message(code::SET_OWNER, &[])[..6])?;
        }
        Ok(Box::new(front))
    }
}

struct VmVictim(FrontEnd);

impl VmVictim {
    fn write_blocks(&mut self, block: u32, data: &[u8]) -> Result<()> {
        self.0.memory.write_all_at(data, DATA)?;
        self.0.transfer(true, (volume::VICTIM, block), u32::try_from(data.len())?)
    }

    fn read_blocks(&mut self, block: u32, len: u32) -> Result<Vec<u8>> {
        let mut data = vec![0; len as usize];
        self.0.memory.write_all_at(&data, DATA)?;
        self.0.transfer(false, (volume::VICTIM, block), len)?;
        self.0.memory.read_exact_at(&mut data, DATA)?;
        Ok(data)
    }
}

impl Victim for VmVictim {
    fn read(&mut self) -> Result<()> {
        ensure!(self.read_blocks(32_768, 4096)? == pattern(0, 1, 4096), "other data than was written");
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        self.write_blocks(32_776, &pattern(8, 2, 4096))
    }

    fn write_long(&mut self) -> Result<()> {
        self.write_blocks(36_864, &pattern(2048, 3, 1 << 20))
    }
}

/// The header of a request, and its data.
struct Work {
    header: Vec<u8>,
    payload: Payload,
}

/// A request for a ring of requests; `None` if the device has none. `count`: requests before this one.
fn work(kind: Kind, request: Request, count: u32, names: &[u8]) -> Option<Work> {
    if kind == Kind::Scsi {
        let made = scsi_commands::command(request, count, names)?;
        let header = command_header(scsi_commands::unit(request), u64::from(count) + 1, &made.cdb);
        return Some(Work { header, payload: made.payload });
    }
    let range =
        |sector: u32, sectors: u32| [&u64::from(sector).to_le_bytes()[..], &sectors.to_le_bytes(), &[0; 4]].concat();
    let (kind, payload) = match request {
        Request::LongRead => (IN, Payload::In(1 << 20)),
        Request::ScatteredRead => (IN, Payload::In(PIECES * PIECE)),
        Request::Write => (OUT, Payload::Zeroes(1 << 20)),
        Request::Unmap => {
            let ranges =
                (0..DISCARD_RANGES).flat_map(|number| range(number * (LARGE_BLOCKS / DISCARD_RANGES), DISCARD_SECTORS));
            (11, Payload::Out(ranges.collect()))
        }
        Request::WriteSame => (13, Payload::Out(range(0, SMALL_BLOCKS))),
        Request::Flush => (4, Payload::None),
        Request::Describe => (8, Payload::In(20)),
        Request::Unknown => (99, Payload::None),
        _ => return None,
    };
    Some(Work { header: disk_header(kind, 0), payload })
}

struct VmAttacker {
    front: FrontEnd,
    request: Request,
    /// The CSCD descriptor of the unit, for copies.
    names: Vec<u8>,
    region: OwnedFd,
    /// The descriptors whose request is described already, because it is always the same.
    described: BTreeSet<(u16, u16)>,
    sent: u32,
    in_progress: usize,
}

impl VmAttacker {
    fn new(mut front: FrontEnd, request: Request) -> Result<Self> {
        let first = front.kind.first();
        let mut names = Vec::new();
        if request == Request::Copy {
            let header = command_header(scsi_commands::unit(request), 1, &IDENTIFICATION);
            // The first answer may be a unit attention.
            for _ in 0..2 {
                front.run(first, &header, [None, Some((DATA, 1024, true))])?;
            }
            let mut page = vec![0; 1024];
            front.memory.read_exact_at(&mut page, DATA)?;
            names = copies::descriptor_in(&page)?;
        }
        front.set_patience(SEND_LIMIT, Duration::from_secs(10))?;
        let attacker = Self {
            front,
            request,
            names,
            region: vfio::memory(1 << 20)?,
            described: BTreeSet::new(),
            sent: 0,
            in_progress: 0,
        };
        if request == Request::ScatteredRead {
            attacker.lay_out_pieces()?;
        }
        Ok(attacker)
    }

    /// Writes the longest table of descriptors, and the same as a chain in the last ring.
    fn lay_out_pieces(&self) -> Result<()> {
        let kind = self.front.kind;
        let Some(work) = work(kind, self.request, 0, &[]) else { return Ok(()) };
        self.front.memory.write_all_at(&work.header, PARAMETERS)?;
        let head = (PARAMETERS, u32::try_from(work.header.len())?, false);
        let answer = (PARAMETERS + 4096, kind.answer_len(), true);
        let data = (0..PIECES).map(|piece| (DATA + u64::from(piece) * 1024, PIECE, true));
        let mut pieces: Vec<Piece> = std::iter::once(head).chain(data).collect();
        pieces.insert(if kind == Kind::Scsi { 1 } else { pieces.len() }, answer);
        self.front.write_table(TABLE, &pieces)?;
        // As long as the ring: the last pieces of the data are one.
        let last = kind.first() + QUEUES - 1;
        let surplus = pieces.len() - usize::from(ENTRIES);
        let at = pieces.len() - 1 - usize::from(kind == Kind::Blk) - surplus;
        pieces.drain(at..at + surplus);
        pieces[at].1 += PIECE * u32::try_from(surplus)?;
        for (id, piece) in (0_u16..).zip(&pieces) {
            let flags = if id + 1 < ENTRIES { NEXT } else { 0 };
            self.front.write_descriptor(last, id, *piece, flags, id + 1)?;
        }
        Ok(())
    }

    /// The ring of the next request.
    fn ring(&self) -> u16 {
        let first = self.front.kind.first();
        let next = first + (self.sent % u32::from(QUEUES)) as u16;
        // A chain as long as its ring is alone in it.
        let is_occupied = self.is_chain(next) && !self.front.is_empty(next);
        if is_occupied { first } else { next }
    }

    /// Whether requests in this ring are chains as long as the ring, instead of tables.
    fn is_chain(&self, ring: u16) -> bool {
        self.request == Request::ScatteredRead && ring == self.front.kind.first() + QUEUES - 1
    }

    /// Puts a request into a ring and notifies the device; returns its descriptor.
    fn put(&mut self, ring: u16) -> Result<u16> {
        // In an empty ring it is the first one, with which a chain begins.
        let id = self.front.free(ring).context("the ring is full")?;
        let is_constant = !matches!(self.request, Request::Register | Request::Copy | Request::Describe);
        let is_described = is_constant && self.described.contains(&(ring, id));
        if !self.is_chain(ring) && !is_described {
            self.describe(ring, id)?;
            self.described.insert((ring, id));
        }
        self.front.offer(ring, id)?;
        self.front.kick(ring)?;
        self.in_progress += 1;
        Ok(id)
    }

    fn describe(&self, ring: u16, id: u16) -> Result<()> {
        if self.request == Request::ScatteredRead {
            return self.front.refer(ring, id, TABLE, PIECES as usize + 2);
        }
        let reading = if self.request == Request::Reset { Request::LongRead } else { self.request };
        let Some(work) = work(self.front.kind, reading, self.sent, &self.names) else { return Ok(()) };
        let data = match work.payload {
            Payload::None => [None, None],
            Payload::In(len) => [None, Some((DATA, len, true))],
            Payload::Zeroes(len) => [Some((ZEROES, len, false)), None],
            Payload::Out(data) => {
                self.front.memory.write_all_at(&data, PARAMETERS)?;
                [Some((PARAMETERS, u32::try_from(data.len())?, false)), None]
            }
        };
        self.front.describe(ring, id, &work.header, data)
    }

    /// A task management function.
    fn abort(&mut self) -> Result<()> {
        let id = self.front.free(0).context("the control ring is full")?;
        let function = FUNCTIONS[self.sent as usize % FUNCTIONS.len()];
        let header = task_management(function, volume::SMALL, self.sent.into());
        self.front.describe(0, id, &header, [None, None])?;
        self.front.offer(0, id)?;
        self.in_progress += 1;
        self.front.kick(0)
    }

    /// Attacks with notifications and messages instead of requests.
    fn disturb(&mut self) -> Result<()> {
        match self.request {
            Request::Doorbell => {
                (0..KICKS_AT_ONCE).try_for_each(|kick| self.front.kick(kick % (QUEUES + self.front.kind.first())))
            }
            Request::Remap => {
                for map in 0..MAPS_AT_ONCE {
                    let region = region(MEMORY + map * (1 << 20), 1 << 20, USER + MEMORY + map * (1 << 20));
                    let payload = [&[0; 8][..], &region].concat();
                    self.front.call(code::ADD_MEM_REG, &payload, &[self.region.as_fd()])?;
                    self.front.call(code::REM_MEM_REG, &payload, &[])?;
                }
                self.front.share_memory()
            }
            Request::Reset => {
                for _ in 0..RESET_REQUESTS {
                    self.put(self.front.kind.first())?;
                }
                self.in_progress = 0;
                self.front.call(code::RESET_DEVICE, &[], &[])?;
                self.front.start(self.front.kind.first() + QUEUES)
            }
            _ => {
                let ring = self.front.kind.first();
                // A descriptor that is its own successor.
                self.front.write_descriptor(ring, 0, (DATA, 16, false), NEXT, 0)?;
                self.front.offer(ring, 0)?;
                self.front.kick(ring)?;
                for ring in 0..ring + QUEUES {
                    self.front.stop(ring)?;
                }
                let mut asked = [0; 24];
                asked[16..18].copy_from_slice(&RECORD.0.to_le_bytes());
                asked[18..20].copy_from_slice(&RECORD.1.to_le_bytes());
                self.front.call(code::GET_INFLIGHT_FD, &asked, &[])?;
                (0..ring + QUEUES).try_for_each(|ring| self.front.set_up(ring))
            }
        }
    }

    /// The descriptors of requests that have ended, with their rings.
    fn ended(&mut self) -> Result<Vec<(u16, u16)>> {
        let (first, mut ended) = (self.front.kind.first(), Vec::new());
        for ring in (0..1).chain(first.max(1)..first + QUEUES) {
            while let Some(id) = self.front.returned(ring)? {
                ended.push((ring, id));
            }
        }
        self.in_progress = self.in_progress.saturating_sub(ended.len());
        Ok(ended)
    }
}

impl Attacker for VmAttacker {
    fn has_room(&self) -> bool {
        match self.request {
            Request::Doorbell | Request::Remap | Request::Reset | Request::SetUp => self.in_progress == 0,
            Request::Abort => self.in_progress < CONTROLS,
            Request::Ping => self.in_progress < MESSAGES,
            _ => self.in_progress < REQUESTS,
        }
    }

    fn send(&mut self) -> Result<()> {
        match self.request {
            Request::Doorbell | Request::Remap | Request::Reset | Request::SetUp => {
                self.disturb()?;
                self.in_progress = 1;
            }
            Request::Abort => self.abort()?,
            Request::Ping => {
                self.front.send_raw(&message(code::GET_STATUS, &[]))?;
                self.in_progress += 1;
            }
            _ => drop(self.put(self.ring())?),
        }
        self.sent = self.sent.wrapping_add(1);
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        match self.request {
            Request::Doorbell | Request::Remap | Request::Reset | Request::SetUp => self.in_progress = 0,
            Request::Ping => {
                self.front.reply()?;
                self.in_progress -= 1;
            }
            _ => {
                let end = Instant::now() + RECEIVE_LIMIT;
                while self.ended()?.is_empty() && Instant::now() < end {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        }
        Ok(())
    }
}

/// The requests of an attacker must not be refused for their form: each is sent alone, and succeeds.
pub(super) fn check_forms(vhost: &VhostUser) -> Result<()> {
    let scattered = [Request::ScatteredRead, Request::Write];
    let requests = scsi_commands::CHECKED.into_iter().chain(scattered);
    for request in requests.filter(|request| vhost.has_request(*request)) {
        check_form(vhost, request).with_context(|| format!("{request:?}"))?;
    }
    for request in [Request::Abort, Request::Doorbell, Request::Remap, Request::Reset, Request::SetUp, Request::Ping] {
        if vhost.has_request(request) {
            let mut attacker = vhost.attacking(0, request)?;
            attacker.send().and_then(|()| attacker.receive()).with_context(|| format!("{request:?}"))?;
            ensure!(attacker.in_progress == 0, "{request:?} has not ended");
        }
    }
    Ok(())
}

/// Sends a request through each ring for requests. The first one of virtio-scsi may get a unit attention.
fn check_form(vhost: &VhostUser, request: Request) -> Result<()> {
    let (mut attacker, mut attentions) = (vhost.attacking(0, request)?, 0);
    // A second sanitize operation would be refused while the first one is in progress.
    let count = if request == Request::Sanitize { 1 } else { u32::from(QUEUES) };
    while attacker.sent < count + attentions {
        let ring = attacker.ring();
        attacker.put(ring)?;
        attacker.sent += 1;
        let end = Instant::now() + Duration::from_secs(20);
        let id = loop {
            match attacker.ended()?.first() {
                Some((_, id)) => break *id,
                None => std::thread::sleep(Duration::from_micros(50)),
            }
            ensure!(Instant::now() < end, "no answer");
        };
        let is_shared = request == Request::ScatteredRead;
        let at = if is_shared { PARAMETERS + 4096 } else { answer_at(ring, id) };
        let mut answer = [0; 108];
        attacker.front.memory.read_exact_at(&mut answer, at)?;
        let status = if vhost.kind == Kind::Scsi { &answer[10..12] } else { &answer[..1] };
        if status == [2, 0] && answer[12 + 2] & 0xf == 6 && attentions < 4 {
            attentions += 1;
            continue;
        }
        ensure!(status.iter().all(|byte| *byte == 0), "status and response {status:02x?}, {:02x?}", &answer[12..32]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_the_requests_of_virtio_blk_only() {
        let made = |request| work(Kind::Blk, request, 0, &[]);
        let discard = made(Request::Unmap).expect("it has discards");
        let Payload::Out(ranges) = discard.payload else { panic!("ranges") };
        assert_eq!((discard.header[0], ranges.len(), &ranges[8..12]), (11, 512, &(1_u32 << 21).to_le_bytes()[..]));
        assert!(made(Request::Compare).is_none() && made(Request::Repeat).is_none());
        assert!(work(Kind::Scsi, Request::Compare, 0, &[]).is_some());
    }

    #[test]
    fn each_device_has_a_name_of_its_own() {
        let all = devices();
        let names: BTreeSet<&str> = all.iter().map(|device| &*device.name).collect();
        assert_eq!(names.len(), all.len());
    }
}
