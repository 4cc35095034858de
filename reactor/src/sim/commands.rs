//! Commands to simulated devices: each is executed at a time that the seed determines, so they end in any order.

use super::World;
use super::core_state::Kind;
use super::device::Device;
use super::job::CommandJob;
use super::state::{Event, State};
use crate::endpoint::Endpoint;
use crate::op::Op;
use lunar_core::io::{Data, Done, Fault, Outcome};
use std::cell::RefCell;
use std::rc::Rc;

impl World {
    /// A device, to be attached to a core.
    #[must_use]
    pub fn device(&self, device: impl Device + 'static) -> Endpoint {
        self.enter(|state| {
            let id = u32::try_from(state.serial()).unwrap_or(u32::MAX);
            state.devices.insert(id, Rc::new(RefCell::new(device)));
            Endpoint::Simulated(id)
        })
    }
}

impl State {
    pub(super) fn start_command(&mut self, core: usize, op: Op, done: Done) {
        let Op::Command { device: handle, command } = op else {
            unreachable!("only device commands come here");
        };
        let device = match self.cores[core].handles.get(&handle.id()) {
            Some(Kind::Device(id)) => self.devices.get(id).cloned(),
            _ => None,
        };
        let Some(device) = device else {
            return self.refuse(core, done, Fault::Unsupported, Data::Carried(command), Some(handle));
        };
        let fault = self.chance.odds(self.faults.command_error).then_some(Fault::Medium);
        let time = self.operation_time();
        let key = self.serial();
        self.note(format_args!("core {core} device {}: {:?}", handle.id(), command.request));
        self.commands.insert(key, CommandJob { core, device, command, done, handle, fault });
        self.schedule(self.now + time, Event::Command(key));
    }

    /// A device has executed a command.
    pub(super) fn finish_command(&mut self, job: CommandJob, result: Result<u32, Fault>) {
        let CommandJob { core, command, done, handle, .. } = job;
        self.note(format_args!("core {core} device {}: answers {result:?}", handle.id()));
        self.answer(core, done, Outcome::with(result, Data::Carried(command)), Some(handle));
    }

    /// Drops the commands of a core that has ended.
    pub(super) fn drop_commands(&mut self, core: usize) {
        let (gone, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.commands).into_iter().partition(|(_, job)| job.core == core);
        self.commands = kept.into_iter().collect();
        self.left.dropped_commands.extend(gone.into_iter().map(|(_, job)| job));
    }
}
