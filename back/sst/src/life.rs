//! A volume that is open: its thread, until the last user has gone.

use crate::disk::Request;
use crate::error::{Mistake, Why};
use crate::facts::Facts;
use crate::service::{Message, start};
use crate::shared::{Shared, Unit};
use lunar_engine::backend::{Condition, StoreTrouble};
use lunar_reactor::channel::Sender;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time between two looks whether the volume was found.
const LOOK: Duration = Duration::from_millis(10);

/// A volume that is open.
pub(crate) struct Lifetime {
    shared: Arc<Shared>,
    mailbox: Sender<Message>,
    cores: AtomicU32,
}

impl std::fmt::Debug for Lifetime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lifetime({:?})", self.shared)
    }
}

impl Lifetime {
    /// Connects to a volume, which must have the identity `known`.
    ///
    /// # Errors
    /// When there is no thread or no memory for it.
    pub(crate) fn begin(unit: &Unit, known: Option<String>) -> io::Result<Arc<Self>> {
        let shared = Arc::new(Shared::new(unit.clone()));
        let mailbox = start(&shared, known)?;
        Ok(Arc::new(Self { shared, mailbox, cores: AtomicU32::new(0) }))
    }

    /// The properties of the volume once it was found.
    ///
    /// # Errors
    /// Why it was not: waiting does not help, or not in this time.
    pub(crate) fn found(&self, patience: Duration) -> Result<Facts, Mistake> {
        let end = Instant::now() + patience;
        loop {
            let view = self.shared.view().clone();
            match (view.facts, view.why) {
                (Some(facts), None) => return Ok(facts),
                (_, Some(why)) if why.is_final() || Instant::now() >= end => return Err(Mistake::Unreached(why)),
                _ => std::thread::sleep(LOOK),
            }
        }
    }

    /// The volume on the terms of the configuration.
    pub(crate) fn unit(&self) -> Unit {
        self.shared.unit().clone()
    }

    /// The properties as they were seen last.
    pub(crate) fn facts(&self) -> Option<Facts> {
        self.shared.view().facts.clone()
    }

    /// Why the volume is not served now.
    pub(crate) fn why(&self) -> Option<Why> {
        self.shared.view().why.clone()
    }

    /// These terms apply from now on.
    pub(crate) fn set_unit(&self, unit: &Unit) {
        *self.shared.unit() = unit.clone();
        self.mailbox.send(Message::Terms);
    }

    /// A number for another core that uses the volume.
    pub(crate) fn new_core(&self) -> u32 {
        self.cores.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a message to the thread.
    pub(crate) fn send(&self, message: Message) {
        self.mailbox.send(message);
    }

    /// Starts a request; returns false if there is no thread any more.
    pub(crate) fn request(&self, request: Request) -> bool {
        let is_there = !self.mailbox.is_closed();
        self.mailbox.send(Message::Request(request));
        is_there
    }

    /// The troubles of the volume now.
    pub(crate) fn examine(&self) -> Vec<StoreTrouble> {
        let Some(why) = self.why() else { return Vec::new() };
        // Commands wait, and nothing that was acknowledged is lost.
        let condition = Condition::Unserved;
        let place = self.shared.unit().place.display().to_string();
        vec![StoreTrouble { condition, words: format!("st:{place} is not served: {why}"), remedy: why.remedy() }]
    }
}

impl Drop for Lifetime {
    fn drop(&mut self) {
        // The thread ends by itself: the last user may be a core, which must not wait.
        self.mailbox.send(Message::Stop);
    }
}
