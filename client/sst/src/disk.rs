//! One disk of a target: it is found by its capacity, and read and written by its logical block addresses.

use crate::initiator::{Command, Initiator, InitiatorConfig, InitiatorEvent};
use lunar_core::time::Instant;
use lunar_sst::wire::LoginStatus;
use lunar_st::Path;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Status of a command: CHECK CONDITION, BUSY, TASK SET FULL.
const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const TASK_SET_FULL: u8 = 0x28;
/// Sense key: UNIT ATTENTION.
const UNIT_ATTENTION: u8 = 0x06;
/// The number of the command that finds the disk: no other one has it.
const FINDING: u32 = u32::MAX;
/// Bytes of the answer of READ CAPACITY(16).
const CAPACITY_LEN: u32 = 32;
/// The time after which a command that found the target busy is sent again.
const PAUSE: Duration = Duration::from_millis(20);

/// The operation of a command.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Reads blocks.
    Read {
        /// The first one.
        lba: u64,
        /// Their number.
        count: u32,
    },
    /// Writes whole blocks.
    Write {
        /// The first one.
        lba: u64,
        /// The data.
        data: Rc<[u8]>,
    },
    /// Brings what was written to the medium.
    Flush,
}

/// An event of the disk or of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskEvent<'a> {
    /// The disk was found: commands may start.
    Ready,
    /// The data of a read: the number of the command, and the data.
    Data(u32, &'a [u8]),
    /// A command has ended: with success, or with a SCSI status and a sense key.
    Done(u32, Result<(), (u8, u8)>),
    /// The target refuses the login, which is tried again.
    Refused(LoginStatus),
    /// The target has not answered for the whole timeout.
    Lost,
}

/// One disk of a target.
#[derive(Debug)]
pub struct Disk {
    initiator: Initiator,
    lun: [u8; 8],
    /// Blocks and bytes of a block, once it is found.
    found: Option<(u64, u32)>,
    /// The commands in progress.
    operations: BTreeMap<u32, Operation>,
    /// Commands that found the target busy.
    paused: Vec<(u32, Instant)>,
}

/// The LUN of a number below 256.
fn lun_of(number: u8) -> [u8; 8] {
    [0, number, 0, 0, 0, 0, 0, 0]
}

impl Disk {
    /// The disk of this LUN.
    #[must_use]
    pub fn new(config: InitiatorConfig, lun: u8, now: Instant) -> Self {
        Self {
            initiator: Initiator::new(config, now),
            lun: lun_of(lun),
            found: None,
            operations: BTreeMap::new(),
            paused: Vec::new(),
        }
    }

    /// The initiator.
    #[must_use]
    pub fn initiator(&self) -> &Initiator {
        &self.initiator
    }

    /// Whether commands may start.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.found.is_some()
    }

    /// Blocks, and bytes of a block.
    #[must_use]
    pub fn capacity(&self) -> (u64, u32) {
        self.found.unwrap_or((0, 512))
    }

    /// The next packet to send.
    pub fn next_packet(&mut self) -> Option<(Path, Vec<u8>)> {
        self.initiator.next_packet()
    }

    /// Starts a command. Its number is not that of another one in progress.
    pub fn start(&mut self, cookie: u32, operation: Operation, now: Instant) {
        let command = self.command(&operation);
        self.operations.insert(cookie, operation);
        self.initiator.start(cookie, command, now);
    }

    fn command(&self, operation: &Operation) -> Command {
        let block = self.capacity().1;
        let (code, lba, count) = match operation {
            Operation::Read { lba, count } => (0x88, *lba, *count),
            Operation::Write { lba, data } => (0x8a, *lba, data.len() as u32 / block),
            Operation::Flush => (0x91, 0, 0),
        };
        let mut cdb = [0; 16];
        cdb[0] = code;
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&count.to_be_bytes());
        let (data_in, data_out) = match operation {
            Operation::Read { count, .. } => (count * block, None),
            Operation::Write { data, .. } => (0, Some(data.clone())),
            Operation::Flush => (0, None),
        };
        Command { lun: self.lun, cdb, task: 0, data_in, data_out }
    }

    /// Asks for the capacity.
    fn find(&mut self, now: Instant) {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, CAPACITY_LEN as u8);
        let command = Command { lun: self.lun, cdb, task: 0, data_in: CAPACITY_LEN, data_out: None };
        self.initiator.start(FINDING, command, now);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, on: &mut impl FnMut(DiskEvent<'_>)) {
        let due: Vec<u32> = self.paused.iter().filter(|(_, at)| *at <= now).map(|(cookie, _)| *cookie).collect();
        self.paused.retain(|(_, at)| *at > now);
        due.into_iter().for_each(|cookie| self.again(cookie, now));
        self.initiator.tick(now);
        self.follow(now, on);
    }

    /// Takes a packet.
    pub fn receive(&mut self, path: Path, bytes: &[u8], now: Instant, on: &mut impl FnMut(DiskEvent<'_>)) {
        self.initiator.receive(path, bytes, now);
        self.follow(now, on);
    }

    fn again(&mut self, cookie: u32, now: Instant) {
        if cookie == FINDING {
            return self.find(now);
        }
        if let Some(operation) = self.operations.get(&cookie) {
            let command = self.command(operation);
            self.initiator.start(cookie, command, now);
        }
    }

    fn follow(&mut self, now: Instant, on: &mut impl FnMut(DiskEvent<'_>)) {
        while let Some(event) = self.initiator.next_event() {
            match event {
                InitiatorEvent::Ready if self.found.is_none() && self.initiator.in_progress() == 0 => self.find(now),
                // Commands have no time limit here, and those of a lost connection are sent again.
                InitiatorEvent::Ready | InitiatorEvent::Down | InitiatorEvent::TimedOut(_) => {}
                InitiatorEvent::Refused(status) => on(DiskEvent::Refused(status)),
                InitiatorEvent::Lost => on(DiskEvent::Lost),
                InitiatorEvent::Done(FINDING, 0, _, data) => self.found(&data, on),
                InitiatorEvent::Done(cookie, status, sense, data) => {
                    let key = sense.get(2).map_or(0, |key| key & 0x0f);
                    let is_attention = status == CHECK_CONDITION && key == UNIT_ATTENTION;
                    let is_busy = matches!(status, BUSY | TASK_SET_FULL);
                    if is_attention {
                        self.again(cookie, now);
                    } else if is_busy || cookie == FINDING {
                        self.paused.push((cookie, now + PAUSE));
                    } else {
                        self.operations.remove(&cookie);
                        if !data.is_empty() {
                            on(DiskEvent::Data(cookie, &data));
                        }
                        on(DiskEvent::Done(cookie, if status == 0 { Ok(()) } else { Err((status, key)) }));
                    }
                }
            }
        }
    }

    /// The answer of READ CAPACITY(16).
    fn found(&mut self, data: &[u8], on: &mut impl FnMut(DiskEvent<'_>)) {
        let Some((last, rest)) = data.split_first_chunk() else { return };
        let Some(block) = rest.first_chunk() else { return };
        self.found = Some((u64::from_be_bytes(*last).saturating_add(1), u32::from_be_bytes(*block).max(1)));
        on(DiskEvent::Ready);
    }
}
