//! Just enough of an iSCSI target (RFC 7143) that an initiator uses it as an empty disk: no SCSI device server, no
//! checks, no errors, nearly no session state. Reads always return the same data; written data is discarded.

use crate::net::Peer;
use crate::options::Server;
use crate::output::Output;
use anyhow::{Result, bail, ensure};
use clap::Args;
use lunar_iscsi::text;
use lunar_iscsi::wire::{
    BHS_LEN, Bhs, DataIn, DataOut, FINAL, LoginRequest, LoginResponse, LogoutRequest, LogoutResponse, NO_TAG, Opcode,
    Pdu, R2t, READ, STATUS, ScsiCommand, ScsiResponse, Stage, TextRequest, TextResponse, U24, WRITE, login_flags,
};
use lunar_load::options::size;
use std::collections::BTreeMap;
use std::net::TcpStream;
use zerocopy::FromBytes;

/// The name of the target.
const NAME: &str = "iqn.2026-01.io.lunar:floor";
/// The logical block size, in bytes.
const BLOCK: u32 = 512;
/// MaxRecvDataSegmentLength and the largest burst lengths, in bytes.
const SEGMENT: u32 = 1 << 20;

#[derive(Args, Clone, Debug)]
pub(crate) struct Iscsi {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Capacity of the disk
    #[arg(long, default_value = "1T", value_parser = size)]
    size: u64,
    /// Command window of a session
    #[arg(long, default_value_t = 256)]
    window: u32,
}

/// A write in progress.
struct Write {
    lun: [u8; 8],
    expected: u32,
    received: u32,
    /// Whether the sequence of unsolicited or requested data has ended.
    has_ended: bool,
    r2t_sn: u32,
}

pub(crate) struct Connection {
    blocks: u64,
    window: u32,
    /// The received part of an incomplete PDU, without skipped payload.
    held: Vec<u8>,
    /// Remaining bytes of a data segment to skip.
    skip: usize,
    writes: BTreeMap<u32, Write>,
    /// The write whose data is being skipped.
    after_skip: Option<u32>,
    exp_cmd_sn: u32,
    stat_sn: u32,
    initiator_segment: u32,
    output: Output,
}

impl Connection {
    pub(crate) fn new(options: &Iscsi) -> Self {
        Self {
            blocks: options.size / u64::from(BLOCK),
            window: options.window,
            held: Vec::new(),
            skip: 0,
            writes: BTreeMap::new(),
            after_skip: None,
            exp_cmd_sn: 0,
            stat_sn: 0,
            initiator_segment: 8192,
            output: Output::new(SEGMENT as usize),
        }
    }

    fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let part = self.skip.min(bytes.len());
                self.skip -= part;
                bytes = &bytes[part..];
                if self.skip == 0 {
                    self.finish_skip();
                }
                continue;
            }
            if self.held.is_empty() && bytes.len() >= BHS_LEN {
                bytes = self.pdu(bytes)?;
                continue;
            }
            // The PDU arrives in several receives.
            let wanted = match Bhs::peek(&self.held) {
                Some(header) => BHS_LEN + header.padded_len(),
                None => BHS_LEN,
            };
            let (part, rest) = bytes.split_at((wanted - self.held.len()).min(bytes.len()));
            self.held.extend_from_slice(part);
            bytes = rest;
            if self.held.len() == wanted {
                let held = std::mem::take(&mut self.held);
                let left = self.pdu(&held)?;
                ensure!(left.is_empty(), "bytes remain after a complete PDU");
            }
        }
        Ok(())
    }

    /// Handles the PDU at the start of `bytes`, which contain its header. Returns the bytes after it.
    fn pdu<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let header = Bhs::read_from_bytes(&bytes[..BHS_LEN]).map_err(|_| anyhow::anyhow!("a header is 48 bytes"))?;
        ensure!(header.ahs_words == 0, "an additional header segment");
        let (rest, len) = (&bytes[BHS_LEN..], header.padded_len());
        match header.opcode() {
            Opcode::SCSI_COMMAND => {
                self.command(ScsiCommand::of(&header))?;
                self.skip = len;
            }
            Opcode::DATA_OUT => {
                self.data_out(DataOut::of(&header))?;
                self.skip = len;
            }
            _ if rest.len() < len => {
                self.held.extend_from_slice(bytes);
                return Ok(&[]);
            }
            opcode => {
                let (data, rest) = rest.split_at(len);
                self.other(opcode, &header, &data[..header.data_len.get()])?;
                return Ok(rest);
            }
        }
        if self.skip == 0 {
            self.finish_skip();
        }
        Ok(rest)
    }

    fn put<P: Pdu>(&mut self, header: &P) {
        self.output.put(header.as_bytes());
    }

    fn data(&mut self, bytes: &[u8]) {
        self.output.put(bytes);
        self.output.put(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()]);
    }

    fn next_stat_sn(&mut self) -> u32 {
        self.stat_sn = self.stat_sn.wrapping_add(1);
        self.stat_sn.wrapping_sub(1)
    }

    fn max_cmd_sn(&self) -> u32 {
        self.exp_cmd_sn.wrapping_add(self.window).wrapping_sub(1)
    }

    fn command(&mut self, command: &ScsiCommand) -> Result<()> {
        self.exp_cmd_sn = command.cmd_sn.get().wrapping_add(1);
        let (itt, expected) = (command.itt.get(), command.expected_len.get());
        if command.flags & WRITE != 0 {
            let received = u32::try_from(command.data_len.get())?;
            let has_ended = command.flags & FINAL != 0;
            let write = Write { lun: command.lun, expected, received, has_ended, r2t_sn: 0 };
            self.writes.insert(itt, write);
            self.after_skip = Some(itt);
            return Ok(());
        }
        if command.flags & READ == 0 {
            self.response(itt);
            return Ok(());
        }
        let mut parameter = [0; 32];
        if command.cdb[0] == 0x9e {
            parameter[..8].copy_from_slice(&(self.blocks - 1).to_be_bytes());
            parameter[8..12].copy_from_slice(&BLOCK.to_be_bytes());
            return self.read(itt, expected.min(32), Some(&parameter));
        }
        self.read(itt, expected, None)
    }

    fn read(&mut self, itt: u32, expected: u32, data: Option<&[u8]>) -> Result<()> {
        let (mut at, mut data_sn) = (0, 0);
        while at < expected {
            let len = (expected - at).min(self.initiator_segment).min(SEGMENT);
            let last = at + len == expected;
            let mut header = DataIn::blank();
            header.flags = if last { FINAL | STATUS } else { 0 };
            header.data_len = U24::new(len as usize);
            header.itt.set(itt);
            header.ttt.set(NO_TAG);
            if last {
                let stat_sn = self.next_stat_sn();
                header.stat_sn.set(stat_sn);
            }
            header.exp_cmd_sn.set(self.exp_cmd_sn);
            header.max_cmd_sn.set(self.max_cmd_sn());
            header.data_sn.set(data_sn);
            header.offset.set(at);
            self.put(&header);
            match data {
                Some(data) => self.data(&data[..len as usize]),
                None => self.output.payload(len as usize),
            }
            (at, data_sn) = (at + len, data_sn + 1);
        }
        Ok(())
    }

    fn response(&mut self, itt: u32) {
        let mut header = ScsiResponse::blank();
        header.itt.set(itt);
        header.stat_sn.set(self.stat_sn);
        header.exp_cmd_sn.set(self.exp_cmd_sn);
        header.max_cmd_sn.set(self.max_cmd_sn());
        self.next_stat_sn();
        self.put(&header);
    }

    fn data_out(&mut self, data: &DataOut) -> Result<()> {
        let itt = data.itt.get();
        let Some(writes) = self.writes.get_mut(&itt) else { bail!("Data-Out for no write") };
        writes.received += u32::try_from(data.data_len.get())?;
        writes.has_ended = data.flags & FINAL != 0;
        self.after_skip = Some(itt);
        Ok(())
    }

    /// Handles the end of a skipped data segment: completes the write or sends an R2T.
    fn finish_skip(&mut self) {
        let Some(itt) = self.after_skip.take() else { return };
        let (exp_cmd_sn, max_cmd_sn, stat_sn) = (self.exp_cmd_sn, self.max_cmd_sn(), self.stat_sn);
        let Some(writes) = self.writes.get_mut(&itt) else { return };
        if writes.received >= writes.expected {
            self.writes.remove(&itt);
            return self.response(itt);
        }
        if !writes.has_ended {
            return;
        }
        let mut header = R2t::blank();
        header.lun = writes.lun;
        header.itt.set(itt);
        header.ttt.set(itt);
        header.stat_sn.set(stat_sn);
        header.exp_cmd_sn.set(exp_cmd_sn);
        header.max_cmd_sn.set(max_cmd_sn);
        header.r2t_sn.set(writes.r2t_sn);
        header.offset.set(writes.received);
        header.desired_len.set((writes.expected - writes.received).min(SEGMENT));
        (writes.has_ended, writes.r2t_sn) = (false, writes.r2t_sn + 1);
        self.put(&header);
    }

    fn other(&mut self, opcode: Opcode, header: &Bhs, data: &[u8]) -> Result<()> {
        match opcode {
            Opcode::LOGIN_REQUEST => self.login(LoginRequest::of(header), data),
            Opcode::TEXT_REQUEST => {
                let request = TextRequest::of(header);
                self.exp_cmd_sn = request.cmd_sn.get().wrapping_add(1);
                let mut answer = TextResponse::blank();
                answer.itt = request.itt;
                answer.ttt.set(NO_TAG);
                answer.stat_sn.set(self.next_stat_sn());
                answer.exp_cmd_sn.set(self.exp_cmd_sn);
                answer.max_cmd_sn.set(self.max_cmd_sn());
                let mut text = Vec::new();
                text::put(&mut text, "TargetName", NAME);
                answer.data_len = U24::new(text.len());
                self.put(&answer);
                self.data(&text);
                Ok(())
            }
            Opcode::LOGOUT_REQUEST => {
                let mut answer = LogoutResponse::blank();
                answer.itt = LogoutRequest::of(header).itt;
                answer.stat_sn.set(self.next_stat_sn());
                self.put(&answer);
                Ok(())
            }
            Opcode::NOP_OUT => Ok(()),
            other => bail!("{other:?} is not supported"),
        }
    }

    /// Accepts every login.
    fn login(&mut self, request: &LoginRequest, data: &[u8]) -> Result<()> {
        self.exp_cmd_sn = request.cmd_sn.get();
        let mut text = Vec::new();
        for pair in text::pairs(data) {
            let (key, value) = pair.map_err(|error| anyhow::anyhow!("{error}"))?;
            match key {
                "MaxRecvDataSegmentLength" => {
                    let length = text::number(value).and_then(|value| u32::try_from(value).ok());
                    self.initiator_segment = length.filter(|length| *length >= 512).unwrap_or(8192);
                    text::put(&mut text, key, SEGMENT);
                }
                "MaxBurstLength" | "FirstBurstLength" => {
                    text::put(&mut text, key, text::number(value).unwrap_or(u64::MAX).min(SEGMENT.into()));
                }
                "InitialR2T" | "ImmediateData" => text::put(&mut text, key, value),
                "HeaderDigest" | "DataDigest" | "AuthMethod" => text::put(&mut text, key, text::NONE),
                "MaxOutstandingR2T" | "MaxConnections" => text::put(&mut text, key, 1),
                _ => {}
            }
        }
        let mut answer = LoginResponse::blank();
        let transit = request.flags & FINAL != 0;
        answer.flags = login_flags(request.stage(), transit.then(|| request.next_stage()));
        answer.isid = request.isid;
        answer.tsih.set(if request.next_stage() == Stage::FULL_FEATURE { 1 } else { 0 });
        answer.itt = request.itt;
        answer.stat_sn.set(self.next_stat_sn());
        answer.exp_cmd_sn.set(self.exp_cmd_sn);
        answer.max_cmd_sn.set(self.max_cmd_sn());
        answer.data_len = U24::new(text.len());
        self.put(&answer);
        self.data(&text);
        Ok(())
    }
}

impl Peer for Connection {
    fn serve(&mut self, socket: &TcpStream, bytes: &[u8]) -> Result<bool> {
        self.feed(bytes)?;
        self.output.send(socket)
    }
}
