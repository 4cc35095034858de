//! SCSI commands as values: the CDB, the sense data, the answer, and tables of commands (SPC-4).

pub use lunar_handler::data::{DataIn, DataOut};
pub use lunar_scsi::Status;
pub use lunar_scsi::sense::{Asc, SenseKey};
use std::fmt;

/// Vendor identification of all devices.
pub const VENDOR: &str = "LUNAR";
/// Most unit attention conditions that wait. Each is recorded once, so this is the number of kinds.
const ATTENTIONS_MAX: usize = 8;

/// A field that a sense key specific field pointer names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// It is in the CDB; otherwise in the parameter list.
    pub in_cdb: bool,
    /// Its first byte.
    pub byte: u16,
}

/// Sense data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sense {
    /// Sense key.
    pub key: SenseKey,
    /// Additional sense code.
    pub asc: Asc,
    /// FILEMARK.
    pub filemark: bool,
    /// End of medium.
    pub eom: bool,
    /// Incorrect length indicator.
    pub ili: bool,
    /// INFORMATION.
    pub information: Option<i64>,
    /// The field at fault.
    pub field: Option<Field>,
}

impl Sense {
    /// Sense data without flags.
    #[must_use]
    pub const fn new(key: SenseKey, asc: Asc) -> Self {
        Self { key, asc, filemark: false, eom: false, ili: false, information: None, field: None }
    }

    /// ILLEGAL REQUEST.
    #[must_use]
    pub const fn illegal(asc: Asc) -> Self {
        Self::new(SenseKey::ILLEGAL_REQUEST, asc)
    }

    /// INVALID FIELD IN CDB, with the byte.
    #[must_use]
    pub const fn cdb(byte: u16) -> Self {
        let sense = Self::illegal(Asc::INVALID_FIELD_IN_CDB);
        Self { field: Some(Field { in_cdb: true, byte }), ..sense }
    }

    /// INVALID FIELD IN PARAMETER LIST, with the byte.
    #[must_use]
    pub const fn parameter(byte: u16) -> Self {
        let sense = Self::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
        Self { field: Some(Field { in_cdb: false, byte }), ..sense }
    }

    /// With INFORMATION.
    #[must_use]
    pub const fn with(self, information: i64) -> Self {
        Self { information: Some(information), ..self }
    }

    /// The bytes, in fixed format (SPC-4 4.5.3) or descriptor format (SPC-4 4.5.2).
    #[must_use]
    pub fn bytes(&self, descriptors: bool) -> Vec<u8> {
        let flags = u8::from(self.filemark) << 7 | u8::from(self.eom) << 6 | u8::from(self.ili) << 5;
        let pointer = self.field.map(|field| {
            let [high, low] = field.byte.to_be_bytes();
            [0x80 | u8::from(field.in_cdb) << 6, high, low]
        });
        if !descriptors {
            let mut bytes = vec![0; 18];
            // INFORMATION has 32 bits here; a value that does not fit is not valid.
            let information = self.information.and_then(|value| i32::try_from(value).ok());
            bytes[0] = 0x70 | u8::from(information.is_some()) << 7;
            bytes[2] = flags | self.key.0;
            bytes[3..7].copy_from_slice(&information.unwrap_or(0).to_be_bytes());
            bytes[7] = 10;
            bytes[12..14].copy_from_slice(&self.asc.0.to_be_bytes());
            bytes[15..18].copy_from_slice(&pointer.unwrap_or([0; 3]));
            return bytes;
        }
        let [asc, qualifier] = self.asc.0.to_be_bytes();
        let mut bytes = vec![0x72, self.key.0, asc, qualifier, 0, 0, 0, 0];
        if let Some(information) = self.information {
            bytes.extend([0x00, 0x0a, 0x80, 0]);
            bytes.extend(information.to_be_bytes());
        }
        if let Some(pointer) = pointer {
            bytes.extend([0x02, 0x06, 0, 0]);
            bytes.extend(pointer);
            bytes.push(0);
        }
        if flags != 0 {
            bytes.extend([0x04, 0x02, 0, flags]);
        }
        bytes[7] = u8::try_from(bytes.len() - 8).unwrap_or(u8::MAX);
        bytes
    }
}

/// A command that ended with CHECK CONDITION.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    /// The sense data.
    pub sense: Sense,
    /// Bytes that were moved all the same.
    pub moved: usize,
}

impl From<Sense> for Check {
    fn from(sense: Sense) -> Self {
        Self { sense, moved: 0 }
    }
}

/// The result of a command: the bytes that were moved, of either direction.
pub type Answer = Result<usize, Check>;

/// The answer to a command as the transport sends it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// SCSI status.
    pub status: Status,
    /// Sense data; empty without CHECK CONDITION.
    pub sense: Vec<u8>,
    /// Bytes that were moved.
    pub moved: usize,
}

/// A CDB. Bytes behind its end are zero.
#[derive(Clone, Copy)]
pub struct Cdb<'a>(pub &'a [u8]);

impl fmt::Debug for Cdb<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.0)
    }
}

impl Cdb<'_> {
    /// A byte.
    #[must_use]
    pub fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// A bit of a byte.
    #[must_use]
    pub fn bit(&self, at: usize, bit: u8) -> bool {
        self.byte(at) >> bit & 1 != 0
    }

    /// A big-endian number of up to eight bytes.
    #[must_use]
    pub fn number(&self, at: usize, bytes: usize) -> u64 {
        (at..at + bytes).fold(0, |number, at| number << 8 | u64::from(self.byte(at)))
    }

    /// A big-endian number that fits in memory.
    #[must_use]
    pub fn length(&self, at: usize, bytes: usize) -> usize {
        usize::try_from(self.number(at, bytes)).unwrap_or(usize::MAX)
    }

    /// A signed big-endian number of three bytes.
    #[must_use]
    pub fn signed24(&self, at: usize) -> i64 {
        (self.number(at, 3) as i64) << 40 >> 40
    }
}

/// Copies `bytes` to the memory for Data-In, as far as it and the allocation length allow.
pub fn put(bytes: &[u8], allocation: usize, into: &mut DataIn<'_>) -> Answer {
    Ok(into.put(0, &bytes[..bytes.len().min(allocation)]))
}

/// Appends a text, padded with spaces.
pub fn push_text(bytes: &mut Vec<u8>, text: &str, length: usize) {
    let end = bytes.len() + length;
    bytes.extend(text.bytes().take(length));
    bytes.resize(end, b' ');
}

/// The condition of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Nothing: it is executed even if a unit attention condition waits.
    Nothing,
    /// No medium.
    NoMedium,
    /// A loaded medium.
    Medium,
}

impl Needs {
    /// In words, for the documentation.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Nothing => "nothing; ignores unit attention conditions",
            Self::NoMedium => "no medium",
            Self::Medium => "a loaded medium",
        }
    }
}

/// A row of the table of commands of a device `D`.
pub struct Row<D: 'static> {
    /// Name in the standard.
    pub name: &'static str,
    /// Operation code.
    pub code: u8,
    /// Service action in byte 1, bits 4 to 0.
    pub action: Option<u8>,
    /// The bits of the CDB that are evaluated, from byte 1 to the byte before CONTROL, which is the last one.
    pub usage: &'static [u8],
    /// Its condition.
    pub needs: Needs,
    /// Executes it.
    pub run: fn(&mut D, &Cdb<'_>, DataOut<'_>, &mut DataIn<'_>) -> Answer,
}

impl<D> Row<D> {
    /// Bytes of the CDB.
    #[must_use]
    pub fn cdb_bytes(&self) -> usize {
        self.usage.len() + 2
    }

    /// Checks the length of the CDB and its reserved bits. The bits of a LUN of SCSI-2 are ignored.
    fn check(&self, cdb: &Cdb<'_>) -> Result<(), Sense> {
        if cdb.0.len() < self.cdb_bytes() {
            return Err(Sense::illegal(Asc::INVALID_FIELD_IN_CDB));
        }
        let ignored = |at: usize| if at == 1 { 0xe0 } else { 0 };
        let wrong = (1..).zip(self.usage).find(|(at, used)| cdb.byte(*at) & !(**used | ignored(*at)) != 0);
        match wrong {
            Some((at, _)) => Err(Sense::cdb(u16::try_from(at).unwrap_or(0))),
            None => Ok(()),
        }
    }
}

/// The state of a device that all types have: unit attention conditions, and the format of sense data.
#[derive(Clone, Default, Debug)]
pub struct Common {
    attentions: Vec<Asc>,
    /// D_SENSE of the Control mode page.
    pub descriptor_sense: bool,
}

impl Common {
    /// Establishes a unit attention condition. The target tells each nexus.
    pub fn establish(&mut self, asc: Asc) {
        if !self.attentions.contains(&asc) && self.attentions.len() < ATTENTIONS_MAX {
            self.attentions.push(asc);
        }
    }

    /// Takes the oldest unit attention condition.
    pub fn take_attention(&mut self) -> Option<Sense> {
        (!self.attentions.is_empty()).then(|| Sense::new(SenseKey::UNIT_ATTENTION, self.attentions.remove(0)))
    }
}

/// A device with a table of commands.
pub trait Device: Sized + 'static {
    /// The table.
    fn rows() -> &'static [Row<Self>];

    /// The common state.
    fn common(&mut self) -> &mut Common;

    /// Checks whether a medium is loaded.
    ///
    /// # Errors
    /// The reason why not.
    fn medium(&self) -> Result<(), Sense>;
}

/// Executes a command.
pub fn execute<D: Device>(device: &mut D, cdb: &[u8], data_out: DataOut<'_>, data_in: &mut DataIn<'_>) -> Reply {
    let cdb = Cdb(cdb);
    match run(device, &cdb, data_out, data_in) {
        Ok(moved) => Reply { status: Status::GOOD, sense: Vec::new(), moved },
        Err(Check { sense, moved }) => {
            let descriptors = device.common().descriptor_sense;
            Reply { status: Status::CHECK_CONDITION, sense: sense.bytes(descriptors), moved }
        }
    }
}

fn run<D: Device>(device: &mut D, cdb: &Cdb<'_>, data_out: DataOut<'_>, data_in: &mut DataIn<'_>) -> Answer {
    let is_code = |row: &&Row<D>| row.code == cdb.byte(0);
    if D::rows().iter().all(|row| !is_code(&row)) {
        return Err(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE).into());
    }
    let is_action = |row: &&Row<D>| row.action.is_none_or(|action| action == cdb.byte(1) & 0x1f);
    let row = D::rows().iter().filter(is_code).find(is_action).ok_or(Sense::cdb(1))?;
    if row.needs != Needs::Nothing
        && let Some(attention) = device.common().take_attention()
    {
        return Err(attention.into());
    }
    row.check(cdb)?;
    if row.needs == Needs::Medium {
        device.medium()?;
    }
    (row.run)(device, cdb, data_out, data_in)
}

/// REQUEST SENSE (SPC-4 6.39): a unit attention condition, or `otherwise`.
pub fn request_sense<D: Device>(
    device: &mut D,
    cdb: &Cdb<'_>,
    otherwise: Option<Sense>,
    into: &mut DataIn<'_>,
) -> Answer {
    let sense = device
        .common()
        .take_attention()
        .or(otherwise)
        .unwrap_or(Sense::new(SenseKey::NO_SENSE, Asc::NO_ADDITIONAL_SENSE_INFORMATION));
    put(&sense.bytes(cdb.bit(1, 0)), cdb.length(4, 1), into)
}

/// REPORT SUPPORTED OPERATION CODES (SPC-4 6.35), without timeouts descriptors.
pub fn report_codes<D: Device>(cdb: &Cdb<'_>, into: &mut DataIn<'_>) -> Answer {
    const SERVACTV: u8 = 0x01;
    let rows = D::rows();
    let (option, code, action) = (cdb.byte(2) & 0x07, cdb.byte(3), cdb.number(4, 2));
    let allocation = cdb.length(6, 4);
    let mut bytes = Vec::new();
    if option == 0 {
        bytes.extend([0; 4]);
        for row in rows {
            bytes.extend([row.code, 0, 0, row.action.unwrap_or(0), 0, u8::from(row.action.is_some()) * SERVACTV]);
            bytes.extend((row.cdb_bytes() as u16).to_be_bytes());
        }
        let length = u32::try_from(bytes.len() - 4).unwrap_or(0);
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        return put(&bytes, allocation, into);
    }
    let of_code = || rows.iter().filter(|row| row.code == code);
    let has_actions = of_code().any(|row| row.action.is_some());
    let row = match option {
        1 if has_actions => return Err(Sense::cdb(2).into()),
        1 => of_code().next(),
        2 if !has_actions => return Err(Sense::cdb(2).into()),
        2 => of_code().find(|row| row.action.is_some_and(|own| u64::from(own) == action)),
        _ => return Err(Sense::cdb(2).into()),
    };
    match row {
        None => bytes.extend([0, 0x01, 0, 0]),
        Some(row) => {
            bytes.extend([0, 0x03]);
            bytes.extend((row.cdb_bytes() as u16).to_be_bytes());
            bytes.push(row.code);
            bytes.extend(row.usage);
            if let Some(action) = row.action {
                bytes[5] |= action;
            }
            bytes.push(0);
        }
    }
    put(&bytes, allocation, into)
}

/// The facts of INQUIRY of a device.
pub struct Inquiry<'a> {
    /// PERIPHERAL DEVICE TYPE.
    pub device_type: u8,
    /// PRODUCT IDENTIFICATION.
    pub product: &'a str,
    /// PRODUCT SERIAL NUMBER.
    pub serial: &'a str,
    /// Version descriptor of the command set.
    pub standard: u16,
    /// VPD pages besides 00h, 80h and 83h, ascending.
    pub pages: &'a [(u8, &'a [u8])],
}

impl Inquiry<'_> {
    /// A designator that names the device: vendor, product, serial number (SPC-4 7.8.6.4).
    #[must_use]
    pub fn designator(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        push_text(&mut bytes, VENDOR, 8);
        push_text(&mut bytes, self.product, 16);
        bytes.extend(self.serial.as_bytes());
        bytes
    }

    /// INQUIRY (SPC-4 6.6).
    pub fn answer(&self, cdb: &Cdb<'_>, into: &mut DataIn<'_>) -> Answer {
        let allocation = cdb.length(3, 2);
        if !cdb.bit(1, 0) {
            if cdb.byte(2) != 0 {
                return Err(Sense::cdb(2).into());
            }
            return put(&self.standard(), allocation, into);
        }
        let page = cdb.byte(2);
        let content = match page {
            0x00 => [0x00, 0x80, 0x83].into_iter().chain(self.pages.iter().map(|(code, _)| *code)).collect(),
            0x80 => self.serial.as_bytes().to_vec(),
            0x83 => {
                let name = self.designator();
                // ASCII, T10 vendor ID based, of the logical unit.
                let mut bytes = vec![0x02, 0x01, 0, u8::try_from(name.len()).unwrap_or(0)];
                bytes.extend(name);
                bytes
            }
            _ => {
                let found = self.pages.iter().find(|(code, _)| *code == page);
                found.ok_or(Sense::cdb(2))?.1.to_vec()
            }
        };
        let mut bytes = vec![self.device_type, page];
        bytes.extend((content.len() as u16).to_be_bytes());
        bytes.extend(content);
        put(&bytes, allocation, into)
    }

    fn standard(&self) -> Vec<u8> {
        /// RMB.
        const REMOVABLE: u8 = 0x80;
        /// SPC-4.
        const VERSION: u8 = 0x06;
        /// CMDQUE.
        const QUEUES: u8 = 0x02;
        let mut bytes = vec![self.device_type, REMOVABLE, VERSION, 0x02, 0, 0, 0, QUEUES];
        push_text(&mut bytes, VENDOR, 8);
        push_text(&mut bytes, self.product, 16);
        push_text(&mut bytes, env!("CARGO_PKG_VERSION"), 4);
        bytes.resize(58, 0);
        for descriptor in [0x00a0_u16, 0x0460, self.standard] {
            bytes.extend(descriptor.to_be_bytes());
        }
        bytes.resize(96, 0);
        bytes[4] = u8::try_from(bytes.len() - 5).unwrap_or(0);
        bytes
    }
}

/// A mode page: its code, and its bytes behind the length.
pub type Page = (u8, Vec<u8>);

/// MODE SENSE(6) and (10): the header, the block descriptor and the pages that the CDB asks for (SPC-4 6.13, 6.14).
///
/// `pages` gives the pages with their current values (`false`) or the mask of their changeable bits (`true`).
pub fn mode_sense(
    cdb: &Cdb<'_>,
    head: (u8, u8),
    descriptor: &[u8],
    pages: impl Fn(bool) -> Vec<Page>,
    into: &mut DataIn<'_>,
) -> Answer {
    const ALL_PAGES: u8 = 0x3f;
    let is_long = cdb.byte(0) == 0x5a;
    let (control, code) = (cdb.byte(2) >> 6, cdb.byte(2) & ALL_PAGES);
    if control == 3 {
        return Err(Sense::illegal(Asc::SAVING_NOT_SUPPORTED).into());
    }
    let has_subpages = cdb.byte(3) != 0 && !(cdb.byte(3) == 0xff && code == ALL_PAGES);
    let chosen: Vec<Page> =
        pages(control == 1).into_iter().filter(|(own, _)| code == ALL_PAGES || *own == code).collect();
    // Page 00h stands for the header and the block descriptor alone.
    if has_subpages || (chosen.is_empty() && code != 0) {
        return Err(Sense::cdb(if has_subpages { 3 } else { 2 }).into());
    }
    let descriptor = if cdb.bit(1, 3) { &[][..] } else { descriptor };
    let length = descriptor.len() as u8;
    let mut bytes = if is_long { vec![0, 0, head.0, head.1, 0, 0, 0, length] } else { vec![0, head.0, head.1, length] };
    bytes.extend(descriptor);
    for (code, content) in chosen {
        bytes.extend([code, content.len() as u8]);
        bytes.extend(content);
    }
    if is_long {
        let length = (bytes.len() - 2) as u16;
        bytes[..2].copy_from_slice(&length.to_be_bytes());
        put(&bytes, cdb.length(7, 2), into)
    } else {
        bytes[0] = (bytes.len() - 1) as u8;
        put(&bytes, cdb.length(4, 1), into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sense_data_has_both_formats() {
        let mut sense = Sense::new(SenseKey::NO_SENSE, Asc::FILEMARK_DETECTED).with(-2);
        sense.filemark = true;
        let fixed = sense.bytes(false);
        assert_eq!(fixed[..8], [0xf0, 0, 0x80, 0xff, 0xff, 0xff, 0xfe, 10]);
        assert_eq!((fixed[12], fixed[13], fixed.len()), (0, 1, 18));
        let descriptors = sense.bytes(true);
        assert_eq!(descriptors[..8], [0x72, 0, 0, 1, 0, 0, 0, 16]);
        assert_eq!(descriptors[8..12], [0, 10, 0x80, 0]);
        assert_eq!(descriptors[20..], [4, 2, 0, 0x80]);
    }

    #[test]
    fn information_that_does_not_fit_the_fixed_format_is_not_valid() {
        let sense = Sense::new(SenseKey::BLANK_CHECK, Asc::END_OF_DATA_DETECTED).with(1 << 40);
        assert_eq!(sense.bytes(false)[..7], [0x70, 0, 8, 0, 0, 0, 0]);
        assert_eq!(sense.bytes(true)[12..20], (1_i64 << 40).to_be_bytes());
    }

    #[test]
    fn a_field_pointer_names_the_byte() {
        assert_eq!(Sense::cdb(4).bytes(false)[15..], [0xc0, 0, 4]);
        assert_eq!(Sense::parameter(7).bytes(false)[15..], [0x80, 0, 7]);
        assert_eq!(Sense::cdb(4).bytes(true)[8..], [2, 6, 0, 0, 0xc0, 0, 4, 0]);
    }

    #[test]
    fn numbers_of_a_cdb_end_with_it() {
        let cdb = Cdb(&[0, 0xff, 0xff, 0xfe, 1]);
        assert_eq!((cdb.signed24(1), cdb.number(3, 2), cdb.number(4, 3)), (-2, 0xfe01, 0x01_0000));
    }
}
