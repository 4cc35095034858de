//! Files on the epoll driver. Reads that the page cache can answer are executed at once; all other operations are
//! executed by worker threads.

use super::answer::Answer;
use super::{Inner, Open};
use crate::endpoint::command::{Command, Family};
use crate::file::{self, DeviceCall, OpenFile, Work};
use crate::op::{Handle, Op};
use crate::vector::Vector;
use lunar_core::io::{Data, Done, Fault};
use lunar_core::mem::{Sg, SgMut};
use std::sync::Arc;

/// An operation that a worker thread executes. It owns the memory that the thread uses.
pub(super) struct Job {
    done: Done,
    handle: Handle,
    data: Data,
    /// Bytes that were moved before the worker began.
    moved: usize,
}

impl Job {
    /// The id of the file.
    pub(super) fn file(&self) -> u32 {
        self.handle.id()
    }

    pub(super) fn into_answer(self, result: Result<u32, Fault>) -> Answer {
        let result = match (&self.data, result) {
            // The file ends before.
            // The status of the device.
            (Data::Carried(_), result) => result,
            (Data::In(sg), Ok(read)) if self.moved + (read as usize) < sg.len() => Err(Fault::Medium),
            (data, result) => result.map(|_| data.len() as u32),
        };
        Answer::new(self.done, result, self.data, self.handle)
    }
}

/// The progress of a file operation when it was submitted.
pub(super) enum Begun {
    Over(Answer),
    Work { job: Job, work: Work },
}

impl Inner {
    fn file(&self, handle: &Handle) -> Option<Arc<OpenFile>> {
        match self.open[handle.id() as usize].as_ref()? {
            Open::File(file) | Open::Polled(file, _) => Some(file.clone()),
            _ => None,
        }
    }

    pub(super) fn begin_file(&mut self, op: Op, done: Done) -> Begun {
        match op {
            Op::Read { file, offset, into } => self.begin_read(file, offset, into, done),
            Op::Write { file, offset, data, durable } => self.begin_write(file, offset, data, durable, done),
            Op::Command { device, command } => self.begin_command(device, command, done),
            op => {
                let work = Work::of(&op, |handle| self.file(handle));
                let (Op::Sync { file: handle }
                | Op::Allocate { file: handle, .. }
                | Op::Extent { file: handle, .. }
                | Op::Space { file: handle }
                | Op::Copy { file: handle, .. }) = op
                else {
                    unreachable!("only operations of files come here")
                };
                match work {
                    Some(work) => Begun::Work { job: Job { done, handle, data: Data::None, moved: 0 }, work },
                    // Not a file: a socket has no space.
                    None => Begun::Over(Answer::new(done, Err(Fault::Unsupported), Data::None, handle)),
                }
            }
        }
    }

    fn begin_read(&mut self, handle: Handle, offset: u64, into: SgMut, done: Done) -> Begun {
        let (total, mut moved) = (into.len(), 0);
        let mut data = Data::In(into);
        let Some(file) = self.file(&handle) else {
            return Begun::Over(Answer::new(done, Err(Fault::Os(libc::EINVAL)), data, handle));
        };
        // A direct read would wait for the disk in any case.
        while !file.is_direct() && moved < total {
            let count = self.vector.gather(&mut data, moved);
            match file::read(&file, &mut self.vector, offset + moved as u64, libc::RWF_NOWAIT) {
                Ok(read) if read as usize == count => moved += count,
                // The file ends before.
                Ok(_) => return Begun::Over(Answer::new(done, Err(Fault::Medium), data, handle)),
                // Not in memory, or a file system that does not know RWF_NOWAIT.
                Err((read, Fault::Os(libc::EAGAIN) | Fault::Unsupported)) => {
                    moved += read as usize;
                    break;
                }
                Err((_, fault)) => return Begun::Over(Answer::new(done, Err(fault), data, handle)),
            }
        }
        if moved == total {
            return Begun::Over(Answer::new(done, Ok(total as u32), data, handle));
        }
        let into = Vector::of(&mut data, moved);
        let work = Work::Read { file, into, offset: offset + moved as u64 };
        Begun::Work { job: Job { done, handle, data, moved }, work }
    }

    fn begin_write(&mut self, handle: Handle, offset: u64, data: Sg, durable: bool, done: Done) -> Begun {
        let mut data = Data::Out(data);
        if data.is_empty() {
            return Begun::Over(Answer::new(done, Ok(0), data, handle));
        }
        let Some(file) = self.file(&handle) else {
            return Begun::Over(Answer::new(done, Err(Fault::Os(libc::EINVAL)), data, handle));
        };
        let from = Vector::of(&mut data, 0);
        let work = Work::Write { file, from, offset, durable };
        Begun::Work { job: Job { done, handle, data, moved: 0 }, work }
    }

    fn begin_command(&mut self, device: Handle, mut command: Box<Command>, done: Done) -> Begun {
        command.result = [0; 2];
        match self.device_work(&device, &mut command) {
            Some(work) => {
                let job = Job { done, handle: device, data: Data::Carried(command), moved: 0 };
                Begun::Work { job, work }
            }
            None => Begun::Over(Answer::new(done, Err(Fault::Unsupported), Data::Carried(command), device)),
        }
    }

    fn device_work(&self, device: &Handle, command: &mut Command) -> Option<Work> {
        let Open::Device(file) = self.open[device.id() as usize].as_ref()? else { return None };
        let mut list = Vector::default();
        if !command.request.fits(Family::Nvme, &command.data) || !command.has_fitting_pieces(&mut list) {
            return None;
        }
        let encoded = command.encode(&mut list);
        let call = DeviceCall { function: encoded.call()?, bytes: Box::new(encoded.bytes), _list: list };
        Some(Work::Command { file: file.clone(), call })
    }

    pub(super) fn keep_job(&mut self, job: Job) -> u32 {
        let key = self.free_jobs.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            (self.jobs.len() - 1) as u32
        });
        self.jobs[key as usize] = Some(job);
        key
    }

    pub(super) fn take_job(&mut self, key: u32) -> Job {
        self.free_jobs.push(key);
        self.jobs[key as usize].take().expect("a job is answered once")
    }
}
