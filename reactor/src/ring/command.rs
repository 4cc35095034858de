//! Commands to devices. Commands that fit into 64 bytes use the ring of the core; all others use a second ring with
//! entries of 128 bytes and completions of 32, which the first one polls while the core sleeps.

use super::entry::{Answer, Answers};
use super::open::Role;
use super::{COMMANDS, Inner, Ring};
use crate::clock;
use crate::endpoint::command::Encoded;
use crate::op::Op;
use crate::sys::raw;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use lunar_core::io::{Done, Fault};
use lunar_core::time::Instant;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Submissions between two system calls.
const SUBMISSIONS: u32 = 256;
/// Completions between two system calls: the commands of some drives with full queues.
const COMPLETIONS: u32 = 4096;
/// The pause between two checks for completions while the core ends.
const PAUSE: Duration = Duration::from_millis(1);

/// The ring of commands with wide entries.
pub(super) struct CommandRing {
    ring: IoUring<squeue::Entry128, cqueue::Entry32>,
    /// Commands that the device has not answered.
    in_flight: usize,
    /// Commands without room in the queue.
    backlog: VecDeque<squeue::Entry128>,
    /// Whether the ring of the core polls this one.
    is_watched: bool,
}

impl CommandRing {
    fn new() -> io::Result<Box<Self>> {
        // Completions that are produced in the context of this thread wait for its next system call.
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .setup_clamp()
            .dontfork()
            .build(SUBMISSIONS);
        let ring = ring.map_err(|error| {
            let what = format!("device commands need a ring with wide entries, from Linux 5.19 on: {error}");
            io::Error::new(error.kind(), what)
        })?;
        Ok(Box::new(Self { ring, in_flight: 0, backlog: VecDeque::new(), is_watched: false }))
    }

    fn push(&mut self, sqe: squeue::Entry128) {
        self.in_flight += 1;
        self.backlog.push_back(sqe);
        self.flush();
    }

    fn flush(&mut self) {
        while let Some(sqe) = self.backlog.front() {
            // SAFETY: the memory of the submission is owned by its entry, which lives until the device has answered.
            if unsafe { self.ring.submission().push(sqe) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Submits the queued entries, and runs the completions that wait for a system call.
    fn submit(&mut self) {
        loop {
            let submission = self.ring.submission();
            let is_idle = submission.is_empty() && !submission.taskrun() && !submission.cq_overflow();
            drop(submission);
            if is_idle {
                return;
            }
            // An error (a signal, a temporary lack of memory) leaves the submissions in place, for the next turn.
            let is_done = self.ring.submit().is_err() || self.backlog.is_empty();
            if is_done {
                return;
            }
            self.flush();
        }
    }

    fn has_answers(&mut self) -> bool {
        let submission = self.ring.submission();
        let has_more = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        has_more || !self.ring.completion().is_empty()
    }

    /// The next completion: the key of its entry, the result, and the second half.
    fn next(&mut self) -> Option<(u32, i32, [u64; 2])> {
        let cqe = self.ring.completion().next()?;
        self.in_flight -= 1;
        Some((cqe.user_data() as u32, cqe.result(), *cqe.big_cqe()))
    }
}

impl Ring {
    /// Answers the commands that devices have answered on the second ring.
    pub(super) fn harvest_commands(&self) -> usize {
        let mut answered = 0;
        loop {
            let mut inner = self.inner.borrow_mut();
            let Some((key, result, rest)) = inner.commands.as_mut().and_then(|commands| commands.next()) else {
                return answered;
            };
            let answer = inner.complete_command(key, result, rest);
            drop(inner);
            answer.give();
            answered += 1;
        }
    }
}

impl Inner {
    /// Makes the second ring, unless it exists.
    pub(super) fn open_command_ring(&mut self) -> io::Result<()> {
        if self.commands.is_none() {
            self.commands = Some(CommandRing::new()?);
        }
        Ok(())
    }

    pub(super) fn start_command(&mut self, op: Op, done: Done) -> Answers {
        let key = self.new_entry();
        let id = self.entries[key as usize].fill(op, done);
        let (family, number) = match self.open[id as usize].as_ref().map(|open| &open.role) {
            Some(Role::Device(device)) => (device.family, raw(&device.fd)),
            _ => return Answers::One(self.retire_alone(key, Err(Fault::Unsupported))),
        };
        let entry = &mut self.entries[key as usize];
        let Some(command) = entry.command() else {
            return Answers::One(self.retire_alone(key, Err(Fault::Unsupported)));
        };
        command.result = [0; 2];
        let fits = command.request.fits(family, &command.data);
        let is_wide = command.request.is_wide();
        if !fits || !entry.has_fitting_pieces() {
            return Answers::One(self.retire_alone(key, Err(Fault::Unsupported)));
        }
        match &mut self.commands {
            Some(commands) if is_wide => {
                let Encoded { operation, bytes } = self.entries[key as usize].encode();
                let sqe = opcode::UringCmd80::new(Fd(number), operation).cmd(bytes).build();
                commands.push(sqe.user_data(u64::from(key)));
            }
            _ => self.issue(key),
        }
        Answers::None
    }

    fn complete_command(&mut self, key: u32, result: i32, rest: [u64; 2]) -> Answer {
        if let Some(command) = self.entries[key as usize].command() {
            command.result = rest;
        }
        let result = u32::try_from(result).map_err(|_| Fault::from_errno(-result));
        self.retire(key, result)
    }

    /// Submits commands. While the core sleeps, the first ring polls the second one.
    pub(super) fn submit_commands(&mut self, sleeps: bool) {
        let Some(commands) = &mut self.commands else { return };
        commands.flush();
        commands.submit();
        if sleeps && commands.in_flight > 0 && !std::mem::replace(&mut commands.is_watched, true) {
            let ring = Fd(commands.ring.as_raw_fd());
            self.push(opcode::PollAdd::new(ring, libc::POLLIN as u32).build().user_data(COMMANDS));
        }
    }

    pub(super) fn end_watch(&mut self) -> Answers {
        if let Some(commands) = &mut self.commands {
            commands.is_watched = false;
        }
        Answers::None
    }

    pub(super) fn has_command_answers(&mut self) -> bool {
        self.commands.as_mut().is_some_and(|commands| commands.has_answers())
    }

    /// The core ends: waits until `deadline` for the answers of devices. Returns how many commands they still have.
    pub(super) fn end_commands(&mut self, deadline: Instant, answers: &mut Vec<Answer>) -> usize {
        loop {
            let Some(commands) = &mut self.commands else { return 0 };
            commands.flush();
            commands.submit();
            while let Some((key, ..)) = self.commands.as_mut().and_then(|commands| commands.next()) {
                answers.push(self.retire_alone(key, Err(Fault::Aborted)));
            }
            let left = self.commands.as_ref().map_or(0, |commands| commands.in_flight);
            if left == 0 || clock::now() >= deadline {
                return left;
            }
            std::thread::sleep(PAUSE);
        }
    }
}
