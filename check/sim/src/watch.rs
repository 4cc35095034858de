//! Collects the violations of a simulation, and panics, also those that ended only a task.

use lunar_core::time::Instant;
use lunar_reactor::sim::World;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Once;

/// More virtual time than any scenario takes that does not hang.
const TIME_MAX: Instant = Instant(4 * 3600 * 1_000_000_000);

thread_local! {
    /// Panics of the simulation that runs on this thread; `None` while none runs.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Collects panics of simulations instead of printing them; other threads print theirs as before.
fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let taken = PANICS.with_borrow_mut(|panics| {
                panics.as_mut().map(|panics| panics.push(format!("panic: {info}"))).is_some()
            });
            if !taken {
                before(info);
            }
        }));
    });
}

/// The outcome of a seed.
#[derive(Debug)]
pub struct Outcome {
    /// The hash of the trace.
    pub hash: u64,
    /// Violations; empty if there are none.
    pub wrong: Vec<String>,
    /// The lines of the trace, if they were to be kept.
    pub trace: Vec<String>,
    /// Virtual nanoseconds.
    pub virtual_nanoseconds: u64,
    /// Commands that were answered.
    pub commands: u64,
    /// Nodes that were fenced and whose writes were checked afterwards: by iSCSI, by NVMe.
    pub fences: [u64; 2],
}

/// Collects the violations of one simulation. Clones share the collection.
#[derive(Clone)]
pub struct Watch(Rc<Inner>);

struct Inner {
    world: World,
    seed: u64,
    wrong: RefCell<Vec<String>>,
    commands: Cell<u64>,
    fences: Cell<[u64; 2]>,
}

impl Watch {
    /// Watches a new world.
    #[must_use]
    pub fn new(seed: u64, keep_trace: bool) -> Self {
        install_hook();
        let world = World::new(seed);
        world.set_deadline(TIME_MAX);
        if keep_trace {
            world.keep_trace();
        }
        let (wrong, commands, fences) = (RefCell::default(), Cell::new(0), Cell::default());
        Self(Rc::new(Inner { world, seed, wrong, commands, fences }))
    }

    /// The world.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.0.world
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Records a violation.
    pub fn report(&self, what: impl Into<String>) {
        let what = what.into();
        self.0.world.note(format_args!("WRONG: {what}"));
        self.0.wrong.borrow_mut().push(what);
    }

    /// Whether there is a violation: the scenario may stop.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        !self.0.wrong.borrow().is_empty() || PANICS.with_borrow(|panics| panics.as_ref().is_some_and(|p| !p.is_empty()))
    }

    /// Counts a command that was answered.
    pub fn count_command(&self) {
        self.0.commands.set(self.0.commands.get() + 1);
    }

    /// Counts a node that was fenced and whose writes were checked afterwards.
    pub fn count_fence(&self, is_nvme: bool) {
        let mut fences = self.0.fences.get();
        fences[usize::from(is_nvme)] += 1;
        self.0.fences.set(fences);
    }

    /// Runs a scenario; a panic is a violation.
    pub fn guard(&self, scenario: impl FnOnce()) {
        PANICS.set(Some(Vec::new()));
        // A panic of the scenario itself has been collected by the hook.
        let _ = catch_unwind(AssertUnwindSafe(scenario));
        let panics = PANICS.take().unwrap_or_default();
        self.0.wrong.borrow_mut().extend(panics);
    }

    /// The outcome.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        Outcome {
            hash: self.0.world.trace_hash(),
            wrong: self.0.wrong.borrow().clone(),
            trace: self.0.world.trace_lines(),
            virtual_nanoseconds: self.0.world.now().0,
            commands: self.0.commands.get(),
            fences: self.0.fences.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_reports_are_wrong() {
        let watch = Watch::new(1, false);
        watch.guard(|| panic!("on purpose"));
        watch.report("something");
        let wrong = watch.outcome().wrong;
        assert!(wrong.iter().any(|what| what.contains("on purpose")) && wrong.contains(&"something".to_owned()));
    }

    #[test]
    fn all_is_well_when_nothing_happens() {
        let watch = Watch::new(1, false);
        watch.guard(|| ());
        assert!(!watch.is_wrong() && watch.outcome().wrong.is_empty());
    }
}
