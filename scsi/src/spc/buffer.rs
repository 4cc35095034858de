//! READ BUFFER and WRITE BUFFER: an echo buffer and a small data buffer, by which initiators test the path to the
//! target.

use crate::buffers::BUFFER_BYTES;
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense};
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Admission of both commands (SPC-4 5.13.1).
const TESTS: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

lunar_core::codes! {
    /// MODE (SPC-4 6.18, 6.49). Microcode download and error history are not supported.
    struct Mode(u8) { DATA = 0x02, DESCRIPTOR = 0x03, ECHO = 0x0a, ECHO_DESCRIPTOR = 0x0b }
}

/// MODE. The bits above it are MODE SPECIFIC, which no supported mode uses.
const MODE: u8 = 0x1f;
/// BUFFER ID of the only data buffer.
const ONLY_BUFFER: u8 = 0;
/// OFFSET BOUNDARY as a power of two: any byte.
const ANY_OFFSET: u8 = 0;
/// EBOS: each nexus has an echo buffer of its own, which no other nexus overwrites.
const PRIVATE_ECHO: u8 = 0x01;

/// A number of 24 bits.
fn u24([high, middle, low]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, high, middle, low])
}

/// Plans READ BUFFER of either length. `offset_at` is the position of the offset in the CDB.
fn read(cx: &mut Context<'_>, mode: u8, id: u8, offset: u64, offset_at: usize) -> Result<Plan, Sense> {
    let itl = cx.itl()?;
    let out = &mut cx.out;
    match Mode(mode) {
        Mode::DATA if id != ONLY_BUFFER => return Err(Sense::in_cdb(offset_of!(ReadBuffer10, id))),
        Mode::DATA => {
            if offset > BUFFER_BYTES as u64 {
                return Err(Sense::in_cdb(offset_at));
            }
            itl.buffers.read(offset as usize, |bytes| {
                out.bytes(bytes);
            });
        }
        Mode::DESCRIPTOR => {
            let capacity = if id == ONLY_BUFFER { BUFFER_BYTES as u32 } else { 0 };
            let [_, high, middle, low] = capacity.to_be_bytes();
            out.bytes(&[ANY_OFFSET, high, middle, low]);
        }
        Mode::ECHO => {
            let before = out.written();
            itl.buffers.echo(|bytes| {
                out.bytes(bytes);
            });
            if out.written() == before {
                return Err(Sense::illegal(Asc::COMMAND_SEQUENCE_ERROR));
            }
        }
        Mode::ECHO_DESCRIPTOR => {
            let [high, low] = (BUFFER_BYTES as u16).to_be_bytes();
            out.bytes(&[PRIVATE_ECHO, 0, high, low]);
        }
        _ => return Err(Sense::bit_in_cdb(offset_of!(ReadBuffer10, mode), 4)),
    }
    Ok(Plan::Answer)
}

/// READ BUFFER(10)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadBuffer10 {
    opcode: u8,
    mode: u8,
    id: u8,
    offset: [u8; 3],
    allocation: [u8; 3],
    control: u8,
}

impl CommandType for ReadBuffer10 {
    const POLICY: Policy = Policy {
        name: "READ BUFFER(10)",
        clause: "SPC-4 6.18",
        code: Code::of(OpCode::READ_BUFFER_10),
        effect: Effect::None,
        admission: TESTS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::READ_BUFFER_10.0,
        mode: MODE,
        id: 0xff,
        offset: [0xff; 3],
        allocation: [0xff; 3],
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| u24(cdb.allocation));

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        read(cx, self.mode, self.id, u24(self.offset).into(), offset_of!(Self, offset))
    }
}

/// READ BUFFER(16)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadBuffer16 {
    opcode: u8,
    mode: u8,
    offset: be::U64,
    allocation: be::U32,
    id: u8,
    control: u8,
}

impl CommandType for ReadBuffer16 {
    const POLICY: Policy = Policy {
        name: "READ BUFFER(16)",
        clause: "SPC-5",
        code: Code::of(OpCode::READ_BUFFER_16),
        effect: Effect::None,
        admission: TESTS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::READ_BUFFER_16.0,
        mode: MODE,
        offset: be::U64::MAX_VALUE,
        allocation: be::U32::MAX_VALUE,
        id: 0xff,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        if Mode(self.mode) == Mode::DATA && self.id != ONLY_BUFFER {
            return Err(Sense::in_cdb(offset_of!(Self, id)));
        }
        read(cx, self.mode, self.id, self.offset.get(), offset_of!(Self, offset))
    }
}

/// WRITE BUFFER
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct WriteBuffer {
    opcode: u8,
    mode: u8,
    id: u8,
    offset: [u8; 3],
    length: [u8; 3],
    control: u8,
}

impl CommandType for WriteBuffer {
    const POLICY: Policy = Policy {
        name: "WRITE BUFFER",
        clause: "SPC-4 6.49",
        code: Code::of(OpCode::WRITE_BUFFER),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Refused,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Conflict,
            alua: Alua::Active,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Quick,
        },
    };
    const USAGE: Self =
        Self { opcode: OpCode::WRITE_BUFFER.0, mode: MODE, id: 0xff, offset: [0xff; 3], length: [0xff; 3], control: 0 };
    // A list longer than the buffer is refused by `run`, so it is not pulled.
    const DATA: Data<Self> = Data::List(|cdb| match u24(cdb.length) {
        length if length as usize <= BUFFER_BYTES => length,
        _ => 0,
    });

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        let itl = cx.itl()?;
        let (offset, length) = (u24(self.offset) as usize, u24(self.length) as usize);
        let end = match Mode(self.mode) {
            Mode::DATA if self.id != ONLY_BUFFER => return Err(Sense::in_cdb(offset_of!(Self, id))),
            Mode::DATA if offset > BUFFER_BYTES => return Err(Sense::in_cdb(offset_of!(Self, offset))),
            Mode::DATA => offset + length,
            Mode::ECHO => length,
            _ => return Err(Sense::bit_in_cdb(offset_of!(Self, mode), 4)),
        };
        if end > BUFFER_BYTES {
            return Err(Sense::in_cdb(offset_of!(Self, length)));
        }
        if list.len() < length {
            return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
        }
        match Mode(self.mode) {
            _ if length == 0 => {}
            Mode::ECHO => itl.buffers.set_echo(&list[..length]),
            _ => itl.buffers.write(offset, &list[..length]),
        }
        Ok(Plan::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Status;
    use crate::testing::{Ended, Rig};

    fn write(rig: &Rig, mode: u8, id: u8, offset: u16, out: &[u8]) -> Ended {
        let ([oh, ol], [_, h, m, l]) = (offset.to_be_bytes(), (out.len() as u32).to_be_bytes());
        rig.run(&[0x3b, mode, id, 0, oh, ol, h, m, l, 0], out, 0)
    }

    fn read(rig: &Rig, mode: u8, id: u8, offset: u16, allocation: u16) -> Ended {
        let ([oh, ol], [ah, al]) = (offset.to_be_bytes(), allocation.to_be_bytes());
        let ten = rig.run(&[0x3c, mode, id, 0, oh, ol, 0, ah, al, 0], &[], allocation.into());
        let cdb = [0x9b, mode, 0, 0, 0, 0, 0, 0, oh, ol, 0, 0, ah, al, id, 0];
        let sixteen = rig.run(&cdb, &[], allocation.into());
        assert_eq!((ten.status, &ten.data), (sixteen.status, &sixteen.data));
        ten
    }

    #[test]
    fn data_that_was_written_is_read_back() {
        let rig = Rig::default();
        assert_eq!(read(&rig, 2, 0, 0, 8192).data, [0; BUFFER_BYTES], "zeroes, up to the end of the buffer");
        assert_eq!(write(&rig, 2, 0, 4090, &[1, 2, 3]).status, Status::GOOD);
        assert_eq!(read(&rig, 2, 0, 4088, 100).data, [0, 0, 1, 2, 3, 0, 0, 0]);
        assert_eq!(read(&rig, 2, 0, 4090, 2).data, [1, 2]);
        assert_eq!(read(&rig, 2, 0, 4096, 2).data, []);
        assert_eq!(read(&rig, 3, 0, 0, 100).data, [0, 0, 0x10, 0]);
        assert_eq!(read(&rig, 3, 1, 0, 100).data, [0; 4], "BUFFER ID 1 does not exist");
    }

    #[test]
    fn the_echo_buffer_returns_the_last_echo_of_the_same_nexus() {
        let rig = Rig::default();
        assert_eq!(read(&rig, 0x0b, 0, 0, 100).data, [1, 0, 0x10, 0]);
        assert_eq!(read(&rig, 0x0a, 0, 0, 100).sense[12..14], [0x2c, 0]);
        assert_eq!(write(&rig, 0x0a, 0, 0, &[9; 4096]).status, Status::GOOD);
        assert_eq!(write(&rig, 0x0a, 0, 0, &[7; 5]).status, Status::GOOD);
        assert_eq!(read(&rig, 0x0a, 0, 0, 100).data, [7; 5]);
        let other = rig.target.nexus(Rig::name("b"));
        other.each(|itl| while itl.take_attention().is_some() {});
        let theirs = rig.run_as(&other, &[0x3c, 0x0a, 0, 0, 0, 0, 0, 0, 100, 0], &[], 100);
        assert_eq!(theirs.sense[12..14], [0x2c, 0]);
        assert_eq!(rig.run_as(&other, &[0x3c, 2, 0, 0, 0, 0, 0, 0, 2, 0], &[], 2).data, [0, 0]);
    }

    #[test]
    fn offsets_and_lengths_beyond_the_buffer_are_refused() {
        let rig = Rig::default();
        let place = |ended: Ended| (ended.sense[12], u16::from_be_bytes([ended.sense[16], ended.sense[17]]));
        assert_eq!(place(write(&rig, 2, 0, 4094, &[1; 3])), (0x24, 6));
        assert_eq!(place(write(&rig, 2, 0, 4097, &[])), (0x24, 3));
        assert_eq!(place(write(&rig, 2, 1, 0, &[1])), (0x24, 2));
        assert_eq!(place(write(&rig, 0x0a, 0, 0, &[1; 4097])), (0x24, 6));
        assert_eq!(place(write(&rig, 5, 0, 0, &[1])), (0x24, 1), "microcode download");
        let huge = rig.run(&[0x3b, 2, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0], &[1; 512], 0);
        assert_eq!(place(huge), (0x24, 3));
        assert_eq!(rig.run(&[0x3b, 2, 0, 0, 0, 0, 0, 0, 9, 0], &[1; 8], 0).sense[12], 0x1a);
        let read = |cdb: &[u8]| place(rig.run(cdb, &[], 100));
        assert_eq!(read(&[0x3c, 2, 0, 0, 0x10, 1, 0, 0, 100, 0]), (0x24, 3));
        assert_eq!(read(&[0x3c, 2, 1, 0, 0, 0, 0, 0, 100, 0]), (0x24, 2));
        assert_eq!(read(&[0x3c, 0x1c, 0, 0, 0, 0, 0, 0, 100, 0]), (0x24, 1));
        assert_eq!(read(&[0x9b, 2, 0, 0, 0, 0, 0, 0, 0x10, 1, 0, 0, 0, 100, 0, 0]), (0x24, 2));
        assert_eq!(read(&[0x9b, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 1, 0]), (0x24, 14));
    }
}
