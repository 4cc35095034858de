//! A target under load: what discovery returns of it, and the sessions that are open to it.

use crate::report::{Logins, Negotiated};
use crate::url::Url;
use anyhow::Result;
use serde::Serialize;
use std::time::Instant;

/// A target or subsystem that discovery returned.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DiscoveredTarget {
    /// The IQN or NQN.
    pub name: String,
    /// Its portals: `host:port`, for iSCSI with `,group`.
    pub addresses: Vec<String>,
}

/// The capacity of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capacity {
    /// The number of logical blocks.
    pub(crate) blocks: u64,
    /// The logical block size, in bytes.
    pub(crate) block_size: u32,
}

impl Capacity {
    /// The capacity in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_size.into())
    }
}

/// The open sessions of a run, and the properties of the unit.
pub(crate) struct OpenSessions<S> {
    pub(crate) url: Url,
    /// The sessions under load.
    pub(crate) active: Vec<S>,
    /// The idle sessions.
    pub(crate) idle: Vec<S>,
    pub(crate) capacity: Capacity,
    /// The longest transfer of a command, in bytes.
    pub(crate) transfer_max: u32,
    pub(crate) negotiated: Negotiated,
    pub(crate) logins: Option<Logins>,
}

/// Opens the idle sessions and measures the rate of logins.
pub(crate) fn time_logins<T>(sessions: u32, open: impl FnOnce() -> Result<T>) -> Result<(T, Option<Logins>)> {
    let started = Instant::now();
    let opened = open()?;
    let seconds = started.elapsed().as_secs_f64();
    let logins = Logins { sessions, seconds, per_second: f64::from(sessions) / seconds };
    Ok((opened, (sessions > 0).then_some(logins)))
}
