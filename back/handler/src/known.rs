//! The state of a SCSI device that all cores share.

use lunar_handler::wire::OperationCodes;
use lunar_scsi::forwarding::DeviceFacts;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Vital product data pages that are kept.
const PAGES_MAX: usize = 32;
/// Bytes of INQUIRY data that are kept of each page: what hosts ask for.
const INQUIRY_BYTES_MAX: usize = 255;
/// Bytes of the head of standard INQUIRY data and of a page that tell their length.
const HEAD_BYTES: usize = 5;

/// The state.
#[derive(Debug, Default)]
pub(crate) struct DeviceState {
    /// The properties that Lunar follows.
    pub(crate) facts: DeviceFacts,
    /// INQUIRY data as the handler returned it: the standard data, and pages by their codes.
    inquiry: Mutex<BTreeMap<Option<u8>, Vec<u8>>>,
    /// The operation codes of a handler of the mixed level, 64 in a word: cores do not lock.
    codes: [AtomicU64; OperationCodes::WORDS],
    /// The generation of the last handler.
    generation: AtomicU64,
    /// The last generation whose beginning all nexuses know.
    told: AtomicU64,
}

impl DeviceState {
    /// A handler has connected: it knows nothing of the commands before. Of the mixed level, it has those with `codes`.
    pub(crate) fn begin(&self, generation: u32, codes: &OperationCodes) {
        self.inquiry().clear();
        for (at, word) in self.codes.iter().enumerate() {
            word.store(codes.word(at), Ordering::Relaxed);
        }
        self.generation.store(generation.into(), Ordering::Release);
    }

    /// Whether the handler of the mixed level has the command with this code, or the last one had it if none is
    /// connected.
    pub(crate) fn has_code(&self, code: u8) -> bool {
        let bits = u64::BITS as u8;
        self.codes[usize::from(code / bits)].load(Ordering::Relaxed) & 1 << (code % bits) != 0
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether nexuses are to be told that there is another handler.
    pub(crate) fn has_event(&self) -> bool {
        self.told.load(Ordering::Acquire) != self.generation()
    }

    /// All nexuses were told that the handler of this generation has begun.
    pub(crate) fn event_told(&self, generation: u64) {
        self.told.store(generation, Ordering::Release);
    }

    fn inquiry(&self) -> MutexGuard<'_, BTreeMap<Option<u8>, Vec<u8>>> {
        self.inquiry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps INQUIRY data that a command has returned, if it is whole.
    pub(crate) fn learn(&self, cdb: &[u8], data: &[u8]) {
        let Some(page) = inquired(cdb) else { return };
        let length = match (page, data) {
            (None, [_, _, _, _, additional, ..]) => HEAD_BYTES + usize::from(*additional),
            (Some(_), [_, _, high, low, ..]) => 4 + usize::from(u16::from_be_bytes([*high, *low])),
            _ => return,
        };
        let mut all = self.inquiry();
        if let Some(whole) = data.get(..length).filter(|_| length <= INQUIRY_BYTES_MAX)
            && (all.len() < PAGES_MAX || all.contains_key(&page))
        {
            all.insert(page, whole.to_vec());
        }
    }

    /// The answer to INQUIRY while there is no handler; `None`: it is another command, or not known.
    pub(crate) fn answer(&self, cdb: &[u8]) -> Option<Vec<u8>> {
        let allocation = usize::from(u16::from_be_bytes([*cdb.get(3)?, *cdb.get(4)?]));
        let mut data = self.inquiry().get(&inquired(cdb)?)?.clone();
        data.truncate(allocation);
        Some(data)
    }
}

/// The most bytes of a reply that [`DeviceState::learn`] looks at; zero: it is no INQUIRY.
pub(crate) fn learned_bytes(cdb: &[u8]) -> usize {
    if is_inquiry(cdb) { INQUIRY_BYTES_MAX } else { 0 }
}

/// Whether it is INQUIRY.
pub(crate) fn is_inquiry(cdb: &[u8]) -> bool {
    matches!(cdb, [0x12, ..])
}

/// The page that an INQUIRY asks for, or the standard data.
fn inquired(cdb: &[u8]) -> Option<Option<u8>> {
    match *cdb {
        [0x12, 0, 0, ..] => Some(None),
        [0x12, 1, page, ..] => Some(Some(page)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_inquiry_data_is_kept_and_a_new_handler_has_its_own() {
        let device = DeviceState::default();
        let standard = [&[8, 0x80, 6, 2, 31][..], &[7; 31]].concat();
        let ask = |allocation| [0x12, 0, 0, 0, allocation, 0];
        device.learn(&ask(20), &standard[..20]);
        assert_eq!(device.answer(&ask(96)), None, "it was cut off");
        device.learn(&ask(96), &standard);
        device.learn(&[0x12, 1, 0x80, 0, 255, 0], &[8, 0x80, 0, 2, b'1', b'2', 99]);
        device.learn(&[0x00; 6], &standard);
        assert_eq!(device.answer(&ask(96)), Some(standard.clone()));
        assert_eq!(device.answer(&ask(5)), Some(standard[..5].to_vec()));
        assert_eq!(device.answer(&[0x12, 1, 0x80, 0, 255, 0]), Some(vec![8, 0x80, 0, 2, b'1', b'2']));
        assert_eq!(device.answer(&[0x12, 1, 0x83, 0, 255, 0]), None);
        assert_eq!(device.answer(&[0x12, 0, 0]), None);
        device.begin(7, &OperationCodes::from_iter([0x3f, 0xc0]));
        let codes: Vec<u8> = (0..=u8::MAX).filter(|code| device.has_code(*code)).collect();
        assert_eq!(codes, [0x3f, 0xc0]);
        assert_eq!(device.answer(&ask(96)), None);
        assert!(device.has_event());
        device.event_told(6);
        assert!(device.has_event(), "of an earlier one");
        device.event_told(7);
        assert!(!device.has_event());
    }
}
