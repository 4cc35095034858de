//! A small iSCSI target in memory: a disk with a volatile write cache and configurable faults, or a tape.

use lunar_iscsi::text;
use lunar_iscsi::wire::{
    BHS_LEN, Bhs, DataIn, DataOut, FINAL, LoginRequest, LoginResponse, LoginStatus, LogoutRequest, LogoutResponse,
    NO_TAG, Opcode, Pdu, R2t, STATUS, ScsiCommand, ScsiResponse, Stage, TextRequest, TextResponse, U24, WRITE,
    login_flags,
};
use std::collections::BTreeMap;
use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use zerocopy::FromBytes;

pub(crate) const NAME: &str = "iqn.2026-01.io.lunar:test";
const BLOCK: usize = 512;
const BLOCKS: u64 = 8192;

/// The faults of the target.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    /// SYNCHRONIZE CACHE does not write the cache.
    pub(crate) flush_lies: bool,
    /// FUA is ignored.
    pub(crate) fua_lies: bool,
    /// The number of a write, from 1, that is acknowledged and dropped.
    pub(crate) loses_write: u64,
    /// The number of the write at which the power fails instead of the response.
    pub(crate) fails_at_write: u64,
    /// Every third command is answered with BUSY.
    pub(crate) busy: bool,
    /// Reads fail with MEDIUM ERROR.
    pub(crate) bad_medium: bool,
    /// Logins are redirected to this port.
    pub(crate) moved_to: Option<u16>,
    /// It is a tape, whose writes report early warning.
    pub(crate) is_tape: bool,
}

#[derive(Default)]
struct State {
    medium: Vec<u8>,
    cache: BTreeMap<u64, [u8; BLOCK]>,
    writes: u64,
    commands: u64,
    failed: bool,
    /// The blocks of a tape, and the position.
    tape: (Vec<Vec<u8>>, usize),
}

/// A running target.
pub(crate) struct Disk {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Disk {
    pub(crate) fn start(faults: Faults) -> Self {
        let state = State { medium: vec![0; BLOCK * BLOCKS as usize], ..State::default() };
        Self::serve(faults, Arc::new(Mutex::new(state)))
    }

    fn serve(faults: Faults, state: Arc<Mutex<State>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = state.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let mut peer = Peer { socket, faults, state: shared.clone(), stat_sn: 0, cmd_sn: 0, attention: true };
                // A connection that ends only ends its own thread.
                std::thread::spawn(move || peer.run());
            }
        });
        Self { address, state }
    }

    /// The same disk after a power failure: the content of the write cache is lost.
    pub(crate) fn restart(&self) -> Self {
        let mut state = self.state.lock().expect("no panic");
        state.cache.clear();
        state.failed = false;
        drop(state);
        Self::serve(Faults::default(), self.state.clone())
    }

    /// The URL of the unit.
    pub(crate) fn url(&self) -> String {
        format!("iscsi://{}/{NAME}/0", self.address)
    }
}

struct Peer {
    socket: TcpStream,
    faults: Faults,
    state: Arc<Mutex<State>>,
    stat_sn: u32,
    cmd_sn: u32,
    attention: bool,
}

impl Peer {
    fn run(&mut self) -> Result<()> {
        loop {
            let (header, data) = self.receive()?;
            match header.opcode() {
                Opcode::LOGIN_REQUEST => self.login(LoginRequest::of(&header), &data)?,
                Opcode::SCSI_COMMAND => self.command(ScsiCommand::of(&header), data)?,
                Opcode::TEXT_REQUEST => {
                    let mut answer = TextResponse::blank();
                    answer.itt = TextRequest::of(&header).itt;
                    answer.ttt.set(NO_TAG);
                    self.cmd_sn += 1;
                    self.send(
                        answer,
                        format!("TargetName={NAME}\0TargetAddress={},1\0", self.socket.local_addr()?).as_bytes(),
                    )?;
                }
                Opcode::LOGOUT_REQUEST => {
                    let mut answer = LogoutResponse::blank();
                    answer.itt = LogoutRequest::of(&header).itt;
                    self.send(answer, &[])?;
                }
                other => panic!("unexpected PDU {other:?}"),
            }
        }
    }

    fn receive(&mut self) -> Result<(Bhs, Vec<u8>)> {
        let mut bytes = [0; BHS_LEN];
        self.socket.read_exact(&mut bytes)?;
        let header = Bhs::read_from_bytes(&bytes).expect("48 bytes");
        let mut data = vec![0; header.padded_len()];
        self.socket.read_exact(&mut data)?;
        data.truncate(header.data_len.get());
        Ok((header, data))
    }

    /// Sends a PDU with the next StatSN and a command window of 32.
    fn send<P: Pdu>(&mut self, mut pdu: P, data: &[u8]) -> Result<()> {
        let bytes = pdu.as_mut_bytes();
        bytes[5..8].copy_from_slice(zerocopy::IntoBytes::as_bytes(&U24::new(data.len())));
        bytes[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.cmd_sn.to_be_bytes());
        bytes[32..36].copy_from_slice(&(self.cmd_sn + 31).to_be_bytes());
        let mut out = bytes.to_vec();
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(4), 0);
        if P::OPCODE != Opcode::R2T {
            self.stat_sn += 1;
        }
        self.socket.write_all(&out)
    }

    fn login(&mut self, request: &LoginRequest, data: &[u8]) -> Result<()> {
        let mut answer = LoginResponse::blank();
        self.cmd_sn = request.cmd_sn.get();
        answer.flags = login_flags(request.stage(), Some(request.next_stage()));
        answer.itt = request.itt;
        let mut text = Vec::new();
        if let Some(port) = self.faults.moved_to {
            answer.status.set(LoginStatus::MOVED_TEMPORARILY.0);
            text::put(&mut text, "TargetAddress", format!("127.0.0.1:{port},1"));
            return self.send(answer, &text);
        }
        if text::pairs(data).flatten().any(|(key, value)| key == "TargetName" && value != NAME) {
            answer.status.set(LoginStatus::NOT_FOUND.0);
            return self.send(answer, &[]);
        }
        if request.stage() == Stage::OPERATIONAL {
            for (key, value) in text::pairs(data).flatten() {
                match key {
                    "InitialR2T" | "ImmediateData" | "MaxBurstLength" => text::put(&mut text, key, value),
                    "FirstBurstLength" => text::put(&mut text, key, 4096),
                    "MaxRecvDataSegmentLength" => text::put(&mut text, key, 2048),
                    "MaxOutstandingR2T" => text::put(&mut text, key, 1),
                    "HeaderDigest" | "DataDigest" => text::put(&mut text, key, "None"),
                    _ => {}
                }
            }
        }
        self.send(answer, &text)
    }

    fn respond(&mut self, itt: zerocopy::big_endian::U32, status: u8, sense: &[u8]) -> Result<()> {
        let mut answer = ScsiResponse::blank();
        answer.itt = itt;
        answer.status = status;
        self.send(answer, sense)
    }

    /// REWIND, READ, WRITE and WRITE FILEMARKS.
    fn tape(&mut self, command: &ScsiCommand, data: Vec<u8>) -> Result<()> {
        let block = {
            let (blocks, at) = &mut self.state.lock().expect("no panic").tape;
            match command.cdb[0] {
                0x01 => *at = 0,
                0x08 | 0x0a => *at += 1,
                _ => {}
            }
            if command.cdb[0] == 0x0a {
                assert_eq!(command.cdb[1..5], [&[0][..], &(data.len() as u32).to_be_bytes()[1..]].concat());
                blocks.truncate(*at - 1);
                blocks.push(data);
            }
            (command.cdb[0] == 0x08).then(|| blocks.get(*at - 1).cloned())
        };
        match block {
            // CHECK CONDITION with NO SENSE, EOM, and END-OF-PARTITION/MEDIUM DETECTED.
            None if command.cdb[0] == 0x0a => {
                self.respond(command.itt, 2, &[0, 18, 0x70, 0, 0x40, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0])
            }
            None => self.respond(command.itt, 0, &[]),
            Some(Some(block)) => self.data_in(command, &block),
            Some(None) => self.respond(command.itt, 2, &[0, 8, 0x72, 8, 0, 5, 0, 0, 0, 0]),
        }
    }

    fn command(&mut self, command: &ScsiCommand, data: Vec<u8>) -> Result<()> {
        self.cmd_sn = command.cmd_sn.get() + 1;
        let cdb = command.cdb;
        let data = match command.flags & WRITE {
            0 => Vec::new(),
            _ => self.gather(command, data)?,
        };
        let count = {
            let mut state = self.state.lock().expect("no panic");
            state.commands += 1;
            state.commands
        };
        if std::mem::take(&mut self.attention) {
            return self.respond(command.itt, 2, &[0, 8, 0x72, 6, 0x29, 0, 0, 0, 0, 0]);
        }
        if self.faults.busy && count.is_multiple_of(3) {
            return self.respond(command.itt, 8, &[]);
        }
        let lba = u64::from(u32::from_be_bytes([cdb[2], cdb[3], cdb[4], cdb[5]]));
        let blocks = u64::from(u16::from_be_bytes([cdb[7], cdb[8]]));
        match cdb[0] {
            0x00 => self.respond(command.itt, 0, &[]),
            0x12 => {
                let mut answer = [0; 36];
                answer[0] = u8::from(self.faults.is_tape);
                self.data_in(command, &answer)
            }
            0x01 | 0x08 | 0x0a | 0x10 if self.faults.is_tape => self.tape(command, data),
            0x9e => {
                let mut answer = [0; 32];
                answer[..8].copy_from_slice(&(BLOCKS - 1).to_be_bytes());
                answer[8..12].copy_from_slice(&u32::try_from(BLOCK).expect("small").to_be_bytes());
                self.data_in(command, &answer)
            }
            0x28 if self.faults.bad_medium => self.respond(command.itt, 2, &[0, 8, 0x72, 3, 0x11, 0, 0, 0, 0, 0]),
            0x28 => {
                let data = self.state.lock().expect("no panic").read(lba, blocks);
                self.data_in(command, &data)
            }
            0x2a => {
                let fua = cdb[1] & 8 != 0;
                match self.state.lock().expect("no panic").write(lba, &data, fua, self.faults) {
                    true => {}
                    false => return Err(std::io::ErrorKind::ConnectionReset.into()),
                }
                self.respond(command.itt, 0, &[])
            }
            0x35 => {
                self.state.lock().expect("no panic").flush(self.faults);
                self.respond(command.itt, 0, &[])
            }
            other => panic!("unexpected operation code {other:02x}"),
        }
    }

    /// Collects the data of a write: immediate, unsolicited and solicited.
    fn gather(&mut self, command: &ScsiCommand, mut data: Vec<u8>) -> Result<Vec<u8>> {
        let (expected, mut over, mut r2t_sn) = (command.expected_len.get() as usize, command.flags & FINAL != 0, 0);
        while data.len() < expected {
            if over {
                let mut ask = R2t::blank();
                ask.itt = command.itt;
                ask.ttt.set(77);
                ask.r2t_sn.set(r2t_sn);
                ask.offset.set(data.len() as u32);
                ask.desired_len.set((expected - data.len()).min(8192) as u32);
                self.send(ask, &[])?;
                r2t_sn += 1;
            }
            let (header, part) = loop {
                let (header, part) = self.receive()?;
                if header.itt == command.itt {
                    break (header, part);
                }
                // Commands that follow the write wait: this target executes one command at a time.
                assert_eq!(header.opcode(), Opcode::SCSI_COMMAND);
                self.later(header, part);
            };
            let out = header.as_pdu::<DataOut>().expect("data of this write");
            assert_eq!(out.offset.get() as usize, data.len());
            data.extend_from_slice(&part);
            over = out.flags & FINAL != 0;
        }
        Ok(data)
    }

    fn later(&mut self, _: Bhs, _: Vec<u8>) {
        panic!("writes of more than one burst need depth 1");
    }

    fn data_in(&mut self, command: &ScsiCommand, data: &[u8]) -> Result<()> {
        let mut pdu = DataIn::blank();
        pdu.flags = FINAL | STATUS;
        pdu.itt = command.itt;
        pdu.ttt.set(NO_TAG);
        // `send` writes StatSN and MaxCmdSN; DataSN and offset stay zero.
        self.send(pdu, data)
    }
}

impl State {
    fn read(&self, lba: u64, blocks: u64) -> Vec<u8> {
        (lba..lba + blocks)
            .flat_map(|at| match self.cache.get(&at) {
                Some(block) => block.to_vec(),
                None => self.medium[at as usize * BLOCK..][..BLOCK].to_vec(),
            })
            .collect()
    }

    fn write(&mut self, lba: u64, data: &[u8], fua: bool, faults: Faults) -> bool {
        self.writes += 1;
        if self.failed || self.writes == faults.fails_at_write {
            self.failed = true;
            return false;
        }
        if self.writes == faults.loses_write {
            return true;
        }
        for (block, at) in data.chunks_exact(BLOCK).zip(lba..) {
            match fua && !faults.fua_lies {
                true => {
                    self.cache.remove(&at);
                    self.medium[at as usize * BLOCK..][..BLOCK].copy_from_slice(block);
                }
                false => {
                    self.cache.insert(at, block.try_into().expect("a block"));
                }
            }
        }
        true
    }

    fn flush(&mut self, faults: Faults) {
        if faults.flush_lies {
            return;
        }
        for (at, block) in std::mem::take(&mut self.cache) {
            self.medium[at as usize * BLOCK..][..BLOCK].copy_from_slice(&block);
        }
    }
}
