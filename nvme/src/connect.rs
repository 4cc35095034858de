//! Connect: how a host gets a controller, and a queue of it (NVMe Base 2.0 6.3).

use crate::auth::authentication::Proof;
use crate::auth::guard::{Bearer, Entry as Admitted, Reason, Visitor};
use crate::command::{Command, Refusal, Status};
use crate::controller::{Controller, Standing};
use crate::host::Host;
use crate::limits::{ADMIN_ENTRIES_MAX, QUEUE_ENTRIES_MAX};
use crate::path::Kind;
use crate::queue::Queue;
use crate::subsystem::Subsystem;
use lunar_core::time::Instant;
use lunar_core::wire::le;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use crate::path::{DISCOVERY_NQN, NQN_BYTES_MAX, Path};

/// The controller identifier that asks for any controller.
const ANY_CONTROLLER: u16 = 0xffff;
/// CATTR: the host does not want to know how far the queue was read.
const NO_FLOW_CONTROL: u8 = 0x04;
/// Dword 0 of the completion: the host has to prove its name (ATR).
const PROVES: u32 = 1 << 17;
/// Entries of an admin queue at least (NVMe over Fabrics); 0-based.
const ADMIN_ENTRIES_MIN: u16 = 31;

/// Where Connect comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Address.
    pub source: SocketAddr,
    /// Whose secure channel it came by.
    pub channel: Option<Arc<Bearer>>,
}

/// The fields of Connect in its entry.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Fields {
    head: [u8; 40],
    format: le::U16,
    queue: le::U16,
    entries: le::U16,
    attributes: u8,
    reserved: u8,
    keep_alive: le::U32,
    rest: [u8; 12],
}

/// Connect's data (NVMe Base 2.0 figure 385).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Host identifier.
    pub host: [u8; 16],
    /// Controller identifier.
    pub controller: le::U16,
    /// Reserved.
    pub reserved: [u8; 238],
    /// NQN of the subsystem.
    pub subsystem: [u8; 256],
    /// NQN of the host.
    pub host_nqn: [u8; 256],
    /// Reserved.
    pub reserved2: [u8; 256],
}

const _: () = assert!(size_of::<ConnectData>() == 1024 && size_of::<Fields>() == 64);

/// A parameter that is refused: where it is, in the entry or in the data.
fn invalid(offset: usize, in_data: bool) -> Refusal {
    let result = offset as u32 | u32::from(in_data) << 16;
    Refusal { result, ..Status::CONNECT_PARAMETERS.into() }
}

/// An NQN in its field: text that ends with a zero. Hosts have been seen that have no name.
fn nqn(field: &[u8; 256]) -> Option<&str> {
    let end = field.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&field[..end]).ok().filter(|text| text.len() <= NQN_BYTES_MAX)
}

/// Who wants a queue; `None`: nothing that could be told of.
fn visitor(command: &Command, data: &[u8], caller: &Caller) -> Option<Visitor> {
    let fields = Fields::ref_from_bytes(command.sqe.as_bytes()).ok()?;
    let data = ConnectData::ref_from_bytes(data).ok()?;
    let (subsystem, host) = (nqn(&data.subsystem)?, nqn(&data.host_nqn)?);
    Some(Visitor {
        host: host.into(),
        subsystem: subsystem.into(),
        kind: if subsystem == DISCOVERY_NQN { Kind::Discovery } else { Kind::Io },
        queue: fields.queue.get(),
        source: caller.source,
        channel: caller.channel.clone(),
    })
}

impl Subsystem {
    /// A host wants to connect: how long it has to wait for that. Who comes too often for a controller waits, whatever
    /// the transport and the target; queues of a controller that there is come as many as a host has processors.
    ///
    /// # Errors
    /// How Connect ends of who comes much too often.
    pub fn arrive(&self, command: &Command, data: &[u8], caller: &Caller, now: Instant) -> Result<Duration, Refusal> {
        let visitor = visitor(command, data, caller);
        let Some(visitor) = visitor.filter(|visitor| visitor.queue == 0) else { return Ok(Duration::ZERO) };
        let guard = &self.config().guard;
        guard.arrive(visitor.source, now).map_err(|reason| {
            guard.refused(&visitor, reason, now);
            Status::CONNECT_BUSY.into()
        })
    }

    /// Carries Connect out: makes a controller with its admin queue, or an I/O
    /// queue of a controller. Returns the queue and dword 0 of the completion.
    ///
    /// # Errors
    /// How Connect ends that makes nothing.
    pub fn connect(
        &self,
        command: &Command,
        data: &[u8],
        path: Path,
        caller: Caller,
        now: Instant,
    ) -> Result<(Rc<Queue>, u32), Refusal> {
        let bytes = command.sqe.as_bytes();
        let fields = Fields::ref_from_bytes(bytes).map_err(|_| Status::INTERNAL_ERROR)?;
        let data = ConnectData::ref_from_bytes(data).map_err(|_| Status::SGL_LENGTH)?;
        if fields.format.get() != 0 {
            return Err(Status::CONNECT_FORMAT.into());
        }
        let entries = fields.entries.get();
        let most = if fields.queue.get() == 0 { ADMIN_ENTRIES_MAX } else { QUEUE_ENTRIES_MAX };
        if entries == 0 || entries >= most {
            return Err(invalid(offset_of!(Fields, entries), false));
        }
        let subsystem = nqn(&data.subsystem).ok_or_else(|| invalid(offset_of!(ConnectData, subsystem), true))?;
        let host_nqn = nqn(&data.host_nqn).ok_or_else(|| invalid(offset_of!(ConnectData, host_nqn), true))?;
        let directory = self.config().board.directory();
        let (kind, entry) = match subsystem {
            DISCOVERY_NQN => (Kind::Discovery, directory.discovery()),
            name => {
                let found = directory.subsystem(name).filter(|entry| entry.is_reached(path.way.group));
                let found = found.ok_or_else(|| {
                    let visitor = visitor(command, data.as_bytes(), &caller);
                    let guard = &self.config().guard;
                    visitor.iter().for_each(|visitor| guard.refused(visitor, Reason::NoSubsystem, now));
                    invalid(offset_of!(ConnectData, subsystem), true)
                });
                (Kind::Io, found?)
            }
        };
        let queue = fields.queue.get();
        let Caller { source, channel } = caller;
        let visitor = Visitor { host: host_nqn.into(), subsystem: subsystem.into(), kind, queue, source, channel };
        let admitted = self.welcome(&visitor, now)?;
        let proves = admitted.party.is_some();
        let flow_control = fields.attributes & NO_FLOW_CONTROL == 0;
        let controller = match queue {
            0 => {
                let standing = Standing {
                    subsystem: entry.clone(),
                    group: Some(admitted.group),
                    map: admitted.map,
                    source: Some(source),
                };
                self.begin(fields, data, &visitor, (standing, proves), path, now)?
            }
            _ => self.found(data, &visitor, &admitted.group)?,
        };
        controller.open_queue(queue).map_err(|status| match status {
            Status::INVALID_QUEUE => invalid(offset_of!(Fields, queue), false),
            other => other.into(),
        })?;
        let result = u32::from(controller.id) | if proves { PROVES } else { 0 };
        let connected = self.enter_queue(controller, queue, entries + 1, flow_control);
        if !proves {
            self.config().guard.entered(&visitor, None, now);
        }
        connected.set_proof(Proof::new(visitor, !proves));
        Ok((connected, result))
    }

    /// A controller for who wants an admin queue, by this right, and perhaps when it has proved its name.
    fn begin(
        &self,
        fields: &Fields,
        data: &ConnectData,
        visitor: &Visitor,
        standing: (Standing, bool),
        path: Path,
        now: Instant,
    ) -> Result<Arc<Controller>, Refusal> {
        if data.controller.get() != ANY_CONTROLLER {
            return Err(invalid(offset_of!(ConnectData, controller), true));
        }
        if fields.entries.get() < ADMIN_ENTRIES_MIN {
            return Err(invalid(offset_of!(Fields, entries), false));
        }
        let host = Host { nqn: visitor.host.clone(), id: data.host };
        let made = self.config().controllers.make(visitor.kind, host, path, standing, now);
        let made = made.ok_or(Status::CONNECT_BUSY)?;
        // What it was let in by may have changed meanwhile, and the review come too early for it.
        if !made.may_stay(&self.config().board.directory()) {
            made.end();
            self.config().controllers.forget(made.id);
            self.config().guard.refused(visitor, Reason::NotShown, now);
            return Err(Status::CONNECT_HOST.into());
        }
        made.set_keep_alive(fields.keep_alive.get());
        Ok(made)
    }

    /// The controller of who wants an I/O queue.
    fn found(&self, data: &ConnectData, visitor: &Visitor, group: &Arc<str>) -> Result<Arc<Controller>, Refusal> {
        let found = self.config().controllers.get(data.controller.get());
        let found = found.ok_or_else(|| invalid(offset_of!(ConnectData, controller), true))?;
        let is_there = found.kind == visitor.kind && found.standing.subsystem.nqn == visitor.subsystem;
        if !is_there || found.kind == Kind::Discovery {
            return Err(invalid(offset_of!(ConnectData, subsystem), true));
        }
        let is_same = found.host.id == data.host && found.host.nqn == visitor.host;
        // Who belongs to another group meanwhile has to come anew.
        if !is_same || found.standing.group.as_ref() != Some(group) {
            return Err(Status::CONNECT_HOST.into());
        }
        if found.is_enabled() { Ok(found) } else { Err(Status::SEQUENCE_ERROR.into()) }
    }

    /// What a host finds that may come in, perhaps when it has proved its name.
    fn welcome(&self, visitor: &Visitor, now: Instant) -> Result<Admitted, Status> {
        let guard = &self.config().guard;
        guard.knock(visitor).map_err(|reason| {
            guard.refused(visitor, reason, now);
            Status::CONNECT_HOST
        })
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
