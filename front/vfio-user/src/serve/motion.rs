//! A device on its way to another process, which serves the same volumes: it stands still, tells what it is, becomes
//! what another was, and goes on.
//!
//! Commands that were fetched end before it stands still, so none is lost and none is carried out twice; those that
//! were not are fetched where it goes on, for they lie in the guest's memory.

use super::device::{Device, ENABLE};
use crate::config::RECORD_MAX;
use crate::feature::way;
use crate::record::{Record, Refusal, SeenNamespace};
use crate::registers::NvmeRegisters;
use crate::wire::{Errno, State};
use std::time::Duration;

/// How long commands get to end before the device stands still. Clients wait five seconds for an answer.
const DRAIN: Duration = Duration::from_secs(4);
/// How often it is looked whether they have.
const DRAIN_LOOK: Duration = Duration::from_micros(200);

/// Whether a device runs, and what it tells or was told of itself.
pub(super) struct Motion {
    pub(super) state: State,
    record: Vec<u8>,
    /// How much of it was told.
    told: usize,
}

impl Default for Motion {
    fn default() -> Self {
        Self { state: State::RUNNING, record: Vec::new(), told: 0 }
    }
}

impl Device {
    /// Whether it runs, and what it does on its way.
    pub(super) fn state(&self) -> State {
        self.motion.borrow().state
    }

    /// Runs, or stands still, or takes its state from elsewhere.
    ///
    /// # Errors
    /// [`Errno::INVAL`] for a state that none leads to, and for a state from elsewhere that cannot be: that takes a
    /// reset. [`Errno::BUSY`] when commands, or works on whole media, do not end: then it runs as before.
    /// [`Errno::IO`] when what it has written cannot be flushed: then it stays where it is.
    pub(super) async fn move_to(&self, to: State) -> Result<(), Errno> {
        for step in way(self.state(), to).ok_or(Errno::INVAL)? {
            match self.step(self.state(), *step).await {
                Ok(record) => *self.motion.borrow_mut() = Motion { state: *step, record, told: 0 },
                Err(why) => {
                    if !matches!(why, Errno::BUSY | Errno::IO) {
                        self.motion.borrow_mut().state = State::ERROR;
                    }
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    /// What it has to tell in the new state.
    async fn step(&self, from: State, to: State) -> Result<Vec<u8>, Errno> {
        match (from, to) {
            (State::RUNNING, _) => self.stand_still().await?,
            (_, State::RUNNING) => self.go_on(),
            (_, State::STOP_COPY) => {
                // Where it goes on, others may read what it has written, and nobody there knows that some was lost.
                self.flush_all().await.map_err(|_| Errno::IO)?;
                return Ok(self.save().to_bytes());
            }
            (_, State::RESUMING) => {
                self.clear().await;
                self.admin.controller.hold_events(true);
            }
            (State::RESUMING, _) => self.restore()?,
            _ => {}
        }
        Ok(Vec::new())
    }

    /// Commands that were fetched end, and then nothing happens any more.
    async fn stand_still(&self) -> Result<(), Errno> {
        self.is_still.set(true);
        self.admin.controller.hold_events(true);
        let end = self.front.reactor.now() + DRAIN;
        while !self.is_quiet() {
            if self.front.reactor.now() >= end {
                self.log(&format!(
                    "it does not move: its commands or works on its media have not ended after {} s",
                    DRAIN.as_secs()
                ));
                self.go_on();
                return Err(Errno::BUSY);
            }
            self.front.reactor.sleep(DRAIN_LOOK).await;
        }
        self.with(NvmeRegisters::flush);
        self.raise();
        Ok(())
    }

    /// Goes on, and looks at everything.
    pub(super) fn go_on(&self) {
        self.is_still.set(false);
        self.admin.controller.hold_events(false);
        // Who was told of a completion is told once more, for that may have been elsewhere.
        self.with(NvmeRegisters::raise_unread);
        self.look_again();
    }

    fn namespaces(&self) -> Vec<SeenNamespace> {
        let seen = self.admin.namespaces();
        let seen = seen.iter().map(|seen| SeenNamespace {
            uuid: seen.namespace.unit.identity.uuid,
            id: seen.id.into(),
            block_size: seen.namespace.block_size().into(),
        });
        seen.collect()
    }

    fn save(&self) -> Record {
        Record {
            machine: self.machine().save(),
            space: Box::new(*self.space.borrow().used()),
            controller: self.admin.controller.save(),
            namespaces: self.namespaces(),
        }
    }

    /// Becomes what was told.
    fn restore(&self) -> Result<(), Errno> {
        let bytes = std::mem::take(&mut self.motion.borrow_mut().record);
        self.become_what(&bytes).map_err(|why| {
            self.log(&format!("it cannot go on here: {why}"));
            Errno::INVAL
        })
    }

    fn become_what(&self, bytes: &[u8]) -> Result<(), &'static str> {
        let record = Record::parse(bytes).map_err(|why| match why {
            Refusal::Foreign => "its state comes from another version",
            Refusal::Malformed => "its state is incomplete or malformed",
        })?;
        let here = self.namespaces();
        if !record.namespaces.iter().all(|seen| here.contains(seen)) {
            return Err("a volume that it uses is not here, or is another");
        }
        if !self.space.borrow_mut().restore(&record.space) {
            return Err("it is another device");
        }
        const NONSENSE: &str = "its state makes no sense";
        let events = &record.controller.events;
        // A few at most.
        let waiting = (events.waiting.len() + events.aborted.len()) as u16;
        let controller = &self.admin.controller;
        // Whatever comes of it, a reset undoes it.
        self.applied.set(ENABLE);
        let (wanted, in_force) = (record.machine.registers.wanted.get(), record.controller.configuration);
        let is_on = wanted & ENABLE != 0;
        // Only a configuration that cannot be is wanted and not in force; without being on there are no queues.
        let differs = is_on != (in_force & ENABLE != 0) && !(is_on && record.machine.is_fatal());
        if differs || !is_on && record.machine.has_queues() {
            return Err(NONSENSE);
        }
        controller.restore(&record.controller).map_err(|_| NONSENSE)?;
        controller.hold_events(true);
        self.with(|machine| machine.restore(&record.machine, waiting)).map_err(|_| NONSENSE)?;
        for (id, entries) in record.machine.io_queues() {
            let queue = self.subsystem().open_queue(controller, id, entries).map_err(|_| NONSENSE)?;
            self.queues.borrow_mut()[usize::from(id)] = Some(queue);
        }
        self.applied.set(wanted);
        Ok(())
    }

    /// The next bytes of what it is; fewer than asked for at the end.
    ///
    /// # Errors
    /// [`Errno::INVAL`] unless it tells what it is.
    pub(super) fn tell(&self, len: usize) -> Result<Vec<u8>, Errno> {
        let mut motion = self.motion.borrow_mut();
        if motion.state != State::STOP_COPY {
            return Err(Errno::INVAL);
        }
        let from = motion.told;
        let to = motion.record.len().min(from + len);
        motion.told = to;
        Ok(motion.record[from..to].to_vec())
    }

    /// The next bytes of what it becomes.
    ///
    /// # Errors
    /// [`Errno::INVAL`] unless it takes them, [`Errno::NOSPC`] for too many.
    pub(super) fn hear(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut motion = self.motion.borrow_mut();
        if motion.state != State::RESUMING {
            return Err(Errno::INVAL);
        }
        if motion.record.len() + bytes.len() > RECORD_MAX {
            return Err(Errno::NOSPC);
        }
        motion.record.extend(bytes);
        Ok(())
    }
}
