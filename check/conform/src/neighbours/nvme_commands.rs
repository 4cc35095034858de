//! The commands of NVMe attackers, for all transports of NVMe.

use super::transport::{LARGE_BLOCKS, Request, SMALL_BLOCKS, volume};

/// Blocks of one command (NLB is a field of 16 bits).
const BLOCKS_MAX: u32 = 65_536;
/// Ranges of one Copy, and blocks of each: 32 MiB.
const COPY_RANGES: u32 = 128;
const COPY_BLOCKS: u32 = 512;

/// The data of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    None,
    /// So many bytes from the controller.
    In(u32),
    /// Bytes to the controller, which are few.
    Out(Vec<u8>),
    /// So many zeroes to the controller, which it has to request where the transport has requests.
    Zeroes(u32),
}

/// A command without command identifier and data pointer.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) is_admin: bool,
    pub(super) opcode: u8,
    /// The FUSE field.
    pub(super) fused: u8,
    pub(super) namespace: u32,
    /// Command Dwords 10 to 15.
    pub(super) dwords: [u32; 6],
    pub(super) payload: Payload,
}

impl Command {
    fn io(opcode: u8, unit: u16, dwords: [u32; 6], payload: Payload) -> Self {
        Self { is_admin: false, opcode, fused: 0, namespace: u32::from(unit) + 1, dwords, payload }
    }

    fn admin(opcode: u8, namespace: u32, dwords: [u32; 6], payload: Payload) -> Self {
        Self { is_admin: true, opcode, fused: 0, namespace, dwords, payload }
    }

    /// The submission queue entry; the data pointer is zero.
    pub(super) fn entry(&self, cid: u16) -> [u8; 64] {
        let mut bytes = [0; 64];
        (bytes[0], bytes[1]) = (self.opcode, self.fused);
        bytes[2..4].copy_from_slice(&cid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.namespace.to_le_bytes());
        for (at, dword) in self.dwords.iter().enumerate() {
            bytes[40 + at * 4..44 + at * 4].copy_from_slice(&dword.to_le_bytes());
        }
        bytes
    }
}

/// Commands with a starting LBA and a number of blocks.
const fn blocks(lba: u32, count: u32) -> [u32; 6] {
    [lba, 0, count - 1, 0, 0, 0]
}

/// The commands of a request; none if NVMe has none. `count`: requests before this one; `compared`: bytes of a Compare.
pub(super) fn commands(request: Request, count: u32, compared: u32) -> Vec<Command> {
    use volume::{LARGE, REWRITTEN, SMALL};
    let command = match request {
        Request::LongRead => Command::io(2, SMALL, blocks(0, 2048), Payload::In(1 << 20)),
        Request::ShortWrite => Command::io(1, SMALL, blocks(64, 8), Payload::Zeroes(4096)),
        Request::LongWrite => Command::io(1, SMALL, blocks(64, 2048), Payload::Zeroes(1 << 20)),
        Request::Write => Command::io(1, SMALL, blocks(64, 2048), Payload::Zeroes(1 << 20)),
        Request::Unmap => {
            let range = [0, LARGE_BLOCKS, 0, 0].map(u32::to_le_bytes).concat();
            Command::io(9, LARGE, [255, 4, 0, 0, 0, 0], Payload::Out(range.repeat(256)))
        }
        Request::WriteSame => Command::io(8, SMALL, blocks(0, BLOCKS_MAX), Payload::None),
        Request::Verify => Command::io(0x0c, LARGE, blocks(0, BLOCKS_MAX), Payload::None),
        Request::Compare => Command::io(5, LARGE, blocks(0, compared / 512), Payload::Zeroes(compared)),
        Request::Copy => {
            let ranges = (0..COPY_RANGES).flat_map(|number| {
                let mut range = [0; 32];
                range[8..12].copy_from_slice(&(number * COPY_BLOCKS).to_le_bytes());
                range[16..18].copy_from_slice(&(COPY_BLOCKS as u16 - 1).to_le_bytes());
                range
            });
            let dwords = [SMALL_BLOCKS / 2, 0, COPY_RANGES - 1, 0, 0, 0];
            Command::io(0x19, SMALL, dwords, Payload::Out(ranges.collect()))
        }
        Request::Format => Command::admin(0x80, u32::from(REWRITTEN) + 1, [0; 6], Payload::None),
        Request::CompareAndWrite => {
            let half = |opcode, fused| {
                let command = Command::io(opcode, LARGE, blocks(0, 1), Payload::Out(vec![0; 512]));
                Command { fused, ..command }
            };
            return vec![half(5, 1), half(1, 2)];
        }
        Request::Flush => Command::io(0, LARGE, [0; 6], Payload::None),
        // The opcode is reserved.
        Request::Unknown => Command::io(0x7f, SMALL, [0; 6], Payload::None),
        Request::Abort => Command::admin(8, 0, [count << 16 | 1, 0, 0, 0, 0, 0], Payload::None),
        Request::Describe => Command::admin(6, 0, [1, 0, 0, 0, 0, 0], Payload::In(4096)),
        Request::Ping => Command::admin(0x18, 0, [0; 6], Payload::None),
        Request::AsyncEvent => Command::admin(0x0c, 0, [0; 6], Payload::None),
        Request::Register => {
            // Register, or replace with Ignore Existing Key.
            let key = u64::from(count) + 1;
            let keys = [0, key].map(u64::to_le_bytes).concat();
            Command::io(0x0d, SMALL, [2 | 1 << 3, 0, 0, 0, 0, 0], Payload::Out(keys))
        }
        Request::ScatteredRead => Command::io(2, SMALL, blocks(0, 512), Payload::In(512 * 512)),
        // A Sanitize of an NVM subsystem overwrites the namespace of the victim as well.
        Request::Sanitize
        | Request::AnnouncedWrite
        | Request::OutOfOrderWrite
        | Request::Doorbell
        | Request::Remap
        | Request::Reset
        | Request::SetUp
        | Request::Repeat
        | Request::Overlap
        | Request::Stranger
        | Request::Newcomer
        | Request::Rename => return Vec::new(),
    };
    vec![command]
}

/// The requests whose commands must succeed when they are sent alone.
pub(super) const CHECKED: [Request; 14] = [
    Request::LongRead,
    Request::ShortWrite,
    Request::LongWrite,
    Request::Unmap,
    Request::WriteSame,
    Request::Verify,
    Request::Compare,
    Request::Copy,
    Request::Flush,
    Request::Format,
    Request::CompareAndWrite,
    Request::Describe,
    Request::Ping,
    Request::Register,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_its_fields_at_the_specified_offsets() {
        let [compare, write] = &commands(Request::CompareAndWrite, 0, 0)[..] else { panic!("two commands") };
        assert_eq!((compare.entry(7)[..8].to_vec(), write.entry(8)[1]), (vec![5, 1, 7, 0, 3, 0, 0, 0], 2));
        let verify = &commands(Request::Verify, 0, 0)[0];
        assert_eq!(verify.entry(1)[48..52], 65_535_u32.to_le_bytes());
        assert!(commands(Request::Sanitize, 0, 0).is_empty());
    }
}
