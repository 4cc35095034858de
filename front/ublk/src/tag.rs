//! The life of one tag of a queue: it asks the kernel for a request, has one, answers it and asks for the next, until
//! the device stops.

use crate::wire::{COMMIT_AND_FETCH_REQ, Descriptor, FETCH_REQ, Operation, SECTOR, TagCommand, flag};
use lunar_blk::{ByteRange, Code, Error, Request};
use lunar_core::io::Fault;

/// Errors of Linux, as the block layer of the kernel reads them.
mod errno {
    pub(super) const EIO: i32 = 5;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EROFS: i32 = 30;
    /// A reservation conflict.
    pub(super) const EBADE: i32 = 52;
    /// The path fails: another one may work.
    pub(super) const ENOLINK: i32 = 67;
    pub(super) const EOPNOTSUPP: i32 = 95;
}

/// A request of the kernel, for the block command set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoRequest {
    /// The command.
    pub code: Code,
    /// Its bytes of the unit; a flush has none.
    range: [ByteRange; 1],
    /// Whether the change is on the medium before the request ends.
    pub durable: bool,
    /// Whether a write of zeroes may deallocate.
    pub unmap: bool,
}

impl IoRequest {
    /// The request as the block command set takes it.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        let ranges: &[ByteRange] = if self.code == Code::Flush { &[] } else { &self.range };
        Request { durable: self.durable, unmap: self.unmap, ..Request::new(self.code, ranges) }
    }

    /// The bytes that it moves: the result of a read or a write that succeeds.
    #[must_use]
    pub fn moves(&self) -> u64 {
        if matches!(self.code, Code::Read | Code::Write) { self.range[0].len } else { 0 }
    }

    /// The request of a descriptor, for a tag with memory for `buffer` bytes. The error is the errno for the kernel.
    fn of(descriptor: Descriptor, buffer: usize) -> Result<Self, i32> {
        let code = match descriptor.operation() {
            Operation::READ => Code::Read,
            Operation::WRITE => Code::Write,
            Operation::FLUSH => Code::Flush,
            Operation::DISCARD => Code::Discard,
            Operation::WRITE_ZEROES => Code::WriteZeroes,
            _ => return Err(errno::EOPNOTSUPP),
        };
        let len = u64::from(descriptor.sectors) * SECTOR;
        // The kernel's flush has a start, and it means nothing.
        let start = if code == Code::Flush { 0 } else { descriptor.start };
        let offset = start.checked_mul(SECTOR).ok_or(errno::EINVAL)?;
        let request = Self {
            code,
            range: [ByteRange { offset, len }],
            durable: descriptor.has(flag::FUA),
            unmap: code == Code::WriteZeroes && !descriptor.has(flag::NO_UNMAP),
        };
        // The kernel splits requests at the limit that it was given.
        if request.moves() > buffer as u64 { Err(errno::EINVAL) } else { Ok(request) }
    }
}

/// The error of a request, as the kernel takes it.
#[must_use]
pub fn errno_of(why: Error) -> i32 {
    match why {
        Error::IoError => errno::EIO,
        Error::Unsupported => errno::EOPNOTSUPP,
        Error::ReadOnly => errno::EROFS,
        Error::NoSpace => errno::ENOSPC,
        Error::Conflict => errno::EBADE,
        Error::NotReady => errno::ENOLINK,
        Error::Invalid => errno::EINVAL,
    }
}

/// The next step when the kernel has answered the command of a tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The tag has a request: it is executed, and [`Tag::finish`] takes its result.
    Execute(IoRequest),
    /// The tag has a request that is refused: the next command answers it.
    Refuse,
    /// The device has stopped: the tag gives no command any more.
    Stopped,
    /// The kernel does not take the command, with this fault: the tag gives no command any more.
    Broken(Fault),
}

/// A tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    queue: u16,
    tag: u16,
    /// Bytes of its memory.
    buffer: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It has had no request.
    New,
    /// It executes this request.
    Busy(IoRequest),
    /// It has a result for the kernel.
    Answered(i32),
    Over,
}

impl Tag {
    /// A tag with memory for requests of `buffer` bytes.
    #[must_use]
    pub fn new(queue: u16, tag: u16, buffer: usize) -> Self {
        Self { queue, tag, buffer, state: State::New }
    }

    /// The command for the kernel; `None` while a request is executed, and at the end.
    #[must_use]
    pub fn command(&self) -> Option<TagCommand> {
        let (number, result) = match self.state {
            State::New => (FETCH_REQ, 0),
            State::Answered(result) => (COMMIT_AND_FETCH_REQ, result),
            State::Busy(_) | State::Over => return None,
        };
        Some(TagCommand { number, queue: self.queue, tag: self.tag, result })
    }

    /// The kernel has answered the command: with a request, or with a fault.
    pub fn answered(&mut self, answer: Result<Descriptor, Fault>) -> Next {
        let descriptor = match answer {
            Ok(descriptor) => descriptor,
            Err(why) => {
                self.state = State::Over;
                return if matches!(why, Fault::Gone | Fault::Aborted) { Next::Stopped } else { Next::Broken(why) };
            }
        };
        match IoRequest::of(descriptor, self.buffer) {
            Ok(request) => {
                self.state = State::Busy(request);
                Next::Execute(request)
            }
            Err(errno) => {
                self.state = State::Answered(-errno);
                Next::Refuse
            }
        }
    }

    /// The request has ended. Without a request in progress nothing happens.
    pub fn finish(&mut self, result: Result<(), Error>) {
        let State::Busy(request) = self.state else { return };
        self.state = State::Answered(match result {
            // No more than the memory of the tag.
            Ok(()) => request.moves() as i32,
            Err(why) => -errno_of(why),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUFFER: usize = 8192;

    fn descriptor(operation: Operation, flags: u32, start: u64, sectors: u32) -> Descriptor {
        Descriptor { op_flags: u32::from(operation.0) | flags, sectors, start }
    }

    #[test]
    fn a_tag_fetches_executes_and_commits() {
        let mut tag = Tag::new(1, 5, BUFFER);
        let fetch = TagCommand { number: FETCH_REQ, queue: 1, tag: 5, result: 0 };
        assert_eq!(tag.command(), Some(fetch));
        let Next::Execute(write) = tag.answered(Ok(descriptor(Operation::WRITE, flag::FUA, 3, 8))) else {
            panic!("it is a write")
        };
        assert_eq!(tag.command(), None, "the request is in progress");
        let request = write.request();
        assert_eq!((request.code, request.durable, request.unmap), (Code::Write, true, false));
        assert_eq!(request.ranges, [ByteRange { offset: 1536, len: 4096 }]);
        tag.finish(Ok(()));
        let commit = TagCommand { number: COMMIT_AND_FETCH_REQ, queue: 1, tag: 5, result: 4096 };
        assert_eq!(tag.command(), Some(commit));
        assert_eq!(tag.answered(Err(Fault::Gone)), Next::Stopped);
        assert_eq!(tag.command(), None);
        tag.finish(Ok(()));
        assert_eq!(tag.command(), None, "an end that comes late");
    }

    #[test]
    fn results_are_bytes_or_errors_of_the_block_layer() {
        let result = |operation, result| {
            let mut tag = Tag::new(0, 0, BUFFER);
            assert!(matches!(tag.answered(Ok(descriptor(operation, 0, 0, 8))), Next::Execute(_)));
            tag.finish(result);
            tag.command().expect("it is answered").result
        };
        assert_eq!((result(Operation::READ, Ok(())), result(Operation::FLUSH, Ok(()))), (4096, 0));
        assert_eq!((result(Operation::DISCARD, Ok(())), result(Operation::WRITE_ZEROES, Ok(()))), (0, 0));
        assert_eq!(result(Operation::WRITE, Err(Error::Conflict)), -52, "EBADE is a reservation conflict");
        assert_eq!(result(Operation::WRITE, Err(Error::NoSpace)), -28);
        assert_eq!(result(Operation::READ, Err(Error::IoError)), -5);
    }

    #[test]
    fn a_flush_of_linux_starts_nowhere() {
        let flush = descriptor(Operation::FLUSH, 0, u64::MAX, 0);
        let Next::Execute(request) = Tag::new(0, 0, BUFFER).answered(Ok(flush)) else { panic!("it is a flush") };
        assert!(request.code == Code::Flush && request.request().ranges.is_empty());
    }

    #[test]
    fn zeroes_deallocate_unless_they_must_not() {
        let unmap = |flags| match Tag::new(0, 0, BUFFER).answered(Ok(descriptor(Operation::WRITE_ZEROES, flags, 0, 8)))
        {
            Next::Execute(request) => request.unmap,
            next => panic!("{next:?}"),
        };
        assert_eq!((unmap(0), unmap(flag::NO_UNMAP)), (true, false));
    }

    #[test]
    fn requests_that_cannot_be_executed_are_answered() {
        for (refused, errno) in [
            (descriptor(Operation(10), 0, 0, 8), errno::EOPNOTSUPP),
            (descriptor(Operation::READ, 0, 0, 17), errno::EINVAL),
            (descriptor(Operation::WRITE, 0, u64::MAX, 8), errno::EINVAL),
        ] {
            let mut tag = Tag::new(0, 0, BUFFER);
            assert_eq!(tag.answered(Ok(refused)), Next::Refuse);
            assert_eq!(tag.command().map(|command| command.result), Some(-errno));
        }
        // A discard has no data: its length is not that of the memory.
        let long = descriptor(Operation::DISCARD, 0, 0, 1 << 20);
        assert!(matches!(Tag::new(0, 0, BUFFER).answered(Ok(long)), Next::Execute(_)));
        let why = Fault::Os(22);
        assert_eq!(Tag::new(0, 0, BUFFER).answered(Err(why)), Next::Broken(why));
    }

    proptest! {
        /// For every answer of the kernel, a tag has a command exactly when no request is in progress, and a request
        /// never moves more bytes than its memory has.
        #[test]
        fn a_tag_always_goes_on(steps in proptest::collection::vec((any::<u32>(), any::<u32>(), any::<u64>()), 0..50)) {
            let mut tag = Tag::new(0, 0, BUFFER);
            for (op_flags, sectors, start) in steps {
                prop_assert!(tag.command().is_some());
                if let Next::Execute(request) = tag.answered(Ok(Descriptor { op_flags, sectors, start })) {
                    prop_assert!(tag.command().is_none() && request.moves() <= BUFFER as u64);
                    tag.finish(if sectors % 2 == 0 { Ok(()) } else { Err(Error::IoError) });
                }
            }
            prop_assert!(tag.command().is_some_and(|command| command.result <= BUFFER as i32));
        }
    }
}
