//! A plan is carried out as a whole, or not at all: everything that can fail is done first, and undone if something
//! does; then the file is written; and then comes only what cannot fail.
//!
//! Except for what was there before and is away, such as the disk that died while the machine was off: that is left
//! out, and nobody else waits for it.

use crate::check::Checked;
use crate::config::Kind;
use crate::plan::{Action, Change, ObjectId, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a configuration names and is away, with why: in words that say what to do.
pub type Absent = BTreeMap<ObjectId, String>;

/// What may be away, and whether it is tried again: asked after each vain try of one of them, with why.
pub struct Leniency<'a> {
    /// What may.
    pub forgiven: BTreeSet<ObjectId>,
    /// Whether it is tried again; it waits before it says so.
    pub again: &'a mut dyn FnMut(&ObjectId, &str) -> bool,
}

impl fmt::Debug for Leniency<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leniency({:?})", self.forgiven)
    }
}

/// What may be away: what stands for something outside, which nothing but LUNs names.
pub(crate) const MAY_BE_AWAY: [Kind; 3] = [Kind::Volume, Kind::Portal, Kind::Vm];

/// What runs, and changes while it runs.
pub trait Running {
    /// A step that is ready to be made: files opened, addresses bound, memory taken.
    type Prepared;

    /// Told before each plan: these volumes were served before, and are not now. What keeps their bytes is not made
    /// anew.
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
/// fail, before anybody notices anything, so that a restart finds what runs. What is forgiven, would be made, and
/// cannot be, is left out with what names it; returns that.
///
/// # Errors
/// The first other step that cannot be made; then everything is as it was before.
pub fn apply<R: Running>(
    running: &mut R,
    plan: &Plan,
    wanted: &Checked,
    leniency: Leniency<'_>,
    write: impl FnOnce() -> Result<(), String>,
) -> Result<Absent, Refusal> {
    let Leniency { forgiven, again } = leniency;
    let mut ready = Vec::with_capacity(plan.changes.len());
    let mut absent = Absent::new();
    let mut refusal = None;
    for change in &plan.changes {
        if change.names_any_of(&absent, wanted) {
            continue;
        }
        let is_forgiven = change.action == Action::Create && forgiven.contains(&change.object);
        let outcome = loop {
            match running.prepare(change, wanted) {
                Err(why) if is_forgiven && again(&change.object, &why) => {}
                outcome => break outcome,
            }
        };
        match outcome {
            Ok(prepared) => ready.push((change, prepared)),
            Err(why) if is_forgiven => drop(absent.insert(change.object.clone(), why)),
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
    if !ready.is_empty() {
        ready.into_iter().for_each(|(change, prepared)| running.commit(change, prepared));
        running.settle(plan, &wanted.clone().without(&absent));
    }
    Ok(absent)
}

impl Change {
    /// Whether it is about a LUN of what is away.
    fn names_any_of(&self, absent: &Absent, wanted: &Checked) -> bool {
        let group = wanted.config.groups.get(&self.object.name).filter(|_| !absent.is_empty());
        let lun = self.object.lun.and_then(|lun| group?.luns.0.get(&lun));
        self.action != Action::Remove
            && lun.is_some_and(|lun| absent.contains_key(&ObjectId::volume(lun.volume.name())))
    }
}

impl Checked {
    /// The same without what is away, and the LUNs of that.
    #[must_use]
    pub(crate) fn without(mut self, absent: &Absent) -> Self {
        let config = &mut self.config;
        let is_here = |kind, name: &String| !absent.contains_key(&ObjectId { kind, name: name.clone(), lun: None });
        if !absent.is_empty() {
            config.volumes.retain(|name, _| is_here(Kind::Volume, name));
            config.portals.retain(|name, _| is_here(Kind::Portal, name));
            config.vms.retain(|name, _| is_here(Kind::Vm, name));
            for group in config.groups.values_mut() {
                group.luns.0.retain(|_, lun| !absent.contains_key(&ObjectId::volume(lun.volume.name())));
            }
        }
        self
    }
}
