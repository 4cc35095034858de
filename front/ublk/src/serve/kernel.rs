//! Control commands, through the reactor.

use crate::life::Kernel;
use crate::user::DiskUser;
use crate::wire::{ControlCommand, NO_QUEUE};
use lunar_core::io::{Completion, Data, Fault};
use lunar_core::mem::SgMut;
use lunar_reactor::Reactor;
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::command::{Command, Request, UblkControl};
use lunar_reactor::op::Handle;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The control device of the kernel, on one core.
pub(super) struct ControlDevice {
    reactor: Reactor,
    handle: Handle,
}

impl ControlDevice {
    /// The control device that was opened.
    ///
    /// # Errors
    /// When the driver of the core gives no such commands.
    pub(super) fn new(reactor: &Reactor, endpoint: Endpoint) -> io::Result<Self> {
        Ok(Self { reactor: reactor.clone(), handle: reactor.attach(endpoint)? })
    }
}

impl Kernel for ControlDevice {
    async fn call(&self, command: ControlCommand, memory: &mut [u8]) -> Result<u32, Fault> {
        let data = match memory.is_empty() {
            true => Data::None,
            false => {
                let mut buf = self.reactor.arena().take(memory.len()).ok_or(Fault::NoMemory)?;
                buf.write(0, memory);
                let mut sg = SgMut::default();
                sg.push(buf);
                Data::In(sg)
            }
        };
        let ControlCommand { number, device, data: value } = command;
        let only_reads = number.only_reads();
        let request = UblkControl { number: number.0, only_reads, device, queue: NO_QUEUE, data: value, path_len: 0 };
        let (command, mut completion) = (Command::new(Request::UblkControl(request), data), Completion::new());
        let (result, back) = self.reactor.command(&self.handle, command, &mut completion).await;
        if let Some(Data::In(filled)) = back.map(|command| command.data) {
            filled.copy_to(0, memory);
        }
        result
    }

    async fn pause(&self, time: Duration) {
        self.reactor.sleep(time).await;
    }

    fn lives(&self, pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    fn user_of(&self, number: u32) -> Option<DiskUser> {
        DiskUser::of(number)
    }
}
