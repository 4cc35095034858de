//! The handle of the cores for other threads.

use super::core::Core;
use super::message::{CoreMessage, Job};
use crate::answer::Answer;
use crate::host::Host;
use lunar_reactor::channel::Sender;
use std::any::Any;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// A handle of the cores. Clones refer to the same cores.
#[derive(Clone)]
pub struct Cores {
    mailboxes: Arc<[Sender<CoreMessage>]>,
    host: Arc<dyn Host>,
}

impl fmt::Debug for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cores({})", self.mailboxes.len())
    }
}

impl Cores {
    pub(super) fn new(mailboxes: Arc<[Sender<CoreMessage>]>, host: Arc<dyn Host>) -> Self {
        Self { mailboxes, host }
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

    /// The mailboxes of the cores.
    pub(crate) fn mailboxes(&self) -> &Arc<[Sender<CoreMessage>]> {
        &self.mailboxes
    }

    /// Runs a job on a core. Jobs begin in their order.
    pub fn ask<T, F>(&self, core: usize, work: impl FnOnce(Rc<Core>) -> F + Send + 'static) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (sender, answer) = Answer::new(&self.host);
        let job = Job(Box::new(move |core: Rc<dyn Any>| {
            let work = core.downcast::<Core>().ok().map(work);
            Box::pin(async move {
                if let Some(work) = work {
                    // The asking thread may have stopped waiting.
                    let _ = sender.send(work.await);
                }
            })
        }));
        self.mailboxes[core].send(CoreMessage::Job(job));
        answer
    }

    /// Runs a job on all cores at the same time, and waits for all; ended cores give no answer.
    pub fn ask_all<T, F>(&self, work: impl Fn(Rc<Core>) -> F + Clone + Send + 'static) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let asked: Vec<Answer<T>> = (0..self.count()).map(|core| self.ask(core, work.clone())).collect();
        asked.into_iter().filter_map(Answer::wait).collect()
    }

    /// Drains all cores: they finish the commands in progress, flush and end. Draining cores continue.
    pub fn drain(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(CoreMessage::Drain));
    }

    /// Waits until all cores have ended.
    pub fn ended(&self) {
        // No core answers: the job is dropped when its core ends.
        let asked: Vec<Answer<()>> = (0..self.count()).map(|core| self.ask(core, |_| std::future::pending())).collect();
        for answer in asked {
            answer.wait();
        }
    }
}
