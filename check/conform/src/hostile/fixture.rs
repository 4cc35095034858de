//! The common parts of the hostile clients: the target under attack, its memory gauge, and the expected reactions.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::pdu::{Connection, Pdu, Received, op};
use crate::process;
use crate::session::{Login, Session, sense_of};
use crate::target::{Driver, Lab, Target};
use crate::test_data::Random;

/// The data memory of the target per core (`--memory`).
pub(super) const DATA_MIB: u64 = 64;
pub(super) const CORES: u64 = 2;
/// Limit of resident memory: the data memory, and as much again for everything else.
pub(super) const MEMORY_LIMIT: u64 = 2 * CORES * (DATA_MIB << 20);
/// How long the target may take to react.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// A request without a reaction for this long was ignored.
pub(super) const SILENCE: Duration = Duration::from_millis(300);

/// The fixture of a hostile client.
pub(super) struct Fixture<'a> {
    pub(super) lab: &'a Lab,
    pub(super) driver: Driver,
    pub(super) target: &'a Target,
    pub(super) gauge: &'a MemoryGauge,
    /// The LUN of hostile clients; the verifying writer uses another one if there are two.
    pub(super) lun: u16,
    pub(super) random: Random,
}

pub(super) type Case = (&'static str, fn(&mut Fixture<'_>) -> Result<()>);

/// Logs in with a new initiator name.
pub(super) fn newcomer(target: &Target) -> Result<()> {
    Session::open(target.portal, &Login::to(&target.name, "newcomer"))?.logout()
}

/// Measures the resident memory of the target.
pub(super) struct MemoryGauge {
    stop: Arc<AtomicBool>,
    /// The peak since the last check.
    recent: Arc<AtomicU64>,
    pub(super) highest: AtomicU64,
}

impl MemoryGauge {
    pub(super) fn start(pid: Option<u32>) -> Self {
        let (stop, recent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let shared = (Arc::clone(&stop), Arc::clone(&recent));
        std::thread::spawn(move || {
            while let (false, Some(pid)) = (shared.0.load(Ordering::Relaxed), pid) {
                if let Ok(bytes) = process::resident_bytes(pid) {
                    shared.1.fetch_max(bytes, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { stop, recent, highest: AtomicU64::new(0) }
    }

    /// An error if the resident memory exceeded the limit since the last call.
    pub(super) fn check_limit(&self) -> Result<()> {
        let peak = self.recent.swap(0, Ordering::Relaxed);
        self.highest.fetch_max(peak, Ordering::Relaxed);
        ensure!(
            peak <= MEMORY_LIMIT,
            "the target used {} MiB of memory, the limit is {}",
            peak >> 20,
            MEMORY_LIMIT >> 20
        );
        Ok(())
    }
}

impl Drop for MemoryGauge {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Fixture<'_> {
    /// A session of the attacker.
    pub(super) fn session(&self, keys: &[(&'static str, &str)]) -> Result<Session> {
        let mut login = Login::to(&self.target.name, "attacker");
        for (key, value) in keys {
            login = login.key(key, value);
        }
        Session::ready(self.target.portal, &login, self.lun)
    }

    pub(super) fn connection(&self) -> Result<Connection> {
        Connection::open(self.target.portal)
    }

    pub(super) fn login(&self) -> Login {
        Login::to(&self.target.name, "attacker")
    }
}

/// The reaction of the target to an invalid request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    Closed,
    /// A Reject with this reason (RFC 7143 11.17.1).
    Rejected(u8),
    /// A SCSI response: status; sense key, additional sense code and qualifier.
    Answered(u8, (u8, u8, u8)),
    /// A login response: status class and detail.
    Login(u16),
    Other(u8),
    Ignored,
}

/// The next reaction of the target. Pings of the target are ignored.
pub(super) fn reaction(connection: &mut Connection, limit: Duration) -> Result<Reaction> {
    let end = Instant::now() + limit;
    loop {
        let pdu = match connection.receive(end.saturating_duration_since(Instant::now()))? {
            Received::Closed => return Ok(Reaction::Closed),
            Received::Silence => return Ok(Reaction::Ignored),
            Received::Pdu(pdu) => pdu,
        };
        return Ok(match pdu.opcode() {
            op::NOP_IN => continue,
            op::REJECT => Reaction::Rejected(pdu.head[2]),
            op::RESPONSE => Reaction::Answered(pdu.head[3], sense_of(pdu.data.get(2..).unwrap_or_default())),
            op::LOGIN_RESPONSE => Reaction::Login(u16::from_be_bytes([pdu.head[36], pdu.head[37]])),
            other => Reaction::Other(other),
        });
    }
}

/// Fails unless the next reaction is the expected one.
pub(super) fn expect_reaction(connection: &mut Connection, wanted: Reaction) -> Result<()> {
    let found = reaction(connection, ANSWER_LIMIT)?;
    ensure!(found == wanted, "{found:?} instead of {wanted:?}");
    Ok(())
}

/// Fails unless the login was refused with this status.
pub(super) fn login_refused(connection: &mut Connection, status: u16) -> Result<()> {
    expect_reaction(connection, Reaction::Login(status))
        .with_context(|| format!("login status {status:04x}h is expected"))
}

/// Fails unless the session still answers a ping.
pub(super) fn expect_alive(session: &mut Session) -> Result<()> {
    let tag = session.tag();
    let nop = Pdu::new(op::NOP_OUT | crate::pdu::IMMEDIATE, crate::pdu::FINAL).tag(tag);
    let nop = nop.word(20, crate::pdu::RESERVED_TAG).word(24, session.cmd_sn).word(28, session.exp_stat_sn);
    session.connection.send(&nop)?;
    let end = Instant::now() + ANSWER_LIMIT;
    loop {
        match session.connection.receive(end.saturating_duration_since(Instant::now()))? {
            Received::Closed => bail!("the connection was closed"),
            Received::Silence => bail!("no answer to a ping"),
            Received::Pdu(pdu) if pdu.opcode() == op::NOP_IN && pdu.get(16) == tag => return Ok(()),
            Received::Pdu(_) => {}
        }
    }
}

/// The fixture of a hostile guest.
pub(super) struct VmFixture<'a> {
    pub(super) socket: &'a Path,
    pub(super) lab: &'a Lab,
    pub(super) random: Random,
}
