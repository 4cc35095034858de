//! NVMe/TCP: attackers that send capsules without the checks of the harness's host.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};

use super::nvme_commands::{CHECKED, Payload, commands};
use super::transport::{
    Attacker, Held, RECEIVE_LIMIT, Request, Source, Stage, Transport, Victim, impatient, tcp, volume,
};
use crate::nvme::{Conn, Connect, Entry, Host, INLINE, Received, TRANSPORT, capsule, ic_req, kind, requested_data};
use crate::pdu::Digests;
use crate::test_data::pattern;

const NONE: Digests = Digests { header: false, data: false };
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Commands of an attacker in progress: its I/O queue has one entry more, and its admin queue too few for as many.
const IO_COMMANDS: usize = 126;
const ADMIN_COMMANDS: usize = 30;
/// Bytes of a Compare.
const COMPARED: u32 = 64 << 10;
/// Bytes of announced in-capsule data.
const ANNOUNCED: u32 = 8192;

pub(super) struct NvmeTcp {
    pub(super) portal: SocketAddr,
    pub(super) subsystem: String,
}

impl NvmeTcp {
    fn parameters<'a>(&'a self, subsystem: &'a str, host: &'a str) -> Connect<'a> {
        Connect { queue: 0, entries: 32, controller: 0xffff, keep_alive: 0, subsystem, host }
    }

    fn conn(&self, from: Source) -> Result<Conn> {
        Conn::over(tcp(from, self.portal)?)
    }

    fn host(&self, from: Source, host: &str) -> Result<Host> {
        let open = || self.conn(from)?.exchanged(NONE);
        Host::over(open, &self.parameters(&self.subsystem, host))
    }

    fn victim_host(&self, host: &str) -> Result<Host> {
        self.host(Source::Same, &format!("nqn.2026-01.io.lunar:{host}"))
    }
}

impl Transport for NvmeTcp {
    fn name(&self) -> &'static str {
        "NVMe/TCP"
    }

    fn has_request(&self, request: Request) -> bool {
        request == Request::AnnouncedWrite
            // Data that is sent at once has no request of its own here.
            || !matches!(request, Request::ScatteredRead | Request::Write)
                && !commands(request, 0, COMPARED).is_empty()
    }

    fn has_stage(&self, stage: Stage) -> bool {
        // The kernel of a host closes its connections.
        stage != Stage::Vanished
    }

    fn has_addresses(&self) -> bool {
        true
    }

    fn attackers_max(&self) -> u16 {
        u16::MAX
    }

    fn victim(&self) -> Result<Box<dyn Victim>> {
        let mut host = self.victim_host("victim")?;
        host.write(u32::from(volume::VICTIM) + 1, 16_384, &pattern(0, 1, 4096))?;
        Ok(Box::new(host))
    }

    fn visit(&self) -> Result<()> {
        self.victim_host("visitor")?.read(u32::from(volume::VICTIM) + 1, 0, 8).map(drop)
    }

    fn attacker(&self, from: Source, number: u16, request: Request) -> Result<Box<dyn Attacker>> {
        let host = self.host(from, &format!("nqn.2026-01.io.lunar:attacker{number}"))?;
        for conn in [&host.admin, &host.io] {
            impatient(&conn.stream)?;
        }
        Ok(Box::new(NvmeTcpAttacker { host, request, sent: 0, in_progress: 0 }))
    }

    fn connection(&self, from: Source, number: u16, stage: Stage) -> Result<Held> {
        let name = format!("nqn.2026-01.io.lunar:attacker{number}");
        let subsystem = if stage == Stage::Discovery { DISCOVERY } else { &self.subsystem };
        let connect = self.parameters(subsystem, &name);
        let mut conn = self.conn(from)?;
        match stage {
            Stage::Open => {}
            Stage::HalfRequest => {
                let bytes = [ic_req(NONE), capsule(&connect.entry(1), &connect.data(), NONE)].concat();
                conn.send(&bytes[..bytes.len() / 2])?;
            }
            Stage::Discovery => {
                conn = conn.exchanged(NONE)?;
                connect.execute(&mut conn)?.good()?;
            }
            Stage::LoggedIn | Stage::Vanished => return Ok(Box::new(self.host(from, &name)?)),
        }
        Ok(Box::new(conn))
    }
}

impl Victim for Host {
    fn read(&mut self) -> Result<()> {
        let data = Self::read(self, u32::from(volume::VICTIM) + 1, 16_384, 8)?;
        ensure!(data == pattern(0, 1, 4096), "other data than was written");
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        Self::write(self, u32::from(volume::VICTIM) + 1, 16_392, &pattern(8, 2, 4096))
    }

    fn write_long(&mut self) -> Result<()> {
        Self::write(self, u32::from(volume::VICTIM) + 1, 20_480, &pattern(2048, 3, 1 << 20))
    }
}

struct NvmeTcpAttacker {
    host: Host,
    request: Request,
    sent: u32,
    in_progress: usize,
}

/// Whether the commands of a request go to the admin queue.
fn is_admin(request: Request) -> bool {
    commands(request, 0, COMPARED).iter().any(|command| command.is_admin)
}

impl NvmeTcpAttacker {
    fn conn(&mut self) -> &mut Conn {
        if is_admin(self.request) { &mut self.host.admin } else { &mut self.host.io }
    }

    fn send_commands(&mut self) -> Result<()> {
        if self.request == Request::AnnouncedWrite {
            let entry = Entry::new(1, self.host.io.cid(), 2).blocks(0, ANNOUNCED / 512).sgl(INLINE, ANNOUNCED);
            let bytes = capsule(&entry, &vec![0; ANNOUNCED as usize], NONE);
            return self.host.io.send(&bytes[..72]);
        }
        let mut bytes = Vec::new();
        for command in commands(self.request, self.sent, COMPARED) {
            let cid = self.conn().cid();
            let mut entry = Entry(command.entry(cid));
            // Data is described by a scatter gather list.
            entry.0[1] |= 0x40;
            let (entry, data) = match command.payload {
                Payload::None => (entry.sgl(TRANSPORT, 0), Vec::new()),
                Payload::In(len) | Payload::Zeroes(len) => (entry.sgl(TRANSPORT, len), Vec::new()),
                Payload::Out(data) => (entry.sgl(INLINE, data.len() as u32), data),
            };
            bytes.extend(capsule(&entry, &data, NONE));
            self.in_progress += 1;
        }
        self.conn().send(&bytes)
    }

    /// The status of a command that has ended, if one has.
    fn status(&mut self) -> Result<Option<u16>> {
        let received = match self.conn().receive(RECEIVE_LIMIT)? {
            Received::Pdu(received) => received,
            Received::Silence => return Ok(None),
            Received::Closed => bail!("the controller closed the connection"),
        };
        let status = match received.kind() {
            kind::RESPONSE => received.short(22) >> 1 & 0x7ff,
            // SUCCESS: there is no completion.
            kind::C2H_DATA if received.head[1] & 0x08 != 0 => 0,
            kind::R2T => {
                let (cid, len) = (received.short(8), received.word(16));
                let zeroes = vec![0; len as usize];
                let bytes = requested_data(cid, received.short(10), received.word(12), &zeroes, NONE);
                self.conn().send(&bytes)?;
                return Ok(None);
            }
            _ => return Ok(None),
        };
        self.in_progress = self.in_progress.saturating_sub(1);
        Ok(Some(status))
    }
}

impl Attacker for NvmeTcpAttacker {
    fn has_room(&self) -> bool {
        match self.request {
            Request::AnnouncedWrite => self.sent == 0,
            // The controller keeps each of the first ones.
            Request::AsyncEvent => self.in_progress < ADMIN_COMMANDS,
            request if is_admin(request) => self.in_progress < ADMIN_COMMANDS,
            _ => self.in_progress < IO_COMMANDS,
        }
    }

    fn send(&mut self) -> Result<()> {
        self.send_commands()?;
        self.sent = self.sent.wrapping_add(1);
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        self.status().map(drop)
    }
}

/// The commands of an attacker must not be refused for their form.
pub(super) fn check_forms(nvme: &NvmeTcp) -> Result<()> {
    for request in CHECKED {
        let host = nvme.victim_host("form")?;
        let mut attacker = NvmeTcpAttacker { host, request, sent: 0, in_progress: 0 };
        attacker.send()?;
        let mut silence = 0;
        while attacker.in_progress > 0 {
            match attacker.status().with_context(|| format!("{request:?}"))? {
                Some(status) => ensure!(status == 0, "{request:?}: status {status:03x}h"),
                None => silence += 1,
            }
            ensure!(silence < 400, "{request:?} has no answer");
        }
    }
    Ok(())
}
