//! iSCSI: attackers that send PDUs without the checks of the harness's initiator.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};

use super::scsi_commands::{CHECKED, Payload, command, unit};
use super::transport::{
    Attacker, Held, RECEIVE_LIMIT, Request, Source, Stage, Transport, Victim, impatient, tcp, volume,
};
use crate::copies;
use crate::pdu::{Connection, Digests, FINAL, IMMEDIATE, Pdu, RESERVED_TAG, Received, op};
use crate::session::{Login, Session, cdb};
use crate::test_data::pattern;

/// Commands of an attacker in progress: the usual command window.
const COMMANDS: usize = 128;
/// Immediate requests of an attacker in progress, if it reads the answers.
const IMMEDIATES: usize = 16;
/// Bytes of a NOP-Out.
const PING_BYTES: usize = 4096;

pub(super) struct Iscsi {
    pub(super) portal: SocketAddr,
    pub(super) target: String,
}

impl Iscsi {
    fn login(&self, name: &str, number: u16) -> Login {
        Login::to(&self.target, name).qualifier(number)
    }

    fn connect(&self, from: Source) -> Result<Connection> {
        Connection::over(tcp(from, self.portal)?)
    }

    fn discovery(number: u16) -> Login {
        let mut login = Login::to("", &format!("stranger{number}"));
        login.target = None;
        login
    }
}

impl Transport for Iscsi {
    fn name(&self) -> &'static str {
        "iSCSI"
    }

    fn has_request(&self, request: Request) -> bool {
        let has_form_of_its_own = matches!(
            request,
            Request::ShortWrite
                | Request::LongWrite
                | Request::AnnouncedWrite
                | Request::OutOfOrderWrite
                | Request::Abort
                | Request::Ping
        );
        // Data that is sent at once has no request of its own here, and there are no scatter lists.
        let is_of_guests = matches!(request, Request::Write | Request::ScatteredRead);
        has_form_of_its_own || !is_of_guests && command(request, 0, &[]).is_some()
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
        let mut session = Session::ready(self.portal, &self.login("victim", 1), volume::VICTIM)?;
        session.write(0, pattern(0, 1, 4096), 512)?;
        Ok(Box::new(session))
    }

    fn visit(&self) -> Result<()> {
        let mut session = Session::ready(self.portal, &self.login("visitor", 1), volume::VICTIM)?;
        session.read(0, 8, 512)?;
        session.logout()
    }

    fn attacker(&self, from: Source, number: u16, request: Request) -> Result<Box<dyn Attacker>> {
        let mut session = Session::over(self.connect(from)?, &self.login("attacker", number))?;
        impatient(&session.connection.stream)?;
        session.lun = unit(request);
        let names = if request == Request::Copy { copies::descriptor(&mut session)? } else { Vec::new() };
        if request == Request::OutOfOrderWrite {
            session.cmd_sn = session.cmd_sn.wrapping_add(1);
        }
        Ok(Box::new(IscsiAttacker { session, request, names, sent: 0, in_progress: 0 }))
    }

    fn connection(&self, from: Source, number: u16, stage: Stage) -> Result<Held> {
        let mut connection = self.connect(from)?;
        match stage {
            Stage::Open => {}
            Stage::HalfRequest => {
                let bytes = self.login("attacker", number).request().encode(Digests::default());
                connection.send_raw(&bytes[..bytes.len() / 2])?;
            }
            Stage::Discovery => return Ok(Box::new(Session::over(connection, &Self::discovery(number))?)),
            Stage::LoggedIn | Stage::Vanished => {
                return Ok(Box::new(Session::over(connection, &self.login("attacker", number))?));
            }
        }
        Ok(Box::new(connection))
    }
}

impl Victim for Session {
    fn read(&mut self) -> Result<()> {
        let data = Self::read(self, 0, 8, 512)?;
        ensure!(data == pattern(0, 1, 4096), "other data than was written");
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        Self::write(self, 8, pattern(8, 2, 4096), 512)
    }

    fn write_long(&mut self) -> Result<()> {
        Self::write(self, 2048, pattern(2048, 3, 1 << 20), 512)
    }
}

struct IscsiAttacker {
    session: Session,
    request: Request,
    /// The CSCD descriptor of the unit, for copies.
    names: Vec<u8>,
    sent: u32,
    in_progress: usize,
}

impl Attacker for IscsiAttacker {
    fn has_room(&self) -> bool {
        match self.request {
            Request::Abort => self.in_progress < IMMEDIATES,
            // An attacker that does not read the answers fills the connection.
            Request::Ping => self.in_progress < COMMANDS,
            _ => {
                let window = self.session.max_cmd_sn.wrapping_sub(self.session.cmd_sn).wrapping_add(1) as i32;
                window > 0 && self.in_progress < COMMANDS
            }
        }
    }

    fn send(&mut self) -> Result<()> {
        let pdu = self.pdu();
        (self.sent, self.in_progress) = (self.sent.wrapping_add(1), self.in_progress + 1);
        self.session.connection.send(&pdu)
    }

    fn receive(&mut self) -> Result<()> {
        let pdu = match self.session.connection.receive(RECEIVE_LIMIT)? {
            Received::Pdu(pdu) => pdu,
            Received::Silence => return Ok(()),
            Received::Closed => bail!("the target closed the connection"),
        };
        self.session.max_cmd_sn = pdu.get(32);
        let has_status = match pdu.opcode() {
            op::RESPONSE | op::TASK_RESPONSE | op::REJECT => true,
            op::DATA_IN => pdu.head[1] & 0x01 != 0,
            op::NOP_IN if pdu.get(20) == RESERVED_TAG => true,
            op::NOP_IN => {
                let answer = Pdu::new(op::NOP_OUT | IMMEDIATE, FINAL).tag(RESERVED_TAG).word(20, pdu.get(20));
                let answer = answer.word(24, self.session.cmd_sn).word(28, self.session.exp_stat_sn);
                self.session.connection.send(&answer)?;
                false
            }
            _ => false,
        };
        if has_status {
            self.session.exp_stat_sn = pdu.get(24).wrapping_add(1);
            self.in_progress = self.in_progress.saturating_sub(1);
        }
        Ok(())
    }
}

impl IscsiAttacker {
    fn pdu(&mut self) -> Pdu {
        match self.request {
            Request::ShortWrite => self.session.command(&cdb::write(64, 8), 0x20, 4096),
            Request::LongWrite => self.session.command(&cdb::write(64, 2048), 0x20, 1 << 20),
            Request::AnnouncedWrite | Request::OutOfOrderWrite => {
                let mut pdu = self.session.command(&cdb::write(64, 128), 0x20, 65_536);
                pdu.head[1] &= !FINAL;
                pdu
            }
            Request::Abort => self.task_management(),
            Request::Ping => {
                let tag = self.session.tag();
                let nop = Pdu::new(op::NOP_OUT | IMMEDIATE, FINAL).tag(tag).word(20, RESERVED_TAG);
                let nop = nop.word(24, self.session.cmd_sn).word(28, self.session.exp_stat_sn);
                nop.with_data(vec![1; PING_BYTES])
            }
            request => self.of_command_set(request),
        }
    }

    /// A command that other transports of SCSI have as well. Its data is sent as immediate data.
    fn of_command_set(&mut self, request: Request) -> Pdu {
        let made = command(request, self.sent, &self.names).expect("no other request is sent");
        match made.payload {
            Payload::None => self.session.command(&made.cdb, 0, 0),
            Payload::In(len) => self.session.command(&made.cdb, 0x40, len as usize),
            Payload::Zeroes(len) => self.session.command(&made.cdb, 0x20, len as usize),
            Payload::Out(data) => self.session.command(&made.cdb, 0x20, data.len()).with_data(data),
        }
    }

    /// ABORT TASK, ABORT TASK SET, CLEAR TASK SET and LOGICAL UNIT RESET.
    fn task_management(&mut self) -> Pdu {
        let function = [1, 2, 4, 5][self.sent as usize % 4];
        let tag = self.session.tag();
        let pdu = Pdu::new(op::TASK_REQUEST | IMMEDIATE, FINAL | function).lun(self.session.lun).tag(tag);
        let pdu = pdu.word(20, tag.wrapping_sub(1)).word(24, self.session.cmd_sn).word(28, self.session.exp_stat_sn);
        pdu.word(32, self.session.cmd_sn)
    }
}

/// The commands of an attacker must not be refused for their form: each is sent alone, and ends with GOOD.
pub(super) fn check_forms(iscsi: &Iscsi) -> Result<()> {
    for request in CHECKED {
        check_form(iscsi, request).with_context(|| format!("{request:?}"))?;
    }
    Ok(())
}

fn check_form(iscsi: &Iscsi, request: Request) -> Result<()> {
    let mut session = Session::ready(iscsi.portal, &iscsi.login("form", 1), unit(request))?;
    let names = if request == Request::Copy { copies::descriptor(&mut session)? } else { Vec::new() };
    let mut attacker = IscsiAttacker { session, request, names, sent: 0, in_progress: 0 };
    let pdu = attacker.pdu();
    attacker.session.connection.send(&pdu)?;
    loop {
        let answer = attacker.session.connection.expect(crate::session::ANSWER_LIMIT)?;
        match answer.opcode() {
            op::RESPONSE => ensure!(answer.head[3] == 0, "status {:02x}h, {:02x?}", answer.head[3], answer.data),
            op::DATA_IN if answer.head[1] & 1 == 0 => continue,
            op::DATA_IN => ensure!(answer.head[3] == 0, "status {:02x}h", answer.head[3]),
            other => bail!("opcode {other:02x}h"),
        }
        return Ok(());
    }
}
