//! Applies a plan completely or not at all: first everything that can fail is prepared, and rolled back if a step
//! fails; then the file is written; then the steps are committed, which cannot fail.
//!
//! A resource that was served before and is unavailable, such as a disk that failed while the host was off, may be left
//! out: the other resources are served without it.

use crate::check::Checked;
use crate::kind::Kind;
use crate::plan::{Action, Change, ObjectId, Plan};
use crate::versions::Trouble;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// An error of a running target, which only the target knows, with a message that says what to do.
#[derive(Clone, Debug)]
pub struct TargetError(Arc<dyn Error + Send + Sync>);

impl TargetError {
    /// This error of a target.
    #[must_use]
    pub fn new(why: impl Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(why))
    }
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for TargetError {}

/// The resources of a configuration that are unavailable, each with the reason and what to do.
pub type Unavailable = BTreeMap<ObjectId, TargetError>;

/// Which resources may be missing, and whether to retry.
pub struct MissingPolicy<'a> {
    /// The resources that may be missing.
    pub may_be_missing: BTreeSet<ObjectId>,
    /// The resources that may be in force without what they stand for: volumes without their stores.
    pub may_lack: BTreeSet<ObjectId>,
    /// Gets a resource and the reason of a failure; waits and returns whether to retry.
    pub retry: &'a mut dyn FnMut(&ObjectId, &TargetError) -> bool,
}

impl fmt::Debug for MissingPolicy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MissingPolicy({:?}, {:?})", self.may_be_missing, self.may_lack)
    }
}

/// A target that changes while it runs. A change of the configuration is a transaction: each step is prepared, and then
/// all steps are committed, or all that were prepared are rolled back.
pub trait Running {
    /// A change of the configuration in progress, with the steps that are prepared.
    type Transaction;
    /// Why a step cannot be made, in words that say what to do.
    type Error: Error + Send + Sync + 'static;

    /// Called before each plan: these volumes were served before, and are not now. A file that held one of them is not
    /// made anew.
    fn expect(&mut self, volumes: BTreeSet<String>);

    /// Begins a transaction that leads to `wanted`; the plan has at least one step.
    ///
    /// # Errors
    /// Why the configuration as a whole cannot be put in force.
    fn begin(&mut self, plan: &Plan, wanted: &Checked) -> Result<Self::Transaction, Self::Error>;

    /// Does everything of a step that can fail, without any client noticing. The steps before it in the plan are
    /// prepared and not committed: the resources that they will release, such as the address of a portal that moves,
    /// are still held and may be taken over.
    ///
    /// # Errors
    /// Why the step cannot be made. Nothing of it is left then.
    fn prepare(
        &mut self,
        transaction: &mut Self::Transaction,
        change: &Change,
        wanted: &Checked,
    ) -> Result<(), Self::Error>;

    /// Prepares a step that creates a resource without what it stands for, which is unavailable: a volume without its
    /// store. Returns whether that is possible.
    ///
    /// # Errors
    /// Why the step cannot be made. Nothing of it is left then.
    fn prepare_unavailable(
        &mut self,
        transaction: &mut Self::Transaction,
        change: &Change,
        wanted: &Checked,
        why: &TargetError,
    ) -> Result<bool, Self::Error> {
        let _ = (transaction, change, wanted, why);
        Ok(false)
    }

    /// Puts everything in force that was prepared; `wanted` is the configuration from now on. This cannot fail.
    fn commit(&mut self, transaction: Self::Transaction, plan: &Plan, wanted: &Checked);

    /// Undoes everything that was prepared, the last step first.
    fn roll_back(&mut self, transaction: Self::Transaction);

    /// The configuration in force was applied again: what could not be started when it was put in force is tried once
    /// more.
    fn repeat(&mut self, wanted: &Checked) {
        let _ = wanted;
    }
}

/// Why a plan was not applied. Nothing of it was.
#[derive(Debug)]
pub enum Refusal {
    /// A step failed.
    Step {
        /// The step, in words.
        step: String,
        /// Why.
        why: TargetError,
    },
    /// Clients could write to a volume that is being copied.
    Copied {
        /// The volume.
        volume: String,
    },
    /// The configuration could not be written.
    Write(Trouble),
}

impl Refusal {
    /// The reason alone, without the step.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Step { why, .. } => why.to_string(),
            Self::Copied { .. } => {
                "it is being copied, and the copy would be inconsistent: wait until the copy has ended".to_owned()
            }
            Self::Write(why) => why.to_string(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step { step, .. } => write!(f, "cannot {step}")?,
            Self::Copied { volume } => write!(f, "cannot allow writes to volume {volume}")?,
            Self::Write(_) => f.write_str("the configuration could not be written")?,
        }
        write!(f, ": {}; nothing was changed", self.reason())
    }
}

impl Error for Refusal {}

/// Applies a plan that leads to `wanted`. `write` writes the new configuration to the disk: after everything that can
/// fail, and before any visible effect, so that a restart finds the configuration in force. A resource that may be
/// missing and cannot be created is left out, with its LUNs; returns these resources.
///
/// # Errors
/// The first other step that fails; then nothing has changed.
pub fn apply<R: Running>(
    running: &mut R,
    plan: &Plan,
    wanted: &Checked,
    policy: MissingPolicy<'_>,
    write: impl FnOnce() -> Result<(), Trouble>,
) -> Result<Unavailable, Refusal> {
    let Some(first) = plan.changes.first() else {
        write().map_err(Refusal::Write)?;
        running.repeat(wanted);
        return Ok(Unavailable::new());
    };
    let begun = running.begin(plan, wanted);
    let mut transaction =
        begun.map_err(|why| Refusal::Step { step: first.words.clone(), why: TargetError::new(why) })?;
    let prepared = prepare_all(running, &mut transaction, plan, wanted, policy);
    let prepared = prepared.and_then(|prepared| match write() {
        Ok(()) => Ok(prepared),
        Err(why) => Err(Refusal::Write(why)),
    });
    match prepared {
        Ok(Prepared { steps: 1.., unavailable }) => {
            running.commit(transaction, plan, &wanted.clone().without(&unavailable));
            Ok(unavailable)
        }
        Ok(Prepared { unavailable, .. }) => {
            running.roll_back(transaction);
            Ok(unavailable)
        }
        Err(refusal) => {
            running.roll_back(transaction);
            Err(refusal)
        }
    }
}

/// The outcome of preparing all steps of a plan: the number of prepared steps, and the objects that are left out.
struct Prepared {
    steps: usize,
    unavailable: Unavailable,
}

fn prepare_all<R: Running>(
    running: &mut R,
    transaction: &mut R::Transaction,
    plan: &Plan,
    wanted: &Checked,
    MissingPolicy { may_be_missing, may_lack, retry }: MissingPolicy<'_>,
) -> Result<Prepared, Refusal> {
    let mut prepared = Prepared { steps: 0, unavailable: Unavailable::new() };
    for change in &plan.changes {
        if change.names_any_of(&prepared.unavailable, wanted) {
            continue;
        }
        let is_among =
            |objects: &BTreeSet<ObjectId>| change.action == Action::Create && objects.contains(&change.object);
        let (may_be_missing_now, may_lack_now) = (is_among(&may_be_missing), is_among(&may_lack));
        let outcome = loop {
            match running.prepare(transaction, change, wanted).map_err(TargetError::new) {
                Err(why) if (may_be_missing_now || may_lack_now) && retry(&change.object, &why) => {}
                outcome => break outcome,
            }
        };
        let outcome = match outcome {
            Err(why) if may_lack_now => match running.prepare_unavailable(transaction, change, wanted, &why) {
                Ok(true) => Ok(()),
                Ok(false) => Err(why),
                Err(why) => Err(TargetError::new(why)),
            },
            outcome => outcome,
        };
        match outcome {
            Ok(()) => prepared.steps += 1,
            Err(why) if may_be_missing_now => drop(prepared.unavailable.insert(change.object.clone(), why)),
            Err(why) => return Err(Refusal::Step { step: change.words.clone(), why }),
        }
    }
    Ok(prepared)
}

impl Change {
    /// Whether it creates or changes a LUN of an unavailable volume.
    fn names_any_of(&self, unavailable: &Unavailable, wanted: &Checked) -> bool {
        let group = wanted.config.groups.get(&self.object.name).filter(|_| !unavailable.is_empty());
        let lun = self.object.lun.and_then(|lun| group?.luns.0.get(&lun));
        self.action != Action::Remove
            && lun.is_some_and(|lun| unavailable.contains_key(&ObjectId::volume(lun.volume.name())))
    }
}

impl Checked {
    /// The configuration without the unavailable resources and their LUNs.
    #[must_use]
    pub(crate) fn without(mut self, unavailable: &Unavailable) -> Self {
        let config = &mut self.config;
        let is_here =
            |kind, name: &str| !unavailable.contains_key(&ObjectId { kind, name: name.to_owned(), lun: None });
        if !unavailable.is_empty() {
            config.volumes.retain(|name, _| is_here(Kind::Volume, name));
            config.portals.retain(|name, _| is_here(Kind::Portal, name));
            config.retain_of_fronts(is_here);
            for group in config.groups.values_mut() {
                Arc::make_mut(group)
                    .luns
                    .0
                    .retain(|_, lun| !unavailable.contains_key(&ObjectId::volume(lun.volume.name())));
            }
        }
        self
    }
}
