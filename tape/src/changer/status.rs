//! READ ELEMENT STATUS, and the search for volume tags (SMC-3 6.11, 6.14, 6.19).

use super::elements::Kind;
use super::{Changer, SEARCHES_MAX};
use crate::scsi::{Answer, Asc, Cdb, DataIn, DataOut, Sense, SenseKey, push_text, put};
use std::ops::Range;

/// Flags of an element.
const FULL: u8 = 0x01;
const IMPEXP: u8 = 0x02;
const ACCESS: u8 = 0x08;
const EXENAB_INENAB: u8 = 0x30;
/// SVALID: the source address is valid.
const SOURCE_VALID: u8 = 0x80;
/// PVOLTAG of a page.
const PRIMARY_TAG: u8 = 0x80;
/// Bytes of a volume tag, and of the template of SEND VOLUME TAG.
const TAG_BYTES: usize = 36;
const TEMPLATE_BYTES: usize = 40;
/// Most characters of a bar code in the template.
const CHARACTERS: usize = 32;
/// SEND VOLUME TAG: translate; search for primary volume tags, with or without sequence numbers.
const TRANSLATE: [u8; 2] = [0x01, 0x05];

/// The parts of a descriptor that the initiator wants.
#[derive(Clone, Copy)]
struct Wanted {
    tags: bool,
    drive_names: bool,
}

/// Whether a text fits a template, in which `?` stands for a character, and `*` for the rest.
fn fits(template: &[u8], text: &[u8]) -> bool {
    match (template, text) {
        ([b'*', ..], _) | ([], []) => true,
        ([b'?', template @ ..], [_, text @ ..]) => fits(template, text),
        ([one, template @ ..], [other, text @ ..]) if one == other => fits(template, text),
        _ => false,
    }
}

impl Changer {
    pub(super) fn read_element_status(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        let wanted = Wanted { tags: cdb.bit(1, 4), drive_names: cdb.bit(6, 0) };
        let bytes = self.report(cdb, 0, wanted, |_| true)?;
        put(&bytes, cdb.length(7, 3), into)
    }

    /// SEND VOLUME TAG: begins a search. Volume tags are bar codes, so that they cannot be changed.
    pub(super) fn send_volume_tag(&mut self, cdb: &Cdb<'_>, data: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        if !TRANSLATE.contains(&(cdb.byte(5) & 0x1f)) {
            return Err(Sense::cdb(5).into());
        }
        let length = cdb.length(8, 2);
        if length < TEMPLATE_BYTES {
            return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into());
        }
        let Some(list) = data.get(0..length) else {
            return Err(Sense::new(SenseKey::ABORTED_COMMAND, Asc::DATA_PHASE_ERROR).into());
        };
        let list = list.to_vec();
        let template = list[..CHARACTERS].trim_ascii_end();
        let template = template.strip_suffix(b"\0").unwrap_or(template);
        let end = template.iter().position(|c| *c == 0).unwrap_or(template.len());
        if self.searches.len() >= SEARCHES_MAX && !self.searches.contains_key(&self.nexus) {
            return Err(Sense::illegal(Asc::INSUFFICIENT_RESOURCES).into());
        }
        self.searches.insert(self.nexus, template[..end].to_vec());
        Ok(length)
    }

    /// REQUEST VOLUME ELEMENT ADDRESS: the elements that the last SEND VOLUME TAG of the nexus found.
    pub(super) fn request_volume_element_address(
        &mut self,
        cdb: &Cdb<'_>,
        _: DataOut<'_>,
        into: &mut DataIn<'_>,
    ) -> Answer {
        let search = self.searches.remove(&self.nexus);
        let is_found = |barcode: Option<&str>| {
            let both = search.as_ref().zip(barcode);
            both.is_some_and(|(template, barcode)| fits(template, barcode.as_bytes()))
        };
        let wanted = Wanted { tags: cdb.bit(1, 4), drive_names: false };
        let bytes = self.report(cdb, TRANSLATE[1], wanted, is_found)?;
        put(&bytes, cdb.length(7, 3), into)
    }

    /// The element status of the elements that the CDB names and `is_wanted` selects by bar code.
    fn report(
        &self,
        cdb: &Cdb<'_>,
        action: u8,
        wanted: Wanted,
        is_wanted: impl Fn(Option<&str>) -> bool,
    ) -> Result<Vec<u8>, Sense> {
        let (code, start, most) = (cdb.byte(1) & 0x0f, cdb.number(2, 2), cdb.length(4, 2));
        if code > Kind::Drive.code() {
            return Err(Sense::cdb(1));
        }
        let kinds = Kind::ALL.into_iter().filter(|kind| code == 0 || kind.code() == code);
        let (mut pages, mut first, mut count) = (Vec::new(), None, 0);
        for kind in kinds {
            let Range { start: own, end } = self.layout.addresses(kind);
            let from = u64::from(own).max(start).min(u64::from(end)) as u16;
            let barcode = |address| self.inventory.at(address).map(|occupant| occupant.barcode.as_str());
            let chosen = (from..end).filter(|address| is_wanted(barcode(*address)));
            let chosen: Vec<u16> = chosen.take(most - count).collect();
            if chosen.is_empty() {
                continue;
            }
            first = first.or_else(|| chosen.first().copied());
            count += chosen.len();
            // All descriptors of a page have the length of the longest one.
            let mut descriptors: Vec<Vec<u8>> =
                chosen.iter().map(|address| self.descriptor(kind, *address, wanted)).collect();
            let length = descriptors.iter().map(Vec::len).max().unwrap_or(0);
            descriptors.iter_mut().for_each(|one| one.resize(length, 0));
            pages.extend([kind.code(), if wanted.tags { PRIMARY_TAG } else { 0 }]);
            pages.extend((length as u16).to_be_bytes());
            pages.extend(((length * chosen.len()) as u32).to_be_bytes());
            pages.extend(descriptors.concat());
        }
        let mut bytes = first.unwrap_or(0).to_be_bytes().to_vec();
        bytes.extend((count as u16).to_be_bytes());
        bytes.extend((pages.len() as u32).to_be_bytes());
        bytes[4] = action;
        bytes.extend(pages);
        Ok(bytes)
    }

    fn descriptor(&self, kind: Kind, address: u16, wanted: Wanted) -> Vec<u8> {
        let occupant = self.inventory.at(address);
        let is_accessible = match self.drive(address) {
            Some(drive) => !drive.is_prevented(),
            None => kind != Kind::Transport,
        };
        let mut flags = if occupant.is_some() { FULL } else { 0 };
        flags |= if is_accessible { ACCESS } else { 0 };
        flags |= if kind == Kind::Port { EXENAB_INENAB } else { 0 };
        // A cartridge without a source was put into the port by the operator.
        let is_imported = occupant.is_some_and(|occupant| occupant.source.is_none());
        flags |= if kind == Kind::Port && is_imported { IMPEXP } else { 0 };
        let mut bytes = address.to_be_bytes().to_vec();
        bytes.extend([flags, 0, 0, 0, 0, 0, 0]);
        let source = occupant.and_then(|occupant| occupant.source);
        bytes.push(if source.is_some() { SOURCE_VALID } else { 0 });
        bytes.extend(source.unwrap_or(0).to_be_bytes());
        if wanted.tags {
            let end = bytes.len() + TAG_BYTES;
            if let Some(occupant) = occupant {
                push_text(&mut bytes, &occupant.barcode, CHARACTERS);
            }
            bytes.resize(end, 0);
        }
        match self.drive(address).filter(|_| wanted.drive_names) {
            Some(drive) => {
                let name = drive.designator();
                bytes.extend([0x02, 0x01, 0, name.len() as u8]);
                bytes.extend(name);
            }
            None => bytes.extend([0; 4]),
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_have_wildcards() {
        for (template, text, expected) in [
            ("LUN001L8", "LUN001L8", true),
            ("LUN*", "LUN001L8", true),
            ("LUN00?L8", "LUN001L8", true),
            ("*", "A", true),
            ("LUN001", "LUN001L8", false),
            ("LUN001L8X", "LUN001L8", false),
            ("", "A", false),
        ] {
            assert_eq!(fits(template.as_bytes(), text.as_bytes()), expected, "{template}");
        }
    }
}
