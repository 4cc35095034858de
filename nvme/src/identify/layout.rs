//! Layouts of the Identify data structures, field by field. All are 4,096 bytes unless their type says otherwise; a
//! field that Lunar never fills is part of a reserved one.

use super::IDENTIFY_LEN;
use lunar_core::wire::le;
use zerocopy::{FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Identify Controller, CNS 01h (NVMe Base 2.0 figure 275).
#[derive(Clone, Debug, IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Controller {
    reserved_0: [u8; 4],
    /// SN: ASCII, padded with spaces.
    pub(crate) serial_number: [u8; 20],
    /// MN: ASCII, padded with spaces.
    pub(crate) model_number: [u8; 40],
    /// FR: ASCII, padded with spaces.
    pub(crate) firmware_revision: [u8; 8],
    reserved_72: [u8; 4],
    /// CMIC
    pub(crate) multi_path: u8,
    /// MDTS: largest transfer as a power of two of the smallest memory page.
    pub(crate) transfer_exponent: u8,
    /// CNTLID
    pub(crate) controller_id: le::U16,
    /// VER
    pub(crate) version: le::U32,
    reserved_84: [u8; 8],
    /// OAES
    pub(crate) async_events: le::U32,
    /// CTRATT
    pub(crate) attributes: le::U32,
    reserved_100: [u8; 11],
    /// CNTRLTYPE: 1 is an I/O controller, 2 a discovery controller.
    pub(crate) controller_type: u8,
    reserved_112: [u8; 144],
    /// OACS
    pub(crate) admin_commands: le::U16,
    /// ACL, 0-based.
    pub(crate) abort_limit: u8,
    /// AERL, 0-based.
    pub(crate) async_event_limit: u8,
    /// FRMW
    pub(crate) firmware_updates: u8,
    /// LPA
    pub(crate) log_page_attributes: u8,
    /// ELPE, 0-based.
    pub(crate) error_log_entries: u8,
    reserved_263: [u8; 17],
    /// TNVMCAP, bytes.
    pub(crate) total_capacity: le::U128,
    /// UNVMCAP, bytes.
    pub(crate) unallocated_capacity: le::U128,
    reserved_312: [u8; 4],
    /// EDSTT, minutes.
    pub(crate) self_test_time: le::U16,
    /// DSTO
    pub(crate) self_test_options: u8,
    reserved_319: u8,
    /// KAS, units of 100 milliseconds.
    pub(crate) keep_alive: le::U16,
    reserved_322: [u8; 6],
    /// SANICAP
    pub(crate) sanitize: le::U32,
    reserved_332: [u8; 10],
    /// ANATT, seconds.
    pub(crate) ana_transition_time: u8,
    /// ANACAP
    pub(crate) ana_capabilities: u8,
    /// ANAGRPMAX
    pub(crate) ana_group_max: le::U32,
    /// NANAGRPID
    pub(crate) ana_groups: le::U32,
    /// PELS, units of 64 KiB.
    pub(crate) persistent_event_log_size: le::U32,
    reserved_356: [u8; 156],
    /// SQES, CQES: exponents of the entry sizes, smallest and largest.
    pub(crate) entry_sizes: [u8; 2],
    /// MAXCMD
    pub(crate) commands_max: le::U16,
    /// NN
    pub(crate) namespaces: le::U32,
    /// ONCS
    pub(crate) nvm_commands: le::U16,
    /// FUSES
    pub(crate) fused: le::U16,
    /// FNA
    reserved_524: u8,
    /// VWC
    pub(crate) volatile_write_cache: u8,
    /// AWUN, 0-based blocks.
    pub(crate) atomic_write: le::U16,
    /// AWUPF, 0-based blocks.
    pub(crate) atomic_write_power_fail: le::U16,
    reserved_530: [u8; 2],
    /// ACWU, 0-based blocks.
    pub(crate) atomic_compare_write: le::U16,
    /// OCFS
    pub(crate) copy_formats: le::U16,
    /// SGLS
    pub(crate) sgl: le::U32,
    /// MNAN
    pub(crate) namespaces_max: le::U32,
    reserved_544: [u8; 224],
    /// SUBNQN: terminated by a zero byte.
    pub(crate) subsystem_nqn: [u8; 256],
    reserved_1024: [u8; 768],
    /// IOCCSZ, units of 16 bytes.
    pub(crate) command_capsule_size: le::U32,
    /// IORCSZ, units of 16 bytes.
    pub(crate) response_capsule_size: le::U32,
    reserved_1800: [u8; 3],
    /// MSDBD
    pub(crate) sgl_descriptors_max: u8,
    /// OFCS
    pub(crate) fabrics_commands: le::U16,
    reserved_1806: [u8; 2290],
}

/// One LBA format of a namespace (NVM Command Set 1.0 4.1.5).
#[derive(Clone, Copy, Debug, IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct LbaFormat {
    /// MS: bytes of metadata.
    pub(crate) metadata_size: le::U16,
    /// LBADS: bytes of a block as a power of two.
    pub(crate) block_exponent: u8,
    /// RP
    pub(crate) relative_performance: u8,
}

/// Identify Namespace, CNS 00h and 11h (NVM Command Set 1.0 figure 97).
#[derive(Clone, Debug, IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Namespace {
    /// NSZE, blocks.
    pub(crate) size: le::U64,
    /// NCAP, blocks.
    pub(crate) capacity: le::U64,
    /// NUSE, blocks.
    pub(crate) utilization: le::U64,
    /// NSFEAT
    pub(crate) features: u8,
    /// NLBAF, 0-based.
    pub(crate) formats: u8,
    /// FLBAS
    pub(crate) formatted_size: u8,
    /// MC
    pub(crate) metadata_capabilities: u8,
    /// DPC
    pub(crate) protection_capabilities: u8,
    /// DPS
    pub(crate) protection_settings: u8,
    /// NMIC
    pub(crate) sharing: u8,
    /// RESCAP
    pub(crate) reservations: u8,
    /// FPI
    pub(crate) format_progress: u8,
    /// DLFEAT
    pub(crate) deallocation: u8,
    /// NAWUN, 0-based blocks.
    pub(crate) atomic_write: le::U16,
    /// NAWUPF, 0-based blocks.
    pub(crate) atomic_write_power_fail: le::U16,
    /// NACWU, 0-based blocks.
    pub(crate) atomic_compare_write: le::U16,
    reserved_40: [u8; 8],
    /// NVMCAP, bytes.
    pub(crate) nvm_capacity: le::U128,
    /// NPWG, 0-based blocks.
    pub(crate) write_granularity: le::U16,
    /// NPWA, 0-based blocks.
    pub(crate) write_alignment: le::U16,
    /// NPDG, 0-based blocks.
    pub(crate) deallocate_granularity: le::U16,
    /// NPDA, 0-based blocks.
    pub(crate) deallocate_alignment: le::U16,
    /// NOWS, 0-based blocks.
    pub(crate) optimal_write_size: le::U16,
    /// MSSRL, blocks.
    pub(crate) copy_source_range_max: le::U16,
    /// MCL, blocks.
    pub(crate) copy_length_max: le::U32,
    /// MSRC, 0-based.
    pub(crate) copy_source_ranges_max: u8,
    reserved_81: [u8; 11],
    /// ANAGRPID
    pub(crate) ana_group: le::U32,
    reserved_96: [u8; 3],
    /// NSATTR: bit 0 is write protection.
    pub(crate) attributes: u8,
    reserved_100: [u8; 4],
    /// NGUID
    pub(crate) nguid: [u8; 16],
    /// EUI64
    pub(crate) eui64: [u8; 8],
    /// LBAF
    pub(crate) lba_formats: [LbaFormat; 64],
    reserved_384: [u8; 3712],
}

/// I/O Command Set Independent Identify Namespace, CNS 08h (NVMe Base 2.0 figure 280).
#[derive(Clone, Debug, IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct IndependentNamespace {
    /// NSFEAT
    pub(crate) features: u8,
    /// NMIC
    pub(crate) sharing: u8,
    /// RESCAP
    pub(crate) reservations: u8,
    /// FPI
    pub(crate) format_progress: u8,
    /// ANAGRPID
    pub(crate) ana_group: le::U32,
    /// NSATTR
    pub(crate) attributes: u8,
    reserved_9: [u8; 5],
    /// NSTAT: bit 0 says that the namespace is ready.
    pub(crate) status: u8,
    reserved_15: [u8; 4081],
}

/// Namespace Identification Descriptors, CNS 03h (NVMe Base 2.0 figure 277), as Lunar orders them.
#[derive(Clone, Debug, IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Descriptors {
    pub(crate) eui64: Descriptor<8>,
    pub(crate) nguid: Descriptor<16>,
    pub(crate) uuid: Descriptor<16>,
    pub(crate) command_set: Descriptor<1>,
    reserved: [u8; 4039],
}

/// One namespace identification descriptor (NVMe Base 2.0 5.17).
#[derive(Clone, Copy, Debug, IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Descriptor<const LEN: usize> {
    /// NIDT
    kind: u8,
    /// NIDL
    length: u8,
    reserved: [u8; 2],
    /// NID
    identifier: [u8; LEN],
}

impl<const LEN: usize> Descriptor<LEN> {
    const FITS: () = assert!(LEN <= u8::MAX as usize);

    /// The descriptor of type `kind` with this identifier.
    pub(crate) const fn new(kind: u8, identifier: [u8; LEN]) -> Self {
        let () = Self::FITS;
        Self { kind, length: LEN as u8, reserved: [0; 2], identifier }
    }
}

/// Namespace Granularity List, CNS 16h (NVMe Base 2.0 figure 287), with one descriptor.
#[derive(Clone, Debug, IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Granularity {
    /// NGA
    reserved_0: [u8; 4],
    /// NOD, 0-based.
    pub(crate) descriptors: u8,
    reserved_5: [u8; 27],
    /// NSG, bytes.
    pub(crate) size: le::U64,
    /// NCG, bytes.
    pub(crate) capacity: le::U64,
    reserved_48: [u8; 4048],
}

/// Identify Controller of the NVM command set, CNS 06h (NVM Command Set 1.0 figure 101).
#[derive(Clone, Debug, IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct NvmController {
    reserved_0: [u8; 2],
    /// WUSL: largest Write Uncorrectable, as a power of two of the smallest memory page.
    pub(crate) write_uncorrectable_exponent: u8,
    reserved_3: [u8; 4093],
}

/// Controller List, CNS 12h and 13h (NVMe Base 2.0 figure 137).
#[derive(Clone, Debug, IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ControllerList {
    /// Number of identifiers that follow.
    pub(crate) count: le::U16,
    pub(crate) identifiers: [le::U16; 2047],
}

/// Namespace List, CNS 02h, 07h and 10h (NVMe Base 2.0 5.17): ends with the first zero.
#[derive(Clone, Debug, IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct NamespaceList {
    pub(crate) identifiers: [le::U32; 1024],
}

/// I/O Command Sets, CNS 1Ch (NVMe Base 2.0 figure 289): combinations of command sets, one bit per set.
#[derive(Clone, Debug, IntoBytes, FromZeros, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CommandSets {
    pub(crate) combinations: [le::U64; 512],
}

/// Asserts the size of data structures and the offsets of their fields.
macro_rules! at {
    ($($type:ty { $($field:ident: $offset:literal),* $(,)? })*) => {
        const _: () = {
            $(
                assert!(size_of::<$type>() == IDENTIFY_LEN);
                $(assert!(std::mem::offset_of!($type, $field) == $offset);)*
            )*
        };
    };
}

at! {
    Controller {
        serial_number: 4, model_number: 24, firmware_revision: 64, multi_path: 76, transfer_exponent: 77,
        controller_id: 78,
        version: 80, async_events: 92, attributes: 96, controller_type: 111, admin_commands: 256, abort_limit: 258,
        async_event_limit: 259, firmware_updates: 260, log_page_attributes: 261, error_log_entries: 262,
        total_capacity: 280, unallocated_capacity: 296, self_test_time: 316, self_test_options: 318, keep_alive: 320,
        sanitize: 328, ana_transition_time: 342, ana_capabilities: 343, ana_group_max: 344, ana_groups: 348,
        persistent_event_log_size: 352, entry_sizes: 512, commands_max: 514, namespaces: 516, nvm_commands: 520,
        fused: 522, volatile_write_cache: 525, atomic_write: 526, atomic_write_power_fail: 528,
        atomic_compare_write: 532, copy_formats: 534, sgl: 536, namespaces_max: 540, subsystem_nqn: 768,
        command_capsule_size: 1792, response_capsule_size: 1796, sgl_descriptors_max: 1803, fabrics_commands: 1804,
    }
    Namespace {
        size: 0, capacity: 8, utilization: 16, features: 24, formats: 25, formatted_size: 26, metadata_capabilities: 27,
        protection_capabilities: 28, protection_settings: 29, sharing: 30, reservations: 31, format_progress: 32,
        deallocation: 33, atomic_write: 34, atomic_write_power_fail: 36, atomic_compare_write: 38, nvm_capacity: 48,
        write_granularity: 64, write_alignment: 66, deallocate_granularity: 68, deallocate_alignment: 70,
        optimal_write_size: 72, copy_source_range_max: 74, copy_length_max: 76, copy_source_ranges_max: 80,
        ana_group: 92, attributes: 99, nguid: 104, eui64: 120, lba_formats: 128,
    }
    IndependentNamespace {
        features: 0, sharing: 1, reservations: 2, format_progress: 3, ana_group: 4, attributes: 8, status: 14,
    }
    Descriptors { eui64: 0, nguid: 12, uuid: 32, command_set: 52 }
    Granularity { descriptors: 4, size: 32, capacity: 40 }
    NvmController { write_uncorrectable_exponent: 2 }
    ControllerList { count: 0, identifiers: 2 }
    NamespaceList { identifiers: 0 }
    CommandSets { combinations: 0 }
}
