//! Log pages: one row each.

use crate::command::Status;
use crate::context::Context;
use crate::directory::DiscoveryEntry;
use crate::errors::{ERRORS_MAX, ErrorEntry};
use crate::event::SPARE_WARNINGS;
use crate::history::{Happened, Teller};
use crate::limits::NAMESPACES_MAX;
use crate::path::{DISCOVERY_NQN, Kind, Path, RDMA, family};
use crate::policy::{Code, Effect, Set};
use crate::table::find;
use lunar_core::tally::{Direction, Event, Moved};
use lunar_core::wire::le;
use lunar_unit::MediumState;
use std::net::SocketAddr;
use zerocopy::{FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A log page.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its identifier.
    pub id: u8,
    /// Its name.
    pub name: &'static str,
    /// The kind of controller that has it: discovery or I/O.
    pub kinds: &'static [Kind],
    /// Writes all of it.
    pub write: fn(&mut Context<'_>, Asked),
}

/// The parameters of Get Log Page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The log specific field.
    pub specific: u8,
    /// RAE: the host retains the event and the contents of the page.
    pub retains: bool,
}

const BOTH: &[Kind] = &[Kind::Io, Kind::Discovery];
const IO: &[Kind] = &[Kind::Io];

/// Asymmetric Namespace Access.
pub const ACCESS: u8 = 0x0c;

/// Persistent Event Log.
pub const PERSISTENT: u8 = 0x0d;

/// Every log page, in the order of identifiers.
pub const PAGES: &[Row] = &[
    Row { id: 0x00, name: "Supported Log Pages", kinds: BOTH, write: supported },
    Row { id: 0x01, name: "Error Information", kinds: BOTH, write: errors },
    Row { id: 0x02, name: "SMART / Health Information", kinds: IO, write: health },
    Row { id: 0x03, name: "Firmware Slot Information", kinds: IO, write: firmware },
    Row { id: 0x04, name: "Changed Namespace List", kinds: IO, write: changed_namespaces },
    Row { id: 0x05, name: "Commands Supported and Effects", kinds: IO, write: effects },
    Row { id: 0x06, name: "Device Self-test", kinds: IO, write: self_tests },
    Row { id: ACCESS, name: "Asymmetric Namespace Access", kinds: IO, write: access },
    Row { id: PERSISTENT, name: "Persistent Event Log", kinds: IO, write: persistent },
    Row { id: 0x70, name: "Discovery", kinds: &[Kind::Discovery], write: discovery },
    Row { id: 0x80, name: "Reservation Notification", kinds: IO, write: reservations },
    Row { id: 0x81, name: "Sanitize Status", kinds: IO, write: sanitize },
];

/// 5.16.1.1
fn supported(cx: &mut Context<'_>, _asked: Asked) {
    const SUPPORTED: u32 = 0x01;
    let kind = cx.controller().kind;
    for id in 0..=u8::MAX {
        let is_there = PAGES.iter().any(|row| row.id == id && row.kinds.contains(&kind));
        cx.out.extend_from_slice(&(if is_there { SUPPORTED } else { 0 }).to_le_bytes());
    }
}

/// 5.16.1.2: the newest first; missing entries are zero.
fn errors(cx: &mut Context<'_>, _asked: Asked) {
    let start = cx.out.len();
    let (_, last) = cx.controller().errors();
    cx.out.extend_from_slice(last.as_bytes());
    cx.out.resize(start + ERRORS_MAX * size_of::<ErrorEntry>(), 0);
}

/// NVMe Base 2.0 5.16.1.3
#[derive(IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Health {
    warning: u8,
    temperature: le::U16,
    spare: u8,
    spare_threshold: u8,
    used: u8,
    reserved: [u8; 26],
    read_units: le::U128,
    written_units: le::U128,
    reads: le::U128,
    writes: le::U128,
    times: [u8; 64],
    media_errors: le::U128,
    errors: le::U128,
    rest: [u8; 320],
}

const _: () = assert!(size_of::<Health>() == 512);

fn health(cx: &mut Context<'_>, _asked: Asked) {
    let page = health_of(cx);
    cx.out.extend_from_slice(page.as_bytes());
}

fn health_of(cx: &Context<'_>) -> Health {
    /// Kelvin: a constant, because there is no sensor, and hosts treat zero as a defect.
    const TEMPERATURE: u16 = 300;
    /// The unit of data amounts in bytes, rounded up.
    const UNIT: u64 = 512 * 1000;
    let namespaces = cx.queue.namespaces();
    let sum = |event| namespaces.iter().fold(0_u64, |sum, one| sum.wrapping_add(one.namespace.unit.tally.total(event)));
    let moved = |direction| {
        namespaces.iter().fold(Moved::default(), |sum, one| {
            let Moved { commands, bytes } = one.namespace.unit.tally.moved(direction);
            Moved { commands: sum.commands.wrapping_add(commands), bytes: sum.bytes.wrapping_add(bytes) }
        })
    };
    let (read, written) = (moved(Direction::Read), moved(Direction::Write));
    let number = |value: u64| le::U128::new(value.into());
    let mut page = Health::new_zeroed();
    page.temperature = TEMPERATURE.into();
    // A namespace without space for its writes is like a drive without spare blocks: hosts know no other warning.
    let low = namespaces.iter().filter_map(|one| one.namespace.unit.medium.low_space());
    let low = low.min_by_key(|low| low.available);
    (page.spare, page.spare_threshold) = low.map_or((100, 10), |low| (low.available, low.threshold));
    page.warning = if low.is_some() { SPARE_WARNINGS as u8 } else { 0 };
    page.read_units = number(read.bytes.div_ceil(UNIT));
    page.written_units = number(written.bytes.div_ceil(UNIT));
    (page.reads, page.writes) = (number(read.commands), number(written.commands));
    page.media_errors = number(sum(Event::ReadError).wrapping_add(sum(Event::WriteError)));
    page.errors = number(cx.controller().errors().0);
    page
}

/// 5.16.1.4: the first slot is active.
fn firmware(cx: &mut Context<'_>, _asked: Asked) {
    let start = cx.out.len();
    cx.out.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    let mut revision = [b' '; 8];
    let text = cx.controller().access_grant.subsystem.firmware.as_bytes();
    let len = text.len().min(revision.len());
    revision[..len].copy_from_slice(&text[..len]);
    cx.out.extend_from_slice(&revision);
    cx.out.resize(start + 512, 0);
}

/// 5.16.1.5: the list never overflows.
fn changed_namespaces(cx: &mut Context<'_>, asked: Asked) {
    const LEN: usize = 4096;
    const { assert!(NAMESPACES_MAX as usize <= LEN / size_of::<u32>()) };
    let start = cx.out.len();
    for id in cx.controller().changed(asked.retains) {
        cx.out.extend_from_slice(&id.to_le_bytes());
    }
    cx.out.resize(start + LEN, 0);
}

/// 5.16.1.6: from the table of commands.
fn effects(cx: &mut Context<'_>, _asked: Asked) {
    let (start, memory) = (cx.out.len(), cx.controller().path.memory);
    let manages = cx.pool().is_some();
    for set in [Set::Admin, Set::Io] {
        for op in 0..=u8::MAX {
            let row = find(Code { set, op });
            let row = row.filter(|row| row.policy.admission.transport.has(memory));
            let row = row.filter(|row| manages || row.policy.effect != Effect::Inventory);
            cx.out.extend_from_slice(&row.map_or(0, |row| row.policy.effect.entry()).to_le_bytes());
        }
    }
    cx.out.resize(start + 4096, 0);
}

/// 5.16.1.7: no test is in progress, because a test ends before its completion.
fn self_tests(cx: &mut Context<'_>, _asked: Asked) {
    const ENTRIES: usize = 20;
    const ENTRY_LEN: usize = 28;
    const NOTHING: u8 = 0x0f;
    /// The failed segment is valid.
    const FAILED: u8 = 0x07;
    /// Namespace and block are valid.
    const KNOWN: u8 = 0x03;
    const HOUR: u64 = 3_600_000;
    let start = cx.out.len();
    cx.out.extend_from_slice(&[0; 4]);
    let tests = cx.controller().access_grant.subsystem.history.tests();
    let first = tests.last().map_or(0, |test| test.when);
    for test in &tests {
        let (id, block) = test.failed.unwrap_or((test.named, 0));
        let (result, valid) = if test.failed.is_some() { (FAILED, KNOWN) } else { (0, 0) };
        cx.out.extend_from_slice(&[test.code << 4 | result, u8::from(test.failed.is_some()), valid, 0]);
        cx.out.extend_from_slice(&(test.when.saturating_sub(first) / HOUR).to_le_bytes());
        cx.out.extend_from_slice(&id.to_le_bytes());
        cx.out.extend_from_slice(&block.to_le_bytes());
        cx.out.extend_from_slice(&[0; 4]);
    }
    for _ in tests.len()..ENTRIES {
        let at = cx.out.len();
        cx.out.resize(at + ENTRY_LEN, 0);
        cx.out[at] = NOTHING;
    }
    debug_assert_eq!(cx.out.len() - start, 4 + ENTRIES * ENTRY_LEN);
}

/// A Sanitize is in progress.
const UNDER_WAY: u16 = 2;

/// Progress and status of a sanitize operation of any command set on the media that a host sees.
fn sanitizing(cx: &Context<'_>, asked: Option<u32>) -> [u16; 2] {
    const NEVER: u16 = 0;
    const DONE: u16 = 1;
    const FAILED: u16 = 3;
    let namespaces = cx.queue.namespaces();
    let mut progress = u16::MAX;
    let mut status = if asked.is_some() { DONE } else { NEVER };
    for namespace in namespaces.iter().map(|seen| &seen.namespace) {
        match namespace.medium() {
            MediumState::Sanitizing { .. } => {
                (status, progress) = (UNDER_WAY, progress.min(namespace.shared.progress()));
            }
            MediumState::SanitizeFailed { .. } if status != UNDER_WAY => status = FAILED,
            _ => {}
        }
    }
    [progress, status]
}

/// Adds events that no command reports to the persistent event log: the end of a Sanitize, and health snapshots.
pub(crate) fn look(cx: &Context<'_>) {
    let (controller, now) = (cx.controller(), (cx.subsystem.config().clock)());
    if controller.kind != Kind::Io {
        return;
    }
    let history = &controller.access_grant.subsystem.history;
    if history.is_sanitizing() {
        let state = sanitizing(cx, history.last_sanitized());
        if state[1] != UNDER_WAY {
            history.note(controller.id, now, Happened::Sanitized { state });
        }
    }
    if history.wants_snapshot(now) {
        history.note(controller.id, now, Happened::Health(health_of(cx).as_bytes().into()));
    }
}

/// The action of a host on the persistent event log (5.16.1.14): the host reads the log as it was when it established
/// the context.
///
/// # Errors
/// When the host reads without a reporting context, or establishes a second one.
pub(crate) fn begin_persistent(cx: &Context<'_>, specific: u8) -> Result<(), Status> {
    const READ: u8 = 0;
    const ESTABLISH: u8 = 1;
    const RELEASE: u8 = 2;
    let controller = cx.controller();
    match specific & 0x03 {
        READ if controller.told().is_some() => Ok(()),
        ESTABLISH if controller.told().is_none() => {
            look(cx);
            let entry = &controller.access_grant.subsystem;
            let teller = Teller { nqn: &entry.nqn, serial: &entry.serial, model: &entry.model };
            controller.tell(Some(entry.history.tell(&teller, (cx.subsystem.config().clock)())));
            Ok(())
        }
        READ | ESTABLISH => Err(Status::SEQUENCE_ERROR),
        RELEASE => {
            controller.tell(None);
            Ok(())
        }
        _ => Err(Status::INVALID_FIELD),
    }
}

/// 5.16.1.14: the log of the reporting context; empty after its release.
fn persistent(cx: &mut Context<'_>, _asked: Asked) {
    if let Some(log) = cx.controller().told() {
        cx.out.extend_from_slice(&log);
    }
}

/// 5.16.1.25: operations of any command set that are in progress, complete or failed.
fn sanitize(cx: &mut Context<'_>, _asked: Asked) {
    const NOT_TOLD: u32 = u32::MAX;
    look(cx);
    let asked = cx.controller().access_grant.subsystem.history.last_sanitized();
    let [progress, status] = sanitizing(cx, asked);
    let start = cx.out.len();
    cx.out.extend_from_slice(&progress.to_le_bytes());
    cx.out.extend_from_slice(&status.to_le_bytes());
    cx.out.extend_from_slice(&asked.unwrap_or(0).to_le_bytes());
    for _ in 0..6 {
        cx.out.extend_from_slice(&NOT_TOLD.to_le_bytes());
    }
    cx.out.resize(start + 512, 0);
}

/// Extends the ANA log page with zeroes up to `end`, or to the size that ANAGRPMAX and MNAN announce: hosts read that
/// size in pieces, also those behind the last descriptor.
pub(crate) fn pad_access(cx: &mut Context<'_>, end: u64) {
    const HEADER_BYTES: u64 = 16;
    const GROUP_BYTES: u64 = 32;
    const NAMESPACE_BYTES: u64 = 4;
    let announced = HEADER_BYTES + u64::from(cx.queue.last_namespace()) * (GROUP_BYTES + NAMESPACE_BYTES);
    // No more than some 36 KiB.
    let end = end.min(announced) as usize;
    if end > cx.out.len() {
        cx.out.resize(end, 0);
    }
}

/// 5.16.1.13: each namespace is a group of its own, for each has a state of its own.
fn access(cx: &mut Context<'_>, asked: Asked) {
    const GROUPS_ONLY: u8 = 0x01;
    let namespaces = cx.queue.namespaces();
    let changes = cx.subsystem.access_changes();
    cx.out.extend_from_slice(&changes.to_le_bytes());
    cx.out.extend_from_slice(&(namespaces.len() as u16).to_le_bytes());
    cx.out.extend_from_slice(&[0; 6]);
    let listed = u32::from(asked.specific & GROUPS_ONLY == 0);
    for seen in namespaces {
        cx.out.extend_from_slice(&seen.id.to_le_bytes());
        cx.out.extend_from_slice(&listed.to_le_bytes());
        cx.out.extend_from_slice(&changes.to_le_bytes());
        cx.out.push(seen.access().0);
        cx.out.extend_from_slice(&[0; 15]);
        if listed > 0 {
            cx.out.extend_from_slice(&seen.id.to_le_bytes());
        }
    }
}

/// A record (NVMe Base 2.0 5.16.1.23).
#[derive(IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    transport: u8,
    family: u8,
    subtype: u8,
    requirements: u8,
    port: le::U16,
    controller: le::U16,
    admin_entries: le::U16,
    flags: le::U16,
    reserved: [u8; 20],
    service: [u8; 32],
    reserved2: [u8; 192],
    subsystem: [u8; 256],
    address: [u8; 256],
    specific: [u8; 256],
}

const _: () = assert!(size_of::<Record>() == 1024);

fn put_text(field: &mut [u8], text: &str) {
    let len = text.len().min(field.len());
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}

fn discovery(cx: &mut Context<'_>, _asked: Asked) {
    const HEAD_LEN: usize = 1024;
    /// SUBTYPE: an NVM subsystem; this discovery service.
    const SUBSYSTEM: u8 = 2;
    const THIS_SERVICE: u8 = 3;
    /// TREQ: TLS is required.
    const SECURE: u8 = 0x01;
    /// TSAS of TCP: TLS 1.3.
    const TLS: u8 = 0x02;
    /// TSAS of RDMA: reliable connections, RoCEv2, the RDMA connection manager.
    const ROCE: [u8; 3] = [1, 4, 1];
    /// EFLAGS of this service: persistent connections are supported; the log page is the same at all portals.
    const FLAGS: u16 = 0x03;
    let (controller, config) = (cx.controller(), cx.subsystem.config());
    let (path, directory) = (&controller.path, config.subsystems.directory());
    let source = controller.access_grant.source;
    let told = source.map_or_else(Vec::new, |source| {
        directory.discovery_entries(&controller.host.nqn, source.ip(), path.portal_ref.portal)
    });
    let mut records: Vec<_> = told.into_iter().map(|told| (SUBSYSTEM, told, 0)).collect();
    let this = DiscoveryEntry {
        nqn: DISCOVERY_NQN.into(),
        transport: None,
        address: None,
        portal: path.portal_ref.portal,
        is_secure: path.portal_ref.is_secure,
    };
    records.push((THIS_SERVICE, this, FLAGS));
    let needs_tls = |told: &DiscoveryEntry| {
        let wants =
            |source: SocketAddr| config.authenticator.requires_tls(&told.nqn, &controller.host.nqn, source.ip());
        told.is_secure || source.is_some_and(wants)
    };
    // RDMA has no TLS: a host that must use it is refused there.
    records.retain(|(_, told, _)| told.transport != Some(RDMA) || !needs_tls(told));
    cx.out.extend_from_slice(&directory.changes().to_le_bytes());
    cx.out.extend_from_slice(&((records.len() + directory.referrals.len()) as u64).to_le_bytes());
    cx.out.resize(HEAD_LEN, 0);
    for (subtype, told, flags) in records {
        let mut record = Record::new_zeroed();
        let (family, address, service) = match told.address {
            Some(at) => (family(at.ip()), at.ip().to_string(), at.port().to_string()),
            None => (path.family, path.address.clone(), path.service.clone()),
        };
        (record.transport, record.family) = (told.transport.unwrap_or(path.transport), family);
        (record.subtype, record.requirements) = (subtype, REQUIREMENTS);
        (record.port, record.controller) = ((told.portal as u16).into(), ANY.into());
        (record.admin_entries, record.flags) = (ADMIN_ENTRIES.into(), flags.into());
        if record.transport == RDMA {
            record.specific[..ROCE.len()].copy_from_slice(&ROCE);
        } else if needs_tls(&told) {
            record.requirements |= SECURE;
            record.specific[0] = TLS;
        }
        put_text(&mut record.service, &service);
        put_text(&mut record.subsystem, &told.nqn);
        put_text(&mut record.address, &address);
        cx.out.extend_from_slice(record.as_bytes());
    }
    directory.referrals.iter().for_each(|other| cx.out.extend_from_slice(referral(other).as_bytes()));
}

/// TREQ: TLS is not specified; flow control can be disabled.
const REQUIREMENTS: u8 = 0x04;
/// CNTLID: dynamic controllers.
const ANY: u16 = 0xffff;
/// ASQSZ: the least entries of an admin queue.
const ADMIN_ENTRIES: u16 = 32;

/// Another discovery service.
fn referral(other: &Path) -> Record {
    const REFERRAL: u8 = 1;
    let mut record = Record::new_zeroed();
    (record.transport, record.family, record.subtype) = (other.transport, other.family, REFERRAL);
    (record.requirements, record.port, record.controller) = (REQUIREMENTS, 0.into(), ANY.into());
    record.admin_entries = ADMIN_ENTRIES.into();
    put_text(&mut record.service, &other.service);
    put_text(&mut record.subsystem, DISCOVERY_NQN);
    put_text(&mut record.address, &other.address);
    record
}

/// 5.16.1.24: the oldest notification; reading takes it.
fn reservations(cx: &mut Context<'_>, _asked: Asked) {
    let start = cx.out.len();
    if let Some((notice, left)) = cx.controller().take_notice() {
        cx.out.extend_from_slice(&notice.count.to_le_bytes());
        cx.out.extend_from_slice(&[notice.kind, u8::try_from(left).unwrap_or(u8::MAX), 0, 0]);
        cx.out.extend_from_slice(&notice.namespace.to_le_bytes());
    }
    cx.out.resize(start + 64, 0);
}
