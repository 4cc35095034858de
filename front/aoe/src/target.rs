//! The decision of a target about a request: a frame and the state of a slot in, a verdict out. Nothing here moves data
//! or waits.

use crate::slot::{RESERVED_MAX, SlotState};
use crate::wire::{
    ABORTED, ATA_LEN, Address, AtaCommand, AtaPart, CONFIG_STRING_MAX, Command, ConfigCommand, ConfigPart,
    DEVICE_READY, Directive, ErrorCode, FRAME_MIN, HEADER_LEN, Header, MaskCommand, MaskError, MaskPart,
    ReserveCommand, ReservePart, SECTOR, STATUS_ERROR, VERSION,
};
use lunar_link::MacAddress;
use zerocopy::{FromBytes, IntoBytes};

/// The requests that a station may have outstanding. Linux uses 64 at most, and less by its own measurements.
pub const BUFFERS: u16 = 64;
/// The firmware version that is reported.
const FIRMWARE: u16 = 0x0001;
/// The sector count register of a device that is active or idle, after CHECK POWER MODE.
const ACTIVE: u8 = 0xff;

/// The bytes behind an Ethernet header, as far as every request has them.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The station that sent it.
    pub source: MacAddress,
    /// The header.
    pub header: &'a Header,
    /// The bytes behind the header, with the padding of a short frame.
    pub body: &'a [u8],
}

impl<'a> Request<'a> {
    /// The request in a frame; `None` for a response and for a frame that is too short.
    #[must_use]
    pub fn parse(source: MacAddress, payload: &'a [u8]) -> Option<Self> {
        let (header, body) = Header::ref_from_prefix(payload).ok()?;
        (!header.is_response()).then_some(Self { source, header, body })
    }
}

/// A station and the slot that it addresses, as far as a verdict depends on them.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The address of the slot.
    pub address: Address,
    /// The configuration string and the MAC mask list of the slot.
    pub state: &'a SlotState,
    /// The most sectors of a request.
    pub sectors: u8,
}

/// The answer to a request: the bytes behind the Ethernet header, without the data of a read.
pub type Answer = Vec<u8>;

/// The decision about a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing: the station gets no answer.
    Ignore,
    /// This answer is sent.
    Answer(Answer),
    /// The configuration string is replaced by this one; then [`config_answer`] is sent.
    SetString(Vec<u8>),
    /// The MAC mask list is replaced by this one; then [`mask_answer`] is sent.
    SetMasks(Vec<MacAddress>),
    /// [`reserve_answer`] is sent with the stations for which the volume is reserved.
    ReadReservation,
    /// The volume is reserved for these stations, or for none; then [`reserve_answer`] is sent.
    Reserve {
        /// The stations.
        stations: Vec<MacAddress>,
        /// Whether the reservation of other stations is replaced.
        force: bool,
    },
    /// An ATA command is executed; then [`ata_answer`] is sent.
    Ata(Ata),
}

/// An ATA command that concerns the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ata {
    /// IDENTIFY DEVICE
    Identify,
    /// Reads sectors.
    Read(Sectors),
    /// Writes the sectors that follow the ATA part.
    Write(Sectors),
    /// Reads sectors and returns no data.
    Verify(Sectors),
    /// Brings what was written to the medium.
    Flush,
}

/// Consecutive sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sectors {
    /// The address of the first one.
    pub lba: u64,
    /// Their number.
    pub count: u8,
}

impl Sectors {
    /// The first byte.
    #[must_use]
    pub fn offset(self) -> u64 {
        self.lba * SECTOR as u64
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(self) -> usize {
        usize::from(self.count) * SECTOR
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.count == 0
    }
}

/// The most sectors of a request on a link whose frames carry this number of bytes.
#[must_use]
pub fn sectors_of(mtu: usize) -> u8 {
    // The initiator of Linux subtracts the Ethernet header as well.
    u8::try_from(mtu.saturating_sub(ATA_LEN) / SECTOR).unwrap_or(u8::MAX)
}

/// Decides about a request to a slot. The caller has checked that its header names the slot.
#[must_use]
pub fn decide(request: &Request<'_>, target: &Target<'_>) -> Verdict {
    if !target.state.admits(request.source) {
        return Verdict::Ignore;
    }
    if request.header.version() != VERSION {
        return error(request, target.address, ErrorCode::UNSUPPORTED_VERSION);
    }
    let verdict = match Command(request.header.command) {
        Command::CONFIG => config(request, target),
        // Only a query may name several targets: each of them would answer.
        _ if request.header.address().is_wildcard() => Some(Verdict::Ignore),
        Command::ATA => ata(request, target),
        Command::MASK => mask(request, target),
        Command::RESERVE => reserve(request, target),
        _ => Some(error(request, target.address, ErrorCode::UNRECOGNIZED_COMMAND)),
    };
    // A frame without all bytes of its command is malformed.
    verdict.unwrap_or(Verdict::Ignore)
}

/// The answer that a request failed.
#[must_use]
pub fn error_answer(request: &Header, address: Address, code: ErrorCode) -> Answer {
    padded(request.response(address, Some(code)).as_bytes().to_vec())
}

fn error(request: &Request<'_>, address: Address, code: ErrorCode) -> Verdict {
    // Of several targets that a request names, none reports an error.
    match request.header.address().is_wildcard() {
        true => Verdict::Ignore,
        false => Verdict::Answer(error_answer(request.header, address, code)),
    }
}

/// Fills an answer up to the length of the shortest frame.
fn padded(mut answer: Answer) -> Answer {
    const PAYLOAD_MIN: usize = FRAME_MIN - (HEADER_LEN - size_of::<Header>());
    answer.resize(answer.len().max(PAYLOAD_MIN), 0);
    answer
}

fn config(request: &Request<'_>, target: &Target<'_>) -> Option<Verdict> {
    let (part, rest) = ConfigPart::ref_from_prefix(request.body).ok()?;
    let len = usize::from(part.len.get());
    let bad = Some(error(request, target.address, ErrorCode::BAD_ARGUMENT));
    if len > CONFIG_STRING_MAX {
        return bad;
    }
    let (string, own) = (rest.get(..len)?, &target.state.string[..]);
    let answer = || Some(Verdict::Answer(config_answer(Some(request), target, own)));
    match part.command() {
        ConfigCommand::READ => answer(),
        ConfigCommand::TEST_EXACT if string == own => answer(),
        ConfigCommand::TEST_PREFIX if own.starts_with(string) => answer(),
        ConfigCommand::TEST_EXACT | ConfigCommand::TEST_PREFIX => Some(Verdict::Ignore),
        // One request must not give all targets one string.
        ConfigCommand::SET | ConfigCommand::FORCE_SET if request.header.address().is_wildcard() => {
            Some(Verdict::Ignore)
        }
        ConfigCommand::SET | ConfigCommand::FORCE_SET if string == own => answer(),
        ConfigCommand::SET if !own.is_empty() => Some(error(request, target.address, ErrorCode::CONFIG_STRING_PRESENT)),
        ConfigCommand::SET | ConfigCommand::FORCE_SET => Some(Verdict::SetString(string.to_vec())),
        _ => bad,
    }
}

/// The answer of Query Config Information with this string; without a request: the announcement of a target.
#[must_use]
pub fn config_answer(request: Option<&Request<'_>>, target: &Target<'_>, string: &[u8]) -> Answer {
    let announced = Header::request(target.address, Command::CONFIG, 0);
    let header = request.map_or(&announced, |request| request.header).response(target.address, None);
    let part = request.and_then(|request| ConfigPart::ref_from_prefix(request.body).ok());
    let command = part.map_or(ConfigCommand::READ, |(part, _)| part.command());
    let part = ConfigPart {
        buffers: BUFFERS.into(),
        firmware: FIRMWARE.into(),
        sectors: target.sectors,
        version_and_command: VERSION << 4 | command.0,
        // A string has at most `CONFIG_STRING_MAX` bytes.
        len: (string.len() as u16).into(),
    };
    padded([header.as_bytes(), part.as_bytes(), string].concat())
}

fn mask(request: &Request<'_>, target: &Target<'_>) -> Option<Verdict> {
    let (part, rest) = MaskPart::ref_from_prefix(request.body).ok()?;
    match MaskCommand(part.command) {
        MaskCommand::READ => {
            Some(Verdict::Answer(mask_answer(request.header, target.address, *part, Ok(target.state))))
        }
        MaskCommand::EDIT => {
            let (directives, _) = <[Directive]>::ref_from_prefix_with_elems(rest, usize::from(part.count)).ok()?;
            Some(match target.state.edited_masks(directives) {
                Ok(masks) => Verdict::SetMasks(masks),
                Err(why) => Verdict::Answer(mask_answer(request.header, target.address, *part, Err(why))),
            })
        }
        _ => Some(error(request, target.address, ErrorCode::BAD_ARGUMENT)),
    }
}

/// The part of a MAC Mask List request.
#[must_use]
pub fn mask_part(body: &[u8]) -> Option<MaskPart> {
    MaskPart::read_from_prefix(body).ok().map(|(part, _)| part)
}

/// The answer of MAC Mask List: the list that is in force, or the error.
#[must_use]
pub fn mask_answer(
    request: &Header,
    address: Address,
    part: MaskPart,
    result: Result<&SlotState, MaskError>,
) -> Answer {
    let masks = result.map_or(&[][..], |state| &state.masks);
    let error = result.err().map_or(0, |error| error.0);
    // A list has at most `MASKS_MAX` entries.
    let part = MaskPart { error, count: masks.len() as u8, ..part };
    let directive = |mac: &MacAddress| Directive { reserved: 0, command: 0, mac: mac.0 };
    let directives: Vec<Directive> = masks.iter().map(directive).collect();
    padded([request.response(address, None).as_bytes(), part.as_bytes(), directives.as_bytes()].concat())
}

fn reserve(request: &Request<'_>, target: &Target<'_>) -> Option<Verdict> {
    let (part, rest) = ReservePart::ref_from_prefix(request.body).ok()?;
    let force = match ReserveCommand(part.command) {
        ReserveCommand::READ => return Some(Verdict::ReadReservation),
        ReserveCommand::SET => false,
        ReserveCommand::FORCE_SET => true,
        _ => return Some(error(request, target.address, ErrorCode::BAD_ARGUMENT)),
    };
    let (macs, _) = <[[u8; 6]]>::ref_from_prefix_with_elems(rest, usize::from(part.count)).ok()?;
    let mut stations: Vec<MacAddress> = macs.iter().map(|mac| MacAddress(*mac)).collect();
    stations.sort_unstable();
    stations.dedup();
    if stations.len() > RESERVED_MAX || stations.iter().any(|station| station.is_group()) {
        return Some(error(request, target.address, ErrorCode::BAD_ARGUMENT));
    }
    Some(Verdict::Reserve { stations, force })
}

/// The answer of Reserve/Release: the stations for which the volume is reserved.
#[must_use]
pub fn reserve_answer(
    request: &Request<'_>,
    address: Address,
    stations: &[MacAddress],
    error: Option<ErrorCode>,
) -> Answer {
    let stations = &stations[..stations.len().min(RESERVED_MAX)];
    let part = ReservePart { command: request.body.first().copied().unwrap_or(0), count: stations.len() as u8 };
    let macs: Vec<u8> = stations.iter().flat_map(|station| station.0).collect();
    padded([request.header.response(address, error).as_bytes(), part.as_bytes(), &macs].concat())
}

fn ata(request: &Request<'_>, target: &Target<'_>) -> Option<Verdict> {
    let (part, data) = AtaPart::ref_from_prefix(request.body).ok()?;
    let answer = |status, error, count| {
        let registers = Registers { status, error, count };
        Some(Verdict::Answer(padded(ata_answer(request.header, target.address, part, registers).to_vec())))
    };
    let aborted = || answer(DEVICE_READY | STATUS_ERROR, ABORTED, part.count);
    let short = Sectors { lba: part.lba28(), count: part.count };
    let long = Sectors { lba: part.lba48(), count: part.count };
    let command = AtaCommand(part.command_or_status);
    let verdict = match command {
        AtaCommand::IDENTIFY_DEVICE => Ata::Identify,
        AtaCommand::READ_SECTORS => Ata::Read(short),
        AtaCommand::READ_SECTORS_EXT => Ata::Read(long),
        AtaCommand::WRITE_SECTORS => Ata::Write(short),
        AtaCommand::WRITE_SECTORS_EXT => Ata::Write(long),
        AtaCommand::READ_VERIFY_SECTORS => Ata::Verify(short),
        AtaCommand::READ_VERIFY_SECTORS_EXT => Ata::Verify(long),
        AtaCommand::FLUSH_CACHE | AtaCommand::FLUSH_CACHE_EXT => Ata::Flush,
        AtaCommand::CHECK_POWER_MODE => return answer(DEVICE_READY, 0, ACTIVE),
        // There is no motor.
        AtaCommand::STANDBY_IMMEDIATE
        | AtaCommand::IDLE_IMMEDIATE
        | AtaCommand::STANDBY
        | AtaCommand::IDLE
        | AtaCommand::SLEEP => return answer(DEVICE_READY, 0, 0),
        _ => return aborted(),
    };
    match verdict {
        Ata::Identify if part.count != 1 => aborted(),
        Ata::Write(sectors) if data.len() < sectors.len() => None,
        // The answer of a longer read does not fit into a frame.
        Ata::Read(sectors) | Ata::Write(sectors) if sectors.is_empty() || sectors.count > target.sectors => aborted(),
        Ata::Verify(sectors) if sectors.is_empty() => aborted(),
        verdict => Some(Verdict::Ata(verdict)),
    }
}

/// The registers after an ATA command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registers {
    /// Status.
    pub status: u8,
    /// Error.
    pub error: u8,
    /// Sector count.
    pub count: u8,
}

impl Registers {
    /// The registers after a success.
    pub const GOOD: Self = Self { status: DEVICE_READY, error: 0, count: 0 };

    /// The registers after a failure.
    #[must_use]
    pub fn failed(status: u8, error: u8) -> Self {
        Self { status: DEVICE_READY | STATUS_ERROR | status, error, count: 0 }
    }
}

/// The bytes of the answer of an ATA command behind the Ethernet header, before the data of a read.
pub const ATA_ANSWER_LEN: usize = size_of::<Header>() + size_of::<AtaPart>();

/// The answer of an ATA command, to which the data of a read is appended.
#[must_use]
pub fn ata_answer(request: &Header, address: Address, part: &AtaPart, registers: Registers) -> [u8; ATA_ANSWER_LEN] {
    let part = AtaPart {
        feature_or_error: registers.error,
        count: registers.count,
        command_or_status: registers.status,
        ..*part
    };
    let mut answer = [0; ATA_ANSWER_LEN];
    answer[..size_of::<Header>()].copy_from_slice(request.response(address, None).as_bytes());
    answer[size_of::<Header>()..].copy_from_slice(part.as_bytes());
    answer
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
