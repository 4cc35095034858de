use super::*;
use lunar_control::write_freeze::WriteOffer;
use lunar_core::mem::Arena;
use lunar_reactor::sim::{Host, World};
use lunar_reactor::{Choice, Config};
use lunar_scsi::forwarding::Terms;
use lunar_scsi::testing::{BLOCK, BLOCKS, Rig, Tape};

const UNIT: UnitId = UnitId(0);
const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE: [u8; 6] = [0x17, 0, 0, 0, 0, 0];

/// Runs `work` with the local nexus of a device server.
fn with(rig: &Rig, work: impl AsyncFnOnce(Rc<LocalNexus>)) {
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let local = LocalNexus::new(&reactor, &rig.target);
    reactor.run(work(local));
}

/// The same in simulated time.
fn with_simulated_time(rig: &Rig, work: impl AsyncFnOnce(Rc<LocalNexus>)) {
    let world = World::new(1);
    world.set_deadline(Instant(24 * 3600 * 1_000_000_000));
    let reactor = Reactor::with_driver(world.core(Host(1)), Arena::new(8 << 20), Default::default());
    let local = LocalNexus::new(&reactor, &rig.target);
    reactor.run(work(local));
}

/// A call while no volume is copied.
fn call(order: ScsiOrder) -> ScsiCall {
    ScsiCall { order, offer: WriteOffer::of(false, false), begins: Box::new(|_, _| ()) }
}

async fn run(local: &Rc<LocalNexus>, command: &str) -> Result<ScsiOutcome, ScsiError> {
    local.execute(UNIT, call(ScsiOrder::new(command))).await
}

async fn send(local: &Rc<LocalNexus>, command: &str, data: &[u8]) -> Result<ScsiOutcome, ScsiError> {
    local.execute(UNIT, call(ScsiOrder { data_out: data.to_vec(), ..ScsiOrder::new(command) })).await
}

/// The name of the status of a command, which has ended.
async fn status(local: &Rc<LocalNexus>, command: &str) -> String {
    run(local, command).await.unwrap_or_else(|why| panic!("{command}: {why}")).status_name
}

/// Has the device end its commands a while later: an abort waits for the device.
fn release_later(local: &LocalNexus, tape: &Rc<Tape>) {
    let (reactor, tape) = (local.reactor.clone(), tape.clone());
    local.reactor.spawn(async move {
        reactor.sleep(Duration::from_millis(100)).await;
        tape.release();
    });
}

#[test]
fn commands_move_data_and_the_nexus_begins_without_unit_attentions() {
    with(&Rig::default(), async |local| {
        assert_eq!(status(&local, "test unit ready").await, "GOOD");
        let found = run(&local, "READ CAPACITY(10)").await.expect("it ends");
        assert_eq!((found.name.as_deref(), found.cdb[0], found.wanted), (Some("READ CAPACITY(10)"), 0x25, 8));
        assert_eq!(found.data, [(BLOCKS as u32 - 1).to_be_bytes(), BLOCK.to_be_bytes()].concat());
        let data: Vec<u8> = (0..2 * BLOCK).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        let ended = send(&local, "write10 lba=3 length=2", &data).await.expect("it ends");
        assert_eq!((ended.status, ended.wanted, ended.is_good()), (0, data.len() as u64, true));
        assert_eq!(run(&local, "28 00 00 00 00 03 00 00 02 00").await.expect("it ends").data, data);
        let cut = ScsiOrder { data_in: Some(5), ..ScsiOrder::new("read16 lba=3 length=2") };
        let cut = local.execute(UNIT, call(cut)).await.expect("it ends");
        assert_eq!((&cut.data[..], cut.wanted), (&data[..5], data.len() as u64));
    });
}

#[test]
fn sense_data_are_told_in_words() {
    with(&Rig::default(), async |local| {
        let ended = run(&local, "read10 lba=4096 length=1").await.expect("it ends");
        assert_eq!((ended.status, ended.is_good(), ended.data.len()), (2, false, 0));
        assert_eq!(ended.status_name, "CHECK CONDITION");
        let words = "ILLEGAL_REQUEST: logical block address out of range";
        assert!(ended.sense_words.starts_with(words) && ended.sense_words.contains("(21h/00h)"), "{ended:?}");
        assert_eq!(ended.sense[2], 5);
        let ended = run(&local, "00 01 00 00 00 00").await.expect("it ends");
        assert!(ended.sense_words.contains("byte 1"), "{}", ended.sense_words);
    });
}

#[test]
fn the_operator_is_told_of_a_command_before_it_is_executed() {
    let tape = Tape::new(1 << 20);
    let rig = Rig::forwarding(tape.clone());
    with_simulated_time(&rig, async |local| {
        assert_eq!(status(&local, "test unit ready").await, "GOOD");
        tape.hold();
        let told = Arc::<std::sync::Mutex<Vec<_>>>::default();
        let to = told.clone();
        let begins = Box::new(move |cdb: &[u8], name: Option<&str>| {
            to.lock().expect("no panic").push((cdb.to_vec(), name.map(str::to_owned)));
        });
        let (waiting, calls) = (local.clone(), ScsiCall { begins, ..call(ScsiOrder::new("rewind")) });
        local.reactor.spawn(async move { drop(waiting.execute(UNIT, calls).await) });
        local.reactor.sleep(Duration::from_millis(5)).await;
        let expected = (vec![0x01, 0, 0, 0, 0, 0], Some("REWIND".to_owned()));
        assert_eq!(*told.lock().expect("no panic"), [expected]);
        tape.release();
        local.close().await;
    });
}

#[test]
fn wrong_orders_are_refused_before_anything_is_executed() {
    with(&Rig::default(), async |local| {
        assert!(matches!(run(&local, "reed10").await, Err(ScsiError::Command(_))));
        let both = ScsiOrder { data_in: Some(8), data_out: vec![0; 8], ..ScsiOrder::new("read10 length=1") };
        assert!(matches!(local.execute(UNIT, call(both)).await, Err(ScsiError::BothDirections)));
        let long = ScsiOrder { data_in: Some(DATA_BYTES_MAX + 1), ..ScsiOrder::new("read10 length=1") };
        assert!(matches!(local.execute(UNIT, call(long)).await, Err(ScsiError::TooLong)));
        let other = local.execute(UnitId(7), call(ScsiOrder::new("test unit ready"))).await;
        assert!(matches!(other, Err(ScsiError::NotServed)));
        let sent = send(&local, "write10 length=2", &[0; 100]).await.expect("it ends");
        assert_eq!(sent.status, 2, "an incomplete block is not written");
    });
}

#[test]
fn a_volume_that_is_copied_is_only_read() {
    with(&Rig::default(), async |local| {
        let try_ = async |command: &str, frozen: (bool, bool)| {
            let data_out = if command.starts_with("write") { vec![7; BLOCK as usize] } else { Vec::new() };
            let order = ScsiOrder { data_out, ..ScsiOrder::new(command) };
            local.execute(UNIT, ScsiCall { offer: WriteOffer::of(frozen.0, frozen.1), ..call(order) }).await
        };
        let copied = async |command: &str, frozen| matches!(try_(command, frozen).await, Err(ScsiError::Copied));
        let (own, other) = ((true, true), (false, true));
        assert!(copied("write10 length=1", own).await && copied("c0 00 00 00 00 00", own).await);
        assert_eq!(try_("read10 length=1", own).await.expect("it ends").data, [0; BLOCK as usize]);
        assert!(try_("write10 length=1", other).await.expect("another volume is copied").is_good());
        let copy = "83 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
        assert!(copied(copy, other).await && !copied(copy, (false, false)).await);
    });
}

#[test]
fn reservations_hold_in_both_directions_and_end_with_the_nexus() {
    let rig = Rig::default();
    with(&rig, async |local| {
        assert_eq!(rig.run(&RESERVE, &[], 0).status, Status::GOOD);
        let refused = send(&local, "write10 length=1", &[0; BLOCK as usize]).await.expect("it ends");
        assert_eq!(refused.status_name, "RESERVATION CONFLICT");
        assert_eq!(rig.run(&RELEASE, &[], 0).status, Status::GOOD);
        assert_eq!(status(&local, "reserve 6").await, "GOOD");
        assert_eq!(rig.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], BLOCK).status, Status::RESERVATION_CONFLICT);
        local.close().await;
        assert_eq!(rig.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], BLOCK).status, Status::GOOD);
        assert_eq!(status(&local, "test unit ready").await, "GOOD");
    });
}

#[test]
fn a_forwarded_device_executes_its_own_commands() {
    let tape = Tape::on_terms(1 << 20, Terms { exclusive: true, ..Terms::default() });
    let rig = Rig::forwarding(tape.clone());
    with(&rig, async |local| {
        assert_eq!(status(&local, "rewind").await, "GOOD");
        assert_eq!(send(&local, "write 6 byte2=000004", b"tape").await.expect("it ends").status, 0);
        assert_eq!(status(&local, "write filemarks 6 length=1").await, "GOOD");
        // The nexus has the drive for itself.
        assert_eq!(rig.run(&[0x0a, 0, 0, 0, 4, 0], b"over", 0).status, Status::RESERVATION_CONFLICT);
        assert_eq!(status(&local, "rewind").await, "GOOD");
        let block = ScsiOrder { data_in: Some(4), ..ScsiOrder::new("read 6 byte2=000004") };
        assert_eq!(local.execute(UNIT, call(block)).await.expect("it ends").data, b"tape");
        local.close().await;
        assert_eq!(rig.run(&[0x0a, 0, 0, 0, 4, 0], b"over", 0).status, Status::GOOD);
    });
}

#[test]
fn a_command_that_does_not_end_is_aborted() {
    let tape = Tape::new(1 << 20);
    let rig = Rig::forwarding(tape.clone());
    with(&rig, async |local| {
        assert_eq!(status(&local, "test unit ready").await, "GOOD");
        tape.hold();
        release_later(&local, &tape);
        let order = ScsiOrder { patience: Duration::from_millis(20), ..ScsiOrder::new("rewind") };
        assert!(matches!(local.execute(UNIT, call(order)).await, Err(ScsiError::Aborted(_))));
        assert_eq!(status(&local, "test unit ready").await, "GOOD");
    });
}

#[test]
fn the_outcome_of_a_command_whose_abort_does_not_end_is_unknown_and_the_nexus_stays_for_it() {
    let tape = Tape::new(1 << 20);
    let rig = Rig::forwarding(tape.clone());
    with_simulated_time(&rig, async |local| {
        tape.hold();
        let ended = run(&local, "rewind").await;
        let Err(why @ ScsiError::Unfinished(_)) = ended else { panic!("{ended:?}") };
        assert!(why.to_string().contains("outcome is unknown") && !why.to_string().contains("aborted"), "{why}");
        local.reactor.sleep(10 * IDLE).await;
        assert!(local.nexus.borrow().as_ref().is_some_and(|nexus| !nexus.tasks.is_empty()), "it is still executed");
        tape.release();
        local.reactor.sleep(2 * IDLE).await;
        assert!(local.nexus.borrow().is_none(), "it has ended");
        assert_eq!(status(&local, "test unit ready").await, "GOOD");
    });
}

#[test]
fn commands_that_do_not_end_leave_room_for_those_of_other_volumes() {
    let tape = Tape::new(1 << 20);
    let rig = Rig::forwarding(tape.clone());
    with_simulated_time(&rig, async |local| {
        tape.hold();
        for _ in 0..VOLUME_COMMANDS_MAX {
            let waiting = local.clone();
            local.reactor.spawn(async move { drop(run(&waiting, "rewind").await) });
        }
        local.reactor.sleep(Duration::from_millis(5)).await;
        assert!(matches!(run(&local, "rewind").await, Err(ScsiError::Busy)));
        assert_eq!(local.slots.free(), COMMANDS_MAX - VOLUME_COMMANDS_MAX);
        // The one that the drive executes has not ended when the operator is told that it is late.
        local.reactor.sleep(Duration::from_secs(60)).await;
        assert_eq!(local.slots.free(), COMMANDS_MAX - 1);
        tape.release();
        local.reactor.sleep(Duration::from_millis(5)).await;
        assert_eq!(status(&local, "rewind").await, "GOOD");
    });
}

#[test]
fn the_next_nexus_begins_when_the_one_before_has_ended() {
    let tape = Tape::on_terms(1 << 20, Terms { exclusive: true, ..Terms::default() });
    let rig = Rig::forwarding(tape.clone());
    with_simulated_time(&rig, async |local| {
        assert_eq!(status(&local, "rewind").await, "GOOD");
        tape.hold();
        let (waiting, closing) = (local.clone(), local.clone());
        local.reactor.spawn(async move { drop(run(&waiting, "rewind").await) });
        local.reactor.sleep(Duration::from_millis(5)).await;
        local.reactor.spawn(async move { closing.close().await });
        local.reactor.sleep(Duration::from_millis(5)).await;
        // The drive still executes a command of the nexus that ends, which has the drive for itself.
        assert!(local.nexus.borrow().is_none());
        release_later(&local, &tape);
        for _ in 0..2 {
            assert_eq!(status(&local, "test unit ready").await, "GOOD");
        }
        local.close().await;
        assert!(local.nexus.borrow().is_none() && local.closing.borrow().is_none());
    });
}

#[test]
fn commands_at_a_unit_that_is_removed_end() {
    let tape = Tape::new(1 << 20);
    let rig = Rig::forwarding(tape.clone());
    with(&rig, async |local| {
        tape.hold();
        let reactor = local.reactor.clone();
        let (end, waiting) = (Rc::<End>::default(), local.clone());
        let done = end.clone();
        reactor.spawn(async move {
            let ended = run(&waiting, "rewind").await.expect("it was aborted");
            assert_eq!(ended.status_name, "TASK ABORTED");
            done.come();
        });
        reactor.sleep(Duration::from_millis(5)).await;
        rig.target.remove_unit(0);
        release_later(&local, &tape);
        local.leave(UNIT).await;
        end.unless(pending::<()>()).await;
        assert!(matches!(run(&local, "rewind").await, Err(ScsiError::NotServed)));
    });
}
