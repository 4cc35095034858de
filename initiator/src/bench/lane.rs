//! One session under load: which commands it has outstanding, and what follows their ends.

use crate::bench::load::{Job, Kind, Load};
use crate::bench::verify::Expect;
use crate::cdb::{Key, Sense, Status};
use crate::pattern::Blocks;
use crate::session::{Command, Event, Moves, Residual, Session};
use anyhow::{Result, bail};
use lunar_iscsi::wire::{AsyncEvent, Response};
use std::rc::Rc;

/// A command that is outstanding, or may be.
#[derive(Debug)]
struct Slot {
    job: Job,
    /// Nanoseconds on the run's clock.
    started: u64,
    blocks: Blocks,
    buffer: Option<Rc<[u8]>>,
}

/// What a session carries out.
#[derive(Debug)]
pub(crate) struct Lane {
    number: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Commands that the target could not take, to be sent again.
    again: Vec<u32>,
}

impl Lane {
    pub(crate) fn new(number: usize, depth: u32) -> Self {
        let idle = Job { kind: Kind::Flush, place: 0, number: 0, expect: Expect::Anything };
        let slots = (0..depth).map(|_| Slot { job: idle, started: 0, blocks: Blocks::default(), buffer: None });
        Self { number, slots: slots.collect(), free: (0..depth).rev().collect(), again: Vec::new() }
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Takes in what the target said at `now`.
    ///
    /// # Errors
    /// When the run cannot go on.
    #[inline]
    pub(crate) fn event(&mut self, load: &mut Load, now: u64, event: Event<'_>) -> Result<()> {
        match event {
            Event::Data { cookie, bytes, .. } => {
                let Slot { job, blocks, .. } = &mut self.slots[cookie as usize];
                if job.expect != Expect::Anything {
                    blocks.feed(bytes, load.plan.block_size as usize, |lba, block| load.check(job, lba, block));
                }
                Ok(())
            }
            Event::Done { cookie, response, status, residual, sense } => {
                let good = response == Response::COMPLETED && status == 0 && residual == Residual::None;
                if !good {
                    self.not_good(load, cookie, response, Status(status), residual, sense);
                    return Ok(());
                }
                let slot = &self.slots[cookie as usize];
                self.free.push(cookie);
                load.done(&slot.job, now.saturating_sub(slot.started))
            }
            Event::Rejected { reason, .. } => bail!("the target rejected a PDU: {reason:?}"),
            Event::Async(event) if event != AsyncEvent::SCSI && event != AsyncEvent::VENDOR => {
                bail!("the target sent the asynchronous message {event:?}")
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn not_good(
        &mut self,
        load: &mut Load,
        cookie: u32,
        response: Response,
        status: Status,
        residual: Residual,
        sense: &[u8],
    ) {
        let sense = Sense::parse(sense);
        let attention = sense.is_some_and(|sense| sense.key == Key::UNIT_ATTENTION);
        if status == Status::BUSY || status == Status::TASK_SET_FULL || attention {
            load.retries += 1;
            self.again.push(cookie);
            return;
        }
        let why = match sense {
            Some(sense) => format!("{status:?}, {sense}"),
            None if response != Response::COMPLETED => format!("{response:?}"),
            None => format!("{status:?}, residual {residual:?}"),
        };
        load.failed(&self.slots[cookie as usize].job, &why);
        self.free.push(cookie);
    }

    /// Starts as many commands as the depth, the window and the load allow.
    #[inline]
    pub(crate) fn refill(&mut self, session: &mut Session, load: &mut Load, now: u64) {
        for _ in 0..session.room() {
            let cookie = match self.again.pop() {
                Some(cookie) => cookie,
                None => {
                    let Some(&cookie) = self.free.last() else { return };
                    let Some(job) = load.next(self.number) else { return };
                    self.free.pop();
                    let slot = &mut self.slots[cookie as usize];
                    (slot.job, slot.started) = (job, now);
                    cookie
                }
            };
            let Slot { job, blocks, buffer, .. } = &mut self.slots[cookie as usize];
            let moves = match job.kind {
                Kind::Read => Moves::In(load.plan.bytes),
                Kind::Write => Moves::Out(load.data(job, buffer)),
                Kind::Flush => Moves::Nothing,
            };
            if job.expect != Expect::Anything {
                blocks.start(load.plan.lba(job.place));
            }
            let cdb = load.plan.cdb(job);
            let len = if cdb[0] < 0x80 { 10 } else { 16 };
            session
                .submit(Command { cookie, lun: load.plan.lun, cdb: &cdb[..len], moves })
                .expect("no more are started than there is room for");
        }
    }
}
