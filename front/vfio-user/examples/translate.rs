//! Measures how long it takes to fetch a command from a guest's queue and to find its data, and how long to complete
//! it: nanoseconds of each, over ten million 4 KiB reads, with 32 commands at a time and shadow doorbells. The work of
//! a store, between the two, is not included.
//!
//!     cargo run --release -p lunar-vfio-user --features testing --example translate

use lunar_core::mem::{Region, SgMut};
use lunar_nvme::Status;
use lunar_nvme::fuzzing::Rig;
use lunar_nvme::plan::QueueChange;
use lunar_vfio_user::pointer::resolve;
use lunar_vfio_user::registers::NvmeRegisters;
use lunar_vfio_user::testing::entry;
use std::hint::black_box;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const COMMANDS: u32 = 10_000_000;
const BATCH: u32 = 32;
const ENTRIES: u32 = 1024;
const BYTES: u64 = 4096;
const MEMORY: usize = 4 << 20;
/// Guest addresses.
const SHADOW: u64 = 0x4000;
const EVENTS: u64 = 0x5000;
const SUBMISSIONS: u64 = 0x1_0000;
const COMPLETIONS: u64 = 0x3_0000;
const DATA: u64 = 0x10_0000;

fn main() {
    let rig = Rig::default();
    let admin =
        rig.subsystem.open_controller(&lunar_nvme::fuzzing::tenant(), lunar_core::time::Instant(0)).expect("room");
    let mut registers = NvmeRegisters::new(admin.controller.clone());
    let memory = Region::zeroed(MEMORY);
    registers.memory.map(0, MEMORY as u64, Some(memory.clone())).expect("it is free");
    registers.write(0x24, &0x001f_001f_u32.to_le_bytes());
    registers.write(0x28, &0x1000_u64.to_le_bytes());
    registers.write(0x30, &0x2000_u64.to_le_bytes());
    registers.enable().expect("valid admin queues");
    let (id, entries) = (1, ENTRIES as u16);
    for change in [
        QueueChange::CreateCompletion { id, entries, address: COMPLETIONS, vector: Some(1) },
        QueueChange::CreateSubmission { id, entries, address: SUBMISSIONS, completion_queue: 1 },
        QueueChange::SetDoorbellBuffers { doorbells: SHADOW, events: EVENTS },
    ] {
        registers.change_queues(change).expect("the memory is there");
    }
    for at in 0..ENTRIES {
        let mut sqe = entry(DATA + u64::from(at % 512) * BYTES, 0);
        (sqe.opcode, sqe.nsid, sqe.cid) = (2, 1.into(), (at as u16).into());
        sqe.cdw10[2] = 7.into();
        assert!(memory.write(SUBMISSIONS as usize + at as usize * 64, sqe.as_bytes()));
    }
    let (mut translating, mut completing) = (Duration::ZERO, Duration::ZERO);
    let mut cids = Vec::with_capacity(BATCH as usize);
    for batch in 1..=COMMANDS / BATCH {
        assert!(memory.store(SHADOW as usize + 8, batch * BATCH % ENTRIES), "the host writes its shadow doorbell");
        let begun = Instant::now();
        while let Some(fetched) = registers.fetch() {
            let ranges = resolve(&fetched.first, BYTES, &registers.memory).expect("a page");
            let mut parts = SgMut::default();
            for range in ranges.iter() {
                let found = registers.memory.each(range.address, range.len as usize, |region, at, len| {
                    region.buf(at, len).map(|part| parts.push(part)).is_some()
                });
                assert!(found, "it is there");
            }
            black_box(&parts);
            cids.push(fetched.first.cid.get());
        }
        translating += begun.elapsed();
        assert_eq!(cids.len(), BATCH as usize, "all of them");
        let begun = Instant::now();
        cids.drain(..).for_each(|cid| registers.complete(1, cid, Status::SUCCESS, 0));
        completing += begun.elapsed();
        let _ = registers.take_raised();
        assert!(memory.store(SHADOW as usize + 12, batch * BATCH % ENTRIES), "the host has read them");
    }
    let each = |all: Duration| all.as_nanos() as f64 / f64::from(COMMANDS / BATCH * BATCH);
    println!("{COMMANDS} commands: {:.1} ns to translate, {:.1} ns to complete", each(translating), each(completing));
}
