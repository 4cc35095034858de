//! Wakes the thread of [`crate::returning_stores`].

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Wakes the thread that looks for stores: it sleeps as long as there is nothing to look for.
#[derive(Clone, Debug)]
pub(crate) struct Wake(SyncSender<()>);

impl Wake {
    /// A wake-up, and the end that receives it.
    pub(crate) fn new() -> (Self, Receiver<()>) {
        let (wake, woken) = sync_channel(1);
        (Self(wake), woken)
    }

    /// There is something to do for [`crate::engine::Engine::look_after_stores`].
    pub(crate) fn wake(&self) {
        // It is awake soon, or there is no such thread.
        let _ = self.0.try_send(());
    }
}
