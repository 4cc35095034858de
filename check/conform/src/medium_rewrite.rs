//! FORMAT UNIT and SANITIZE across `kill -9`: SANITIZE continues, and an interrupted FORMAT UNIT is reported until the
//! unit is formatted.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::session::{CommandResult, Data, Login, Session};
use crate::target::{Driver, Lab, Spec, Target};
use crate::test_data::pattern;

/// MiB of the sanitized volume: overwriting it takes far longer than the time until the kill.
const SANITIZED_MIB: u64 = 256;
const SANITIZE_LIMIT: Duration = Duration::from_secs(120);
/// MiB of the formatted volume: a sparse file of this size takes seconds to format, and no space.
const FORMATTED_MIB: u64 = 2 << 20;
const TEST_UNIT_READY: [u8; 6] = [0; 6];

pub(crate) fn part(lab: &Lab, driver: Driver, part: &str) {
    lab.report.check(part, "SANITIZE continues after kill -9", || sanitize(lab, driver));
    lab.report.check(part, "an interrupted FORMAT UNIT is reported until the next one", || format(lab, driver));
}

/// A session without the unit attentions of a new nexus, on a unit that may not be ready.
fn session(target: &Target) -> Result<Session> {
    let mut session = Session::open(target.portal, &Login::to(&target.name, "renewal"))?;
    session.lun = target.lun;
    // REQUEST SENSE clears the unit attention.
    session.run(&[3, 0, 0, 0, 18, 0], Data::In(18))?.good()?;
    Ok(session)
}

fn state(session: &mut Session) -> Result<CommandResult> {
    session.run(&TEST_UNIT_READY, Data::None)
}

/// SANITIZE with OVERWRITE, in two passes of a byte and its complement.
fn sanitize(lab: &Lab, driver: Driver) -> Result<()> {
    let image = lab.image("sanitize.img", SANITIZED_MIB)?;
    let spec = Spec::new(driver, [image.clone()])?;
    let target = Target::start(lab, &spec)?;
    let mut before = Session::ready(target.portal, &Login::to(&target.name, "renewal"), target.lun)?;
    let last = SANITIZED_MIB * 2048 - 64;
    before.write(last, pattern(1, 1, 32768), 512)?;
    let list = vec![0x82, 0, 0, 1, 0x5a];
    before.run(&[0x48, 0x81, 0, 0, 0, 0, 0, 0, 5, 0], Data::Out(list))?.good()?;
    state(&mut before)?.expect_sense(2, 0x04, 0x1b).context("before the kill")?;
    target.kill()?;
    // A second kill, while SANITIZE continues.
    let target = Target::start_after_kill(lab, &spec)?;
    state(&mut session(&target)?)?.expect_sense(2, 0x04, 0x1b).context("after the kill")?;
    target.kill()?;
    let target = Target::start_after_kill(lab, &spec)?;
    let mut after = session(&target)?;
    let end = Instant::now() + SANITIZE_LIMIT;
    loop {
        let done = state(&mut after)?;
        if done.status == 0 {
            break;
        }
        done.expect_sense(2, 0x04, 0x1b)?;
        ensure!(Instant::now() < end, "the operation does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    for lba in [0, last / 2, last] {
        ensure!(after.read(lba, 64, 512)?.iter().all(|byte| *byte == 0xa5), "LBA {lba} was not overwritten");
    }
    after.write(0, pattern(2, 2, 4096), 512)?;
    target.kill()?;
    // A completed SANITIZE is not repeated.
    let target = Target::start_after_kill(lab, &spec)?;
    let mut after = Session::ready(target.portal, &Login::to(&target.name, "renewal"), target.lun)?;
    ensure!(after.read(0, 8, 512)? == pattern(2, 2, 4096), "data written after SANITIZE is lost");
    after.logout()?;
    target.stop()?;
    Ok(std::fs::remove_file(image)?)
}

fn format(lab: &Lab, driver: Driver) -> Result<()> {
    let image = lab.fresh("format.img")?;
    if let Err(why) = File::create(&image)?.set_len(FORMATTED_MIB << 20) {
        return crate::report::skip(format!("no sparse file of 2 TiB can be created here: {why}"));
    }
    let spec = Spec::new(driver, [image.to_str().context("the name of the scratch folder is not UTF-8")?])?;
    let immediate = |session: &mut Session| session.run(&[4, 0x10, 0, 0, 0, 0], Data::Out(vec![0, 2, 0, 0]))?.good();
    let target = Target::start(lab, &spec)?;
    let mut before = Session::ready(target.portal, &Login::to(&target.name, "renewal"), target.lun)?;
    immediate(&mut before)?;
    state(&mut before)?.expect_sense(2, 0x04, 0x04).context("before the kill")?;
    target.kill()?;
    for _ in 0..2 {
        let target = Target::start_after_kill(lab, &spec)?;
        let mut after = session(&target)?;
        state(&mut after)?.expect_sense(3, 0x31, 0)?;
        after.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], Data::In(512))?.expect_sense(3, 0x31, 0)?;
        target.kill()?;
    }
    let target = Target::start_after_kill(lab, &spec)?;
    let mut after = session(&target)?;
    immediate(&mut after)?;
    let end = Instant::now() + SANITIZE_LIMIT;
    while state(&mut after)?.expect_sense(2, 0x04, 0x04).is_ok() {
        ensure!(Instant::now() < end, "the operation does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    state(&mut after)?.good()?;
    target.kill()?;
    let target = Target::start_after_kill(lab, &spec)?;
    Session::ready(target.portal, &Login::to(&target.name, "renewal"), target.lun)?.logout()?;
    target.stop()?;
    Ok(std::fs::remove_file(image)?)
}
