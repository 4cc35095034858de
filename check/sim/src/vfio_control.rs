//! The client of a vfio-user socket over the simulated network: commands, replies and doorbells that are messages.

use crate::wire::Lost;
use lunar_core::time::Instant;
use lunar_nvme::controller::property;
use lunar_nvme_host::Error;
use lunar_nvme_host::bringup::{READY, SHUTDOWN};
use lunar_nvme_host::rings::Write;
use lunar_nvme_host::vfio::{self, Conversation};
use lunar_reactor::Reactor;
use lunar_reactor::sim::{Peer, World};
use lunar_vfio_user::wire::{Code, HEADER_LEN, REGION_BAR0, REGION_CONFIG};
use std::future::poll_fn;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The command register of the PCI configuration space: memory space, bus master, INTx disabled.
const PCI_COMMAND: u64 = 0x04;
const PCI_ENABLE: u16 = 0x0406;
/// The pause between two reads of the status register.
const STATUS_PAUSE: Duration = Duration::from_micros(300);
/// CSTS: the shutdown status (SHST), and its value for a shutdown that is complete.
const SHUTDOWN_STATUS: u64 = 0x0c;
const SHUTDOWN_COMPLETE: u64 = 0x08;

/// The reason for which a client wakes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// An interrupt has come.
    Interrupt,
    /// The server has closed the connection.
    Closed,
    /// The server has sent a message that no command asked for.
    Message,
    /// The time has come.
    Time,
}

/// The connection to a vfio-user socket.
pub struct Control {
    world: World,
    core: Reactor,
    peer: Peer,
    conversation: Conversation,
    /// Doorbells that are not sent yet.
    out: Vec<u8>,
}

impl Control {
    /// Connects to a socket. `None` if no target listens there.
    #[must_use]
    pub fn connect(world: &World, core: &Reactor, path: &Path) -> Option<Self> {
        let peer = world.connect_local(path).ok()?;
        let (world, core) = (world.clone(), core.clone());
        Some(Self { world, core, peer, conversation: Conversation::default(), out: Vec::new() })
    }

    /// The number of the connection in the trace.
    #[must_use]
    pub fn link(&self) -> u32 {
        self.peer.link()
    }

    /// Sends as much of the doorbells as there is room for.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        while !self.out.is_empty() {
            match self.peer.poll_send(cx, &self.out) {
                Poll::Ready(Ok(count)) => drop(self.out.drain(..count)),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Lost::Gone)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    async fn send(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>], until: Instant) -> Result<(), Lost> {
        let (core, mut at) = (self.core.clone(), 0);
        let mut timer = pin!(core.sleep_until(until));
        poll_fn(|cx| {
            let mut is_sent = self.poll_flush(cx)?.is_ready();
            while is_sent && at < bytes.len() {
                // Descriptors travel with the first byte.
                let with = if at == 0 { descriptors } else { &[] };
                match self.peer.poll_send_with(cx, &bytes[at..], with) {
                    Poll::Ready(Ok(count)) => at += count,
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Lost::Gone)),
                    Poll::Pending => is_sent = false,
                }
            }
            if is_sent { Poll::Ready(Ok(())) } else { timer.as_mut().poll(cx).map(|()| Err(Lost::Time)) }
        })
        .await
    }

    async fn receive(&mut self, len: usize, until: Instant) -> Result<Vec<u8>, Lost> {
        let (core, mut bytes) = (self.core.clone(), Vec::new());
        let mut timer = pin!(core.sleep_until(until));
        poll_fn(|cx| {
            while bytes.len() < len {
                match self.peer.poll_receive(cx, len - bytes.len()) {
                    Poll::Ready(Ok(more)) if !more.is_empty() => bytes.extend(more),
                    Poll::Ready(_) => return Poll::Ready(Err(Lost::Gone)),
                    Poll::Pending => return timer.as_mut().poll(cx).map(|()| Err(Lost::Time)),
                }
            }
            Poll::Ready(Ok(std::mem::take(&mut bytes)))
        })
        .await
    }

    /// Sends a command and waits for its reply. Returns its payload and its descriptors.
    ///
    /// # Errors
    /// There is no reply, or the server refuses the command.
    pub async fn call(
        &mut self,
        code: Code,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        until: Instant,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), Lost> {
        let bytes = self.conversation.command(code, payload, true);
        self.send(&bytes, descriptors, until).await?;
        let head = self.receive(HEADER_LEN, until).await?;
        let head = head.first_chunk().ok_or(Error::Protocol("a message header is too short"))?;
        let answer = self.receive(self.conversation.reply(head)?, until).await?;
        Ok((answer, self.peer.take_descriptors()))
    }

    /// Reads a register.
    ///
    /// # Errors
    /// Errors of [`Control::call`].
    pub async fn register(&mut self, offset: u32, is_long: bool, until: Instant) -> Result<u64, Lost> {
        let len = if is_long { 8 } else { 4 };
        let read = vfio::read(REGION_BAR0, offset.into(), len);
        let (answer, _) = self.call(Code::REGION_READ, &read, &[], until).await?;
        let mut bytes = [0; 8];
        bytes[..len as usize].copy_from_slice(vfio::read_data(&answer, len as usize)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes a register.
    ///
    /// # Errors
    /// Errors of [`Control::call`].
    pub async fn set_register(&mut self, offset: u32, bytes: &[u8], until: Instant) -> Result<(), Lost> {
        let write = vfio::write(REGION_BAR0, offset.into(), bytes);
        self.call(Code::REGION_WRITE, &write, &[], until).await.map(drop)
    }

    /// Enables the PCI function.
    ///
    /// # Errors
    /// Errors of [`Control::call`].
    pub async fn enable_function(&mut self, until: Instant) -> Result<(), Lost> {
        let write = vfio::write(REGION_CONFIG, PCI_COMMAND, &PCI_ENABLE.to_le_bytes());
        self.call(Code::REGION_WRITE, &write, &[], until).await.map(drop)
    }

    async fn until_status(&mut self, mask: u64, value: u64, until: Instant) -> Result<(), Lost> {
        while self.register(property::CSTS, false, until).await? & mask != value {
            if self.core.now() >= until {
                return Err(Lost::Time);
            }
            self.core.sleep(STATUS_PAUSE).await;
        }
        Ok(())
    }

    /// Disables the controller: afterwards no command is in progress.
    ///
    /// # Errors
    /// Errors of [`Control::call`].
    pub async fn disable(&mut self, until: Instant) -> Result<(), Lost> {
        self.set_register(property::CC, &[0; 4], until).await?;
        self.until_status(READY, 0, until).await
    }

    /// Shuts the controller down.
    ///
    /// # Errors
    /// Errors of [`Control::call`].
    pub async fn shut_down(&mut self, until: Instant) -> Result<(), Lost> {
        self.set_register(property::CC, &SHUTDOWN.to_le_bytes(), until).await?;
        self.until_status(SHUTDOWN_STATUS, SHUTDOWN_COMPLETE, until).await
    }

    /// Writes doorbell registers; the server sends no reply. They are sent by the next call or wait.
    pub fn ring(&mut self, writes: impl IntoIterator<Item = Write>) {
        for (offset, value) in writes {
            let write = vfio::write(REGION_BAR0, offset.into(), &value.to_le_bytes());
            let bytes = self.conversation.command(Code::REGION_WRITE, &write, false);
            self.out.extend(bytes);
        }
    }

    /// Sends doorbells, and waits for one of these interrupts or the end of the connection, until the time has come.
    pub async fn wait(&mut self, interrupts: &[OwnedFd], until: Instant) -> Wake {
        let core = self.core.clone();
        let mut timer = pin!(core.sleep_until(until));
        poll_fn(|cx| {
            if matches!(self.poll_flush(cx), Poll::Ready(Err(_))) {
                return Poll::Ready(Wake::Closed);
            }
            match self.peer.poll_receive(cx, 1) {
                Poll::Ready(Ok(bytes)) if !bytes.is_empty() => return Poll::Ready(Wake::Message),
                Poll::Ready(_) => return Poll::Ready(Wake::Closed),
                Poll::Pending => {}
            }
            // All of them: each keeps the waker, or is reset.
            let came = interrupts.iter().filter(|one| self.world.poll_signal(cx, one).is_ready()).count();
            if came > 0 {
                return Poll::Ready(Wake::Interrupt);
            }
            timer.as_mut().poll(cx).map(|()| Wake::Time)
        })
        .await
    }
}
