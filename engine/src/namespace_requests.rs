//! The requests of NVMe hosts to change namespaces, queued for the namespace manager. Commands wait for their answers
//! as tasks of their cores.

use lunar_nvme::Status;
use lunar_nvme::namespace_management::Request;
use lunar_reactor::Reactor;
use lunar_unit::LocalFuture;
use std::future::poll_fn;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// The limit of waiting requests; over it, hosts are told to try again. Each takes a moment, and no host sends many.
const WAITING_MAX: usize = 64;
/// How long a command waits for its request: less than the command timeout of hosts, one minute.
const PATIENCE: Duration = Duration::from_secs(50);

/// The queue of the namespace manager, for all cores; without a manager, requests are denied.
#[derive(Debug, Default)]
pub struct NamespaceRequests(OnceLock<SyncSender<NamespaceJob>>);

/// A queued request.
#[derive(Debug)]
pub(crate) struct NamespaceJob {
    request: Request,
    answer: Arc<Mutex<Answer>>,
}

/// The state of a request, and the task that waits for it.
#[derive(Default, Debug)]
struct Answer {
    has_begun: bool,
    is_given_up: bool,
    result: Option<Result<u32, Status>>,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NamespaceJob {
    /// Executes the request, unless its command no longer waits.
    pub(crate) fn run(self, carry_out: impl FnOnce(&Request) -> Result<u32, Status>) {
        let mut waits = lock(&self.answer);
        waits.has_begun = true;
        let is_given_up = waits.is_given_up;
        drop(waits);
        if is_given_up {
            return;
        }
        let result = carry_out(&self.request);
        let mut waits = lock(&self.answer);
        waits.result = Some(result);
        let waker = waits.waker.take();
        drop(waits);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// A request whose command no longer waits is not started.
struct GivesUp(Arc<Mutex<Answer>>);

impl Drop for GivesUp {
    fn drop(&mut self) {
        lock(&self.0).is_given_up = true;
    }
}

impl NamespaceRequests {
    /// The requests, for a manager that takes them from now on; `None` if there is one already.
    pub(crate) fn open(&self) -> Option<Receiver<NamespaceJob>> {
        let (sender, jobs) = sync_channel(WAITING_MAX);
        self.0.set(sender).ok().map(|()| jobs)
    }

    /// Executes a request for a command of this core; returns the identifier of a created namespace, or zero.
    pub fn ask(&self, reactor: &Reactor, request: Request) -> LocalFuture<'static, Result<u32, Status>> {
        let answer = Arc::<Mutex<Answer>>::default();
        let job = NamespaceJob { request, answer: answer.clone() };
        let is_given = self.0.get().map(|sender| sender.try_send(job).is_ok());
        let reactor = reactor.clone();
        Box::pin(async move {
            match is_given {
                None => return Err(Status::OPERATION_DENIED),
                Some(false) => return Err(Status::INTERRUPTED),
                Some(true) => {}
            }
            let _gives_up = GivesUp(answer.clone());
            let mut late = std::pin::pin!(reactor.sleep(PATIENCE));
            poll_fn(|cx| {
                let mut answer = lock(&answer);
                if let Some(result) = answer.result.take() {
                    return Poll::Ready(result);
                }
                answer.waker = Some(cx.waker().clone());
                // A started request continues: the host can read its outcome later.
                let late_result = if answer.has_begun { Status::INTERNAL_ERROR } else { Status::INTERRUPTED };
                drop(answer);
                late.as_mut().poll(cx).map(|()| Err(late_result))
            })
            .await
        })
    }
}
