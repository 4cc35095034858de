//! The page of supported commands, made from the tables of the device types.

use crate::device_types::{DEVICE_TYPES, FORWARDED_TYPES};
use crate::forwarding::timeouts;
use crate::policy::{Admission, Alua, Capability, Effect, Forwarding, Gate, Persistent, Policy};
use crate::row::{DeviceType, Flow, Row};
use crate::spc::table::OTHER;
use std::fmt::Write;

/// The page, as `docs/commands.md` holds it.
#[must_use]
pub fn commands() -> String {
    let mut page = String::from(
        "# Supported SCSI commands\n\n\
         Generated from the command tables by `LUNAR_REGENERATE=1 cargo test -p lunar-scsi docs`.\n\n\
         * data: direction of the data\n\
         * medium: effect of the command on the medium\n\
         * reserved: reservations of another initiator that stop the command\n\
         * ALUA: asymmetric access states in which the command is executed\n\
         * forwarded: where the command is executed on a forwarded logical unit\n",
    );
    DEVICE_TYPES.iter().for_each(|device| section(&mut page, device));
    page
}

/// The commands and pages of a device type.
fn section(page: &mut String, device: &DeviceType) {
    push(page, format_args!("\n## {} (device type {:02X}h)\n\n", device.name, device.code.0));
    page.push_str(
        "| opcode | command | standard | data | medium | reserved | ALUA | forwarded | time-out |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    device.commands.rows().iter().for_each(|row| line(page, row));
    if !device.vpd.is_empty() {
        page.push_str("\n| VPD page | name | standard |\n|---|---|---|\n");
        for row in device.vpd {
            push(page, format_args!("| {:02X} | {} | {} |\n", row.page, row.name, row.clause));
        }
    }
    if !device.mode.is_empty() {
        page.push_str("\n| mode page | name | standard |\n|---|---|---|\n");
        for row in device.mode {
            let name = with_capability(row.name, row.needs);
            push(page, format_args!("| {:02X}/{:02X} | {name} | {} |\n", row.page, row.subpage, row.clause));
        }
    }
    if !device.log.is_empty() {
        page.push_str("\n| log page | name | standard |\n|---|---|---|\n");
        for row in device.log {
            let name = with_capability(row.name, row.needs);
            push(page, format_args!("| {:02X}/{:02X} | {name} | {} |\n", row.page, row.subpage, row.clause));
        }
    }
}

/// A name, with the logical units that have it if not all have it.
fn with_capability(name: &str, needs: Option<&Capability>) -> String {
    needs.map_or_else(|| name.to_owned(), |capability| format!("{name} ({})", capability.name))
}

fn push(page: &mut String, line: std::fmt::Arguments<'_>) {
    // A string takes all that is written to it.
    let _ = page.write_fmt(line);
}

fn line(page: &mut String, row: &Row) {
    let policy = &row.policy;
    let admission = &policy.admission;
    let code = code(policy);
    let data = match row.flow {
        Flow::None => "",
        Flow::Answer | Flow::In => "in",
        Flow::List | Flow::Block | Flow::Out => "out",
    };
    let effect = match policy.effect {
        Effect::None => "",
        Effect::Read => "reads",
        Effect::Write => "writes",
        Effect::Rewrite => "rewrites",
    };
    let reserved = reserved(admission);
    let alua = match admission.alua {
        Alua::Active => "active",
        Alua::Standby => "active, standby",
        Alua::Settled => "all but transitioning",
        Alua::Every => "all",
    };
    let forwarded = place(admission.forwarded);
    let name = with_capability(policy.name, admission.needs);
    let (_, seconds) = admission.timeout.seconds();
    let clause = policy.clause;
    push(
        page,
        format_args!(
            "| {code} | {name} | {clause} | {data} | {effect} | {reserved} | {alua} | {forwarded} | {seconds} s |\n"
        ),
    );
}

/// Operation code and service action.
fn code(policy: &Policy) -> String {
    match policy.code.action {
        Some(action) if policy.code.is_long() => format!("{:02X}/{action:04X}", policy.code.op.0),
        Some(action) => format!("{:02X}/{action:02X}", policy.code.op.0),
        None => format!("{:02X}", policy.code.op.0),
    }
}

/// The reservations that stop a command.
fn reserved(admission: &Admission) -> &'static str {
    match (admission.spc2, admission.persistent) {
        (Gate::Passes, Persistent::Passes) => "",
        (Gate::Stops, Persistent::Passes) => "SPC-2",
        (_, Persistent::WriteExclusivePasses) => "SPC-2, exclusive access",
        (_, Persistent::Conflict) => "all",
    }
}

/// Where a command of a forwarded logical unit is executed.
fn place(forwarding: Forwarding) -> &'static str {
    match forwarding {
        Forwarding::Lunar => "Lunar",
        Forwarding::Device | Forwarding::DeviceThenAttention(_) => "device",
        Forwarding::Counted => "Lunar counts, device",
        Forwarding::Refused => "refused",
    }
}

/// The page of the commands of forwarded logical units, as `docs/pass-through-commands.md` holds it.
#[must_use]
pub fn forwarded() -> String {
    let mut page = String::from(
        "# Commands of forwarded devices\n\n\
         Generated from the command tables by `LUNAR_REGENERATE=1 cargo test -p lunar-scsi docs`. \
         [Pass-through](pass-through.md) explains the rules.\n\n\
         * where: `Lunar` executes the command itself, or (INQUIRY) sends it to the device and edits the returned \
         data; the `device` gets the command; or it is refused (ILLEGAL REQUEST, INVALID COMMAND OPERATION CODE) \
         unless the key `allow` of the volume has its operation code\n\
         * reserved: reservations of another initiator that stop the command\n\
         * read-only: whether a client with read-only access may not send it\n\
         * unit attention: the condition that is established for all other initiators if the command ends with GOOD\n\
         * time-out: in seconds, unless the device itself reports a longer one\n\n\
         A command that is not in the table of its device type goes to the device. It conflicts with all reservations, \
         needs write access, and has the longest time-out, because only the device knows its effect.\n",
    );
    for device in DEVICE_TYPES.iter().chain(FORWARDED_TYPES).chain(&[&OTHER]) {
        if device.forwarded.rows().is_empty() {
            continue;
        }
        let number = if device.code == OTHER.code { "all others".into() } else { format!("{:02X}h", device.code.0) };
        push(&mut page, format_args!("\n## {} (device type {number})\n\n", device.name));
        page.push_str("| opcode | command | standard | where | reserved | read-only | unit attention | time-out |\n");
        page.push_str("|---|---|---|---|---|---|---|---|\n");
        device.forwarded.rows().iter().for_each(|row| forwarded_line(&mut page, device, row));
    }
    page
}

fn forwarded_line(page: &mut String, device: &DeviceType, row: &Row) {
    let Policy { name, clause, admission, .. } = &row.policy;
    let (code, reserved, place) = (code(&row.policy), reserved(admission), place(admission.forwarded));
    let protected = if admission.write_protect == Gate::Stops { "refused" } else { "" };
    let told = match admission.forwarded {
        Forwarding::DeviceThenAttention(asc) => asc.text(),
        _ => "",
    };
    let seconds = match admission.forwarded {
        Forwarding::Lunar | Forwarding::Refused => String::new(),
        _ => timeouts::of(admission.timeout, device.code).as_secs().to_string(),
    };
    push(
        page,
        format_args!("| {code} | {name} | {clause} | {place} | {reserved} | {protected} | {told} | {seconds} |\n"),
    );
}

/// The example of the contributors' guide, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/adding-a-command.md")]
struct AddingACommand;

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_pages_in_the_repository_are_up_to_date() {
        for (name, text) in [("commands.md", commands()), ("pass-through-commands.md", forwarded())] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
            if std::env::var_os("LUNAR_REGENERATE").is_some() {
                std::fs::write(&path, &text).expect("docs/ is there");
            }
            let page = std::fs::read_to_string(&path).expect("the page is there");
            assert_eq!(page, text, "run LUNAR_REGENERATE=1 cargo test -p lunar-scsi docs");
        }
    }
}
