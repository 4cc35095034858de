//! The Identify data of the controller and of the namespace (NVMe Base 2.0, 5.17.2; NVM Command Set 1.0, 4.1.5).

use lunar_reactor::nvme_generic::Identified;

/// The properties of a namespace and its controller that matter to a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Abilities {
    /// Model and serial number, without spaces at their ends.
    pub(crate) model: String,
    pub(crate) serial: String,
    /// NGUID, and EUI-64; zeroes if there is none.
    pub(crate) nguid: [u8; 16],
    pub(crate) eui64: [u8; 8],
    /// Blocks of the namespace.
    pub(crate) blocks: u64,
    /// Whether the controller has a volatile write cache.
    pub(crate) write_cache: bool,
    /// Whether it has Dataset Management, and Write Zeroes.
    pub(crate) can_deallocate: bool,
    pub(crate) can_zero: bool,
    /// Whether Write Zeroes may deallocate, and deallocated blocks read as zeroes then.
    pub(crate) zero_deallocates: bool,
    /// The limits of Copy, if the controller has it.
    pub(crate) copy: Option<CopyLimits>,
    /// Blocks of a write that is atomic at a power failure, at any place; 0: none.
    pub(crate) atomic_blocks: u32,
}

/// The limits of a Copy command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopyLimits {
    /// Blocks of a source range (MSSRL).
    pub(crate) range_blocks: u16,
    /// Source ranges (MSRC).
    pub(crate) ranges: u16,
    /// Blocks of all of them (MCL).
    pub(crate) blocks: u32,
}

impl CopyLimits {
    /// The blocks of one command; zero if the limits permit none.
    pub(crate) fn blocks(self) -> u64 {
        u64::from(self.blocks).min(u64::from(self.range_blocks) * u64::from(self.ranges))
    }
}

/// Optional commands (ONCS).
const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
const ONCS_WRITE_ZEROES: u16 = 1 << 3;
const ONCS_COPY: u16 = 1 << 8;
/// Source ranges of format 0 (OCFS).
const OCFS_FORMAT_0: u16 = 1;
/// A volatile write cache is present (VWC).
const VWC_PRESENT: u8 = 1;
/// The namespace has atomicity values of its own (NSFEAT).
const NSFEAT_NSABP: u8 = 1 << 1;
/// Deallocated blocks read as zeroes, and Write Zeroes supports Deallocate (DLFEAT).
const DLFEAT_READ: u8 = 0x07;
const DLFEAT_ZEROES: u8 = 0x01;
const DLFEAT_DEAC: u8 = 1 << 3;

impl Abilities {
    /// Takes both data structures apart.
    pub(crate) fn of(controller: &Identified, namespace: &Identified) -> Self {
        let short = |page: &Identified, at: usize| u16::from_le_bytes([page[at], page[at + 1]]);
        let text = |range: std::ops::Range<usize>| {
            String::from_utf8_lossy(&controller[range]).trim_matches([' ', '\0']).to_owned()
        };
        let (mut nguid, mut eui64, mut blocks) = ([0; 16], [0; 8], [0; 8]);
        blocks.copy_from_slice(&namespace[0..8]);
        nguid.copy_from_slice(&namespace[104..120]);
        eui64.copy_from_slice(&namespace[120..128]);
        let oncs = short(controller, 520);
        let (features, deallocation) = (namespace[24], namespace[33]);
        // AWUPF and NAWUPF count from zero. Where writes must not cross boundaries (NABSPF), not all places are alike.
        let atomic_blocks = match features & NSFEAT_NSABP {
            0 => u32::from(short(controller, 528)) + 1,
            _ if short(namespace, 44) > 0 => 0,
            _ => u32::from(short(namespace, 36)) + 1,
        };
        // MSRC counts from zero.
        let limits = CopyLimits {
            range_blocks: short(namespace, 74),
            ranges: u16::from(namespace[80]) + 1,
            blocks: u32::from(short(namespace, 76)) | u32::from(short(namespace, 78)) << 16,
        };
        let can_copy = oncs & ONCS_COPY != 0 && short(controller, 534) & OCFS_FORMAT_0 != 0 && limits.blocks() > 0;
        let reads_zeroes = deallocation & DLFEAT_READ == DLFEAT_ZEROES;
        Self {
            serial: text(4..24),
            model: text(24..64),
            nguid,
            eui64,
            blocks: u64::from_le_bytes(blocks),
            write_cache: controller[525] & VWC_PRESENT != 0,
            can_deallocate: oncs & ONCS_DATASET_MANAGEMENT != 0,
            can_zero: oncs & ONCS_WRITE_ZEROES != 0,
            zero_deallocates: reads_zeroes && deallocation & DLFEAT_DEAC != 0,
            copy: can_copy.then_some(limits),
            atomic_blocks,
        }
    }

    /// The identity of the namespace in words, for the log.
    pub(crate) fn identity(&self, nsid: u32) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut words = format!("namespace {nsid} of {} {}", self.model, self.serial);
        if self.nguid != [0; 16] {
            words += &format!(", NGUID {}", hex(&self.nguid));
        }
        if self.eui64 != [0; 8] {
            words += &format!(", EUI-64 {}", hex(&self.eui64));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_reactor::nvme_generic::IDENTIFY_BYTES;

    fn pages() -> [Identified; 2] {
        let (mut controller, mut namespace) = ([0; IDENTIFY_BYTES], [0; IDENTIFY_BYTES]);
        controller[4..24].copy_from_slice(b"SERIAL              ");
        controller[24..64].fill(b' ');
        controller[24..32].copy_from_slice(b"A  MODEL");
        controller[520..522].copy_from_slice(&0x010c_u16.to_le_bytes());
        controller[534] = 1;
        (namespace[74], namespace[77], namespace[78], namespace[80]) = (128, 2, 1, 3);
        controller[525] = 0x07;
        controller[528] = 7;
        namespace[..8].copy_from_slice(&0x0102_0304_u64.to_le_bytes());
        namespace[33] = 0x09;
        [controller, namespace]
    }

    #[test]
    fn the_fields_are_where_the_standard_has_them() {
        let [controller, mut namespace] = pages();
        let found = Abilities::of(&controller, &namespace);
        assert_eq!((found.model.as_str(), found.serial.as_str(), found.blocks), ("A  MODEL", "SERIAL", 0x0102_0304));
        assert!(found.write_cache && found.can_deallocate && found.can_zero && found.zero_deallocates);
        assert_eq!(found.atomic_blocks, 8);
        assert_eq!(found.copy, Some(CopyLimits { range_blocks: 128, ranges: 4, blocks: 0x0001_0200 }));
        assert_eq!(found.copy.map(CopyLimits::blocks), Some(512));
        assert_eq!(found.identity(3), "namespace 3 of A  MODEL SERIAL");
        namespace[24] = 0x02;
        namespace[36] = 31;
        (namespace[104], namespace[127]) = (0xa1, 0xb2);
        let found = Abilities::of(&controller, &namespace);
        assert_eq!(found.atomic_blocks, 32, "of the namespace itself");
        let names = "NGUID a1000000000000000000000000000000, EUI-64 00000000000000b2";
        assert_eq!(found.identity(1), format!("namespace 1 of A  MODEL SERIAL, {names}"));
        namespace[44] = 1;
        assert_eq!(Abilities::of(&controller, &namespace).atomic_blocks, 0, "with boundaries");
    }

    #[test]
    fn what_is_not_said_is_not_supported() {
        let none = Abilities::of(&[0; IDENTIFY_BYTES], &[0; IDENTIFY_BYTES]);
        assert!(
            none.copy.is_none()
                && !none.write_cache
                && !none.can_deallocate
                && !none.can_zero
                && !none.zero_deallocates
        );
        let [mut controller, mut namespace] = pages();
        (controller[534], namespace[33]) = (2, 0x09);
        assert_eq!(Abilities::of(&controller, &namespace).copy, None, "another format of sources");
        // Deallocated blocks read as bytes of ones, or as anything.
        for deallocation in [0x0a, 0x08, 0x01] {
            namespace[33] = deallocation;
            assert!(!Abilities::of(&controller, &namespace).zero_deallocates, "{deallocation:#x}");
        }
    }
}
