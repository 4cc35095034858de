//! Follows the properties of a device: from replies to commands of initiators, and from commands of Lunar itself.

use super::state::DeviceFacts;
use super::timeouts;
use crate::change::{Change, ScsiChange};
use crate::command::{Cdb, Status, TaskAttribute};
use crate::device_server::{ForwardedCommand, ForwardedData, ForwardedReply, PendingReply};
use crate::lu::{Forwarded, LogicalUnit};
use crate::peripheral::PeripheralType;
use crate::policy::Timeout;
use crate::sense::{Asc, SenseKey};
use crate::target::Target;
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, Sg};
use lunar_core::port::NexusName;

/// Bytes of the mode parameters that are asked for: a header, a block descriptor and the control mode page fit.
const MODE_BYTES: usize = 252;
/// How often a command of Lunar is repeated after a unit attention condition.
const ATTEMPTS: usize = 5;
/// PAGE CODE of the control mode page.
const CONTROL_PAGE: u8 = 0x0a;

impl Target {
    /// Asks the device for the properties that Lunar follows, if they may have changed.
    pub(crate) async fn follow(&self, (lu, device): (&LogicalUnit, &Forwarded), arena: &Arena) {
        let facts = device.unit.device.facts();
        if !is_followed(lu.device_type) || !facts.take_stale() {
            return;
        }
        // MODE SENSE(6) with the control mode page, MODE SENSE(6) with the block descriptor alone, MODE SENSE(10).
        let mode = [
            [0x1a, 0, CONTROL_PAGE, 0, MODE_BYTES as u8, 0, 0, 0, 0, 0],
            [0x1a, 0, 0, 0, 12, 0, 0, 0, 0, 0],
            [0x5a, 0, CONTROL_PAGE, 0, 0, 0, 0, 0, MODE_BYTES as u8, 0],
        ];
        for cdb in &mode {
            let cdb = &cdb[..if cdb[0] == 0x1a { 6 } else { 10 }];
            if let Some(data) = self.ask((lu, device), cdb, MODE_BYTES, arena).await {
                learn(facts, lu.device_type, cdb, &data);
                break;
            }
        }
        if lu.device_type != PeripheralType::TAPE {
            // READ CAPACITY(10)
            let cdb = [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            if let Some(data) = self.ask((lu, device), &cdb, 8, arena).await {
                learn(facts, lu.device_type, &cdb, &data);
            }
        }
    }

    /// The Data-In of a command of Lunar itself; `None` if it did not succeed.
    pub(crate) async fn ask(
        &self,
        (lu, device): (&LogicalUnit, &Forwarded),
        cdb: &[u8],
        len: usize,
        arena: &Arena,
    ) -> Option<Vec<u8>> {
        let memory = || Some(ForwardedData::In(arena.take_sg(len)?));
        let reply = self.execute_own((lu, device), cdb, memory).await.ok()?;
        let (Status::GOOD, ForwardedData::In(memory)) = (reply.status, reply.data) else { return None };
        let mut data = memory.share().to_vec();
        data.truncate(reply.moved);
        Some(data)
    }

    /// Executes a command of Lunar itself. Unit attention conditions that it meets are established for all nexuses, and
    /// the command is repeated.
    pub(crate) async fn execute_own(
        &self,
        (lu, device): (&LogicalUnit, &Forwarded),
        cdb: &[u8],
        memory: impl Fn() -> Option<ForwardedData>,
    ) -> Result<ForwardedReply, Fault> {
        let mut attempts = 1..=ATTEMPTS;
        loop {
            let data = memory().ok_or(Fault::NoMemory)?;
            let reply = device.execute_own(cdb, data).await?;
            match (reply.status, reply.sense.meaning()) {
                (Status::CHECK_CONDITION, Some((SenseKey::UNIT_ATTENTION, asc))) if attempts.next().is_some() => {
                    self.tell(lu, None, asc).await;
                }
                _ => return Ok(reply),
            }
        }
    }

    /// Establishes a unit attention condition of the device for all nexuses except this one.
    pub(crate) async fn tell(&self, lu: &LogicalUnit, except: Option<&NexusName>, asc: Asc) {
        let change = ScsiChange { change: Change::Device(asc), record: None };
        // It is never refused: it needs no metadata.
        let _ = self.config.units.propose(lu, except, change.into()).await;
    }

    /// Takes the event of a device that came back or was reset: all nexuses are told.
    pub(crate) async fn take_event(&self, (lu, device): (&LogicalUnit, &Forwarded)) {
        let server = &device.unit.device;
        let generation = server.generation();
        if let Some(asc) = server.take_event() {
            server.facts().reset();
            self.tell(lu, None, asc).await;
            server.event_told(generation);
            self.settle_prevention((lu, device)).await;
        }
    }
}

impl Forwarded {
    /// Executes a command of Lunar itself.
    async fn execute_own(&self, cdb: &[u8], data: ForwardedData) -> Result<ForwardedReply, Fault> {
        let cdb = Cdb::new(cdb).ok_or(Fault::Unsupported)?;
        let timeout = timeouts::of(Timeout::Quick, self.unit.device.device_type());
        let pending = PendingReply::default();
        let (id, attribute) = (self.next_command(), TaskAttribute::SIMPLE);
        let generation = self.unit.device.generation();
        let command = ForwardedCommand { id, nexus: None, generation, cdb, attribute, data, timeout };
        self.unit.device.submit(command, pending.duty());
        pending.wait().await
    }
}

/// Whether Lunar follows properties of devices of this type.
fn is_followed(device: PeripheralType) -> bool {
    matches!(
        device,
        PeripheralType::DISK
            | PeripheralType::TAPE
            | PeripheralType::OPTICAL_MEMORY
            | PeripheralType::CHANGER
            | PeripheralType::SIMPLE_DISK
            | PeripheralType::ZONED
    )
}

/// Whether a unit attention condition says that properties may have changed.
pub(crate) fn concerns_facts(asc: Asc) -> bool {
    /// Medium changed, reset, parameters changed, other initiators, target operating conditions changed.
    const CODES: [u16; 5] = [0x28, 0x29, 0x2a, 0x2f, 0x3f];
    CODES.contains(&(asc.0 >> 8))
}

/// Learns from the first bytes of the Data-In of a command that ended with GOOD.
pub(crate) fn learn(facts: &DeviceFacts, device: PeripheralType, cdb: &[u8], data: &[u8]) {
    let long = |at: usize| data.get(at..at + 4).map(|bytes| bytes.iter().fold(0, |n, b| n << 8 | u32::from(*b)));
    match cdb {
        // READ CAPACITY(10), READ CAPACITY(16)
        [0x25, ..] if device != PeripheralType::TAPE => long(4).into_iter().for_each(|len| facts.set_block_length(len)),
        [0x9e, action, ..] if action & 0x1f == 0x10 => {
            long(8).into_iter().for_each(|len| facts.set_block_length(len));
        }
        // MODE SENSE of current values
        [0x1a | 0x5a, _, page, ..] if page >> 6 == 0 => {
            let Some(found) = ModeData::of(data, cdb[0] == 0x5a) else { return };
            if let (Some(len), PeripheralType::TAPE) = (found.block_length, device) {
                facts.set_block_length(len);
            }
            found.descriptor_sense.into_iter().for_each(|value| facts.set_descriptor_sense(value));
        }
        _ => {}
    }
}

/// The parts of mode parameters that Lunar follows.
#[derive(PartialEq, Eq, Debug)]
struct ModeData {
    block_length: Option<u32>,
    descriptor_sense: Option<bool>,
}

impl ModeData {
    fn of(data: &[u8], is_long: bool) -> Option<Self> {
        /// LONGLBA: block descriptors of 16 bytes.
        const LONG_LBA: u8 = 0x01;
        /// D_SENSE.
        const D_SENSE: u8 = 0x04;
        let (header, length, is_long_lba) = match is_long {
            false => (4, usize::from(*data.get(3)?), false),
            true => (8, usize::from(u16::from_be_bytes([*data.get(6)?, *data.get(7)?])), data[4] & LONG_LBA != 0),
        };
        let descriptor = data.get(header..header + 8).filter(|_| length >= 8 && !is_long_lba);
        let block_length = descriptor.map(|bytes| u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]));
        let mut pages = data.get(header + length..).unwrap_or_default();
        let mut descriptor_sense = None;
        while let [code, ..] = *pages {
            /// SPF: a subpage, whose length has two bytes.
            const SUBPAGE: u8 = 0x40;
            let size = match pages {
                [_, _, high, low, ..] if code & SUBPAGE != 0 => 4 + usize::from(u16::from_be_bytes([*high, *low])),
                [_, length, ..] => 2 + usize::from(*length),
                _ => break,
            };
            if code & 0x7f == CONTROL_PAGE {
                descriptor_sense = pages.get(2).map(|byte| byte & D_SENSE != 0);
            }
            pages = pages.get(size..).unwrap_or_default();
        }
        Some(Self { block_length, descriptor_sense })
    }
}

/// The first bytes of Data-In, for [`learn`].
pub(crate) fn head(data: &Sg, moved: usize) -> Vec<u8> {
    let mut head = vec![0; moved.min(MODE_BYTES)];
    data.copy_to(0, &mut head);
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mode_parameters_tell_block_length_and_sense_format() {
        let short = [&[23, 0, 0x10, 8][..], &[0x40, 0, 0, 0, 0, 0, 3, 0xe8], &[0x0a, 10, 4], &[0; 9]].concat();
        let expected = Some(ModeData { block_length: Some(1000), descriptor_sense: Some(true) });
        assert_eq!(ModeData::of(&short, false), expected);
        let long = [&[0, 26, 0, 0x10, 0, 0, 0, 8][..], &[0, 0, 0, 0, 0, 0, 2, 0], &[0x8a, 10, 0], &[0; 9]].concat();
        let expected = Some(ModeData { block_length: Some(512), descriptor_sense: Some(false) });
        assert_eq!(ModeData::of(&long, true), expected);
        let bare = Some(ModeData { block_length: None, descriptor_sense: None });
        assert_eq!(ModeData::of(&[3, 0, 0, 0], false), bare);
        assert_eq!(ModeData::of(&[0, 22, 0, 0, 1, 0, 0, 16, 0, 0], true), bare, "a long block descriptor");
        let subpage = [&[0, 0, 0, 0][..], &[0x4a, 1, 0, 2, 4, 4], &[0x0a, 10, 4]].concat();
        assert_eq!(ModeData::of(&subpage, false).and_then(|found| found.descriptor_sense), Some(true));
    }

    proptest! {
        #[test]
        fn any_reply_does_no_harm(
            device in 0u8..32,
            cdb in prop::collection::vec(any::<u8>(), 0..16),
            data in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            learn(&DeviceFacts::default(), PeripheralType(device), &cdb, &data);
            let _ = (ModeData::of(&data, false), ModeData::of(&data, true));
        }
    }
}
