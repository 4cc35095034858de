//! iSCSI PDUs of the harness, valid or not (RFC 7143 clause 11). Written independently of the target's own formats, so
//! that an error there is not repeated here.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Opcodes (RFC 7143 11.2.1.2).
pub(crate) mod op {
    pub(crate) const NOP_OUT: u8 = 0x00;
    pub(crate) const COMMAND: u8 = 0x01;
    pub(crate) const TASK_REQUEST: u8 = 0x02;
    pub(crate) const LOGIN: u8 = 0x03;
    pub(crate) const TEXT: u8 = 0x04;
    pub(crate) const DATA_OUT: u8 = 0x05;
    pub(crate) const LOGOUT: u8 = 0x06;
    pub(crate) const SNACK: u8 = 0x10;
    pub(crate) const NOP_IN: u8 = 0x20;
    pub(crate) const RESPONSE: u8 = 0x21;
    pub(crate) const TASK_RESPONSE: u8 = 0x22;
    pub(crate) const LOGIN_RESPONSE: u8 = 0x23;
    pub(crate) const TEXT_RESPONSE: u8 = 0x24;
    pub(crate) const DATA_IN: u8 = 0x25;
    pub(crate) const LOGOUT_RESPONSE: u8 = 0x26;
    pub(crate) const R2T: u8 = 0x31;
    pub(crate) const ASYNC: u8 = 0x32;
    pub(crate) const REJECT: u8 = 0x3f;
}

/// The reserved tag: no task, or no transfer.
pub(crate) const RESERVED_TAG: u32 = u32::MAX;
/// The F bit; in a login the T bit.
pub(crate) const FINAL: u8 = 0x80;
/// The I bit: an immediate request, outside of the command window.
pub(crate) const IMMEDIATE: u8 = 0x40;
/// Most bytes of data in a PDU of the target: the harness never declares more.
const LONGEST_DATA: usize = 1 << 24;

/// A PDU, without digests and padding.
#[derive(Clone)]
pub(crate) struct Pdu {
    pub head: [u8; 48],
    /// Additional header segments, a multiple of four bytes.
    pub ahs: Vec<u8>,
    pub data: Vec<u8>,
}

impl std::fmt::Debug for Pdu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "opcode {:02x}h, header {:02x?}, {} bytes of data", self.opcode(), self.head, self.data.len())
    }
}

impl Pdu {
    pub(crate) fn new(opcode: u8, flags: u8) -> Self {
        let mut head = [0; 48];
        (head[0], head[1]) = (opcode, flags);
        Self { head, ahs: Vec::new(), data: Vec::new() }
    }

    pub(crate) fn with_data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.data = data.into();
        self
    }

    /// Sets the word at `at`.
    pub(crate) fn word(mut self, at: usize, value: u32) -> Self {
        self.head[at..at + 4].copy_from_slice(&value.to_be_bytes());
        self
    }

    pub(crate) fn bytes(mut self, at: usize, value: &[u8]) -> Self {
        self.head[at..at + value.len()].copy_from_slice(value);
        self
    }

    /// The initiator task tag.
    pub(crate) fn tag(self, tag: u32) -> Self {
        self.word(16, tag)
    }

    /// A LUN: below 256 in the peripheral device addressing method, above in the flat space addressing method (SAM-6
    /// 4.7).
    pub(crate) fn lun(self, lun: u16) -> Self {
        let form = if lun < 256 { 0 } else { 0x4000 };
        self.bytes(8, &(form | lun).to_be_bytes())
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.head[0] & 0x3f
    }

    pub(crate) fn get(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.head[at], self.head[at + 1], self.head[at + 2], self.head[at + 3]])
    }

    /// The bytes to send, with correct lengths in the header.
    pub(crate) fn encode(&self, digests: Digests) -> Vec<u8> {
        let length = u32::try_from(self.data.len()).unwrap_or(u32::MAX).to_be_bytes();
        let mut pdu = self.clone();
        pdu.head[4] = u8::try_from(self.ahs.len() / 4).unwrap_or(u8::MAX);
        pdu.head[5..8].copy_from_slice(&length[1..]);
        pdu.encode_as_is(digests)
    }

    /// The bytes to send, with the lengths of the header as they are.
    pub(crate) fn encode_as_is(&self, digests: Digests) -> Vec<u8> {
        let mut bytes = self.head.to_vec();
        bytes.extend(&self.ahs);
        if digests.header {
            let digest = crc32c::crc32c(&bytes);
            bytes.extend(digest.to_le_bytes());
        }
        if !self.data.is_empty() {
            let start = bytes.len();
            bytes.extend(&self.data);
            bytes.resize(start + self.data.len().next_multiple_of(4), 0);
            if digests.data {
                let digest = crc32c::crc32c(&bytes[start..]);
                bytes.extend(digest.to_le_bytes());
            }
        }
        bytes
    }
}

/// The digests in use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Digests {
    pub header: bool,
    pub data: bool,
}

/// The result of a receive with a time limit.
#[derive(Debug)]
pub(crate) enum Received {
    Pdu(Box<Pdu>),
    /// The target closed or reset the connection.
    Closed,
    Silence,
}

/// A connection that sends any bytes and receives whole PDUs.
pub(crate) struct Connection {
    pub stream: TcpStream,
    pub digests: Digests,
    /// Bytes of an incomplete PDU.
    pending: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(portal: SocketAddr) -> Result<Self> {
        Self::over(TcpStream::connect_timeout(&portal, Duration::from_secs(5)).context("cannot connect")?)
    }

    /// Uses an existing TCP connection.
    pub(crate) fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self { stream, digests: Digests::default(), pending: Vec::new() })
    }

    pub(crate) fn send(&mut self, pdu: &Pdu) -> Result<()> {
        let bytes = pdu.encode(self.digests);
        self.send_raw(&bytes)
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("cannot send")
    }

    /// Closes the sending side.
    pub(crate) fn end_of_sending(&self) -> Result<()> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }

    /// The next PDU that arrives within `limit`.
    pub(crate) fn receive(&mut self, limit: Duration) -> Result<Received> {
        let end = Instant::now() + limit;
        loop {
            if let Some(pdu) = self.take()? {
                return Ok(Received::Pdu(Box::new(pdu)));
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
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                        return Ok(Received::Closed);
                    }
                    _ => return Err(error).context("cannot read"),
                },
            }
        }
    }

    /// The next PDU; a timeout and a close are errors.
    pub(crate) fn expect(&mut self, limit: Duration) -> Result<Pdu> {
        match self.receive(limit)? {
            Received::Pdu(pdu) => Ok(*pdu),
            Received::Closed => bail!("the target closed the connection"),
            Received::Silence => bail!("no answer within {:.1} s", limit.as_secs_f64()),
        }
    }

    /// Removes a complete PDU from the received bytes, and checks its digests.
    fn take(&mut self) -> Result<Option<Pdu>> {
        let Some(head) = self.pending.first_chunk::<48>().copied() else { return Ok(None) };
        let ahs = usize::from(head[4]) * 4;
        let length = usize::try_from(u32::from_be_bytes([0, head[5], head[6], head[7]]))?;
        if length > LONGEST_DATA {
            bail!("the target sends {length} bytes in one PDU");
        }
        let header_digest = if self.digests.header { 4 } else { 0 };
        let data_at = 48 + ahs + header_digest;
        let data_digest = if self.digests.data && length > 0 { 4 } else { 0 };
        let end = data_at + length.next_multiple_of(4) + data_digest;
        if self.pending.len() < end {
            return Ok(None);
        }
        let rest = self.pending.split_off(end);
        let bytes = std::mem::replace(&mut self.pending, rest);
        if header_digest > 0 {
            digest_is_right(&bytes[..48 + ahs], &bytes[48 + ahs..data_at]).context("header digest")?;
        }
        if data_digest > 0 {
            digest_is_right(&bytes[data_at..end - 4], &bytes[end - 4..]).context("data digest")?;
        }
        Ok(Some(Pdu { head, ahs: bytes[48..48 + ahs].to_vec(), data: bytes[data_at..data_at + length].to_vec() }))
    }
}

fn digest_is_right(covered: &[u8], digest: &[u8]) -> Result<()> {
    let wanted = crc32c::crc32c(covered).to_le_bytes();
    if digest != wanted {
        bail!("the target's digest is {digest:02x?}, not {wanted:02x?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_padding_and_digests_are_at_their_offsets() {
        let pdu = Pdu::new(op::TEXT, FINAL).tag(7).with_data(*b"a=b\0c");
        let bytes = pdu.encode(Digests { header: true, data: true });
        assert_eq!(bytes.len(), 48 + 4 + 8 + 4);
        assert_eq!(bytes[5..8], [0, 0, 5]);
        assert_eq!(bytes[16..20], [0, 0, 0, 7]);
        assert_eq!(bytes[48..52], crc32c::crc32c(&bytes[..48]).to_le_bytes());
        assert_eq!(bytes[60..], crc32c::crc32c(&bytes[52..60]).to_le_bytes());
    }

    #[test]
    fn crc32c_is_sent_in_the_order_of_the_standard() {
        // RFC 7143 appendix A.5: the digest of 32 zero bytes is aa 36 91 8a.
        assert_eq!(crc32c::crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
    }
}
