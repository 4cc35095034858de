//! Services of a fabric: Common Transport to the name server (FC-GS), and the registration of state changes (FC-LS).

use super::els::Els;
use super::names::{PortId, Wwn};
use lunar_core::codes;
use lunar_core::wire::be::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// Commands of the name server, and its answers.
    pub struct Directory(u16) {
        REJECT = 0x8001, ACCEPT = 0x8002,
        GPN_ID = 0x0112, GNN_ID = 0x0113, GID_PN = 0x0121, GID_FT = 0x0171, GPN_FT = 0x0172, GNN_FT = 0x0173,
        RNN_ID = 0x0213, RFT_ID = 0x0217, RSPN_ID = 0x0218, RFF_ID = 0x021f, RSNN_NN = 0x0239,
    }
}

/// GS_Type and subtype of the name server.
const NAME_SERVER: [u8; 2] = [0xfc, 0x02];
/// The revision of Common Transport: FC-GS-2 and later.
const REVISION: u8 = 1;
/// The TYPE of the Fibre Channel Protocol.
pub const FCP: u8 = 8;
/// The byte of the bit of the Fibre Channel Protocol among 32 bytes of types: the last byte of a word has the first
/// types.
pub const FCP_TYPE_AT: usize = 2;
/// FC-4 feature of the Fibre Channel Protocol: target.
pub const FEATURE_TARGET: u8 = 1;
/// FC-4 feature of the Fibre Channel Protocol: initiator.
pub const FEATURE_INITIATOR: u8 = 2;
/// The mark of the last entry of a list.
const LAST: u8 = 0x80;
/// The most bytes of a symbolic name.
const SYMBOL_MAX: usize = 255;

/// The preamble of Common Transport (FC-GS).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Preamble {
    revision: u8,
    requester: [u8; 3],
    service: [u8; 2],
    options: u8,
    reserved: u8,
    command: U16,
    /// The most words of the answer; 0: any number.
    words: U16,
    reserved2: u8,
    reason: u8,
    explanation: u8,
    vendor: u8,
}

fn message(command: Directory, words: u16, parts: &[&[u8]]) -> Vec<u8> {
    let preamble = Preamble {
        revision: REVISION,
        requester: [0; 3],
        service: NAME_SERVER,
        options: 0,
        reserved: 0,
        command: command.0.into(),
        words: words.into(),
        reserved2: 0,
        reason: 0,
        explanation: 0,
        vendor: 0,
    };
    [preamble.as_bytes(), &parts.concat()].concat()
}

/// The command of a message, and the bytes behind the preamble; `None`: it is not for the name server, or not of it.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<(Directory, &[u8])> {
    let (preamble, rest) = Preamble::ref_from_prefix(bytes).ok()?;
    (preamble.service == NAME_SERVER).then(|| (Directory(preamble.command.get()), rest))
}

/// The four bytes of an identifier.
fn word(id: PortId) -> [u8; 4] {
    let [a, b, c] = id.bytes();
    [0, a, b, c]
}

/// The identifier in the first four bytes.
#[must_use]
pub fn id_of(bytes: &[u8]) -> Option<PortId> {
    let [_, a, b, c, ..] = *bytes else { return None };
    Some(PortId::from_bytes([a, b, c]))
}

/// RFT_ID: the port supports the Fibre Channel Protocol and Common Transport.
#[must_use]
pub fn register_types(id: PortId) -> Vec<u8> {
    let mut types = [0; 32];
    types[FCP_TYPE_AT] = 1 << (FCP % 8);
    // Common Transport: type 20h, the first bit of the second word.
    types[7] = 1;
    message(Directory::RFT_ID, 0, &[&word(id), &types])
}

/// RFF_ID: the features of the port for the Fibre Channel Protocol.
#[must_use]
pub fn register_features(id: PortId, features: u8) -> Vec<u8> {
    message(Directory::RFF_ID, 0, &[&word(id), &[0, 0, features, FCP]])
}

/// RNN_ID: the Node_Name of the port.
#[must_use]
pub fn register_node(id: PortId, node: Wwn) -> Vec<u8> {
    message(Directory::RNN_ID, 0, &[&word(id), &node.bytes()])
}

fn symbol(text: &str) -> Vec<u8> {
    let bytes = &text.as_bytes()[..text.len().min(SYMBOL_MAX)];
    // At most 255 bytes.
    [&[bytes.len() as u8], bytes].concat()
}

/// RSPN_ID: the symbolic name of the port, which switches show.
#[must_use]
pub fn register_port_symbol(id: PortId, text: &str) -> Vec<u8> {
    message(Directory::RSPN_ID, 0, &[&word(id), &symbol(text)])
}

/// RSNN_NN: the symbolic name of the node.
#[must_use]
pub fn register_node_symbol(node: Wwn, text: &str) -> Vec<u8> {
    message(Directory::RSNN_NN, 0, &[&node.bytes(), &symbol(text)])
}

/// GPN_FT: the ports of the Fibre Channel Protocol with their names, as many as a payload has room for.
#[must_use]
pub fn get_ports(payload: usize) -> Vec<u8> {
    // A payload has at most 2112 bytes.
    let words = payload.saturating_sub(size_of::<Preamble>()) / 4;
    message(Directory::GPN_FT, words as u16, &[&[0, 0, 0, FCP]])
}

/// The entries of an acceptance of GPN_FT.
pub fn ports(bytes: &[u8]) -> impl Iterator<Item = (PortId, Wwn)> {
    let mut is_last = false;
    let entries =
        bytes.chunks_exact(16).take_while(move |entry| !std::mem::replace(&mut is_last, entry[0] & LAST != 0));
    entries.filter_map(|entry| {
        let name = entry[8..].try_into().ok()?;
        Some((id_of(entry)?, Wwn::from_bytes(name)))
    })
}

/// An answer of a name server: entries, which are marked where they end.
#[must_use]
pub fn accept(parts: &[&[u8]]) -> Vec<u8> {
    message(Directory::ACCEPT, 0, parts)
}

/// A list of entries that begin with identifiers, with the names behind them.
#[must_use]
pub fn accept_ports(ports: &[(PortId, Option<Wwn>)]) -> Vec<u8> {
    let entry = |(at, (id, name)): (usize, &(PortId, Option<Wwn>))| {
        let mut bytes = word(*id).to_vec();
        bytes[0] = if at + 1 == ports.len() { LAST } else { 0 };
        name.iter().for_each(|name| bytes.extend([&[0; 4][..], &name.bytes()].concat()));
        bytes
    };
    accept(&[&ports.iter().enumerate().flat_map(entry).collect::<Vec<u8>>()])
}

/// The refusal of a request: the name server knows no such port.
#[must_use]
pub fn reject() -> Vec<u8> {
    let mut bytes = message(Directory::REJECT, 0, &[]);
    // Unable to perform the command; the port identifier is not registered.
    bytes[13..15].copy_from_slice(&[0x09, 0x01]);
    bytes
}

/// SCR: the port wants to know of all state changes (FC-LS).
#[must_use]
pub fn register_changes() -> [u8; 8] {
    [Els::SCR.0, 0, 0, 0, 0, 0, 0, 3]
}

/// RSCN about these ports (FC-LS).
#[must_use]
pub fn state_change(ids: &[PortId]) -> Vec<u8> {
    let len = (ids.len() * 4 + 4) as u16;
    let [high, low] = len.to_be_bytes();
    let pages: Vec<u8> = ids.iter().flat_map(|id| word(*id)).collect();
    [&[Els::RSCN.0, 4, high, low][..], &pages].concat()
}

/// A group of ports whose state has changed: the identifiers that begin with so many bytes of this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    id: PortId,
    bytes: usize,
}

impl Changed {
    /// Whether a port belongs to the group.
    #[must_use]
    pub fn has(self, id: PortId) -> bool {
        id.has_prefix(self.id, self.bytes)
    }
}

/// The pages of an RSCN; `None`: its lengths are wrong.
#[must_use]
pub fn changes(payload: &[u8]) -> Option<impl Iterator<Item = Changed>> {
    let [_, 4, high, low, ..] = *payload else { return None };
    let len = usize::from(u16::from_be_bytes([high, low]));
    let pages = payload.get(4..len).filter(|pages| !pages.is_empty() && pages.len().is_multiple_of(4))?;
    // The format of an address: a port, an area, a domain, or the whole fabric.
    let changed = |page: &[u8]| Some(Changed { id: id_of(page)?, bytes: 3 - usize::from(page[0] & 3) });
    Some(pages.chunks_exact(4).filter_map(changed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: PortId = PortId::FABRIC_PORT;

    #[test]
    fn requests_have_the_layouts_of_the_standard() {
        let head = |command: [u8; 2], words: u8| {
            [&[1, 0, 0, 0, 0xfc, 2, 0, 0][..], &command, &[0, words, 0, 0, 0, 0]].concat()
        };
        let features = register_features(ID, FEATURE_TARGET);
        assert_eq!(features, [head([2, 0x1f], 0), vec![0, 0xff, 0xff, 0xfe, 0, 0, 1, 8]].concat());
        assert_eq!(get_ports(56), [head([1, 0x72], 10), vec![0, 0, 0, 8]].concat());
        let types = register_types(ID);
        assert_eq!((types.len(), &types[16..24]), (52, &[0, 0xff, 0xff, 0xfe, 0, 0, 1, 0][..]));
        assert_eq!(types[27], 1, "Common Transport");
        assert_eq!(register_port_symbol(ID, "Lunar")[20..], *b"\x05Lunar");
        assert_eq!(register_node_symbol(Wwn(1), "Lunar").len(), 16 + 8 + 6);
        assert_eq!(register_changes(), [0x62, 0, 0, 0, 0, 0, 0, 3]);
    }

    #[test]
    fn lists_end_at_their_last_entry() {
        let id = |last| PortId::from_bytes([1, 2, last]);
        let all = [(id(3), Some(Wwn(7))), (id(4), Some(Wwn(8)))];
        let mut bytes = accept_ports(&all);
        bytes.extend([0; 16]);
        let (command, rest) = parse(&bytes).expect("it is read");
        assert_eq!(command, Directory::ACCEPT);
        assert_eq!(ports(rest).collect::<Vec<_>>(), [(id(3), Wwn(7)), (id(4), Wwn(8))]);
    }

    #[test]
    fn changes_are_of_ports_areas_domains_or_all() {
        let id = |bytes| PortId::from_bytes(bytes);
        let one = state_change(&[id([1, 2, 3])]);
        let has = |bytes: &[u8], of| changes(bytes).is_some_and(|mut pages| pages.any(|page| page.has(id(of))));
        assert!(has(&one, [1, 2, 3]) && !has(&one, [1, 2, 4]));
        for (format, near, far) in [(1, [1, 2, 9], [1, 9, 3]), (2, [1, 9, 9], [2, 2, 3])] {
            let mut bytes = one.clone();
            bytes[4] = format;
            assert!(has(&bytes, near) && !has(&bytes, far), "{format}");
        }
        let mut bytes = one.clone();
        bytes[4] = 3;
        assert!(has(&bytes, [9, 9, 9]));
        assert!(changes(&one[..6]).is_none() && changes(&[0x61, 4, 0, 4]).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some((_, rest)) = parse(&bytes) {
                prop_assert!(ports(rest).count() <= 5);
            }
            prop_assert!(changes(&bytes).is_none_or(|pages| pages.count() < 20));
        }
    }
}
