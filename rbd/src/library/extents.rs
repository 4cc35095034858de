//! A thread that finds out which parts of an image are allocated, for the thread that serves the image.

use super::view::View;
use lunar_core::io::Extent;
use lunar_reactor::log;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Questions that wait. One takes up to a second, so they end in the time that a command has.
const WAITING_MAX: usize = 16;
/// How long a question may wait: then its bytes count as allocated, and the thread goes on with newer ones.
const PATIENCE: Duration = Duration::from_secs(5);

/// A question.
struct Question {
    token: u64,
    offset: u64,
    len: u64,
    since: Instant,
}

/// The thread. Dropping it waits for the question that it has.
pub(super) struct Extents {
    questions: Option<SyncSender<Question>>,
    /// The token of each question, and its answer.
    pub(super) answers: Receiver<(u64, Extent)>,
    thread: Option<JoinHandle<()>>,
}

impl Extents {
    /// Starts the thread, which signals `bell` after each answer.
    ///
    /// # Errors
    /// When there are too many threads.
    pub(super) fn start(view: View, bell: Arc<OwnedFd>) -> io::Result<Self> {
        let (questions, asked) = sync_channel(WAITING_MAX);
        let (answer, answers) = channel();
        let work = move || answer_all(&asked, &answer, view, &bell);
        let thread = std::thread::Builder::new().name("extents".into()).spawn(work)?;
        Ok(Self { questions: Some(questions), answers, thread: Some(thread) })
    }

    /// Asks for an extent; returns whether there will be an answer, because not too many questions wait.
    pub(super) fn ask(&self, token: u64, offset: u64, len: u64) -> bool {
        let question = Question { token, offset, len, since: Instant::now() };
        let sent = self.questions.as_ref().map(|questions| questions.try_send(question));
        !matches!(sent, None | Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))))
    }
}

impl Drop for Extents {
    fn drop(&mut self) {
        self.questions = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer_all(asked: &Receiver<Question>, answer: &Sender<(u64, Extent)>, view: View, bell: &OwnedFd) {
    let mut has_said = false;
    while let Ok(Question { token, offset, len, since }) = asked.recv() {
        let found = if since.elapsed() > PATIENCE { None } else { Some(view.extent(offset, len)) };
        if let Some(Err(why)) = &found
            && !std::mem::replace(&mut has_said, true)
        {
            log!(warning, "the allocation of the image cannot be read, and all of it counts as allocated: {why}");
        }
        let extent = found.and_then(Result::ok).unwrap_or(Extent { len, mapped: true });
        if answer.send((token, extent)).is_err() {
            return;
        }
        // A full counter signals as well.
        let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::view::tests::{Fake, view};
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

    #[test]
    fn questions_are_answered_in_order_and_failures_are_allocated() {
        for (error, mapped) in [(0, false), (-110, true)] {
            let image = Fake { size: 1 << 20, error, ..Fake::default() };
            let bell = Arc::new(eventfd(0, EventfdFlags::empty()).expect("an eventfd"));
            let extents = Extents::start(view(&image), bell.clone()).expect("a thread");
            for token in 0..3 {
                assert!(extents.ask(token, 4096, 512 * (token + 1)));
            }
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            for token in 0..3 {
                let answer = extents.answers.recv_timeout(Duration::from_secs(60)).expect("an answer");
                assert_eq!(answer, (token, Extent { len: 512 * (token + 1), mapped }));
            }
            assert_eq!(poll(&mut [PollFd::new(&*bell, PollFlags::IN)], Some(&limit)), Ok(1));
            drop(extents);
        }
    }

    #[test]
    fn no_more_questions_wait_than_are_answered_in_time() {
        let (questions, asked) = sync_channel(WAITING_MAX);
        let (_, answers) = channel();
        let extents = Extents { questions: Some(questions), answers, thread: None };
        let taken = (0..100).filter(|token| extents.ask(*token, 0, 512)).count();
        assert_eq!(taken, WAITING_MAX);
        drop(asked);
        assert!(!extents.ask(100, 0, 512));
    }
}
