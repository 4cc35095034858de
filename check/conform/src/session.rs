//! A small, strict iSCSI initiator: it keeps the rules of RFC 7143 and checks that the target does.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::pdu::{Connection, Digests, FINAL, IMMEDIATE, Pdu, RESERVED_TAG, op};

/// A target that has not answered by then is taken for hung.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// The MaxRecvDataSegmentLength that the initiator declares.
const MAX_RECV_DATA_SEGMENT: usize = 262_144;
pub(crate) const GOOD: u8 = 0x00;
pub(crate) const CHECK_CONDITION: u8 = 0x02;

/// A target in the answer to SendTargets (RFC 7143 appendix C).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiscoveredTarget {
    pub name: String,
    pub addresses: Vec<String>,
}

/// The parameters of a login.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub initiator: String,
    /// The qualifier in the ISID, which distinguishes sessions of one initiator name.
    pub qualifier: u16,
    /// `None` for a discovery session.
    pub target: Option<String>,
    /// Keys that replace the default ones or are added to them.
    pub keys: Vec<(&'static str, String)>,
}

impl Login {
    pub(crate) fn to(target: &str, initiator: &str) -> Self {
        Self {
            initiator: format!("iqn.2026-01.io.lunar.conform:{initiator}"),
            qualifier: 1,
            target: Some(target.to_owned()),
            keys: Vec::new(),
        }
    }

    pub(crate) fn key(mut self, key: &'static str, value: &str) -> Self {
        self.keys.push((key, value.to_owned()));
        self
    }

    pub(crate) fn qualifier(mut self, qualifier: u16) -> Self {
        self.qualifier = qualifier;
        self
    }

    /// Encodes all keys of the login.
    pub(crate) fn text(&self) -> Vec<u8> {
        let kind = if self.target.is_some() { "Normal" } else { "Discovery" };
        let segment = MAX_RECV_DATA_SEGMENT.to_string();
        let mut keys = vec![("InitiatorName", self.initiator.as_str()), ("SessionType", kind)];
        keys.extend(self.target.as_deref().map(|name| ("TargetName", name)));
        keys.extend([("HeaderDigest", "None"), ("DataDigest", "None"), ("MaxRecvDataSegmentLength", &segment)]);
        keys.extend([("ErrorRecoveryLevel", "0"), ("DefaultTime2Wait", "2"), ("DefaultTime2Retain", "0")]);
        if self.target.is_some() {
            keys.extend([("InitialR2T", "No"), ("ImmediateData", "Yes"), ("MaxConnections", "1")]);
            keys.extend([("MaxBurstLength", "1048576"), ("FirstBurstLength", "65536"), ("MaxOutstandingR2T", "1")]);
            keys.extend([("DataPDUInOrder", "Yes"), ("DataSequenceInOrder", "Yes")]);
        }
        keys.retain(|(key, _)| !self.keys.iter().any(|(other, _)| other == key));
        keys.extend(self.keys.iter().map(|(key, value)| (*key, value.as_str())));
        text(keys)
    }

    /// The first Login Request: it asks for the transition from the operational stage to the full feature phase.
    pub(crate) fn request(&self) -> Pdu {
        Pdu::new(op::LOGIN | IMMEDIATE, FINAL | 0x07)
            .bytes(8, &[0x80, 0x12, 0x34, 0x56])
            .bytes(12, &self.qualifier.to_be_bytes())
            .tag(1)
            .with_data(self.text())
    }
}

/// Encodes key=value pairs (RFC 7143 6.1).
pub(crate) fn text<'a>(keys: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    keys.into_iter().flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect()
}

/// Decodes key=value pairs.
pub(crate) fn keys_of(text: &[u8]) -> Vec<(String, String)> {
    let pairs = text.split(|byte| *byte == 0).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let pair = String::from_utf8_lossy(pair);
            let (key, value) = pair.split_once('=').unwrap_or((&pair, ""));
            (key.to_owned(), value.to_owned())
        })
        .collect()
}

/// Returns the targets that a portal reports for SendTargets=All in a discovery session.
pub(crate) fn discover(portal: SocketAddr) -> Result<Vec<DiscoveredTarget>> {
    let mut login = Login::to("", "discovery");
    login.target = None;
    let mut session = Session::open(portal, &login)?;
    let mut found: Vec<DiscoveredTarget> = Vec::new();
    for (key, value) in session.text_request(text([("SendTargets", "All")]))? {
        match (key.as_str(), found.last_mut()) {
            ("TargetName", _) => found.push(DiscoveredTarget { name: value, addresses: Vec::new() }),
            ("TargetAddress", Some(target)) => target.addresses.push(value),
            _ => bail!("SendTargets answers {key}={value}"),
        }
    }
    session.logout()?;
    Ok(found)
}

/// The direction and the amount of a command's data.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    None,
    /// At most this many bytes from the target.
    In(usize),
    Out(Vec<u8>),
}

/// The status, sense data and read data of a command that has ended.
#[derive(Clone, Debug)]
pub(crate) struct CommandResult {
    pub tag: u32,
    pub status: u8,
    pub sense: Vec<u8>,
    pub data: Vec<u8>,
}

/// Returns sense key, ASC and ASCQ of sense data in fixed or descriptor format; zeroes if there is none.
pub(crate) fn sense_of(sense: &[u8]) -> (u8, u8, u8) {
    let at = |index: usize| sense.get(index).copied().unwrap_or_default();
    match at(0) & 0x7f {
        0x72 | 0x73 => (at(1) & 0x0f, at(2), at(3)),
        _ => (at(2) & 0x0f, at(12), at(13)),
    }
}

impl CommandResult {
    /// Sense key, ASC and ASCQ, see [`sense_of`].
    pub(crate) fn sense(&self) -> (u8, u8, u8) {
        sense_of(&self.sense)
    }

    pub(crate) fn good(self) -> Result<Self> {
        if self.status != GOOD {
            let (key, code, qualifier) = self.sense();
            bail!("status {:02x}h, sense {key:x}h/{code:02x}h/{qualifier:02x}h", self.status);
        }
        Ok(self)
    }

    /// Fails unless the command ended with CHECK CONDITION and this sense.
    pub(crate) fn expect_sense(self, key: u8, code: u8, qualifier: u8) -> Result<()> {
        ensure!(self.status == CHECK_CONDITION, "status is {:02x}h, not CHECK CONDITION", self.status);
        ensure!(
            self.sense() == (key, code, qualifier),
            "sense is {:02x?}, not {:02x?}",
            self.sense(),
            (key, code, qualifier)
        );
        Ok(())
    }
}

struct Task {
    lun: u16,
    expected: usize,
    data_in: Vec<u8>,
    data_out: Vec<u8>,
    next_data_sn: u32,
    next_r2t_sn: u32,
}

/// A session in the full feature phase, on its only connection.
pub(crate) struct Session {
    pub connection: Connection,
    pub cmd_sn: u32,
    pub exp_stat_sn: u32,
    pub max_cmd_sn: u32,
    pub next_tag: u32,
    /// The keys that the target sent during login.
    pub answers: HashMap<String, String>,
    pub lun: u16,
    tasks: HashMap<u32, Task>,
    target_segment: usize,
    first_burst: usize,
    max_burst: usize,
    immediate_data: bool,
    initial_r2t: bool,
}

impl Session {
    pub(crate) fn open(portal: SocketAddr, login: &Login) -> Result<Self> {
        Self::over(Connection::open(portal)?, login)
    }

    pub(crate) fn over(mut connection: Connection, login: &Login) -> Result<Self> {
        let mut answers = HashMap::new();
        let mut request = login.request();
        let response = loop {
            connection.send(&request).context("login")?;
            let response = connection.expect(ANSWER_LIMIT).context("login")?;
            ensure!(
                response.opcode() == op::LOGIN_RESPONSE,
                "login is answered with opcode {:02x}h",
                response.opcode()
            );
            let status = u16::from_be_bytes([response.head[36], response.head[37]]);
            ensure!(status == 0, "login status is {status:04x}h");
            answers.extend(keys_of(&response.data));
            if response.head[1] & FINAL != 0 {
                break response;
            }
            // The target stays in the stage: send an empty request that asks for the transition again.
            request.data.clear();
            request = request.word(28, response.get(24).wrapping_add(1));
        };
        let number = |key: &str, fallback: usize| {
            answers.get(key).and_then(|value: &String| value.parse().ok()).unwrap_or(fallback)
        };
        let is = |key: &str, value: &str| answers.get(key).is_some_and(|answer| answer == value);
        connection.digests = Digests { header: is("HeaderDigest", "CRC32C"), data: is("DataDigest", "CRC32C") };
        let immediate_data = is("ImmediateData", "Yes");
        let initial_r2t = !is("InitialR2T", "No");
        let (target_segment, first_burst) =
            (number("MaxRecvDataSegmentLength", 8192), number("FirstBurstLength", 65536));
        Ok(Self {
            connection,
            // Login requests are immediate and do not advance CmdSN, so the first command uses the same number.
            cmd_sn: request.get(24),
            exp_stat_sn: response.get(24).wrapping_add(1),
            max_cmd_sn: response.get(32),
            next_tag: 2,
            target_segment,
            first_burst,
            max_burst: number("MaxBurstLength", 262_144),
            immediate_data,
            initial_r2t,
            answers,
            lun: 0,
            tasks: HashMap::new(),
        })
    }

    /// Logs in and repeats TEST UNIT READY until the unit attention conditions of a new I_T nexus have been reported.
    pub(crate) fn ready(portal: SocketAddr, login: &Login, lun: u16) -> Result<Self> {
        let mut session = Self::open(portal, login)?;
        session.lun = lun;
        for _ in 0..4 {
            if session.run(&[0; 6], Data::None)?.status == GOOD {
                return Ok(session);
            }
        }
        bail!("TEST UNIT READY does not become GOOD")
    }

    /// A new initiator task tag.
    pub(crate) fn tag(&mut self) -> u32 {
        self.next_tag = self.next_tag.wrapping_add(1);
        self.next_tag
    }

    /// Makes a SCSI Command PDU with the next CmdSN, which the caller sends.
    pub(crate) fn command(&mut self, cdb: &[u8], flags: u8, expected: usize) -> Pdu {
        let tag = self.tag();
        let pdu = Pdu::new(op::COMMAND, FINAL | flags | 0x01)
            .lun(self.lun)
            .tag(tag)
            .word(20, u32::try_from(expected).unwrap_or(u32::MAX))
            .word(24, self.cmd_sn)
            .word(28, self.exp_stat_sn)
            .bytes(32, &cdb[..cdb.len().min(16)]);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        pdu
    }

    /// Sends a command with the unsolicited data that login allows. [`Session::next`] returns its result.
    pub(crate) fn start(&mut self, cdb: &[u8], data: Data) -> Result<u32> {
        let (flags, expected, data_out) = match data {
            Data::None => (0, 0, Vec::new()),
            Data::In(count) => (0x40, count, Vec::new()),
            Data::Out(bytes) => (0x20, bytes.len(), bytes),
        };
        let mut pdu = self.command(cdb, flags, expected);
        let tag = pdu.get(16);
        let limit = self.first_burst.min(data_out.len());
        let immediate = if self.immediate_data { limit.min(self.target_segment) } else { 0 };
        pdu.data = data_out[..immediate].to_vec();
        let unsolicited = !self.initial_r2t && immediate < limit;
        if unsolicited {
            pdu.head[1] &= !FINAL;
        }
        let data_in = vec![0; expected - data_out.len()];
        let task = Task { lun: self.lun, expected, data_in, data_out, next_data_sn: 0, next_r2t_sn: 0 };
        self.tasks.insert(tag, task);
        self.connection.send(&pdu)?;
        if unsolicited {
            self.send_data(tag, RESERVED_TAG, immediate, limit)?;
        }
        Ok(tag)
    }

    /// Sends one sequence of Data-Out PDUs: the bytes `from..to` of the task's data.
    fn send_data(&mut self, tag: u32, transfer: u32, from: usize, to: usize) -> Result<()> {
        let task = self.tasks.get(&tag).context("data for an unknown task")?;
        let mut at = from;
        let mut data_sn = 0;
        while at < to {
            let end = to.min(at + self.target_segment);
            let pdu = Pdu::new(op::DATA_OUT, if end == to { FINAL } else { 0 })
                .lun(task.lun)
                .tag(tag)
                .word(20, transfer)
                .word(28, self.exp_stat_sn)
                .word(36, data_sn)
                .word(40, u32::try_from(at)?)
                .with_data(&task.data_out[at..end]);
            self.connection.send(&pdu)?;
            (at, data_sn) = (end, data_sn + 1);
        }
        Ok(())
    }

    /// Waits until a command ends.
    pub(crate) fn next(&mut self) -> Result<CommandResult> {
        loop {
            let pdu = self.connection.expect(ANSWER_LIMIT)?;
            if let Some(done) = self.take(&pdu)? {
                return Ok(done);
            }
        }
    }

    /// Handles one PDU of the target; returns the result if it ends a command.
    fn take(&mut self, pdu: &Pdu) -> Result<Option<CommandResult>> {
        let tag = pdu.get(16);
        self.max_cmd_sn = pdu.get(32);
        match pdu.opcode() {
            op::RESPONSE => {
                self.status_sn(pdu)?;
                let task = self.tasks.remove(&tag).with_context(|| format!("response for unknown task {tag:x}h"))?;
                ensure!(pdu.head[2] == 0, "iSCSI response is {:02x}h", pdu.head[2]);
                let sense = pdu.data.get(2..).unwrap_or_default().to_vec();
                Ok(Some(CommandResult { tag, status: pdu.head[3], sense, data: task.data_in }))
            }
            op::DATA_IN => self.take_data(pdu),
            op::R2T => {
                self.ready_to_transfer(pdu)?;
                Ok(None)
            }
            op::NOP_IN => {
                if pdu.get(20) != RESERVED_TAG {
                    let answer = Pdu::new(op::NOP_OUT | IMMEDIATE, FINAL).tag(RESERVED_TAG).bytes(8, &pdu.head[8..16]);
                    let answer = answer.word(20, pdu.get(20)).word(24, self.cmd_sn).word(28, self.exp_stat_sn);
                    self.connection.send(&answer)?;
                }
                Ok(None)
            }
            op::REJECT => bail!("the target rejects a PDU, reason {:02x}h", pdu.head[2]),
            op::ASYNC => bail!("asynchronous message, event {}", pdu.head[36]),
            other => bail!("unexpected opcode {other:02x}h"),
        }
    }

    fn status_sn(&mut self, pdu: &Pdu) -> Result<()> {
        let number = pdu.get(24);
        ensure!(number == self.exp_stat_sn, "StatSN is {number}, expected {}", self.exp_stat_sn);
        self.exp_stat_sn = number.wrapping_add(1);
        Ok(())
    }

    fn take_data(&mut self, pdu: &Pdu) -> Result<Option<CommandResult>> {
        let tag = pdu.get(16);
        let task = self.tasks.get_mut(&tag).with_context(|| format!("data for unknown task {tag:x}h"))?;
        ensure!(pdu.get(36) == task.next_data_sn, "DataSN is {}, expected {}", pdu.get(36), task.next_data_sn);
        task.next_data_sn += 1;
        let at = usize::try_from(pdu.get(40))?;
        let room = task.data_in.get_mut(at..at + pdu.data.len()).context("more data than the command expects")?;
        room.copy_from_slice(&pdu.data);
        if pdu.head[1] & 0x01 == 0 {
            return Ok(None);
        }
        self.status_sn(pdu)?;
        let task = self.tasks.remove(&tag).context("the task has just been removed")?;
        Ok(Some(CommandResult { tag, status: pdu.head[3], sense: Vec::new(), data: task.data_in }))
    }

    fn ready_to_transfer(&mut self, pdu: &Pdu) -> Result<()> {
        let tag = pdu.get(16);
        let max_burst = self.max_burst;
        let task = self.tasks.get_mut(&tag).with_context(|| format!("R2T for unknown task {tag:x}h"))?;
        ensure!(pdu.get(36) == task.next_r2t_sn, "R2TSN is {}, expected {}", pdu.get(36), task.next_r2t_sn);
        task.next_r2t_sn += 1;
        let (from, count) = (usize::try_from(pdu.get(40))?, usize::try_from(pdu.get(44))?);
        ensure!(count > 0 && count <= max_burst, "an R2T asks for {count} bytes, MaxBurstLength is {max_burst}");
        ensure!(from + count <= task.expected, "an R2T asks for more than the command has");
        self.send_data(tag, pdu.get(20), from, from + count)
    }

    /// Runs one command and waits for its result.
    pub(crate) fn run(&mut self, cdb: &[u8], data: Data) -> Result<CommandResult> {
        let tag = self.start(cdb, data)?;
        loop {
            let done = self.next()?;
            if done.tag == tag {
                return Ok(done);
            }
        }
    }

    /// Sends a NOP-Out with data; the NOP-In must return the same data (RFC 7143 11.19).
    pub(crate) fn ping(&mut self) -> Result<()> {
        let (tag, data) = (self.tag(), b"are you there?".to_vec());
        let nop = Pdu::new(op::NOP_OUT | IMMEDIATE, FINAL).tag(tag).word(20, RESERVED_TAG);
        self.connection.send(&nop.word(24, self.cmd_sn).word(28, self.exp_stat_sn).with_data(data.clone()))?;
        loop {
            let pdu = self.connection.expect(ANSWER_LIMIT)?;
            if pdu.opcode() == op::NOP_IN && pdu.get(16) == tag {
                self.status_sn(&pdu)?;
                ensure!(pdu.data == data, "the NOP-In does not return the data of the NOP-Out");
                return Ok(());
            }
            self.take(&pdu)?;
        }
    }

    /// Resets the logical unit (LOGICAL UNIT RESET), and waits for the response. No command is in progress.
    pub(crate) fn reset_unit(&mut self) -> Result<()> {
        const LOGICAL_UNIT_RESET: u8 = 5;
        let tag = self.tag();
        let request = Pdu::new(op::TASK_REQUEST | IMMEDIATE, FINAL | LOGICAL_UNIT_RESET).lun(self.lun).tag(tag);
        let request = request.word(20, RESERVED_TAG).word(24, self.cmd_sn).word(28, self.exp_stat_sn);
        self.connection.send(&request)?;
        let pdu = self.connection.expect(ANSWER_LIMIT)?;
        ensure!(pdu.opcode() == op::TASK_RESPONSE, "the reset is answered with opcode {:02x}h", pdu.opcode());
        self.status_sn(&pdu)?;
        ensure!(pdu.head[2] == 0, "the response to the reset is {:02x}h", pdu.head[2]);
        Ok(())
    }

    /// Sends a Text Request and decodes the answer, which must fit into one PDU.
    fn text_request(&mut self, question: Vec<u8>) -> Result<Vec<(String, String)>> {
        let tag = self.tag();
        let request = Pdu::new(op::TEXT, FINAL).tag(tag).word(20, RESERVED_TAG).word(24, self.cmd_sn);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.connection.send(&request.word(28, self.exp_stat_sn).with_data(question))?;
        let pdu = self.connection.expect(ANSWER_LIMIT)?;
        ensure!(pdu.opcode() == op::TEXT_RESPONSE, "the Text Request is answered with opcode {:02x}h", pdu.opcode());
        self.status_sn(&pdu)?;
        Ok(keys_of(&pdu.data))
    }

    /// Logs out and closes the session.
    pub(crate) fn logout(mut self) -> Result<()> {
        let tag = self.tag();
        let request = Pdu::new(op::LOGOUT | IMMEDIATE, FINAL).tag(tag).word(24, self.cmd_sn).word(28, self.exp_stat_sn);
        self.connection.send(&request)?;
        let pdu = self.connection.expect(ANSWER_LIMIT)?;
        ensure!(pdu.opcode() == op::LOGOUT_RESPONSE, "logout is answered with opcode {:02x}h", pdu.opcode());
        ensure!(pdu.head[2] == 0, "logout response is {:02x}h", pdu.head[2]);
        Ok(())
    }
}

/// CDBs of the commands that the tests themselves send (SBC-5, SPC-6).
pub(crate) mod cdb {
    fn ten_and_more(opcode: u8, lba: u64, blocks: u32) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
        cdb
    }

    pub(crate) fn read(lba: u64, blocks: u32) -> [u8; 16] {
        ten_and_more(0x88, lba, blocks)
    }

    pub(crate) fn write(lba: u64, blocks: u32) -> [u8; 16] {
        ten_and_more(0x8a, lba, blocks)
    }

    pub(crate) fn synchronize_cache() -> [u8; 16] {
        ten_and_more(0x91, 0, 0)
    }

    /// GET LBA STATUS (16) with an allocation length of 16 descriptors.
    pub(crate) fn get_lba_status(lba: u64) -> [u8; 16] {
        let mut cdb = ten_and_more(0x9e, lba, 8 + 16 * 16);
        cdb[1] = 0x12;
        cdb
    }

    /// READ CAPACITY (16) with an allocation length of 32 bytes.
    pub(crate) fn read_capacity() -> [u8; 16] {
        let mut cdb = ten_and_more(0x9e, 0, 32);
        cdb[1] = 0x10;
        cdb
    }
}

/// Shorthands for the most frequent commands.
impl Session {
    pub(crate) fn write(&mut self, lba: u64, data: Vec<u8>, block: usize) -> Result<()> {
        let blocks = u32::try_from(data.len() / block)?;
        self.run(&cdb::write(lba, blocks), Data::Out(data))?.good()?;
        Ok(())
    }

    pub(crate) fn read(&mut self, lba: u64, blocks: u32, block: usize) -> Result<Vec<u8>> {
        let length = usize::try_from(blocks)? * block;
        Ok(self.run(&cdb::read(lba, blocks), Data::In(length))?.good()?.data)
    }

    /// Returns the number of blocks and their size in bytes.
    pub(crate) fn capacity(&mut self) -> Result<(u64, usize)> {
        let data = self.run(&cdb::read_capacity(), Data::In(32))?.good()?.data;
        let last = u64::from_be_bytes(*data.first_chunk().context("short capacity data")?);
        let block = u32::from_be_bytes(*data[8..].first_chunk().context("short capacity data")?);
        Ok((last + 1, usize::try_from(block)?))
    }

    pub(crate) fn synchronize(&mut self) -> Result<()> {
        self.run(&cdb::synchronize_cache(), Data::None)?.good()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_the_caller_replaces_the_default_key() {
        let text = Login::to("iqn.x", "a").key("InitialR2T", "Yes").text();
        let keys = keys_of(&text);
        assert_eq!(keys.iter().filter(|(key, _)| key == "InitialR2T").count(), 1);
        assert!(keys.contains(&("InitialR2T".to_owned(), "Yes".to_owned())));
        assert!(keys.contains(&("TargetName".to_owned(), "iqn.x".to_owned())));
    }

    #[test]
    fn sense_is_decoded_from_fixed_and_descriptor_format() {
        let mut fixed = vec![0; 18];
        (fixed[0], fixed[2], fixed[12], fixed[13]) = (0x70, 5, 0x24, 1);
        let descriptor = vec![0x72, 5, 0x24, 1];
        for sense in [fixed, descriptor] {
            let done = CommandResult { tag: 0, status: CHECK_CONDITION, sense, data: Vec::new() };
            assert_eq!(done.sense(), (5, 0x24, 1));
            assert!(done.clone().good().is_err());
            assert!(done.expect_sense(5, 0x24, 1).is_ok());
        }
    }
}
