//! Memory of an initiator, as the descriptors of a command name it.

use crate::limits::DESCRIPTORS_MAX;
use lunar_core::wire::Cursor;
use lunar_core::wire::be::{U32, U64};
use lunar_rdma::wire::Remote;
use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A memory descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Descriptor {
    address: U64,
    key: U32,
    len: U32,
}

/// Bytes of a descriptor.
pub const DESCRIPTOR_LEN: usize = size_of::<Descriptor>();
/// Descriptors without an allocation: Linux registers the memory of a command as one part or a few.
const FEW: usize = 4;

/// The format of a buffer.
const NONE: u8 = 0;
const DIRECT: u8 = 1;
const INDIRECT: u8 = 2;

/// Why descriptors are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BufferError {
    /// The command has not all of them.
    Short,
    /// A format that was not granted.
    Format,
    /// Memory for both directions.
    Bidirectional,
    /// More than [`DESCRIPTORS_MAX`].
    Many,
    /// They have less memory than the command says.
    Small,
}

/// Descriptors that are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Why.
    pub why: BufferError,
    /// The bytes that the initiator expects to send and to receive, as far as the descriptors say so.
    pub expected: Expected,
}

/// The bytes that an initiator expects to send and to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expected {
    /// Data-Out.
    pub data_out: u32,
    /// Data-In.
    pub data_in: u32,
}

impl Expected {
    fn of(direction: Direction, len: u32) -> Self {
        match direction {
            Direction::Out => Self { data_out: len, data_in: 0 },
            Direction::In => Self { data_out: 0, data_in: len },
        }
    }

    /// Those that the descriptors of a command state, whether or not they are right. One direction is enough: a command
    /// with memory for both is refused.
    fn stated(formats: u8, bytes: &[u8]) -> Option<Self> {
        let (direction, format) = match (formats >> 4, formats & 0x0f) {
            (format, NONE) => (Direction::Out, format),
            (NONE, format) => (Direction::In, format),
            _ => return None,
        };
        let mut cursor = Cursor::new(bytes);
        let first: Part = cursor.take::<Descriptor>().ok()?.into();
        match format {
            DIRECT => Some(Self::of(direction, first.len)),
            INDIRECT => Some(Self::of(direction, cursor.take::<U32>().ok()?.get())),
            _ => None,
        }
    }
}

/// A part of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The memory.
    pub memory: Remote,
    /// Its bytes.
    pub len: u32,
}

impl From<&Descriptor> for Part {
    fn from(descriptor: &Descriptor) -> Self {
        let memory = Remote { address: descriptor.address.get(), key: descriptor.key.get() };
        Self { memory, len: descriptor.len.get() }
    }
}

/// The direction of the data of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Data-Out.
    Out,
    /// Data-In.
    In,
}

/// A buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Its direction.
    pub direction: Direction,
    /// Its bytes.
    pub len: u32,
    parts: SmallVec<[Part; FEW]>,
    /// Memory of the initiator that has the descriptors of the parts, unless they are here.
    table: Option<Part>,
}

impl Buffer {
    /// The buffer of a command. `formats` has the formats for Data-Out and for Data-In, `counts` the numbers of
    /// descriptors in the command.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn of_command(formats: u8, counts: (u8, u8), bytes: &[u8]) -> Result<Option<Self>, Refused> {
        let buffer = match (formats >> 4, formats & 0x0f) {
            (NONE, NONE) => return Ok(None),
            (format, NONE) => Self::parse(Direction::Out, format, counts.0, bytes),
            (NONE, format) => Self::parse(Direction::In, format, counts.1, bytes),
            _ => Err(BufferError::Bidirectional),
        };
        let refused = |why| Refused { why, expected: Expected::stated(formats, bytes).unwrap_or_default() };
        buffer.map(Some).map_err(refused)
    }

    /// The bytes that the initiator expects to send and to receive.
    #[must_use]
    pub fn expected(&self) -> Expected {
        Expected::of(self.direction, self.len)
    }

    /// The buffer of a command whose data is in it: it has no memory at the initiator.
    #[must_use]
    pub fn immediate(len: u32) -> Self {
        Self { direction: Direction::Out, len, parts: SmallVec::new(), table: None }
    }

    fn parse(direction: Direction, format: u8, count: u8, bytes: &[u8]) -> Result<Self, BufferError> {
        let mut cursor = Cursor::new(bytes);
        let first: Part = cursor.take::<Descriptor>().map_err(|_| BufferError::Short)?.into();
        match format {
            DIRECT => Ok(Self { direction, len: first.len, parts: std::iter::once(first).collect(), table: None }),
            INDIRECT => {
                let entries = first.len as usize / DESCRIPTOR_LEN;
                if entries > DESCRIPTORS_MAX {
                    return Err(BufferError::Many);
                }
                let len = cursor.take::<U32>().map_err(|_| BufferError::Short)?.get();
                let here = usize::from(count).min(entries);
                let list = cursor.bytes(here * DESCRIPTOR_LEN).map_err(|_| BufferError::Short)?;
                let mut buffer = Self { direction, len, parts: SmallVec::new(), table: Some(first) };
                if here == entries {
                    buffer.set_table(list)?;
                }
                Ok(buffer)
            }
            _ => Err(BufferError::Format),
        }
    }

    /// Descriptors that take memory of their own: none, if there are few.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        let count = self.table.map_or(self.parts.len(), |table| table.len as usize / DESCRIPTOR_LEN);
        if count > FEW { count } else { 0 }
    }

    /// The table of descriptors that has to be read first, and its bytes.
    #[must_use]
    pub fn table(&self) -> Option<Part> {
        self.table.map(|part| Part { len: part.len - part.len % DESCRIPTOR_LEN as u32, ..part })
    }

    /// Takes the bytes of the table.
    ///
    /// # Errors
    /// [`BufferError::Small`].
    pub fn set_table(&mut self, bytes: &[u8]) -> Result<(), BufferError> {
        let mut cursor = Cursor::new(bytes);
        let parts = std::iter::from_fn(|| cursor.take::<Descriptor>().ok().map(Part::from));
        let parts: SmallVec<[Part; FEW]> = parts.take(DESCRIPTORS_MAX).collect();
        if parts.iter().map(|part| u64::from(part.len)).sum::<u64>() < self.len.into() {
            return Err(BufferError::Small);
        }
        (self.parts, self.table) = (parts, None);
        Ok(())
    }

    /// The parts with the bytes from `offset` on, as many as `len`: each with its length, at most `most`.
    pub fn range(&self, offset: usize, len: usize, most: usize) -> impl Iterator<Item = (Remote, usize)> + '_ {
        let (mut parts, mut skip, mut left) = (self.parts.iter(), offset, len);
        let mut current: Option<(Remote, usize)> = None;
        std::iter::from_fn(move || {
            while left > 0 {
                if let Some((memory, rest)) = current.take() {
                    let now = rest.min(left).min(most);
                    current = (rest > now).then(|| (memory.plus(now), rest - now));
                    left -= now;
                    return Some((memory, now));
                }
                let part = parts.next()?;
                let len = part.len as usize;
                match len <= skip {
                    true => skip -= len,
                    false => {
                        current = Some((part.memory.plus(skip), len - skip));
                        skip = 0;
                    }
                }
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(address: u64, key: u32, len: u32) -> Vec<u8> {
        Descriptor { address: address.into(), key: key.into(), len: len.into() }.as_bytes().to_vec()
    }

    fn memory(address: u64) -> Remote {
        Remote { address, key: 7 }
    }

    #[test]
    fn parts_of_a_list_are_found_by_their_offset() {
        let list = [descriptor(1000, 7, 100), descriptor(2000, 7, 0), descriptor(3000, 7, 50)].concat();
        let bytes = [descriptor(9, 9, 48), 120_u32.to_be_bytes().to_vec(), list].concat();
        let buffer = Buffer::of_command(0x20, (3, 0), &bytes).expect("right").expect("there");
        assert_eq!((buffer.direction, buffer.len, buffer.table()), (Direction::Out, 120, None));
        let range = |offset, len, most| buffer.range(offset, len, most).collect::<Vec<_>>();
        assert_eq!(range(0, 120, 4096), [(memory(1000), 100), (memory(3000), 20)]);
        assert_eq!(range(90, 15, 8), [(memory(1090), 8), (memory(1098), 2), (memory(3000), 5)]);
        assert_eq!(range(100, 1, 8), [(memory(3000), 1)]);
        assert_eq!((range(5, 0, 8), buffer.descriptors()), (vec![], 0));
        let table = [descriptor(9, 9, 5 * 16), 10_u32.to_be_bytes().to_vec()].concat();
        let buffer = Buffer::of_command(0x20, (0, 0), &table).expect("right").expect("there");
        assert_eq!(buffer.descriptors(), 5);
    }

    #[test]
    fn a_table_is_read_if_it_is_not_in_the_command() {
        let bytes = [descriptor(9, 9, 32), 10_u32.to_be_bytes().to_vec(), descriptor(1, 7, 5)].concat();
        let mut buffer = Buffer::of_command(0x02, (0, 1), &bytes).expect("right").expect("there");
        assert_eq!(buffer.table(), Some(Part { memory: Remote { address: 9, key: 9 }, len: 32 }));
        assert_eq!(buffer.set_table(&descriptor(1, 7, 9)), Err(BufferError::Small));
        assert_eq!(buffer.set_table(&[descriptor(1, 7, 5), descriptor(2, 7, 5)].concat()), Ok(()));
        assert_eq!(buffer.range(0, 10, 99).collect::<Vec<_>>(), [(memory(1), 5), (memory(2), 5)]);
    }

    #[test]
    fn wrong_descriptors_are_refused() {
        let direct = descriptor(1, 2, 3);
        let list = |entries: usize, len: u32| {
            let table = descriptor(9, 9, (entries * DESCRIPTOR_LEN) as u32);
            [table, len.to_be_bytes().to_vec(), descriptor(1, 7, 5)].concat()
        };
        for (formats, counts, bytes, why, (data_out, data_in)) in [
            (0x11, (1, 1), direct.clone(), BufferError::Bidirectional, (0, 0)),
            (0x30, (1, 0), direct.clone(), BufferError::Format, (0, 0)),
            (0x10, (1, 0), direct[1..].to_vec(), BufferError::Short, (0, 0)),
            (0x20, (2, 0), list(2, 5), BufferError::Short, (5, 0)),
            (0x02, (0, 2), list(2, 5), BufferError::Short, (0, 5)),
            (0x20, (1, 0), list(1, 6), BufferError::Small, (6, 0)),
            (0x20, (1, 0), list(DESCRIPTORS_MAX + 1, 5), BufferError::Many, (5, 0)),
        ] {
            let refused = Refused { why, expected: Expected { data_out, data_in } };
            assert_eq!(Buffer::of_command(formats, counts, &bytes), Err(refused), "{formats:x}");
        }
        let right = Buffer::of_command(0x20, (1, 0), &list(1, 5)).expect("right").expect("there");
        assert_eq!(right.expected(), Expected { data_out: 5, data_in: 0 });
        assert_eq!(Buffer::of_command(0, (1, 1), &[]), Ok(None));
    }
}
