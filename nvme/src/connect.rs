//! Connect: how a host gets a controller, and a queue of it (NVMe Base 2.0 6.3).

use crate::auth::authentication::QueueAuthentication;
use crate::auth::authenticator::{Entry as Admitted, LoginAttempt, Reason, TlsPeer};
use crate::command::{Command, Refusal, Status};
use crate::controller::{AccessGrant, Controller};
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
/// CATTR: disable the flow control of submission queues.
const NO_FLOW_CONTROL: u8 = 0x04;
/// Dword 0 of the completion: the host must authenticate (ATR).
const AUTHENTICATION_REQUIRED: u32 = 1 << 17;
/// Entries of an admin queue at least (NVMe over Fabrics); 0-based.
const ADMIN_ENTRIES_MIN: u16 = 31;

/// The connection of a Connect command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The word of the transport.
    pub transport: &'static str,
    /// Address.
    pub source: SocketAddr,
    /// The TLS peer of the connection; `None` without TLS.
    pub tls_peer: Option<Arc<TlsPeer>>,
}

/// The fields of Connect in its entry (NVMe Base 2.0 6.3).
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

/// Connect Invalid Parameters: the offset of the parameter in the entry or in the data.
fn invalid(offset: usize, in_data: bool) -> Refusal {
    let result = offset as u32 | u32::from(in_data) << 16;
    Refusal { result, ..Status::CONNECT_PARAMETERS.into() }
}

/// An NQN in its field: text that ends with a zero.
fn nqn(field: &[u8; 256]) -> Option<&str> {
    let end = field.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&field[..end]).ok().filter(|text| text.len() <= NQN_BYTES_MAX)
}

/// Whether a text is an NVMe Qualified Name (NVMe Base 2.1 4.7) as far as that matters here: it has the prefix of all
/// of them, and it can be shown in a log.
#[must_use]
pub fn is_qualified(name: &str) -> bool {
    const PREFIX: &str = "nqn.";
    let has_prefix = name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX));
    has_prefix && name.len() > PREFIX.len() && !name.contains(char::is_control)
}

/// The host identifier of hosts that have none. All of them would be one registrant, so it is not accepted
/// (CTRATT.ZHIDS is 0; NVMe Base 2.1 5.1.25.1.28).
const NO_HOST_ID: [u8; 16] = [0; 16];

/// The login attempt of a Connect command; `None` if the command is malformed.
fn attempt(command: &Command, data: &[u8], caller: &Caller) -> Option<LoginAttempt> {
    let fields = Fields::ref_from_bytes(command.sqe.as_bytes()).ok()?;
    let data = ConnectData::ref_from_bytes(data).ok()?;
    let (subsystem, host) = (nqn(&data.subsystem)?, nqn(&data.host_nqn)?);
    Some(LoginAttempt {
        host: host.into(),
        subsystem: subsystem.into(),
        kind: if subsystem == DISCOVERY_NQN { Kind::Discovery } else { Kind::Io },
        queue: fields.queue.get(),
        transport: caller.transport,
        source: caller.source,
        tls_peer: caller.tls_peer.clone(),
    })
}

impl Subsystem {
    /// The time that a Connect command must wait. A source that connects admin queues too often waits, for all
    /// transports and subsystems together. I/O queues do not wait: a host connects as many as it has processors.
    ///
    /// # Errors
    /// The status of Connect if the source is far over the limit.
    pub fn arrive(&self, command: &Command, data: &[u8], caller: &Caller, now: Instant) -> Result<Duration, Refusal> {
        let attempt = attempt(command, data, caller);
        let Some(attempt) = attempt.filter(|attempt| attempt.queue == 0) else { return Ok(Duration::ZERO) };
        let authenticator = &self.config().authenticator;
        authenticator.arrive(attempt.source, now).map_err(|reason| {
            authenticator.refused(&attempt, reason, now);
            Status::CONNECT_BUSY.into()
        })
    }

    /// Executes Connect: makes a controller with its admin queue, or an I/O queue of a controller. Returns the queue
    /// and dword 0 of the completion.
    ///
    /// # Errors
    /// The status of a Connect that fails.
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
        let directory = self.config().subsystems.directory();
        let (kind, entry) = match subsystem {
            DISCOVERY_NQN => (Kind::Discovery, directory.discovery()),
            name => {
                let found = directory.reached(name, path.portal_ref.group).map_err(|reason| {
                    let attempt = attempt(command, data.as_bytes(), &caller);
                    let authenticator = &self.config().authenticator;
                    attempt.iter().for_each(|attempt| authenticator.refused(attempt, reason, now));
                    invalid(offset_of!(ConnectData, subsystem), true)
                });
                (Kind::Io, found?)
            }
        };
        let queue = fields.queue.get();
        let Caller { transport, source, tls_peer } = caller;
        let (host, subsystem) = (host_nqn.into(), subsystem.into());
        let attempt = LoginAttempt { host, subsystem, kind, queue, transport, source, tls_peer };
        self.check_host(data, &attempt, now)?;
        let admitted = self.welcome(&attempt, now)?;
        let must_authenticate = admitted.participants.is_some();
        let flow_control = fields.attributes & NO_FLOW_CONTROL == 0;
        let controller = match queue {
            0 => {
                let access_grant = AccessGrant {
                    subsystem: entry.clone(),
                    group: Some(admitted.group),
                    map: admitted.map,
                    source: Some(source),
                };
                self.begin(fields, data, &attempt, (access_grant, must_authenticate), path, now)?
            }
            _ => self.found(data, &attempt, &admitted.group)?,
        };
        controller.open_queue(queue, entries + 1).map_err(|status| match status {
            Status::INVALID_QUEUE => invalid(offset_of!(Fields, queue), false),
            other => other.into(),
        })?;
        let result = u32::from(controller.id) | if must_authenticate { AUTHENTICATION_REQUIRED } else { 0 };
        let connected = self.enter_queue(controller, queue, entries + 1, flow_control);
        if !must_authenticate {
            self.config().authenticator.entered(&attempt, None, now);
            self.count_host(&connected);
        }
        connected.set_authentication(QueueAuthentication::new(attempt, !must_authenticate));
        Ok((connected, result))
    }

    /// Makes the controller of an admin queue, with this access grant, perhaps before the host authenticates.
    fn begin(
        &self,
        fields: &Fields,
        data: &ConnectData,
        attempt: &LoginAttempt,
        access_grant: (AccessGrant, bool),
        path: Path,
        now: Instant,
    ) -> Result<Arc<Controller>, Refusal> {
        if data.controller.get() != ANY_CONTROLLER {
            return Err(invalid(offset_of!(ConnectData, controller), true));
        }
        if fields.entries.get() < ADMIN_ENTRIES_MIN {
            return Err(invalid(offset_of!(Fields, entries), false));
        }
        let host = Host { nqn: attempt.host.clone(), id: data.host };
        let made = self.config().controllers.make(attempt.kind, host, path, access_grant, now);
        let made = made.ok_or(Status::CONNECT_BUSY)?;
        // The configuration may have changed since the admission, and its review may have run before this controller
        // was registered.
        if !made.may_stay(&self.config().subsystems.directory()) {
            made.end();
            self.config().controllers.forget(made.id);
            self.config().authenticator.refused(attempt, Reason::NotShown, now);
            return Err(Status::CONNECT_HOST.into());
        }
        made.set_keep_alive(fields.keep_alive.get());
        Ok(made)
    }

    /// The controller of an I/O queue.
    fn found(&self, data: &ConnectData, attempt: &LoginAttempt, group: &Arc<str>) -> Result<Arc<Controller>, Refusal> {
        let found = self.config().controllers.get(data.controller.get());
        let found = found.ok_or_else(|| invalid(offset_of!(ConnectData, controller), true))?;
        let is_there = found.kind == attempt.kind && found.access_grant.subsystem.nqn == attempt.subsystem;
        if !is_there || found.kind == Kind::Discovery {
            return Err(invalid(offset_of!(ConnectData, subsystem), true));
        }
        if found.host.id != data.host {
            return Err(invalid(offset_of!(ConnectData, host), true));
        }
        if found.host.nqn != attempt.host {
            return Err(invalid(offset_of!(ConnectData, host_nqn), true));
        }
        // A host whose group has changed must connect its admin queue again.
        if found.access_grant.group.as_ref() != Some(group) {
            return Err(Status::CONNECT_HOST.into());
        }
        if found.is_enabled() { Ok(found) } else { Err(invalid(offset_of!(Fields, queue), false)) }
    }

    /// Refuses hosts without an identifier and without a proper name.
    fn check_host(&self, data: &ConnectData, attempt: &LoginAttempt, now: Instant) -> Result<(), Refusal> {
        let (reason, offset) = match attempt {
            _ if data.host == NO_HOST_ID => (Reason::NoHostId, offset_of!(ConnectData, host)),
            attempt if !is_qualified(&attempt.host) => (Reason::NotQualified, offset_of!(ConnectData, host_nqn)),
            _ => return Ok(()),
        };
        self.config().authenticator.refused(attempt, reason, now);
        Err(invalid(offset, true))
    }

    /// The admission of a host, perhaps before it authenticates.
    fn welcome(&self, attempt: &LoginAttempt, now: Instant) -> Result<Admitted, Status> {
        let authenticator = &self.config().authenticator;
        authenticator.admit(attempt).map_err(|reason| {
            authenticator.refused(attempt, reason, now);
            Status::CONNECT_HOST
        })
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
