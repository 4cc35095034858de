//! The identity of a device, and what it says about itself.

use crate::timeouts::Timeouts;
use lunar_reactor::scsi_generic::Node;
use lunar_scsi::peripheral::PeripheralType;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::time::Duration;

/// The time-out of a command that identifies.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of standard INQUIRY data that every device has; some devices are confused by longer allocation lengths.
const STANDARD_MIN: usize = 36;
/// Bytes of INQUIRY data that are kept of each page.
const INQUIRY_MAX: usize = 255;
/// Vital product data pages that are kept.
const PAGES_MAX: usize = 32;
/// Bytes of the list of supported commands.
const COMMANDS_MAX: u16 = 8192;
/// Unit attention conditions that are taken when a device is opened.
const ATTENTIONS_MAX: usize = 5;

/// The identity of a device, and the INQUIRY data that it returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// PERIPHERAL DEVICE TYPE.
    pub(crate) device_type: PeripheralType,
    /// T10 VENDOR IDENTIFICATION and PRODUCT IDENTIFICATION, without spaces at their ends.
    pub(crate) vendor: String,
    pub(crate) product: String,
    /// A name that no other device has: a designator of the Device Identification VPD page, or vendor, product and
    /// serial number. `None`: the device has no name.
    pub(crate) name: Option<String>,
    /// Standard INQUIRY data.
    standard: Vec<u8>,
    /// Vital product data pages.
    pages: BTreeMap<u8, Vec<u8>>,
}

impl Found {
    /// Whether both are the same device, as far as it has a name.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let parts = |found: &Self| (found.device_type, found.vendor.clone(), found.product.clone(), found.name.clone());
        parts(self) == parts(other)
    }

    /// The answer to INQUIRY while the device is unavailable.
    pub(crate) fn inquiry(&self, cdb: &[u8]) -> Option<&[u8]> {
        match *cdb {
            [0x12, 0, 0, ..] => Some(&self.standard),
            [0x12, 1, page, ..] => self.pages.get(&page).map(Vec::as_slice),
            _ => None,
        }
    }
}

/// Asks a device what it is. No unit attention condition is taken.
pub(crate) fn identify(node: &mut Node) -> io::Result<Found> {
    let mut standard = inquire(node, None, STANDARD_MIN)?;
    if standard.len() < STANDARD_MIN {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the device returns no INQUIRY data"));
    }
    let whole = (usize::from(standard[4]) + 5).min(INQUIRY_MAX);
    if whole > STANDARD_MIN {
        standard = inquire(node, None, whole).ok().filter(|more| more.len() >= STANDARD_MIN).unwrap_or(standard);
    }
    let mut pages = BTreeMap::new();
    if let Ok(list) = inquire(node, Some(0), INQUIRY_MAX) {
        let codes = list.get(4..).unwrap_or_default().iter().copied().take(PAGES_MAX).collect::<Vec<u8>>();
        pages.insert(0, list);
        for code in codes.into_iter().filter(|code| *code != 0) {
            if let Ok(page) = inquire(node, Some(code), INQUIRY_MAX) {
                pages.insert(code, page);
            }
        }
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_matches([' ', '\0']).to_owned();
    let (vendor, product) = (text(&standard[8..16]), text(&standard[16..32]));
    let serial = pages.get(&0x80).and_then(|page| page.get(4..)).map(text).filter(|serial| !serial.is_empty());
    let name = pages.get(&0x83).and_then(|page| designator(page));
    let name = name.or_else(|| Some(format!("serial {vendor} {product} {}", serial?)));
    Ok(Found { device_type: PeripheralType(standard[0] & 0x1f), vendor, product, name, standard, pages })
}

/// INQUIRY of the standard data, or of a page. The length in the data counts if the device moves more.
fn inquire(node: &mut Node, page: Option<u8>, len: usize) -> io::Result<Vec<u8>> {
    let mut data = vec![0; len];
    let cdb = [0x12, u8::from(page.is_some()), page.unwrap_or(0), 0, len as u8, 0];
    let reply = node.execute(&cdb, &mut data, PATIENCE)?;
    if reply.host_status != 0 || reply.status != 0 {
        return Err(io::Error::other("INQUIRY does not succeed"));
    }
    data.truncate(reply.moved(len));
    if page.is_some() && data.len() >= 4 {
        data.truncate(4 + usize::from(u16::from_be_bytes([data[2], data[3]])));
    }
    Ok(data)
}

/// The best name of a logical unit in the Device Identification VPD page (SPC-4 7.8.6).
fn designator(page: &[u8]) -> Option<String> {
    let mut rest = page.get(4..)?;
    let mut best: Option<(u8, String)> = None;
    while let [code_set, kind, _, length, more @ ..] = rest {
        let (value, others) = more.split_at_checked((*length).into())?;
        rest = others;
        // NAA, EUI-64, UUID, SCSI name string, T10 vendor identification. Those of ports say nothing about the unit.
        let rank = match kind & 0x0f {
            3 => 5,
            2 => 4,
            0xa => 3,
            8 => 2,
            1 => 1,
            _ => 0,
        };
        let is_of_unit = kind & 0x30 == 0;
        if is_of_unit && rank > best.as_ref().map_or(0, |(rank, _)| *rank) && value.iter().any(|byte| *byte != 0) {
            let mut name = format!("{} {} ", kind & 0x0f, code_set & 0x0f);
            value.iter().for_each(|byte| _ = write!(name, "{byte:02x}"));
            best = Some((rank, name));
        }
    }
    best.map(|(_, name)| name)
}

/// Takes the unit attention conditions that a device has for this machine when it is opened.
pub(crate) fn settle(node: &mut Node) {
    for _ in 0..ATTENTIONS_MAX {
        // TEST UNIT READY
        match node.execute(&[0; 6], &mut [], PATIENCE) {
            Ok(reply) if is_attention(reply.sense()) => {}
            _ => return,
        }
    }
}

/// Whether sense data reports a unit attention condition.
fn is_attention(sense: &[u8]) -> bool {
    match sense {
        [code, _, key, ..] if code & 0x7f == 0x70 => key & 0x0f == 6,
        [code, key, ..] if code & 0x7f == 0x72 => key & 0x0f == 6,
        _ => false,
    }
}

/// The time-outs that a device reports; none if it does not know the command.
pub(crate) fn timeouts(node: &mut Node) -> Timeouts {
    let mut data = vec![0; COMMANDS_MAX.into()];
    match node.execute(&Timeouts::question(COMMANDS_MAX), &mut data, PATIENCE) {
        Ok(reply) if reply.status == 0 && reply.host_status == 0 => Timeouts::of(&data[..reply.moved(data.len())]),
        _ => Timeouts::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_best_name_of_the_logical_unit_is_taken() {
        let t10 = [&[2, 1, 0, 4][..], b"ABCD"].concat();
        let naa = [&[1, 3, 0, 8][..], &[0x50, 1, 2, 3, 4, 5, 6, 7]].concat();
        let port = [1, 0x93, 0, 8, 9, 9, 9, 9, 9, 9, 9, 9];
        let page = [&[0, 0x83, 0, 0][..], &port, &t10, &naa].concat();
        assert_eq!(designator(&page).as_deref(), Some("3 1 5001020304050607"));
        assert_eq!(designator(&page[..24]).as_deref(), Some("1 2 41424344"));
        assert_eq!(designator(&page[..16]), None);
        assert_eq!(designator(&[0, 0x83, 0, 12, 1, 3, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]), None, "a name of zeroes");
    }

    proptest! {
        #[test]
        fn any_page_has_a_name_or_none(page in prop::collection::vec(any::<u8>(), 0..255)) {
            let _ = designator(&page);
        }
    }
}
