//! The faults of a simulated world, and their odds.

use super::chance::Chance;
use std::time::Duration;

/// The odds of faults, in parts of a [`super::MILLION`], and the durations of operations. May change while a simulation
/// runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// From the send of a segment to its arrival.
    pub latency: (Duration, Duration),
    /// From the start of a file operation to its end.
    pub file_time: (Duration, Duration),
    /// Bytes of one direction that may be in flight or unread when a connection begins.
    pub buffer: (u64, u64),
    /// An operation that can end at once is answered while it is submitted.
    pub eager: u32,
    /// A receive returns less than is available.
    pub partial_receive: u32,
    /// A send travels in more than one segment.
    pub segmented_send: u32,
    /// A segment resets its connection instead.
    pub reset: u32,
    /// A segment delays its direction for a while.
    pub stall: u32,
    /// The length of the delay.
    pub stall_time: (Duration, Duration),
    /// A datagram or frame is lost.
    pub datagram_loss: u32,
    /// A datagram or frame arrives twice.
    pub datagram_duplicate: u32,
    /// A datagram or frame is late by up to [`Faults::stall_time`], so that others overtake it.
    pub datagram_reorder: u32,
    /// A frame to another station is received as well, as on an interface in promiscuous mode.
    pub stray_frame: u32,
    /// A device fails a command.
    pub command_error: u32,
    /// An accept fails for lack of descriptors.
    pub accept_error: u32,
    /// A file operation takes long.
    pub slow: u32,
    /// The duration of a slow operation.
    pub slow_time: (Duration, Duration),
    /// A read fails.
    pub read_error: u32,
    /// A write fails, with any part of it done.
    pub write_error: u32,
    /// A sync fails.
    pub sync_error: u32,
    /// A write or a change of space finds no space.
    pub no_space: u32,
    /// Blocks of [`super::SPACE_BLOCK`] that all files together may take.
    pub space: Option<usize>,
}

const fn micros(low: u64, high: u64) -> (Duration, Duration) {
    (Duration::from_micros(low), Duration::from_micros(high))
}

impl Faults {
    /// No faults; bytes are still divided anywhere, and answers come in any order.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            latency: micros(5, 200),
            file_time: micros(1, 300),
            buffer: (256 << 10, 256 << 10),
            eager: 200_000,
            partial_receive: 300_000,
            segmented_send: 300_000,
            reset: 0,
            stall: 0,
            stall_time: micros(100, 2_000_000),
            datagram_loss: 0,
            datagram_duplicate: 0,
            datagram_reorder: 0,
            stray_frame: 0,
            command_error: 0,
            accept_error: 0,
            slow: 0,
            slow_time: micros(1_000, 3_000_000),
            read_error: 0,
            write_error: 0,
            sync_error: 0,
            no_space: 0,
            space: None,
        }
    }

    /// Any mixture: each kind of fault is off, rare or frequent, so that some runs are calm and some are not.
    #[must_use]
    pub fn any(chance: &mut Chance) -> Self {
        let calm = Self::none();
        let mut rate = |frequent: u32| match chance.index(3) {
            0 => 0,
            1 => frequent / 50,
            _ => frequent,
        };
        let mut faults = Self {
            eager: rate(900_000),
            partial_receive: rate(900_000),
            segmented_send: rate(900_000),
            reset: rate(2_000),
            stall: rate(5_000),
            accept_error: rate(50_000),
            slow: rate(30_000),
            read_error: rate(20_000),
            write_error: rate(20_000),
            sync_error: rate(20_000),
            no_space: rate(20_000),
            datagram_loss: rate(20_000),
            datagram_duplicate: rate(20_000),
            datagram_reorder: rate(20_000),
            stray_frame: rate(100_000),
            command_error: rate(20_000),
            ..calm
        };
        faults.latency.1 = Duration::from_micros(chance.within(10..=20_000));
        faults.file_time.1 = Duration::from_micros(chance.within(5..=20_000));
        faults.buffer.0 = 1 << chance.within(9..=17);
        faults
    }

    /// Disables all failures; times and divisions of bytes stay.
    pub fn heal(&mut self) {
        let Self { latency, file_time, buffer, eager, partial_receive, segmented_send, .. } = self.clone();
        *self = Self { latency, file_time, buffer, eager, partial_receive, segmented_send, ..Self::none() };
    }
}
