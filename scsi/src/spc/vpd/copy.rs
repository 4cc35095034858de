//! Third-party copy: limits and supported formats.

use crate::context::Context;
use crate::copy::list::{CSCDS_MAX, DESCRIPTOR_TYPES, DESCRIPTORS_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENTS_MAX};
use crate::copy::results::COPIES_MAX;
use crate::copy::tokens::{ACCESS_UPON_REFERENCE, INACTIVITY_DEFAULT, INACTIVITY_MAX, RANGES_MAX, ZERO};
use crate::copy::transfer::TOKEN_BYTES_MAX;
use crate::lu::Emulated;
use crate::page::VpdPage;
use crate::policy::OpCode;
use crate::sense::Sense;
use lunar_core::codes;
use lunar_core::wire::{Writer, round_up};

codes! {
    /// Third-party copy descriptor types (SPC-4 7.8.17.3).
    struct Kind(u16) {
        BLOCK_ROD_LIMITS = 0x0000, SUPPORTED_COMMANDS = 0x0001, PARAMETER_DATA = 0x0004, SUPPORTED_DESCRIPTORS = 0x0008,
        SUPPORTED_CSCD_IDS = 0x000c, ROD_TOKEN_FEATURES = 0x0106, SUPPORTED_ROD_TYPES = 0x0108,
        GENERAL_COPY_OPERATIONS = 0x8001,
    }
}

/// Third-party copy.
pub(crate) struct ThirdPartyCopy;

impl VpdPage for ThirdPartyCopy {
    const PAGE: u8 = 0x8f;
    const NAME: &'static str = "Third-party Copy";
    const CLAUSE: &'static str = "SPC-4 7.8.17";
    const IN_FORWARDED: bool = false;

    fn write(cx: &Context<'_>, out: &mut Writer<'_>) -> Result<(), Sense> {
        let lu = cx.emulated()?;
        descriptor(out, Kind::BLOCK_ROD_LIMITS, &rod_limits(lu));
        descriptor(out, Kind::SUPPORTED_COMMANDS, &commands(cx));
        let mut data = vec![0; 4];
        data.extend((CSCDS_MAX as u16).to_be_bytes());
        data.extend((SEGMENTS_MAX as u16).to_be_bytes());
        data.extend((DESCRIPTORS_BYTES_MAX as u32).to_be_bytes());
        // MAXIMUM INLINE DATA LENGTH and reserved bytes.
        data.extend([0; 4 + 12]);
        descriptor(out, Kind::PARAMETER_DATA, &data);
        descriptor(out, Kind::SUPPORTED_DESCRIPTORS, &counted(&DESCRIPTOR_TYPES));
        // Only indices into the CSCD descriptor list are supported as CSCD descriptor IDs.
        descriptor(out, Kind::SUPPORTED_CSCD_IDS, &[0, 0]);
        descriptor(out, Kind::ROD_TOKEN_FEATURES, &token_features());
        descriptor(out, Kind::SUPPORTED_ROD_TYPES, &rod_types());
        let mut data = (COPIES_MAX as u32).to_be_bytes().to_vec();
        data.extend((COPIES_MAX as u32).to_be_bytes());
        data.extend(SEGMENT_BYTES_MAX.to_be_bytes());
        // Segment granularity: one block. Inline data granularity: none.
        data.extend([lu.block_size().ilog2() as u8, 0]);
        data.extend([0; 18]);
        descriptor(out, Kind::GENERAL_COPY_OPERATIONS, &data);
        Ok(())
    }
}

/// Block device ROD limits without the header: ranges, timeouts, and blocks of one command.
fn rod_limits(lu: &Emulated) -> Vec<u8> {
    let blocks = (TOKEN_BYTES_MAX / u64::from(lu.block_size())).to_be_bytes();
    let mut data = vec![0; 6];
    data.extend((RANGES_MAX as u16).to_be_bytes());
    data.extend(INACTIVITY_MAX.to_be_bytes().into_iter().chain(INACTIVITY_DEFAULT.to_be_bytes()));
    data.extend(blocks.into_iter().chain(blocks));
    data
}

/// ROD token features without the header: tokens of other targets are not supported; no minimum or maximum lifetime.
fn token_features() -> Vec<u8> {
    let most = TOKEN_BYTES_MAX.to_be_bytes();
    let mut data = vec![0; 12 + 4 + 4];
    data.extend(INACTIVITY_MAX.to_be_bytes());
    data.resize(data.len() + 18, 0);
    // Device type specific features of block devices: granularity, then maximum and optimal lengths in bytes.
    let mut features = vec![0; 2 + 2];
    [most; 4].into_iter().for_each(|bytes| features.extend(bytes));
    features.resize(features.len() + 8, 0);
    let length = features.len() as u16;
    data.extend((length + 4).to_be_bytes());
    data.extend([0, 0]);
    data.extend(length.to_be_bytes());
    data.extend(features);
    data
}

/// Supported ROD types without the header. Tokens of type access upon reference are created and accepted, tokens of
/// type block device zero are accepted.
fn rod_types() -> Vec<u8> {
    /// TOKEN_IN, TOKEN_OUT.
    const TYPES: [(u32, u8); 2] = [(ACCESS_UPON_REFERENCE, 0x03), (ZERO, 0x02)];
    let mut data = vec![0; 2];
    data.extend(((TYPES.len() * 64) as u16).to_be_bytes());
    for (kind, flags) in TYPES {
        data.extend(kind.to_be_bytes());
        data.extend([flags, 0, 0x80, 0]);
        data.resize(data.len() + 56, 0);
    }
    data
}

/// Writes a third-party copy descriptor, padded to a multiple of four bytes.
fn descriptor(out: &mut Writer<'_>, kind: Kind, data: &[u8]) {
    let length = round_up(data.len(), 4);
    // Descriptors are shorter than 256 bytes.
    out.bytes(&kind.0.to_be_bytes()).bytes(&(length as u16).to_be_bytes()).bytes(data).zeros(length - data.len());
}

/// Bytes after a byte with their number.
fn counted(bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![bytes.len() as u8];
    all.extend(bytes);
    all
}

/// The supported service actions of both third-party copy operation codes.
fn commands(cx: &Context<'_>) -> Vec<u8> {
    let mut all = Vec::new();
    for op in [OpCode::THIRD_PARTY_COPY_OUT, OpCode::THIRD_PARTY_COPY_IN] {
        let actions: Vec<u8> = cx
            .device
            .commands
            .rows_of(op.0)
            .iter()
            .filter_map(|row| u8::try_from(row.policy.code.action?).ok())
            .collect();
        all.push(op.0);
        all.extend(counted(&actions));
    }
    counted(&all)
}
