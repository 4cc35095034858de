//! Connections that the ring accepts: one multishot accept per listener, armed while an operation waits for it.

use super::entry::{Answer, Answers};
use super::open::{Listener, Role};
use super::{ACCEPT, IGNORED, Inner};
use crate::op::Handle;
use io_uring::opcode;
use io_uring::types::Fd;
use lunar_core::io::{Done, Fault};
use std::os::fd::{FromRawFd, OwnedFd};

/// Most connections that a listener holds for the core before it stops accepting: further ones wait in the kernel.
const ACCEPTED_MAX: usize = 256;

impl Inner {
    pub(super) fn listener(&mut self, id: u32) -> Option<&mut Listener> {
        match &mut self.open[id as usize].as_mut()?.role {
            Role::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    pub(super) fn start_accept(&mut self, handle: Handle, done: Done) -> Answers {
        let id = handle.id();
        let Some(listener) = self.listener(id) else {
            return Answers::One(Answer::with_handle(done, Err(Fault::Os(libc::EINVAL)), handle));
        };
        if !listener.accepted.is_empty() {
            return Answers::One(Answer::with_handle(done, Ok(0), handle));
        }
        listener.waiting.push_back((done, handle));
        self.arm(id);
        Answers::None
    }

    /// Makes the kernel accept for a listener, unless it does already.
    fn arm(&mut self, id: u32) {
        let Some(listener) = self.listener(id) else { return };
        if listener.is_armed {
            return;
        }
        listener.is_armed = true;
        let target = self.target(id);
        let accept = opcode::AcceptMulti::new(Fd(target.number)).flags(libc::SOCK_CLOEXEC);
        self.push(accept.build().flags(target.flags()).user_data(ACCEPT | u64::from(id)));
    }

    pub(super) fn complete_accept(&mut self, id: u32, result: i32, has_more: bool) -> Answers {
        let Some(listener) = self.listener(id) else { return Answers::None };
        listener.is_armed &= has_more;
        if result >= 0 {
            // SAFETY: the kernel has just opened this file for this process, and no other code knows its number.
            listener.accepted.push_back(unsafe { OwnedFd::from_raw_fd(result) });
        }
        if listener.is_closing {
            if !listener.is_armed {
                self.forget(id);
            }
            return Answers::None;
        }
        if result >= 0 {
            let is_full = listener.accepted.len() >= ACCEPTED_MAX && listener.is_armed;
            let waiting = listener.waiting.pop_front();
            if is_full {
                self.push(opcode::AsyncCancel::new(ACCEPT | u64::from(id)).build().user_data(IGNORED));
            }
            return match waiting {
                Some((done, handle)) => Answers::One(Answer::with_handle(done, Ok(0), handle)),
                None => Answers::None,
            };
        }
        if matches!(-result, libc::ECANCELED | libc::EINTR | libc::EAGAIN | libc::ECONNABORTED) {
            if !listener.waiting.is_empty() {
                self.arm(id);
            }
            return Answers::None;
        }
        // Most likely too many open files: the waiting operations fail, and their callers decide when to try again.
        let fault = Fault::from_errno(-result);
        Answers::Many(listener.waiting.drain(..).map(|(d, h)| Answer::with_handle(d, Err(fault), h)).collect())
    }

    /// Makes the kernel stop accepting for a listener whose last handle is gone; false if it does not accept.
    pub(super) fn close_listener(&mut self, id: u32) -> bool {
        let Some(listener) = self.listener(id).filter(|listener| listener.is_armed) else { return false };
        listener.is_closing = true;
        self.push(opcode::AsyncCancel::new(ACCEPT | u64::from(id)).build().user_data(IGNORED));
        // At once, because the address is in use until the kernel has released it.
        self.enter(0, None);
        true
    }
}
