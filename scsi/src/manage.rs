//! Task management functions (SAM-5 7): what they abort, whom they tell, what they wait for.

use crate::lu::{Change, LogicalUnit, Stamp};
use crate::lun::Lun;
use crate::nexus::{Addressee, Nexus};
use crate::sense::{Asc, Sense, SenseKey};
use crate::target::{Mail, Target};
use crate::task::{TaskFunction, TaskResponse};
use lunar_core::step::flush_now;
use std::rc::Rc;
use std::sync::Arc;

/// Additional response information of functions that have none.
const NO_INFORMATION: [u8; 3] = [0; 3];

impl Target {
    /// Carries a task management function out; returns when the tasks that it ends are gone.
    pub async fn task_management(&self, nexus: &Rc<Nexus>, function: TaskFunction, lun: Lun, tag: u64) -> TaskResponse {
        self.config.stats.task_management.add(1);
        let lun = lun.canonical();
        match function {
            TaskFunction::TARGET_WARM_RESET | TaskFunction::TARGET_COLD_RESET => {
                let mut luns = Vec::new();
                nexus.each(|itl| luns.push(itl.lu.lun));
                self.reset_all(luns.into()).await
            }
            TaskFunction::I_T_NEXUS_RESET => {
                self.end(nexus, |_, _| true).await;
                self.let_go(nexus).await;
                nexus.each(|itl| itl.attend(Asc::I_T_NEXUS_LOSS));
                TaskResponse::Complete
            }
            TaskFunction::ABORT_TASK => match self.end(nexus, |t, l| t == tag && l == lun).await {
                0 => TaskResponse::NoTask,
                _ => TaskResponse::Complete,
            },
            TaskFunction::QUERY_TASK => found(nexus.tasks.any(|(t, l)| t == tag && l == lun)),
            _ => self.of_logical_unit(nexus, function, lun).await,
        }
    }

    /// The functions that a logical unit carries out.
    async fn of_logical_unit(&self, nexus: &Rc<Nexus>, function: TaskFunction, lun: Lun) -> TaskResponse {
        let addressee = nexus.addressee(lun);
        if let Addressee::Nobody = addressee {
            return TaskResponse::IncorrectLun;
        }
        match function {
            // One task set per nexus (TST = 001b): both end the same tasks.
            TaskFunction::ABORT_TASK_SET | TaskFunction::CLEAR_TASK_SET => {
                self.end(nexus, |_, l| l == lun).await;
                TaskResponse::Complete
            }
            TaskFunction::QUERY_TASK_SET => found(nexus.tasks.any(|(_, l)| l == lun)),
            TaskFunction::QUERY_ASYNC_EVENT => query_async_event(&addressee),
            TaskFunction::LOGICAL_UNIT_RESET => match addressee {
                Addressee::Disk(itl) => self.reset(itl.lu.lun).await,
                _ => TaskResponse::Complete,
            },
            _ => TaskResponse::Rejected,
        }
    }

    /// Ends a nexus: what it runs is aborted and gone when this returns, and nothing is reserved for it any more but
    /// persistently.
    pub async fn close(&self, nexus: &Nexus) {
        self.end(nexus, |_, _| true).await;
        self.let_go(nexus).await;
    }

    /// Does on this core what another core asks for.
    pub async fn deliver(&self, mail: Mail) {
        match mail {
            Mail::Change { lun, change, stamp } => {
                self.see(stamp);
                if change == Change::Reset {
                    self.end_everywhere(&[lun]).await;
                }
                self.make(lun, &change, stamp, None);
            }
            Mail::TargetReset { luns, stamp } => {
                self.see(stamp);
                self.end_everywhere(&luns).await;
                luns.iter().for_each(|lun| self.make(*lun, &Change::Reset, stamp, None));
            }
            Mail::UnitAttention { lun, asc } => self.attend(lun, asc, None),
            Mail::Threshold { lun, claim } => self.tell_threshold(lun, claim.as_ref()),
            Mail::Reservations { lun, news } => self.tell_reservations(lun, &news),
            Mail::Preempted { lun, news } => self.end_of(lun, &news).await,
        }
    }

    async fn reset(&self, lun: u16) -> TaskResponse {
        let stamp = self.stamp();
        self.end_everywhere(&[lun]).await;
        if let Some(lu) = self.unit(lun) {
            self.make_reset(&lu, stamp).await;
        }
        self.everywhere.broadcast(Mail::Change { lun, change: Change::Reset, stamp }).await;
        TaskResponse::Complete
    }

    async fn make_reset(&self, lu: &LogicalUnit, stamp: Stamp) {
        lu.shared.allow(None);
        self.forget_spc2(lu, None).await;
        let was_cached = lu.mode().write_cache;
        self.make(lu.lun, &Change::Reset, stamp, None);
        if was_cached && !lu.mode().write_cache {
            // Of what cannot be flushed the store tells, whenever it is flushed.
            let _ = flush_now(&lu.unit).await;
        }
    }

    /// A target reset reaches what its nexus sees: what others see and it does not is none of its business.
    async fn reset_all(&self, luns: Arc<[u16]>) -> TaskResponse {
        let stamp = self.stamp();
        self.end_everywhere(&luns).await;
        for lu in luns.iter().filter_map(|lun| self.unit(*lun)) {
            self.make_reset(&lu, stamp).await;
        }
        self.everywhere.broadcast(Mail::TargetReset { luns, stamp }).await;
        TaskResponse::Complete
    }

    /// Aborts tasks of a nexus and waits until they are gone; returns how many that were not aborted before.
    async fn end(&self, nexus: &Nexus, matches: impl Fn(u64, Lun) -> bool) -> u64 {
        let matches = |(tag, lun): (u64, Lun)| matches(tag, lun.canonical());
        let count = nexus.tasks.abort(matches);
        self.config.stats.tasks_aborted.add(count);
        nexus.tasks.until_gone(matches).await;
        count
    }

    /// Aborts the tasks of logical units of every nexus of this core and waits for them.
    async fn end_everywhere(&self, luns: &[u16]) {
        let nexuses = self.nexuses();
        self.end_at(&nexuses, luns).await;
    }

    /// The same of these nexuses.
    pub(crate) async fn end_at(&self, nexuses: &[Rc<Nexus>], luns: &[u16]) {
        // All are told first, so that none waits for another's data meanwhile.
        for nexus in nexuses {
            self.config.stats.tasks_aborted.add(nexus.abort_at(luns));
        }
        for nexus in nexuses {
            nexus.until_gone_at(luns).await;
        }
    }
}

/// Whether a task of a nexus is at the unit of this number, as the nexus's map has it.
pub(crate) fn is_at(nexus: &Nexus, unit: u16, task: Lun) -> bool {
    task.number().is_some_and(|lun| nexus.lun_of(unit) == Some(lun))
}

fn found(is_there: bool) -> TaskResponse {
    if is_there { TaskResponse::Succeeded(NO_INFORMATION) } else { TaskResponse::Complete }
}

/// SAM-5 7.9: the next unit attention's key, code and qualifier, and how many wait.
fn query_async_event(addressee: &Addressee) -> TaskResponse {
    /// UADE DEPTH: one unit attention, or more than one.
    const DEPTH: [u8; 2] = [0x10, 0x20];
    let Addressee::Disk(itl) = addressee else { return TaskResponse::Complete };
    let Some((asc, count)) = itl.attention() else { return TaskResponse::Complete };
    let sense = Sense::new(SenseKey::UNIT_ATTENTION, asc);
    let [code, qualifier] = sense.asc.0.to_be_bytes();
    TaskResponse::Succeeded([DEPTH[usize::from(count > 1)] | sense.key.0, code, qualifier])
}

#[cfg(test)]
#[path = "manage_tests.rs"]
mod tests;
