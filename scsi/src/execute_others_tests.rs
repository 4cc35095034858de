use super::*;
use crate::command::Cdb;
use crate::lun::Lun;
use crate::task::{TaskFunction, TaskResponse};
use crate::testing::{Ended, Memory, Rig, Tape, at_once};
use std::rc::Rc;

/// The command of the process that returns the bytes C5h.
const VENDOR: [u8; 6] = [0xc5, 0, 0, 0, 4, 0];
const TUR: [u8; 6] = [0; 6];
const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];

/// A disk whose other commands a process has, without unit attention conditions.
struct Bench {
    rig: Rig,
    process: Rc<Tape>,
}

impl Bench {
    fn new(read_only: bool) -> Self {
        let (rig, process) = (Rig::default(), Tape::new(1 << 20));
        let traits = lunar_core::io::Traits { read_only, ..Rig::traits() };
        rig.target.add_unit_with(0, Rig::unit(0, traits, Rc::<Memory>::default()), Some(process.clone()));
        let bench = Self { rig, process };
        bench.forget();
        bench
    }

    /// All nexuses lose their unit attention conditions.
    fn forget(&self) {
        for nexus in self.rig.target.nexuses() {
            nexus.each(|itl| while itl.take_attention().is_some() {});
        }
    }

    fn run(&self, cdb: &[u8]) -> Ended {
        self.rig.run(cdb, &[], 4)
    }
}

fn meaning(ended: &Ended) -> (SenseKey, Asc) {
    assert_eq!(ended.status, Status::CHECK_CONDITION);
    crate::SenseData::of_device(&ended.sense).meaning().expect("sense data")
}

#[test]
fn only_commands_that_lunar_does_not_have_go_to_the_process() {
    let bench = Bench::new(false);
    let ended = bench.run(&VENDOR);
    assert_eq!((ended.status, &ended.data[..]), (Status::GOOD, &[0xc5; 4][..]));
    // The process would execute these, too.
    assert_eq!(bench.run(&TUR).status, Status::GOOD);
    assert_eq!(bench.run(&[0x12, 0, 0, 0, 4, 0]).data[0], 0, "a disk");
    assert_eq!(bench.process.received(), [VENDOR.to_vec()]);
    let without = Rig::default();
    assert_eq!(meaning(&without.run(&VENDOR, &[], 4)).1, Asc::INVALID_COMMAND_OPERATION_CODE);
}

#[test]
fn commands_that_a_process_may_have_had_do_not_stay_in_lunar() {
    let (bench, without) = (Bench::new(false), Rig::default());
    let stays = |rig: &Rig, lun: Lun, cdb: &[u8]| {
        let cdb = Cdb::new(cdb).expect("a good length");
        let attribute = crate::TaskAttribute::SIMPLE;
        rig.nexus.stays_in_lunar(&Command { lun, cdb, attribute, tag: 1, data_in: 4, data_out: 0 })
    };
    let own = bench.rig.lun.get();
    assert!(stays(&bench.rig, own, &TUR) && stays(&bench.rig, own, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]));
    // A process that is away does not say which commands it has.
    assert!(!stays(&bench.rig, own, &VENDOR) && !stays(&bench.rig, own, &[0xc6, 0, 0, 0, 0, 0]));
    assert!(stays(&without, own, &VENDOR), "it is refused");
    assert!(stays(&bench.rig, Lun::from_number(9), &VENDOR) && stays(&bench.rig, Lun::REPORT_LUNS, &VENDOR));
}

#[test]
fn the_commands_of_the_process_are_reported() {
    let bench = Bench::new(false);
    let report =
        |rig: &Rig, options: u8, code: u8| rig.run(&[0xa3, 0x0c, options, code, 0, 0, 0, 0, 0x40, 0, 0, 0], &[], 16384);
    let all = |rig: &Rig| -> Vec<Vec<u8>> { report(rig, 0, 0).data[4..].chunks(8).map(<[u8]>::to_vec).collect() };
    let (with, without) = (all(&bench.rig), all(&Rig::default()));
    assert_eq!(with[..without.len()], without, "those of Lunar come first");
    assert!(with.contains(&vec![0xc5, 0, 0, 0, 0, 0, 0, 16]) && with.contains(&vec![0x2c, 0, 0, 0, 0, 0, 0, 10]));
    let vendor = [&[0, 5, 0, 16, 0xc5][..], &[0xff; 15]].concat();
    assert_eq!(report(&bench.rig, 1, 0xc5).data, vendor);
    assert_eq!(report(&bench.rig, 3, 0xc5).data, vendor);
    assert_eq!(report(&bench.rig, 0x81, 0xc5).data[1], 0x85);
    assert_eq!(report(&bench.rig, 1, 0x28).data[1], 3, "a command of Lunar");
    assert_eq!(report(&Rig::default(), 1, 0xc5).data, [0, 1, 0, 0]);
}

#[test]
fn the_checks_of_lunar_come_first() {
    let bench = Bench::new(false);
    let other = bench.rig.target.nexus(Rig::name("b"));
    let as_other = || bench.rig.run_as(&other, &VENDOR, &[], 4);
    assert_eq!(meaning(&as_other()).0, SenseKey::UNIT_ATTENTION);
    assert_eq!(as_other().status, Status::GOOD);
    assert_eq!(bench.rig.run(&RESERVE, &[], 0).status, Status::GOOD);
    assert_eq!(as_other().status, Status::RESERVATION_CONFLICT);
    assert_eq!(bench.process.received().len(), 1);
    let bench = Bench::new(true);
    assert_eq!(meaning(&bench.run(&VENDOR)).0, SenseKey::DATA_PROTECT);
    assert_eq!(bench.process.received().len(), 0);
}

#[test]
fn a_unit_attention_condition_of_the_process_reaches_all_nexuses_once() {
    let bench = Bench::new(false);
    let other = bench.rig.target.nexus(Rig::name("b"));
    bench.forget();
    bench.process.establish_unit_attention(0x3f03);
    let changed = (SenseKey::UNIT_ATTENTION, Asc::INQUIRY_DATA_CHANGED);
    assert_eq!(meaning(&bench.run(&VENDOR)), changed);
    assert_eq!(bench.run(&VENDOR).status, Status::GOOD);
    assert_eq!(meaning(&bench.rig.run_as(&other, &TUR, &[], 0)), changed);
    assert_eq!(bench.rig.run_as(&other, &TUR, &[], 0).status, Status::GOOD);
}

#[test]
fn a_reset_of_the_logical_unit_resets_the_process() {
    let bench = Bench::new(false);
    let (target, reset) = (&bench.rig.target, TaskFunction::LOGICAL_UNIT_RESET);
    let ended = at_once(target.task_management(&bench.rig.nexus, reset, bench.rig.lun.get(), 0));
    assert_eq!((ended, bench.process.resets()), (TaskResponse::Complete, 1));
}
