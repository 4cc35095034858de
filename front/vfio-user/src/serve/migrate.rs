//! The migration of a device to another process that serves the same volumes.
//!
//! Commands that were fetched end before the device stops, so none is lost and none is carried out twice. All others
//! are in guest memory, and the destination fetches them there.

use super::control::ENABLE;
use super::device::Device;
use super::state::Motion;
use crate::config::RECORD_MAX;
use crate::feature::{Transition, transitions};
use crate::record::{Record, Refusal, SeenNamespace};
use crate::registers::NvmeRegisters;
use crate::wire::{Errno, State};
use std::time::Duration;

/// Time for commands to end before the device stops. Clients wait five seconds for a reply.
const DRAIN: Duration = Duration::from_secs(4);
/// Pauses between two looks whether they have ended.
const DRAIN_LOOK: Duration = Duration::from_micros(200);

impl Device {
    /// The state of the device.
    pub(super) fn state(&self) -> State {
        self.motion.borrow().state()
    }

    /// Changes the state of the device.
    ///
    /// # Errors
    /// [`Errno::INVAL`] for a state that cannot be reached, and for a record that is refused: then the device needs a
    /// reset. [`Errno::BUSY`] when commands, or rewrites of media, do not end: the device runs as before. [`Errno::IO`]
    /// when data cannot be flushed: the device stays stopped.
    pub(super) async fn change_state(&self, to: State) -> Result<(), Errno> {
        for transition in transitions(self.state(), to).ok_or(Errno::INVAL)? {
            match transition {
                Transition::Stop => self.stop_running().await?,
                Transition::Run => {
                    self.motion.replace(Motion::Running);
                    self.run();
                }
                Transition::StartCopy => {
                    // At the destination other clients may read the data of the guest, without notice that some of it
                    // was lost.
                    self.flush_all().await.map_err(|_| Errno::IO)?;
                    self.motion.replace(Motion::Copying { record: self.save().to_bytes(), read: 0 });
                }
                Transition::StartResume => {
                    self.clear().await;
                    self.admin.controller.hold_events(true);
                    self.motion.replace(Motion::Resuming { record: Vec::new() });
                }
                Transition::EndCopy => drop(self.motion.replace(Motion::Stopped)),
                Transition::EndResume => self.restore()?,
            }
        }
        Ok(())
    }

    /// Lets the commands that were fetched end, and fetches no more.
    async fn stop_running(&self) -> Result<(), Errno> {
        self.motion.replace(Motion::Stopping);
        self.admin.controller.hold_events(true);
        let end = self.core.reactor.now() + DRAIN;
        while !self.is_quiet() {
            if self.core.reactor.now() >= end {
                let seconds = DRAIN.as_secs();
                self.log_fault(&format!("not stopped: commands or rewrites of media have not ended after {seconds} s"));
                self.motion.replace(Motion::Running);
                self.run();
                return Err(Errno::BUSY);
            }
            self.core.reactor.sleep(DRAIN_LOOK).await;
        }
        self.with(NvmeRegisters::flush);
        self.raise();
        self.motion.replace(Motion::Stopped);
        Ok(())
    }

    /// Completes events and looks at the queues again: the device runs.
    pub(super) fn run(&self) {
        self.admin.controller.hold_events(false);
        // Interrupts may have been raised in another process.
        self.raise_unread();
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
            registers: self.registers().save(),
            configuration_space: Box::new(self.configuration_space.borrow().used()),
            controller: self.admin.controller.save(),
            namespaces: self.namespaces(),
        }
    }

    /// Restores the record that the client has written.
    fn restore(&self) -> Result<(), Errno> {
        let Motion::Resuming { record } = self.motion.replace(Motion::Stopped) else { return Err(Errno::INVAL) };
        self.restore_record(&record).map_err(|why| {
            self.log_fault(&format!("the migration record is refused: {why}"));
            self.motion.replace(Motion::Failed);
            Errno::INVAL
        })
    }

    fn restore_record(&self, bytes: &[u8]) -> Result<(), &'static str> {
        const INVALID: &str = "it describes a controller that cannot exist";
        let record = Record::parse(bytes).map_err(|why| match why {
            Refusal::Foreign => "it comes from another version",
            Refusal::Malformed => "it is incomplete or malformed",
        })?;
        let here = self.namespaces();
        if !record.namespaces.iter().all(|seen| here.contains(seen)) {
            return Err("a volume that the guest uses is missing or differs");
        }
        if !self.configuration_space.borrow_mut().restore(&record.configuration_space) {
            return Err("it comes from another device");
        }
        let events = &record.controller.events;
        // There are a few Asynchronous Event Requests at most.
        let waiting = (events.waiting.len() + events.aborted.len()) as u16;
        let controller = &self.admin.controller;
        // After a failure in the following, the reset of an enabled controller clears everything.
        self.configuration.set_in_force(ENABLE);
        let (wanted, in_force) = (record.registers.registers.cc.get(), record.controller.configuration);
        let is_enabled = wanted & ENABLE != 0;
        // A configuration is written and not in force only if it was refused; without CC.EN there are no queues.
        let differs = is_enabled != (in_force & ENABLE != 0) && !(is_enabled && record.registers.is_fatal());
        if differs || !is_enabled && record.registers.has_queues() {
            return Err(INVALID);
        }
        controller.restore(&record.controller).map_err(|_| INVALID)?;
        controller.hold_events(true);
        self.with(|registers| registers.restore(&record.registers, waiting)).map_err(|_| INVALID)?;
        for (id, entries) in record.registers.io_queues() {
            let queue = self.subsystem().open_queue(controller, id, entries).map_err(|_| INVALID)?;
            self.queues.borrow_mut()[usize::from(id)] = Some(queue);
        }
        self.configuration.set_in_force(wanted);
        Ok(())
    }

    /// The next bytes of the record, `len` at most; fewer at its end.
    ///
    /// # Errors
    /// [`Errno::INVAL`] in any other state than `STOP_COPY`.
    pub(super) fn read_record(&self, len: usize) -> Result<Vec<u8>, Errno> {
        let mut motion = self.motion.borrow_mut();
        let Motion::Copying { record, read } = &mut *motion else { return Err(Errno::INVAL) };
        let from = *read;
        *read = record.len().min(from + len);
        Ok(record[from..*read].to_vec())
    }

    /// Appends bytes to the record.
    ///
    /// # Errors
    /// [`Errno::INVAL`] in any other state than `RESUMING`, [`Errno::NOSPC`] for more than [`RECORD_MAX`].
    pub(super) fn write_record(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut motion = self.motion.borrow_mut();
        let Motion::Resuming { record } = &mut *motion else { return Err(Errno::INVAL) };
        if record.len() + bytes.len() > RECORD_MAX {
            return Err(Errno::NOSPC);
        }
        record.extend(bytes);
        Ok(())
    }
}
