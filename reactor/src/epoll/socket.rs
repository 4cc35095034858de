//! Operations that wait on a socket or listener, and its known readiness.

use super::answer::Answer;
use crate::endpoint::stream;
use crate::op::Handle;
use crate::sys::{call, raw};
use crate::vector::Vector;
use lunar_core::io::{Data, Done, Fault};
use lunar_core::mem::{Sg, SgMut};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) as u32;
const OVER: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;

pub(super) struct Socket {
    receives: VecDeque<Waiting>,
    sends: VecDeque<Waiting>,
    may_receive: bool,
    may_send: bool,
    /// Receives that may still be tried when they are submitted, before the next turn.
    eager: u8,
    /// Whether the peer has closed its side: the kernel does not report the remaining data again.
    is_over: bool,
    ends_sending: bool,
}

struct Waiting {
    done: Done,
    data: Data,
    moved: usize,
    handle: Handle,
}

impl Default for Socket {
    /// Both directions may be ready: the first try will show.
    fn default() -> Self {
        Self {
            receives: VecDeque::new(),
            sends: VecDeque::new(),
            may_receive: true,
            may_send: true,
            eager: stream::RECEIVES_AT_ONCE,
            is_over: false,
            ends_sending: false,
        }
    }
}

impl Waiting {
    fn answer(self, result: Result<u32, Fault>) -> Answer {
        Answer::new(self.done, result, self.data, self.handle)
    }
}

impl Socket {
    /// Receives at once, if data has arrived and it is not the turn of other sockets: then `again` makes the kernel
    /// report it again.
    pub(super) fn receive(
        &mut self,
        fd: &OwnedFd,
        again: impl FnOnce(&OwnedFd) -> bool,
        done: Done,
        into: SgMut,
        handle: Handle,
        vector: &mut Vector,
    ) -> Option<Answer> {
        let mut waiting = Waiting { done, data: Data::In(into), moved: 0, handle };
        if waiting.data.is_empty() {
            return Some(waiting.answer(Ok(0)));
        }
        let may_try = self.receives.is_empty() && self.may_receive && (self.eager > 0 || !again(fd));
        self.eager = self.eager.saturating_sub(1);
        if may_try && let Some(result) = self.try_receive(fd, &mut waiting, vector) {
            return Some(waiting.answer(result));
        }
        self.receives.push_back(waiting);
        None
    }

    pub(super) fn send(
        &mut self,
        fd: &OwnedFd,
        done: Done,
        data: Sg,
        handle: Handle,
        vector: &mut Vector,
    ) -> Option<Answer> {
        let mut waiting = Waiting { done, data: Data::Out(data), moved: 0, handle };
        if self.sends.is_empty()
            && self.may_send
            && let Some(result) = self.try_send(fd, &mut waiting, vector)
        {
            return Some(waiting.answer(result));
        }
        self.sends.push_back(waiting);
        None
    }

    /// `None`: no data has arrived.
    fn try_receive(&mut self, fd: &OwnedFd, what: &mut Waiting, vector: &mut Vector) -> Option<Result<u32, Fault>> {
        let room = vector.gather(&mut what.data, 0);
        match stream::receive_some(fd, vector) {
            Ok(got) => {
                // Fewer bytes than there was room for: there is no more data, and the kernel reports when there is.
                self.may_receive = got == room || self.is_over;
                Some(Ok(got as u32))
            }
            Err(libc::EAGAIN) => {
                self.may_receive = false;
                None
            }
            Err(errno) => Some(Err(Fault::from_errno(errno))),
        }
    }

    /// `None`: no room for the rest.
    fn try_send(&mut self, fd: &OwnedFd, what: &mut Waiting, vector: &mut Vector) -> Option<Result<u32, Fault>> {
        let total = what.data.len();
        while what.moved < total {
            vector.gather(&mut what.data, what.moved);
            match stream::send_some(fd, vector) {
                Ok(put) => what.moved += put,
                Err(libc::EAGAIN) => {
                    self.may_send = false;
                    return None;
                }
                Err(errno) => return Some(Err(Fault::from_errno(errno))),
            }
        }
        Some(Ok(total as u32))
    }

    pub(super) fn become_ready(&mut self, fd: &OwnedFd, events: u32, vector: &mut Vector) -> Vec<Answer> {
        self.may_receive |= events & READABLE != 0;
        self.may_send |= events & WRITABLE != 0;
        self.is_over |= events & OVER != 0;
        self.eager = stream::RECEIVES_AT_ONCE;
        let mut answers = Vec::new();
        while self.may_receive
            && let Some(mut waiting) = self.receives.pop_front()
        {
            match self.try_receive(fd, &mut waiting, vector) {
                Some(result) => answers.push(waiting.answer(result)),
                None => self.receives.push_front(waiting),
            }
        }
        while self.may_send
            && let Some(mut waiting) = self.sends.pop_front()
        {
            match self.try_send(fd, &mut waiting, vector) {
                Some(result) => answers.push(waiting.answer(result)),
                None => self.sends.push_front(waiting),
            }
        }
        self.end_sending_if_due(fd);
        answers
    }

    pub(super) fn cancel(&mut self) -> Vec<Answer> {
        self.receives.drain(..).chain(self.sends.drain(..)).map(|waiting| waiting.answer(Err(Fault::Aborted))).collect()
    }

    pub(super) fn shutdown(&mut self, fd: &OwnedFd) {
        self.ends_sending = true;
        self.end_sending_if_due(fd);
    }

    fn end_sending_if_due(&mut self, fd: &OwnedFd) {
        if self.ends_sending && self.sends.is_empty() {
            self.ends_sending = false;
            stream::end_sending(fd);
        }
    }
}

#[derive(Default)]
pub(super) struct Listener {
    pub(super) accepted: VecDeque<OwnedFd>,
    waiting: VecDeque<(Done, Handle)>,
}

impl Listener {
    pub(super) fn accept(&mut self, fd: &OwnedFd, done: Done, handle: Handle) -> Option<Answer> {
        let result = if self.accepted.is_empty() { self.try_accept(fd) } else { Some(Ok(0)) };
        let Some(result) = result else {
            self.waiting.push_back((done, handle));
            return None;
        };
        Some(Answer::new(done, result, Data::None, handle))
    }

    /// One connection, if there is one: further connections wait in the kernel.
    fn try_accept(&mut self, fd: &OwnedFd) -> Option<Result<u32, Fault>> {
        loop {
            match call(|| accept_one(fd)) {
                Ok(socket) => {
                    self.accepted.push_back(socket);
                    return Some(Ok(0));
                }
                Err(libc::EAGAIN) => return None,
                // The connection was aborted before it was accepted.
                Err(libc::ECONNABORTED) => {}
                Err(errno) => return Some(Err(Fault::from_errno(errno))),
            }
        }
    }

    pub(super) fn become_ready(&mut self, fd: &OwnedFd) -> Vec<Answer> {
        let mut answers = Vec::new();
        while let Some((done, handle)) = self.waiting.pop_front() {
            match self.try_accept(fd) {
                Some(result) => answers.push(Answer::new(done, result, Data::None, handle)),
                None => {
                    self.waiting.push_front((done, handle));
                    break;
                }
            }
        }
        answers
    }

    pub(super) fn cancel(&mut self) -> Vec<Answer> {
        self.waiting.drain(..).map(|(done, h)| Answer::new(done, Err(Fault::Aborted), Data::None, h)).collect()
    }
}

fn accept_one(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let none = std::ptr::null_mut();
    // SAFETY: no address is asked for.
    let socket = unsafe { libc::accept4(raw(fd), none, none.cast(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this file for this process, and no other code knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}
