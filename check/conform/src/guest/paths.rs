//! The part `paths`: multipath, clusters, and further tools of administrators.

use std::fmt::Write as _;

use anyhow::Result;

use super::{Script, Targets, sysroot};
use crate::report::skip;
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, HOST_BY_THE_OTHER_NETWORK, Lab, Spec, Subject, Target, free_port};

/// Runs the part: the guest has two networks to the target and cuts one, then the other.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("paths/{}", driver.name());
    let mut made = None;
    lab.report.check(&part, "packages for the guest", || {
        made = Some(sysroot::ensure(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = made else { return Ok(()) };
    let script =
        Script { name: "paths", is_service: false, part: &part, driver, sysroot: &sysroot, processors: 1, more: None };
    lab.report.check(&part, "guest ran to its end", || script.run(lab, targets(lab, driver)?));
    Ok(())
}

fn targets(lab: &Lab, driver: Driver) -> Result<Targets> {
    if matches!(lab.subject, Subject::External(_)) {
        return skip("the second portal of an external target is not known");
    }
    let mut spec = Spec::new(driver, [lab.image("paths.img", 512)?, lab.image("paths-copy.img", 64)?])?;
    spec.for_guest = true;
    spec.listen.push(free_port()?);
    let main = Target::start(lab, &spec)?;
    let mut settings = String::new();
    for (number, (host, portal)) in
        [HOST_AS_GUEST_SEES_IT, HOST_BY_THE_OTHER_NETWORK].iter().zip(&spec.listen).enumerate()
    {
        writeln!(settings, "PORTAL{}={host}:{}", number + 1, portal.port())?;
    }
    writeln!(settings, "TARGET={}\nPORTAL=$PORTAL1", main.name)?;
    Ok(Targets { main: Some(main), spec, others: Vec::new(), settings, growth: None })
}
