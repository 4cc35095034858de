//! The migration record: the state of a controller as bytes, for another process. It contains neither guest memory nor
//! anything that volumes keep, and no command: none is in progress.
//!
//! A record comes from a client, so every byte of it is checked.

use crate::config::{QUEUES, RECORD_MAX};
use crate::pci;
use crate::queue::completion::{Cqe, SavedCompletionQueue};
use crate::registers::SavedRegisters;
use lunar_core::wire::{Cursor, Short, le};
use lunar_nvme::controller::saved::VALUES_MAX;
use lunar_nvme::controller::{Granted, NOTICES_MAX, Notice, Saved as SavedController};
use lunar_nvme::errors::ERRORS_MAX;
use lunar_nvme::event::{Event, REQUESTS_MAX, SavedEvents};
use lunar_nvme::namespace::NAMESPACES_MAX;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of every record.
const MAGIC: [u8; 8] = *b"LunarVM\0";
/// Version of the format, raised with every change. No other version is read.
const VERSION: u32 = 3;

/// Why a record is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is no record, or one of another version.
    Foreign,
    /// It is too short or too long, or has more of something than there can be.
    Malformed,
}

impl From<Short> for Refusal {
    fn from(Short: Short) -> Self {
        Self::Malformed
    }
}

/// The head of a record: the number of each thing that follows, and all of the controller that has a fixed size.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: le::U32,
    len: le::U32,
    submissions: le::U16,
    completions: le::U16,
    waiting: le::U16,
    aborted: le::U16,
    pending: le::U16,
    masked: le::U16,
    notices: le::U16,
    flags: le::U16,
    values: le::U32,
    namespaces: le::U32,
    configuration: le::U32,
    keep_alive: le::U32,
    granted: [le::U16; 2],
    changed: le::U16,
    errors: le::U16,
    clock: le::I64,
    noticed: le::U64,
    failed: le::U64,
}

const _: () = {
    assert!(offset_of!(Head, len) == 12 && offset_of!(Head, submissions) == 16 && offset_of!(Head, values) == 32);
    assert!(offset_of!(Head, changed) == 52 && offset_of!(Head, clock) == 56 && size_of::<Head>() == 80);
};

/// Flags of the head.
mod flag {
    pub(super) const FATAL: u16 = 0x01;
    pub(super) const WRITES_THROUGH: u16 = 0x02;
    pub(super) const CLOCK: u16 = 0x04;
    pub(super) const BEHAVIOR: u16 = 0x08;
}

/// A namespace that the guest sees. The destination must have the same one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SeenNamespace {
    /// UUID of the volume.
    pub uuid: [u8; 16],
    /// Namespace identifier.
    pub id: le::U32,
    /// Bytes of a logical block.
    pub block_size: le::U32,
}

/// The value of a feature.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Value {
    id: le::U32,
    namespace: le::U32,
    value: le::U32,
}

/// A reservation notification.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct NoticeRecord {
    count: le::U64,
    namespace: le::U32,
    kind: le::U32,
}

/// The state of a controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Registers and queues.
    pub registers: SavedRegisters,
    /// The configuration space.
    pub configuration_space: Box<[u8; pci::USED]>,
    /// Features that the host has set, and events that it has not read.
    pub controller: SavedController,
    /// The namespaces that the guest sees, by ascending identifier.
    pub namespaces: Vec<SeenNamespace>,
}

impl Record {
    /// The record as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.head().as_bytes().to_vec();
        bytes.extend(self.registers.registers.as_bytes());
        bytes.extend(&self.configuration_space[..]);
        bytes.extend(self.registers.submissions.as_bytes());
        for (queue, deferred) in &self.registers.completions {
            bytes.extend(queue.as_bytes());
            bytes.extend(deferred.as_bytes());
        }
        let SavedController { values, behavior, events, notices, changed, errors, .. } = &self.controller;
        for (id, namespace, value) in values {
            let value = Value { id: u32::from(*id).into(), namespace: (*namespace).into(), value: (*value).into() };
            bytes.extend(value.as_bytes());
        }
        behavior.iter().for_each(|behavior| bytes.extend(&behavior[..]));
        events.waiting.iter().chain(&events.aborted).for_each(|cid| bytes.extend(cid.to_le_bytes()));
        events.pending.iter().for_each(|event| bytes.extend([event.kind, event.information, event.page, 0]));
        bytes.extend(&events.masked);
        for notice in notices {
            let (count, namespace) = (notice.count.into(), notice.namespace.into());
            bytes.extend(NoticeRecord { count, namespace, kind: u32::from(notice.kind).into() }.as_bytes());
        }
        changed.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        bytes.extend(errors.as_bytes());
        bytes.extend(self.namespaces.as_bytes());
        // RECORD_MAX fits 32 bits.
        let len = le::U32::new(bytes.len() as u32);
        bytes[LEN_AT..LEN_AT + 4].copy_from_slice(len.as_bytes());
        bytes
    }

    fn head(&self) -> Head {
        let SavedController { events, .. } = &self.controller;
        let one = |is: bool, flag: u16| if is { flag } else { 0 };
        let flags = one(self.controller.is_fatal, flag::FATAL)
            | one(self.controller.writes_through, flag::WRITES_THROUGH)
            | one(self.controller.clock.is_some(), flag::CLOCK)
            | one(self.controller.behavior.is_some(), flag::BEHAVIOR);
        // There are a few hundred of everything at most, except values.
        let count = |len: usize| le::U16::new(len as u16);
        Head {
            magic: MAGIC,
            version: VERSION.into(),
            len: 0.into(),
            submissions: count(self.registers.submissions.len()),
            completions: count(self.registers.completions.len()),
            waiting: count(events.waiting.len()),
            aborted: count(events.aborted.len()),
            pending: count(events.pending.len()),
            masked: count(events.masked.len()),
            notices: count(self.controller.notices.len()),
            flags: flags.into(),
            values: (self.controller.values.len() as u32).into(),
            namespaces: (self.namespaces.len() as u32).into(),
            configuration: self.controller.configuration.into(),
            keep_alive: self.controller.keep_alive.into(),
            granted: [self.controller.granted.submission.into(), self.controller.granted.completion.into()],
            changed: count(self.controller.changed.len()),
            errors: count(self.controller.errors.len()),
            clock: self.controller.clock.unwrap_or(0).into(),
            noticed: self.controller.noticed.into(),
            failed: self.controller.failed.into(),
        }
    }

    /// Parses a record. Its lengths and numbers are checked, its values are not.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let mut cursor = Cursor::new(bytes);
        let head: Head = *cursor.take()?;
        if head.magic != MAGIC || head.version.get() != VERSION {
            return Err(Refusal::Foreign);
        }
        if head.len.get() as usize != bytes.len() || bytes.len() > RECORD_MAX || !head.fits() {
            return Err(Refusal::Malformed);
        }
        let registers = *cursor.take()?;
        let configuration_space: &[u8; pci::USED] = cursor.take()?;
        let submissions = all(&mut cursor, head.submissions.into())?;
        let completions: Result<Vec<_>, Refusal> =
            (0..head.completions.get()).map(|_| with_deferred(&mut cursor)).collect();
        let registers = SavedRegisters { registers, submissions, completions: completions? };
        let controller = head.controller(&mut cursor)?;
        let namespaces = all(&mut cursor, head.namespaces.get() as usize)?;
        if !cursor.rest().is_empty() {
            return Err(Refusal::Malformed);
        }
        Ok(Self { registers, configuration_space: Box::new(*configuration_space), controller, namespaces })
    }
}

/// Where the length of the record lies.
const LEN_AT: usize = offset_of!(Head, len);

impl Head {
    fn fits(&self) -> bool {
        let counts = [
            (self.submissions, QUEUES),
            (self.completions, QUEUES),
            (self.waiting, REQUESTS_MAX),
            (self.aborted, REQUESTS_MAX),
            (self.pending, Event::KNOWN.len()),
            (self.masked, Event::KNOWN.len()),
            (self.notices, NOTICES_MAX),
            (self.changed, NAMESPACES_MAX as usize),
            (self.errors, ERRORS_MAX),
        ];
        counts.iter().all(|(count, most)| usize::from(count.get()) <= *most)
            && self.values.get() as usize <= VALUES_MAX
            && self.namespaces.get() <= NAMESPACES_MAX
    }

    fn controller(&self, cursor: &mut Cursor<'_>) -> Result<SavedController, Refusal> {
        let is = |flag: u16| self.flags.get() & flag != 0;
        let values = all::<Value>(cursor, self.values.get() as usize)?;
        let feature = |value: &Value| {
            let id = u8::try_from(value.id.get()).map_err(|_| Refusal::Malformed)?;
            Ok((id, value.namespace.get(), value.value.get()))
        };
        let values = values.iter().map(feature).collect::<Result<_, Refusal>>()?;
        let behavior = if is(flag::BEHAVIOR) { Some(Box::new(*cursor.take::<[u8; 512]>()?)) } else { None };
        let mut cids = |count: le::U16| -> Result<Vec<u16>, Refusal> {
            Ok(all::<le::U16>(cursor, count.into())?.iter().map(|cid| cid.get()).collect())
        };
        let (waiting, aborted) = (cids(self.waiting)?, cids(self.aborted)?);
        let pending = all::<[u8; 4]>(cursor, self.pending.into())?;
        let pending = pending.iter().map(|[kind, information, page, _]| Event {
            kind: *kind,
            information: *information,
            page: *page,
        });
        let events =
            SavedEvents { waiting, aborted, pending: pending.collect(), masked: all(cursor, self.masked.into())? };
        let notices = all::<NoticeRecord>(cursor, self.notices.into())?;
        let notices = notices.iter().map(|notice| Notice {
            count: notice.count.get(),
            // A notification type has eight bits (NVMe Base 2.0 5.16.1.24).
            kind: notice.kind.get() as u8,
            namespace: notice.namespace.get(),
        });
        let changed = all::<le::U32>(cursor, self.changed.into())?;
        Ok(SavedController {
            configuration: self.configuration.get(),
            is_fatal: is(flag::FATAL),
            keep_alive: self.keep_alive.get(),
            writes_through: is(flag::WRITES_THROUGH),
            granted: Granted { submission: self.granted[0].get(), completion: self.granted[1].get() },
            values,
            clock: is(flag::CLOCK).then(|| self.clock.get()),
            behavior,
            events,
            notices: notices.collect(),
            noticed: self.noticed.get(),
            changed: changed.iter().map(|id| id.get()).collect(),
            errors: all(cursor, self.errors.into())?,
            failed: self.failed.get(),
        })
    }
}

/// The next `count` values.
fn all<T: FromBytes + KnownLayout + Immutable + Unaligned + Copy>(
    cursor: &mut Cursor<'_>,
    count: usize,
) -> Result<Vec<T>, Refusal> {
    let bytes = cursor.bytes(count.checked_mul(size_of::<T>()).ok_or(Refusal::Malformed)?)?;
    let parts = bytes.chunks_exact(size_of::<T>()).map(T::read_from_bytes);
    parts.map(|part| part.map_err(|_| Refusal::Malformed)).collect()
}

fn with_deferred(cursor: &mut Cursor<'_>) -> Result<(SavedCompletionQueue, Vec<Cqe>), Refusal> {
    let queue: SavedCompletionQueue = *cursor.take()?;
    let deferred = all(cursor, queue.deferred.get() as usize)?;
    Ok((queue, deferred))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::submission::SavedSubmissionQueue;
    use crate::registers::saved::RegisterRecord;
    use lunar_nvme::errors::ErrorEntry;
    use zerocopy::FromZeros;

    fn record() -> Record {
        let mut registers = RegisterRecord::new_zeroed();
        registers.as_mut_bytes().fill(0xa5);
        let mut submissions = SavedSubmissionQueue::new_zeroed();
        submissions.as_mut_bytes().fill(0x5a);
        let mut completions = SavedCompletionQueue::new_zeroed();
        (completions.id, completions.deferred) = (7.into(), 2.into());
        let mut deferred = Cqe::new_zeroed();
        deferred.cid = 0x1234.into();
        let registers = SavedRegisters {
            registers,
            submissions: vec![submissions; 3],
            completions: vec![(completions, vec![deferred; 2])],
        };
        let controller = SavedController {
            configuration: 0x46_0001,
            is_fatal: true,
            keep_alive: 5,
            writes_through: true,
            granted: Granted { submission: 9, completion: 8 },
            values: vec![(0x0b, 0, 0x900), (0x82, 3, 1)],
            clock: Some(-3),
            behavior: Some(Box::new([9; 512])),
            events: SavedEvents {
                waiting: vec![1, 2],
                aborted: vec![3],
                pending: vec![Event::ACCESS],
                masked: vec![4, 0x80],
            },
            notices: vec![Notice { count: 8, kind: 2, namespace: 1 }],
            noticed: 8,
            changed: vec![4, 7],
            errors: vec![ErrorEntry::read_from_bytes(&[8; 64]).expect("64 bytes")],
            failed: 0x0808_0808_0808_0809,
        };
        let namespaces = vec![SeenNamespace { uuid: [6; 16], id: 1.into(), block_size: 512.into() }];
        Record { registers, configuration_space: Box::new([0x77; pci::USED]), controller, namespaces }
    }

    #[test]
    fn a_record_is_parsed_as_it_was_written() {
        let whole = record();
        let bytes = whole.to_bytes();
        assert_eq!(bytes[..16], [&b"LunarVM\0\x03\0\0\0"[..], &(bytes.len() as u32).to_le_bytes()].concat());
        assert_eq!(Record::parse(&bytes), Ok(whole));
        let nothing = Record {
            registers: SavedRegisters {
                registers: RegisterRecord::new_zeroed(),
                submissions: vec![],
                completions: vec![],
            },
            controller: SavedController::default(),
            namespaces: vec![],
            ..record()
        };
        assert_eq!(Record::parse(&nothing.to_bytes()), Ok(nothing));
    }

    #[test]
    fn malformed_and_foreign_records_are_refused() {
        let bytes = record().to_bytes();
        for len in (0..bytes.len()).step_by(7) {
            assert!(Record::parse(&bytes[..len]).is_err(), "{len}");
        }
        assert_eq!(Record::parse(&[&bytes[..], &[0]].concat()), Err(Refusal::Malformed));
        let changed = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            Record::parse(&bytes)
        };
        assert_eq!((changed(0, b'l'), changed(8, 1)), (Err(Refusal::Foreign), Err(Refusal::Foreign)));
        // Numbers of what follows: more than there can be, and fewer than there are.
        for at in (16..30).step_by(2).chain([32, 36, 52, 54]) {
            assert_eq!(changed(at + 1, 0xff), Err(Refusal::Malformed), "{at}");
            assert_eq!(changed(at, 0), Err(Refusal::Malformed), "{at}");
        }
        // Deferred completions: more than there are.
        let at =
            size_of::<Head>() + size_of::<RegisterRecord>() + pci::USED + 3 * size_of::<SavedSubmissionQueue>() + 12;
        assert_eq!(changed(at + 3, 0xff), Err(Refusal::Malformed));
    }
}
