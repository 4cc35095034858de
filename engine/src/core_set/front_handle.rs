//! The handle of one front on all cores for other threads.

use super::front_on_core::FrontOnCore;
use super::message::{CoreMessage, FrontJob};
use crate::answer::Answer;
use crate::host::Host;
use lunar_reactor::channel::Sender;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// A handle of one front on all cores. Clones refer to the same front.
#[derive(Clone)]
pub struct FrontHandle {
    front: usize,
    mailboxes: Arc<[Sender<CoreMessage>]>,
    host: Arc<dyn Host>,
}

impl fmt::Debug for FrontHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrontHandle({})", self.front)
    }
}

impl FrontHandle {
    pub(crate) fn new(front: usize, mailboxes: Arc<[Sender<CoreMessage>]>, host: Arc<dyn Host>) -> Self {
        Self { front, mailboxes, host }
    }

    /// The number of cores.
    #[must_use]
    pub fn count(&self) -> usize {
        self.mailboxes.len()
    }

    /// The machine that they run on.
    #[must_use]
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// Runs a job on the front of a core, which is an `F`. There is no answer if the core ends.
    pub fn ask<F, T, W>(&self, core: usize, work: impl FnOnce(Rc<F>) -> W + Send + 'static) -> Answer<T>
    where
        F: FrontOnCore,
        T: Send + 'static,
        W: Future<Output = T> + 'static,
    {
        let (sender, answer) = Answer::new(&self.host);
        let job = FrontJob::new(self.front, move |front: Option<Rc<F>>| {
            let work = front.map(work);
            async move {
                if let Some(work) = work {
                    // The asking thread may have stopped waiting.
                    let _ = sender.send(work.await);
                }
            }
        });
        if let Some(mailbox) = self.mailboxes.get(core) {
            mailbox.send(CoreMessage::Front(job));
        }
        answer
    }
}
