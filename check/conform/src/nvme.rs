//! An NVMe/TCP host that can keep the rules of the protocol and break each of them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::pdu::Digests;

/// PDU types.
pub(crate) mod kind {
    pub(crate) const IC_REQ: u8 = 0x00;
    pub(crate) const IC_RESP: u8 = 0x01;
    pub(crate) const H2C_TERM: u8 = 0x02;
    pub(crate) const C2H_TERM: u8 = 0x03;
    pub(crate) const CAPSULE: u8 = 0x04;
    pub(crate) const RESPONSE: u8 = 0x05;
    pub(crate) const H2C_DATA: u8 = 0x06;
    pub(crate) const C2H_DATA: u8 = 0x07;
    pub(crate) const R2T: u8 = 0x09;
}
/// Flags of H2CData and C2HData.
pub(crate) const LAST: u8 = 0x04;
const SUCCESS: u8 = 0x08;
/// Types of the SGL descriptor in a capsule (NVM Express Base, "Scatter Gather List"): in-capsule data at an offset,
/// and data that the transport moves.
pub(crate) const INLINE: u8 = 0x01;
pub(crate) const TRANSPORT: u8 = 0x5a;
/// A controller that has not answered by then is taken for hung.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Longer PDUs of a target are refused; the tests never ask for so much data.
const MAX_PDU_LEN: usize = 8 << 20;

/// A submission queue entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry(pub [u8; 64]);

impl Entry {
    pub(crate) fn new(opcode: u8, cid: u16, namespace: u32) -> Self {
        let mut bytes = [0; 64];
        (bytes[0], bytes[1]) = (opcode, 0x40);
        bytes[2..4].copy_from_slice(&cid.to_le_bytes());
        bytes[4..8].copy_from_slice(&namespace.to_le_bytes());
        bytes[39] = TRANSPORT;
        Self(bytes)
    }

    /// A Fabrics command.
    pub(crate) fn fabrics(kind: u8, cid: u16) -> Self {
        Self::new(0x7f, cid, kind.into())
    }

    pub(crate) fn word(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn byte(mut self, at: usize, value: u8) -> Self {
        self.0[at] = value;
        self
    }

    /// Sets the type and the length in bytes of the SGL descriptor.
    pub(crate) fn sgl(self, how: u8, len: u32) -> Self {
        self.byte(39, how).word(32, len)
    }

    /// Sets the starting LBA and the number of blocks (not zero's based).
    pub(crate) fn blocks(self, lba: u64, count: u32) -> Self {
        self.word(40, lba as u32).word(44, (lba >> 32) as u32).word(48, count - 1)
    }

    pub(crate) fn cid(&self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }
}

/// Encodes a PDU from its header and data; fills in the lengths, the data offset and the digests.
pub(crate) fn pdu(header: &[u8], data: &[u8], digests: Digests) -> Vec<u8> {
    let head = header.len() + if digests.header { 4 } else { 0 };
    let trailer = if digests.data && !data.is_empty() { 4 } else { 0 };
    let mut bytes = header.to_vec();
    bytes[1] |= u8::from(digests.header) | if trailer > 0 { 2 } else { 0 };
    bytes[2] = header.len() as u8;
    bytes[3] = if data.is_empty() { 0 } else { head as u8 };
    bytes[4..8].copy_from_slice(&((head + data.len() + trailer) as u32).to_le_bytes());
    if digests.header {
        let sum = crc32c::crc32c(&bytes).to_le_bytes();
        bytes.extend(sum);
    }
    bytes.extend_from_slice(data);
    if trailer > 0 {
        bytes.extend(crc32c::crc32c(data).to_le_bytes());
    }
    bytes
}

pub(crate) fn ic_req(digests: Digests) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    (bytes[0], bytes[2], bytes[4]) = (kind::IC_REQ, 128, 128);
    bytes[11] = u8::from(digests.header) | if digests.data { 2 } else { 0 };
    bytes
}

pub(crate) fn capsule(entry: &Entry, data: &[u8], digests: Digests) -> Vec<u8> {
    let mut header = vec![0; 72];
    header[0] = kind::CAPSULE;
    header[8..].copy_from_slice(&entry.0);
    pdu(&header, data, digests)
}

/// Encodes an H2CData PDU for the transfer `tag`.
pub(crate) fn h2c_data(cid: u16, tag: u16, offset: u32, data: &[u8], flags: u8, digests: Digests) -> Vec<u8> {
    let mut header = vec![0; 24];
    (header[0], header[1]) = (kind::H2C_DATA, flags);
    header[8..10].copy_from_slice(&cid.to_le_bytes());
    header[10..12].copy_from_slice(&tag.to_le_bytes());
    header[12..16].copy_from_slice(&offset.to_le_bytes());
    header[16..20].copy_from_slice(&(data.len() as u32).to_le_bytes());
    pdu(&header, data, digests)
}

/// Encodes the H2CData PDUs that answer an R2T. All controllers accept PDUs of this length (MAXH2CDATA).
pub(crate) fn requested_data(cid: u16, tag: u16, offset: u32, data: &[u8], digests: Digests) -> Vec<u8> {
    const PDU_BYTES: usize = 64 << 10;
    let parts = data.chunks(PDU_BYTES).enumerate();
    let encode = |(number, part): (usize, &[u8])| {
        let at = number * PDU_BYTES;
        let flags = if at + part.len() == data.len() { LAST } else { 0 };
        h2c_data(cid, tag, offset + at as u32, part, flags, digests)
    };
    parts.flat_map(encode).collect()
}

/// A PDU from the controller; its digests, if any, have been checked.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedPdu {
    pub head: Vec<u8>,
    pub data: Vec<u8>,
}

impl ReceivedPdu {
    pub(crate) fn kind(&self) -> u8 {
        self.head[0]
    }

    pub(crate) fn short(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.head[at], self.head[at + 1]])
    }

    pub(crate) fn word(&self, at: usize) -> u32 {
        u32::from(self.short(at + 2)) << 16 | u32::from(self.short(at))
    }
}

/// The completion of a command: the status field without its phase tag, Dword 0, and the data that the command
/// returned.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    pub status: u16,
    pub result: u32,
    pub data: Vec<u8>,
}

impl Completion {
    pub(crate) fn good(self) -> Result<Self> {
        ensure!(self.status == 0, "a command ended with status {:03x}h", self.status);
        Ok(self)
    }
}

/// The result of [`Conn::receive`].
#[derive(Debug)]
pub(crate) enum Received {
    Pdu(ReceivedPdu),
    Closed,
    Silence,
}

/// One TCP connection, which carries one queue.
pub(crate) struct Conn {
    pub stream: TcpStream,
    pub digests: Digests,
    pending: Vec<u8>,
    next_cid: u16,
}

impl Conn {
    pub(crate) fn open(portal: SocketAddr) -> Result<Self> {
        Self::over(TcpStream::connect_timeout(&portal, Duration::from_secs(5)).context("cannot connect")?)
    }

    /// Uses an existing TCP connection.
    pub(crate) fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        Ok(Self { stream, digests: Digests::default(), pending: Vec::new(), next_cid: 0 })
    }

    /// Connects and exchanges ICReq and ICResp with these digests.
    pub(crate) fn ready(portal: SocketAddr, digests: Digests) -> Result<Self> {
        Self::open(portal)?.exchanged(digests)
    }

    /// Exchanges ICReq and ICResp with these digests.
    pub(crate) fn exchanged(mut self, digests: Digests) -> Result<Self> {
        self.send(&ic_req(digests))?;
        let answer = self.expect()?;
        ensure!(answer.kind() == kind::IC_RESP && answer.head.len() == 128, "the answer to ICReq is {answer:02x?}");
        ensure!(answer.head[11] == ic_req(digests)[11], "the controller did not accept the requested digests");
        self.digests = digests;
        Ok(self)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("cannot send")
    }

    /// A new command identifier.
    pub(crate) fn cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.next_cid
    }

    /// Waits for the next PDU, at most `limit`.
    pub(crate) fn receive(&mut self, limit: Duration) -> Result<Received> {
        let end = Instant::now() + limit;
        loop {
            if let Some(received) = self.take()? {
                return Ok(Received::Pdu(received));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Received::Silence);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut bytes = [0; 65536];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(Received::Closed),
                Ok(count) => self.pending.extend(&bytes[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Ok(Received::Closed),
                    _ => return Err(error).context("cannot read"),
                },
            }
        }
    }

    /// Waits for the next PDU. A closed connection and no answer in [`ANSWER_LIMIT`] are errors.
    pub(crate) fn expect(&mut self) -> Result<ReceivedPdu> {
        match self.receive(ANSWER_LIMIT)? {
            Received::Pdu(received) => Ok(received),
            Received::Closed => bail!("the controller closed the connection"),
            Received::Silence => bail!("no answer within {} s", ANSWER_LIMIT.as_secs()),
        }
    }

    /// Removes the first PDU from the received bytes if it is complete, and checks its digests.
    fn take(&mut self) -> Result<Option<ReceivedPdu>> {
        let Some(common) = self.pending.first_chunk::<8>().copied() else { return Ok(None) };
        let len = u32::from_le_bytes([common[4], common[5], common[6], common[7]]) as usize;
        let head = usize::from(common[2]);
        ensure!(
            head >= 8 && len >= head && len <= MAX_PDU_LEN,
            "received a PDU of {len} bytes with a header of {head} bytes"
        );
        if self.pending.len() < len {
            return Ok(None);
        }
        let rest = self.pending.split_off(len);
        let bytes = std::mem::replace(&mut self.pending, rest);
        let has_digests = ![kind::IC_RESP, kind::C2H_TERM].contains(&common[0]);
        let mut start = head;
        if has_digests && self.digests.header {
            start += 4;
            ensure!(
                bytes.get(head..start) == Some(&crc32c::crc32c(&bytes[..head]).to_le_bytes()),
                "the header digest is wrong"
            );
        }
        if bytes.len() == start {
            return Ok(Some(ReceivedPdu { head: bytes[..head].to_vec(), data: Vec::new() }));
        }
        if common[0] == kind::C2H_DATA {
            ensure!(usize::from(common[3]) >= start, "PDO points into the header");
            start = usize::from(common[3]);
        }
        let end = bytes.len() - if has_digests && self.digests.data { 4 } else { 0 };
        let data = bytes.get(start..end).context("a PDU is shorter than its header, data and digests")?;
        ensure!(end == bytes.len() || bytes[end..] == crc32c::crc32c(data).to_le_bytes(), "the data digest is wrong");
        Ok(Some(ReceivedPdu { head: bytes[..head].to_vec(), data: data.to_vec() }))
    }

    /// Sends a command and waits for its completion. Data that the controller requests by R2T is taken from `data`.
    pub(crate) fn call(&mut self, entry: &Entry, data: &[u8]) -> Result<Completion> {
        let inline = if entry.0[39] == INLINE { data } else { &[] };
        let bytes = capsule(entry, inline, self.digests);
        self.send(&bytes)?;
        self.wait_completion(entry.cid(), data)
    }

    /// Waits for the completion of a command and sends the data that the controller requests.
    pub(crate) fn wait_completion(&mut self, cid: u16, data: &[u8]) -> Result<Completion> {
        let mut got = Vec::new();
        loop {
            let received = self.expect()?;
            match received.kind() {
                kind::C2H_DATA if received.short(8) == cid => {
                    ensure!(received.word(12) as usize == got.len(), "C2HData PDUs are not in order");
                    got.extend_from_slice(&received.data);
                    if received.head[1] & SUCCESS != 0 {
                        return Ok(Completion { status: 0, result: 0, data: got });
                    }
                }
                kind::R2T if received.short(8) == cid => {
                    let (offset, len) = (received.word(12), received.word(16));
                    let part = data.get(offset as usize..).and_then(|rest| rest.get(..len as usize));
                    let part = part.context("an R2T requests more data than the command has")?;
                    let bytes = requested_data(cid, received.short(10), offset, part, self.digests);
                    self.send(&bytes)?;
                }
                kind::RESPONSE if received.short(20) == cid => {
                    let status = received.short(22) >> 1 & 0x7ff;
                    return Ok(Completion { status, result: received.word(8), data: got });
                }
                other => bail!("unexpected PDU of type {other:02x}h: {:02x?}", received.head),
            }
        }
    }
}

/// The parameters of a Fabrics Connect command.
#[derive(Clone, Debug)]
pub(crate) struct Connect<'a> {
    pub queue: u16,
    pub entries: u16,
    pub controller: u16,
    pub keep_alive: u32,
    pub subsystem: &'a str,
    pub host: &'a str,
}

impl Connect<'_> {
    pub(crate) fn entry(&self, cid: u16) -> Entry {
        let queue = u32::from(self.queue) << 16;
        let entry = Entry::fabrics(1, cid).word(40, queue).word(44, u32::from(self.entries.wrapping_sub(1)));
        entry.word(48, self.keep_alive).sgl(INLINE, 1024)
    }

    pub(crate) fn data(&self) -> Vec<u8> {
        let mut data = vec![0; 1024];
        let id = crc32c::crc32c(self.host.as_bytes()).to_le_bytes();
        data[..4].copy_from_slice(&id);
        data[16..18].copy_from_slice(&self.controller.to_le_bytes());
        data[256..256 + self.subsystem.len()].copy_from_slice(self.subsystem.as_bytes());
        data[512..512 + self.host.len()].copy_from_slice(self.host.as_bytes());
        data
    }

    /// Sends the command and waits for its completion.
    pub(crate) fn execute(&self, conn: &mut Conn) -> Result<Completion> {
        let cid = conn.cid();
        conn.call(&self.entry(cid), &self.data())
    }
}

/// A host that keeps the rules: an enabled controller with its admin queue and one I/O queue.
pub(crate) struct Host {
    pub admin: Conn,
    pub io: Conn,
    pub controller: u16,
}

impl Host {
    pub(crate) fn open(portal: SocketAddr, subsystem: &str, host: &str, digests: Digests) -> Result<Self> {
        let connect = Connect { queue: 0, entries: 32, controller: 0xffff, keep_alive: 0, subsystem, host };
        Self::connected(portal, &connect, digests)
    }

    /// Creates a controller with these Connect parameters for its admin queue, and one I/O queue.
    pub(crate) fn connected(portal: SocketAddr, connect: &Connect<'_>, digests: Digests) -> Result<Self> {
        Self::over(|| Conn::ready(portal, digests), connect)
    }

    /// Creates a controller with these Connect parameters, and one I/O queue, on connections that `open` returns.
    pub(crate) fn over(mut open: impl FnMut() -> Result<Conn>, connect: &Connect<'_>) -> Result<Self> {
        let (admin, controller) = Self::enabled(open()?, connect)?;
        let mut io = open()?;
        Connect { queue: 1, entries: 128, controller, ..connect.clone() }.execute(&mut io)?.good()?;
        Ok(Self { admin, io, controller })
    }

    /// Creates and enables a controller; returns its admin queue and its controller identifier.
    pub(crate) fn admin(portal: SocketAddr, connect: &Connect<'_>, digests: Digests) -> Result<(Conn, u16)> {
        Self::enabled(Conn::ready(portal, digests)?, connect)
    }

    fn enabled(mut admin: Conn, connect: &Connect<'_>) -> Result<(Conn, u16)> {
        let controller = connect.execute(&mut admin)?.good()?.result as u16;
        let enable = Entry::fabrics(0, admin.cid()).word(44, 0x14).word(48, 0x46_0001);
        admin.call(&enable, &[])?.good()?;
        let status = Entry::fabrics(4, admin.cid()).word(44, 0x1c);
        let ready = admin.call(&status, &[])?.good()?.result;
        ensure!(ready & 1 == 1, "CSTS is {ready:x}h after CC.EN was set");
        Ok((admin, controller))
    }

    pub(crate) fn write(&mut self, namespace: u32, lba: u64, data: &[u8]) -> Result<()> {
        let count = u32::try_from(data.len() / 512)?;
        let how = if data.len() <= 4096 { INLINE } else { TRANSPORT };
        let entry = Entry::new(1, self.io.cid(), namespace).blocks(lba, count).sgl(how, count * 512);
        self.io.call(&entry, data)?.good().map(drop)
    }

    pub(crate) fn read(&mut self, namespace: u32, lba: u64, count: u32) -> Result<Vec<u8>> {
        let entry = Entry::new(2, self.io.cid(), namespace).blocks(lba, count).sgl(TRANSPORT, count * 512);
        let data = self.io.call(&entry, &[])?.good()?.data;
        ensure!(data.len() == count as usize * 512, "a read of {count} blocks returned {} bytes", data.len());
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capsules_and_data_pdus_have_their_lengths_and_digests_at_the_specified_offsets() {
        let entry = Entry::new(1, 7, 2).blocks(0x1_0000_0002, 3).sgl(INLINE, 5);
        let bytes = capsule(&entry, b"hello", Digests { header: true, data: true });
        assert_eq!((bytes.len(), &bytes[..8]), (72 + 4 + 5 + 4, &[4, 3, 72, 76, 85, 0, 0, 0][..]));
        assert_eq!(bytes[8..16], [1, 0x40, 7, 0, 2, 0, 0, 0]);
        assert_eq!((bytes[8 + 39], bytes[8 + 32], &bytes[48..60]), (1, 5, &[2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0][..]));
        assert_eq!(bytes[72..76], crc32c::crc32c(&bytes[..72]).to_le_bytes());
        let data = h2c_data(1, 2, 3, &[9; 4], LAST, Digests::default());
        assert_eq!(data[..20], [6, 4, 24, 24, 28, 0, 0, 0, 1, 0, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    }
}
