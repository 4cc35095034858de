//! The stream of numbers: the counters of the target once a second, for all viewers together.
//!
//! One task reads the counters while there are viewers. A viewer that has the frame before gets only the rows that have
//! changed, which is one text for all viewers; a viewer that joins, or that was too slow, gets a whole frame. No frame
//! waits for a viewer.

use super::{Authenticated, LOGIN_CHECK, STREAM_PULSE, State, busy};
use crate::request::{Problem, Shared};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use lunar_control::counters::LiveView;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

/// The most viewers: the open pages of all operators. The counters are read once for all of them, but each of them
/// receives them.
pub(super) const VIEWERS_MAX: usize = 32;
/// The time between two frames: people look at rates of a second.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reads a frame with all volumes and hosts.
fn read(shared: &Shared) -> LiveView {
    let seen = shared.seen();
    let (counters, troubles) = match shared.starting_status() {
        Some(status) => (None, status.troubles),
        None => (shared.measured.get().map(|measured| measured.counters(&seen.troubles)), seen.troubles),
    };
    let version = seen.version.map(|(number, _)| number);
    LiveView { whole: true, counters, gone: Vec::new(), troubles, version, record: shared.audit_log.last() }
}

fn text(view: &LiveView) -> Arc<str> {
    serde_json::to_string(view).unwrap_or_default().into()
}

/// A frame, and its texts.
#[derive(Debug)]
struct Frame {
    number: u64,
    view: LiveView,
    whole: OnceLock<Arc<str>>,
    /// The changes to the frame before.
    changes: Option<Arc<str>>,
}

impl Frame {
    fn next(before: Option<&Self>, view: LiveView) -> Self {
        let changes = before.and_then(|before| view.since(&before.view)).map(|changes| text(&changes));
        let number = before.map_or(0, |before| before.number + 1);
        Self { number, view, whole: OnceLock::new(), changes }
    }

    /// The text for a viewer that has the frame of this number.
    fn for_viewer(&self, last: Option<u64>) -> Arc<str> {
        let is_next = last.is_some_and(|last| last + 1 == self.number);
        let changes = self.changes.clone().filter(|_| is_next);
        changes.unwrap_or_else(|| self.whole.get_or_init(|| text(&self.view)).clone())
    }
}

type Frames = watch::Sender<Option<Arc<Frame>>>;

/// The frames of all viewers.
#[derive(Debug)]
pub(super) struct Live {
    frames: Frames,
    /// Whether a task makes them.
    is_running: Mutex<bool>,
}

impl Default for Live {
    fn default() -> Self {
        Self { frames: watch::Sender::new(None), is_running: Mutex::default() }
    }
}

impl Live {
    /// The frames from now on. To be called on the API's thread.
    fn subscribe(state: &Arc<State>) -> watch::Receiver<Option<Arc<Frame>>> {
        let mut is_running = state.live.is_running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut receiver = state.live.frames.subscribe();
        // A frame that is there is young.
        receiver.mark_changed();
        if !std::mem::replace(&mut *is_running, true) {
            tokio::spawn(run(state.clone()));
        }
        receiver
    }

    /// Ends the task if there is no viewer.
    fn ends(&self) -> bool {
        let mut is_running = self.is_running.lock().unwrap_or_else(PoisonError::into_inner);
        *is_running = self.frames.receiver_count() > 0;
        if !*is_running {
            self.frames.send_replace(None);
        }
        !*is_running
    }
}

/// Makes frames while there are viewers.
async fn run(state: Arc<State>) {
    let mut ticks = interval(INTERVAL);
    // A frame that is late must not be followed by several at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if state.live.ends() {
            return;
        }
        let before = state.live.frames.borrow().clone();
        let shared = state.shared.clone();
        // With thousands of volumes it takes some milliseconds. An error is a panic, which was reported.
        let made = spawn_blocking(move || Frame::next(before.as_deref(), read(&shared))).await;
        if let Ok(frame) = made {
            state.live.frames.send_replace(Some(Arc::new(frame)));
        }
    }
}

/// The stream of one viewer.
struct Viewer {
    state: Arc<State>,
    who: Authenticated,
    frames: watch::Receiver<Option<Arc<Frame>>>,
    last: Option<u64>,
    /// Notified when the access policy changes, or when a login ends.
    changes: watch::Receiver<()>,
    checked: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Viewer {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if self.changes.has_changed().unwrap_or(true) || self.checked.elapsed() >= LOGIN_CHECK {
                self.changes.mark_unchanged();
                self.checked = Instant::now();
                if !self.state.may_still_read(&self.who) {
                    return None;
                }
            }
            tokio::select! {
                changed = self.changes.changed() => {
                    changed.ok()?;
                    self.changes.mark_changed();
                }
                changed = self.frames.changed() => {
                    changed.ok()?;
                    let Some(frame) = self.frames.borrow_and_update().clone() else { continue };
                    let text = frame.for_viewer(self.last);
                    self.last = Some(frame.number);
                    return Some(Event::default().event("live").data(&*text));
                }
            }
        }
    }
}

impl State {
    /// `GET /v1/live`. It ends when the caller loses its right to read.
    pub(super) fn live(self: &Arc<Self>, who: Authenticated) -> Result<Response, Problem> {
        let permit = self.viewers.clone().try_acquire_owned().map_err(|_| busy("viewers"))?;
        let (frames, mut changes) = (Live::subscribe(self), self.changes.subscribe());
        // The policy may have changed since the caller was authenticated.
        changes.mark_changed();
        let viewer =
            Viewer { state: self.clone(), who, frames, last: None, changes, checked: Instant::now(), _permit: permit };
        let stream = stream::unfold(viewer, |mut viewer| async move {
            let event = viewer.next().await?;
            Some((Ok::<_, Infallible>(event), viewer))
        });
        Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(STREAM_PULSE)).into_response())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::counters::{CountersView, VolumeCounters};

    fn view(errors: u64) -> LiveView {
        let volume = VolumeCounters { name: "a".to_owned(), errors, ..VolumeCounters::default() };
        let counters = CountersView { start: 1, volumes: vec![volume], ..CountersView::default() };
        LiveView { whole: true, counters: Some(counters), ..LiveView::default() }
    }

    #[test]
    fn a_viewer_that_missed_a_frame_gets_a_whole_one() {
        let first = Frame::next(None, view(0));
        let second = Frame::next(Some(&first), view(0));
        let third = Frame::next(Some(&second), view(1));
        let is_whole = |text: Arc<str>| text.contains("\"whole\":true");
        assert!(is_whole(first.for_viewer(None)) && is_whole(third.for_viewer(Some(first.number))));
        assert!(!is_whole(third.for_viewer(Some(second.number))) && !is_whole(second.for_viewer(Some(first.number))));
        assert!(Arc::ptr_eq(&third.for_viewer(Some(second.number)), &third.for_viewer(Some(second.number))));
        assert!(is_whole(third.for_viewer(Some(7))), "of an earlier run of the task");
    }
}
