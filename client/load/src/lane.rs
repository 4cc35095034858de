//! The commands of one session under load.

use crate::load::{Job, Load, Operation};
use crate::pattern::Blocks;
use crate::session::{Outcome, Request, Session, SessionEvent, Work};
use crate::verify::Expect;
use anyhow::Result;
use std::rc::Rc;
use std::time::Duration;

/// A slot for one command.
#[derive(Debug)]
struct Slot {
    job: Job,
    /// The start of the command, in nanoseconds on the clock of the run.
    started: u64,
    blocks: Blocks,
    buffer: Option<Rc<[u8]>>,
}

/// The command slots of a session.
#[derive(Debug)]
pub(crate) struct Lane {
    number: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Commands that the target could not execute, to be sent again.
    retries: Vec<u32>,
    /// The longest time for which a command is retried, in nanoseconds.
    timeout: u64,
}

impl Lane {
    pub(crate) fn new(number: usize, depth: u32, timeout: Duration) -> Self {
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let idle = Job { kind: Operation::Flush, chunk: 0, number: 0, expect: Expect::Anything, is_first: false };
        let slots = (0..depth).map(|_| Slot { job: idle, started: 0, blocks: Blocks::default(), buffer: None });
        Self { number, slots: slots.collect(), free: (0..depth).rev().collect(), retries: Vec::new(), timeout }
    }

    /// Whether no command is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Handles an event of the session at the time `now`.
    ///
    /// # Errors
    /// If the run cannot continue.
    #[inline]
    pub(crate) fn handle(&mut self, load: &mut Load, now: u64, event: SessionEvent<'_>) -> Result<()> {
        load.answered += u64::from(matches!(event, SessionEvent::Done(..)));
        match event {
            SessionEvent::Data(cookie, bytes) => {
                let Slot { job, blocks, .. } = &mut self.slots[cookie as usize];
                if job.expect != Expect::Anything {
                    blocks.feed(bytes, load.plan.block_size as usize, |lba, block| load.check(job, lba, block));
                }
            }
            SessionEvent::Done(cookie, Outcome::Good) => {
                let slot = &self.slots[cookie as usize];
                self.free.push(cookie);
                return load.done(&slot.job, now.saturating_sub(slot.started));
            }
            SessionEvent::Done(cookie, Outcome::Again) => {
                let slot = &self.slots[cookie as usize];
                if now.saturating_sub(slot.started) > self.timeout {
                    load.failed(&slot.job, "the target was busy for the whole timeout");
                    self.free.push(cookie);
                    return Ok(());
                }
                load.retries += 1;
                self.retries.push(cookie);
            }
            SessionEvent::Done(cookie, Outcome::Failed(why)) => {
                load.failed(&self.slots[cookie as usize].job, &why);
                self.free.push(cookie);
            }
        }
        Ok(())
    }

    /// Starts as many commands as depth, command window and load allow.
    #[inline]
    pub(crate) fn refill(&mut self, session: &mut impl Session, load: &mut Load, now: u64) {
        for _ in 0..session.room() {
            let cookie = match self.retries.pop() {
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
            let work = match job.kind {
                Operation::Read => Work::Read,
                Operation::Write => Work::Write(load.data(job, buffer)),
                Operation::Flush => Work::Flush,
            };
            let plan = &load.plan;
            let lba = plan.lba(job.chunk);
            if job.expect != Expect::Anything {
                blocks.start(lba);
            }
            session.start(Request { cookie, work, lba, blocks: plan.blocks, bytes: plan.bytes, fua: plan.fua });
        }
    }
}
