//! Commands as an operator writes them: the bytes of a CDB, or the name of a command with its fields.
//!
//! The names are those of the table of commands, without regard to case and punctuation: `READ(10)`, `read10`. The
//! fields `lba` and `length` are where the typical CDBs of the standard have them (SPC-4 4.2.2); `byteN` gives bytes of
//! any field. The usage map of the row says which bits the command evaluates.

use crate::command::{CDB_BYTES_MAX, Cdb};
use crate::policy::{Effect, Gate, OpCode};
use crate::row::{DeviceType, Flow, Row};
use lunar_core::wire::Writer;
use std::fmt;
use std::num::ParseIntError;
use std::ops::Range;

/// The most commands with a similar name that a mistake lists.
const NEAR_MAX: usize = 8;
/// The bits of LOGICAL BLOCK ADDRESS in a CDB of six bytes.
const SHORT_LBA_BITS: u32 = 21;

/// A command as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WrittenCommand {
    /// Its CDB.
    pub cdb: Cdb,
    /// Its name in the table; `None` if the table has no such command.
    pub name: Option<&'static str>,
    /// Its data; `None` if the table has no such command.
    pub flow: Option<Flow>,
    /// The media that it may change.
    pub changes: Changes,
}

/// The media that a command may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changes {
    /// None.
    None,
    /// The medium of its logical unit.
    Unit,
    /// The media of logical units that its parameter list names (SPC-4 5.17).
    Others,
}

impl Changes {
    /// The changes by a command; a command that the table does not have may change its medium.
    fn of(cdb: &Cdb, row: Option<&Row>) -> Self {
        let is_reading = |row: &Row| {
            matches!(row.policy.effect, Effect::None | Effect::Read)
                && row.policy.admission.write_protect == Gate::Passes
        };
        match row {
            _ if cdb.bytes().first() == Some(&OpCode::THIRD_PARTY_COPY_OUT.0) => Self::Others,
            Some(row) if is_reading(row) => Self::None,
            _ => Self::Unit,
        }
    }
}

/// A mistake in a command as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WrittenMistake {
    /// There is no command.
    Empty,
    /// A word is not a byte, or bytes, in hexadecimal digits.
    Digits(String),
    /// More bytes than a CDB may have.
    Long(usize),
    /// The logical unit has no command of this name; those with a similar one.
    Unknown(String, Vec<&'static str>),
    /// There is no field of this name.
    Field(String),
    /// A field was written twice.
    Twice(String),
    /// The value of a field is not a number.
    Number(String, ParseIntError),
    /// The CDB has no room for the value of a field.
    Large(String, &'static str),
    /// The command does not evaluate all bits of the value of a field.
    Unused(String, &'static str),
}

impl fmt::Display for WrittenMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the command is missing: write its CDB in hexadecimal digits, or its name"),
            Self::Digits(word) => write!(f, "'{word}' is not a number of bytes in hexadecimal digits"),
            Self::Long(count) => write!(f, "a CDB has at most {CDB_BYTES_MAX} bytes, not {count}"),
            Self::Unknown(name, near) if near.is_empty() => {
                write!(f, "the logical unit has no command '{name}': docs/commands.md lists them; or write the CDB")
            }
            Self::Unknown(name, near) => {
                write!(f, "the logical unit has no command '{name}'; similar names: {}", near.join("; "))
            }
            Self::Field(name) => {
                write!(f, "there is no field '{name}': write lba=NUMBER, length=NUMBER, or byteN=HEX")
            }
            Self::Twice(name) => write!(f, "{name} is written twice"),
            Self::Number(field, why) => write!(f, "{field} is not a number: {why}"),
            Self::Large(field, name) => write!(f, "the CDB of {name} has no room for {field}"),
            Self::Unused(field, name) => {
                write!(f, "{name} does not evaluate {field}: write the bytes of its own fields as byteN=HEX")
            }
        }
    }
}

impl std::error::Error for WrittenMistake {}

/// A name without the parts in which spellings differ.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_uppercase()).collect()
}

/// The places of LOGICAL BLOCK ADDRESS and of TRANSFER, PARAMETER LIST or ALLOCATION LENGTH in a typical CDB of so many
/// bytes (SPC-4 4.2.2).
fn places(length: usize) -> Option<(Range<usize>, Range<usize>)> {
    Some(match length {
        6 => (1..4, 4..5),
        10 => (2..6, 7..9),
        12 => (2..6, 6..10),
        16 => (2..10, 10..14),
        32 => (12..20, 28..32),
        _ => return None,
    })
}

impl DeviceType {
    /// Reads a command for a logical unit of this type, which is forwarded or emulated.
    ///
    /// # Errors
    /// [`WrittenMistake`].
    pub fn written(&self, is_forwarded: bool, text: &str) -> Result<WrittenCommand, WrittenMistake> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let is_hex = |word: &&str| word.chars().all(|c| c.is_ascii_hexdigit());
        let (cdb, row) = match words.first() {
            None => return Err(WrittenMistake::Empty),
            Some(_) if words.iter().all(is_hex) => {
                let cdb = hex(&words)?;
                let row = if is_forwarded {
                    self.find_forwarded(cdb.bytes()).ok().flatten()
                } else {
                    self.find(cdb.bytes()).ok()
                };
                (cdb, row)
            }
            Some(_) => {
                let rows = if is_forwarded { self.forwarded.rows() } else { self.commands.rows() };
                let (cdb, row) = named(rows, &words)?;
                (cdb, Some(row))
            }
        };
        let changes = Changes::of(&cdb, row);
        Ok(WrittenCommand { cdb, name: row.map(|row| row.policy.name), flow: row.map(|row| row.flow), changes })
    }
}

/// The bytes of words of hexadecimal digits.
fn digits(words: &[&str]) -> Result<Vec<u8>, WrittenMistake> {
    let mut bytes = Vec::new();
    for word in words {
        let mistake = || WrittenMistake::Digits((*word).to_owned());
        if word.len() > 1 && !word.len().is_multiple_of(2) || word.is_empty() || !word.is_ascii() {
            return Err(mistake());
        }
        for at in (0..word.len()).step_by(2) {
            let pair = &word[at..word.len().min(at + 2)];
            bytes.push(u8::from_str_radix(pair, 16).map_err(|_| mistake())?);
        }
        if bytes.len() > CDB_BYTES_MAX {
            return Err(WrittenMistake::Long(bytes.len()));
        }
    }
    Ok(bytes)
}

fn hex(words: &[&str]) -> Result<Cdb, WrittenMistake> {
    Cdb::new(&digits(words)?).ok_or(WrittenMistake::Empty)
}

/// A command by its name, with its fields.
fn named(rows: &'static [Row], words: &[&str]) -> Result<(Cdb, &'static Row), WrittenMistake> {
    let count = words.iter().position(|word| word.contains('=')).unwrap_or(words.len());
    let (name, fields) = words.split_at(count);
    let name = name.join(" ");
    let wanted = plain(&name);
    if wanted.is_empty() {
        return Err(WrittenMistake::Empty);
    }
    let Some(row) = rows.iter().find(|row| plain(row.policy.name) == wanted) else {
        let near = rows.iter().map(|row| row.policy.name).filter(|name| plain(name).contains(&wanted));
        return Err(WrittenMistake::Unknown(name, near.take(NEAR_MAX).collect()));
    };
    let mut bytes = [0; CDB_BYTES_MAX];
    let cdb = &mut bytes[..row.length];
    row.name(cdb);
    let mut seen: Vec<&str> = Vec::new();
    for field in fields {
        let Some((key, value)) = field.split_once('=') else { return Err(WrittenMistake::Field((*field).to_owned())) };
        if seen.contains(&key) {
            return Err(WrittenMistake::Twice(key.to_owned()));
        }
        seen.push(key);
        set(row, cdb, (field, key, value))?;
    }
    Ok((Cdb::new(cdb).ok_or(WrittenMistake::Empty)?, row))
}

/// Sets a field of a CDB.
fn set(row: &Row, cdb: &mut [u8], (field, key, value): (&str, &str, &str)) -> Result<(), WrittenMistake> {
    let large = || WrittenMistake::Large(field.to_owned(), row.policy.name);
    if let Some(at) = key.strip_prefix("byte").and_then(|at| at.parse::<usize>().ok()) {
        let bytes = digits(&[value])?;
        let place = at.checked_add(bytes.len()).and_then(|end| cdb.get_mut(at..end)).ok_or_else(large)?;
        place.copy_from_slice(&bytes);
        return Ok(());
    }
    let number = match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => value.parse(),
    };
    let (lba, length) = places(row.length).ok_or_else(|| WrittenMistake::Field(key.to_owned()))?;
    let place = match key {
        "lba" => lba,
        "length" => length,
        _ => return Err(WrittenMistake::Field(key.to_owned())),
    };
    let number = number.map_err(|why| WrittenMistake::Number(field.to_owned(), why))?;
    let bits = if key == "lba" && row.length == 6 { SHORT_LBA_BITS } else { 8 * place.len() as u32 };
    if bits < u64::BITS && number >> bits != 0 {
        return Err(large());
    }
    let bytes = &number.to_be_bytes()[size_of::<u64>() - place.len()..];
    if !is_evaluated(row, place.start, bytes) {
        return Err(WrittenMistake::Unused(field.to_owned(), row.policy.name));
    }
    for (place, byte) in cdb[place].iter_mut().zip(bytes) {
        *place |= byte;
    }
    Ok(())
}

/// Whether the command evaluates these bits. Only the device knows that of its own commands, which have no usage map.
fn is_evaluated(row: &Row, at: usize, bytes: &[u8]) -> bool {
    let mut map = [0; CDB_BYTES_MAX];
    let mut out = Writer::new(&mut map);
    row.usage(&mut out);
    out.kept() == 0 || bytes.iter().zip(&map[at..]).all(|(byte, used)| byte & !used == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_types::{DEVICE_TYPES, of_medium};
    use crate::forwarding::TAPE;
    use lunar_core::medium::MediumKind;

    fn read(text: &str) -> Result<WrittenCommand, WrittenMistake> {
        of_medium(MediumKind::Fixed).written(false, text)
    }

    fn bytes(text: &str) -> Vec<u8> {
        read(text).unwrap_or_else(|why| panic!("{text}: {why}")).cdb.bytes().to_vec()
    }

    #[test]
    fn a_cdb_is_written_in_hexadecimal_digits() {
        for text in ["12 01 83 00 ff 00", "12018300ff00", "12 1 8300 FF 0"] {
            let written = read(text).expect(text);
            assert_eq!(written.cdb.bytes(), [0x12, 1, 0x83, 0, 0xff, 0], "{text}");
            assert_eq!((written.name, written.flow), (Some("INQUIRY"), Some(Flow::Answer)));
        }
        assert_eq!(read("c0 00").expect("a vendor specific command").name, None);
        assert_eq!(read("120"), Err(WrittenMistake::Digits("120".into())));
        assert_eq!(read(&"00".repeat(33)), Err(WrittenMistake::Long(33)));
        assert_eq!(read("  "), Err(WrittenMistake::Empty));
    }

    #[test]
    fn a_command_is_written_by_its_name_with_fields_in_their_places() {
        assert_eq!(bytes("READ(10) lba=0x12345 length=8"), [0x28, 0, 0, 1, 0x23, 0x45, 0, 0, 8, 0]);
        assert_eq!(bytes("read-10 length=1 lba=2"), [0x28, 0, 0, 0, 0, 2, 0, 0, 1, 0]);
        assert_eq!(bytes("write16 lba=4294967296 length=3"), [0x8a, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0]);
        assert_eq!(bytes("read6 lba=0x1fffff length=255"), [0x08, 0x1f, 0xff, 0xff, 0xff, 0]);
        assert_eq!(bytes("compare and write length=1")[13], 1);
        assert_eq!(bytes("persistent reserve in, read keys length=64"), [0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0]);
        assert_eq!(bytes("persistent reserve out register byte8=18"), [0x5f, 0, 0, 0, 0, 0, 0, 0, 0x18, 0]);
        assert_eq!(bytes("inquiry byte1=0183 byte4=ff"), [0x12, 1, 0x83, 0, 0xff, 0]);
        assert_eq!(bytes("report luns length=256"), [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn the_media_that_a_command_may_change_are_known() {
        for (text, changes) in [
            ("read10 length=1", Changes::None),
            ("inquiry", Changes::None),
            ("synchronize cache 10", Changes::None),
            ("persistent reserve in, read keys", Changes::None),
            ("verify10 length=1", Changes::None),
            ("write10 length=1", Changes::Unit),
            ("unmap", Changes::Unit),
            ("write same 16 length=1", Changes::Unit),
            ("compare and write length=1", Changes::Unit),
            ("format unit", Changes::Unit),
            ("sanitize, overwrite", Changes::Unit),
            ("c0 00", Changes::Unit),
            ("83 01 00", Changes::Others),
            ("83 10 00 00 00 00 00 00 00 00 00 00 00 00 00 00", Changes::Others),
        ] {
            assert_eq!(read(text).unwrap_or_else(|why| panic!("{text}: {why}")).changes, changes, "{text}");
        }
    }

    #[test]
    fn each_command_of_each_device_type_is_found_by_its_name() {
        for device in DEVICE_TYPES {
            for (is_forwarded, rows) in [(false, device.commands.rows()), (true, device.forwarded.rows())] {
                for row in rows {
                    let written = device.written(is_forwarded, row.policy.name);
                    let written = written.unwrap_or_else(|why| panic!("{}: {why}", row.policy.name));
                    assert_eq!(written.name, Some(row.policy.name));
                    let found = if is_forwarded { &device.forwarded } else { &device.commands };
                    let found = found.find(written.cdb.bytes()).expect("its own row");
                    assert_eq!(found.policy.code, row.policy.code, "{}", row.policy.name);
                }
            }
        }
    }

    #[test]
    fn commands_of_a_device_have_no_usage_map() {
        let written = TAPE.written(true, "write filemarks 6 length=1").expect("a command of a tape");
        assert_eq!(written.cdb.bytes(), [0x10, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn mistakes_say_what_to_write() {
        let mistake = |text: &str| read(text).expect_err(text);
        assert!(mistake("read lba=0").to_string().contains("READ(10)"));
        assert!(mistake("rewind").to_string().contains("docs/commands.md"));
        let unused = WrittenMistake::Unused("lba=1".into(), "TEST UNIT READY");
        assert_eq!(mistake("test unit ready lba=1"), unused);
        assert_eq!(mistake("read10 lba=0x100000000"), WrittenMistake::Large("lba=0x100000000".into(), "READ(10)"));
        assert_eq!(mistake("read6 lba=0x200000"), WrittenMistake::Large("lba=0x200000".into(), "READ(6)"));
        assert_eq!(mistake("read10 byte9=0000"), WrittenMistake::Large("byte9=0000".into(), "READ(10)"));
        assert_eq!(mistake("read10 lba=1 lba=2"), WrittenMistake::Twice("lba".into()));
        assert_eq!(mistake("read10 size=1"), WrittenMistake::Field("size".into()));
        assert_eq!(mistake("read10 lba=1 now"), WrittenMistake::Field("now".into()));
        assert_eq!(mistake("=1"), WrittenMistake::Empty);
        assert!(matches!(mistake("read10 lba=one"), WrittenMistake::Number(..)));
        assert_eq!(mistake("read10 byte2=é"), WrittenMistake::Digits("é".into()));
    }
}
