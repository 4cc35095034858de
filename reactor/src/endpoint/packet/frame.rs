//! Frames in the form of the links, and filters of received frames.

use super::super::batch::{Datagram, MacAddress, VlanTag};
use lunar_core::mem::Buf;

/// Bytes of a frame before the EtherType.
pub(super) const ADDRESSES: usize = 12;
/// Bytes of the header of a frame without VLAN tag.
pub const HEADER: usize = 14;

/// Frames that an interface receives in addition to those to its own address and to the broadcast address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filter {
    /// Frames to another address of this station, such as the MAC address of a VN_Port.
    Unicast(MacAddress),
    /// Frames to a group.
    Group(MacAddress),
    /// Frames to any group.
    AllGroups,
    /// All frames.
    Promiscuous,
}

/// A frame as received from a virtual cable, without its outer VLAN tag, which is stored separately.
pub(super) fn untagged(mut frame: Buf) -> Datagram {
    let tag = frame.get(ADDRESSES..ADDRESSES + 4).and_then(|bytes| VlanTag::parse(bytes.try_into().ok()?));
    // A tag without EtherType behind it stays: the frame is malformed, and its reader reports that.
    let vlan = tag.filter(|_| frame.len() >= HEADER + 4);
    if vlan.is_some() {
        frame.copy_within(0..ADDRESSES, 4);
        drop(frame.split_to(4));
    }
    Datagram { data: frame.share().into(), vlan, ..Datagram::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Arena;

    fn frame(bytes: &[u8]) -> Datagram {
        let arena = Arena::new(1 << 20);
        let mut memory = arena.take(bytes.len()).expect("room");
        memory.copy_from_slice(bytes);
        untagged(memory)
    }

    #[test]
    fn the_outer_tag_of_a_frame_is_taken_off() {
        let addresses: Vec<u8> = (0..12).collect();
        let plain = frame(&[&addresses[..], &[0x88, 0xa2, 1, 2]].concat());
        assert_eq!((plain.data.to_vec(), plain.vlan), ([&addresses[..], &[0x88, 0xa2, 1, 2]].concat(), None));
        let tagged = frame(&[&addresses[..], &[0x81, 0, 0x20, 5, 0x88, 0xa2, 1, 2]].concat());
        assert_eq!(tagged.data.to_vec(), plain.data.to_vec());
        assert_eq!(tagged.vlan, Some(VlanTag { protocol: VlanTag::C_VLAN, control: 0x2005 }));
        let double = frame(&[&addresses[..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7, 0x88, 0xa2]].concat());
        assert_eq!(double.vlan.map(VlanTag::id), Some(5));
        assert_eq!(double.data.to_vec()[12..16], [0x81, 0, 0, 7], "an inner tag stays");
        let short = frame(&[&addresses[..], &[0x81, 0, 0, 7, 0x88]].concat());
        assert_eq!((short.data.len(), short.vlan), (17, None));
    }
}
