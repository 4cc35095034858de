//! The page of supported commands, made from the tables.

use crate::controller::VERSION;
use crate::features::FEATURES;
use crate::log::PAGES;
use crate::policy::{Effect, Persistent, Set, Transport};
use crate::row::Row;
use crate::table::TABLE;
use std::fmt::Write;

/// The page, as `docs/nvme.md` holds it.
#[must_use]
pub fn commands() -> String {
    let mut page = String::from(
        "# Supported NVMe commands\n\n\
         Made from the command table; `LUNAR_REGENERATE=1 cargo test -p lunar-nvme docs` writes it anew.\n\n\
         Reserved: what stops the command while another host, or an iSCSI initiator, holds a reservation.\n\n\
         | queue | opcode | command | standard | medium | reserved |\n\
         |---|---|---|---|---|---|\n",
    );
    TABLE.iter().for_each(|row| line(&mut page, row));
    let (major, minor) = (VERSION >> 16, VERSION >> 8 & 0xff);
    push(
        &mut page,
        format_args!(
            "\n## Version\n\nControllers say that they are of version {major}.{minor}. Much of later ones is there, \
             but not all that they want of every controller:\nCAP.CRMS with CRTO, the log page Feature Identifiers \
             Supported and Effects, the scopes of commands in the one of effects.\n"
        ),
    );
    page.push_str("\n## Log pages\n\n| page | name |\n|---|---|\n");
    for row in PAGES {
        push(&mut page, format_args!("| {:02X} | {} |\n", row.id, row.name));
    }
    page.push_str("\n## Features\n\n| feature | name | can be set |\n|---|---|---|\n");
    for row in FEATURES {
        let changes = match (row.changes, row.transport) {
            (true, Transport::Memory) => "yes, vfio-user only",
            (true, _) => "yes",
            (false, _) => "",
        };
        push(&mut page, format_args!("| {:02X} | {} | {changes} |\n", row.id, row.name));
    }
    page.push_str(
        "\n## Formats\n\n\
         A namespace has one format: blocks of its volume's size, without metadata. That of a protected volume may be \
         shown with\nprotection information of type 1, 2 or 3 (16b guard, no storage tag), as eight bytes of metadata \
         behind each block: see\n[protection information](protection.md).\n",
    );
    page
}

fn push(page: &mut String, line: std::fmt::Arguments<'_>) {
    // A string takes all that is written to it.
    let _ = page.write_fmt(line);
}

fn line(page: &mut String, row: &Row) {
    let policy = &row.policy;
    let set = match policy.code.set {
        Set::Admin if policy.admission.transport == Transport::Memory => "admin, vfio-user only",
        Set::Admin => "admin",
        Set::Io => "I/O",
        Set::Fabrics => "fabrics",
    };
    let effect = match policy.effect {
        Effect::Content => "writes",
        Effect::Rewrite => "renews",
        Effect::Inventory => "comes and goes",
        Effect::None | Effect::Capabilities => "",
    };
    let reserved = match policy.admission.persistent {
        Persistent::Passes => "",
        Persistent::WriteExclusivePasses => "exclusive access",
        Persistent::Conflict => "all",
    };
    let (name, clause, op) = (policy.name, policy.clause, policy.code.op);
    push(page, format_args!("| {set} | {op:02X} | {name} | {clause} | {effect} | {reserved} |\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_page_in_the_repository_is_fresh() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/nvme.md");
        if std::env::var_os("LUNAR_REGENERATE").is_some() {
            std::fs::write(&path, commands()).expect("docs/ is there");
        }
        let page = std::fs::read_to_string(&path).expect("docs/nvme.md is there");
        assert_eq!(page, commands(), "run LUNAR_REGENERATE=1 cargo test -p lunar-nvme docs");
    }
}
