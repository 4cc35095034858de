//! The messages on the socket, and the entries of the rings. All numbers are little-endian.
//!
//! The handler sends HELLO; Lunar answers WELCOME or REFUSED, then sends a QUEUE for each core, CLOSE when a core does
//! not use its queue any more, and FAULT before it ends a connection because of a defect. A handler whose data another
//! server has may send STAND BY before HELLO, and one whose data is in a pool may send SPACE after WELCOME.
//!
//! A message may be longer than its format here: a later version appends fields, and an earlier version does not read
//! them. Fields that an earlier version does not send count as zero.
//!
//! Version 1 has the level of blocks. Version 2 adds the level of SCSI commands, version 3 the mixed level, version 4
//! the identity of the data and STAND BY, version 5 EXTENT and SPACE.

use lunar_core::codes;
use lunar_core::wire::le;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of the protocol. The lower version of both sides applies.
pub const PROTOCOL: u32 = 5;
/// The level at which a handler gets reads, writes and flushes of blocks.
pub const LEVEL_BLOCK: u32 = 1;
/// The level at which a handler gets SCSI commands: since version 2.
pub const LEVEL_SCSI: u32 = 2;
/// The level at which a handler gets reads, writes and flushes of blocks, and the SCSI commands with the
/// [`OperationCodes`] that it names, which Lunar does not have: since version 3. Its queues are of either kind.
pub const LEVEL_MIXED: u32 = 3;
/// The most bytes of a message: all formats are far smaller, and later versions append fields.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Bytes of a name in a message, padded with zeroes.
pub const NAME_BYTES: usize = 64;
/// Bytes of the identity of the data, padded with zeroes.
pub const IDENTITY_BYTES: usize = 128;
/// The most bytes of the text of REFUSED and FAULT: two lines of a terminal.
pub const TEXT_BYTES_MAX: usize = 256;
/// Bytes of the longest CDB.
pub const CDB_BYTES_MAX: usize = 32;
/// Bytes of the longest sense data (SPC-4 4.5.1).
pub const SENSE_BYTES_MAX: usize = 252;
/// Bytes of the longest name of an initiator port.
pub const INITIATOR_BYTES_MAX: usize = 488;
/// Bytes of a [`Frame`]: the data of a SCSI command begins behind it, at a page.
pub const FRAME_BYTES: usize = 4096;
/// Descriptors of a QUEUE: the memory of the rings, the memory of the data, the eventfd that wakes the handler, and the
/// eventfd that wakes Lunar.
pub const QUEUE_DESCRIPTORS: usize = 4;

codes! {
    /// The code of a message.
    pub struct Code(u32) {
        HELLO = 1, WELCOME = 2, REFUSED = 3, QUEUE = 4, FAULT = 5, CLOSE = 6, STAND_BY = 7, SPACE = 8,
    }
}

codes! {
    /// The operation of a command.
    pub struct Operation(u8) {
        READ = 1, WRITE = 2, FLUSH = 3, UNMAP = 4, ZERO = 5,
        /// Execute the SCSI command of the [`Frame`] for a nexus.
        SCSI = 6,
        /// A nexus begins: its names are in the place, a [`NexusNames`].
        ATTACH = 7,
        /// A nexus ends. None of its commands is in progress.
        DETACH = 8,
        /// Abort the SCSI command with this number, if it is in progress. It is answered all the same.
        ABORT = 9,
        /// LOGICAL UNIT RESET: abort all SCSI commands of all queues. It is answered after all of them.
        RESET = 10,
        /// Tell how far the bytes from the first one on are all mapped, or all unmapped: since version 5.
        EXTENT = 11,
    }
}

impl Operation {
    /// Whether it is an operation of the level of blocks.
    #[must_use]
    pub fn is_of_blocks(self) -> bool {
        matches!(self, Self::READ | Self::WRITE | Self::FLUSH | Self::UNMAP | Self::ZERO | Self::EXTENT)
    }
}

codes! {
    /// How a command ended.
    pub struct Status(u8) {
        GOOD = 0,
        /// The medium could not be read or written.
        MEDIUM_ERROR = 1,
        /// There is no space for the data.
        NO_SPACE = 2,
        /// The handler does not have this operation.
        UNSUPPORTED = 3,
        /// The handler cannot reach its data now.
        NOT_READY = 4,
        /// Any other failure.
        FAILED = 5,
    }
}

/// Flags of a command.
pub mod flags {
    /// Of WRITE: the data is on the medium before the answer.
    pub const DURABLE: u8 = 1;
    /// Of ZERO: the space may be released.
    pub const RELEASE: u8 = 2;
    /// Of SCSI: the data goes to the initiator.
    pub const DATA_IN: u8 = 4;
}

/// Optional operations and messages. A side ignores the bits that it does not know.
pub mod features {
    /// UNMAP.
    pub const UNMAP: u64 = 1;
    /// ZERO.
    pub const ZERO: u64 = 2;
    /// EXTENT.
    pub const EXTENT: u64 = 4;
    /// The message SPACE.
    pub const SPACE: u64 = 8;
    /// All that this version has.
    pub const ALL: u64 = UNMAP | ZERO | EXTENT | SPACE;
}

/// Flags of WELCOME.
pub mod unit_flags {
    /// No command changes data.
    pub const READ_ONLY: u32 = 1;
}

/// Flags of SPACE.
pub mod space_flags {
    /// The handler knows the bytes that its data takes.
    pub const ALLOCATED: u64 = 1;
}

/// The head of every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// A [`Code`].
    pub code: le::U32,
    /// Bytes of the message, with this head.
    pub length: le::U32,
}

/// HELLO, from the handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Hello {
    /// The highest version that the handler has.
    pub protocol: le::U32,
    /// [`LEVEL_BLOCK`], [`LEVEL_SCSI`] or [`LEVEL_MIXED`].
    pub level: le::U32,
    /// [`features`] that it has, of levels with blocks.
    pub features: le::U64,
    /// Bytes of its data, of levels with blocks.
    pub size: le::U64,
    /// Its name and version for the operator, in UTF-8.
    pub name: [u8; NAME_BYTES],
    /// PERIPHERAL DEVICE TYPE, of the level of SCSI commands. Since version 2.
    pub device_type: u8,
    /// Zero.
    pub reserved: [u8; 7],
    /// The SCSI commands that it executes, of the mixed level. Since version 3.
    pub codes: OperationCodes,
    /// The identity of the data, of the level of blocks: no other data has it, under whatever name. Zeroes: the handler
    /// does not say it. Since version 4.
    pub identity: [u8; IDENTITY_BYTES],
}

/// Operation codes of SCSI commands: bit N modulo 8 of byte N / 8 stands for code N.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OperationCodes([u8; 32]);

impl OperationCodes {
    /// Adds a code.
    pub fn add(&mut self, code: u8) {
        self.0[usize::from(code / 8)] |= 1 << (code % 8);
    }

    /// Whether the code is one of them.
    #[must_use]
    pub fn has(&self, code: u8) -> bool {
        self.0[usize::from(code / 8)] & 1 << (code % 8) != 0
    }

    /// Words of 64 codes.
    pub const WORDS: usize = 4;

    /// The codes from `64 * at` on, the first in the lowest bit.
    ///
    /// # Panics
    /// When `at` is not below [`OperationCodes::WORDS`].
    #[must_use]
    pub fn word(&self, at: usize) -> u64 {
        let (words, _) = self.0.as_chunks();
        u64::from_le_bytes(words[at])
    }

    /// All codes, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(|code| self.has(*code))
    }
}

impl FromIterator<u8> for OperationCodes {
    fn from_iter<T: IntoIterator<Item = u8>>(codes: T) -> Self {
        let mut all = Self::default();
        codes.into_iter().for_each(|code| all.add(code));
        all
    }
}

/// WELCOME, from Lunar.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Welcome {
    /// The version that applies.
    pub protocol: le::U32,
    /// [`unit_flags`].
    pub flags: le::U32,
    /// The [`features`] that apply.
    pub features: le::U64,
    /// Bytes of the volume, at most those of the handler.
    pub size: le::U64,
    /// Bytes of a block: offsets and lengths are multiples of it.
    pub block_size: le::U32,
    /// Most queues that follow.
    pub queues: le::U32,
    /// The name of the volume, in UTF-8.
    pub volume: [u8; NAME_BYTES],
}

/// QUEUE, from Lunar, with [`QUEUE_DESCRIPTORS`]. It may be used at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Queue {
    /// The number of the queue.
    pub number: le::U32,
    /// Slots: a power of two.
    pub depth: le::U32,
    /// The generation of all commands in it.
    pub generation: le::U32,
    /// Most bytes of a READ or WRITE.
    pub transfer_max: le::U32,
    /// Bytes of the memory of the rings.
    pub ring_bytes: le::U64,
    /// Bytes of the memory of the data.
    pub data_bytes: le::U64,
}

/// CLOSE, from Lunar: the queue has no command any more, and gets no other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Close {
    /// The number of the queue.
    pub number: le::U32,
}

/// SPACE, from the handler: the space of the pool that its data takes space from. Since version 5, if
/// [`features::SPACE`] applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Space {
    /// [`space_flags`].
    pub flags: le::U64,
    /// Bytes that volumes may still take from the pool.
    pub free: le::U64,
    /// Bytes of the pool: those that volumes have taken, and the free ones.
    pub size: le::U64,
    /// Bytes that the data takes.
    pub allocated: le::U64,
    /// The identity of the pool: no other pool has it, under whatever name.
    pub pool: [u8; IDENTITY_BYTES],
    /// The name of the pool for the operator, in UTF-8.
    pub name: [u8; NAME_BYTES],
}

/// A command in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Submission {
    /// The slot, which the answer repeats.
    pub slot: le::U16,
    /// An [`Operation`].
    pub operation: u8,
    /// [`flags`].
    pub flags: u8,
    /// The generation of the queue, which the answer repeats.
    pub generation: le::U32,
    /// The number of the command, which the answer repeats.
    pub sequence: le::U64,
    /// The first byte on the volume. Of SCSI, ATTACH and DETACH: the number of the nexus; zero for a command of Lunar
    /// itself. Of ABORT: the number of the command to abort.
    pub offset: le::U64,
    /// Bytes. Of SCSI: of the data behind the frame.
    pub length: le::U64,
    /// The first byte in the memory of the data: of the data of READ and WRITE, of the [`Frame`] of SCSI, and of the
    /// [`NexusNames`] of ATTACH.
    pub data: le::U64,
    /// The time after which Lunar reports a failure to the client.
    pub timeout_milliseconds: le::U32,
    /// Zero.
    pub reserved: [u8; 20],
}

/// An answer in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Completion {
    /// The slot of the command.
    pub slot: le::U16,
    /// A [`Status`]. Of SCSI: GOOD if the command was executed, with whatever SCSI status.
    pub status: u8,
    /// The SCSI status, of SCSI.
    pub scsi_status: u8,
    /// The generation of the command.
    pub generation: le::U32,
    /// The number of the command.
    pub sequence: le::U64,
    /// Bytes of the data that were moved, of SCSI.
    pub moved: le::U32,
    /// Bytes of the sense data in the frame, of SCSI.
    pub sense_length: le::U16,
    /// 0: the bytes read as zeroes, and take no space; of EXTENT. Since version 5.
    pub extent_mapped: u8,
    /// Zero.
    pub reserved: u8,
    /// Bytes with this state, from the first one on, of EXTENT. Since version 5.
    pub extent_length: le::U64,
}

/// The frame of a SCSI command in the memory of the data. Its data begins [`FRAME_BYTES`] behind its first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Frame {
    /// The CDB.
    pub cdb: [u8; CDB_BYTES_MAX],
    /// Bytes of the CDB.
    pub cdb_length: u8,
    /// The task attribute (SAM-5 8.9): 0 simple, 1 head of queue, 2 ordered.
    pub attribute: u8,
    /// Zero.
    pub reserved: [u8; 30],
    /// Sense data, from the handler.
    pub sense: [u8; SENSE_BYTES_MAX],
}

/// The names of a nexus in the memory of the data, of ATTACH.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NexusNames {
    /// The relative identifier of the target port.
    pub target_port: le::U16,
    /// Bytes of the name of the initiator port.
    pub initiator_length: le::U16,
    /// Zero.
    pub reserved: [u8; 20],
    /// The initiator port in the spelling of its transport: for iSCSI `name,i,0xISID`, in UTF-8.
    pub initiator: [u8; INITIATOR_BYTES_MAX],
}

/// A message that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// HELLO.
    Hello(Hello),
    /// WELCOME.
    Welcome(Welcome),
    /// REFUSED, with the reason.
    Refused(String),
    /// QUEUE.
    Queue(Queue),
    /// FAULT, with the reason.
    Fault(String),
    /// CLOSE.
    Close(Close),
    /// STAND BY: what HELLO will say when no other server has the data any more. Since version 4.
    StandBy(Hello),
    /// SPACE. Since version 5.
    Space(Space),
    /// A message of another version.
    Unknown(Code),
}

/// Bytes that are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl Message {
    /// Takes the bytes of one message apart.
    ///
    /// # Errors
    /// When its length is not what its head says, or too small for its code.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (header, rest) = Header::read_from_prefix(bytes).map_err(|_| Malformed)?;
        if usize::try_from(header.length.get()) != Ok(bytes.len()) || bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Malformed);
        }
        fn front<T: FromBytes>(rest: &[u8]) -> Result<T, Malformed> {
            T::read_from_prefix(rest).map(|(value, _)| value).map_err(|_| Malformed)
        }
        /// A HELLO of version 1 has no more.
        const HELLO_BYTES_MIN: usize = std::mem::offset_of!(Hello, device_type);
        fn hello(rest: &[u8]) -> Result<Hello, Malformed> {
            let mut hello = Hello::new_zeroed();
            let count = rest.len().min(size_of::<Hello>());
            hello.as_mut_bytes()[..count].copy_from_slice(&rest[..count]);
            if count < HELLO_BYTES_MIN { Err(Malformed) } else { Ok(hello) }
        }
        Ok(match Code(header.code.get()) {
            Code::HELLO => Self::Hello(hello(rest)?),
            Code::STAND_BY => Self::StandBy(hello(rest)?),
            Code::WELCOME => Self::Welcome(front(rest)?),
            Code::REFUSED => Self::Refused(text_of(rest)),
            Code::QUEUE => Self::Queue(front(rest)?),
            Code::FAULT => Self::Fault(text_of(rest)),
            Code::CLOSE => Self::Close(front(rest)?),
            Code::SPACE => Self::Space(front(rest)?),
            other => Self::Unknown(other),
        })
    }

    /// The bytes of the message.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let (code, rest) = match self {
            Self::Hello(hello) => (Code::HELLO, hello.as_bytes()),
            Self::StandBy(hello) => (Code::STAND_BY, hello.as_bytes()),
            Self::Welcome(welcome) => (Code::WELCOME, welcome.as_bytes()),
            Self::Refused(text) => (Code::REFUSED, shortened(text, TEXT_BYTES_MAX)),
            Self::Queue(queue) => (Code::QUEUE, queue.as_bytes()),
            Self::Fault(text) => (Code::FAULT, shortened(text, TEXT_BYTES_MAX)),
            Self::Close(close) => (Code::CLOSE, close.as_bytes()),
            Self::Space(space) => (Code::SPACE, space.as_bytes()),
            Self::Unknown(code) => (*code, &[][..]),
        };
        // Every format is smaller than `MESSAGE_BYTES_MAX`.
        let length = (size_of::<Header>() + rest.len()) as u32;
        let mut bytes = Header { code: code.0.into(), length: length.into() }.as_bytes().to_vec();
        bytes.extend_from_slice(rest);
        bytes
    }
}

/// The first bytes of a text, at most `most`, up to a whole character.
fn shortened(text: &str, most: usize) -> &[u8] {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text.as_bytes()[..end.unwrap_or(0)]
}

/// Text of the other side, for logs: without control characters.
fn text_of(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A name of a message; what follows a zero is not part of it.
#[must_use]
pub fn name_of<const N: usize>(field: &[u8; N]) -> String {
    text_of(field.split(|byte| *byte == 0).next().unwrap_or_default())
}

/// A name for a message, shortened to its field.
#[must_use]
pub fn name_field<const N: usize>(name: &str) -> [u8; N] {
    let mut field = [0; N];
    let name = shortened(name, N);
    field[..name.len()].copy_from_slice(name);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HELLO of version 4, of a handler of 1 MiB with both features and one that this version does not know, and with
    /// the operation codes C0h and FFh.
    fn hello() -> Vec<u8> {
        let mut bytes = vec![1, 0, 0, 0, 8, 1, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([0, 0, 0x10, 0, 0, 0, 0, 0]);
        bytes.extend(b"file 1.0");
        bytes.resize(136, 0);
        (bytes[104 + 24], bytes[135]) = (1, 0x80);
        bytes.extend(b"0b5e/2/10f1");
        bytes.resize(264, 0);
        bytes
    }

    #[test]
    fn a_hello_is_taken_apart() {
        let Ok(Message::Hello(hello)) = Message::parse(&hello()) else { panic!("it is a HELLO") };
        assert_eq!((hello.protocol.get(), hello.level.get(), hello.features.get()), (4, LEVEL_MIXED, 7));
        assert_eq!(hello.codes.iter().collect::<Vec<_>>(), [0xc0, 0xff]);
        assert_eq!(OperationCodes::from_iter([0xff, 0xc0]), hello.codes);
        assert_eq!((hello.size.get(), name_of(&hello.name).as_str()), (1 << 20, "file 1.0"));
        assert_eq!(name_of(&hello.identity), "0b5e/2/10f1");
    }

    #[test]
    fn messages_are_built_as_they_are_parsed() {
        let welcome = Welcome {
            protocol: PROTOCOL.into(),
            flags: unit_flags::READ_ONLY.into(),
            features: features::ALL.into(),
            size: (1 << 40).into(),
            block_size: 512.into(),
            queues: 2.into(),
            volume: name_field("disk"),
        };
        let queue = Queue {
            number: 1.into(),
            depth: 128.into(),
            generation: 3.into(),
            transfer_max: 4096.into(),
            ring_bytes: 16384.into(),
            data_bytes: 65536.into(),
        };
        let Ok(Message::Hello(said)) = Message::parse(&hello()) else { panic!("it is a HELLO") };
        let all = [
            Message::Hello(said),
            Message::StandBy(said),
            Message::Welcome(welcome),
            Message::Refused("too small".into()),
            Message::Queue(queue),
            Message::Fault("a slot was answered twice".into()),
            Message::Close(Close { number: 9.into() }),
            Message::Space(Space {
                flags: space_flags::ALLOCATED.into(),
                free: (3 << 40).into(),
                size: (7 << 40).into(),
                allocated: (1 << 22).into(),
                pool: name_field("0b5e/2"),
                name: name_field("rbd"),
            }),
            Message::Unknown(Code(77)),
        ];
        for message in all {
            assert_eq!(Message::parse(&message.bytes()), Ok(message));
        }
        assert_eq!(Message::parse(&hello()).expect("well formed").bytes(), hello());
    }

    #[test]
    fn a_space_is_taken_apart() {
        let mut bytes = vec![0xa5; 232];
        bytes[..16].copy_from_slice(&[8, 0, 0, 0, 232, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        bytes[16..40].copy_from_slice(&[[0, 0, 0x10, 0, 0, 0, 0, 0], [0, 0, 0x20, 0, 0, 0, 0, 0], [9; 8]].concat());
        bytes[40..48].copy_from_slice(b"0b5e/2\0x");
        bytes[168..172].copy_from_slice(b"rbd\0");
        let Ok(Message::Space(space)) = Message::parse(&bytes) else { panic!("it is a SPACE") };
        assert_eq!((space.flags.get(), space.free.get(), space.size.get()), (1, 1 << 20, 2 << 20));
        assert_eq!((space.allocated.get(), name_of(&space.pool)), (0x0909_0909_0909_0909, "0b5e/2".to_owned()));
        assert_eq!(name_of(&space.name), "rbd");
        bytes.truncate(231);
        bytes[4] = 231;
        assert_eq!(Message::parse(&bytes), Err(Malformed), "it is cut off");
    }

    #[test]
    fn a_later_version_appends_fields() {
        let mut longer = hello();
        longer.extend([9; 8]);
        longer[4] = 16;
        assert_eq!(Message::parse(&longer), Message::parse(&hello()));
    }

    #[test]
    fn a_hello_of_an_earlier_version_is_shorter() {
        for (version, length) in [(1, 96), (2, 104), (3, 136)] {
            let mut bytes = hello()[..length].to_vec();
            (bytes[4], bytes[5], bytes[8]) = (length as u8, 0, version);
            let Ok(Message::Hello(hello)) = Message::parse(&bytes) else { panic!("it is a HELLO") };
            assert_eq!((hello.protocol.get(), hello.size.get(), hello.device_type), (version.into(), 1 << 20, 0));
            assert_eq!(hello.codes.iter().count(), if version < 3 { 0 } else { 2 });
            assert_eq!(name_of(&hello.identity), "");
        }
    }

    #[test]
    fn frames_and_names_are_where_the_header_says() {
        use std::mem::offset_of;
        assert_eq!((offset_of!(Frame, cdb_length), offset_of!(Frame, sense), size_of::<Frame>()), (32, 64, 316));
        assert_eq!((offset_of!(NexusNames, initiator), size_of::<NexusNames>()), (24, 512));
        assert_eq!((offset_of!(Completion, moved), offset_of!(Completion, sense_length)), (16, 20));
        assert_eq!((offset_of!(Completion, extent_mapped), offset_of!(Completion, extent_length)), (22, 24));
    }

    #[test]
    fn wrong_lengths_are_malformed() {
        for length in [0, 7, 8, 95] {
            let mut short = hello()[..length].to_vec();
            if length >= 8 {
                (short[4], short[5]) = (length as u8, 0);
            }
            assert_eq!(Message::parse(&short), Err(Malformed), "{length}");
        }
        let mut lies = hello();
        lies[4] = 9;
        assert_eq!(Message::parse(&lies), Err(Malformed));
    }

    #[test]
    fn texts_are_shortened_at_a_character_and_have_no_control_characters() {
        let long = Message::Refused("ä".repeat(200));
        assert_eq!(Message::parse(&long.bytes()), Ok(Message::Refused("ä".repeat(128))));
        let mut name: [u8; NAME_BYTES] = name_field("a\x1b[2Jb");
        name[60] = b'x';
        assert_eq!(name_of(&name), "a?[2Jb");
        assert_eq!(name_of::<NAME_BYTES>(&name_field(&"ä".repeat(40))), "ä".repeat(32));
    }
}
