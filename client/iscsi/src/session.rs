//! The initiator's side of an iSCSI session with one connection at error recovery level 0: takes received bytes, gives
//! events and bytes to send. It has no socket and no clock.
//!
//! The caller sends the bytes of [`Session::output`], passes received bytes to [`Session::receive`], and starts
//! commands with [`Session::submit`] while [`Session::room`] is not 0. Data of reads is passed on in place as it
//! arrives; data of writes is referenced until it is sent. After an error the session cannot be used any more.

use crate::Error;
use crate::config::{Agreed, Offer, SEGMENT_DEFAULT};
use crate::frame::{Framer, Framing, Sink};
use crate::login::{Login, Next, Request};
use crate::output::Output;
use crate::task::{Kind, Task, Tasks};
pub use lunar_core::outgoing::Moves;
use lunar_core::outgoing::{Data, Outgoing};
use lunar_iscsi::wire::{
    AsyncEvent, AsyncMessage, Bhs, CONTINUE, DataIn, DataOut, FINAL, First, Function, FunctionResponse, LoginRequest,
    LoginResponse, LogoutRequest, LogoutResponse, NO_TAG, NopIn, NopOut, OVERFLOW, Opcode, Pdu, R2t, READ, Reject,
    RejectReason, Response, STATUS, ScsiCommand, ScsiResponse, TaskManagementRequest, TaskManagementResponse,
    TextRequest, TextResponse, U24, UNDERFLOW, WRITE, extended_cdb, login_flags,
};
use zerocopy::FromZeros;
use zerocopy::big_endian::U32;

/// CmdSN of the first command. Not 0, so that a CmdSN that was left out of a PDU is noticed.
const FIRST_CMD_SN: u32 = 1;
/// The longest data segment that is buffered, in bytes: sense data, text, rejected headers. Data-In is not buffered.
const SEGMENT_KEPT_MAX: usize = 256 << 10;
/// The longest text response, over all its PDUs, in bytes: 4096 targets with names of the greatest length.
const TEXT_MAX: usize = 2 << 20;
/// NOP-Out replies that may wait to be sent. A target that sends a NOP-In every few seconds sends as many in an hour;
/// the limit keeps a target that sends NOP-Ins and reads nothing from filling the memory.
const PINGS_MAX: u32 = 1024;
/// Task attribute SIMPLE (11.3.1).
const SIMPLE: u8 = 1;

/// A SCSI command to start.
#[derive(Clone, Debug)]
pub struct Command<'a> {
    /// Identifies the command in its events.
    pub cookie: u32,
    /// The LUN field, see [`crate::cdb::lun`].
    pub lun: [u8; 8],
    /// The CDB, 6 to 260 bytes.
    pub cdb: &'a [u8],
    /// Direction, length and data.
    pub moves: Moves,
}

/// The residual count of a command (11.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residual {
    /// The command transferred the expected length.
    None,
    /// Underflow: so many bytes of the expected length were not transferred.
    Under(u32),
    /// Overflow: so many bytes beyond the expected length were not transferred.
    Over(u32),
}

/// An event of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// The session is in the full feature phase: commands may start.
    LoggedIn,
    /// Data of a read. The pieces of a command arrive in order.
    Data {
        /// The cookie of the command.
        cookie: u32,
        /// The offset within the data of the command, in bytes.
        offset: u32,
        /// The bytes, in the receive buffer.
        bytes: &'a [u8],
    },
    /// A command ended.
    Done {
        /// The cookie of the command.
        cookie: u32,
        /// The iSCSI response code (11.4.3); the status is valid if it is `COMPLETED`.
        response: Response,
        /// The SCSI status (SAM-6 5.3).
        status: u8,
        /// The residual count.
        residual: Residual,
        /// Sense data; empty if there is none.
        sense: &'a [u8],
    },
    /// A task management function ended.
    FunctionDone {
        /// The cookie of the function.
        cookie: u32,
        /// The response code (11.6.1).
        response: FunctionResponse,
    },
    /// The response to [`Session::discover`]: pairs of TargetName and TargetAddress, each ended by a NUL.
    Targets(&'a [u8]),
    /// The target rejected a PDU (11.17). If the PDU was a command, the command ended.
    Rejected {
        /// The reason code.
        reason: RejectReason,
        /// The cookie of the command that ended.
        cookie: Option<u32>,
    },
    /// An asynchronous message (11.9).
    Async(AsyncEvent),
    /// The target acknowledged the logout: the connection may be closed.
    LoggedOut,
}

/// A request cannot start now: the login is not complete, or the command window is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotNow;

/// An iSCSI session of the initiator.
#[derive(Debug)]
pub struct Session {
    framer: Framer,
    core: Core,
}

#[derive(Debug)]
enum Phase {
    Login(Option<Login>),
    FullFeature,
    LoggedOut,
}

#[derive(Debug)]
struct Core {
    phase: Phase,
    offer_segment: u32,
    isid: [u8; 6],
    tsih: u16,
    agreed: Agreed,
    tasks: Tasks,
    output: Output,
    /// The data segment that is being received, unless it is Data-In.
    segment: Vec<u8>,
    /// The text response so far.
    text: Vec<u8>,
    cmd_sn: u32,
    max_cmd_sn: u32,
    exp_stat_sn: u32,
    /// Whether a login response has set the first StatSN.
    stat_sn_known: bool,
    /// NOP-Ins answered since the output was last empty.
    pings: u32,
}

impl Session {
    /// Creates a session. Its first login request is in the output.
    #[must_use]
    pub fn new(offer: Offer) -> Self {
        let (isid, offer_segment) = (offer.isid, offer.max_recv_data_segment_length);
        let (login, request) = Login::start(offer);
        let framing = Framing { header_digest: false, data_digest: false, segment_max: SEGMENT_DEFAULT as usize };
        let mut core = Core {
            phase: Phase::Login(Some(login)),
            offer_segment,
            isid,
            tsih: 0,
            agreed: Agreed::default(),
            tasks: Tasks::default(),
            output: Output::default(),
            segment: Vec::new(),
            text: Vec::new(),
            cmd_sn: FIRST_CMD_SN,
            max_cmd_sn: FIRST_CMD_SN,
            exp_stat_sn: 0,
            stat_sn_known: false,
            pings: 0,
        };
        core.login_request(&request);
        Self { framer: Framer::new(framing), core }
    }

    /// The negotiated parameters; the defaults before the login is complete.
    #[must_use]
    pub fn agreed(&self) -> &Agreed {
        &self.core.agreed
    }

    /// The bytes to send.
    #[must_use]
    pub fn output(&self) -> &Outgoing {
        self.core.output.queue()
    }

    /// Removes the first `count` bytes of the output, which were sent.
    pub fn sent(&mut self, count: usize) {
        self.core.output.sent(count);
        if self.core.output.queue().is_empty() {
            self.core.pings = 0;
        }
    }

    /// The number of commands that may start now: the open part of the command window.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.core.room()
    }

    /// The number of commands and functions that are outstanding.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.core.tasks.len()
    }

    /// Starts a SCSI command.
    ///
    /// # Errors
    /// [`NotNow`] if [`Session::room`] is 0.
    pub fn submit(&mut self, command: Command<'_>) -> Result<(), NotNow> {
        self.core.submit(command)
    }

    /// Starts a task management function (11.5) with immediate delivery. `task` is the cookie of the referenced
    /// command.
    ///
    /// # Errors
    /// [`NotNow`] if the login is not complete, or if no command has the cookie `task`.
    pub fn manage_task(
        &mut self,
        cookie: u32,
        function: Function,
        lun: [u8; 8],
        task: Option<u32>,
    ) -> Result<(), NotNow> {
        self.core.manage_task(cookie, function, lun, task)
    }

    /// Requests the list of all targets (SendTargets, appendix C).
    ///
    /// # Errors
    /// [`NotNow`] if [`Session::room`] is 0.
    pub fn discover(&mut self) -> Result<(), NotNow> {
        self.core.text_request(NO_TAG, [0; 8], b"SendTargets=All\0")
    }

    /// Requests the logout of the session.
    ///
    /// # Errors
    /// [`NotNow`] if [`Session::room`] is 0.
    pub fn log_out(&mut self) -> Result<(), NotNow> {
        self.core.log_out()
    }

    /// Takes all received `bytes` and calls `on` for each event.
    ///
    /// # Errors
    /// Why the session ended.
    pub fn receive(&mut self, bytes: &[u8], on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        self.framer.feed(bytes, &mut Feed { core: &mut self.core, on })
    }
}

struct Feed<'s, F> {
    core: &'s mut Core,
    on: &'s mut F,
}

impl<F: FnMut(Event<'_>)> Sink for Feed<'_, F> {
    fn data(&mut self, header: &Bhs, at: usize, bytes: &[u8]) -> Result<(), Error> {
        match header.as_pdu::<DataIn>() {
            Some(pdu) => {
                let (cookie, offset) = self.core.data_in(pdu, at, bytes.len())?;
                (self.on)(Event::Data { cookie, offset, bytes });
            }
            None if self.core.segment.len() + bytes.len() > SEGMENT_KEPT_MAX => {
                return Err(Error::Protocol("the data segment of a PDU other than Data-In is too long"));
            }
            None => self.core.segment.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn end(&mut self, header: &Bhs, framing: &mut Framing) -> Result<(), Error> {
        if header.opcode() == Opcode::DATA_IN {
            return self.core.data_in_end(DataIn::of(header), self.on);
        }
        let segment = std::mem::take(&mut self.core.segment);
        self.core.pdu(header, &segment, framing, self.on)?;
        self.core.segment = segment;
        self.core.segment.clear();
        Ok(())
    }
}

/// Whether `a` is after `b` in serial number arithmetic (RFC 1982, 32 bits).
fn is_after(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}

fn residual(flags: u8, count: u32) -> Residual {
    match flags & (OVERFLOW | UNDERFLOW) {
        OVERFLOW => Residual::Over(count),
        UNDERFLOW => Residual::Under(count),
        _ => Residual::None,
    }
}

/// The sense data in the data segment of a SCSI Response, which begins with its length (11.4.7).
fn sense(segment: &[u8]) -> &[u8] {
    let Some(([a, b], rest)) = segment.split_first_chunk() else { return &[] };
    &rest[..usize::from(u16::from_be_bytes([*a, *b])).min(rest.len())]
}

/// The error of a command with status GOOD whose transferred bytes and residual count do not add up.
fn missing_data(task: &Task, status: u8, residual: Residual) -> Option<Error> {
    let missing = match residual {
        Residual::Under(missing) => missing,
        _ => 0,
    };
    let complete = u64::from(task.moved) + u64::from(missing) == u64::from(task.expected);
    (status == 0 && matches!(task.kind, Kind::Read | Kind::Write(_)) && !complete).then_some(Error::Protocol(
        "a command ended with status GOOD, but its data and residual count do not make up the expected length",
    ))
}

impl Core {
    fn room(&self) -> u32 {
        match self.phase {
            Phase::FullFeature if !is_after(self.cmd_sn, self.max_cmd_sn) => {
                (self.max_cmd_sn.wrapping_sub(self.cmd_sn)).saturating_add(1).min(self.tasks.room())
            }
            _ => 0,
        }
    }

    /// Takes the next CmdSN if the command window is open.
    fn next_cmd_sn(&mut self) -> Result<U32, NotNow> {
        if self.room() == 0 {
            return Err(NotNow);
        }
        let cmd_sn = self.cmd_sn;
        self.cmd_sn = cmd_sn.wrapping_add(1);
        Ok(cmd_sn.into())
    }

    fn submit(&mut self, command: Command<'_>) -> Result<(), NotNow> {
        let cmd_sn = self.next_cmd_sn()?;
        let (kind, expected, flag) = match command.moves {
            Moves::Nothing => (Kind::Other, 0, 0),
            Moves::In(len) => (Kind::Read, len, READ),
            Moves::Out(data) => {
                let len = u32::try_from(data.len()).expect("the data of a command is shorter than 4 GiB");
                (Kind::Write(data), len, WRITE)
            }
        };
        let task = Task { cookie: command.cookie, kind, expected, moved: 0, sequence: 0, cmd_sn: cmd_sn.get() };
        let (itt, task) = self.tasks.add(task);
        let ahs = if command.cdb.len() > 16 { extended_cdb(command.cdb) } else { Vec::new() };
        let mut header = ScsiCommand::blank();
        let short = command.cdb.len().min(16);
        header.cdb[..short].copy_from_slice(&command.cdb[..short]);
        header.lun = command.lun;
        header.itt.set(itt);
        header.expected_len.set(expected);
        header.cmd_sn = cmd_sn;
        header.exp_stat_sn.set(self.exp_stat_sn);
        header.ahs_words = u8::try_from(ahs.len() / 4).expect("a CDB is at most 260 bytes");
        header.flags = flag | SIMPLE | FINAL;
        let Kind::Write(data) = &task.kind else {
            self.output.header(header.bhs(), &ahs);
            return Ok(());
        };
        let data = data.clone();
        let burst = self.agreed.first_burst_length.min(expected);
        let immediate = if self.agreed.immediate_data { burst.min(self.agreed.target_segment) } else { 0 };
        let unsolicited = if self.agreed.initial_r2t { immediate } else { burst };
        if unsolicited > immediate {
            header.flags &= !FINAL;
        }
        task.moved = unsolicited;
        header.data_len = U24::new(immediate as usize);
        self.output.header(header.bhs(), &ahs);
        self.output.segment(&data.part(0..immediate as usize));
        if unsolicited > immediate {
            self.data_out(itt, NO_TAG, [0; 8], &data, immediate..unsolicited);
        }
        Ok(())
    }

    /// Appends the Data-Out PDUs (11.7) for the bytes `range` of a command's data.
    fn data_out(&mut self, itt: u32, ttt: u32, lun: [u8; 8], data: &Data, range: std::ops::Range<u32>) {
        let (mut at, mut data_sn) = (range.start, 0);
        while at < range.end {
            let len = (range.end - at).min(self.agreed.target_segment);
            let mut header = DataOut::blank();
            header.flags = if at + len == range.end { FINAL } else { 0 };
            header.lun = lun;
            header.itt.set(itt);
            header.ttt.set(ttt);
            header.exp_stat_sn.set(self.exp_stat_sn);
            header.data_sn.set(data_sn);
            header.offset.set(at);
            header.data_len = U24::new(len as usize);
            self.output.header(header.bhs(), &[]);
            self.output.segment(&data.part(at as usize..(at + len) as usize));
            at += len;
            data_sn += 1;
        }
    }

    fn manage_task(&mut self, cookie: u32, function: Function, lun: [u8; 8], task: Option<u32>) -> Result<(), NotNow> {
        if !matches!(self.phase, Phase::FullFeature) || self.tasks.room() == 0 {
            return Err(NotNow);
        }
        let referenced = match task {
            Some(cookie) => self.tasks.find(cookie).ok_or(NotNow)?,
            None => (NO_TAG, 0),
        };
        let (itt, _) = self.tasks.add(Task::other(cookie, Kind::Function, self.cmd_sn));
        let mut header = TaskManagementRequest::blank();
        header.first = header.first.immediately();
        header.flags = FINAL | function.0;
        header.lun = lun;
        header.itt.set(itt);
        header.referenced_tag.set(referenced.0);
        header.ref_cmd_sn.set(referenced.1);
        header.cmd_sn.set(self.cmd_sn);
        header.exp_stat_sn.set(self.exp_stat_sn);
        self.output.header(header.bhs(), &[]);
        Ok(())
    }

    fn text_request(&mut self, ttt: u32, lun: [u8; 8], text: &[u8]) -> Result<(), NotNow> {
        let cmd_sn = self.next_cmd_sn()?;
        let (itt, _) = self.tasks.add(Task::other(0, Kind::Text, cmd_sn.get()));
        let mut header = TextRequest::blank();
        header.lun = lun;
        header.itt.set(itt);
        header.ttt.set(ttt);
        header.cmd_sn = cmd_sn;
        header.exp_stat_sn.set(self.exp_stat_sn);
        header.data_len = U24::new(text.len());
        self.output.header(header.bhs(), &[]);
        self.output.text(text);
        Ok(())
    }

    fn log_out(&mut self) -> Result<(), NotNow> {
        let cmd_sn = self.next_cmd_sn()?;
        let (itt, _) = self.tasks.add(Task::other(0, Kind::Logout, cmd_sn.get()));
        // Reason code 0: close the session (11.14.1).
        let mut header = LogoutRequest::blank();
        header.itt.set(itt);
        header.cmd_sn = cmd_sn;
        header.exp_stat_sn.set(self.exp_stat_sn);
        self.output.header(header.bhs(), &[]);
        Ok(())
    }

    fn login_request(&mut self, request: &Request) {
        let mut header = LoginRequest::new_zeroed();
        header.first = First::new(Opcode::LOGIN_REQUEST).immediately();
        header.flags = login_flags(request.stage, request.transit);
        header.isid = self.isid;
        header.tsih.set(self.tsih);
        header.cmd_sn.set(self.cmd_sn);
        header.exp_stat_sn.set(self.exp_stat_sn);
        header.data_len = U24::new(request.text.len());
        self.output.header(header.bhs(), &[]);
        self.output.text(&request.text);
    }

    /// Updates the command window from MaxCmdSN, which every PDU of the target carries (4.2.2.1).
    fn update_window(&mut self, max_cmd_sn: U32) {
        if is_after(max_cmd_sn.get(), self.max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn.get();
        }
    }

    /// Checks that a StatSN is the next one, and advances ExpStatSN.
    fn check_stat_sn(&mut self, stat_sn: U32) -> Result<(), Error> {
        if self.stat_sn_known && stat_sn.get() != self.exp_stat_sn {
            return Err(Error::Protocol("a StatSN is not the next one"));
        }
        self.stat_sn_known = true;
        self.exp_stat_sn = stat_sn.get().wrapping_add(1);
        Ok(())
    }

    /// Accounts for `len` bytes at offset `at` of a Data-In segment. Returns the command's cookie and the offset within
    /// its data.
    fn data_in(&mut self, pdu: &DataIn, at: usize, len: usize) -> Result<(u32, u32), Error> {
        let task = self.tasks.get(pdu.itt.get())?;
        if !matches!(task.kind, Kind::Read) {
            return Err(Error::Protocol("Data-In for a task that is not a read"));
        }
        let at = u32::try_from(at).expect("a segment is less than 16 MiB");
        let len = u32::try_from(len).expect("a segment is less than 16 MiB");
        let offset = pdu.offset.get().checked_add(at).filter(|offset| *offset == task.moved);
        let Some(offset) = offset else { return Err(Error::Protocol("Data-In is not in order")) };
        if len > task.expected - task.moved {
            return Err(Error::Protocol("Data-In exceeds the expected data transfer length"));
        }
        task.moved += len;
        Ok((task.cookie, offset))
    }

    fn data_in_end(&mut self, pdu: &DataIn, on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        if !matches!(self.phase, Phase::FullFeature) {
            return Err(Error::Protocol("Data-In during the login"));
        }
        self.update_window(pdu.max_cmd_sn);
        let task = self.tasks.get(pdu.itt.get())?;
        if !matches!(task.kind, Kind::Read) {
            return Err(Error::Protocol("Data-In for a task that is not a read"));
        }
        if pdu.data_sn.get() != task.sequence {
            return Err(Error::Protocol("a DataSN is not the next one"));
        }
        task.sequence = task.sequence.wrapping_add(1);
        if pdu.flags & STATUS == 0 {
            return Ok(());
        }
        self.check_stat_sn(pdu.stat_sn)?;
        let task = self.tasks.remove(pdu.itt.get())?;
        let residual = residual(pdu.flags, pdu.residual.get());
        if let Some(error) = missing_data(&task, pdu.status, residual) {
            return Err(error);
        }
        on(Event::Done {
            cookie: task.cookie,
            response: Response::COMPLETED,
            status: pdu.status,
            residual,
            sense: &[],
        });
        Ok(())
    }

    /// Handles a complete PDU other than Data-In.
    fn pdu(
        &mut self,
        header: &Bhs,
        segment: &[u8],
        framing: &mut Framing,
        on: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Error> {
        if let Phase::Login(login) = &mut self.phase {
            let login = login.take();
            return self.login_response(login, header, segment, framing, on);
        }
        match header.opcode() {
            Opcode::SCSI_RESPONSE => self.response(ScsiResponse::of(header), segment, on),
            Opcode::R2T => self.r2t(R2t::of(header)),
            Opcode::NOP_IN => self.nop_in(NopIn::of(header)),
            Opcode::TASK_MANAGEMENT_RESPONSE => self.function_response(TaskManagementResponse::of(header), on),
            Opcode::TEXT_RESPONSE => self.text_response(TextResponse::of(header), segment, on),
            Opcode::LOGOUT_RESPONSE => self.logout_response(LogoutResponse::of(header), on),
            Opcode::REJECT => self.reject(Reject::of(header), segment, on),
            Opcode::ASYNC_MESSAGE => {
                let pdu = AsyncMessage::of(header);
                self.update_window(pdu.max_cmd_sn);
                self.check_stat_sn(pdu.stat_sn)?;
                on(Event::Async(pdu.event));
                Ok(())
            }
            _ => Err(Error::Protocol("a PDU with an operation code that targets do not send")),
        }
    }

    fn login_response(
        &mut self,
        login: Option<Login>,
        header: &Bhs,
        segment: &[u8],
        framing: &mut Framing,
        on: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Error> {
        let (Some(pdu), Some(login)) = (header.as_pdu::<LoginResponse>(), login) else {
            return Err(Error::Protocol("a PDU other than a login response during the login"));
        };
        // A response that refuses the login may carry any StatSN (11.13.4).
        if pdu.status.get() == 0 {
            self.check_stat_sn(pdu.stat_sn)?;
        }
        match login.handle(pdu, segment)? {
            Next::Send(login, request) => {
                self.login_request(&request);
                self.phase = Phase::Login(Some(login));
            }
            Next::Done(agreed) => {
                self.tsih = pdu.tsih.get();
                self.max_cmd_sn = pdu.max_cmd_sn.get();
                *framing = Framing {
                    header_digest: agreed.header_digest,
                    data_digest: agreed.data_digest,
                    segment_max: self.offer_segment as usize,
                };
                (self.output.header_digest, self.output.data_digest) = (agreed.header_digest, agreed.data_digest);
                self.agreed = agreed;
                self.phase = Phase::FullFeature;
                on(Event::LoggedIn);
            }
        }
        Ok(())
    }

    fn response(&mut self, pdu: &ScsiResponse, segment: &[u8], on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        self.update_window(pdu.max_cmd_sn);
        self.check_stat_sn(pdu.stat_sn)?;
        let task = self.tasks.remove(pdu.itt.get())?;
        if !matches!(task.kind, Kind::Read | Kind::Write(_) | Kind::Other) {
            return Err(Error::Protocol("a SCSI Response for a task that is not a command"));
        }
        let residual = residual(pdu.flags, pdu.residual.get());
        if pdu.response == Response::COMPLETED
            && let Some(error) = missing_data(&task, pdu.status, residual)
        {
            return Err(error);
        }
        let (cookie, response, status) = (task.cookie, pdu.response, pdu.status);
        on(Event::Done { cookie, response, status, residual, sense: sense(segment) });
        Ok(())
    }

    fn r2t(&mut self, pdu: &R2t) -> Result<(), Error> {
        self.update_window(pdu.max_cmd_sn);
        let (offset, len) = (pdu.offset.get(), pdu.desired_len.get());
        let task = self.tasks.get(pdu.itt.get())?;
        let Kind::Write(data) = &task.kind else {
            return Err(Error::Protocol("an R2T for a task that is not a write"));
        };
        if pdu.r2t_sn.get() != task.sequence {
            return Err(Error::Protocol("an R2TSN is not the next one"));
        }
        // DataSequenceInOrder=Yes: an R2T continues where the previous sequence ended.
        if offset != task.moved || len == 0 || len > task.expected - offset || len > self.agreed.max_burst_length {
            return Err(Error::Protocol("an R2T requests an invalid range"));
        }
        task.moved += len;
        task.sequence = task.sequence.wrapping_add(1);
        let (data, lun) = (data.clone(), pdu.lun);
        self.data_out(pdu.itt.get(), pdu.ttt.get(), lun, &data, offset..offset + len);
        Ok(())
    }

    fn nop_in(&mut self, pdu: &NopIn) -> Result<(), Error> {
        self.update_window(pdu.max_cmd_sn);
        if pdu.itt.get() != NO_TAG {
            return Err(Error::Protocol("a NOP-In has an initiator task tag, but no NOP-Out is outstanding"));
        }
        if pdu.ttt.get() == NO_TAG {
            return Ok(());
        }
        if self.pings == PINGS_MAX {
            return Err(Error::Protocol("too many NOP-Ins whose replies the target did not read"));
        }
        self.pings += 1;
        let mut header = NopOut::blank();
        header.first = header.first.immediately();
        header.lun = pdu.lun;
        header.itt.set(NO_TAG);
        header.ttt = pdu.ttt;
        header.cmd_sn.set(self.cmd_sn);
        header.exp_stat_sn.set(self.exp_stat_sn);
        self.output.header(header.bhs(), &[]);
        Ok(())
    }

    fn function_response(&mut self, pdu: &TaskManagementResponse, on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        self.update_window(pdu.max_cmd_sn);
        self.check_stat_sn(pdu.stat_sn)?;
        let task = self.tasks.remove(pdu.itt.get())?;
        if !matches!(task.kind, Kind::Function) {
            return Err(Error::Protocol("a task management response for a task that is not a function"));
        }
        on(Event::FunctionDone { cookie: task.cookie, response: pdu.response });
        Ok(())
    }

    fn text_response(
        &mut self,
        pdu: &TextResponse,
        segment: &[u8],
        on: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Error> {
        self.update_window(pdu.max_cmd_sn);
        self.check_stat_sn(pdu.stat_sn)?;
        let task = self.tasks.remove(pdu.itt.get())?;
        if !matches!(task.kind, Kind::Text) {
            return Err(Error::Protocol("a text response for a task that is not a text request"));
        }
        if self.text.len() + segment.len() > TEXT_MAX {
            return Err(Error::Protocol("a text response is too long"));
        }
        self.text.extend_from_slice(segment);
        if pdu.flags & CONTINUE != 0 || pdu.flags & FINAL == 0 {
            return self
                .text_request(pdu.ttt.get(), pdu.lun, &[])
                .map_err(|NotNow| Error::Protocol("a text response is continued, but the command window is closed"));
        }
        on(Event::Targets(&std::mem::take(&mut self.text)));
        Ok(())
    }

    fn logout_response(&mut self, pdu: &LogoutResponse, on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        self.check_stat_sn(pdu.stat_sn)?;
        if !matches!(self.tasks.remove(pdu.itt.get())?.kind, Kind::Logout) {
            return Err(Error::Protocol("a logout response for a task that is not a logout"));
        }
        self.phase = Phase::LoggedOut;
        on(Event::LoggedOut);
        Ok(())
    }

    fn reject(&mut self, pdu: &Reject, segment: &[u8], on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        self.update_window(pdu.max_cmd_sn);
        self.check_stat_sn(pdu.stat_sn)?;
        // A rejected command ends here. A command of which only a Data-Out PDU was rejected still gets its SCSI
        // Response.
        let refused = Bhs::peek(segment).filter(|header| {
            [Opcode::SCSI_COMMAND, Opcode::TASK_MANAGEMENT_REQUEST, Opcode::TEXT_REQUEST].contains(&header.opcode())
        });
        let cookie = refused.and_then(|header| self.tasks.remove(header.itt.get()).ok()).map(|task| task.cookie);
        on(Event::Rejected { reason: pdu.reason, cookie });
        Ok(())
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
