//! Features of controllers (NVMe Base 2.0 5.27.1), one row each.

use crate::limits::VECTORS;
use crate::policy::Transport;
use std::collections::BTreeMap;
use std::time::Duration;

/// Arbitration.
pub const ARBITRATION: u8 = 0x01;
/// Power Management.
pub const POWER: u8 = 0x02;
/// Temperature Threshold.
pub const TEMPERATURE: u8 = 0x04;
/// Error Recovery.
pub const ERROR_RECOVERY: u8 = 0x05;
/// Volatile Write Cache.
pub const WRITE_CACHE: u8 = 0x06;
/// Number of Queues.
pub const QUEUES: u8 = 0x07;
/// Interrupt Coalescing.
pub const COALESCING: u8 = 0x08;
/// Interrupt Vector Configuration.
pub const VECTOR: u8 = 0x09;
/// Write Atomicity Normal.
pub const ATOMICITY: u8 = 0x0a;
/// Asynchronous Event Configuration.
pub const EVENTS: u8 = 0x0b;
/// Timestamp.
pub const TIMESTAMP: u8 = 0x0e;
/// Keep Alive Timer.
pub const KEEP_ALIVE: u8 = 0x0f;
/// Host Behavior Support.
pub const HOST_BEHAVIOR: u8 = 0x16;
/// Host Identifier.
pub const HOST_ID: u8 = 0x81;
/// Reservation Notification Mask.
pub const RESERVATION_MASK: u8 = 0x82;
/// Reservation Persistence.
pub const RESERVATION_PERSISTENCE: u8 = 0x83;

/// The properties of a feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its identifier.
    pub id: u8,
    /// Its name.
    pub name: &'static str,
    /// The transports that have the feature.
    pub transport: Transport,
    /// Whether it can be set.
    pub changes: bool,
    /// Whether each namespace has its own value.
    pub per_namespace: bool,
    /// Bytes of data that it is set with and read as; zero: a dword.
    pub data: u32,
    /// The default value.
    pub default: u32,
}

const fn dword(id: u8, name: &'static str, changes: bool, default: u32) -> Row {
    Row { id, name, transport: Transport::Every, changes, per_namespace: false, data: 0, default }
}

/// Arbitration bursts without a limit.
const NO_LIMIT: u32 = 0x07;
/// Over temperature: never.
const NEVER_TOO_WARM: u32 = 0xffff;

/// Every feature.
pub const FEATURES: &[Row] = &[
    dword(ARBITRATION, "Arbitration", true, NO_LIMIT),
    dword(POWER, "Power Management", true, 0),
    dword(TEMPERATURE, "Temperature Threshold", true, NEVER_TOO_WARM),
    dword(ERROR_RECOVERY, "Error Recovery", true, 0),
    dword(WRITE_CACHE, "Volatile Write Cache", true, 1),
    dword(QUEUES, "Number of Queues", true, 0),
    Row { transport: Transport::Memory, ..dword(COALESCING, "Interrupt Coalescing", true, 0) },
    Row { transport: Transport::Memory, ..dword(VECTOR, "Interrupt Vector Configuration", true, 0) },
    dword(ATOMICITY, "Write Atomicity Normal", true, 0),
    dword(EVENTS, "Asynchronous Event Configuration", true, 0),
    Row { data: 8, ..dword(TIMESTAMP, "Timestamp", true, 0) },
    dword(KEEP_ALIVE, "Keep Alive Timer", true, 0),
    Row { data: 512, ..dword(HOST_BEHAVIOR, "Host Behavior Support", true, 0) },
    Row { data: 16, ..dword(HOST_ID, "Host Identifier", false, 0) },
    Row { per_namespace: true, ..dword(RESERVATION_MASK, "Reservation Notification Mask", true, 0) },
    Row { per_namespace: true, ..dword(RESERVATION_PERSISTENCE, "Reservation Persistence", true, 0) },
];

/// The row of a feature.
#[must_use]
pub fn find(id: u8) -> Option<&'static Row> {
    FEATURES.iter().find(|row| row.id == id)
}

/// Interrupt Vector Configuration: interrupts of the vector never wait (CD).
pub(crate) const DISABLED: u32 = 1 << 16;

/// How interrupts of I/O completion queues wait for more completions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coalescing {
    /// The number of completions for one interrupt (aggregation threshold).
    pub entries: u32,
    /// The longest delay of an interrupt; zero: none.
    pub time: Duration,
    /// Vectors whose interrupts do not wait.
    pub exempt: Vec<u16>,
}

/// The feature values that a host has set.
#[derive(Debug, Default)]
pub struct Values {
    dwords: BTreeMap<(u8, u32), u32>,
    /// The offset of the host's clock in milliseconds, after the host has set it.
    pub(crate) clock: Option<i64>,
    /// The Host Behavior Support of the host.
    pub(crate) behavior: Option<Box<[u8; 512]>>,
}

impl Values {
    /// A feature's value, of a namespace if it has one for each.
    #[must_use]
    pub fn get(&self, id: u8, namespace: u32) -> u32 {
        let default = find(id).map_or(0, |row| row.default);
        self.dwords.get(&(id, namespace)).copied().unwrap_or(default)
    }

    /// Sets a feature's value.
    pub fn set(&mut self, id: u8, namespace: u32, value: u32) {
        self.dwords.insert((id, namespace), value);
    }

    /// All values that were set: feature, namespace, value.
    pub(crate) fn all(&self) -> Vec<(u8, u32, u32)> {
        self.dwords.iter().map(|((id, namespace), value)| (*id, *namespace, *value)).collect()
    }

    /// How interrupts wait for more completions.
    #[must_use]
    pub fn coalescing(&self) -> Coalescing {
        /// The unit of the aggregation time.
        const UNIT: Duration = Duration::from_micros(100);
        let [entries, time, ..] = self.get(COALESCING, 0).to_le_bytes();
        let exempt = self.dwords.range((VECTOR, 0)..=(VECTOR, VECTORS.into()));
        let exempt = exempt.filter(|(_, value)| **value & DISABLED != 0).map(|((_, vector), _)| *vector as u16);
        Coalescing { entries: u32::from(entries) + 1, time: UNIT * u32::from(time), exempt: exempt.collect() }
    }

    /// The events that the host has enabled.
    #[must_use]
    pub fn events(&self) -> u32 {
        self.get(EVENTS, 0)
    }
}
