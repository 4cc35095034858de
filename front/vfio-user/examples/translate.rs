//! How long it takes to take a command out of a guest's queue and to find its data, and how long to complete it: the
//! nanoseconds of each, over ten million 4 KiB reads, a queue of 32 at a time, doorbells in the guest's memory. What
//! lies between the two, a store's work, is not in it.
//!
//!     cargo run --release -p lunar-vfio-user --example translate

use lunar_core::mem::{Region, SgMut};
use lunar_nvme::fuzzing::Rig;
use lunar_nvme::{Sqe, Status};
use lunar_vfio_user::pointer::{entry, resolve};
use lunar_vfio_user::registers::NvmeRegisters;
use std::hint::black_box;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const COMMANDS: u32 = 10_000_000;
const BATCH: u32 = 32;
const ENTRIES: u32 = 1024;
const BYTES: u64 = 4096;
const MEMORY: usize = 4 << 20;
/// Where everything is in the guest's memory.
const SHADOW: u64 = 0x4000;
const EVENTS: u64 = 0x5000;
const SUBMISSIONS: u64 = 0x1_0000;
const COMPLETIONS: u64 = 0x3_0000;
const DATA: u64 = 0x10_0000;

/// Create I/O Completion Queue or I/O Submission Queue, of the number one.
fn create(page: u64, other: u32) -> Sqe {
    let mut sqe = entry(page, 0);
    sqe.cdw10[0] = ((ENTRIES - 1) << 16 | 1).into();
    sqe.cdw10[1] = (other << 16 | 3).into();
    sqe
}

fn main() {
    let rig = Rig::default();
    let admin = rig.subsystem.attach(&lunar_nvme::fuzzing::tenant(), lunar_core::time::Instant(0)).expect("room");
    let mut machine = NvmeRegisters::new(admin.controller.clone());
    let memory = Region::zeroed(MEMORY);
    machine.memory.map(0, MEMORY as u64, Some(memory.clone())).expect("it is free");
    machine.write(0x24, &0x001f_001f_u32.to_le_bytes());
    machine.write(0x28, &0x1000_u64.to_le_bytes());
    machine.write(0x30, &0x2000_u64.to_le_bytes());
    machine.enable().expect("the admin queues can be so");
    machine.create_completions(&create(COMPLETIONS, 1), 1).expect("room");
    machine.create_submissions(&create(SUBMISSIONS, 1)).expect("room");
    machine.set_shadow(&entry(SHADOW, EVENTS)).expect("memory");
    for at in 0..ENTRIES {
        let mut sqe = entry(DATA + u64::from(at % 512) * BYTES, 0);
        (sqe.opcode, sqe.nsid, sqe.cid) = (2, 1.into(), (at as u16).into());
        sqe.cdw10[2] = 7.into();
        assert!(memory.write(SUBMISSIONS as usize + at as usize * 64, sqe.as_bytes()));
    }
    let (mut translating, mut completing) = (Duration::ZERO, Duration::ZERO);
    let mut cids = Vec::with_capacity(BATCH as usize);
    for batch in 1..=COMMANDS / BATCH {
        assert!(memory.store(SHADOW as usize + 8, batch * BATCH % ENTRIES), "the host shows how far it came");
        let begun = Instant::now();
        while let Some(fetched) = machine.fetch() {
            let ranges = resolve(&fetched.first, BYTES, &machine.memory).expect("a page");
            let mut parts = SgMut::default();
            for range in ranges.iter() {
                let found = machine.memory.each(range.address, range.len as usize, |region, at, len| {
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
        cids.drain(..).for_each(|cid| machine.complete(1, cid, Status::SUCCESS, 0));
        completing += begun.elapsed();
        let _ = machine.take_raised();
        assert!(memory.store(SHADOW as usize + 12, batch * BATCH % ENTRIES), "the host has read them");
    }
    let each = |all: Duration| all.as_nanos() as f64 / f64::from(COMMANDS / BATCH * BATCH);
    println!("{COMMANDS} commands: {:.1} ns to translate, {:.1} ns to complete", each(translating), each(completing));
}
