//! Hostile clients, which violate the protocols. After each one, the target is running, its memory is within its limit,
//! a session that follows the protocol continues with its data, and a new login succeeds.

mod fixture;
mod floods;
mod logins;
mod moving;
mod nvme;
mod requests;
mod tasks;
mod transfers;
mod vhost;
mod vm;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::pdu::{Connection, Received};
use crate::target::{Driver, Lab, Spec, Target};
use crate::test_data::Random;
use crate::verifying_writer::VerifyingWriter;
use fixture::{CORES, Case, DATA_MIB, Fixture, MemoryGauge, newcomer};

/// Runs the hostile clients. With `all`, also those whose result does not depend on the driver.
pub(crate) fn part(lab: &Lab, driver: Driver, all: bool) -> Result<()> {
    let part = format!("hostile/{}", driver.name());
    let memory = DATA_MIB.to_string();
    let cores = CORES.to_string();
    let spec = Spec::new(driver, [lab.image("hostile.img", 64)?, "ram:64M".to_owned()])?;
    let mut target = Target::start(lab, &spec.flags(&["--memory", &memory, "--cores", &cores]))?;
    let writer = VerifyingWriter::start(target.portal, &target.name, target.lun, lab.seed)?;
    let gauge = MemoryGauge::start(target.pid());
    // A connection that never logs in, which is checked at the end.
    let idle = (Connection::open(target.portal)?, Instant::now());
    let cases: Vec<&Case> = if all {
        logins::CASES
            .iter()
            .chain(&requests::CASES)
            .chain(&tasks::CASES)
            .chain(&transfers::CASES)
            .chain(&floods::CASES)
            .collect()
    } else {
        transfers::CASES.iter().chain(&floods::CASES).collect()
    };
    for (name, case) in cases {
        let good = lab.report.check(&part, name, || {
            let lun = target.lun + u16::from(matches!(lab.subject, crate::target::Subject::Built(_)));
            let random = Random::new(lab.seed);
            let mut fixture = Fixture { lab, driver, target: &target, gauge: &gauge, lun, random };
            let outcome = case(&mut fixture);
            // Check the target first: if it has ended, that explains all other failures.
            target.healthy()?;
            outcome?;
            gauge.check_limit()?;
            writer.expect_progress()?;
            newcomer(&target)
        });
        if !good && target.healthy().is_err() {
            bail!("the target has ended");
        }
    }
    lab.report.check(&part, "a connection that never logs in is closed", || closed_for_idleness(idle));
    let mut operations = 0;
    lab.report.check(&part, "nothing acknowledged is lost", || {
        operations = writer.finish()?;
        Ok(())
    });
    lab.report.note(&format!(
        "{part}: {operations} writes verified in the background; peak memory {} MiB",
        gauge.highest.load(Ordering::Relaxed) >> 20
    ));
    lab.report.check(&part, "target stops in time", || target.stop());
    nvme::part(lab, driver)?;
    vm::part(lab, driver)?;
    vhost::part(lab, driver)
}

fn closed_for_idleness((mut connection, since): (Connection, Instant)) -> Result<()> {
    const LONGEST: Duration = Duration::from_secs(60);
    match connection.receive(LONGEST.saturating_sub(since.elapsed()).max(Duration::from_secs(1)))? {
        Received::Closed => Ok(()),
        received => bail!("after {} s: {received:?}", since.elapsed().as_secs()),
    }
}
