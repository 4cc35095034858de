//! The loop: commands of Lunar to the library, and their ends back. One thread executes it; the library has its own.

use crate::library::Failure;
use crate::library::image::{Completed, Image, Operation};
use lunar_handler::serve::{Connection, HandlerQueue, ServeError};
use lunar_handler::wire::{
    Message, Operation as Code, Space, Status, Submission, Welcome, features, name_field, name_of, space_flags,
};
use lunar_reactor::log;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

/// Why a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Lunar has closed it.
    Closed,
    /// The program is asked to end.
    Asked,
    /// The image has another size, which Lunar learns from the next process.
    Resized,
    /// The cluster takes no commands of this client any more.
    Fenced,
}

/// The name and the version of the program, for Lunar.
const NAME: &str = concat!("lunar-rbd ", env!("CARGO_PKG_VERSION"));

/// The optional operations.
fn features_of(image: &Image, is_read_only: bool) -> u64 {
    let changes = if is_read_only { 0 } else { features::UNMAP | features::ZERO };
    let extents = if image.tells_extents() { features::EXTENT } else { 0 };
    changes | extents | features::SPACE
}

/// A connection to Lunar.
pub struct Serving<'a> {
    image: &'a Image,
    size: u64,
    is_read_only: bool,
    connection: Connection,
    /// Commands that the library executes, each with the number of its queue.
    commands: HashMap<u64, (u32, Submission)>,
    last: u64,
    is_fenced: bool,
    /// The connection ends when the size of the image changes.
    follows_size: bool,
    /// The identity and the name of the pool, if Lunar wants to know its space.
    pool: Option<(String, String)>,
}

impl<'a> Serving<'a> {
    /// Connects to Lunar. No command of a connection before this one may be in progress: Lunar sends it again, and
    /// newer commands after it.
    ///
    /// # Errors
    /// When Lunar does not listen.
    pub fn connect(socket: &Path, image: &'a Image, size: u64, is_read_only: bool) -> Result<Self, ServeError> {
        debug_assert_eq!(image.in_progress(), 0);
        let connection = Connection::open(socket, NAME, size, features_of(image, is_read_only))?;
        Ok(Self::new(connection, image, size, is_read_only))
    }

    /// Serves the image with this identity on a connection that Lunar has made. It ends when the size of the image
    /// changes.
    ///
    /// # Errors
    /// When Lunar has closed it.
    pub fn over(
        connection: OwnedFd,
        image: &'a Image,
        (size, identity): (u64, &str),
        is_read_only: bool,
    ) -> Result<Self, ServeError> {
        let connection = Connection::over(connection, NAME, size, features_of(image, is_read_only), identity)?;
        Ok(Self { follows_size: true, ..Self::new(connection, image, size, is_read_only) })
    }

    /// Says on a connection that Lunar has made that another client has the image with this identity.
    ///
    /// # Errors
    /// When Lunar has closed it.
    pub fn stand_by(
        connection: BorrowedFd<'_>,
        image: &Image,
        (size, identity): (u64, &str),
    ) -> Result<(), ServeError> {
        Connection::stand_by(connection, NAME, size, features_of(image, false), identity)
    }

    fn new(connection: Connection, image: &'a Image, size: u64, is_read_only: bool) -> Self {
        let (commands, last, is_fenced) = (HashMap::new(), 0, false);
        let (follows_size, pool) = (false, None);
        Self { image, size, is_read_only, connection, commands, last, is_fenced, follows_size, pool }
    }

    /// Serves until the connection ends; `stop` becomes readable when the program is to end.
    ///
    /// # Errors
    /// When Lunar refuses the handler or finds a defect in it, and those of the library.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<End, ServeError> {
        loop {
            let is_busy = self.take_commands()? | self.end_commands()?;
            if self.is_fenced && self.commands.is_empty() {
                return Ok(End::Fenced);
            }
            if is_busy {
                continue;
            }
            let may_sleep = self.connection.queues.iter().all(|queue| queue.ring.may_sleep());
            let others = [stop, self.image.ended(), self.image.changed(), self.image.measured()];
            let (has_message, others) = self.connection.wait_also(may_sleep, others)?;
            self.connection.queues.iter().for_each(|queue| queue.ring.rise());
            let [has_to_stop, _, has_changed, has_measured] = others;
            if has_to_stop {
                self.finish()?;
                return Ok(End::Asked);
            }
            if has_changed && self.compare_size() && self.follows_size {
                self.finish()?;
                return Ok(End::Resized);
            }
            if has_measured {
                self.tell_space();
            }
            if has_message {
                match self.connection.receive()? {
                    Some(Message::Welcome(welcome)) => self.begin(&welcome),
                    Some(_) => {}
                    None => return Ok(End::Closed),
                }
            }
        }
    }

    /// Lunar has accepted the handler.
    fn begin(&mut self, welcome: &Welcome) {
        log!("serving volume {}, {} bytes", name_of(&welcome.volume), welcome.size.get());
        if welcome.features.get() & features::SPACE == 0 {
            return;
        }
        match self.image.measure().and_then(|()| self.image.pool_identity()) {
            Ok(pool) => self.pool = Some(pool),
            Err(why) => log!(warning, "the space of the pool is not measured: {why}"),
        }
        // An earlier connection may have measured it.
        self.tell_space();
    }

    /// Tells Lunar the space of the pool, if it is known.
    fn tell_space(&self) {
        let (Some(measured), Some((pool, name))) = (self.image.space(), &self.pool) else { return };
        let space = Space {
            flags: if measured.allocated.is_some() { space_flags::ALLOCATED } else { 0 }.into(),
            free: measured.free.into(),
            size: measured.size.into(),
            allocated: measured.allocated.unwrap_or(0).into(),
            pool: name_field(pool),
            name: name_field(name),
        };
        // If Lunar has gone, the next look at the connection shows it.
        let _ = self.connection.send(&Message::Space(space));
    }

    /// Answers the commands that the library has; Lunar keeps the others for the next handler.
    fn finish(&mut self) -> Result<(), ServeError> {
        self.image.drain_into(|ended| end(&mut self.commands, &mut self.connection.queues, ended, &mut self.is_fenced));
        self.connection.queues.iter().try_for_each(HandlerQueue::wake_lunar)
    }

    /// Looks at the size of the image after a change of its header; returns whether it is another one.
    fn compare_size(&mut self) -> bool {
        let _ = rustix::io::read(self.image.changed(), &mut [0; size_of::<u64>()]);
        match self.image.size() {
            Ok(size) if size != self.size => {
                let advice = if self.follows_size { "" } else { ". Set `size` of the volume, then all hosts see it" };
                log!(warning, "the image has {size} bytes now, and had {}{advice}", self.size);
                // Commands behind its end fail.
                self.size = self.size.min(size);
                true
            }
            _ => false,
        }
    }

    /// Gives new commands to the library; returns whether there were any.
    fn take_commands(&mut self) -> Result<bool, ServeError> {
        let mut is_busy = false;
        for queue in &mut self.connection.queues {
            let mut has_answered = false;
            for _ in 0..queue.ring.depth() {
                let Some(command) = queue.ring.take()? else { break };
                is_busy = true;
                self.last += 1;
                let begun = match self.is_fenced {
                    true => Err(Status::NOT_READY),
                    false => {
                        operation(&command, queue, self.size, self.is_read_only).and_then(|(offset, operation)| {
                            self.image
                                .submit(self.last, offset, operation)
                                .map_err(|why| status(why, &mut self.is_fenced))
                        })
                    }
                };
                match begun {
                    Ok(()) => drop(self.commands.insert(self.last, (queue.number, command))),
                    Err(status) => {
                        queue.ring.complete(&command, status);
                        has_answered = true;
                    }
                }
            }
            if has_answered {
                queue.wake_lunar()?;
            }
        }
        Ok(is_busy)
    }

    /// Answers the commands that have ended; returns whether there were any.
    fn end_commands(&mut self) -> Result<bool, ServeError> {
        let mut all = Vec::new();
        self.image.take_ended(&mut all).map_err(|why| ServeError::Io(why.0.into()))?;
        let queues = &mut self.connection.queues;
        all.iter().for_each(|ended| end(&mut self.commands, queues, *ended, &mut self.is_fenced));
        if !all.is_empty() {
            queues.iter().try_for_each(HandlerQueue::wake_lunar)?;
        }
        Ok(!all.is_empty())
    }
}

/// Answers a command. The queue of one that Lunar has closed is not there any more.
fn end(
    commands: &mut HashMap<u64, (u32, Submission)>,
    queues: &mut [HandlerQueue],
    ended: Completed,
    is_fenced: &mut bool,
) {
    let Some((number, command)) = commands.remove(&ended.token) else { return };
    let status = ended.result.err().map_or(Status::GOOD, |why| status(why, is_fenced));
    let Some(queue) = queues.iter_mut().find(|queue| queue.number == number) else { return };
    match (Code(command.operation), status) {
        (Code::EXTENT, Status::GOOD) => queue.ring.complete_extent(&command, ended.extent),
        _ => queue.ring.complete(&command, status),
    }
}

/// The status of a failure. A client that is fenced says so once.
fn status(why: Failure, is_fenced: &mut bool) -> Status {
    if why.is_fenced() {
        if !std::mem::replace(is_fenced, true) {
            log!(error, "{why}: another client has taken the image over, or an operator has blocked this one");
        }
        return Status::NOT_READY;
    }
    match why.0 {
        Errno::NOSPC | Errno::DQUOT => Status::NO_SPACE,
        Errno::IO | Errno::BADMSG => Status::MEDIUM_ERROR,
        Errno::TIMEDOUT | Errno::NOTCONN | Errno::AGAIN => Status::NOT_READY,
        Errno::OPNOTSUPP => Status::UNSUPPORTED,
        _ => Status::FAILED,
    }
}

/// The command for the library.
///
/// # Errors
/// The status of a command that is not for this image.
fn operation(
    command: &Submission,
    queue: &HandlerQueue,
    size: u64,
    is_read_only: bool,
) -> Result<(u64, Operation), Status> {
    let (offset, len) = (command.offset.get(), command.length.get());
    let (code, bytes) = (Code(command.operation), usize::try_from(len).map_err(|_| Status::FAILED)?);
    let is_change = !matches!(code, Code::READ | Code::FLUSH | Code::EXTENT);
    if offset.checked_add(len).is_none_or(|end| end > size) || is_read_only && is_change {
        return Err(Status::FAILED);
    }
    let place = usize::try_from(command.data.get()).map_err(|_| Status::FAILED)?;
    let operation = match code {
        Code::READ => Operation::Read(queue.data.buf(place, bytes).ok_or(Status::FAILED)?),
        // Without a cache of the library each write is durable.
        Code::WRITE => Operation::Write(queue.data.slice(place, bytes).ok_or(Status::FAILED)?),
        Code::FLUSH => Operation::Flush,
        Code::UNMAP => Operation::Discard(len),
        Code::ZERO => Operation::Zero(bytes),
        Code::EXTENT if len > 0 => Operation::Extent(len),
        _ => return Err(Status::UNSUPPORTED),
    };
    Ok((offset, operation))
}
