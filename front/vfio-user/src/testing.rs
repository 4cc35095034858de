//! For tests and fuzz targets: messages, registers, records and PRP lists with arbitrary bytes.

use crate::feature::{self, FeatureRequest};
use crate::pci::ConfigurationSpace;
use crate::pointer::resolve;
use crate::record::Record;
use crate::registers::{Effect, NvmeRegisters};
use crate::session;
use crate::wire::{Code, Feature, HEADER_LEN, Info, RegionInfo, State};
use lunar_core::mem::Region;
use lunar_guest::Range;
use lunar_guest::dirty::{DirtyLog, DirtyPages};
use lunar_guest::memory::Memory;
use lunar_nvme::command::Sgl;
use lunar_nvme::fuzzing::Rig;
use lunar_nvme::plan::QueueChange;
use lunar_nvme::{Sqe, Status};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A submission queue entry with these PRP entries.
#[must_use]
pub fn entry(first: u64, second: u64) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    let both = u128::from(second) << 64 | u128::from(first);
    if let Ok(sgl) = Sgl::read_from_bytes(&both.to_le_bytes()) {
        sqe.sgl = sgl;
    }
    sqe
}

/// Parses messages: a header, and its payload.
///
/// # Panics
/// When a reply does not fit its request.
pub fn messages(mut data: &[u8]) {
    while let Some((header, rest)) = data.split_first_chunk::<HEADER_LEN>() {
        let Ok(head) = session::head(header) else { return };
        let (payload, rest) = rest.split_at(rest.len().min(head.len));
        let code = Code(head.header.code.get());
        let request = session::parse(code, payload);
        match (code, &request) {
            (Code::REGION_INFO, Ok(_)) => {
                let asked = RegionInfo::read_from_prefix(payload).map(|(asked, _)| asked);
                let info = asked.map(|asked| session::region_info(&asked, payload.len() % 2 == 0));
                assert!(info.is_ok_and(|info| info.is_err() || info.is_ok_and(|(bytes, _)| bytes.len() <= 64)));
            }
            (Code::IRQ_INFO, Ok(_)) => {
                let asked = Info::read_from_prefix(payload).map(|(asked, _)| asked);
                assert!(asked.is_ok_and(|asked| session::irq_info(&asked).is_ok() == (asked.index.get() < 5)));
            }
            (_, Ok(session::Request::Read(access) | session::Request::Write(access, _))) => {
                _ = session::within(access);
            }
            (_, Ok(session::Request::Feature(feature, request))) => carry_out(feature, request),
            (_, Ok(session::Request::WriteState(piece))) => restore(piece),
            _ => {}
        }
        let reply = session::reply(&head.header, &request.map(|_| Vec::new()));
        assert_eq!(reply.len(), HEADER_LEN);
        data = rest;
    }
}

/// A report of dirty pages fits the room that the client has for it.
fn carry_out(feature: &Feature, request: &FeatureRequest) {
    match request {
        FeatureRequest::StartLogging(page_size, ranges) => {
            if let Ok(log) = DirtyPages::new(*page_size, ranges) {
                assert!(log.page_size().is_power_of_two());
            }
        }
        FeatureRequest::Report(report) => {
            let Ok(mut log) = DirtyPages::new(report.page_size.get(), &[]) else { return };
            let range = report.span.range();
            (0..8).for_each(|at| log.mark(Range { address: range.address.wrapping_add(at << 13), len: 100 }));
            let bitmap = log.report(range, report.page_size.get()).unwrap_or_default();
            let reply = feature::answer(feature, &[report.as_bytes(), &bitmap]);
            assert!(!bitmap.is_empty() && reply.len() <= feature.argsz.get() as usize);
        }
        FeatureRequest::SetState(state) => {
            assert!(feature::transitions(State::RUNNING, *state).is_none_or(|steps| steps.count() < 3));
        }
        _ => {}
    }
}

/// A record that is accepted makes registers that work and can be saved again.
fn restore(bytes: &[u8]) {
    let Ok(record) = Record::parse(bytes) else { return };
    assert_eq!(Record::parse(&record.to_bytes()).as_ref(), Ok(&record));
    _ = ConfigurationSpace::default().restore(&record.configuration_space);
    let rig = Rig::default();
    let Some(admin) = rig.subsystem.open_controller(&lunar_nvme::fuzzing::tenant(), lunar_core::time::Instant(0))
    else {
        return;
    };
    let mut registers = NvmeRegisters::new(admin.controller.clone());
    assert_eq!(registers.memory.map(0, MEMORY as u64, Some(Region::zeroed(MEMORY))), Ok(()));
    if admin.controller.restore(&record.controller).is_err() || registers.restore(&record.registers, 1).is_err() {
        return;
    }
    let again = registers.save();
    for _ in 0..100 {
        let Some(fetched) = registers.fetch() else { break };
        registers.complete(fetched.queue, fetched.first.cid.get(), Status::SUCCESS, 0);
    }
    registers.flush();
    _ = (registers.arm(), registers.take_raised());
    registers.disable();
    registers.reset();
    assert!(registers.restore(&again, 1).is_ok(), "the saved state can be restored");
}

/// Bytes of guest memory, from address zero on.
const MEMORY: usize = 64 << 10;

/// Writes registers and doorbells, changes queues, and completes the commands that are fetched, in any order.
///
/// # Panics
/// When more commands are in progress than queues have entries, when registers change by saving and restoring them, and
/// when a written page is not in the dirty log.
pub fn registers(data: &[u8]) {
    let rig = Rig::default();
    let Some(admin) = rig.subsystem.open_controller(&lunar_nvme::fuzzing::tenant(), lunar_core::time::Instant(0))
    else {
        return;
    };
    let mut registers = NvmeRegisters::new(admin.controller.clone());
    let mut space = ConfigurationSpace::default();
    let memory = Region::zeroed(MEMORY);
    assert_eq!(registers.memory.map(0, MEMORY as u64, Some(memory.clone())), Ok(()));
    // The bytes that the guest itself has written. All other changes must be in the log.
    let mut own = vec![0; MEMORY];
    registers.memory.start_log(DirtyLog::Pages(DirtyPages::new(4096, &[]).expect("a page size")));
    let mut in_progress = Vec::new();
    for step in data.chunks(12) {
        let mut bytes = [0; 12];
        bytes[..step.len()].copy_from_slice(step);
        let [what, a, b, c, value @ ..] = bytes;
        let offset = u32::from_le_bytes([a, b, c & 0x3f, 0]);
        match what % 8 {
            0 | 1 => {
                let effect = registers.write(offset, &value[..if what & 0x80 == 0 { 4 } else { 8 }]);
                if effect == Effect::Configure && registers.configuration() & 1 != 0 {
                    _ = registers.enable();
                }
            }
            // Doorbells of queues that may exist.
            2 => _ = registers.write(0x1000 + u32::from(a % 16) * 4, &[b, 0, 0, 0]),
            3 => {
                let at = usize::from(u16::from_le_bytes([a, b])).min(MEMORY - 8);
                assert!(memory.write(at, &value));
                own[at..at + 8].copy_from_slice(&value);
            }
            4 => change_queues(&mut registers, a % 6, &bytes),
            5 if what & 0x40 == 0 => registers.disable(),
            5 => migrate(&mut registers),
            6 => {
                space.write(offset as usize, &value);
                registers.flush();
                _ = (registers.take_raised(), registers.arm());
            }
            _ => _ = in_progress.pop().map(|(queue, cid)| registers.complete(queue, cid, Status::SUCCESS, 7)),
        }
        while let Some(fetched) = registers.fetch() {
            assert!(in_progress.len() < 1 << 18, "no more commands are in progress than queues have entries");
            in_progress.push((fetched.queue, fetched.first.cid.get()));
            in_progress.extend(fetched.second.map(|second| (fetched.queue, second.cid.get())));
        }
    }
    let all = Range { address: 0, len: MEMORY as u64 };
    let written = feature::dirty_pages(&registers.memory, all, 4096).unwrap_or_default();
    for (page, own) in own.chunks(4096).enumerate() {
        let mut now = [0; 4096];
        assert!(memory.read(page * 4096, &mut now));
        assert!(
            now == own || written[page / 8] & 1 << (page % 8) != 0,
            "page {page} was written and is not in the log"
        );
    }
}

/// Saves registers and restores them in the same place.
fn migrate(registers: &mut NvmeRegisters) {
    let saved = registers.save();
    registers.disable();
    registers.reset();
    assert_eq!(registers.restore(&saved, 0), Ok(()));
    assert_eq!(registers.save(), saved);
}

fn change_queues(registers: &mut NvmeRegisters, what: u8, bytes: &[u8; 12]) {
    let (id, address) = (u16::from(bytes[7] & 0x07), u64::from(bytes[4] & 0x0f) << 12);
    // The values that the rows of NVMe admit: see `lunar_nvme::plan::QueueChange`.
    let (id, entries) = (id.max(1), u16::from(bytes[6] & 0x1f).max(1) + 1);
    let other = u16::from(bytes[8] & 0x07);
    let change = match what {
        0 => QueueChange::CreateCompletion { id, entries, address, vector: (bytes[9] & 2 != 0).then_some(other) },
        1 => QueueChange::CreateSubmission { id, entries, address, completion_queue: other.max(1) },
        2 => QueueChange::DeleteSubmission { id },
        3 => QueueChange::DeleteCompletion { id },
        4 => QueueChange::SetDoorbellBuffers { doorbells: address, events: u64::from(bytes[5] & 0x0f) << 12 },
        _ => return registers.locate(),
    };
    _ = registers.change_queues(change);
}

/// Resolves PRP lists and scatter-gather lists: an entry, a length, and the memory that it may name.
///
/// # Panics
/// When other ranges are found than the command has bytes.
pub fn pointers(data: &[u8]) {
    let Some((head, memory)) = data.split_first_chunk::<24>() else { return };
    let mut sqe = Sqe::new_zeroed();
    sqe.flags = head[0];
    sqe.sgl.as_mut_bytes().copy_from_slice(&head[8..]);
    let bytes = u64::from(u32::from_le_bytes([head[1], head[2], head[3] & 0x1f, 0]));
    let region = Region::zeroed(MEMORY);
    assert!(region.write(0, &memory[..memory.len().min(MEMORY)]));
    let mut guest = Memory::default();
    assert_eq!(guest.map(0, MEMORY as u64, Some(region)), Ok(()));
    if let Ok(ranges) = resolve(&sqe, bytes, &guest) {
        assert_eq!(ranges.iter().map(|range| range.len).sum::<u64>(), bytes);
        for range in ranges.iter() {
            assert!(range.len > 0);
            _ = guest.each(range.address, range.len as usize, |region, at, count| region.slice(at, count).is_some());
        }
    }
}
