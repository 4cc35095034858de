//! An initiator on a link of frames, with its own thread: a machine without I/O, its frames and its clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use lunar_core::time;
use rustix::process::setpriority_process;

use super::scsi_commands::{Command, Payload};
use super::transport::NICE;
use crate::session::{CHECK_CONDITION, GOOD};
use crate::station::{Mac, Port};

/// The time between two looks at the timers of a machine.
const TICK: Duration = Duration::from_millis(5);
/// Frames that are taken before new commands are looked for.
const FRAMES: usize = 64;
/// A target that has not answered by then is taken for hung.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Unit attention conditions that one command may report.
const ATTENTIONS: usize = 6;

/// An event of an initiator.
#[derive(Debug)]
pub(super) enum Event {
    /// Commands are sent from now on.
    Ready,
    /// A command has ended: its number, its status, the data of a read.
    Done(u32, u8, Vec<u8>),
    /// The target does not answer, or refuses the login.
    Lost,
}

/// An initiator as a value without I/O.
pub(super) trait Machine {
    /// The next frame to send.
    fn next_frame(&mut self) -> Option<Vec<u8>>;
    /// Starts a command.
    fn start(&mut self, number: u32, lun: u16, command: &Command, now: time::Instant);
    /// Takes a frame.
    fn receive(&mut self, frame: &[u8], now: time::Instant, on: &mut dyn FnMut(Event));
    /// Does what is due.
    fn tick(&mut self, now: time::Instant, on: &mut dyn FnMut(Event));
    /// The address that it has got besides its own one.
    fn address(&self) -> Option<Mac>;
    /// Ends its connection, if the protocol has an end.
    fn close(&mut self, now: time::Instant);
}

/// A command for an initiator.
struct Order {
    number: u32,
    lun: u16,
    command: Command,
}

/// An initiator with its thread, which ends when this is dropped.
pub(super) struct Initiator {
    orders: Sender<Order>,
    events: Receiver<Event>,
    wake: SyncSender<Vec<u8>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    last: u32,
}

impl Initiator {
    /// Starts the machine that `make` makes, at a port. Attackers have the lowest priority.
    pub(super) fn start(
        port: Port,
        is_attacker: bool,
        make: impl FnOnce() -> Box<dyn Machine> + Send + 'static,
    ) -> Self {
        let ((orders, ordered), (sender, events), wake) = (channel(), channel(), port.own_sender());
        let is_over = Arc::<AtomicBool>::default();
        let ends = is_over.clone();
        let thread = std::thread::spawn(move || {
            if is_attacker {
                let _ = setpriority_process(None, NICE);
            }
            run((port, is_attacker), make(), (&ordered, &sender), &ends);
        });
        Self { orders, events, wake, is_over, thread: Some(thread), last: 0 }
    }

    /// Waits until the target has accepted the login.
    pub(super) fn ready(&mut self) -> Result<()> {
        match self.event(ANSWER_LIMIT)? {
            Some(Event::Ready) => Ok(()),
            other => bail!("instead of the login: {other:?}"),
        }
    }

    /// Sends a command without waiting for its end.
    pub(super) fn send(&mut self, lun: u16, command: Command) -> Result<()> {
        self.last = self.last.wrapping_add(1);
        self.orders.send(Order { number: self.last, lun, command })?;
        // An empty frame ends the wait of the thread; without room for it the thread is awake.
        let _ = self.wake.try_send(Vec::new());
        Ok(())
    }

    /// The next event, within this time.
    pub(super) fn event(&self, limit: Duration) -> Result<Option<Event>> {
        match self.events.recv_timeout(limit) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the initiator has ended"),
        }
    }

    /// Executes a command, again after unit attention conditions; returns its status and its data.
    pub(super) fn execute(&mut self, lun: u16, command: &Command) -> Result<(u8, Vec<u8>)> {
        for _ in 0..ATTENTIONS {
            self.send(lun, command.clone())?;
            let (status, data) = loop {
                match self.event(ANSWER_LIMIT)? {
                    Some(Event::Done(number, status, data)) if number == self.last => break (status, data),
                    Some(Event::Done(..) | Event::Ready) => {}
                    Some(Event::Lost) => bail!("the target has given the initiator up"),
                    None => bail!("the target has not answered after {} s", ANSWER_LIMIT.as_secs()),
                }
            };
            if status != CHECK_CONDITION {
                return Ok((status, data));
            }
        }
        Ok((CHECK_CONDITION, Vec::new()))
    }

    /// Executes a command that must end with GOOD.
    pub(super) fn succeed(&mut self, lun: u16, cdb: &[u8], payload: Payload) -> Result<Vec<u8>> {
        let (status, data) = self.execute(lun, &Command { cdb: cdb.to_vec(), payload })?;
        ensure!(status == GOOD, "status {status:02x}h of command {:02x}h", cdb[0]);
        Ok(data)
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.wake.try_send(Vec::new());
        // A thread that panicked has printed why.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(
    (mut port, is_attacker): (Port, bool),
    mut machine: Box<dyn Machine>,
    (orders, events): (&Receiver<Order>, &Sender<Event>),
    is_over: &AtomicBool,
) {
    let begun = Instant::now();
    let now = || time::Instant(begun.elapsed().as_nanos() as u64);
    // An initiator that was dropped takes no events.
    let mut on = |event| drop(events.send(event));
    while !is_over.load(Ordering::Relaxed) {
        orders.try_iter().for_each(|order| machine.start(order.number, order.lun, &order.command, now()));
        machine.tick(now(), &mut on);
        while let Some(frame) = machine.next_frame() {
            port.send(&frame);
        }
        if let Some(mac) = machine.address() {
            port.add_address(mac);
        }
        let mut limit = TICK;
        for _ in 0..FRAMES {
            let Some(frame) = port.receive(limit) else { break };
            limit = Duration::ZERO;
            machine.receive(&frame, now(), &mut on);
        }
    }
    if is_attacker {
        // It vanishes without a logout.
        return;
    }
    machine.close(now());
    while let Some(frame) = machine.next_frame() {
        port.send(&frame);
    }
}
