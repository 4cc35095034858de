//! Fuzz targets of single commands.

use super::rig::{Rig, every_row, rigs};
use crate::command::CDB_BYTES_MAX;
use crate::device_types::DEVICE_TYPES;
use crate::policy::OpCode;
use crate::row::Flow;
use lunar_core::protection::Kind;
use lunar_core::wire::Writer;

/// Executes the command whose CDB is at the start of `data` on all device types that have its operation code, and on
/// disks of all protection types. The bytes after the CDB are Data-Out.
pub fn raw(data: &[u8]) {
    let long = data.first() == Some(&OpCode::VARIABLE_LENGTH.0);
    let (cdb, rest) = data.split_at(data.len().min(if long { CDB_BYTES_MAX } else { 16 }));
    if let Some(op) = cdb.first() {
        let devices = DEVICE_TYPES.iter().filter(|device| !device.commands.rows_of(*op).is_empty());
        let protected = Kind::of(data.len() as u8 & 3).filter(|kind| *kind != Kind::None).map(Rig::protected);
        for rig in devices.flat_map(|device| rigs(device)).chain(protected).chain([Rig::default()]) {
            rig.memory.is_slow.set(data.len() & 4 != 0);
            rig.run(cdb, rest, u32::MAX);
        }
    }
}

/// Executes a command: the first byte selects its row, the following bytes are its CDB, masked by the usage mask, and
/// its Data-Out. No command may panic or return more than its allocation length.
///
/// # Panics
/// When a command returns more than its allocation length.
pub fn cdb(data: &[u8]) {
    let Some((pick, data)) = data.split_first() else { return };
    let count = every_row().count();
    let Some((device, row)) = every_row().nth(usize::from(*pick) % count) else { return };
    let (bytes, rest) = data.split_at(data.len().min(row.length));
    let mut cdb = [0; CDB_BYTES_MAX];
    row.usage(&mut Writer::new(&mut cdb));
    let cdb = &mut cdb[..row.length];
    let given = bytes.iter().copied().chain(std::iter::repeat(0));
    cdb.iter_mut().zip(given).skip(1).for_each(|(mask, byte)| *mask &= byte);
    row.name(cdb);
    for rig in rigs(device) {
        rig.memory.is_slow.set(data.len() & 1 != 0);
        let ended = rig.for_row(row).run(cdb, rest, u32::MAX);
        if row.flow == Flow::Answer {
            let allocation = row.amount(cdb).map_or(0, |length| length as usize);
            assert!(ended.data.len() <= allocation, "{} answers {} bytes", row.policy.name, ended.data.len());
        }
    }
}
