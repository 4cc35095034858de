//! Task management functions (SAM-5 7).

use crate::lun::Lun;
use crate::nexus::{Addressee, Nexus};
use crate::sense::{Asc, Sense, SenseKey};
use crate::target::Target;
use crate::task::{TaskFunction, TaskResponse};
use lunar_core::hosts::HostSession;
use lunar_core::step::flush_now;
use lunar_unit::UnitChange;
use std::rc::Rc;

/// The functions that hosts send when a path or a device does not answer in time.
const RESETS: [TaskFunction; 4] = [
    TaskFunction::LOGICAL_UNIT_RESET,
    TaskFunction::TARGET_WARM_RESET,
    TaskFunction::TARGET_COLD_RESET,
    TaskFunction::I_T_NEXUS_RESET,
];

/// Additional response information of functions that have none.
const NO_INFORMATION: [u8; 3] = [0; 3];

impl Target {
    /// Executes a task management function. The tasks that it aborts have ended when this returns.
    pub async fn task_management(&self, nexus: &Rc<Nexus>, function: TaskFunction, lun: Lun, tag: u64) -> TaskResponse {
        self.config.stats.task_management.add(1);
        if RESETS.contains(&function) {
            nexus.host.get().into_iter().for_each(HostSession::reset);
        }
        let lun = lun.canonical();
        match function {
            TaskFunction::TARGET_WARM_RESET | TaskFunction::TARGET_COLD_RESET => {
                // It resets the logical units that its nexus sees, and no others.
                let mut luns = Vec::new();
                nexus.each(|itl| luns.push(itl.lu.lun));
                self.reset(&luns).await
            }
            TaskFunction::I_T_NEXUS_RESET => {
                self.abort(nexus, |_, _| true).await;
                self.lose(nexus).await;
                nexus.each(|itl| itl.establish_unit_attention(Asc::I_T_NEXUS_LOSS));
                TaskResponse::Complete
            }
            TaskFunction::ABORT_TASK => match self.abort(nexus, |t, l| t == tag && l == lun).await {
                0 => TaskResponse::NoTask,
                _ => TaskResponse::Complete,
            },
            TaskFunction::QUERY_TASK => found(nexus.tasks.any(|(t, l)| t == tag && l == lun)),
            _ => self.of_logical_unit(nexus, function, lun).await,
        }
    }

    /// Executes a function of a logical unit.
    async fn of_logical_unit(&self, nexus: &Rc<Nexus>, function: TaskFunction, lun: Lun) -> TaskResponse {
        let addressee = nexus.addressee(lun);
        if let Addressee::NoUnit = addressee {
            return TaskResponse::IncorrectLun;
        }
        match function {
            // Each nexus has a task set of its own (TST = 001b), so both abort the same tasks.
            TaskFunction::ABORT_TASK_SET | TaskFunction::CLEAR_TASK_SET => {
                self.abort(nexus, |_, l| l == lun).await;
                TaskResponse::Complete
            }
            TaskFunction::QUERY_TASK_SET => found(nexus.tasks.any(|(_, l)| l == lun)),
            TaskFunction::QUERY_ASYNC_EVENT => query_async_event(&addressee),
            TaskFunction::LOGICAL_UNIT_RESET => match addressee {
                Addressee::Unit(itl) => self.reset(&[itl.lu.lun]).await,
                _ => TaskResponse::Complete,
            },
            _ => TaskResponse::Rejected,
        }
    }

    /// Ends a nexus: its tasks are aborted and have ended when this returns, and only its persistent registrations are
    /// left.
    pub async fn close(&self, nexus: &Nexus) {
        self.abort(nexus, |_, _| true).await;
        self.lose(nexus).await;
    }

    /// Ends the state that depends on a nexus, which has no tasks any more.
    async fn lose(&self, nexus: &Nexus) {
        self.config.units.lose_nexus(&nexus.name).await;
        self.settle_preventions().await;
        for lu in self.units() {
            lu.device_server().into_iter().for_each(|device| device.lose_nexus(&nexus.name));
        }
    }

    /// Resets logical units, on all cores. The tasks of all units are marked before the first one is waited for.
    async fn reset(&self, luns: &[u16]) -> TaskResponse {
        let mut resets = Vec::new();
        for lu in luns.iter().filter_map(|lun| self.unit(*lun)) {
            let was_cached = lu.emulated().is_some_and(|lu| lu.mode().write_cache);
            // It is never refused: it needs no metadata.
            let reset = self.config.units.propose(&*lu, None, UnitChange::LogicalUnitReset).await;
            resets.extend(reset.ok().map(|reset| (lu, was_cached, reset)));
        }
        let mut response = TaskResponse::Complete;
        for device in resets.iter().filter_map(|(lu, ..)| lu.device_server().cloned()) {
            if device.reset().await.is_err() {
                response = TaskResponse::Rejected;
            }
        }
        for (lu, was_cached, reset) in resets {
            self.config.units.until_aborted(&reset).await;
            if let Some(device) = lu.forwarded() {
                device.unit.device.facts().expire();
                self.settle_prevention((&lu, device)).await;
            }
            if let Some(lu) = lu.emulated().filter(|lu| was_cached && !lu.mode().write_cache) {
                // A store that cannot flush reports that whenever it is flushed.
                let _ = flush_now(&lu.unit).await;
            }
        }
        response
    }

    /// Aborts tasks of a nexus and waits until they have ended; returns the number of those that were not aborted
    /// before.
    async fn abort(&self, nexus: &Nexus, matches: impl Fn(u64, Lun) -> bool) -> u64 {
        let matches = |(tag, lun): (u64, Lun)| matches(tag, lun.canonical());
        let count = nexus.tasks.abort(matches);
        self.config.stats.tasks_aborted.add(count);
        nexus.tasks.until_gone(matches).await;
        count
    }
}

fn found(is_there: bool) -> TaskResponse {
    if is_there { TaskResponse::Succeeded(NO_INFORMATION) } else { TaskResponse::Complete }
}

/// SAM-5 7.9: the sense key, code and qualifier of the next unit attention condition, and whether there are more.
fn query_async_event(addressee: &Addressee) -> TaskResponse {
    /// UADE DEPTH: one unit attention condition, or more than one.
    const DEPTH: [u8; 2] = [0x10, 0x20];
    let Addressee::Unit(itl) = addressee else { return TaskResponse::Complete };
    let Some((asc, count)) = itl.attention() else { return TaskResponse::Complete };
    let sense = Sense::new(SenseKey::UNIT_ATTENTION, asc);
    let [code, qualifier] = sense.asc.0.to_be_bytes();
    TaskResponse::Succeeded([DEPTH[usize::from(count > 1)] | sense.key.0, code, qualifier])
}

#[cfg(test)]
#[path = "task_management_tests.rs"]
mod tests;
