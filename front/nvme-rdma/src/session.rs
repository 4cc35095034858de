//! A connection, which is one queue, as a value: capsules go in, actions and completions come out. `T` is the memory of
//! in-capsule data.

use crate::wire::{Completion, capsule, invalidated, pointed};
use lunar_nvme::command::FABRICS;
use lunar_nvme::fused::{Fused, Use};
use lunar_nvme::{Command, Sqe, Status};
use lunar_rdma::wire::Remote;
use std::collections::HashMap;

/// The type of Connect among Fabrics commands.
const CONNECT: u8 = 0x01;
/// Entries of a queue before Connect determines them: only Connect may be sent.
const ENTRIES_BEFORE_CONNECT: u16 = 1;

/// A command that has arrived.
#[derive(Debug, PartialEq)]
pub struct Arrived<T> {
    /// Its entry, and the amount of its data.
    pub command: Command,
    /// The memory of the host for its data.
    pub memory: Option<Remote>,
    /// Its in-capsule data.
    pub in_capsule: Option<T>,
}

/// A request of the session to its front.
#[derive(Debug, PartialEq)]
pub enum Action<T> {
    /// Execute Connect. The answer is [`Session::connected`].
    Connect(Box<Arrived<T>>),
    /// Execute a command. The answer is [`Session::complete`].
    Command(Arrived<T>),
    /// Execute both commands of a fused operation. The answer is [`Session::complete`] for each.
    Fused(Box<[Arrived<T>; 2]>),
    /// Send the completion of a command that was refused.
    Refused(Sqe, Status, Response),
    /// Drop the Asynchronous Event Request with this command identifier, and let another message come in its place: the
    /// host has sent another command with it, and it gets no response.
    EventReplaced(u16),
}

/// A response to send.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Response {
    /// The completion.
    pub completion: Completion,
    /// The R_Key that the host invalidates.
    pub invalidates: Option<u32>,
}

/// The host has violated the protocol: the connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A message is no capsule.
    NoCapsule,
    /// There are more commands than the queue has entries.
    TooMany,
}

/// The phase of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Before Connect has arrived.
    Start,
    /// Connect is executed.
    Connecting,
    /// The queue is connected, and its host has to authenticate.
    Authenticating,
    /// The queue is connected.
    Live,
}

/// A command without a completion.
#[derive(Debug)]
struct Task {
    /// An Asynchronous Event Request that waits for an event.
    awaits_event: bool,
    invalidates: Option<u32>,
}

/// One connection.
#[derive(Debug)]
pub struct Session<T> {
    phase: Phase,
    tasks: HashMap<u16, Task>,
    entries: u16,
    queue: u16,
    flow_control: bool,
    /// SQHD: the number of commands received, modulo the queue size.
    head: u16,
    /// The role of the last command in a fused operation.
    fused: Fused<Arrived<T>>,
}

impl<T> Default for Session<T> {
    fn default() -> Self {
        Self {
            phase: Phase::Start,
            tasks: HashMap::new(),
            entries: ENTRIES_BEFORE_CONNECT,
            queue: 0,
            flow_control: true,
            head: 0,
            fused: Fused::Nothing,
        }
    }
}

impl<T> Session<T> {
    /// Whether the queue is connected, and its host authenticated if it has to be.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// The number of commands without a completion.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Takes a message of the host. `keep` returns memory with in-capsule data, if there is some.
    ///
    /// # Errors
    /// The host has violated the protocol.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        keep: impl FnOnce(&[u8]) -> Option<T>,
        actions: &mut Vec<Action<T>>,
    ) -> Result<(), Violation> {
        let (sqe, behind) = capsule(bytes).ok_or(Violation::NoCapsule)?;
        if self.tasks.len() >= usize::from(self.entries) {
            return Err(Violation::TooMany);
        }
        self.head = (self.head + 1) % self.entries;
        let pointed = match pointed(&sqe, behind.len()) {
            Ok(pointed) => pointed,
            Err(status) => {
                self.refuse(&sqe, status, actions);
                return Ok(());
            }
        };
        let cid = sqe.cid.get();
        if let Some(old) = self.tasks.get(&cid) {
            // Some hosts reuse the identifiers of their Asynchronous Event Requests when they shut a controller down.
            if !old.awaits_event {
                self.refuse(&sqe, Status::ID_CONFLICT, actions);
                return Ok(());
            }
            self.tasks.remove(&cid);
            actions.push(Action::EventReplaced(cid));
        }
        let in_capsule = match pointed.in_capsule {
            Some(place) => match keep(&behind[place]) {
                None => {
                    self.refuse(&sqe, Status::NOT_READY, actions);
                    return Ok(());
                }
                some => some,
            },
            None => None,
        };
        let arrived = Arrived { command: pointed.command, memory: pointed.memory, in_capsule };
        let is_connect = sqe.opcode == FABRICS && sqe.fabrics_type() == CONNECT;
        match self.phase {
            Phase::Live | Phase::Authenticating => {
                self.insert(&sqe);
                self.start(arrived, actions);
            }
            Phase::Start if is_connect => {
                self.insert(&sqe);
                self.phase = Phase::Connecting;
                actions.push(Action::Connect(Box::new(arrived)));
            }
            Phase::Start | Phase::Connecting => self.refuse(&sqe, Status::SEQUENCE_ERROR, actions),
        }
        Ok(())
    }

    fn insert(&mut self, sqe: &Sqe) {
        self.tasks.insert(sqe.cid.get(), Task { awaits_event: false, invalidates: invalidated(sqe) });
    }

    /// Starts a command, and both commands of a fused operation together.
    fn start(&mut self, arrived: Arrived<T>, actions: &mut Vec<Action<T>>) {
        let (before, now) = self.fused.arrived(arrived.command.sqe.flags, arrived);
        actions.extend(before.map(Action::Command));
        match now {
            Use::Waits => {}
            Use::Alone(arrived) => actions.push(Action::Command(arrived)),
            Use::Both(both) => actions.push(Action::Fused(Box::new(both))),
            Use::Fails(Arrived { command: Command { sqe, .. }, .. }) => {
                if let Some(response) = self.complete(sqe.cid.get(), Status::FUSED_FAILED, 0) {
                    actions.push(Action::Refused(sqe, Status::FUSED_FAILED, response));
                }
            }
        }
    }

    /// Completes a command that is invalid for the transport, or that comes at the wrong time.
    fn refuse(&mut self, sqe: &Sqe, status: Status, actions: &mut Vec<Action<T>>) {
        actions.extend(self.fused.refused(sqe.flags).map(Action::Command));
        let response =
            Response { completion: self.completion(sqe.cid.get(), status, 0), invalidates: invalidated(sqe) };
        actions.push(Action::Refused(*sqe, status, response));
    }

    /// The answer to [`Action::Connect`]: the identifier of the queue, its size, and whether it uses flow control
    /// (SQHD); or the status of Connect. `result`: dword 0 of the completion. Returns the response.
    pub fn connected(&mut self, cid: u16, answer: Result<(u16, u16, bool), Status>, result: u32) -> Option<Response> {
        let status = match answer {
            Ok((queue, entries, flow_control)) => {
                self.phase = Phase::Live;
                (self.queue, self.entries, self.flow_control) = (queue, entries, flow_control);
                // Connect is the first entry of the queue.
                self.head = 1 % entries;
                Status::SUCCESS
            }
            Err(status) => {
                // The host may try again.
                self.phase = Phase::Start;
                status
            }
        };
        self.complete(cid, status, result.into())
    }

    /// The host of the queue has to authenticate.
    pub fn require_authentication(&mut self) {
        if self.phase == Phase::Live {
            self.phase = Phase::Authenticating;
        }
    }

    /// The host has authenticated; `false` if it did not have to, or had already.
    pub fn authenticated(&mut self) -> bool {
        let was_authenticating = self.phase == Phase::Authenticating;
        if was_authenticating {
            self.phase = Phase::Live;
        }
        was_authenticating
    }

    /// The command waits for an event: [`Session::complete`] completes it.
    pub fn park(&mut self, cid: u16) {
        if let Some(task) = self.tasks.get_mut(&cid) {
            task.awaits_event = true;
        }
    }

    /// Completes a command. Returns the response; `None`: there is no such command.
    pub fn complete(&mut self, cid: u16, status: Status, result: u64) -> Option<Response> {
        let task = self.tasks.remove(&cid)?;
        Some(Response { completion: self.completion(cid, status, result), invalidates: task.invalidates })
    }

    fn completion(&self, cid: u16, status: Status, result: u64) -> Completion {
        /// SQHD without flow control.
        const NO_HEAD: u16 = 0xffff;
        let sq_head = if self.flow_control { self.head } else { NO_HEAD };
        Completion {
            result: result.into(),
            sq_head: sq_head.into(),
            sq_id: self.queue.into(),
            cid: cid.into(),
            status: status.field().into(),
        }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
