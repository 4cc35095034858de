//! Third-party copy.

use super::VpdPage;
use crate::context::Context;
use crate::copy::list::{CSCDS_MAX, DESCRIPTOR_TYPES, DESCRIPTORS_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENTS_MAX};
use crate::copy::results::COPIES_MAX;
use crate::copy::tokens::{ACCESS_UPON_REFERENCE, INACTIVITY_DEFAULT, INACTIVITY_MAX, RANGES_MAX, ZERO};
use crate::copy::transfer::TOKEN_BYTES_MAX;
use crate::lu::LogicalUnit;
use crate::table::{OpCode, Reach, rows};
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

/// What of third-party copies is supported.
pub(super) struct ThirdPartyCopy;

impl VpdPage for ThirdPartyCopy {
    const PAGE: u8 = 0x8f;
    const NAME: &'static str = "Third-party Copy";
    const CLAUSE: &'static str = "SPC-4 7.8.17";
    const REACH: Reach = Reach::Disk;

    fn write(_cx: &Context<'_>, lu: &LogicalUnit, out: &mut Writer<'_>) {
        descriptor(out, Kind::BLOCK_ROD_LIMITS, &rod_limits(lu));
        descriptor(out, Kind::SUPPORTED_COMMANDS, &commands());
        let mut data = vec![0; 4];
        data.extend((CSCDS_MAX as u16).to_be_bytes());
        data.extend((SEGMENTS_MAX as u16).to_be_bytes());
        data.extend((DESCRIPTORS_BYTES_MAX as u32).to_be_bytes());
        // MAXIMUM INLINE DATA LENGTH, and what is reserved.
        data.extend([0; 4 + 12]);
        descriptor(out, Kind::PARAMETER_DATA, &data);
        descriptor(out, Kind::SUPPORTED_DESCRIPTORS, &counted(&DESCRIPTOR_TYPES));
        // CSCD descriptors are named by their place in the list, and in no other way.
        descriptor(out, Kind::SUPPORTED_CSCD_IDS, &[0, 0]);
        descriptor(out, Kind::ROD_TOKEN_FEATURES, &token_features());
        descriptor(out, Kind::SUPPORTED_ROD_TYPES, &rod_types());
        let mut data = (COPIES_MAX as u32).to_be_bytes().to_vec();
        data.extend((COPIES_MAX as u32).to_be_bytes());
        data.extend(SEGMENT_BYTES_MAX.to_be_bytes());
        // Granularities: of copies a block, of inline data none.
        data.extend([lu.block_size().ilog2() as u8, 0]);
        data.extend([0; 18]);
        descriptor(out, Kind::GENERAL_COPY_OPERATIONS, &data);
    }
}

/// Block device ROD limits, without the header: ranges, times, blocks of one command.
fn rod_limits(lu: &LogicalUnit) -> Vec<u8> {
    let blocks = (TOKEN_BYTES_MAX / u64::from(lu.block_size())).to_be_bytes();
    let mut data = vec![0; 6];
    data.extend((RANGES_MAX as u16).to_be_bytes());
    data.extend(INACTIVITY_MAX.to_be_bytes().into_iter().chain(INACTIVITY_DEFAULT.to_be_bytes()));
    data.extend(blocks.into_iter().chain(blocks));
    data
}

/// ROD token features, without the header: tokens of this target only, no shortest or longest life.
fn token_features() -> Vec<u8> {
    let most = TOKEN_BYTES_MAX.to_be_bytes();
    let mut data = vec![0; 12 + 4 + 4];
    data.extend(INACTIVITY_MAX.to_be_bytes());
    data.resize(data.len() + 18, 0);
    // One list of features, of block devices: granularity, then at most and at best so many bytes.
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

/// Supported ROD types, without the header: access upon reference, made and taken; zeroes, taken.
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

/// A third-party copy descriptor, filled up to a multiple of four.
fn descriptor(out: &mut Writer<'_>, kind: Kind, data: &[u8]) {
    let length = round_up(data.len(), 4);
    // Descriptors are below 256 bytes.
    out.bytes(&kind.0.to_be_bytes()).bytes(&(length as u16).to_be_bytes()).bytes(data).zeros(length - data.len());
}

/// Bytes, with their number before them.
fn counted(bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![bytes.len() as u8];
    all.extend(bytes);
    all
}

/// The service actions of each operation code.
fn commands() -> Vec<u8> {
    let mut all = Vec::new();
    for op in [OpCode::THIRD_PARTY_COPY_OUT, OpCode::THIRD_PARTY_COPY_IN] {
        let actions: Vec<u8> = rows(op.0).iter().filter_map(|row| u8::try_from(row.policy.code.action?).ok()).collect();
        all.push(op.0);
        all.extend(counted(&actions));
    }
    counted(&all)
}
