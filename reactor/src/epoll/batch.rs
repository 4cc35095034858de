//! Operations that wait on an endpoint of datagrams or frames, and its known readiness.

use super::answer::Answer;
use crate::endpoint::{Carrier, Messages, ReceiveBatch, SendBatch};
use crate::op::Handle;
use lunar_core::io::{Data, Done, Fault};
use std::collections::VecDeque;

const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// An endpoint of datagrams or frames.
pub(super) struct Batches {
    pub(super) carrier: Box<Carrier>,
    receives: VecDeque<Waiting<ReceiveBatch>>,
    sends: VecDeque<Waiting<SendBatch>>,
    may_receive: bool,
    may_send: bool,
    /// Whether an error was reported that no call has returned yet.
    has_error: bool,
}

struct Waiting<B> {
    done: Done,
    handle: Handle,
    batch: Box<B>,
}

impl<B: 'static> Waiting<B> {
    fn answer(self, result: Result<u32, Fault>) -> Answer {
        Answer::new(self.done, result, Data::Carried(self.batch), self.handle)
    }
}

impl Batches {
    /// Both directions may be ready: the first try will show.
    pub(super) fn new(carrier: Box<Carrier>) -> Self {
        let (receives, sends) = (VecDeque::new(), VecDeque::new());
        Self { carrier, receives, sends, may_receive: true, may_send: true, has_error: false }
    }

    /// The next turn receives: the datagrams that arrive until then come together, and other endpoints get their turn.
    pub(super) fn receive(&mut self, done: Done, handle: Handle, batch: Box<ReceiveBatch>) -> Option<Answer> {
        let waiting = Waiting { done, handle, batch };
        if waiting.batch.free() == 0 {
            return Some(waiting.answer(Ok(0)));
        }
        self.receives.push_back(waiting);
        None
    }

    pub(super) fn send(
        &mut self,
        done: Done,
        handle: Handle,
        batch: Box<SendBatch>,
        messages: &mut Messages,
    ) -> Option<Answer> {
        self.sends.push_back(Waiting { done, handle, batch });
        if self.sends.len() > 1 { None } else { self.try_send(messages) }
    }

    /// Whether a receive would find something, as far as is known.
    pub(super) fn is_ready(&self) -> bool {
        self.may_receive && !self.receives.is_empty()
    }

    /// One receive, if data has arrived: other endpoints get their turn before the next.
    pub(super) fn try_receive(&mut self, messages: &mut Messages) -> Option<Answer> {
        if !self.is_ready() {
            return None;
        }
        let mut waiting = self.receives.pop_front()?;
        let mut result = self.carrier.receive(&mut waiting.batch, messages);
        if matches!(result, Ok(0) | Err(libc::EAGAIN)) && std::mem::take(&mut self.has_error) {
            result = self.carrier.take_error().map_or(result, Err);
        }
        match result {
            // Datagrams had arrived, and all were dropped: the next turn tries again.
            Ok(0) => {}
            // There may be more: only a call that finds nothing shows that the kernel will report the next.
            Ok(count) => return Some(waiting.answer(Ok(count as u32))),
            Err(libc::EAGAIN) => self.may_receive = false,
            Err(errno) => return Some(waiting.answer(Err(Fault::from_errno(errno)))),
        }
        self.receives.push_front(waiting);
        None
    }

    /// The first send, as far as there is room.
    fn try_send(&mut self, messages: &mut Messages) -> Option<Answer> {
        let mut waiting = if self.may_send { self.sends.pop_front()? } else { return None };
        let result = match self.carrier.send(&mut waiting.batch, messages) {
            Ok(()) => Ok(()),
            Err(libc::EAGAIN) => {
                self.may_send = false;
                self.sends.push_front(waiting);
                return None;
            }
            Err(errno) => Err(Fault::from_errno(errno)),
        };
        let sent = waiting.batch.finish();
        Some(waiting.answer(result.map(|()| sent)))
    }

    pub(super) fn become_ready(&mut self, events: u32, messages: &mut Messages) -> Vec<Answer> {
        self.may_receive |= events & READABLE != 0;
        self.may_send |= events & WRITABLE != 0;
        self.has_error |= events & libc::EPOLLERR as u32 != 0;
        self.has_error |= self.carrier.hides_errors() && events & READABLE != 0;
        let mut answers: Vec<Answer> = self.try_receive(messages).into_iter().collect();
        while let Some(answer) = self.try_send(messages) {
            answers.push(answer);
        }
        answers
    }

    pub(super) fn cancel(&mut self) -> Vec<Answer> {
        let receives = self.receives.drain(..).map(|waiting| waiting.answer(Err(Fault::Aborted)));
        let sends = self.sends.drain(..).map(|mut waiting| {
            // Datagrams that were sent before do not come back.
            waiting.batch.finish();
            waiting.answer(Err(Fault::Aborted))
        });
        receives.chain(sends).collect()
    }
}
