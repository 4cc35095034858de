//! The program that an interface runs for each received frame (XDP), and the maps that it reads.
//!
//! It has some fifty instructions, which are written here: a compiler for such programs, and a library that loads its
//! object files, would be larger than that, and would be needed at each build.

use super::super::super::batch::{MacAddress, VlanTag};
use super::super::frame::{ADDRESSES, Filter, HEADER};
use crate::sys::raw;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The most filters of a link: a port has one address of its own, and some groups.
const FILTERS_MAX: usize = 64;
/// The address that stands for all groups in the map of addresses.
const ANY_GROUP: MacAddress = MacAddress([1, 0, 0, 0, 0, 0]);
/// The address that stands for all addresses in the map of addresses.
const ANY: MacAddress = MacAddress([0; 6]);

// Commands, kinds and flags of linux/bpf.h and linux/if_link.h.
const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_MAP_DELETE_ELEM: i32 = 3;
const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const BPF_FUNC_MAP_LOOKUP: i32 = 1;
const BPF_FUNC_REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;

/// The commands of bpf(2) by which programs of interfaces are attached, for filters of system calls.
pub const COMMANDS: [i32; 5] =
    [BPF_MAP_CREATE, BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM, BPF_PROG_LOAD, BPF_LINK_CREATE];

/// A key of the map of addresses: which frames go to the socket.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    destination: [u8; 6],
    ether_type: [u8; 2],
    /// The VLAN; 0: none.
    vlan: u32,
}

/// The frames that an interface gives to the sockets of a link, and the attached program that does it. The kernel
/// detaches the program when the last descriptor of its link is closed, also when the process is killed.
#[derive(Debug)]
pub(super) struct Program {
    /// Declared first: detached before the maps go.
    _link: OwnedFd,
    addresses: OwnedFd,
    sockets: OwnedFd,
    own: MacAddress,
    types: Vec<u16>,
    vlan: u32,
    is_generic: bool,
}

/// The frames that a program selects.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub(super) own: MacAddress,
    pub(super) types: Vec<u16>,
    pub(super) vlan: Option<u16>,
}

impl Program {
    /// Attaches a program to the interface of this index, which has so many queues. Its frames may be in several pieces
    /// if `has_pieces`. Until sockets are added, all frames stay with the kernel.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(super) fn attach(index: u32, queues: usize, has_pieces: bool, selection: Selection) -> io::Result<Self> {
        let Selection { own, types, vlan } = selection;
        let entries = (types.len() * (FILTERS_MAX + 2)) as u32;
        let addresses = new_map(BPF_MAP_TYPE_HASH, size_of::<Key>() as u32, entries)?;
        let sockets = new_map(BPF_MAP_TYPE_XSKMAP, size_of::<u32>() as u32, queues as u32)?;
        let program = load(&instructions(raw(&addresses), raw(&sockets)), has_pieces)?;
        let (link, is_generic) = match new_link(&program, index, 0) {
            Ok(link) => (link, false),
            Err(why) if why.raw_os_error() == Some(libc::EBUSY) => return Err(why),
            // The driver has no XDP, or none for this MTU: the kernel runs the program itself.
            Err(_) => (new_link(&program, index, XDP_FLAGS_SKB_MODE)?, true),
        };
        let program = Self { _link: link, addresses, sockets, own, types, vlan: vlan.unwrap_or(0).into(), is_generic };
        for address in [own, MacAddress::BROADCAST] {
            program.set_address(address, true)?;
        }
        Ok(program)
    }

    /// Whether the kernel runs it instead of the driver.
    pub(super) fn is_generic(&self) -> bool {
        self.is_generic
    }

    /// Gives the frames of a queue to a socket.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(super) fn add_socket(&self, queue: u32, socket: &OwnedFd) -> io::Result<()> {
        update(&self.sockets, &queue, &(raw(socket) as u32))
    }

    /// Adds or removes a filter.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(super) fn set_filter(&self, filter: Filter, is_wanted: bool) -> io::Result<()> {
        let address = match filter {
            Filter::Unicast(mac) | Filter::Group(mac) => mac,
            Filter::AllGroups => ANY_GROUP,
            Filter::Promiscuous => ANY,
        };
        if address == self.own || address == MacAddress::BROADCAST {
            return Ok(());
        }
        self.set_address(address, is_wanted)
    }

    fn set_address(&self, address: MacAddress, is_wanted: bool) -> io::Result<()> {
        for ether_type in &self.types {
            let key = Key { destination: address.0, ether_type: ether_type.to_be_bytes(), vlan: self.vlan };
            if is_wanted {
                update(&self.addresses, &key, &1_u32)?;
            } else {
                remove(&self.addresses, &key)?;
            }
        }
        Ok(())
    }
}

/// One call of bpf(2), whose attributes begin as `attributes` does; returns its result.
fn bpf<T>(command: i32, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the kernel reads as many bytes as the attributes have; pointers in them are valid, which the callers see
    // to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// One call that opens a descriptor.
fn open<T>(command: i32, attributes: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the kernel has just opened it for this process, and no other code knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn new_map(kind: u32, key_size: u32, entries: u32) -> io::Result<OwnedFd> {
    // map_type, key_size, value_size, max_entries.
    open(BPF_MAP_CREATE, &mut [kind, key_size, size_of::<u32>() as u32, entries])
}

#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Element {
    fn new<K>(map: &OwnedFd, key: &K, value: Option<&u32>) -> Self {
        let value = value.map_or(0, |value| (&raw const *value).expose_provenance() as u64);
        Self { map: raw(map) as u32, padding: 0, key: (&raw const *key).expose_provenance() as u64, value, flags: 0 }
    }
}

fn update<K>(map: &OwnedFd, key: &K, value: &u32) -> io::Result<()> {
    bpf(BPF_MAP_UPDATE_ELEM, &mut Element::new(map, key, Some(value))).map(drop)
}

fn remove<K>(map: &OwnedFd, key: &K) -> io::Result<()> {
    match bpf(BPF_MAP_DELETE_ELEM, &mut Element::new(map, key, None)) {
        // It is not there, which was to be done.
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map(drop),
    }
}

fn load(code: &[Instruction], has_pieces: bool) -> io::Result<OwnedFd> {
    #[repr(C)]
    #[derive(Default)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_type: u32,
    }
    let mut name = [0; 16];
    name[..11].copy_from_slice(b"lunar_frame");
    open(
        BPF_PROG_LOAD,
        &mut Load {
            kind: BPF_PROG_TYPE_XDP,
            count: code.len() as u32,
            instructions: code.as_ptr().expose_provenance() as u64,
            license: c"Apache-2.0".as_ptr().expose_provenance() as u64,
            flags: if has_pieces { BPF_F_XDP_HAS_FRAGS } else { 0 },
            name,
            attach_type: BPF_XDP,
            ..Load::default()
        },
    )
}

fn new_link(program: &OwnedFd, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    // prog_fd, target_ifindex, attach_type, flags.
    open(BPF_LINK_CREATE, &mut [raw(program) as u32, interface, BPF_XDP, flags])
}

/// An instruction (RFC 9669 3).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

// Operation codes (RFC 9669, appendix A).
const LOAD_32: u8 = 0x61;
const LOAD_16: u8 = 0x69;
const LOAD_8: u8 = 0x71;
const LOAD_MAP: u8 = 0x18;
const STORE_32: u8 = 0x63;
const STORE_16: u8 = 0x6b;
const STORE_IMMEDIATE_32: u8 = 0x62;
const STORE_IMMEDIATE_16: u8 = 0x6a;
const MOVE: u8 = 0xbf;
const MOVE_IMMEDIATE: u8 = 0xb7;
const ADD_IMMEDIATE: u8 = 0x07;
const AND_IMMEDIATE: u8 = 0x57;
const FROM_BIG_ENDIAN: u8 = 0xdc;
const JUMP_EQUAL: u8 = 0x15;
const JUMP_NOT_EQUAL: u8 = 0x55;
const JUMP_GREATER: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The source register of an instruction that loads a map by its descriptor.
const BY_DESCRIPTOR: u8 = 1;
/// The frame pointer: the stack is below it.
const STACK: u8 = 10;
/// The places of the key on the stack.
const KEY: i16 = -16;
const KEY_END_OF_ADDRESS: i16 = KEY + 4;
const KEY_TYPE: i16 = KEY + 6;
const KEY_VLAN: i16 = KEY + 8;

/// A place to which instructions jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Label {
    Tagged,
    Typed,
    All,
    Redirect,
    Pass,
}

#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn add(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
        self.code.push(Instruction { code, registers, offset, immediate });
    }

    fn jump(&mut self, code: u8, to: u8, from: u8, immediate: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.add(code, to, from, 0, immediate);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    /// Jumps to `Pass` unless the frame has so many bytes: register 2 is its begin, register 3 its end.
    fn require(&mut self, bytes: usize) {
        self.add(MOVE, 4, 2, 0, 0);
        self.add(ADD_IMMEDIATE, 4, 0, 0, bytes as i32);
        self.jump(JUMP_GREATER, 4, 3, 0, Label::Pass);
    }

    /// Looks for the key on the stack; register 0 is not zero if the map has it.
    fn look_up(&mut self, map: i32) {
        self.load_map(map);
        self.add(MOVE, 2, STACK, 0, 0);
        self.add(ADD_IMMEDIATE, 2, 0, 0, KEY.into());
        self.add(CALL, 0, 0, 0, BPF_FUNC_MAP_LOOKUP);
    }

    fn load_map(&mut self, map: i32) {
        self.add(LOAD_MAP, 1, BY_DESCRIPTOR, 0, map);
        self.add(0, 0, 0, 0, 0);
    }

    /// Replaces the address in the key on the stack.
    fn set_address(&mut self, address: MacAddress) {
        let [a, b, c, d, e, f] = address.0;
        self.add(STORE_IMMEDIATE_32, STACK, 0, KEY, i32::from_ne_bytes([a, b, c, d]));
        self.add(STORE_IMMEDIATE_16, STACK, 0, KEY_END_OF_ADDRESS, i16::from_ne_bytes([e, f]).into());
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in &self.jumps {
            let (_, to) = self.labels.iter().find(|(of, _)| of == label).expect("each label has a place");
            self.code[*at].offset = (to - at - 1) as i16;
        }
        self.code
    }
}

/// The program: frames whose destination, EtherType and VLAN are in the map of addresses go to the socket of the queue
/// that received them; all others stay with the kernel.
fn instructions(addresses: i32, sockets: i32) -> Vec<Instruction> {
    let wire = |value: u16| i32::from(value.to_be());
    let mut to = Assembler::default();
    // Register 6: the context. Registers 2 and 3: begin and end of the first piece of the frame.
    to.add(MOVE, 6, 1, 0, 0);
    to.add(LOAD_32, 2, 6, 0, 0);
    to.add(LOAD_32, 3, 6, 4, 0);
    to.require(HEADER);
    to.add(LOAD_32, 5, 2, 0, 0);
    to.add(STORE_32, STACK, 5, KEY, 0);
    to.add(LOAD_16, 5, 2, 4, 0);
    to.add(STORE_16, STACK, 5, KEY_END_OF_ADDRESS, 0);
    // Register 7: the VLAN. Register 5: the EtherType.
    to.add(MOVE_IMMEDIATE, 7, 0, 0, 0);
    to.add(LOAD_16, 5, 2, ADDRESSES as i16, 0);
    to.jump(JUMP_EQUAL, 5, 0, wire(VlanTag::C_VLAN), Label::Tagged);
    to.jump(JUMP_NOT_EQUAL, 5, 0, wire(VlanTag::S_VLAN), Label::Typed);
    to.label(Label::Tagged);
    to.require(HEADER + 4);
    to.add(LOAD_16, 7, 2, ADDRESSES as i16 + 2, 0);
    to.add(FROM_BIG_ENDIAN, 7, 0, 0, 16);
    to.add(AND_IMMEDIATE, 7, 0, 0, 0xfff);
    to.add(LOAD_16, 5, 2, ADDRESSES as i16 + 4, 0);
    to.label(Label::Typed);
    to.add(STORE_16, STACK, 5, KEY_TYPE, 0);
    to.add(STORE_32, STACK, 7, KEY_VLAN, 0);
    to.look_up(addresses);
    to.jump(JUMP_NOT_EQUAL, 0, 0, 0, Label::Redirect);
    to.add(LOAD_8, 5, STACK, KEY, 0);
    to.add(AND_IMMEDIATE, 5, 0, 0, 1);
    to.jump(JUMP_EQUAL, 5, 0, 0, Label::All);
    to.set_address(ANY_GROUP);
    to.look_up(addresses);
    to.jump(JUMP_NOT_EQUAL, 0, 0, 0, Label::Redirect);
    to.label(Label::All);
    to.set_address(ANY);
    to.look_up(addresses);
    to.jump(JUMP_EQUAL, 0, 0, 0, Label::Pass);
    to.label(Label::Redirect);
    // A queue without a socket leaves its frames to the kernel.
    to.add(LOAD_32, 2, 6, 16, 0);
    to.load_map(sockets);
    to.add(MOVE_IMMEDIATE, 3, 0, 0, XDP_PASS);
    to.add(CALL, 0, 0, 0, BPF_FUNC_REDIRECT_MAP);
    to.add(EXIT, 0, 0, 0, 0);
    to.label(Label::Pass);
    to.add(MOVE_IMMEDIATE, 0, 0, 0, XDP_PASS);
    to.add(EXIT, 0, 0, 0, 0);
    to.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_eight_bytes_and_jumps_stay_inside() {
        let code = instructions(3, 4);
        assert_eq!((size_of::<Instruction>(), size_of::<Key>()), (8, 12));
        for (at, one) in code.iter().enumerate() {
            let is_jump = matches!(one.code, JUMP_EQUAL | JUMP_NOT_EQUAL | JUMP_GREATER);
            assert!(!is_jump || at + 1 + (one.offset as usize) < code.len(), "{at} {one:?}");
        }
        assert_eq!(code.last().map(|last| last.code), Some(EXIT));
    }
}
