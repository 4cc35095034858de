//! A network namespace of the test's own.

use std::io;
use std::process::Command;

/// Moves this thread into a network namespace of its own, whose loopback interface is up.
///
/// # Errors
/// When the process may not, or `ip` is not installed: the reason in words.
pub(crate) fn enter() -> Result<(), String> {
    // SAFETY: concerns the namespace of this thread only.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        return Err(format!("no network namespace: {}", io::Error::last_os_error()));
    }
    ip("link set lo up")
}

/// A pair of interfaces that are joined by a cable, both up.
///
/// # Errors
/// Where this kernel has no such interfaces.
pub(crate) fn veth(one: &str, other: &str) -> Result<(), String> {
    ip(&format!("link add {one} type veth peer name {other}"))?;
    for name in [one, other] {
        // No IPv6 address: the kernel sends nothing of its own then.
        ip(&format!("link set {name} addrgenmode none"))?;
        ip(&format!("link set {name} up"))?;
    }
    Ok(())
}

/// A TAP interface that is up.
///
/// # Errors
/// Where this kernel has no such interfaces.
pub(crate) fn tap(name: &str) -> Result<(), String> {
    ip(&format!("tuntap add dev {name} mode tap"))?;
    ip(&format!("link set {name} addrgenmode none"))?;
    ip(&format!("link set {name} up"))
}

/// Runs `ip` in the namespace of this thread.
///
/// # Errors
/// The error message of the program.
pub(crate) fn ip(arguments: &str) -> Result<(), String> {
    run("ip", arguments)
}

/// Runs `ethtool` in the namespace of this thread.
///
/// # Errors
/// The error message of the program.
pub(crate) fn ethtool(arguments: &str) -> Result<(), String> {
    run("ethtool", arguments)
}

fn run(program: &str, arguments: &str) -> Result<(), String> {
    let output = Command::new(program).args(arguments.split(' ')).output();
    let output = output.map_err(|why| format!("{program}: {why}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
