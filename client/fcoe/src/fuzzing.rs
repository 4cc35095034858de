//! Entry points of the fuzz targets.

use crate::disk::{Disk, DiskEvent, Operation};
use crate::initiator::InitiatorConfig;
use lunar_core::time::Instant;
use lunar_fcoe::wire::names::Wwn;
use lunar_fcoe::wire::{fip, frame};
use lunar_link::{Header, MacAddress};
use std::rc::Rc;
use std::time::Duration;

/// The time between two frames.
const STEP: Duration = Duration::from_millis(50);

/// Gives an initiator the frames of an input.
///
/// # Panics
/// When a command ends twice.
pub fn frames(bytes: &[u8]) {
    let station = MacAddress([2, 0, 0, 0, 0, 1]);
    let names = (Wwn(0x2000_0200_0000_0001), Wwn(0x1000_0200_0000_0001));
    let timeout = Duration::from_secs(30);
    let mut now = Instant(0);
    let config = InitiatorConfig { station, names, target: None, mtu: 1500, timeout, seed: 1 };
    let (mut disk, mut left) = (Disk::new(config, 0, now), vec![0_u32, 1]);
    disk.start(0, Operation::Read { lba: 1, count: 4 }, now);
    disk.start(1, Operation::Write { lba: 1, data: Rc::from(vec![1; 2048]) }, now);
    let mut rest = bytes;
    while let Some((first, more)) = rest.split_first() {
        let (piece, more) = more.split_at(more.len().min(usize::from(*first)));
        rest = more;
        now = now + STEP;
        let mut on = |event: DiskEvent<'_>| {
            if let DiskEvent::Done(cookie, _) = event {
                let known = left.iter().position(|one| *one == cookie);
                left.remove(known.expect("a command ends once"));
            }
        };
        // The first byte of a message of FIP has its version.
        let is_fip = piece.first() == Some(&0x10);
        let destination = if is_fip { station } else { disk.address().unwrap_or(station) };
        let mut source = [0x0e, 0xfd, 0, 0, 0, 2];
        let at = frame::SHIM_LEN + 5;
        source[3..].copy_from_slice(piece.get(at..at + 3).unwrap_or(&[0, 0, 2]));
        let ether_type = if is_fip { fip::ETHER_TYPE } else { frame::ETHER_TYPE };
        let header = Header { destination, source: MacAddress(source), ether_type };
        disk.receive(&header, piece, now, &mut on);
        disk.tick(now, &mut on);
        while disk.next_frame().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_input_is_taken(bytes in prop::collection::vec(any::<u8>(), 0..800)) {
            frames(&bytes);
        }
    }
}
