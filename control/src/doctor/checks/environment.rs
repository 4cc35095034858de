//! The environment: limits, the kernel, the processors.

use super::words::{mib, unit_setting};
use crate::common_sections::Driver;
use crate::doctor::facts::{Facts, IPC_LOCK, Process, SYS_ADMIN};
use crate::doctor::finding::Finding;
use crate::doctor::table::Code;

/// Descriptors of the process and of each core besides those of sessions and volumes.
const DESCRIPTORS: (u64, u64) = (320, 16);
/// The first kernel with all operations of io_uring that the service uses.
const KERNEL: (u32, u32) = (5, 15);
/// Clocks that are read from a device.
const SLOW_CLOCKS: [&str; 5] = ["hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"];
/// A process that was stopped for less than this, in microseconds, was not hindered.
const THROTTLED_MIN: u64 = 100_000;

pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    if let Some(process) = &facts.process {
        limits(facts, process, findings);
    }
    kernel(facts, findings);
}

fn cores(facts: &Facts) -> u64 {
    facts.config.server.cores.map_or(facts.machine.processors as u64, |cores| cores.get()).max(1)
}

fn limits(facts: &Facts, process: &Process, findings: &mut Vec<Finding>) {
    let new = |code| Finding::new(code, format!("process {}", process.id));
    let (cores, sessions) = (cores(facts), facts.config.limits.sessions.get());
    let of_volumes = cores * (DESCRIPTORS.1 + facts.config.volumes.len() as u64);
    let needed = DESCRIPTORS.0 + of_volumes + sessions;
    if let Some(most) = process.descriptors.filter(|most| *most < needed) {
        let found = new(Code::DescriptorsLow).shows("limit", most).shows("needed", needed).shows("sessions", sessions);
        findings.push(found.command(unit_setting("LimitNOFILE=1048576")));
    }
    let (memory, can_lock) = (cores * facts.config.server.memory.0, (process.capabilities >> IPC_LOCK) & 1 == 1);
    let registers = facts.config.volumes.values().any(|volume| volume.direct);
    if let Some(most) = process.locked.filter(|most| registers && !can_lock && *most < memory) {
        let found = new(Code::MemlockLow).shows("limit", mib(most)).shows("needed", mib(memory));
        findings.push(found.command(unit_setting("LimitMEMLOCK=infinity")));
    }
    if process.swapped > 0 {
        let found = new(Code::MemorySwapped).shows("swapped", mib(process.swapped));
        findings.push(found.command("systemctl set-property lunar MemorySwapMax=0"));
    }
    let (times, microseconds) = process.throttled;
    if microseconds > THROTTLED_MIN {
        let found =
            new(Code::CpuThrottled).shows("times", times).shows("stopped for", format!("{} ms", microseconds / 1000));
        findings.push(found.command("systemctl set-property lunar CPUQuota="));
    }
}

fn kernel(facts: &Facts, findings: &mut Vec<Finding>) {
    let machine = &facts.machine;
    let new = |code| Finding::new(code, "kernel");
    let is_forbidden = match machine.io_uring_disabled {
        0 => false,
        1 => !facts.user.can(SYS_ADMIN),
        _ => true,
    };
    if is_forbidden && facts.config.server.driver != Driver::Epoll {
        let found = new(Code::IoUringDisabled).shows("kernel.io_uring_disabled", machine.io_uring_disabled);
        findings.push(found.command("sysctl -w kernel.io_uring_disabled=0"));
    }
    if let Some((major, minor)) = machine.kernel.filter(|kernel| *kernel < KERNEL) {
        let found = new(Code::KernelOld).shows("version", format!("{major}.{minor}"));
        findings.push(found.command("uname -a"));
    }
    if SLOW_CLOCKS.contains(&machine.clock.as_str()) {
        let folder = "/sys/devices/system/clocksource/clocksource0";
        let command = format!("cat {folder}/available_clocksource; echo tsc > {folder}/current_clocksource");
        findings.push(new(Code::ClockSlow).shows("clock", &machine.clock).command(command));
    }
    // With the driver intel_pstate, `powersave` follows the load.
    let is_slow = |(driver, governor): &&(String, String)| governor == "powersave" && !driver.contains("pstate");
    if let Some((driver, governor)) = machine.governors.iter().find(is_slow) {
        let found = Finding::new(Code::GovernorPowersave, "processors").shows("governor", governor);
        let command = "for f in /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do echo performance > $f; done";
        findings.push(found.shows("driver", driver).command(command));
    }
    let has_memory = facts.config.volumes.values().any(|volume| volume.kind.word() == "ram");
    if machine.huge_pages == "never" && has_memory {
        let command = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
        findings.push(new(Code::HugePagesOff).shows("transparent huge pages", "never").command(command));
    }
}
