//! The commands of a verifying writer, over iSCSI and over NVMe/TCP.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};

use crate::nvme::{Entry, Host, TRANSPORT};
use crate::pdu::Digests;
use crate::session::{CommandResult, Data, GOOD, Login, Session, cdb};

/// Bytes of a logical block.
pub(super) const BLOCK: usize = 512;
/// The NVM subsystem of the target.
pub(super) const NQN: &str = "nqn.2026-01.io.lunar:power";
/// Sense keys and an additional sense code (SPC-6).
const MEDIUM_ERROR: u8 = 0x03;
const UNIT_ATTENTION: u8 = 0x06;
const ABORTED_COMMAND: u8 = 0x0b;
const CHECK_FAILED: u8 = 0x10;
/// Unrecovered Read Error (NVM Command Set), which is also that of a failed check of stored protection information.
const UNRECOVERED_READ_ERROR: u16 = 0x281;
/// The FUA bit of a CDB and that of Dword 12.
const FUA: u8 = 0x08;
const NVME_FUA: u32 = 1 << 30;
/// The WCE bit of the caching mode page.
const WCE: u8 = 0x04;
/// Bytes of the mode parameter header and of the caching mode page.
const MODE_HEADER: usize = 4;
const CACHING_PAGE: usize = 20;

/// The result of a read.
pub(super) enum Reading {
    Data(Vec<u8>),
    /// The blocks cannot be read: they were marked, or fail the check of their protection information.
    Unreadable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Iscsi,
    NvmeTcp,
}

/// Where a writer logs in.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) iscsi: SocketAddr,
    pub(super) nvme: SocketAddr,
    pub(super) target: String,
}

pub(super) enum Client {
    Iscsi(Session),
    NvmeTcp(Box<Host>),
}

impl Client {
    /// Logs in as the writer of this number.
    pub(super) fn open(protocol: Protocol, address: &Address, number: usize) -> Result<Self> {
        match protocol {
            Protocol::Iscsi => {
                let login = Login::to(&address.target, &format!("power{number}"));
                Ok(Self::Iscsi(Session::ready(address.iscsi, &login, 0)?))
            }
            Protocol::NvmeTcp => {
                let name = format!("nqn.2026-01.io.lunar.conform:power{number}");
                Ok(Self::NvmeTcp(Box::new(Host::open(address.nvme, NQN, &name, Digests::default())?)))
            }
        }
    }

    pub(super) fn read(&mut self, lba: u64, blocks: u32) -> Result<Reading> {
        let len = blocks as usize * BLOCK;
        match self {
            Self::Iscsi(session) => {
                let done = run(session, &cdb::read(lba, blocks), &Data::In(len))?;
                match done.sense() {
                    _ if done.status == GOOD => Ok(Reading::Data(done.data)),
                    (MEDIUM_ERROR, ..) | (ABORTED_COMMAND, CHECK_FAILED, _) => Ok(Reading::Unreadable),
                    _ => done.good().map(|done| Reading::Data(done.data)),
                }
            }
            Self::NvmeTcp(host) => {
                let entry = Entry::new(2, host.io.cid(), 1).blocks(lba, blocks).sgl(TRANSPORT, blocks * BLOCK as u32);
                let done = host.io.call(&entry, &[])?;
                if done.status == UNRECOVERED_READ_ERROR {
                    return Ok(Reading::Unreadable);
                }
                let data = done.good()?.data;
                ensure!(data.len() == len, "a read of {len} bytes returned {}", data.len());
                Ok(Reading::Data(data))
            }
        }
    }

    pub(super) fn write(&mut self, lba: u64, data: Vec<u8>, is_durable: bool) -> Result<()> {
        let blocks = u32::try_from(data.len() / BLOCK)?;
        match self {
            Self::Iscsi(session) => {
                let mut command = cdb::write(lba, blocks);
                command[1] |= if is_durable { FUA } else { 0 };
                run(session, &command, &Data::Out(data))?.good().map(drop)
            }
            Self::NvmeTcp(host) => {
                let control = (blocks - 1) | if is_durable { NVME_FUA } else { 0 };
                let entry = Entry::new(1, host.io.cid(), 1).blocks(lba, blocks).word(48, control);
                host.io.call(&entry.sgl(TRANSPORT, blocks * BLOCK as u32), &data)?.good().map(drop)
            }
        }
    }

    /// WRITE SAME with NDOB and UNMAP, Write Zeroes.
    pub(super) fn zero(&mut self, lba: u64, blocks: u32) -> Result<()> {
        match self {
            Self::Iscsi(session) => {
                let mut command = cdb::write(lba, blocks);
                (command[0], command[1]) = (0x93, 0x09);
                run(session, &command, &Data::None)?.good().map(drop)
            }
            Self::NvmeTcp(host) => {
                let entry = Entry::new(8, host.io.cid(), 1).blocks(lba, blocks);
                host.io.call(&entry, &[])?.good().map(drop)
            }
        }
    }

    /// SYNCHRONIZE CACHE, Flush.
    pub(super) fn flush(&mut self) -> Result<()> {
        match self {
            Self::Iscsi(session) => run(session, &cdb::synchronize_cache(), &Data::None)?.good().map(drop),
            Self::NvmeTcp(host) => {
                let entry = Entry::new(0, host.io.cid(), 1);
                host.io.call(&entry, &[])?.good().map(drop)
            }
        }
    }

    /// Write Uncorrectable.
    pub(super) fn mark(&mut self, lba: u64, blocks: u32) -> Result<()> {
        let Self::NvmeTcp(host) = self else { bail!("iSCSI initiators do not mark blocks here") };
        let entry = Entry::new(4, host.io.cid(), 1).blocks(lba, blocks);
        host.io.call(&entry, &[])?.good().map(drop)
    }

    /// Switches the volatile write cache on or off: MODE SELECT of the caching page, Set Features.
    pub(super) fn set_cache(&mut self, is_on: bool) -> Result<()> {
        match self {
            Self::Iscsi(session) => {
                // Current values, without block descriptors.
                let sensed = run(session, &[0x1a, 0x08, 0x08, 0, 0xff, 0], &Data::In(255))?.good()?.data;
                let mut list = sensed.get(..MODE_HEADER + CACHING_PAGE).context("short mode data")?.to_vec();
                list[..MODE_HEADER].fill(0);
                // The PS bit is reserved in MODE SELECT.
                list[MODE_HEADER] &= 0x3f;
                ensure!(list[MODE_HEADER] == 0x08, "mode data without a caching page");
                let flags = &mut list[MODE_HEADER + 2];
                *flags = if is_on { *flags | WCE } else { *flags & !WCE };
                let select = [0x15, 0x10, 0, 0, list.len() as u8, 0];
                run(session, &select, &Data::Out(list))?.good().map(drop)
            }
            Self::NvmeTcp(host) => {
                let entry = Entry::new(9, host.admin.cid(), 0).word(40, 0x06).word(44, is_on.into());
                host.admin.call(&entry, &[])?.good().map(drop)
            }
        }
    }
}

/// Runs a command again after a unit attention: another writer changes the caching mode page.
fn run(session: &mut Session, command: &[u8], data: &Data) -> Result<CommandResult> {
    loop {
        let done = session.run(command, data.clone())?;
        if done.status == GOOD || done.sense().0 != UNIT_ATTENTION {
            return Ok(done);
        }
    }
}
