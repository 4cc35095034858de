//! Hostile NVMe/TCP hosts. After each one, the target is running, its memory is within its limit, a host that follows
//! the protocol and an initiator continue with their data, and a new host gets a controller.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::fixture::{ANSWER_LIMIT, CORES, DATA_MIB, MemoryGauge, SILENCE};
use crate::nvme::{
    Conn, Connect, Entry, Host, INLINE, LAST, Received, ReceivedPdu, TRANSPORT, capsule, h2c_data, ic_req, kind, pdu,
};
use crate::pdu::Digests;
use crate::target::{Driver, Lab, Spec, Subject, Target, free_port};
use crate::test_data::{Random, pattern};
use crate::verifying_writer::VerifyingWriter;

/// NQN of the subsystem.
const NQN: &str = "nqn.2026-01.io.lunar:hostile";
/// The namespace of hostile hosts; hosts that follow the protocol have the other one.
const HOSTILE_NAMESPACE: u32 = 2;
const NAMESPACE: u32 = 1;
/// The first block of the host that follows the protocol, after the region of the verifying writer.
const LBA: u64 = (48 << 20) / 512;
const NONE: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

/// Fatal error status of termination requests.
mod fatal {
    pub(super) const HEADER: u16 = 1;
    pub(super) const SEQUENCE: u16 = 2;
    pub(super) const DIGEST: u16 = 3;
    pub(super) const RANGE: u16 = 4;
    pub(super) const LIMIT: u16 = 5;
    pub(super) const UNSUPPORTED: u16 = 6;
}
/// Status of completions.
mod status {
    pub(super) const OPCODE: u16 = 0x001;
    pub(super) const SEQUENCE: u16 = 0x00c;
    pub(super) const TRANSPORT: u16 = 0x022;
    pub(super) const RANGE: u16 = 0x080;
    pub(super) const CAPACITY: u16 = 0x081;
    pub(super) const READ_ERROR: u16 = 0x281;
    pub(super) const PARAMETERS: u16 = 0x182;
}

struct Fixture {
    portal: SocketAddr,
    random: Random,
}

type Case = (&'static str, fn(&mut Fixture) -> Result<()>);

const CASES: [Case; 27] = [
    ("the first PDU is not ICReq", first_is_not_ic_req),
    ("invalid ICReq, and ICReq twice", invalid_ic_req),
    ("PDU types that hosts do not send", unknown_types),
    ("inconsistent lengths", wrong_lengths),
    ("commands before Connect", before_connect),
    ("invalid Connect", invalid_connects),
    ("H2CData without R2T", early_data),
    ("H2CData with a wrong offset, length or LAST_PDU", displaced_data),
    ("H2CData without the data that it announces", empty_data),
    ("a wrong header digest", header_digest),
    ("wrong digests of in-capsule and requested data", data_digests),
    ("all operation codes, on both queues", all_opcodes),
    ("Write Uncorrectable inside and outside of the namespace", uncorrectable),
    ("all SGL descriptor types", all_descriptors),
    ("writes that are aborted while they wait for their data", aborts),
    ("more commands than the queue has entries", beyond_entries),
    ("one command identifier for two commands", same_identifier),
    ("a host that stops reading", reads_untaken),
    ("a host that sends and never reads", answers_untaken),
    ("writes whose data never arrives", writes_without_data),
    ("hosts that do not read, and their neighbour", neighbour_of_unread_reads),
    ("hosts that do not answer R2Ts, and their neighbour", neighbour_of_unanswered_requests),
    ("Dataset Management of the whole namespace again and again", neighbour_of_long_commands),
    ("half of a capsule, and then a disconnect", half_capsules),
    ("a host that is silent on one queue, and then on all", silent_queues),
    ("Connect again and again", connect_flood),
    ("random bytes after Connect", random_bytes),
];

/// Runs all cases.
pub(super) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    if let Subject::External(_) = lab.subject {
        return Ok(());
    }
    let part = format!("hostile-nvme/{}", driver.name());
    let portal = free_port()?;
    let (memory, cores, at) = (DATA_MIB.to_string(), CORES.to_string(), portal.to_string());
    let flags = ["--memory", &memory, "--cores", &cores, "--nvme", &at, "--nqn", NQN];
    let spec = Spec::new(driver, [lab.image("hostile-nvme.img", 64)?, "ram:64M".to_owned()])?.flags(&flags);
    let mut target = Target::start(lab, &spec)?;
    let writer = VerifyingWriter::start(target.portal, &target.name, target.lun, lab.seed)?;
    let gauge = MemoryGauge::start(target.pid());
    let mut bystander = Host::open(portal, NQN, "nqn.2026-01.io.lunar:bystander", BOTH)?;
    for (round, (name, case)) in (0..).zip(&CASES) {
        let good = lab.report.check(&part, name, || {
            let outcome = case(&mut Fixture { portal, random: Random::new(lab.seed) });
            target.healthy()?;
            outcome?;
            gauge.check_limit()?;
            writer.expect_progress()?;
            write_and_read(&mut bystander, round).context("the host that follows the protocol")?;
            let mut newcomer = Host::open(portal, NQN, "nqn.2026-01.io.lunar:newcomer", NONE)?;
            newcomer.read(NAMESPACE, 0, 8).map(drop)
        });
        if !good && target.healthy().is_err() {
            bail!("the target has ended");
        }
    }
    lab.report.check(&part, "nothing acknowledged is lost", || writer.finish().map(drop));
    lab.report.check(&part, "target stops in time", || target.stop());
    Ok(())
}

/// Writes and reads, with in-capsule and with requested data.
fn write_and_read(host: &mut Host, round: u64) -> Result<()> {
    for len in [4096, 65536] {
        let data = pattern(LBA, round + 1, len);
        host.write(NAMESPACE, LBA, &data)?;
        let read = host.read(NAMESPACE, LBA, u32::try_from(len / 512)?)?;
        ensure!(read == data, "other data than was written, in round {round}");
    }
    Ok(())
}

impl Fixture {
    fn conn(&self) -> Result<Conn> {
        Conn::open(self.portal)
    }

    fn ready(&self) -> Result<Conn> {
        Conn::ready(self.portal, NONE)
    }

    fn host(&self, digests: Digests) -> Result<Host> {
        Host::open(self.portal, NQN, "nqn.2026-01.io.lunar:attacker", digests)
    }

    fn connect(&self) -> Connect<'static> {
        let host = "nqn.2026-01.io.lunar:attacker";
        Connect { queue: 0, entries: 32, controller: 0xffff, keep_alive: 0, subsystem: NQN, host }
    }

    /// The fatal error status that these bytes cause on a new connection.
    fn first(&self, bytes: &[u8]) -> Result<u16> {
        let mut conn = self.conn()?;
        conn.send(bytes)?;
        termination_status(&mut conn)
    }
}

/// The fatal error status of a termination request, after which the connection must close.
fn termination_status(conn: &mut Conn) -> Result<u16> {
    let request = loop {
        let received = conn.expect()?;
        // Replies to valid commands come first.
        if received.kind() == kind::C2H_TERM {
            break received;
        }
    };
    match conn.receive(ANSWER_LIMIT)? {
        Received::Closed => Ok(request.short(8)),
        other => bail!("a termination request is followed by {other:?}"),
    }
}

fn expect_termination(conn: &mut Conn, wanted: u16) -> Result<()> {
    let found = termination_status(conn)?;
    ensure!(found == wanted, "fatal error status {found} instead of {wanted}");
    Ok(())
}

fn first_is_not_ic_req(fixture: &mut Fixture) -> Result<()> {
    let early = capsule(&fixture.connect().entry(1), &fixture.connect().data(), NONE);
    ensure!(fixture.first(&early)? == fatal::SEQUENCE, "a capsule first");
    ensure!(fixture.first(&h2c_data(0, 0, 0, &[1; 512], LAST, NONE))? == fatal::SEQUENCE, "H2CData first");
    ensure!(fixture.first(b"GET / HTTP/1.1\r\n\r\n")? == fatal::HEADER, "another protocol");
    Ok(())
}

fn invalid_ic_req(fixture: &mut Fixture) -> Result<()> {
    let with = |at: usize, value: u8| {
        let mut bytes = ic_req(NONE);
        bytes[at] = value;
        bytes
    };
    for (bytes, wanted) in [
        (with(8, 1), fatal::UNSUPPORTED),
        (with(10, 32), fatal::HEADER),
        (with(11, 4), fatal::HEADER),
        (with(2, 24), fatal::HEADER),
        (with(4, 132), fatal::HEADER),
        (with(5, 1), fatal::HEADER),
    ] {
        let found = fixture.first(&bytes)?;
        ensure!(found == wanted, "{:02x?}: {found} instead of {wanted}", &bytes[..12]);
    }
    let mut twice = fixture.ready()?;
    twice.send(&ic_req(NONE))?;
    expect_termination(&mut twice, fatal::SEQUENCE)
}

fn unknown_types(fixture: &mut Fixture) -> Result<()> {
    for code in [kind::IC_RESP, kind::C2H_TERM, kind::RESPONSE, kind::C2H_DATA, 0x08, kind::R2T, 0x0a, 0x80, 0xff] {
        let mut host = fixture.host(NONE)?;
        let mut header = vec![0; 24];
        header[0] = code;
        host.io.send(&pdu(&header, &[], NONE))?;
        expect_termination(&mut host.io, fatal::HEADER).with_context(|| format!("type {code:02x}h"))?;
    }
    // A termination request of the host closes the connection.
    let mut host = fixture.host(NONE)?;
    let mut header = vec![0; 24];
    (header[0], header[8]) = (kind::H2C_TERM, 1);
    host.io.send(&pdu(&header, &[7; 72], NONE))?;
    match host.io.receive(ANSWER_LIMIT)? {
        Received::Closed => Ok(()),
        other => bail!("a termination request is answered with {other:?}"),
    }
}

fn wrong_lengths(fixture: &mut Fixture) -> Result<()> {
    let read = Entry::new(2, 9, HOSTILE_NAMESPACE).blocks(0, 1).sgl(TRANSPORT, 512);
    let good = capsule(&read, &[], NONE);
    for (at, values) in [(2, &[0, 8, 24, 71, 73, 255][..]), (3, &[4, 200]), (4, &[0, 7, 71, 73])] {
        for value in values {
            let mut bytes = good.clone();
            bytes[at] = *value;
            // The data offset matters only if there is data.
            if at == 3 {
                bytes[4] = 80;
                bytes.extend([0; 8]);
            }
            let mut host = fixture.host(NONE)?;
            host.io.send(&bytes)?;
            expect_termination(&mut host.io, fatal::HEADER).with_context(|| format!("byte {at} is {value}"))?;
        }
    }
    for len in [0x10_0000_u32, 0x7fff_ffff, 0xffff_ffff] {
        let mut bytes = good.clone();
        bytes[3] = 72;
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        let mut host = fixture.host(NONE)?;
        host.io.send(&bytes)?;
        expect_termination(&mut host.io, fatal::HEADER).with_context(|| format!("{len} bytes"))?;
    }
    Ok(())
}

fn before_connect(fixture: &mut Fixture) -> Result<()> {
    for entry in [
        Entry::new(2, 1, HOSTILE_NAMESPACE).blocks(0, 1).sgl(TRANSPORT, 512),
        Entry::fabrics(4, 1),
        Entry::fabrics(0, 1).word(44, 0x14).word(48, 0x46_0001),
        Entry::fabrics(5, 1).sgl(INLINE, 16),
        Entry::new(6, 1, 0).word(40, 1).sgl(TRANSPORT, 4096),
    ] {
        let mut conn = fixture.ready()?;
        let found = conn.call(&entry, &[0; 16])?.status;
        ensure!(found == status::SEQUENCE, "{:02x?}: status {found:03x}h", &entry.0[..8]);
        fixture.connect().execute(&mut conn)?.good().context("Connect on the same connection")?;
    }
    let mut conn = fixture.ready()?;
    conn.send(&h2c_data(1, 0, 0, &[1; 64], LAST, NONE))?;
    expect_termination(&mut conn, fatal::SEQUENCE)
}

fn invalid_connects(fixture: &mut Fixture) -> Result<()> {
    let good = fixture.connect();
    for (what, connect) in [
        ("another subsystem", Connect { subsystem: "nqn.2026-01.io.lunar:other", ..good.clone() }),
        ("no subsystem", Connect { subsystem: "", ..good.clone() }),
        ("one entry", Connect { entries: 1, ..good.clone() }),
        ("too many entries", Connect { entries: 0, ..good.clone() }),
        ("no host name, and a host identifier of zero", Connect { host: "", ..good.clone() }),
        ("a host name that is no NQN", Connect { host: "hello", ..good.clone() }),
        ("a host name with a control character", Connect { host: "nqn.2026-01.io.lunar:\n", ..good.clone() }),
        ("a static controller ID", Connect { controller: 7, ..good.clone() }),
        (
            "a queue of a controller that does not exist",
            Connect { queue: 1, entries: 32, controller: 0xfff0, ..good.clone() },
        ),
    ] {
        let mut conn = fixture.ready()?;
        let found = connect.execute(&mut conn)?.status;
        ensure!(found == status::PARAMETERS, "{what}: status {found:03x}h");
    }
    // NQNs that are not terminated, and data that is too short or too long.
    for (at, byte, len) in [(256, b'n', 1024), (512, b'n', 1024), (0, 0, 512), (0, 0, 1028)] {
        let mut conn = fixture.ready()?;
        let mut data = good.data();
        if byte > 0 {
            data[at..at + 256].fill(byte);
        }
        data.resize(len, 0);
        let entry = good.entry(conn.cid()).sgl(INLINE, len as u32);
        let done = conn.call(&entry, &data)?;
        ensure!(done.status != 0, "field {at}, {len} bytes: Connect succeeds");
    }
    let mut host = fixture.host(NONE)?;
    let theirs = Connect { queue: 1, entries: 32, controller: host.controller, ..good.clone() };
    let mut again = fixture.ready()?;
    ensure!(theirs.execute(&mut again)?.status == status::SEQUENCE, "a queue twice");
    let mut other = fixture.ready()?;
    let stolen = Connect { host: "nqn.2026-01.io.lunar:thief", queue: 2, ..theirs };
    ensure!(stolen.execute(&mut other)?.status != 0, "a queue of another host's controller");
    host.read(HOSTILE_NAMESPACE, 0, 1).map(drop)
}

/// Starts a write that waits for its data; returns its command identifier and its R2T.
fn write_with_r2t(host: &mut Host, len: u32) -> Result<(u16, ReceivedPdu)> {
    let cid = host.io.cid();
    let entry = Entry::new(1, cid, HOSTILE_NAMESPACE).blocks(0, len / 512).sgl(TRANSPORT, len);
    let bytes = capsule(&entry, &[], host.io.digests);
    host.io.send(&bytes)?;
    let r2t = host.io.expect()?;
    ensure!(r2t.kind() == kind::R2T && r2t.short(8) == cid, "no R2T: {:02x?}", r2t.head);
    Ok((cid, r2t))
}

fn early_data(fixture: &mut Fixture) -> Result<()> {
    // Data without a command, data of a read, and data of a write with in-capsule data.
    let mut host = fixture.host(NONE)?;
    host.io.send(&h2c_data(77, 0, 0, &[1; 512], LAST, NONE))?;
    expect_termination(&mut host.io, fatal::HEADER)?;
    for entry in [
        Entry::new(2, 5, HOSTILE_NAMESPACE).blocks(0, 2048).sgl(TRANSPORT, 1 << 20),
        Entry::new(1, 5, HOSTILE_NAMESPACE).blocks(0, 8).sgl(INLINE, 4096),
        Entry::new(1, 5, HOSTILE_NAMESPACE).blocks(0, 2048).sgl(TRANSPORT, 1 << 20),
    ] {
        let mut host = fixture.host(NONE)?;
        let inline = if entry.0[39] == INLINE { vec![3; 4096] } else { Vec::new() };
        let mut bytes = capsule(&entry, &inline, NONE);
        // In one send: the data arrives before any R2T was sent.
        bytes.extend(h2c_data(5, 0x4242, 0, &[1; 4096], 0, NONE));
        host.io.send(&bytes)?;
        expect_termination(&mut host.io, fatal::HEADER).with_context(|| format!("{:02x?}", &entry.0[..2]))?;
    }
    Ok(())
}

fn displaced_data(fixture: &mut Fixture) -> Result<()> {
    const LEN: u32 = 65536;
    type Wrong = fn(u16, u16) -> Vec<u8>;
    let cases: [(&str, u16, Wrong); 7] = [
        ("another tag", fatal::HEADER, |cid, tag| h2c_data(cid, tag ^ 1, 0, &[1; 512], 0, NONE)),
        ("a wrong offset", fatal::RANGE, |cid, tag| h2c_data(cid, tag, 512, &[1; 512], 0, NONE)),
        ("the last offset", fatal::RANGE, |cid, tag| h2c_data(cid, tag, 0xffff_fe00, &[1; 512], 0, NONE)),
        ("more than requested", fatal::RANGE, |cid, tag| h2c_data(cid, tag, 0, &[1; 65536 + 512], LAST, NONE)),
        ("LAST_PDU before the end", fatal::HEADER, |cid, tag| h2c_data(cid, tag, 0, &[1; 512], LAST, NONE)),
        ("no LAST_PDU at the end", fatal::HEADER, |cid, tag| h2c_data(cid, tag, 0, &[1; 65536], 0, NONE)),
        ("more than MAXH2CDATA", fatal::LIMIT, |cid, tag| h2c_data(cid, tag, 0, &vec![1; 1 << 20], LAST, NONE)),
    ];
    for (what, wanted, wrong) in cases {
        let mut host = fixture.host(NONE)?;
        let (cid, r2t) = write_with_r2t(&mut host, LEN)?;
        // The controller may close before all data is sent.
        let _ = host.io.send(&wrong(cid, r2t.short(10)));
        expect_termination(&mut host.io, wanted).context(what)?;
    }
    // A data length that does not match the PDU.
    let mut host = fixture.host(NONE)?;
    let (cid, r2t) = write_with_r2t(&mut host, LEN)?;
    let mut bytes = h2c_data(cid, r2t.short(10), 0, &[1; 512], 0, NONE);
    bytes[16] = 4;
    host.io.send(&bytes)?;
    expect_termination(&mut host.io, fatal::HEADER)
}

/// NVMe/TCP Transport 1.0 3.6.2.7.
fn empty_data(fixture: &mut Fixture) -> Result<()> {
    for announced in [1_u32, 8192] {
        let mut host = fixture.host(NONE)?;
        let (cid, r2t) = write_with_r2t(&mut host, 8192)?;
        let mut bytes = h2c_data(cid, r2t.short(10), 0, &[], LAST, NONE);
        bytes[16..20].copy_from_slice(&announced.to_le_bytes());
        host.io.send(&bytes)?;
        expect_termination(&mut host.io, fatal::HEADER).with_context(|| format!("{announced} bytes announced"))?;
    }
    Ok(())
}

fn header_digest(fixture: &mut Fixture) -> Result<()> {
    for at in [20, 73] {
        let mut host = fixture.host(BOTH)?;
        let entry = Entry::new(2, 9, HOSTILE_NAMESPACE).blocks(0, 1).sgl(TRANSPORT, 512);
        let mut bytes = capsule(&entry, &[], BOTH);
        bytes[at] ^= 0x10;
        host.io.send(&bytes)?;
        expect_termination(&mut host.io, fatal::DIGEST)?;
    }
    // A negotiated digest that is missing.
    let mut host = fixture.host(BOTH)?;
    host.io.send(&capsule(&Entry::new(0, 9, HOSTILE_NAMESPACE), &[], NONE))?;
    expect_termination(&mut host.io, fatal::HEADER)
}

fn data_digests(fixture: &mut Fixture) -> Result<()> {
    let mut host = fixture.host(BOTH)?;
    host.write(HOSTILE_NAMESPACE, 0, &[0xb0; 4096])?;
    let cid = host.io.cid();
    let entry = Entry::new(1, cid, HOSTILE_NAMESPACE).blocks(0, 8).sgl(INLINE, 4096);
    let mut bytes = capsule(&entry, &[0x66; 4096], BOTH);
    bytes[100] ^= 1;
    host.io.send(&bytes)?;
    let found = host.io.wait_completion(cid, &[])?.status;
    ensure!(found == status::TRANSPORT, "in-capsule data: status {found:03x}h");
    let (cid, r2t) = write_with_r2t(&mut host, 4096)?;
    let mut bytes = h2c_data(cid, r2t.short(10), 0, &[0x66; 4096], LAST, BOTH);
    bytes[100] ^= 1;
    host.io.send(&bytes)?;
    let found = host.io.wait_completion(cid, &[])?.status;
    ensure!(found == status::TRANSPORT, "requested data: status {found:03x}h");
    ensure!(host.read(HOSTILE_NAMESPACE, 0, 8)? == [0xb0; 4096], "damaged data was written");
    Ok(())
}

/// Opcodes that the controller does not report as supported must end with Invalid Command Opcode, on the admin queue
/// and on I/O queues.
fn all_opcodes(fixture: &mut Fixture) -> Result<()> {
    const FABRICS: u8 = 0x7f;
    /// The Commands Supported and Effects log page: one dword per opcode, for admin and for I/O commands.
    const LOG: u32 = 0x05;
    const LOG_LEN: u32 = 4096;
    /// Commands that are not supported: Security Send and Receive, I/O Management Send and Receive.
    const NOT_SUPPORTED: [(bool, u8); 4] = [(true, 0x81), (true, 0x82), (false, 0x1d), (false, 0x12)];
    /// Mandatory commands: Identify, Get Log Page, Read, Write.
    const SUPPORTED: [(bool, u8); 4] = [(true, 0x06), (true, 0x02), (false, 0x02), (false, 0x01)];
    let mut host = fixture.host(NONE)?;
    let log = Entry::new(0x02, host.admin.cid(), 0).word(40, LOG | (LOG_LEN / 4 - 1) << 16).sgl(TRANSPORT, LOG_LEN);
    let log = host.admin.call(&log, &[])?.good()?.data;
    ensure!(log.len() == LOG_LEN as usize, "{} bytes of a log page of {LOG_LEN}", log.len());
    let is_reported = |is_admin: bool, opcode: u8| {
        let at = (usize::from(!is_admin) * 256 + usize::from(opcode)) * 4;
        log[at] & 1 != 0
    };
    for (is_admin, opcode) in NOT_SUPPORTED {
        ensure!(!is_reported(is_admin, opcode), "opcode {opcode:02x}h is reported as supported: admin {is_admin}");
    }
    for (is_admin, opcode) in SUPPORTED {
        ensure!(is_reported(is_admin, opcode), "opcode {opcode:02x}h is not reported as supported: admin {is_admin}");
    }
    for opcode in (0..=255_u8).filter(|opcode| *opcode != FABRICS) {
        for (conn, is_admin) in [(&mut host.admin, true), (&mut host.io, false)] {
            if is_reported(is_admin, opcode) {
                continue;
            }
            let entry = Entry::new(opcode, conn.cid(), HOSTILE_NAMESPACE);
            let found = conn.call(&entry, &[]).with_context(|| format!("opcode {opcode:02x}h"))?.status;
            ensure!(found == status::OPCODE, "opcode {opcode:02x}h, admin {is_admin}: status {found:03x}h");
        }
    }
    for kind in (0..=255_u8).filter(|kind| ![0, 1, 4, 5, 6, 8].contains(kind)) {
        let entry = Entry::fabrics(kind, host.admin.cid());
        let found = host.admin.call(&entry, &[])?.status;
        ensure!(found == status::OPCODE, "Fabrics type {kind:02x}h: status {found:03x}h");
    }
    Ok(())
}

/// Only valid ranges can be marked as uncorrectable, and a write makes them readable again.
fn uncorrectable(fixture: &mut Fixture) -> Result<()> {
    let mut host = fixture.host(NONE)?;
    let mark = |host: &mut Host, lba, count| {
        let entry = Entry::new(4, host.io.cid(), HOSTILE_NAMESPACE).blocks(lba, count);
        host.io.call(&entry, &[]).map(|done| done.status)
    };
    let past = LBA * 4;
    for (lba, count, wanted) in
        [(u64::MAX, 1, status::RANGE), (past, 1, status::RANGE), (0, 65536, status::CAPACITY), (3, 2, 0)]
    {
        let found = mark(&mut host, lba, count)?;
        ensure!(found == wanted, "{count} blocks from {lba} on: status {found:03x}h");
    }
    let entry = Entry::new(2, host.io.cid(), HOSTILE_NAMESPACE).blocks(0, 8).sgl(TRANSPORT, 4096);
    let found = host.io.call(&entry, &[])?.status;
    ensure!(found == status::READ_ERROR, "a read of marked blocks: status {found:03x}h");
    host.read(HOSTILE_NAMESPACE, 0, 3)?;
    host.read(HOSTILE_NAMESPACE, 5, 3)?;
    host.write(HOSTILE_NAMESPACE, 0, &[0xb1; 4096])?;
    ensure!(
        host.read(HOSTILE_NAMESPACE, 0, 8)? == [0xb1; 4096],
        "blocks that were written afterwards are not readable"
    );
    Ok(())
}

fn all_descriptors(fixture: &mut Fixture) -> Result<()> {
    let mut host = fixture.host(NONE)?;
    for how in (0..=255_u8).filter(|how| *how != TRANSPORT) {
        let entry = Entry::new(2, host.io.cid(), HOSTILE_NAMESPACE).blocks(0, 1).sgl(how, 512);
        let found = host.io.call(&entry, &[])?.status;
        ensure!(found != 0, "a read into a descriptor of type {how:02x}h");
    }
    for (address, len, data) in [(0, 512, 0), (0, 1024, 512), (512, 512, 512), (u64::MAX, 512, 512), (1, 512, 512)] {
        let mut entry = Entry::new(1, host.io.cid(), HOSTILE_NAMESPACE).blocks(0, 1).sgl(INLINE, len);
        entry.0[24..32].copy_from_slice(&address.to_le_bytes());
        let found = host.io.call(&entry, &vec![1; data])?.status;
        ensure!(found != 0, "a write from {address} of {data} bytes, {len} long");
    }
    // PRPs, and lengths that do not match the command.
    for entry in [
        Entry::new(2, 1000, HOSTILE_NAMESPACE).blocks(0, 1).sgl(TRANSPORT, 512).byte(1, 0),
        Entry::new(2, 1000, HOSTILE_NAMESPACE).blocks(0, 2).sgl(TRANSPORT, 512),
        Entry::new(1, 1000, HOSTILE_NAMESPACE).blocks(0, 2).sgl(TRANSPORT, 512),
        Entry::new(2, 1000, HOSTILE_NAMESPACE).blocks(0, 65536).sgl(TRANSPORT, 1 << 25),
        Entry::new(2, 1000, HOSTILE_NAMESPACE).blocks(u64::MAX, 1).sgl(TRANSPORT, 512),
        Entry::new(2, 1000, 0xffff_ffff).blocks(0, 1).sgl(TRANSPORT, 512),
        Entry::new(2, 1000, 77).blocks(0, 1).sgl(TRANSPORT, 512),
    ] {
        let found = host.io.call(&entry, &[])?.status;
        ensure!(found != 0, "{:02x?}", entry.0);
    }
    host.read(HOSTILE_NAMESPACE, 0, 1).map(drop)
}

/// Abort ends a write that waits for its data, on whichever core its queue is. Several hosts, because two queues may or
/// may not share a core.
fn aborts(fixture: &mut Fixture) -> Result<()> {
    const ABORTED: u16 = 0x007;
    for _ in 0..6 {
        let mut host = fixture.host(NONE)?;
        let (cid, r2t) = write_with_r2t(&mut host, 65536)?;
        for is_left in [0, 1] {
            let entry = Entry::new(0x08, host.admin.cid(), 0).word(40, u32::from(cid) << 16 | 1);
            let found = host.admin.call(&entry, &[])?.good()?.result;
            ensure!(found & 1 == is_left, "an Abort is answered with {found:x}h");
        }
        // The host still has to send the requested data.
        host.io.send(&h2c_data(cid, r2t.short(10), 0, &[9; 65536], LAST, NONE))?;
        let found = host.io.wait_completion(cid, &[])?.status;
        ensure!(found == ABORTED, "the aborted write ended with status {found:03x}h");
        ensure!(host.read(HOSTILE_NAMESPACE, 0, 1)? != [9; 512], "the data of the aborted write was written");
    }
    Ok(())
}

fn beyond_entries(fixture: &mut Fixture) -> Result<()> {
    let mut host = fixture.host(NONE)?;
    // Writes that wait for their data stay in progress.
    for cid in 0..129 {
        let entry = Entry::new(1, cid, HOSTILE_NAMESPACE).blocks(0, 16).sgl(TRANSPORT, 8192);
        if host.io.send(&capsule(&entry, &[], NONE)).is_err() {
            break;
        }
    }
    expect_termination(&mut host.io, fatal::SEQUENCE)
}

fn same_identifier(fixture: &mut Fixture) -> Result<()> {
    const CONFLICT: u16 = 0x003;
    let mut host = fixture.host(NONE)?;
    let (cid, r2t) = write_with_r2t(&mut host, 8192)?;
    let again = Entry::new(2, cid, HOSTILE_NAMESPACE).blocks(0, 1).sgl(TRANSPORT, 512);
    let found = host.io.call(&again, &[])?.status;
    ensure!(found == CONFLICT, "status {found:03x}h");
    host.io.send(&h2c_data(cid, r2t.short(10), 0, &[5; 8192], LAST, NONE))?;
    host.io.wait_completion(cid, &[])?.good().map(drop)
}

fn reads_untaken(fixture: &mut Fixture) -> Result<()> {
    let mut hosts = Vec::new();
    for _ in 0..8 {
        let mut host = fixture.host(NONE)?;
        for cid in 0..127 {
            let entry = Entry::new(2, cid, HOSTILE_NAMESPACE).blocks(0, 2048).sgl(TRANSPORT, 1 << 20);
            host.io.send(&capsule(&entry, &[], NONE))?;
        }
        hosts.push(host);
    }
    // Gives the target time to read as much as it may into memory.
    std::thread::sleep(Duration::from_secs(2));
    // A slow reader receives all data in time.
    let mut slow = fixture.host(NONE)?;
    set_socket_recv_buffer_size(&slow.io.stream, 128 << 10)?;
    let before = Instant::now();
    for _ in 0..16 {
        slow.read(HOSTILE_NAMESPACE, 0, 2048)?;
        std::thread::sleep(Duration::from_millis(5));
    }
    ensure!(before.elapsed() < ANSWER_LIMIT, "16 MiB take {:.1} s", before.elapsed().as_secs_f64());
    Ok(())
}

fn answers_untaken(fixture: &mut Fixture) -> Result<()> {
    let mut host = fixture.host(NONE)?;
    host.admin.stream.set_write_timeout(Some(Duration::from_millis(500)))?;
    let unknown = capsule(&Entry::new(0xfe, 1, 0), &[], NONE).repeat(128);
    for _ in 0..(1 << 30) / unknown.len() {
        if host.admin.send(&unknown).is_err() {
            return Ok(());
        }
    }
    bail!("a gigabyte of commands was received although no completion was read")
}

fn writes_without_data(fixture: &mut Fixture) -> Result<()> {
    let mut hosts = Vec::new();
    for _ in 0..32 {
        let mut host = fixture.host(NONE)?;
        for cid in 0..127 {
            let entry = Entry::new(1, cid, HOSTILE_NAMESPACE).blocks(0, 2048).sgl(TRANSPORT, 1 << 20);
            host.io.send(&capsule(&entry, &[], NONE))?;
        }
        hosts.push(host);
    }
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

/// A host that connects while others hold their commands back, and reads and writes without an error and in time.
fn neighbour_is_well(fixture: &Fixture) -> Result<()> {
    let begun = Instant::now();
    let mut neighbour = Host::open(fixture.portal, NQN, "nqn.2026-01.io.lunar:neighbour", NONE)?;
    for round in 0..100 {
        write_and_read(&mut neighbour, round).context("the neighbour")?;
    }
    let took = begun.elapsed();
    ensure!(took < ANSWER_LIMIT, "200 writes and reads of the neighbour take {:.1} s", took.as_secs_f64());
    Ok(())
}

/// Hosts with a full queue of this command each. They have the address of the neighbour, so all share the part of one
/// host.
fn full_queues(fixture: &Fixture, count: usize, opcode: u8) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for _ in 0..count {
        let mut host = fixture.host(NONE)?;
        for cid in 0..127 {
            let entry = Entry::new(opcode, cid, HOSTILE_NAMESPACE).blocks(0, 256).sgl(TRANSPORT, 128 << 10);
            host.io.send(&capsule(&entry, &[], NONE))?;
        }
        hosts.push(host);
    }
    std::thread::sleep(Duration::from_millis(500));
    Ok(hosts)
}

fn neighbour_of_unread_reads(fixture: &mut Fixture) -> Result<()> {
    // However the connections are divided among the cores, they queue more than the part of their address.
    let _hosts = full_queues(fixture, 40, 2)?;
    neighbour_is_well(fixture)
}

fn neighbour_of_unanswered_requests(fixture: &mut Fixture) -> Result<()> {
    let _hosts = full_queues(fixture, 17, 1)?;
    neighbour_is_well(fixture)
}

fn neighbour_of_long_commands(fixture: &mut Fixture) -> Result<()> {
    const BLOCKS: u32 = (64 << 20) / 512;
    let mut host = fixture.host(NONE)?;
    let range = [0_u32, BLOCKS, 0, 0].map(u32::to_le_bytes).concat();
    for cid in 0..100 {
        let entry = Entry::new(9, cid, HOSTILE_NAMESPACE).word(40, 255).word(44, 4).sgl(INLINE, 4096);
        host.io.send(&capsule(&entry, &range.repeat(256), NONE))?;
    }
    neighbour_is_well(fixture)?;
    for _ in 0..100 {
        let done = host.io.expect()?;
        ensure!(done.kind() == kind::RESPONSE && done.short(22) >> 1 == 0, "{:02x?}", done.head);
    }
    Ok(())
}

fn half_capsules(fixture: &mut Fixture) -> Result<()> {
    let entry = Entry::new(1, 3, HOSTILE_NAMESPACE).blocks(0, 16).sgl(INLINE, 8192);
    let whole = capsule(&entry, &[7; 8192], BOTH);
    let mut held = Vec::new();
    for cut in [1, 7, 8, 40, 72, 75, 76, 77, 4000, whole.len() - 5, whole.len() - 1] {
        let mut host = fixture.host(BOTH)?;
        host.io.send(&whole[..cut])?;
        match host.io.receive(SILENCE)? {
            Received::Silence => held.push(host),
            other => bail!("{cut} bytes of a capsule: {other:?}"),
        }
    }
    Ok(())
}

/// Commands of an I/O queue keep a controller alive (NVMe Base 2.1 3.9.2), even if its admin queue is silent. Several
/// hosts, because two queues may or may not share a core.
fn silent_queues(fixture: &mut Fixture) -> Result<()> {
    let patience = Duration::from_secs(8);
    let connect = Connect { keep_alive: u32::try_from(patience.as_millis())?, ..fixture.connect() };
    let hosts: Result<Vec<Host>> = (0..6).map(|_| Host::connected(fixture.portal, &connect, NONE)).collect();
    let mut hosts = hosts?;
    // Until the next check of these queues is after the end of the keep alive timeout.
    std::thread::sleep(patience * 5 / 8);
    let end = Instant::now() + patience * 3 / 2;
    while Instant::now() < end {
        for host in &mut hosts {
            host.read(NAMESPACE, LBA, 8).context("a controller with I/O commands was ended")?;
        }
        std::thread::sleep(patience / 8);
    }
    let silent = Instant::now();
    for host in &mut hosts {
        match host.admin.receive(patience * 2)? {
            Received::Closed => {}
            other => bail!("a silent controller does not end, but sends {other:?}"),
        }
    }
    ensure!(
        silent.elapsed() > patience / 2,
        "silent controllers ended {:?} after their last commands",
        silent.elapsed()
    );
    Ok(())
}

/// Controllers end with their connections: any number one after the other, and many at the same time.
fn connect_flood(fixture: &mut Fixture) -> Result<()> {
    const AT_ONCE: usize = 200;
    let data = fixture.connect().data();
    let bytes = [ic_req(NONE), capsule(&fixture.connect().entry(1), &data, NONE)].concat();
    // Without waiting for the completion.
    for _ in 0..2000 {
        fixture.conn()?.send(&bytes)?;
    }
    let mut held = Vec::new();
    for _ in 0..AT_ONCE {
        let mut conn = fixture.ready()?;
        if fixture.connect().execute(&mut conn)?.status == 0 {
            held.push(conn);
        }
    }
    ensure!(held.len() == AT_ONCE, "{} of {AT_ONCE} controllers", held.len());
    // Connections that send nothing, and a connection whose Connect is refused again and again.
    let idle: Vec<Conn> = (0..500).map(|_| fixture.conn()).collect::<Result<_>>()?;
    let mut refused = fixture.ready()?;
    for _ in 0..1000 {
        let wrong = Connect { subsystem: "nqn.2026-01.io.lunar:other", ..fixture.connect() };
        ensure!(
            wrong.execute(&mut refused)?.status == status::PARAMETERS,
            "Connect ends with another status than before"
        );
    }
    drop(idle);
    Ok(())
}

fn random_bytes(fixture: &mut Fixture) -> Result<()> {
    for round in 0..200_u64 {
        let mut host = fixture.host(if round % 2 == 0 { NONE } else { BOTH })?;
        let mut bytes = Vec::new();
        for _ in 0..1 + fixture.random.below(4) {
            let count = 1 + fixture.random.below(300) as usize;
            let mut entry = Entry([0; 64]);
            entry.0.copy_from_slice(&fixture.random.bytes(64));
            match fixture.random.below(3) {
                0 => bytes.extend(fixture.random.bytes(count)),
                1 => bytes.extend(capsule(&entry, &fixture.random.bytes(count), host.io.digests)),
                _ => {
                    let data = fixture.random.bytes(count);
                    bytes.extend(h2c_data(fixture.random.byte().into(), 1, 0, &data, LAST, host.io.digests));
                }
            }
        }
        let conn = if fixture.random.below(2) == 0 { &mut host.io } else { &mut host.admin };
        // The controller may close before all bytes are sent.
        let _ = conn.send(&bytes);
        let _ = conn.receive(Duration::from_millis(2));
    }
    Ok(())
}
