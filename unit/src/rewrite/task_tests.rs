use super::*;
use crate::ledger::LocalFuture;
use crate::medium::MediumState;
use crate::rewrite::request::Pass;
use crate::testing::{BLOCK, Core, Metadata, Options, Saves, at_once, poll};
use lunar_core::io::Op;
use lunar_core::metadata::MetadataStore;
use lunar_core::protection::Kind;
use lunar_core::unit::Admitted;
use std::sync::Arc;

/// A process whose background tasks run when the test says so.
struct Process {
    core: Core,
    tasks: Rc<RefCell<Vec<LocalFuture<'static, ()>>>>,
}

impl Process {
    fn start(metadata: &Arc<Metadata>, options: Options) -> Self {
        let core = Core::new(metadata, options);
        let tasks = Rc::<RefCell<Vec<LocalFuture<'static, ()>>>>::default();
        let queue = tasks.clone();
        core.units.run_in_background(Rc::new(move |task| queue.borrow_mut().push(task)));
        Self { core, tasks }
    }

    /// Runs its task for this number of turns; returns whether the task continues.
    fn turns(&self, count: usize) -> bool {
        let mut task = self.tasks.borrow_mut().pop().expect("there is a task");
        if (0..count).any(|_| poll(&mut task).is_ready()) {
            return false;
        }
        self.tasks.borrow_mut().push(task);
        true
    }

    fn begin(&self, rewrite: Rewrite) -> LocalFuture<'_, Result<(), RewriteError>> {
        let Core { units, unit, arena, .. } = &self.core;
        Box::pin(units.rewrite(unit, None, rewrite, arena, (Until::Begun, || false)))
    }

    fn medium(&self) -> MediumState {
        self.core.units.shared().of(&self.core.unit).state().medium()
    }

    fn is_full_of(&self, byte: u8) -> bool {
        self.core.memory.bytes.borrow().iter().all(|found| *found == byte)
    }
}

fn rewrite(kind: RewriteKind, bytes: &[u8]) -> Rewrite {
    let pass = |byte: &u8| Pass { pattern: vec![*byte; BLOCK as usize], unmap: false };
    Rewrite { kind, passes: bytes.iter().map(pass).collect() }
}

const SANITIZE: RewriteKind = RewriteKind::Sanitize { can_exit: false };
const FORMAT: RewriteKind = RewriteKind::Format { protection: None };
const SANITIZING: MediumState = MediumState::Sanitizing { can_exit: false };
const SANITIZE_FAILED: MediumState = MediumState::SanitizeFailed { can_exit: false };

/// Rewrites in the foreground.
fn run(core: &Core, rewrite: Rewrite) -> Result<(), RewriteError> {
    at_once(core.units.rewrite(&core.unit, None, rewrite, &core.arena, (Until::Ended, || false)))
}

#[test]
fn a_rewrite_outlives_its_command() {
    let metadata = Arc::<Metadata>::default();
    let process = Process::start(&metadata, Options::default());
    let mut command = process.begin(rewrite(SANITIZE, &[9]));
    assert!(poll(&mut command).is_pending(), "it has not begun");
    drop(command);
    assert!(!process.turns(9));
    assert_eq!((process.medium(), process.is_full_of(9)), (MediumState::Ready, true));
}

#[test]
fn an_immediate_command_ends_when_the_rewrite_has_begun() {
    let metadata = Arc::<Metadata>::default();
    let process = Process::start(&metadata, Options::default());
    let mut command = process.begin(rewrite(SANITIZE, &[9]));
    assert!(poll(&mut command).is_pending());
    assert!(process.turns(1));
    assert_eq!((poll(&mut command), process.medium()), (Poll::Ready(Ok(())), SANITIZING));
    drop(command);
    let second = at_once(process.begin(rewrite(SANITIZE, &[8])));
    assert_eq!(second, Err(RewriteError::Busy), "one at a time");
}

#[test]
fn an_aborted_command_leaves_its_rewrite() {
    let metadata = Arc::<Metadata>::default();
    let process = Process::start(&metadata, Options::default());
    let Core { units, unit, arena, .. } = &process.core;
    let aborted = at_once(units.rewrite(unit, None, rewrite(FORMAT, &[0]), arena, (Until::Ended, || true)));
    assert_eq!(aborted, Ok(()));
    assert!(!process.turns(9));
    assert!(process.is_full_of(0));
}

#[test]
fn a_sanitize_continues_after_a_crash_without_the_passes_that_were_done() {
    for turns in [1, 2, 3] {
        let metadata = Arc::<Metadata>::default();
        let crashed = Process::start(&metadata, Options::default());
        let mut command = crashed.begin(rewrite(SANITIZE, &[1, 2, 3]));
        assert!(poll(&mut command).is_pending());
        assert!(crashed.turns(turns));
        let next = Process::start(&metadata, Options::default());
        assert_eq!(next.medium(), SANITIZING);
        next.core.units.resume(&next.core.arena);
        assert!(!next.turns(9));
        let flushes = next.core.memory.asked.borrow().iter().filter(|op| **op == Op::Flush).count();
        assert_eq!((next.medium(), next.is_full_of(3), flushes), (MediumState::Ready, true, 4 - turns));
        let last = Process::start(&metadata, Options::default());
        last.core.units.resume(&last.core.arena);
        assert_eq!((last.medium(), last.tasks.borrow().len()), (MediumState::Ready, 0));
    }
}

#[test]
fn a_format_that_crashed_is_not_resumed() {
    let metadata = Arc::<Metadata>::default();
    let crashed = Process::start(&metadata, Options::default());
    let mut command = crashed.begin(rewrite(FORMAT, &[0]));
    assert!(poll(&mut command).is_pending() && crashed.turns(1));
    let next = Process::start(&metadata, Options::default());
    next.core.units.resume(&next.core.arena);
    assert_eq!((next.medium(), next.tasks.borrow().len()), (MediumState::FormatCorrupted, 0));
    assert_eq!(run(&Core::new(&metadata, Options::default()), rewrite(FORMAT, &[0])), Ok(()));
    assert_eq!(Process::start(&metadata, Options::default()).medium(), MediumState::Ready);
}

#[test]
fn a_medium_that_may_not_be_written_is_not_sanitized_further() {
    let metadata = Arc::<Metadata>::default();
    let crashed = Process::start(&metadata, Options::default());
    let mut command = crashed.begin(rewrite(SANITIZE, &[1]));
    assert!(poll(&mut command).is_pending() && crashed.turns(1));
    let read_only = Process::start(&metadata, Options { read_only: true, ..Options::default() });
    read_only.core.units.resume(&read_only.core.arena);
    assert_eq!((read_only.medium(), read_only.tasks.borrow().len()), (SANITIZE_FAILED, 0));
    let writable = Process::start(&metadata, Options::default());
    writable.core.units.resume(&writable.core.arena);
    assert!(!writable.turns(9));
    assert_eq!(writable.medium(), MediumState::Ready);
}

#[test]
fn nothing_is_destroyed_before_the_record_is_durable() {
    let metadata = Arc::<Metadata>::default();
    metadata.set(Saves::None);
    let core = Core::new(&metadata, Options::default());
    assert_eq!(run(&core, rewrite(FORMAT, &[0])), Err(RewriteError::Metadata(Fault::Medium)));
    assert_eq!(core.units.shared().of(&core.unit).state().medium(), MediumState::Ready);
    assert!(core.memory.asked.borrow().is_empty() && core.command_sets[0].changed.borrow().is_empty());
}

#[test]
fn a_rewrite_whose_end_cannot_be_saved_has_failed_and_is_done_again_after_a_restart() {
    let metadata = Arc::<Metadata>::default();
    let process = Process::start(&metadata, Options::default());
    let mut command = process.begin(rewrite(SANITIZE, &[1]));
    assert!(poll(&mut command).is_pending() && process.turns(1));
    metadata.set(Saves::HalfWay);
    assert!(!process.turns(9));
    assert_eq!(process.medium(), SANITIZE_FAILED);
    metadata.set(Saves::All);
    assert_eq!(Process::start(&metadata, Options::default()).medium(), SANITIZING);
}

#[test]
fn a_fault_of_the_store_fails_the_rewrite() {
    for (kind, failed) in [(FORMAT, MediumState::FormatFailed), (SANITIZE, SANITIZE_FAILED)] {
        let metadata = Arc::<Metadata>::default();
        let core = Core::new(&metadata, Options::default());
        core.memory.fault.set(Some(Fault::Medium));
        let failure = Failure::Fault { fault: Fault::Medium, at: 0 };
        assert_eq!(run(&core, rewrite(kind, &[0])), Err(RewriteError::Failed(failure)));
        assert_eq!(core.units.shared().of(&core.unit).state().medium(), failed);
        assert_eq!(Process::start(&metadata, Options::default()).medium(), failed, "after a restart, too");
    }
}

#[test]
fn commands_of_an_older_epoch_are_refused_during_and_after_a_rewrite() {
    let metadata = Arc::<Metadata>::default();
    let process = Process::start(&metadata, Options::default());
    let unit = &process.core.unit;
    let before = Admitted::to(unit);
    let mut command = process.begin(rewrite(FORMAT, &[0]));
    assert!(poll(&mut command).is_pending());
    assert_eq!(before.check(), Ok(()));
    assert!(process.turns(1));
    assert_eq!(before.check(), Err(Fault::Cleared));
    let during = Admitted::to(unit);
    assert!(!process.turns(9));
    assert_eq!((during.check(), Admitted::to(unit).check()), (Err(Fault::Cleared), Ok(())));
    // Another view of the unit has the same epoch.
    let again = Core::sharing(&metadata, Options::default(), process.core.units.shared(), Rc::new(crate::NoOtherCores));
    assert_eq!(again.unit.ranges.epoch(), unit.ranges.epoch());
}

#[test]
fn protection_information_is_blank_before_the_type_changes() {
    let metadata = Arc::<Metadata>::default();
    let core = Core::new(&metadata, Options { protection: Some(Kind::One), ..Options::default() });
    let format = RewriteKind::Format { protection: Some(Kind::Three) };
    assert_eq!(run(&core, rewrite(format, &[0])), Ok(()));
    let protection = core.unit.protection.as_ref().expect("some blocks keep protection information");
    assert_eq!((protection.kind(), metadata.load("protection")), (Kind::Three, Some(vec![3])));
    assert!(core.protection.bytes.borrow().iter().all(|byte| *byte == 0), "blank");
    core.protection.fault.set(Some(Fault::Medium));
    let format = RewriteKind::Format { protection: Some(Kind::One) };
    assert!(matches!(run(&core, rewrite(format, &[0])), Err(RewriteError::Failed(_))));
    assert_eq!(protection.kind(), Kind::Three, "blocks with protection information keep the type");
}

#[test]
fn a_failed_sanitize_is_left_only_as_its_command_allowed() {
    for (can_exit, left) in [(false, Err(RewriteError::SanitizeRequired)), (true, Ok(()))] {
        let metadata = Arc::<Metadata>::default();
        let core = Core::new(&metadata, Options::default());
        core.memory.fault.set(Some(Fault::Medium));
        assert!(run(&core, rewrite(RewriteKind::Sanitize { can_exit }, &[0])).is_err());
        assert_eq!(run(&core, rewrite(FORMAT, &[0])), Err(RewriteError::SanitizeRequired));
        let activity = core.units.shared().of(&core.unit).begin_activity();
        assert_eq!(at_once(core.units.exit_failure_mode(&core.unit)), Err(RewriteError::Busy));
        drop(activity);
        assert_eq!(at_once(core.units.exit_failure_mode(&core.unit)), left);
        let medium = core.units.shared().of(&core.unit).state().medium();
        assert_eq!(medium == MediumState::Ready, can_exit);
        assert_eq!(metadata.load("medium") == Some(Vec::new()), can_exit, "after a restart, too");
    }
}
