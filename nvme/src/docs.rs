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
         Generated from the command table by `LUNAR_REGENERATE=1 cargo test -p lunar-nvme docs`.\n\n\
         Reserved: reservations of another host or of an initiator that stop the command.\n\n\
         | queue | opcode | command | standard | medium | reserved |\n\
         |---|---|---|---|---|---|\n",
    );
    TABLE.iter().for_each(|row| line(&mut page, row));
    let (major, minor) = (VERSION >> 16, VERSION >> 8 & 0xff);
    push(
        &mut page,
        format_args!(
            "\n## Version\n\nControllers report version {major}.{minor}. Many features of later versions are \
             supported, but these mandatory ones are missing:\nCAP.CRMS and CRTO, the Feature Identifiers Supported \
             and Effects log page, and the command scopes in the Commands\nSupported and Effects log page.\n"
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
         A namespace has one format: blocks of its volume's size, without metadata. The namespace of a protected \
         volume may be shown with\nprotection information of type 1, 2 or 3 (16b guard, no storage tag), as eight \
         bytes of metadata behind each block: see\n[protection information](protection.md).\n",
    );
    page.push_str(HOSTS);
    page
}

/// The requirements of Connect.
const HOSTS: &str = "
## Hosts

Connect refuses the following hosts with Connect Invalid Parameters (1/82h); the audit log has the reason.

* A host identifier of zero: CTRATT.ZHIDS is 0. All such hosts would be one registrant and would pass each other's
  reservations. Linux has it where the firmware reports no UUID, such as in QEMU without `-uuid`: write a UUID to
  `/etc/nvme/hostid`, or give one with `nvme connect --hostid`.
* A host NQN that does not begin with `nqn.` or contains control characters, and an empty one. SPDK's `spdk_nvme_perf`
  sends an empty one unless its transport identifier has `hostnqn:`.

A source (an IPv4 address, or an IPv6 network of 64 bits) has 64 discovery controllers at most; one more ends the oldest
of them, so a new discovery always gets one. A discovery controller whose host sets no keep-alive time ends after 120 s
without a command. One eighth of the I/O controllers is reserved for sources that have few.

A host that connects again gets the controller identifier that it had before, if no other controller has it. This holds
for the last 4,096 I/O controllers that have ended.

Hosts, and the queues of a host, share the slots of a core: a command beyond the share waits, and commands of admin
queues have slots of their own. A connection whose host does not send requested data (R2T) for 60 s is closed.
";

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
        Effect::Rewrite => "rewrites",
        Effect::Inventory => "namespace inventory",
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
