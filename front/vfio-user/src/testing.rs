//! What fuzzers call: messages, registers, entries and lists of pages with any bits.

use crate::feature::{self, Wish};
use crate::pci::Space;
use crate::pointer::resolve;
use crate::record::Record;
use crate::registers::{Effect, NvmeRegisters};
use crate::session;
use crate::wire::{Code, Feature, HEADER_LEN, Info, RegionInfo, State};
use lunar_core::mem::Region;
use lunar_guest::Range;
use lunar_guest::dirty::{DirtyLog, DirtyPages};
use lunar_nvme::fuzzing::Rig;
use lunar_nvme::{Sqe, Status};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Takes messages apart: a header, and what follows it.
pub fn messages(mut data: &[u8]) {
    while let Some((header, rest)) = data.split_first_chunk::<HEADER_LEN>() {
        let Ok(head) = session::head(header) else { return };
        let (payload, rest) = rest.split_at(rest.len().min(head.len));
        let code = Code(head.header.code.get());
        let request = session::parse(code, payload);
        match (code, &request) {
            (Code::REGION_INFO, Ok(_)) => {
                let asked = RegionInfo::read_from_prefix(payload).map(|(asked, _)| asked);
                let told = asked.map(|asked| session::region_info(&asked, payload.len() % 2 == 0));
                assert!(told.is_ok_and(|told| told.is_err() || told.is_ok_and(|(bytes, _)| bytes.len() <= 64)));
            }
            (Code::IRQ_INFO, Ok(_)) => {
                let asked = Info::read_from_prefix(payload).map(|(asked, _)| asked);
                assert!(asked.is_ok_and(|asked| session::irq_info(&asked).is_ok() == (asked.index.get() < 5)));
            }
            (_, Ok(session::Request::Read(access) | session::Request::Write(access, _))) => {
                _ = session::within(access);
            }
            (_, Ok(session::Request::Feature(feature, wish))) => ask(feature, wish),
            (_, Ok(session::Request::WriteState(piece))) => become_what(piece),
            _ => {}
        }
        let reply = session::reply(&head.header, &request.map(|_| Vec::new()));
        assert_eq!(reply.len(), HEADER_LEN);
        data = rest;
    }
}

/// A feature: what is remembered of some writes is told in as many bytes as there was room for.
fn ask(feature: &Feature, wish: &Wish) {
    match wish {
        Wish::StartLogging(page_size, ranges) => {
            if let Ok(log) = DirtyPages::new(*page_size, ranges) {
                assert!(log.page_size().is_power_of_two());
            }
        }
        Wish::Report(report) => {
            let Ok(mut log) = DirtyPages::new(report.page_size.get(), &[]) else { return };
            (0..8)
                .for_each(|at| log.mark(Range { address: report.span.address.get().wrapping_add(at << 13), len: 100 }));
            let bitmap = log.report(report.span.range(), report.page_size.get()).unwrap_or_default();
            let told = feature::answer(feature, &[report.as_bytes(), &bitmap]);
            assert!(!bitmap.is_empty() && told.len() <= feature.argsz.get() as usize);
        }
        Wish::SetState(state) => assert!(feature::way(State::RUNNING, *state).is_none_or(|way| way.len() < 3)),
        _ => {}
    }
}

/// What a controller shall have been elsewhere: nonsense is refused, and whatever is not, runs.
fn become_what(bytes: &[u8]) {
    let Ok(record) = Record::parse(bytes) else { return };
    assert_eq!(Record::parse(&record.to_bytes()).as_ref(), Ok(&record));
    _ = Space::default().restore(&record.space);
    let rig = Rig::default();
    let Some(admin) = rig.subsystem.attach(&lunar_nvme::fuzzing::tenant(), lunar_core::time::Instant(0)) else {
        return;
    };
    let mut machine = NvmeRegisters::new(admin.controller.clone());
    assert_eq!(machine.memory.map(0, MEMORY as u64, Some(Region::zeroed(MEMORY))), Ok(()));
    if admin.controller.restore(&record.controller).is_err() || machine.restore(&record.machine, 1).is_err() {
        return;
    }
    let again = machine.save();
    for _ in 0..100 {
        let Some(fetched) = machine.fetch() else { break };
        machine.complete(fetched.queue, fetched.first.cid.get(), Status::SUCCESS, 0);
    }
    machine.flush();
    _ = (machine.arm(), machine.take_raised());
    machine.disable();
    machine.reset();
    assert!(machine.restore(&again, 1).is_ok(), "what was saved can be");
}

/// Bytes of the guest's memory, from address zero on.
const MEMORY: usize = 64 << 10;

/// Accesses to registers and doorbells, and commands about queues; what is fetched is completed, in any order.
///
/// # Panics
/// When the machine does what it may not.
pub fn registers(data: &[u8]) {
    let rig = Rig::default();
    let Some(admin) = rig.subsystem.attach(&lunar_nvme::fuzzing::tenant(), lunar_core::time::Instant(0)) else {
        return;
    };
    let mut machine = NvmeRegisters::new(admin.controller.clone());
    let mut space = Space::default();
    let memory = Region::zeroed(MEMORY);
    assert_eq!(machine.memory.map(0, MEMORY as u64, Some(memory.clone())), Ok(()));
    // What the guest has written itself: all else is told as written by the device.
    let mut own = vec![0; MEMORY];
    machine.memory.start_log(DirtyLog::Pages(DirtyPages::new(4096, &[]).expect("a page size")));
    let mut under_way = Vec::new();
    for step in data.chunks(12) {
        let mut bytes = [0; 12];
        bytes[..step.len()].copy_from_slice(step);
        let [what, a, b, c, value @ ..] = bytes;
        let offset = u32::from_le_bytes([a, b, c & 0x3f, 0]);
        match what % 8 {
            0 | 1 => {
                let effect = machine.write(offset, &value[..if what & 0x80 == 0 { 4 } else { 8 }]);
                if effect == Effect::Configure && machine.wanted() & 1 != 0 {
                    _ = machine.enable();
                }
            }
            // Doorbells that there may be.
            2 => _ = machine.write(0x1000 + u32::from(a % 16) * 4, &[b, 0, 0, 0]),
            3 => {
                let at = usize::from(u16::from_le_bytes([a, b])).min(MEMORY - 8);
                assert!(memory.write(at, &value));
                own[at..at + 8].copy_from_slice(&value);
            }
            4 => queue_command(&mut machine, a % 6, &bytes),
            5 if what & 0x40 == 0 => machine.disable(),
            5 => move_on(&mut machine),
            6 => {
                space.write(offset as usize, &value);
                machine.flush();
                _ = (machine.take_raised(), machine.arm());
            }
            _ => _ = under_way.pop().map(|(queue, cid)| machine.complete(queue, cid, Status::SUCCESS, 7)),
        }
        while let Some(fetched) = machine.fetch() {
            assert!(under_way.len() < 1 << 18, "commands under way are as many as queues have entries");
            under_way.push((fetched.queue, fetched.first.cid.get()));
            under_way.extend(fetched.second.map(|second| (fetched.queue, second.cid.get())));
        }
    }
    let all = Range { address: 0, len: MEMORY as u64 };
    let written = feature::dirty_pages(&machine.memory, all, 4096).unwrap_or_default();
    for (page, own) in own.chunks(4096).enumerate() {
        let mut now = [0; 4096];
        assert!(memory.read(page * 4096, &mut now));
        assert!(now == own || written[page / 8] & 1 << (page % 8) != 0, "page {page} was written, and is not told");
    }
}

/// Becomes another machine that is the same.
fn move_on(machine: &mut NvmeRegisters) {
    let saved = machine.save();
    machine.disable();
    machine.reset();
    assert_eq!(machine.restore(&saved, 0), Ok(()));
    assert_eq!(machine.save(), saved);
}

fn queue_command(machine: &mut NvmeRegisters, what: u8, bytes: &[u8; 12]) {
    let mut sqe = crate::pointer::entry(u64::from(bytes[4] & 0x0f) << 12, u64::from(bytes[5] & 0x0f) << 12);
    sqe.cdw10[0] = (u32::from(bytes[6] & 0x1f) << 16 | u32::from(bytes[7] & 0x07)).into();
    sqe.cdw10[1] = (u32::from(bytes[8] & 0x07) << 16 | u32::from(bytes[9] | 1)).into();
    let id = u16::from(bytes[7] & 0x07);
    _ = match what {
        0 => machine.create_completions(&sqe, 7),
        1 => machine.create_submissions(&sqe).map(|_| ()),
        2 => machine.delete_submissions(id),
        3 => machine.delete_completions(id),
        4 => machine.set_shadow(&sqe),
        _ => return machine.lie(),
    };
}

/// Lists of pages and segments: an entry, a length, and the memory that it may name.
///
/// # Panics
/// When what is found is not what was asked for.
pub fn pointers(data: &[u8]) {
    let Some((head, memory)) = data.split_first_chunk::<24>() else { return };
    let mut sqe = Sqe::new_zeroed();
    sqe.flags = head[0];
    sqe.sgl.as_mut_bytes().copy_from_slice(&head[8..]);
    let bytes = u64::from(u32::from_le_bytes([head[1], head[2], head[3] & 0x1f, 0]));
    let region = Region::zeroed(MEMORY);
    assert!(region.write(0, &memory[..memory.len().min(MEMORY)]));
    let mut guest = lunar_guest::memory::Memory::default();
    assert_eq!(guest.map(0, MEMORY as u64, Some(region)), Ok(()));
    if let Ok(ranges) = resolve(&sqe, bytes, &guest) {
        assert_eq!(ranges.iter().map(|range| range.len).sum::<u64>(), bytes);
        for range in ranges.iter() {
            assert!(range.len > 0);
            _ = guest.each(range.address, range.len as usize, |region, at, count| region.slice(at, count).is_some());
        }
    }
}
