//! Control commands, through the reactor.

use crate::life::{Kernel, Rights};
use crate::user::DiskUser;
use crate::wire::{ControlCommand, NO_QUEUE};
use lunar_core::io::{Completion, Data, Fault};
use lunar_core::mem::SgMut;
use lunar_reactor::Reactor;
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::command::{Command, Request, UblkControl};
use lunar_reactor::endpoint::ublk::served_at;
use lunar_reactor::op::Handle;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The control device of the kernel, on one core.
#[derive(Debug)]
pub struct ControlDevice {
    reactor: Reactor,
    handle: Handle,
    rights: Rights,
}

impl ControlDevice {
    /// The control device that was opened, for a process with these rights.
    ///
    /// # Errors
    /// When the driver of the core gives no such commands.
    pub fn new(reactor: &Reactor, endpoint: Endpoint, rights: Rights) -> io::Result<Self> {
        Ok(Self { reactor: reactor.clone(), handle: reactor.attach(endpoint)?, rights })
    }
}

impl Kernel for ControlDevice {
    fn rights(&self) -> Rights {
        self.rights
    }

    async fn call(&self, command: ControlCommand, memory: &mut [u8]) -> Result<u32, Fault> {
        // The kernel looks at the permissions of the node that an unprivileged process names before its data.
        let is_named = self.rights == Rights::Unprivileged && command.number.is_about_device();
        let path = if is_named { served_at(command.device) } else { String::new() };
        let data = match memory.len() + path.len() {
            0 => Data::None,
            len => {
                let mut buf = self.reactor.arena().take(len).ok_or(Fault::NoMemory)?;
                buf.write(0, path.as_bytes());
                buf.write(path.len(), memory);
                let mut sg = SgMut::default();
                sg.push(buf);
                Data::In(sg)
            }
        };
        let ControlCommand { number, device, data: value } = command;
        let only_reads = number.only_reads();
        // Far shorter than 64 KiB.
        let path_len = path.len() as u16;
        let request = UblkControl { number: number.0, only_reads, device, queue: NO_QUEUE, data: value, path_len };
        let (command, mut completion) = (Command::new(Request::UblkControl(request), data), Completion::new());
        let (result, back) = self.reactor.command(&self.handle, command, &mut completion).await;
        if let Some(Data::In(filled)) = back.map(|command| command.data) {
            filled.copy_to(path.len(), memory);
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
