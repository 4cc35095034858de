//! The codes of the findings: one row for each, from which the output, the exit status and `docs/doctor.md` follow.

use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "severity")]
pub enum Severity {
    /// Something could be better.
    Advice,
    /// It may fail, or be slow or unsafe.
    Warning,
    /// It fails now, or data is in danger.
    Error,
}

impl Severity {
    /// Its word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Advice => "advice",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

macro_rules! areas {
    ($($name:ident, $word:literal, $title:literal;)*) => {
        /// The object of a check.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
        #[serde(rename_all = "lowercase")]
        #[schemars(rename = "area")]
        pub enum Area { $(#[doc = $title] $name,)* }

        impl Area {
            /// All areas, in their order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

areas! {
    State, "state", "State of the service";
    Configuration, "configuration", "Configuration";
    Stores, "stores", "Stores";
    Network, "network", "Network";
    Hosts, "hosts", "Hosts";
    Load, "load", "Load";
    Environment, "environment", "Environment";
}

macro_rules! codes {
    ($($area:ident { $($name:ident $word:literal $severity:ident $title:literal, $remedy:literal;)* })*) => {
        /// The code of a finding. Codes never change their meaning.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Code { $($(#[doc = $title] $name,)*)* }

        impl Code {
            /// All codes, in the order of the page.
            pub const ALL: &'static [Self] = &[$($(Self::$name,)*)*];

            /// Its word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $($(Self::$name => $word,)*)* }
            }

            /// The area to which it belongs.
            #[must_use]
            pub const fn area(self) -> Area {
                match self { $($(Self::$name => Area::$area,)*)* }
            }

            /// Its severity.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $($(Self::$name => Severity::$severity,)*)* }
            }

            /// The finding in general: one sentence.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $($(Self::$name => $title,)*)* }
            }

            /// The remedy.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $($(Self::$name => $remedy,)*)* }
            }
        }
    };
}

codes! {
    State {
        ServiceDown "service-down" Error "The service does not answer.",
            "Start it; if it ends again, its log has the reason (`journalctl -u lunar`).";
        Trouble "trouble" Error "The service reports a trouble.",
            "The trouble says what to do; `lunar status` shows all of them.";
        RestartPending "restart-pending" Advice "A change of the configuration takes effect after a restart.",
            "Restart the service when its clients permit.";
        StateNotWritable "state-not-writable" Error
            "The service cannot write its state folder: reservations and versions cannot be stored.",
            "Give the folder to the user of the service.";
        StateFull "state-full" Error
            "The file system of the state folder is almost full: reservations and versions cannot be stored.",
            "Make room on it.";
    }
    Configuration {
        ConfigurationInvalid "configuration-invalid" Error
            "The configuration file has mistakes: the service does not start with it.",
            "Correct them at the lines that are named.";
        SecretReadable "secret-readable" Error "Other users can read a secret.",
            "Take the permissions of other users away, and change the secret if they may have read it.";
        SecretBlank "secret-blank" Warning
            "A secret ends with a blank, which is part of the secret: hosts rarely have it.",
            "Remove the blank.";
        CertificateExpired "certificate-expired" Error "The certificate of an API listener has expired.",
            "Renew it, then make the service read it.";
        CertificateExpires "certificate-expires" Warning
            "The certificate of an API listener expires within 30 days.",
            "Renew it, then make the service read it.";
        TargetWithoutPortals "target-without-portals" Warning "No portal leads to a target.",
            "Create a portal in one of its portal groups.";
        TargetOpen "target-open" Warning
            "Every client of the network may use the volumes of a target without authentication.",
            "Name the clients (`initiators`) or their networks (`sources`), or ask for authentication.";
        UsersWithoutAuthentication "users-without-authentication" Warning
            "A target has users, but does not require authentication.",
            "Ask for authentication.";
        DiscoveryDiffers "discovery-differs" Advice
            "All targets ask for authentication, and discovery does not: every client sees their names.",
            "Ask for authentication in discovery, too, if all clients can do it.";
        DiscoveryUsersDiffer "discovery-users-differ" Advice
            "Discovery and a target accept no user in common: a host that has one user fails in one of the two.",
            "Let the users of the target do discovery, too, unless the hosts have both users.";
        LunZeroMissing "lun-zero-missing" Advice
            "A group maps no volume to LUN 0: Windows, boot firmware and old initiators may find none of its LUNs.",
            "Map a volume to LUN 0, then have the hosts scan again.";
        NoOptimizedPath "no-optimized-path" Warning
            "All paths to a target are non-optimized or unavailable: hosts choose a path at random, or have none.",
            "Make one of its portal groups active/optimized.";
        VolumeUnmapped "volume-unmapped" Advice "No group maps a volume: no client can use it.",
            "Map it to a LUN, or delete it.";
        GroupUnused "group-unused" Advice "A group maps no volume: its clients see no LUN.",
            "Map a volume, or delete the group.";
        UserUnused "user-unused" Advice "No target, group or discovery refers to a user.",
            "Add the user to a target, or delete it.";
    }
    Stores {
        StoreMissing "store-missing" Error "The file or device of a volume is not there.",
            "Mount its file system, or bring the device back; a file that was deleted comes from a backup.";
        StoreRefused "store-refused" Error "The service may not open the file or device of a volume.",
            "Give the user of the service the permission.";
        CephMissing "ceph-missing" Error "`lunar-rbd` or librbd, which serve images of Ceph, is missing.",
            "Install `lunar-rbd` in the folder of `lunar`, the library (`apt install librbd1`), and restart Lunar.";
        FileSystemReadOnly "file-system-read-only" Error
            "The file system of a volume is read-only: writes of clients fail.",
            "Look for the reason (`dmesg`): file systems become read-only after errors. Then mount it writable.";
        FileSystemFull "file-system-full" Error
            "The file system of a volume has less than 1 % free: writes of clients fail.",
            "Make room on it, or enlarge it.";
        FileSystemAlmostFull "file-system-almost-full" Warning
            "The file system of a volume has less than 10 % free.",
            "Make room on it, or enlarge it.";
        OverCommitted "over-committed" Warning
            "The volumes of a file system may grow by more than it has free: then writes of clients fail.",
            "Enlarge the file system, or move or delete volumes.";
        VolatileFileSystem "volatile-file-system" Warning
            "The file of a volume is in memory: its data is lost when this machine restarts.",
            "Move the file to a disk.";
        UnsuitedFileSystem "unsuited-file-system" Warning
            "The file of a volume is on a network or an overlay file system, which is slow, or flushes to no disk.",
            "Move the file to a local file system such as XFS or ext4.";
        NoHolePunching "no-hole-punching" Advice
            "The file system of a volume cannot free space inside of a file: discards of clients free nothing.",
            "Move the file to a file system such as XFS, ext4 or Btrfs.";
        DirectUnsupported "direct-unsupported" Warning
            "A volume has `direct`, and its file system or device does not support it with the blocks of the volume.",
            "Switch `direct` off, or use blocks of 4096 bytes.";
        BarriersOff "barriers-off" Error
            "The file system of a volume is mounted without barriers: a power cut loses flushed data.",
            "Mount it with barriers.";
        WriteCacheHidden "write-cache-hidden" Error
            "A disk has a volatile write cache, and the kernel takes it for none: a power cut loses flushed data.",
            "Tell the kernel that the cache is volatile.";
        DeviceErrors "device-errors" Warning "A disk below a volume has reported errors.",
            "Check the disk, and replace it if the number grows.";
        RaidDegraded "raid-degraded" Error "A RAID below a volume lacks disks.",
            "Replace the failed disk.";
        DeviceInUse "device-in-use" Error
            "The block device of a volume is mounted, or part of another device: both users would destroy its data.",
            "Unmount it, or take it out of the other device, before the service opens it.";
        PartitionMisaligned "partition-misaligned" Warning
            "A partition does not begin at a physical block of its disk: each write becomes two.",
            "Partition the disk anew, from a multiple of 1 MiB.";
    }
    Network {
        PortalUnreachable "portal-unreachable" Error "No connection to a portal is possible from this machine itself.",
            "Check whether Lunar listens there (`ss -ltn`), and whether a packet filter blocks the port.";
        PortTaken "port-taken" Error
            "The service does not run, and another program listens at the address of a portal.",
            "End the other program: often it is another target, such as that of the kernel.";
        PortForbidden "port-forbidden" Error "The service may not listen at the port of a portal.",
            "Lower the first port that all users may use, or choose another port.";
        AddressMissing "address-missing" Error "No network interface has the address of a portal.",
            "Add the address to an interface, or change the portal.";
        AdvertisedMissing "advertised-missing" Advice
            "No network interface has the address that a portal advertises: it must be translated on the way.",
            "Check it from a host, or remove `advertise`.";
        DuplicateAddress "duplicate-address" Warning "Two network interfaces of this machine have the same address.",
            "Remove it from one of them.";
        InterfaceDown "interface-down" Warning "The network interface of a portal is down.",
            "Bring it up, and check its cable.";
        InterfaceErrors "interface-errors" Warning "The network interface of a portal loses packets.",
            "Check cable, switch port and ring sizes (`ethtool -S`).";
        MtuDiffers "mtu-differs" Advice "The network interfaces of the portals have different MTUs.",
            "Give them the MTU of their network, and check the whole path with large packets.";
        ArpFlux "arp-flux" Warning
            "Two interfaces are in the same network and answer for the addresses of each other: paths share a cable.",
            "Make each interface answer for its own addresses only.";
        CongestionControl "congestion-control" Advice
            "The congestion control of TCP is not one of those that suit a storage network.",
            "Use `cubic`, the default of Linux.";
        Retransmits "retransmits" Warning "More than one TCP segment of a thousand was sent again.",
            "Check cables, switches and the MTU of the whole path.";
    }
    Hosts {
        SinglePath "single-path" Warning
            "A host has one path to a target that has portals at several addresses.",
            "Log in to the other portals on the host, and use multipath there.";
        LoginLoop "login-loop" Warning
            "A host logs in again and again: its connection breaks, or two machines have the same name.",
            "See whether the sources are one machine; give each machine a name of its own.";
        SilentHosts "silent-hosts" Advice
            "Connections were closed because their hosts were silent: they did not answer a NOP-In, or sent no Keep \
            Alive.",
            "If the hosts were not switched off: look for frozen machines, and for networks that drop packets \
            silently.";
        BlockSizeEsxi "block-size-esxi" Warning
            "A volume with blocks of 4096 bytes is mapped for ESXi, which uses such blocks on local disks only.",
            "Use blocks of 512 bytes before the volume has data: partitions on it count in blocks.";
        SizeUnread "size-unread" Warning
            "A volume was resized, and clients that were told have not read its new size: they use the old one.",
            "Have these clients scan again: `lunar explain volume` has the commands.";
        CommandsAborted "commands-aborted" Warning
            "Hosts aborted commands: they waited for longer than the hosts allow.",
            "Compare the latencies of the volumes; look for a slow disk or a network that loses packets.";
    }
    Load {
        CoreSaturated "core-saturated" Warning "One core is saturated while another one is idle.",
            "Give the host more sessions, or more I/O queues: connections are spread over the cores.";
        CoresSaturated "cores-saturated" Warning "All cores are saturated, and this machine has more processors.",
            "Serve with more cores.";
        CoreStalled "core-stalled" Warning "A core was occupied by one turn of its loop for more than 100 ms.",
            "Look for throttled or overloaded processors, and for swapped memory.";
        SlotsShort "slots-short" Warning "Commands were refused because too many were in progress (TASK SET FULL).",
            "Lower the queue depth on the hosts.";
        MemoryShort "memory-short" Warning "Commands were refused because the memory for data was in use (BUSY).",
            "Give each core more memory.";
        Misaligned "misaligned" Warning
            "More than a tenth of the reads and writes of a volume are not aligned to 4 KiB: each costs two accesses.",
            "Align the partitions on the host to 1 MiB.";
        DigestErrors "digest-errors" Warning "Headers or data arrived with a wrong digest.",
            "Look for a network card or switch that damages packets; switch its offloads off one by one.";
    }
    Environment {
        DescriptorsLow "descriptors-low" Warning
            "The service may open fewer files than all sessions of its limits need.",
            "Raise the limit of the unit, or lower the number of sessions.";
        MemlockLow "memlock-low" Warning
            "The service may lock less memory than its cores register with the kernel: direct I/O is slower.",
            "Raise the limit of the unit.";
        IoUringDisabled "io-uring-disabled" Warning
            "The kernel does not allow io_uring to the service: it uses epoll and threads, which is slower.",
            "Allow it.";
        KernelOld "kernel-old" Advice "The kernel is older than 5.15: io_uring lacks operations there.",
            "Use a newer kernel.";
        ClockSlow "clock-slow" Warning "The clock of the kernel is slow to read, and every turn of a core reads it.",
            "Use the clock of the processor (`tsc`), if the kernel finds it stable.";
        MemorySwapped "memory-swapped" Warning "Memory of the service was swapped out: commands wait for it.",
            "Forbid it for the unit.";
        CpuThrottled "cpu-throttled" Warning "The service was stopped because it had used its share of the processors.",
            "Remove the quota of the unit.";
        GovernorPowersave "governor-powersave" Advice "Processors stay at their lowest frequency.",
            "Use the governor `performance` or `schedutil`.";
        HugePagesOff "huge-pages-off" Advice
            "The kernel gives no huge pages, with which volumes in memory would be faster.",
            "Allow them to programs that ask for them.";
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

const HEAD: &str = "\
# Doctor

Generated from the table in `control/src/doctor/table.rs` with `LUNAR_REGENERATE=1 cargo test -p lunar fresh`.

`lunar doctor` examines a Lunar target and its machine, and prints findings: each with a code, its subject, the measured
numbers, and a command that mends it or shows more. It changes nothing.

    lunar doctor                      # as root: all checks
    lunar doctor --json               # for programs
    lunar doctor --config FILE        # another configuration than that of the running service
    lunar doctor --url https://storage.example:3280     # from elsewhere: what the API tells

* The view *Health* of [the page](web.md), and `GET /v1/doctor`, show the findings of the service itself: they look at
  its state, its configuration, its hosts and its load. The rest needs the command.
* The findings of the service itself are `lunar_finding` in [the metrics](metrics.md), with the same codes. It examines
  itself once a minute for that.
* It uses the API like the other commands, and the rights of the caller for the rest. A check that cannot be made is
  named at the end, with the reason. Run it as root for all of them.
* Without a running service it reads the configuration file, and checks the machine, the stores and the portals.
* It watches the load for two seconds; `--interval 30s` watches for longer. Counters of refused or aborted commands are
  those since the start of the service.
* A check of a file system writes a file without a name, which ends with the check.

| exit status | meaning |
|---|---|
| 0 | no findings, or advice only |
| 1, 2 | the examination failed, or the command line is wrong |
| 4 | the API refuses the caller |
| 5 | the worst finding is a warning |
| 6 | there is an error |
";

/// The reference page.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(HEAD);
    for area in Area::ALL {
        page.push_str(&format!("\n## {}\n\n| code | severity | finding | remedy |\n|---|---|---|---|\n", area.title()));
        for code in Code::ALL.iter().filter(|code| code.area() == *area) {
            let (severity, title, remedy) = (code.severity().word(), code.title(), code.remedy());
            page.push_str(&format!("| `{code}` | {severity} | {title} | {remedy} |\n"));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_unique_words_with_sentences() {
        let mut words = BTreeSet::new();
        for code in Code::ALL {
            assert!(words.insert(code.word()), "{code} is there twice");
            assert!(code.word().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{code}");
            for text in [code.title(), code.remedy()] {
                assert!(text.ends_with('.') && !text.contains(['|', '\n']), "{code}: {text}");
            }
        }
        assert!(page().lines().filter(|line| line.starts_with("| `")).count() == Code::ALL.len());
    }
}
