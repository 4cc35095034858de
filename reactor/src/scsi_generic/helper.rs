//! The thread of a lane for calls that take long: the copy of a long transfer, and a command for a host adapter that
//! takes few commands at a time, where the kernel waits for room.

use super::header::Header;
use super::{read_header, write_header};
use crate::Reactor;
use crate::channel::{Receiver, Sender, channel};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;

/// A call.
#[derive(Debug)]
pub(super) enum Job {
    /// Start this command.
    Write(Header),
    /// Read the next reply.
    Read,
}

/// The result of a call.
#[derive(Debug)]
pub(super) enum Done {
    /// A command was started.
    Started,
    /// The command of this slot was not started, for this errno.
    Refused(i32, i32),
    /// The result of a read, as [`read_header`] returns it.
    Read(Result<Header, i32>, Option<Header>),
}

/// The thread, until it is dropped.
#[derive(Debug)]
pub(super) struct Helper(mpsc::Sender<Job>);

impl Helper {
    /// Starts the thread; returns the results of its calls as well.
    pub(super) fn start(reactor: &Reactor, fd: Arc<OwnedFd>) -> io::Result<(Self, Receiver<Done>)> {
        let (jobs, queue) = mpsc::channel();
        let (results, receiver) = channel(reactor);
        std::thread::Builder::new().name("scsi-device".into()).spawn(move || run(&queue, &fd, &results))?;
        Ok((Self(jobs), receiver))
    }

    /// Gives it a call. Calls are made in their order.
    pub(super) fn give(&self, job: Job) {
        // The thread ends only after the sender.
        let _ = self.0.send(job);
    }
}

fn run(queue: &mpsc::Receiver<Job>, fd: &OwnedFd, results: &Sender<Done>) {
    while let Ok(job) = queue.recv() {
        match job {
            Job::Write(header) => {
                let written = write_header(fd, &header);
                results.send(written.map_or_else(|errno| Done::Refused(header.slot, errno), |()| Done::Started));
            }
            Job::Read => {
                let (read, half) = read_header(fd);
                results.send(Done::Read(read, half));
            }
        }
    }
}
