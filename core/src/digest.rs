//! FNV-1a (draft-eastlake-fnv): digests that are the same in every version of Lunar. They distinguish names, and do not
//! resist an attacker.

/// The digest of 64 bits.
#[must_use]
pub fn fnv_64(text: &str) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    text.bytes().fold(OFFSET, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// The digest of 128 bits.
#[must_use]
pub fn fnv_128(text: &str) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.bytes().fold(OFFSET, |digest, byte| (digest ^ u128::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of draft-eastlake-fnv.
    #[test]
    fn the_digests_are_those_of_the_draft() {
        assert_eq!(
            ["", "a", "foobar"].map(fnv_64),
            [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c, 0x8594_4171_f739_67e8]
        );
        assert_eq!(
            ["", "a", "foobar"].map(fnv_128),
            [
                0x6c62_272e_07bb_0142_62b8_2175_6295_c58d,
                0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964,
                0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18
            ]
        );
    }
}
