//! Replies of a device that Lunar changes.

use crate::lu::Forwarded;
use crate::nexus::ItlNexus;
use crate::peripheral::PeripheralType;
use crate::policy::{Code, Forwarding};
use crate::row::{DeviceType, Row};
use lunar_core::mem::SgMut;
use std::collections::BTreeSet;

/// WP in the header of mode parameters: the medium is protected from writes.
const WP: u8 = 0x80;
/// Bytes of the list of all commands of a device at most: far more than any device has.
const COMMANDS_BYTES_MAX: usize = 16 << 10;

/// Changes the Data-In of a command that ended with GOOD, whose first `moved` bytes are valid. Returns the number of
/// valid bytes after it. `longest`: bytes of the longest transfer.
pub(crate) fn output(
    (device, itl, lu): (&DeviceType, &ItlNexus, &Forwarded),
    cdb: &[u8],
    (data, moved): (&mut SgMut, usize),
    longest: usize,
) -> usize {
    match *cdb {
        [0x1a, ..] => protect(itl, data, 2, moved),
        [0x5a, ..] => protect(itl, data, 3, moved),
        [0x05, ..] if itl.lu.device_type == PeripheralType::TAPE => limit_blocks(data, moved, longest),
        [0x12, 1, 0xb0, ..] => limit_transfers(data, moved, longest, lu.unit.device.facts().block_length()),
        [0xa3, action, options, ..] if action & 0x1f == 0x0c && options & 7 == 0 => {
            return commands((device, lu), options & 0x80 != 0, data, moved);
        }
        _ => {}
    }
    moved
}

/// A nexus that must not write sees a protected medium.
fn protect(itl: &ItlNexus, data: &mut SgMut, at: usize, moved: usize) {
    let has_bit = matches!(
        itl.lu.device_type,
        PeripheralType::DISK
            | PeripheralType::TAPE
            | PeripheralType::OPTICAL_MEMORY
            | PeripheralType::SIMPLE_DISK
            | PeripheralType::ZONED
    );
    let mut byte = [0];
    if has_bit && itl.write_protected() && moved > at && data.copy_to(at, &mut byte) == 1 {
        data.copy_from(at, &[byte[0] | WP]);
    }
}

/// READ BLOCK LIMITS: the maximum block length is the longest transfer at most.
fn limit_blocks(data: &mut SgMut, moved: usize, longest: usize) {
    let mut limit = [0; 3];
    if moved < 4 || data.copy_to(1, &mut limit) < 3 {
        return;
    }
    let [_, high, middle, low] = u32::try_from(longest).unwrap_or(u32::MAX).min(0xff_ffff).to_be_bytes();
    let own = [high, middle, low];
    // Zero: the device has no limit.
    if limit == [0; 3] || limit > own {
        data.copy_from(1, &own);
    }
}

/// Block Limits VPD page: MAXIMUM TRANSFER LENGTH is the longest transfer at most.
fn limit_transfers(data: &mut SgMut, moved: usize, longest: usize, block: u32) {
    const AT: usize = 8;
    let mut limit = [0; 4];
    let Some(own) = u32::try_from(longest).unwrap_or(u32::MAX).checked_div(block) else { return };
    if moved >= AT + 4 && data.copy_to(AT, &mut limit) == 4 {
        let limit = u32::from_be_bytes(limit);
        if limit == 0 || limit > own {
            data.copy_from(AT, &own.to_be_bytes());
        }
    }
}

/// REPORT SUPPORTED OPERATION CODES, all commands: without those that Lunar refuses, with those that it executes.
fn commands((device, lu): (&DeviceType, &Forwarded), timeouts: bool, data: &mut SgMut, moved: usize) -> usize {
    /// CTDP: a timeouts descriptor follows. SERVACTV: the service action is valid.
    const CTDP: u8 = 0x02;
    const SERVACTV: u8 = 0x01;
    let mut bytes = vec![0; moved.min(COMMANDS_BYTES_MAX)];
    data.copy_to(0, &mut bytes);
    let Some((header, list)) = bytes.split_at_checked(4) else { return moved };
    let length = header.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    if list.len() != length {
        // The allocation length has truncated the list.
        return moved;
    }
    let (mut rest, mut kept, mut listed) = (list, vec![0; 4], BTreeSet::new());
    while rest.len() >= 8 {
        let size = if rest[5] & CTDP != 0 { 20 } else { 8 };
        let (one, others) = rest.split_at(size.min(rest.len()));
        let action = (rest[5] & SERVACTV != 0).then(|| u16::from_be_bytes([rest[2], rest[3]]));
        listed.insert((rest[0], action));
        if is_offered(row_of(device, rest[0], action), lu) {
            kept.extend_from_slice(one);
        }
        rest = others;
    }
    for row in device.forwarded.rows().iter().filter(|row| row.policy.admission.forwarded == Forwarding::Lunar) {
        let Code { op, action } = row.policy.code;
        let [high, low] = action.unwrap_or(0).to_be_bytes();
        let flag = u8::from(action.is_some());
        // Lunar gives no time-outs for a device.
        if !listed.contains(&(op.0, action)) && !timeouts {
            kept.extend([op.0, 0, high, low, 0, flag, 0, row.length as u8]);
        }
    }
    let length = (kept.len() - 4) as u32;
    kept[..4].copy_from_slice(&length.to_be_bytes());
    data.copy_from(0, &kept)
}

fn row_of(device: &DeviceType, op: u8, action: Option<u16>) -> Option<&'static Row> {
    device.forwarded.rows_of(op).iter().find(|row| row.policy.code.action == action)
}

/// Whether a command is executed, by Lunar or by the device.
pub(crate) fn is_offered(row: Option<&Row>, lu: &Forwarded) -> bool {
    row.is_none_or(|row| {
        let is_refused = row.policy.admission.forwarded == Forwarding::Refused;
        !is_refused || lu.unit.device.terms().allowed.contains(&row.policy.code.op.0)
    })
}
