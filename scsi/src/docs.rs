//! The page of supported commands, made from the tables.

use crate::log;
use crate::mode;
use crate::table::{Alua, Effect, Flow, Gate, Needs, Persistent, Reach, Row, TABLE};
use crate::vpd;
use std::fmt::Write;

/// The page, as `docs/commands.md` holds it.
#[must_use]
pub fn commands() -> String {
    let mut page = String::from(
        "# Supported SCSI commands\n\n\
         Made from the command table; `LUNAR_REGENERATE=1 cargo test -p lunar-scsi docs` writes it anew.\n\n\
         Reserved: what stops the command while another initiator holds a reservation. \
         Units: disks are fixed or removable ones, drives are those for CD and DVD. \
         ALUA: the states of asymmetric access in which it runs.\n\n\
         | opcode | command | standard | units | data | medium | reserved | ALUA | time-out |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    TABLE.iter().for_each(|row| line(&mut page, row));
    page.push_str("\n## Vital product data\n\n| page | name | standard | units |\n|---|---|---|---|\n");
    for row in vpd::PAGES {
        let units = units(row.reach);
        push(&mut page, format_args!("| {:02X} | {} | {} | {units} |\n", row.page, row.name, row.clause));
    }
    page.push_str("\n## Mode pages\n\n| page | name | standard | units |\n|---|---|---|---|\n");
    for row in mode::PAGES {
        let (code, units) = (format!("{:02X}/{:02X}", row.page, row.subpage), units(row.reach));
        push(&mut page, format_args!("| {code} | {} | {} | {units} |\n", row.name, row.clause));
    }
    page.push_str("\n## Log pages\n\n| page | name | standard |\n|---|---|---|\n");
    for row in log::PAGES {
        push(&mut page, format_args!("| {:02X}/{:02X} | {} | {} |\n", row.page, row.subpage, row.name, row.clause));
    }
    page
}

fn units(reach: Reach) -> &'static str {
    match reach {
        Reach::Disk => "disks",
        Reach::Optical => "drives",
        Reach::Unit | Reach::WellKnown | Reach::Anywhere => "all",
    }
}

fn push(page: &mut String, line: std::fmt::Arguments<'_>) {
    // A string takes all that is written to it.
    let _ = page.write_fmt(line);
}

fn line(page: &mut String, row: &Row) {
    let policy = &row.policy;
    let gates = &policy.gates;
    let code = match policy.code.action {
        Some(action) if policy.code.is_long() => format!("{:02X}/{action:04X}", policy.code.op.0),
        Some(action) => format!("{:02X}/{action:02X}", policy.code.op.0),
        None => format!("{:02X}", policy.code.op.0),
    };
    let data = match row.flow {
        Flow::None => "",
        Flow::Answer | Flow::In => "in",
        Flow::List | Flow::Block | Flow::Out => "out",
    };
    let effect = match policy.effect {
        Effect::None => "",
        Effect::Read => "reads",
        Effect::Write => "writes",
        Effect::Renew => "renews",
    };
    let reserved = match (gates.spc2, gates.persistent) {
        (Gate::Passes, Persistent::Passes) => "",
        (Gate::Stops, Persistent::Passes) => "SPC-2",
        (_, Persistent::WriteExclusivePasses) => "SPC-2, exclusive access",
        (_, Persistent::Conflict) => "all",
    };
    let alua = match gates.alua {
        Alua::Active => "active",
        Alua::Standby => "active, standby",
        Alua::Settled => "all but transitioning",
        Alua::Every => "all",
    };
    let name = match gates.needs {
        Needs::Nothing => policy.name.to_owned(),
        Needs::Provisioning => format!("{} (thin units)", policy.name),
        Needs::AtomicWrites => format!("{} (stores that promise it)", policy.name),
        Needs::TypeTwo => format!("{} (protection type 2)", policy.name),
    };
    let (_, seconds) = gates.timeout.seconds();
    let (clause, units) = (policy.clause, units(gates.reach));
    push(
        page,
        format_args!(
            "| {code} | {name} | {clause} | {units} | {data} | {effect} | {reserved} | {alua} | {seconds} s |\n"
        ),
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
    fn the_page_in_the_repository_is_fresh() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/commands.md");
        if std::env::var_os("LUNAR_REGENERATE").is_some() {
            std::fs::write(&path, commands()).expect("docs/ is there");
        }
        let page = std::fs::read_to_string(&path).expect("docs/commands.md is there");
        assert_eq!(page, commands(), "run LUNAR_REGENERATE=1 cargo test -p lunar-scsi docs");
    }
}
