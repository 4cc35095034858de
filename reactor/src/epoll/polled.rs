//! Operations that wait for a file to become ready, and its known readiness.

use super::answer::Answer;
use crate::op::Handle;
use lunar_core::io::{Data, Done, Fault};
use rustix::event::epoll::EventFlags;

/// Each change is reported once.
pub(super) const INTEREST: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// One direction of a file.
#[derive(Default)]
struct Way {
    /// Whether a change was reported that no operation has received yet.
    is_ready: bool,
    waiting: Vec<(Done, Handle)>,
}

/// A file whose readiness is waited for.
#[derive(Default)]
pub(super) struct Polled {
    reading: Way,
    writing: Way,
}

impl Way {
    fn answer(&mut self) -> Vec<Answer> {
        if !self.is_ready || self.waiting.is_empty() {
            return Vec::new();
        }
        self.is_ready = false;
        self.waiting.drain(..).map(|(done, handle)| Answer::new(done, Ok(0), Data::None, handle)).collect()
    }
}

impl Polled {
    pub(super) fn wait(&mut self, to_write: bool, done: Done, handle: Handle) -> Option<Answer> {
        let way = if to_write { &mut self.writing } else { &mut self.reading };
        way.waiting.push((done, handle));
        way.answer().pop()
    }

    pub(super) fn become_ready(&mut self, events: u32) -> Vec<Answer> {
        self.reading.is_ready |= events & READABLE != 0;
        self.writing.is_ready |= events & WRITABLE != 0;
        let mut answers = self.reading.answer();
        answers.extend(self.writing.answer());
        answers
    }

    pub(super) fn cancel(&mut self) -> Vec<Answer> {
        let waiting = self.reading.waiting.drain(..).chain(self.writing.waiting.drain(..));
        waiting.map(|(done, handle)| Answer::new(done, Err(Fault::Aborted), Data::None, handle)).collect()
    }
}
