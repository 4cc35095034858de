//! Helpers of tests and fuzz targets: a link with faults, and a peer that has memory.

use crate::requester::Outgoing;
use crate::wire::{Extension, Head, Kind, Opcode, Packet, Psn, Syndrome, padding};
use std::collections::{BTreeSet, VecDeque};

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end.max(1)
    }
}

/// The bytes of a packet, without its check.
#[must_use]
pub fn packet(opcode: Opcode, psn: Psn, wants_acknowledge: bool, extension: Extension, payload: &[u8]) -> Vec<u8> {
    let head = Head { opcode, qpn: 7, psn, wants_acknowledge, extension }.bytes(payload.len());
    [&head[..], payload, &[0; 3][..padding(payload.len())]].concat()
}

/// The bytes of a packet of a connection.
#[must_use]
pub fn sent(outgoing: &Outgoing) -> Vec<u8> {
    let Outgoing { opcode, psn, wants_acknowledge, extension, payload, .. } = outgoing;
    packet(*opcode, *psn, *wants_acknowledge, *extension, &payload.to_vec())
}

/// One direction of a link that loses, repeats and reorders packets.
#[derive(Debug)]
pub struct Lossy {
    queue: VecDeque<Vec<u8>>,
    /// Of a thousand packets so many are lost, repeated, and delayed.
    faults: [u64; 3],
}

impl Lossy {
    /// A direction with these faults.
    #[must_use]
    pub fn new(faults: [u64; 3]) -> Self {
        Self { queue: VecDeque::new(), faults }
    }

    /// Sends a packet.
    pub fn send(&mut self, packet: Vec<u8>, random: &mut Random) {
        let [lost, repeated, delayed] = self.faults.map(|of_thousand| random.below(1000) < of_thousand);
        if lost {
            return;
        }
        if repeated {
            self.queue.push_back(packet.clone());
        }
        let at = if delayed { self.queue.len().saturating_sub(1 + random.below(4) as usize) } else { self.queue.len() };
        self.queue.insert(at, packet);
    }

    /// The next packet.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        self.queue.pop_front()
    }
}

/// A peer that has memory: it answers as the kernel's software RoCE does.
#[derive(Debug)]
pub struct Peer {
    mtu: usize,
    expected: Psn,
    completed: u32,
    has_reported_gap: bool,
    write_at: usize,
    partial: Vec<u8>,
    /// Its memory: addresses begin with 0.
    pub memory: Vec<u8>,
    /// The messages that have arrived.
    pub messages: Vec<Vec<u8>>,
    /// The keys that messages have invalidated: they are not used again.
    pub invalidated: BTreeSet<u32>,
    /// So many messages are answered with "not ready".
    pub not_ready: u32,
}

impl Peer {
    /// A peer that expects this number first.
    #[must_use]
    pub fn new(mtu: usize, expected: Psn, memory: Vec<u8>) -> Self {
        Self {
            mtu,
            expected,
            completed: 0,
            has_reported_gap: false,
            write_at: 0,
            partial: Vec::new(),
            memory,
            messages: Vec::new(),
            invalidated: BTreeSet::new(),
            not_ready: 0,
        }
    }

    fn answer(&self, psn: Psn, syndrome: Syndrome) -> Vec<Vec<u8>> {
        vec![packet(Opcode::ACKNOWLEDGE, psn, false, Extension::Acknowledge(syndrome, self.completed), &[])]
    }

    fn responses(&self, psn: Psn, at: usize, len: usize) -> Vec<Vec<u8>> {
        let data = &self.memory[at..at + len];
        let count = len.div_ceil(self.mtu).max(1);
        let response = |number: usize| {
            let part = &data[number * self.mtu..len.min((number + 1) * self.mtu)];
            let opcode = match (number == 0, number + 1 == count) {
                (true, true) => Opcode::READ_RESPONSE_ONLY,
                (true, false) => Opcode::READ_RESPONSE_FIRST,
                (false, false) => Opcode::READ_RESPONSE_MIDDLE,
                (false, true) => Opcode::READ_RESPONSE_LAST,
            };
            let extension = match opcode {
                Opcode::READ_RESPONSE_MIDDLE => Extension::None,
                _ => Extension::Acknowledge(Syndrome::ACKNOWLEDGED, self.completed),
            };
            packet(opcode, psn.plus(number as u32), false, extension, part)
        };
        (0..count).map(response).collect()
    }

    /// Takes a packet; returns the answers.
    ///
    /// # Panics
    /// When the packet breaks a rule.
    pub fn receive(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let packet = Packet::parse(bytes).expect("well-formed");
        let (psn, layout, len) = (packet.psn, packet.layout, packet.payload.len());
        let read = match packet.extension {
            Extension::Remote(from, len) if layout.kind == Kind::ReadRequest => {
                Some((from.address as usize, len as usize))
            }
            _ => None,
        };
        if psn != self.expected {
            if psn.is_before(self.expected) {
                return match read {
                    Some((at, len)) => self.responses(psn, at, len),
                    None => self.answer(self.expected.plus(0xff_ffff), Syndrome::ACKNOWLEDGED),
                };
            }
            let is_first = !std::mem::replace(&mut self.has_reported_gap, true);
            return if is_first { self.answer(self.expected, Syndrome::SEQUENCE_ERROR) } else { Vec::new() };
        }
        if layout.kind == Kind::Send && layout.is_first && self.not_ready > 0 {
            self.not_ready -= 1;
            return self.answer(psn, Syndrome::WAIT);
        }
        self.has_reported_gap = false;
        match packet.extension {
            Extension::Remote(to, _) => assert!(!self.invalidated.contains(&to.key), "key {:x} is invalid", to.key),
            Extension::Invalidate(key) => _ = self.invalidated.insert(key),
            _ => {}
        }
        assert!(layout.is_last || len == self.mtu || read.is_some(), "a packet in the middle is full");
        if layout.is_last {
            self.completed += 1;
        }
        if let Some((at, len)) = read {
            self.expected = psn.plus(len.div_ceil(self.mtu).max(1) as u32);
            return self.responses(psn, at, len);
        }
        self.expected = psn.plus(1);
        match (layout.kind, packet.extension) {
            (Kind::Write, extension) => {
                if let Extension::Remote(to, _) = extension {
                    self.write_at = to.address as usize;
                }
                self.memory[self.write_at..self.write_at + len].copy_from_slice(packet.payload);
                self.write_at += len;
            }
            _ => {
                self.partial.extend(packet.payload);
                if layout.is_last {
                    self.messages.push(std::mem::take(&mut self.partial));
                }
            }
        }
        if packet.wants_acknowledge { self.answer(psn, Syndrome::ACKNOWLEDGED) } else { Vec::new() }
    }
}
