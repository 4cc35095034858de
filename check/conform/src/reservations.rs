//! Reservations across crashes and stops: an acknowledged reservation with APTPL is in effect after a `kill -9`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::session::{CommandResult, Data, GOOD, Login, Session, cdb};
use crate::target::{Driver, Lab, Spec, Target};
use crate::test_data::Random;

const MIB: u64 = 8;
pub(crate) const RESERVATION_CONFLICT: u8 = 0x18;
/// Reservation type Exclusive Access.
const KIND: u8 = 3;
/// The APTPL bit (SPC-4).
const APTPL: u8 = 0x01;
/// Service actions of PERSISTENT RESERVE OUT.
pub(crate) const RESERVE: u8 = 1;
const CLEAR: u8 = 3;
pub(crate) const REGISTER_AND_IGNORE: u8 = 6;
/// How long an undisturbed stop may take: less than the drain time.
const STOP_LIMIT: Duration = Duration::from_secs(8);

fn session(target: &Target, initiator: &str) -> Result<Session> {
    Session::ready(target.portal, &Login::to(&target.name, initiator), target.lun)
}

/// The CDB and the parameter list of PERSISTENT RESERVE OUT.
pub(crate) fn out(action: u8, key: u64, new: u64) -> ([u8; 10], Vec<u8>) {
    let list = [&key.to_be_bytes()[..], &new.to_be_bytes(), &[0, 0, 0, 0, APTPL, 0, 0, 0]].concat();
    ([0x5f, action, KIND, 0, 0, 0, 0, 0, 24, 0], list)
}

pub(crate) fn reserve(session: &mut Session, action: u8, key: u64, new: u64) -> Result<CommandResult> {
    let (cdb, list) = out(action, key, new);
    session.run(&cdb, Data::Out(list))?.good()
}

/// READ KEYS
pub(crate) fn keys(session: &mut Session) -> Result<Vec<u64>> {
    let data = session.run(&[0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0], Data::In(256))?.good()?.data;
    let length = u32::from_be_bytes(*data[4..].first_chunk().context("short keys")?) as usize;
    let keys = data.get(8..8 + length).context("more keys than there can be")?;
    keys.chunks(8).map(|key| Ok(u64::from_be_bytes(*key.first_chunk().context("half a key")?))).collect()
}

pub(crate) fn write(session: &mut Session) -> Result<u8> {
    Ok(session.run(&cdb::write(0, 1), Data::Out(vec![7; 512]))?.status)
}

/// The holder registers one key after the other until the kill. After it, the last acknowledged key or the one after it
/// is registered, and the reservation is in effect.
pub(crate) fn crash(lab: &Lab, driver: Driver, random: &mut Random) -> Result<()> {
    let spec = Spec::new(driver, [lab.image("fence.img", MIB)?])?;
    let target = Target::start(lab, &spec)?;
    let mut holder = session(&target, "holder")?;
    let mut acknowledged = 1;
    reserve(&mut holder, REGISTER_AND_IGNORE, 0, acknowledged)?;
    reserve(&mut holder, RESERVE, acknowledged, 0)?;
    ensure!(write(&mut session(&target, "other")?)? == RESERVATION_CONFLICT, "the reservation is not in effect");
    let end = Instant::now() + Duration::from_millis(20 + random.below(200));
    let mut target = Some(target);
    loop {
        let (cdb, list) = out(REGISTER_AND_IGNORE, 0, acknowledged + 1);
        let sent = holder.start(&cdb, Data::Out(list));
        if Instant::now() >= end
            && let Some(target) = target.take()
        {
            target.kill()?;
        }
        match sent.and_then(|_| holder.next()) {
            Ok(done) => ensure!(done.good()?.status == GOOD, "not registered"),
            Err(_) if target.is_none() => break,
            Err(error) => return Err(error),
        }
        acknowledged += 1;
    }
    ensure!(acknowledged > 1, "nothing was acknowledged before the crash: the round tests nothing");
    let target = Target::start_after_kill(lab, &spec).context("start after the crash")?;
    let (mut holder, mut other) = (session(&target, "holder")?, session(&target, "other")?);
    let found = keys(&mut other)?;
    let may_be = [vec![acknowledged], vec![acknowledged + 1]];
    ensure!(may_be.contains(&found), "keys {found:?} after {acknowledged} was acknowledged");
    ensure!(write(&mut other)? == RESERVATION_CONFLICT, "the reservation is lost");
    ensure!(write(&mut holder)? == GOOD, "the holder gets a reservation conflict");
    reserve(&mut holder, CLEAR, found[0], 0)?;
    target.kill()?;
    let target = Target::start_after_kill(lab, &spec).context("start after the second crash")?;
    let mut other = session(&target, "other")?;
    ensure!(keys(&mut other)?.is_empty(), "cleared keys are registered again");
    ensure!(write(&mut other)? == GOOD, "a cleared reservation is still in effect");
    target.stop()
}

/// RESERVE(6) ends with its session on every core, also if all cores stop at the same time.
pub(crate) fn stop(lab: &Lab, driver: Driver) -> Result<()> {
    let target = Target::start(lab, &Spec::new(driver, ["ram:8M"])?.flags(&["--cores", "2"]))?;
    let (mut holder, mut other) = (session(&target, "holder")?, session(&target, "other")?);
    let mut more = (0..4).map(|number| session(&target, &format!("other{number}"))).collect::<Result<Vec<_>>>()?;
    holder.run(&[0x16, 0, 0, 0, 0, 0], Data::None)?.good()?;
    ensure!(write(&mut other)? == RESERVATION_CONFLICT, "the reservation is not in effect");
    holder.logout()?;
    ensure!(write(&mut other)? == GOOD, "a reservation is still in effect after its session");
    other.run(&[0x16, 0, 0, 0, 0, 0], Data::None)?.good()?;
    ensure!(
        more.iter_mut().all(|session| write(session).ok() == Some(RESERVATION_CONFLICT)),
        "the reservation is not in effect on every core"
    );
    stops(target)?;
    // The other core has no sessions and has ended when the reservation ends.
    let target = Target::start(lab, &Spec::new(driver, ["ram:8M"])?.flags(&["--cores", "2"]))?;
    let mut holder = session(&target, "holder")?;
    holder.run(&[0x16, 0, 0, 0, 0, 0], Data::None)?.good()?;
    stops(target)
}

fn stops(target: Target) -> Result<()> {
    let before = Instant::now();
    target.stop()?;
    ensure!(before.elapsed() < STOP_LIMIT, "it took {:.1} s to stop", before.elapsed().as_secs_f64());
    Ok(())
}
