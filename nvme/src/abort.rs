//! Abort of a command that may run on any core.

use crate::command::{Refusal, Status};
use crate::limits::ABORTS_MAX;
use crate::queue::{Queue, Task};
use crate::subsystem::Subsystem;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Dword 0 of the completion: the command was not aborted.
const NOT_ABORTED: u32 = 0x01;

/// An Abort in progress, until it is dropped.
struct UnderWay<'a>(&'a Cell<u8>);

impl<'a> UnderWay<'a> {
    /// # Errors
    /// When [`ABORTS_MAX`] Aborts are in progress.
    fn new(count: &'a Cell<u8>) -> Result<Self, Status> {
        if count.get() >= ABORTS_MAX {
            return Err(Status::ABORT_LIMIT);
        }
        count.set(count.get() + 1);
        Ok(Self(count))
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Subsystem {
    /// Aborts a command of this core and waits until it has ended. Returns whether the command existed.
    pub async fn abort_here(&self, controller: u16, queue: u16, command: u16) -> bool {
        let found = self.queues().into_iter().find(|one| one.id == queue && one.controller.id == controller);
        let Some(found) = found else { return false };
        let is_named = |(cid, _)| cid == command;
        let count = found.tasks.abort(is_named);
        self.config().stats.tasks_aborted.add(count);
        // A write must not land after its abort was confirmed.
        found.tasks.until_gone(is_named).await;
        count > 0
    }

    /// Aborts a command of the same controller on any core, and returns dword 0 of the completion (NVMe Base 2.0 5.1).
    /// The wait ends if this Abort command is itself aborted meanwhile: a host may name the identifier of the Abort.
    ///
    /// # Errors
    /// [`Status::ABORT_LIMIT`], [`Status::ABORTED`].
    pub(crate) async fn abort(&self, queue: &Queue, task: &Task, named: u16, command: u16) -> Result<u32, Refusal> {
        let controller = &queue.controller;
        if named == 0 && controller.abort_event(command) {
            return Ok(0);
        }
        let _under_way = UnderWay::new(&queue.aborts)?;
        let (mut stopped, mut ended) = (
            pin!(task.until_aborted()),
            pin!(async {
                // A queue is on one core.
                self.abort_here(controller.id, named, command).await
                    || named > 0 && self.services.abort(controller.id, named, command).await
            }),
        );
        let is_aborted = poll_fn(|cx| match ended.as_mut().poll(cx) {
            Poll::Ready(is_aborted) => Poll::Ready(Ok(is_aborted)),
            Poll::Pending => stopped.as_mut().poll(cx).map(|()| Err(Status::ABORTED)),
        });
        Ok(if is_aborted.await? { 0 } else { NOT_ABORTED })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::{Rig, at_once, entry};
    use crate::pool::Request;
    use crate::subsystem::{SingleCoreServices, SubsystemServices};
    use lunar_unit::LocalFuture;
    use std::cell::OnceCell;
    use std::pin::Pin;
    use std::rc::{Rc, Weak};
    use std::task::{Context, Waker};

    const ABORT: u8 = 0x08;

    /// An Abort of this command of queue 1, in the place of the admin queue.
    async fn abort(rig: &Rig, command: u16) -> Result<u32, Status> {
        let task = rig.admin.tasks.enter((77, 0));
        rig.subsystem.abort(&rig.admin, &task, 1, command).await.map_err(|refusal| refusal.status)
    }

    fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_abort_is_confirmed_when_its_command_has_ended() {
        let rig = Rig::default();
        let under_way = rig.io.tasks.enter((9, 1));
        let mut ends = Box::pin(abort(&rig, 9));
        assert!(poll(&mut ends).is_pending() && under_way.aborted());
        drop(under_way);
        assert_eq!(poll(&mut ends), Poll::Ready(Ok(0)));
        assert_eq!(at_once(abort(&rig, 9)), Ok(NOT_ABORTED), "there is none any more");
        let ended = rig.run(&rig.admin, &entry(ABORT, 0, &[1 | 9 << 16]), &[]);
        assert_eq!((ended.status, ended.result), (Status::SUCCESS, 1));
        let ended = rig.run(&rig.admin, &entry(ABORT, 0, &[0]), &[]);
        assert_eq!((ended.status, ended.result), (Status::ABORTED, 0), "it has named itself");
    }

    #[test]
    fn aborts_that_wait_are_counted() {
        let rig = Rig::default();
        let under_way = rig.io.tasks.enter((9, 1));
        let mut waiting: Vec<_> = (0..ABORTS_MAX).map(|_| Box::pin(abort(&rig, 9))).collect();
        assert!(waiting.iter_mut().all(|one| poll(one).is_pending()));
        assert_eq!(at_once(abort(&rig, 9)), Err(Status::ABORT_LIMIT));
        drop((waiting, under_way));
        assert_eq!(at_once(abort(&rig, 9)), Ok(NOT_ABORTED));
    }

    /// The other core, which is known once it is there.
    #[derive(Default)]
    struct Other(OnceCell<Weak<Subsystem>>);

    impl SubsystemServices for Other {
        fn abort(&self, controller: u16, queue: u16, command: u16) -> LocalFuture<'static, bool> {
            let other = self.0.get().and_then(Weak::upgrade).expect("it is there");
            Box::pin(async move { other.abort_here(controller, queue, command).await })
        }

        fn manage(&self, request: Request) -> LocalFuture<'static, Result<u32, Status>> {
            SingleCoreServices.manage(request)
        }
    }

    #[test]
    fn a_command_of_a_queue_on_another_core_is_aborted() {
        let links = Rc::new(Other::default());
        let rig = Rig::with(links.clone());
        let other = Subsystem::new(rig.subsystem.config().clone(), Rc::new(SingleCoreServices));
        assert!(links.0.set(Rc::downgrade(&other)).is_ok());
        let there = rig.queue_of(&other, 2);
        let under_way = there.tasks.enter((5, 1));
        let task = rig.admin.tasks.enter((77, 0));
        let mut ends = Box::pin(rig.subsystem.abort(&rig.admin, &task, 2, 5));
        assert!(poll(&mut ends).is_pending() && under_way.aborted());
        drop(under_way);
        assert_eq!(poll(&mut ends), Poll::Ready(Ok(0)));
        assert_eq!(at_once(rig.subsystem.abort(&rig.admin, &task, 2, 5)), Ok(NOT_ABORTED));
    }
}
