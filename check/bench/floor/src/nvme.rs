//! Just enough of an NVMe/TCP controller that a host uses it as an empty namespace: no command set, no checks, no
//! errors, no state but commands in progress. Reads always return the same data; written data is discarded.

use crate::net::Peer;
use crate::options::Server;
use crate::output::Output;
use anyhow::{Context, Result, bail};
use clap::Args;
use lunar_load::options::size;
use lunar_nvme::Status;
use lunar_nvme::command::{FABRICS, Sqe};
use lunar_nvme::controller::property::{CAP, CSTS};
use lunar_nvme::identify::IDENTIFY_LEN;
use lunar_nvme_host::command::{Property, opcode, property};
use lunar_nvme_tcp::config::{H2C_DATA_MAX, IN_CAPSULE_MAX};
use lunar_nvme_tcp::wire::{
    C2hData, CapsuleCmd, CapsuleResp, Common, H2cData, IcReq, IcResp, LAST, Pdu, PduType, R2t, SUCCESS,
};
use std::collections::BTreeMap;
use std::net::TcpStream;
use zerocopy::{FromBytes, IntoBytes};

/// Base-2 logarithm of the logical block size, in bytes (LBADS).
const BLOCK_SHIFT: u8 = 9;
/// Base-2 logarithm of the longest transfer, in pages of 4 KiB (MDTS).
const TRANSFER_EXPONENT: u8 = 8;
/// The largest queue size, zero-based (MQES).
const LAST_ENTRY: u64 = 1023;
/// The largest number of I/O queues.
const QUEUES_MAX: u64 = 128;
/// The controller ID of all controllers.
const CONTROLLER: u64 = 1;
const READY: u64 = 1;
/// CNS of Identify: controller.
const CNS_CONTROLLER: u32 = 1;
/// SGL descriptor type: data block at an offset in the capsule.
const SGL_OFFSET: u8 = 0x01;

#[derive(Args, Clone, Debug)]
pub(crate) struct Nvme {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Capacity of the namespace
    #[arg(long, default_value = "1T", value_parser = size)]
    size: u64,
}

pub(crate) struct Connection {
    blocks: u64,
    /// Whether this is the connection of an I/O queue.
    is_io: bool,
    /// The received part of an incomplete header.
    held: Vec<u8>,
    /// Remaining bytes of data to skip.
    skip: usize,
    /// The command that completes when the data has been skipped.
    after_skip: Option<u16>,
    /// Remaining bytes of writes, by command identifier.
    writes: BTreeMap<u16, usize>,
    output: Output,
}

impl Connection {
    pub(crate) fn new(options: &Nvme) -> Self {
        Self {
            blocks: options.size >> BLOCK_SHIFT,
            is_io: false,
            held: Vec::new(),
            skip: 0,
            after_skip: None,
            writes: BTreeMap::new(),
            output: Output::new(4096 << TRANSFER_EXPONENT),
        }
    }

    fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let part = self.skip.min(bytes.len());
                (self.skip, bytes) = (self.skip - part, &bytes[part..]);
                self.finish_skip();
                continue;
            }
            let wanted = header_len(bytes)?;
            if self.held.is_empty() && bytes.len() >= wanted {
                self.pdu(&bytes[..wanted])?;
                bytes = &bytes[wanted..];
                continue;
            }
            // The header arrives in several receives; its first byte determines its length.
            let wanted = header_len(if self.held.is_empty() { bytes } else { &self.held })?;
            let (part, rest) = bytes.split_at((wanted - self.held.len()).min(bytes.len()));
            self.held.extend_from_slice(part);
            bytes = rest;
            if self.held.len() == wanted {
                let held = std::mem::take(&mut self.held);
                self.pdu(&held)?;
            }
        }
        Ok(())
    }

    fn pdu(&mut self, header: &[u8]) -> Result<()> {
        let common = Common::ref_from_prefix(header).map_err(|_| anyhow::anyhow!("a header is longer"))?.0;
        self.skip = (common.len.get() as usize).checked_sub(header.len()).context("a PDU shorter than its header")?;
        match PduType(common.kind) {
            PduType::IC_REQ => {
                let mut answer = IcResp::blank(0);
                answer.max_h2c_data.set(H2C_DATA_MAX);
                self.output.put(answer.as_bytes());
            }
            PduType::CAPSULE_CMD => self.command(&CapsuleCmd::of(header).context("a capsule")?.sqe)?,
            PduType::H2C_DATA => {
                let data = H2cData::of(header).context("H2CData")?;
                let left = self.writes.get_mut(&data.cid.get()).context("H2CData for no write")?;
                *left = left.checked_sub(data.data_len.get() as usize).context("more data than requested")?;
                self.after_skip = (*left == 0).then_some(data.cid.get());
            }
            other => bail!("{other:?} is not supported"),
        }
        self.finish_skip();
        Ok(())
    }

    fn command(&mut self, sqe: &Sqe) -> Result<()> {
        let (cid, len) = (sqe.cid.get(), sqe.sgl.length.get() as usize);
        if !self.is_io || sqe.opcode == FABRICS {
            return self.admin(sqe);
        }
        match sqe.opcode {
            opcode::READ => self.data(cid, len, None),
            opcode::WRITE if sqe.sgl.kind != SGL_OFFSET => {
                self.writes.insert(cid, len);
                let mut header = R2t::blank(0);
                (header.cid, header.tag, header.data_len) = (sqe.cid, sqe.cid, sqe.sgl.length);
                self.output.put(header.as_bytes());
            }
            opcode::WRITE => self.after_skip = Some(cid),
            _ => self.response(cid, Status::SUCCESS, 0),
        }
        Ok(())
    }

    fn admin(&mut self, sqe: &Sqe) -> Result<()> {
        let cid = sqe.cid.get();
        let result = match (sqe.opcode, property(sqe)) {
            (_, Some(Property::Get(CAP, _))) => LAST_ENTRY,
            (_, Some(Property::Get(CSTS, _))) => READY,
            (_, Some(_)) => 0,
            // Connect; its data is ignored.
            (FABRICS, None) => {
                self.is_io = sqe.cdw(10) >> 16 != 0;
                CONTROLLER
            }
            (opcode::IDENTIFY, _) => {
                let page = self.identify(sqe.cdw(10) & 0xff == CNS_CONTROLLER);
                self.data(cid, IDENTIFY_LEN, Some(&page));
                return Ok(());
            }
            (opcode::SET_FEATURES, _) => (QUEUES_MAX - 1) * 0x1_0001,
            (opcode::KEEP_ALIVE, _) => 0,
            (other, _) => bail!("the admin command {other:#x} is not supported"),
        };
        self.response(cid, Status::SUCCESS, result);
        Ok(())
    }

    /// Identify data of the controller or of the namespace.
    fn identify(&self, of_controller: bool) -> [u8; IDENTIFY_LEN] {
        let mut page = [0; IDENTIFY_LEN];
        if of_controller {
            page[77] = TRANSFER_EXPONENT;
            page[1792..1796].copy_from_slice(&((64 + IN_CAPSULE_MAX) / 16).to_le_bytes());
        } else {
            page[..8].copy_from_slice(&self.blocks.to_le_bytes());
            page[130] = BLOCK_SHIFT;
        }
        page
    }

    /// Sends the data of a command with the SUCCESS flag, which completes the command.
    fn data(&mut self, cid: u16, len: usize, data: Option<&[u8]>) {
        let mut header = C2hData::blank(LAST | SUCCESS);
        // A transfer is at most 1 MiB long.
        header.common.len.set((size_of::<C2hData>() + len) as u32);
        header.common.data_offset = header.common.header_len;
        header.cid.set(cid);
        header.data_len.set(len as u32);
        self.output.put(header.as_bytes());
        match data {
            Some(data) => self.output.put(data),
            None => self.output.payload(len),
        }
    }

    fn response(&mut self, cid: u16, status: Status, result: u64) {
        let mut header = CapsuleResp::blank(0);
        header.cid.set(cid);
        header.status.set(status.0 << 1);
        header.result.set(result);
        self.output.put(header.as_bytes());
    }

    /// Completes the command whose data has been skipped.
    fn finish_skip(&mut self) {
        if self.skip == 0
            && let Some(cid) = self.after_skip.take()
        {
            self.writes.remove(&cid);
            self.response(cid, Status::SUCCESS, 0);
        }
    }
}

/// The length of the header that begins with this byte.
fn header_len(bytes: &[u8]) -> Result<usize> {
    Ok(match PduType(bytes[0]) {
        PduType::IC_REQ => size_of::<IcReq>(),
        PduType::CAPSULE_CMD => size_of::<CapsuleCmd>(),
        PduType::H2C_DATA => size_of::<H2cData>(),
        other => bail!("{other:?} is not supported"),
    })
}

impl Peer for Connection {
    fn serve(&mut self, socket: &TcpStream, bytes: &[u8]) -> Result<bool> {
        self.feed(bytes)?;
        self.output.send(socket)
    }
}
