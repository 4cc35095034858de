//! The properties of a logical unit, as its device server reports them (SPC-4, SBC-3).

use lunar_core::io::Traits;

/// The longest range of one WRITE SAME: a store without an operation for zeroes writes them, which must not take as
/// long as a command may.
const ZERO_BYTES_MAX: u64 = 64 << 20;
/// The longest range of one UNMAP.
const UNMAP_BYTES_MAX: u64 = 1 << 30;
/// The longest and the shortest block.
const BLOCKS: std::ops::RangeInclusive<u32> = 512..=4096;

/// The properties.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Facts {
    /// The designators of the logical unit, in hexadecimal digits: no other one has them.
    pub(crate) identity: String,
    /// Blocks.
    pub(crate) blocks: u64,
    /// Bytes of a block.
    pub(crate) block: u32,
    physical_exponent: u32,
    pub(crate) read_only: bool,
    pub(crate) write_cache: bool,
    rotational: bool,
    optimal_blocks: u32,
    /// UNMAP is there.
    unmaps: bool,
    /// WRITE SAME(16) may unmap.
    pub(crate) zero_unmaps: bool,
    unmap_zeroes: bool,
    thin: bool,
    unmap_blocks_max: u32,
    unmap_granularity: u32,
    zero_blocks_max: u64,
}

fn be16(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

fn be32(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

fn be64(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}

impl Facts {
    /// Device identification (VPD page 83h): those designators of the logical unit that are unique. Returns whether
    /// there is one.
    pub(crate) fn take_identification(&mut self, page: &[u8]) -> bool {
        let len = be16(page, 2).map_or(0, usize::from);
        let mut rest = page.get(4..).unwrap_or_default();
        rest = &rest[..rest.len().min(len)];
        self.identity.clear();
        while let [_, kind, _, len, tail @ ..] = rest {
            let Some((designator, next)) = tail.split_at_checked(usize::from(*len)) else { break };
            // Association 00b: the logical unit; types 2h (EUI-64), 3h (NAA), 8h (SCSI name).
            if kind & 0x30 == 0 && matches!(kind & 0x0f, 2 | 3 | 8) {
                self.identity.extend(designator.iter().map(|byte| format!("{byte:02x}")));
            }
            rest = next;
        }
        !self.identity.is_empty()
    }

    /// Block limits (VPD page B0h).
    pub(crate) fn take_limits(&mut self, page: &[u8]) {
        self.optimal_blocks = be32(page, 12).unwrap_or(0);
        self.unmap_blocks_max = be32(page, 20).unwrap_or(0);
        self.unmap_granularity = be32(page, 28).unwrap_or(0);
        self.zero_blocks_max = be64(page, 36).unwrap_or(0);
    }

    /// Block device characteristics (VPD page B1h).
    pub(crate) fn take_characteristics(&mut self, page: &[u8]) {
        // 0001h: the medium does not rotate.
        self.rotational = be16(page, 4).is_some_and(|rate| rate != 1);
    }

    /// Logical block provisioning (VPD page B2h).
    pub(crate) fn take_provisioning(&mut self, page: &[u8]) {
        let flags = page.get(5).copied().unwrap_or(0);
        (self.unmaps, self.zero_unmaps, self.unmap_zeroes) =
            (flags & 0x80 != 0, flags & 0x40 != 0, flags & 0x1c == 0x04);
        self.thin = page.get(6).is_some_and(|kind| kind & 7 == 2);
    }

    /// READ CAPACITY(16). Returns whether it is a disk that can be used.
    pub(crate) fn take_capacity(&mut self, data: &[u8]) -> bool {
        let (Some(last), Some(block)) = (be64(data, 0), be32(data, 8)) else { return false };
        (self.blocks, self.block) = (last.saturating_add(1), block);
        self.physical_exponent = u32::from(data.get(13).copied().unwrap_or(0) & 0x0f);
        BLOCKS.contains(&block) && block.is_power_of_two() && self.blocks.checked_mul(block.into()).is_some()
    }

    /// MODE SENSE(6) of the caching mode page.
    pub(crate) fn take_caching(&mut self, data: &[u8]) {
        self.read_only = data.get(2).is_some_and(|specific| specific & 0x80 != 0);
        let page = data.get(3).map_or(4, |descriptors| 4 + usize::from(*descriptors));
        let is_caching = data.get(page).is_some_and(|code| code & 0x3f == 0x08);
        // Without the page, a cache is assumed: flushes are sent.
        self.write_cache = !is_caching || data.get(page + 2).is_some_and(|flags| flags & 0x04 != 0);
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.blocks.saturating_mul(self.block.into())
    }

    /// The most blocks of one UNMAP.
    pub(crate) fn unmap_max(&self) -> u64 {
        let own = UNMAP_BYTES_MAX / u64::from(self.block.max(1));
        own.min(self.unmap_blocks_max.into()).max(1)
    }

    /// The most blocks of one WRITE SAME; zero in its field: any number.
    pub(crate) fn zero_max(&self) -> u64 {
        let own = ZERO_BYTES_MAX / u64::from(self.block.max(1));
        if self.zero_blocks_max == 0 { own } else { own.min(self.zero_blocks_max) }
    }

    /// The properties of a store with blocks of so many bytes.
    pub(crate) fn traits(&self, block_size: u32, read_only: bool, writes_through: bool) -> Traits {
        let unmaps = self.unmaps && self.unmap_blocks_max > 0 && !read_only;
        let granularity = self.unmap_granularity.max(1).saturating_mul(self.block);
        let size = self.size();
        Traits {
            size: size - size % u64::from(block_size),
            read_only,
            write_cache: self.write_cache && !writes_through,
            thin: self.thin,
            unmap_granularity: if unmaps { granularity } else { 0 },
            unmap_zeroes: self.unmap_zeroes,
            physical_block: self.block.checked_shl(self.physical_exponent).unwrap_or(self.block).max(self.block),
            optimal_io: self.optimal_blocks.saturating_mul(self.block),
            rotational: self.rotational,
            // The pieces of a write are commands of their own.
            atomic_write: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_of_a_disk_are_read() {
        let mut facts = Facts::default();
        let naa = [0x01, 0x03, 0, 8, 0x37, 1, 2, 3, 4, 5, 6, 7];
        let port = [0x01, 0x13, 0, 4, 9, 9, 9, 9];
        let page = [&[0, 0x83, 0, 20][..], &naa, &port].concat();
        assert!(facts.take_identification(&page));
        assert_eq!(facts.identity, "3701020304050607");
        let mut capacity = [0; 32];
        capacity[..8].copy_from_slice(&0xffff_u64.to_be_bytes());
        capacity[8..12].copy_from_slice(&512_u32.to_be_bytes());
        capacity[13] = 3;
        assert!(facts.take_capacity(&capacity));
        let mut limits = [0; 64];
        limits[20..24].copy_from_slice(&100_u32.to_be_bytes());
        limits[28..32].copy_from_slice(&8_u32.to_be_bytes());
        limits[36..44].copy_from_slice(&50_u64.to_be_bytes());
        facts.take_limits(&limits);
        facts.take_provisioning(&[0, 0xb2, 0, 4, 0, 0xe4, 2, 0]);
        facts.take_characteristics(&[0, 0xb1, 0, 60, 0, 1]);
        facts.take_caching(&[15, 0, 0x10, 0, 0x08, 10, 0x04, 0]);
        let traits = facts.traits(4096, false, false);
        assert_eq!((traits.size, traits.physical_block, traits.unmap_granularity), (32 << 20, 4096, 4096));
        assert!(traits.write_cache && traits.thin && traits.unmap_zeroes && !traits.rotational);
        assert_eq!((facts.unmap_max(), facts.zero_max(), facts.zero_unmaps), (100, 50, true));
        assert!(!facts.traits(512, false, true).write_cache);
        facts.take_caching(&[15, 0, 0x80, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0x08, 10, 0, 0]);
        assert!(facts.read_only && !facts.write_cache);
    }

    #[test]
    fn a_target_that_lies_causes_no_panic() {
        let bytes: Vec<u8> = (0..=255).cycle().take(300).collect();
        for skip in 0..40 {
            for len in [0, 1, 3, 4, 5, 8, 13, 40, 260] {
                let data = &bytes[skip..skip + len];
                let mut facts = Facts::default();
                let _ = (facts.take_identification(data), facts.take_capacity(data));
                facts.take_limits(data);
                facts.take_characteristics(data);
                facts.take_provisioning(data);
                facts.take_caching(data);
                let _ = (facts.size(), facts.unmap_max(), facts.zero_max());
            }
        }
        let mut facts = Facts::default();
        assert!(!facts.take_capacity(&[0xff; 32]) && !facts.take_capacity(&[0; 32]));
        assert!(!facts.take_identification(&[0, 0x83, 0, 9, 1, 3, 0, 200, 1]));
    }
}
