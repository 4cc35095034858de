//! The table of codes of troubles. A trouble is something that is wrong now; a code is one line here with its paragraph
//! for the documentation.

use lunar_core::access::refusal::{Entry, RefusalCode};

macro_rules! troubles {
    ($($name:ident = $word:literal, $words:literal, $paragraph:literal;)*) => {
        /// The code of a trouble.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum TroubleCode { $(#[doc = $words] $name,)* }

        impl TroubleCode {
            /// All codes, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its line in the table.
            #[must_use]
            pub const fn entry(self) -> Entry {
                match self { $(Self::$name => Entry { word: $word, words: $words, paragraph: $paragraph },)* }
            }
        }
    };
}

troubles! {
    Starting = "starting", "Lunar starts, and serves nothing yet.",
        "Lunar waits for a volume or an address that it served before: for `patience` in `[server]` at most. The \
        message names it. If it does not become available, Lunar starts without it and reports it as `unavailable`.";
    Unavailable = "unavailable", "A configured object is not served.",
        "The file, the device or the address of the object cannot be used: a file system is not mounted, a device is \
        missing or in use by another program, the user that runs Lunar may not open it. The message contains \
        the error of the operating system. The other objects are served meanwhile.\n\n\
        A volume that was served before stays a LUN and a namespace, with its identity and its reservations: \
        initiators get NOT READY, TARGET PORT IN UNAVAILABLE STATE, and hosts Asymmetric Access Inaccessible. When its \
        store is there again, it is served by itself if it is certainly the one before: a file with the number that \
        Lunar gave it, the time of its creation and its device, or a device with its world wide name, or an image of \
        Ceph with its number in the cluster. If another store is at the place, if it cannot be told from others, or if \
        the volume had a write cache when its store went away, `lunar explain volume` says so, and `lunar volume \
        accept` serves the store that is there.\n\n\
        Other objects, and volumes that were never served by this version, are served by `lunar apply` when the cause \
        is removed.";
    ClosedPortal = "closed-portal", "Lunar no longer listens at a portal.",
        "A change that failed closed the portal, and its address was taken meanwhile. `ss -ltnp` shows the program \
        that has the address. End it, then `lunar apply`.";
    RefusedEdit = "refused-edit", "The configuration file was edited, and cannot be put in force.",
        "The message lists the mistakes with their lines. The configuration before the edit stays in force. Correct \
        the file and run `lunar apply`, or restore the text in force: `lunar config show` prints it.";
    PendingEdit = "pending-edit", "The configuration file was edited, and is not in force.",
        "`lunar plan` shows what the file would change, `lunar apply` puts it in force. A restart would do so, too.";
    UnreadableFile = "unreadable-file", "The configuration file cannot be read.",
        "The running configuration stays in force, and the next start would fail. Make the file readable to the user \
        that runs Lunar.";
    SecretsInHistory = "secrets-in-history", "Old versions of the configuration contain secrets.",
        "A secret was in the configuration file itself, and was moved to a file of its own later. The stored \
        versions still have it. The message says how to remove them.";
    Truncated = "truncated", "The file or device of a volume became smaller.",
        "The data behind its end is lost, and reads of it fail. Something outside of Lunar cut the file or replaced \
        the device. Stop the clients, and restore the volume from a copy.";
    Deleted = "deleted", "The file of a volume was deleted.",
        "Lunar still serves the deleted file; its data ends when Lunar ends. Copy it away now: `lunar volume copy` \
        makes a file of it.";
    Moved = "moved-file", "The path of a volume leads to another file.",
        "The file was renamed or another one was put in its place. Lunar serves the old file until it restarts, and \
        refuses changes of the volume that would open the other one. Put the file back, or change `path` of the \
        volume.";
    Gone = "gone", "The device of a volume cannot be reached.",
        "The device was removed, or its driver has given it up. The kernel's log (`dmesg`) says why. A configured \
        volume is reported as `unavailable` then.";
    LostWrites = "lost-writes", "Data could not be written to the medium.",
        "The kernel reported an error when it wrote data of the page cache; flushes of clients fail, so that they \
        know. Check the device (`dmesg`, `smartctl -a`), and the data on the clients.";
    MediumErrors = "medium-errors", "Commands end with medium errors.",
        "The device returns errors. `dmesg` and `smartctl -a` say more; move the volume to another device.";
    NoSpace = "no-space", "Writes fail because there is no space.",
        "The file system or the pool of a thin volume is full. Clients see a medium that refuses writes; many turn \
        their file systems read-only. Make room (`df`), enlarge it, or move volumes. Clients that discard unused \
        blocks (`fstrim`) give space back.";
    OverCommitted = "over-committed", "A file system, or another pool, has promised more space than it has.",
        "The thin volumes on it may grow to more than its size. Nothing fails yet. Enlarge it, or move volumes, \
        before writes fail.";
    LowSpace = "low-space", "Less than `space-threshold` of a file system, or of another pool, is available.",
        "Writes to the volumes on it will fail when it is full. Their clients were notified: initiators by the unit \
        attention THIN PROVISIONING SOFT THRESHOLD REACHED, hosts by the warning of the available spare in the SMART / \
        Health log. Make room, enlarge the pool, or have clients discard unused blocks (`fstrim`).";
    Front = "front", "A transport could not do all that is configured.",
        "The message contains the error, such as a socket that could not be created.";
    CertificateExpires = "certificate-expires", "The certificate of an API listener ends soon, or has ended.",
        "Clients refuse an expired certificate. Lunar reports it from 14 days before its end. Renew the \
        certificate, and run `lunar apply`, which reads it; connections that exist go on.";
    Isns = "isns", "The iSNS server does not have the targets.",
        "The server does not answer or refuses the registration. Clients that look for targets there do not find them; \
        clients that know the address do.";
    DuplicateName = "duplicate-name", "Two machines log in with one initiator name.",
        "An iSCSI session belongs to a name: a login of one machine ends the session of the other, which logs in \
        again, and so on. Both lose commands and time. Virtual machines made from one image are the usual cause, \
        because the name is in a file of the image. Give each machine a name of its own: on Linux, write \
        `InitiatorName=` and the output of `iscsi-iname` to `/etc/iscsi/initiatorname.iscsi`, and restart `iscsid`; \
        on Windows, `Set-InitiatorPort`; on ESXi, `esxcli iscsi adapter set`. Add the new name to the group. Lunar \
        reports it when a login from another address has ended a session three times within ten minutes, and for ten \
        minutes after that.";
    ReplacedProgram = "replaced-program", "The file of the program was replaced.",
        "An update installed another version, and the old one runs. Restart Lunar when its clients permit.";
}

impl TroubleCode {
    /// The word of the code: in metrics, in the API and in the documentation.
    #[must_use]
    pub const fn word(self) -> &'static str {
        self.entry().word
    }
}

const HEAD: &str = "\
# Troubleshooting

Generated from the tables of codes in `core/src/access/refusal.rs` and `control/src/trouble.rs` with
`LUNAR_REGENERATE=1 cargo test -p lunar fresh`.

| question | command |
|---|---|
| what is wrong now? | `lunar status` lists the troubles, each with its remedy |
| why can this client not log in? | `lunar explain login CLIENT` |
| who was refused, and why? | `lunar explain refusal`, then `lunar explain refusal N` |
| why does the client not see the disk? | `lunar explain lun CLIENT LUN` |
| which path is missing? | `lunar explain path CLIENT VOLUME` |
| what is the state of the volume, who uses it? | `lunar explain volume VOLUME` |
| who holds the reservation? | `lunar explain reservation VOLUME` |
| where does the time go? | `lunar explain slow VOLUME`, `lunar log --slow` |

`lunar explain` decides with the code that decides about real logins, without any effect. It says at which step a login
ends, what comes close (a similar name, another group, a removed target), and which command mends it. With `--json` it
prints the resource of [the API](api.md). Refused logins are kept across restarts: 2048 different ones, in the state
folder.
";

/// The page on troubleshooting.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(HEAD);
    let mut section = |title: &str, intro: &str, entries: Vec<Entry>| {
        page.push_str(&format!("\n## {title}\n\n{intro}\n"));
        for Entry { word, words, paragraph } in entries {
            page.push_str(&format!("\n### {word}\n\n{words} {paragraph}\n"));
        }
    };
    section(
        "Refused logins",
        "The code of a refusal is `reason` of the metric `lunar_logins_refused_total` and `code` in the API.",
        RefusalCode::ALL.iter().map(|code| code.entry()).collect(),
    );
    section(
        "Troubles",
        "The code of a trouble is `code` of the metric `lunar_trouble` and `kind` in the API.",
        TroubleCode::ALL.iter().map(|code| code.entry()).collect(),
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_code_has_one_paragraph_in_the_page_and_a_heading_of_its_own() {
        let entries = TroubleCode::ALL.iter().map(|code| code.entry());
        let refusals = RefusalCode::ALL.iter().map(|code| code.entry());
        let page = page();
        let mut words = BTreeSet::new();
        for Entry { word, words: sentence, paragraph } in entries.clone().chain(refusals.clone()) {
            assert!(words.insert(word) && sentence.ends_with('.') && paragraph.ends_with('.'), "{word}");
        }
        for Entry { word, paragraph, .. } in entries.chain(refusals) {
            let heading = format!("\n### {word}\n");
            assert!(page.contains(&heading) && page.contains(paragraph) && paragraph.len() > 60, "{word}");
        }
    }
}
