//! The states of a device besides its registers. Each is one value, so that no two of them contradict each other.

use crate::wire::State;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Whether commands are fetched from the queues, and completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    /// Both.
    Serving,
    /// Commands that were fetched are completed, and no other is fetched: the guest resets its controller, or has to,
    /// because its memory was lost once.
    Ending,
    /// Guest memory is lost. Nothing is completed, because a command may have written what the guest never sent.
    Lost,
}

/// The Controller Configuration register (CC): the value in force, and whether a later one is being applied.
#[derive(Debug, Default)]
pub(super) struct Configuration {
    in_force: Cell<u32>,
    progress: RefCell<Progress>,
}

#[derive(Debug, Default)]
enum Progress {
    #[default]
    Idle,
    /// A task applies a value, and these wait until it has ended.
    Applying(Vec<Waker>),
}

impl Configuration {
    /// The value in force.
    pub(super) fn in_force(&self) -> u32 {
        self.in_force.get()
    }

    pub(super) fn set_in_force(&self, value: u32) {
        self.in_force.set(value);
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(*self.progress.borrow(), Progress::Idle)
    }

    /// Whether the caller has to apply the value that was written: no other task does.
    pub(super) fn begin(&self) -> bool {
        let mut progress = self.progress.borrow_mut();
        let is_idle = matches!(*progress, Progress::Idle);
        if is_idle {
            *progress = Progress::Applying(Vec::new());
        }
        is_idle
    }

    /// The task that began has ended.
    pub(super) fn end(&self) {
        if let Progress::Applying(waiters) = self.progress.take() {
            waiters.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits until no value is being applied.
    pub(super) async fn until_idle(&self) {
        poll_fn(|cx| match &mut *self.progress.borrow_mut() {
            Progress::Idle => Poll::Ready(()),
            Progress::Applying(waiters) => {
                waiters.push(cx.waker().clone());
                Poll::Pending
            }
        })
        .await;
    }
}

/// Whether a device runs, and its record on the way to or from another process.
#[derive(Debug, Default)]
pub(super) enum Motion {
    /// It runs.
    #[default]
    Running,
    /// Commands that were fetched end, and no other is fetched.
    Stopping,
    /// Nothing happens.
    Stopped,
    /// The client reads the record, of which so many bytes were read.
    Copying {
        /// The state of the device.
        record: Vec<u8>,
        /// Bytes that were read.
        read: usize,
    },
    /// The client writes the record.
    Resuming {
        /// Its bytes so far.
        record: Vec<u8>,
    },
    /// A record was refused: the device needs a reset.
    Failed,
}

impl Motion {
    /// Its name in the protocol.
    pub(super) fn state(&self) -> State {
        match self {
            Self::Running | Self::Stopping => State::RUNNING,
            Self::Stopped => State::STOP,
            Self::Copying { .. } => State::STOP_COPY,
            Self::Resuming { .. } => State::RESUMING,
            Self::Failed => State::ERROR,
        }
    }

    /// Whether the device runs: it fetches commands, and its registers may be written.
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Running)
    }
}

/// A task that acts once, after a delay. A start while it waits has no effect.
#[derive(Debug, Default)]
pub(super) struct Delayed {
    is_waiting: Cell<bool>,
}

impl Delayed {
    /// Whether the caller has to start the task: none waits.
    pub(super) fn begin(&self) -> bool {
        !self.is_waiting.replace(true)
    }

    /// The delay is over.
    pub(super) fn end(&self) {
        self.is_waiting.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn one_task_applies_the_configuration_and_others_wait_for_it() {
        let (configuration, mut cx) = (Configuration::default(), Context::from_waker(Waker::noop()));
        assert!(pin!(configuration.until_idle()).poll(&mut cx).is_ready());
        assert!(configuration.begin() && !configuration.begin() && !configuration.is_idle());
        let mut waiting = pin!(configuration.until_idle());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        configuration.set_in_force(7);
        configuration.end();
        assert!(waiting.poll(&mut cx).is_ready() && configuration.is_idle() && configuration.begin());
        assert_eq!(configuration.in_force(), 7);
    }

    #[test]
    fn only_a_running_device_runs() {
        let record = Vec::new;
        let all = [
            (Motion::Running, State::RUNNING, true),
            (Motion::Stopping, State::RUNNING, false),
            (Motion::Stopped, State::STOP, false),
            (Motion::Copying { record: record(), read: 0 }, State::STOP_COPY, false),
            (Motion::Resuming { record: record() }, State::RESUMING, false),
            (Motion::Failed, State::ERROR, false),
        ];
        for (motion, state, is_running) in all {
            assert_eq!((motion.state(), motion.is_running()), (state, is_running), "{motion:?}");
        }
    }

    #[test]
    fn a_delayed_task_waits_once_at_a_time() {
        let delayed = Delayed::default();
        assert!(delayed.begin() && !delayed.begin());
        delayed.end();
        assert!(delayed.begin());
    }
}
