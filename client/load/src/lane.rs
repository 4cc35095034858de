//! One session under load: which commands it has outstanding, and what follows their ends.

use crate::driven::{Ending, Request, Session, Told, Work};
use crate::load::{Job, Kind, Load};
use crate::pattern::Blocks;
use crate::verify::Expect;
use anyhow::Result;
use std::rc::Rc;
use std::time::Duration;

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
    /// Nanoseconds for which a command is sent again.
    patience: u64,
}

impl Lane {
    pub(crate) fn new(number: usize, depth: u32, patience: Duration) -> Self {
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let idle = Job { kind: Kind::Flush, place: 0, number: 0, expect: Expect::Anything, is_first: false };
        let slots = (0..depth).map(|_| Slot { job: idle, started: 0, blocks: Blocks::default(), buffer: None });
        Self { number, slots: slots.collect(), free: (0..depth).rev().collect(), again: Vec::new(), patience }
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
    pub(crate) fn take_in(&mut self, load: &mut Load, now: u64, told: Told<'_>) -> Result<()> {
        load.answered += u64::from(matches!(told, Told::Done(..)));
        match told {
            Told::Data(cookie, bytes) => {
                let Slot { job, blocks, .. } = &mut self.slots[cookie as usize];
                if job.expect != Expect::Anything {
                    blocks.feed(bytes, load.plan.block_size as usize, |lba, block| load.check(job, lba, block));
                }
            }
            Told::Done(cookie, Ending::Good) => {
                let slot = &self.slots[cookie as usize];
                self.free.push(cookie);
                return load.done(&slot.job, now.saturating_sub(slot.started));
            }
            Told::Done(cookie, Ending::Again) => {
                let slot = &self.slots[cookie as usize];
                if now.saturating_sub(slot.started) > self.patience {
                    load.failed(&slot.job, "the target was busy for too long");
                    self.free.push(cookie);
                    return Ok(());
                }
                load.retries += 1;
                self.again.push(cookie);
            }
            Told::Done(cookie, Ending::Failed(why)) => {
                load.failed(&self.slots[cookie as usize].job, &why);
                self.free.push(cookie);
            }
        }
        Ok(())
    }

    /// Starts as many commands as the depth, the window and the load allow.
    #[inline]
    pub(crate) fn refill(&mut self, session: &mut impl Session, load: &mut Load, now: u64) {
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
            let work = match job.kind {
                Kind::Read => Work::Read,
                Kind::Write => Work::Write(load.data(job, buffer)),
                Kind::Flush => Work::Flush,
            };
            let plan = &load.plan;
            let lba = plan.lba(job.place);
            if job.expect != Expect::Anything {
                blocks.start(lba);
            }
            session.start(Request { cookie, work, lba, blocks: plan.blocks, bytes: plan.bytes, fua: plan.fua });
        }
    }
}
