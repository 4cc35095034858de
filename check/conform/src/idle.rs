//! The part `idle`: many virtual machines that are connected and do nothing. They take no processor time, and little
//! memory.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process;
use crate::target::{Driver, Lab, Spec, Target};
use crate::test_data::pattern;
use crate::vhost::{FrontEnd, Kind, Layout};

/// Virtual machines, and the queues of each.
const MACHINES: usize = 64;
const QUEUES: u16 = 4;
/// Memory of Lunar for each of them: its rings, eventfds and tasks.
const MEMORY_MAX: u64 = 128 << 10;
/// The period in which an idle target is watched, and how often its threads may wake up in it: one looks at the stores
/// once a second, in a few steps.
const PERIOD: Duration = Duration::from_secs(4);
const WAKES: u64 = 40;
/// The limit of the processor time: a thread that polls takes ten times as much. The time of a wake-up is that of the
/// machine, and emulated guests beside the target make it long.
const LIMIT: Duration = Duration::from_millis(400);
/// Time in which a target notices that its guests are idle, and how often it is measured: on a busy machine it gets the
/// processor late.
const SETTLE: Duration = Duration::from_secs(3);
const ATTEMPTS: u32 = 3;

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("idle/{}", driver.name());
    lab.built()?;
    let folder = lab.scratch.join("sockets");
    let names: Vec<String> = (0..MACHINES).map(|number| format!("vm{number}")).collect();
    let sockets = folder.to_str().context("the name of the scratch folder is not UTF-8")?;
    let devices = names.iter().flat_map(|name| ["--vhost-blk", name]);
    let flags: Vec<&str> = ["--vhost-folder", sockets, "--cores", "2"].into_iter().chain(devices).collect();
    let target = Target::start(lab, &Spec::new(driver, ["ram:16M"])?.flags(&flags))?;
    let pid = target.pid().context("the target was started here")?;
    let boot = |(number, name): (usize, &String)| -> Result<FrontEnd> {
        let mut guest = FrontEnd::boot(&folder.join(format!("{name}.sock")), Kind::Blk, Layout::Split, QUEUES)?;
        let block = u32::try_from(number)? * 8;
        guest.write_and_verify((0, block), &pattern(block.into(), 1, 4096))?;
        Ok(guest)
    };
    let mut machines = names.iter().enumerate().map(boot);
    // The first one has Lunar allocate what all of them use.
    let mut guests = vec![machines.next().context("there are some")??];
    let before = process::private_bytes(pid)?;
    for guest in machines {
        guests.push(guest?);
    }
    lab.report.check(&part, &format!("{MACHINES} idle virtual machines take no processor time"), || rests(pid));
    lab.report.check(&part, &format!("each takes at most {} KiB of memory", MEMORY_MAX >> 10), || {
        let each = process::private_bytes(pid)?.saturating_sub(before) / (MACHINES as u64 - 1);
        lab.report.note(&format!("{part}: {} KiB of memory for each virtual machine with {QUEUES} queues", each >> 10));
        ensure!(each <= MEMORY_MAX, "{} KiB", each >> 10);
        Ok(())
    });
    lab.report.check(&part, "all of them are served at once afterwards", || {
        guests.iter_mut().try_for_each(|guest| guest.write_and_verify((0, 0), &pattern(0, 2, 4096)))
    });
    drop(guests);
    lab.report.check(&part, "a target whose virtual machines are gone takes no processor time", || rests(pid));
    lab.report.check(&part, "target stops in time", || target.stop());
    Ok(())
}

/// Waits until a process sleeps: it wakes up as rarely as an idle target does.
pub(crate) fn rests(pid: u32) -> Result<()> {
    let (mut used, mut wakes) = (Duration::ZERO, 0);
    for _ in 0..ATTEMPTS {
        std::thread::sleep(SETTLE);
        let before = (process::processor_time(pid)?, process::waits(pid)?);
        std::thread::sleep(PERIOD);
        used = process::processor_time(pid)? - before.0;
        wakes = process::waits(pid)?.saturating_sub(before.1);
        if used <= LIMIT && wakes <= WAKES {
            return Ok(());
        }
    }
    bail!("the target woke up {wakes} times, and used {used:?} of processor time, in {PERIOD:?}")
}
