//! A connection to Lunar: its messages, in their order. The rings are started again in every connection.

use crate::error::SessionError;
use lunar_reactor::Reactor;
use lunar_reactor::unix::Stream;
use lunar_vhost_client::Defect;
use lunar_vhost_client::disk::{self, Shape};
use lunar_vhost_client::layout::Layout;
use lunar_vhost_client::message::{self, Head};
use lunar_vhost_user::wire::{Code, HEADER_LEN, protocol};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The descriptors of the rings.
#[derive(Debug)]
pub struct Descriptors {
    /// The shared memory.
    pub memory: OwnedFd,
    /// The eventfd of each ring, which this process signals.
    pub kicks: Vec<OwnedFd>,
    /// The eventfd that Lunar signals for every ring.
    pub call: OwnedFd,
}

/// A connection to Lunar.
pub struct Session {
    stream: Stream,
    /// The channel on which Lunar says that the volume has changed.
    channel: Option<Stream>,
    offered: u64,
    features: Cell<u64>,
    /// Rings that it has.
    rings: u64,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({} rings)", self.rings)
    }
}

impl Session {
    /// Connects, and agrees on the protocol.
    ///
    /// # Errors
    /// Why there is no connection.
    pub async fn open(reactor: &Reactor, path: &Path) -> Result<Self, SessionError> {
        let stream = Stream::connect(reactor, path)?;
        let mut session = Self { stream, channel: None, offered: 0, features: Cell::new(0), rings: 1 };
        session.offered = session.number(Code::GET_FEATURES).await?;
        session.tell(Code::SET_OWNER, &[], &[]).await?;
        let accepted = disk::protocol_features(session.number(Code::GET_PROTOCOL_FEATURES).await?)?;
        session.tell(Code::SET_PROTOCOL_FEATURES, &accepted.to_le_bytes(), &[]).await?;
        if accepted & protocol::MQ != 0 {
            session.rings = session.number(Code::GET_QUEUE_NUM).await?;
        }
        if accepted & protocol::BACKEND_REQ != 0 {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (own, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                .map_err(|why| SessionError::Io(why.into()))?;
            session.have(Code::SET_BACKEND_REQ_FD, &[], &[other.as_fd()]).await?;
            session.channel = Some(Stream::adopt(reactor, own)?);
        }
        Ok(session)
    }

    async fn tell(&self, code: Code, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SessionError> {
        Ok(self.stream.send(&message::message(code, payload, false), descriptors).await?)
    }

    /// Sends a message that has to be acknowledged.
    async fn have(&self, code: Code, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SessionError> {
        self.stream.send(&message::message(code, payload, true), descriptors).await?;
        Ok(message::acknowledged(code, &self.reply_to(code).await?)?)
    }

    async fn number(&self, code: Code) -> Result<u64, SessionError> {
        self.tell(code, &[], &[]).await?;
        Ok(message::number(&self.reply_to(code).await?)?)
    }

    async fn reply_to(&self, code: Code) -> Result<Vec<u8>, SessionError> {
        let (head, payload) = self.reply().await?;
        if head.code == code.0 { Ok(payload) } else { Err(Defect::Message.into()) }
    }

    /// The next reply.
    ///
    /// # Errors
    /// The end of the connection.
    pub async fn reply(&self) -> Result<(Head, Vec<u8>), SessionError> {
        received(&self.stream, message::reply).await
    }

    /// Waits until Lunar says that the volume has changed.
    ///
    /// # Errors
    /// The end of the connection.
    pub async fn changed(&self) -> Result<(), SessionError> {
        let Some(channel) = &self.channel else { return std::future::pending().await };
        loop {
            let (head, _) = received(channel, message::notice).await?;
            if message::has_changed(&head) {
                return Ok(());
            }
        }
    }

    /// Accepts features; without `flushes`, every write is on the medium when it ends.
    ///
    /// # Errors
    /// [`Defect::Lacks`], or the end of the connection.
    pub async fn accept(&self, flushes: bool) -> Result<(), SessionError> {
        self.features.set(disk::features(self.offered, flushes)?);
        self.tell(Code::SET_FEATURES, &self.features.get().to_le_bytes(), &[]).await
    }

    /// Asks for the configuration space.
    ///
    /// # Errors
    /// The end of the connection.
    pub async fn ask_shape(&self) -> Result<(), SessionError> {
        self.tell(Code::GET_CONFIG, &message::config(), &[]).await
    }

    /// The disk of a reply to [`Session::ask_shape`]; `None`: it is another reply.
    ///
    /// # Errors
    /// [`Defect::Space`], [`Defect::Refused`].
    pub fn shape_of(&self, head: &Head, payload: &[u8]) -> Result<Option<Shape>, SessionError> {
        if head.code != Code::GET_CONFIG.0 {
            return Ok(None);
        }
        Ok(Some(Shape::of(self.features.get(), &message::space(payload)?)?))
    }

    /// The disk.
    ///
    /// # Errors
    /// Why it cannot be served.
    pub async fn shape(&self) -> Result<Shape, SessionError> {
        self.ask_shape().await?;
        let (head, payload) = self.reply().await?;
        self.shape_of(&head, &payload)?.ok_or(SessionError::Defect(Defect::Message))
    }

    /// Shares memory, and starts all rings in it, from their beginning.
    ///
    /// # Errors
    /// Why Lunar does not start them.
    pub async fn start(&self, layout: &Layout, descriptors: &Descriptors) -> Result<(), SessionError> {
        if u64::from(layout.queues()) > self.rings {
            return Err(Defect::Rings(layout.queues()).into());
        }
        let memory = descriptors.memory.as_fd();
        self.have(Code::SET_MEM_TABLE, &message::memory(layout.len()), &[memory]).await?;
        for (ring, kick) in (0..layout.queues()).zip(&descriptors.kicks) {
            let number = u64::from(ring).to_le_bytes();
            self.tell(Code::SET_VRING_NUM, &message::state(ring, layout.ring_size().into()), &[]).await?;
            self.tell(Code::SET_VRING_BASE, &message::state(ring, 0), &[]).await?;
            self.have(Code::SET_VRING_ADDR, &message::address(ring, layout.ring(ring)), &[]).await?;
            self.tell(Code::SET_VRING_CALL, &number, &[descriptors.call.as_fd()]).await?;
            self.have(Code::SET_VRING_KICK, &number, &[kick.as_fd()]).await?;
            self.have(Code::SET_VRING_ENABLE, &message::state(ring, 1), &[]).await?;
        }
        Ok(())
    }

    /// Stops a ring; what was in it is answered before.
    ///
    /// # Errors
    /// The end of the connection.
    pub async fn stop(&self, ring: u16) -> Result<(), SessionError> {
        self.tell(Code::GET_VRING_BASE, &message::state(ring, 0), &[]).await?;
        self.reply_to(Code::GET_VRING_BASE).await.map(drop)
    }

    /// Ends the connection, and all that waits for it.
    pub fn end(&self) {
        self.stream.cancel();
        self.channel.iter().for_each(Stream::cancel);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A wait that was given up keeps the connection open, and Lunar accepts no other one meanwhile.
        self.end();
    }
}

async fn received(
    stream: &Stream,
    take: impl Fn(&[u8; HEADER_LEN]) -> Result<Head, Defect>,
) -> Result<(Head, Vec<u8>), SessionError> {
    // No message of a back-end that is used here has descriptors: they are closed.
    let (mut bytes, mut descriptors) = ([0; HEADER_LEN], Vec::new());
    if stream.receive(&mut bytes, &mut descriptors).await? < HEADER_LEN {
        return Err(SessionError::Closed);
    }
    let head = take(&bytes)?;
    let mut payload = vec![0; head.len];
    if stream.receive(&mut payload, &mut descriptors).await? < head.len {
        return Err(SessionError::Closed);
    }
    Ok((head, payload))
}
