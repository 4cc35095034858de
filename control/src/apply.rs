//! A plan is carried out as a whole, or not at all: everything that can fail is done first, and undone if something
//! does; then the file is written; and then comes only what cannot fail.

use crate::check::Checked;
use crate::plan::{Change, Plan};
use std::collections::BTreeSet;
use std::fmt;

/// What runs, and changes while it runs.
pub trait Running {
    /// A step that is ready to be made: files opened, addresses bound, memory taken.
    type Prepared;

    /// Told once, before anything is put in force: these volumes were served before, so what keeps their bytes is
    /// there. None of them is made anew.
    fn expect(&mut self, volumes: BTreeSet<String>);

    /// Does everything of this step that can fail, so that nobody notices. The steps before it in the plan are prepared
    /// and not made: what they will let go, such as the address of a portal that moves, is still held and may be taken
    /// over from there. `wanted` is the whole of what shall be.
    ///
    /// # Errors
    /// Why it cannot be made, in words that say what to do.
    fn prepare(&mut self, change: &Change, wanted: &Checked) -> Result<Self::Prepared, String>;

    /// Makes the step. This cannot fail.
    fn commit(&mut self, change: &Change, prepared: Self::Prepared);

    /// All steps of a plan are made: what they have in common is made now, such as telling whom it may concern once and
    /// not step by step. This cannot fail.
    fn settle(&mut self, plan: &Plan, wanted: &Checked);

    /// Lets go of what was prepared, as if nobody had asked.
    fn roll_back(&mut self, change: &Change, prepared: Self::Prepared);
}

/// Why a plan was not carried out; nothing of it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The step that failed, in words; `None`: the file could not be written.
    pub step: Option<String>,
    /// Why.
    pub why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.step {
            Some(step) => write!(f, "cannot {step}: {}; nothing was changed", self.why),
            None => write!(f, "the configuration could not be written: {}; nothing was changed", self.why),
        }
    }
}

impl std::error::Error for Refusal {}

/// Carries out a plan whose end is `wanted`. `write` puts the new configuration on the disk: after everything that can
/// fail, before anybody notices anything, so that a restart finds what runs.
///
/// # Errors
/// The first step that cannot be made; then everything is as it was before.
pub fn apply<R: Running>(
    running: &mut R,
    plan: &Plan,
    wanted: &Checked,
    write: impl FnOnce() -> Result<(), String>,
) -> Result<(), Refusal> {
    let mut ready = Vec::with_capacity(plan.changes.len());
    let mut refusal = None;
    for change in &plan.changes {
        match running.prepare(change, wanted) {
            Ok(prepared) => ready.push((change, prepared)),
            Err(why) => {
                refusal = Some(Refusal { step: Some(change.words.clone()), why });
                break;
            }
        }
    }
    let refusal = refusal.or_else(|| write().err().map(|why| Refusal { step: None, why }));
    if let Some(refusal) = refusal {
        // The last first: it may stand on those before it.
        ready.into_iter().rev().for_each(|(change, prepared)| running.roll_back(change, prepared));
        return Err(refusal);
    }
    ready.into_iter().for_each(|(change, prepared)| running.commit(change, prepared));
    if !plan.is_empty() {
        running.settle(plan, wanted);
    }
    Ok(())
}
