//! Extended link services (FC-LS) and basic link services (FC-FS): the payloads that this port sends and understands.

use super::names::{PortId, Wwn};
use lunar_core::codes;
use lunar_core::wire::be::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// Commands of extended link services.
    pub struct Els(u8) {
        LS_RJT = 0x01, LS_ACC = 0x02, PLOGI = 0x03, FLOGI = 0x04, LOGO = 0x05, RTV = 0x0e, ECHO = 0x10, RRQ = 0x12,
        REC = 0x13, SRR = 0x14, PRLI = 0x20, PRLO = 0x21, PDISC = 0x50, ADISC = 0x52, RSCN = 0x61, SCR = 0x62,
    }
}

codes! {
    /// Reasons of LS_RJT.
    pub struct Reason(u8) {
        INVALID_COMMAND = 0x01, LOGICAL_ERROR = 0x03, BUSY = 0x05, PROTOCOL_ERROR = 0x07, UNABLE = 0x09,
        UNSUPPORTED = 0x0b, IN_PROGRESS = 0x0e, FIP = 0x20,
    }
}

codes! {
    /// Explanations of LS_RJT.
    pub struct Explanation(u8) {
        NONE = 0x00, INVALID_SIZE = 0x0f, INVALID_EXCHANGE = 0x17, PLOGI_REQUIRED = 0x1e, NO_RESOURCES = 0x29,
        NO_DATA = 0x2a, UNSUPPORTED = 0x2c, INVALID_LENGTH = 0x2d, NOT_NEIGHBOUR = 0x62,
    }
}

/// E_D_TOV in milliseconds: the time in which an answer, or the next frame of a sequence, arrives.
pub const E_D_TOV: u32 = 2000;
/// R_A_TOV in milliseconds, as a port without a fabric announces it: the time after which no old frame arrives.
pub const R_A_TOV: u32 = 4000;

/// R_A_TOV of a fabric in milliseconds (FC-FS).
const FABRIC_R_A_TOV: u32 = 10_000;

/// Common service parameters of a port, and those of class 3 (FC-LS).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LoginParameters {
    /// The command: a login or its acceptance.
    pub command: u8,
    reserved: [u8; 3],
    version: [u8; 2],
    /// Buffer-to-buffer credit.
    credit: U16,
    /// Common features.
    pub features: U16,
    /// Buffer-to-buffer receive data field size.
    pub receive_size: U16,
    /// Total concurrent sequences; of FLOGI: the first half of R_A_TOV.
    sequences: U16,
    /// Relative offset by category.
    offsets: U16,
    /// E_D_TOV.
    pub e_d_tov: U32,
    /// N_Port_Name.
    pub port: [u8; 8],
    /// Node_Name.
    pub node: [u8; 8],
    other_classes: [u8; 32],
    /// Service options of class 3.
    class3_options: U16,
    class3_controls: [u8; 4],
    /// Receive data field size of class 3.
    pub class3_receive_size: U16,
    class3_sequences: U16,
    class3_credit: U16,
    class3_open_sequences: U16,
    class3_reserved: [u8; 2],
    class4: [u8; 16],
    vendor: [u8; 16],
}

/// Common feature: relative offsets increase continuously.
const CONTINUOUS_OFFSET: u16 = 0x8000;
/// Common feature: the sender is a port of a fabric.
const F_PORT: u16 = 0x1000;
/// Class 3 is valid, and delivers in order.
const CLASS3: u16 = 0x8800;

impl LoginParameters {
    fn new(command: Els, (port, node): (Wwn, Wwn), payload: usize) -> Self {
        // A payload has at most `PAYLOAD_MAX` bytes.
        let size = payload as u16;
        Self {
            command: command.0,
            reserved: [0; 3],
            version: [0x20, 0x20],
            credit: 10.into(),
            features: CONTINUOUS_OFFSET.into(),
            receive_size: size.into(),
            sequences: 0.into(),
            offsets: 0.into(),
            e_d_tov: 0.into(),
            port: port.bytes(),
            node: node.bytes(),
            other_classes: [0; 32],
            class3_options: CLASS3.into(),
            class3_controls: [0; 4],
            class3_receive_size: 0.into(),
            class3_sequences: 0.into(),
            class3_credit: 0.into(),
            class3_open_sequences: 0.into(),
            class3_reserved: [0; 2],
            class4: [0; 16],
            vendor: [0; 16],
        }
    }

    /// FLOGI of a port without a fabric, or its acceptance. It receives payloads of this size.
    #[must_use]
    pub fn flogi(command: Els, names: (Wwn, Wwn), payload: usize) -> Self {
        Self::new(command, names, payload)
    }

    /// The acceptance of FLOGI by a switch with these names of its port and of its fabric.
    #[must_use]
    pub fn fabric(names: (Wwn, Wwn), payload: usize) -> Self {
        // R_A_TOV of a fabric is larger than that of ports without one.
        let [a, b, c, d] = FABRIC_R_A_TOV.to_be_bytes();
        Self {
            features: F_PORT.into(),
            sequences: u16::from_be_bytes([a, b]).into(),
            offsets: u16::from_be_bytes([c, d]).into(),
            e_d_tov: E_D_TOV.into(),
            ..Self::new(Els::LS_ACC, names, payload)
        }
    }

    /// PLOGI, or its acceptance.
    #[must_use]
    pub fn plogi(command: Els, names: (Wwn, Wwn), payload: usize) -> Self {
        Self {
            sequences: 255.into(),
            offsets: 0x1f.into(),
            e_d_tov: E_D_TOV.into(),
            class3_receive_size: (payload as u16).into(),
            class3_sequences: 255.into(),
            class3_open_sequences: 1.into(),
            ..Self::new(command, names, payload)
        }
    }

    /// The names: N_Port_Name, Node_Name.
    #[must_use]
    pub fn names(&self) -> (Wwn, Wwn) {
        (Wwn::from_bytes(self.port), Wwn::from_bytes(self.node))
    }

    /// Whether the sender is a port of a fabric.
    #[must_use]
    pub fn is_fabric(&self) -> bool {
        self.features.get() & F_PORT != 0
    }

    /// The most bytes of a payload that the sender receives: a multiple of four.
    #[must_use]
    pub fn payload(&self) -> usize {
        usize::from(self.class3_receive_size.get().min(self.receive_size.get())) & !3
    }
}

/// The page of PRLI for the Fibre Channel Protocol (FCP-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PrliPage {
    /// TYPE.
    pub protocol: u8,
    extension: u8,
    /// Flags, and the response code in the low four bits.
    pub flags: u8,
    reserved: u8,
    associators: [U32; 2],
    /// Service parameters.
    pub parameters: U32,
}

/// PRLI or PRLO, or its acceptance, with one page (FC-LS).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Prli {
    /// The command.
    pub command: u8,
    /// The length of a page.
    pub page_len: u8,
    /// The length of all.
    pub len: U16,
    /// The page.
    pub page: PrliPage,
}

/// PRLI flag: establish an image pair.
pub const ESTABLISH: u8 = 0x20;
/// PRLI flags: process associators are valid.
const ASSOCIATORS: u8 = 0xc0;
/// PRLI parameter: the port is an initiator.
pub const INITIATOR: u32 = 0x20;
/// PRLI parameter: the port is a target.
pub const TARGET: u32 = 0x10;
/// PRLI parameter: data of reads needs no XFER_RDY. All ports set it.
pub const READ_WITHOUT_READY: u32 = 0x02;
/// PRLI parameter: sequences are sent again on request (SRR).
pub const RETRY: u32 = 0x100;

codes! {
    /// Response codes of a PRLI page.
    pub struct PrliResponse(u8) {
        EXECUTED = 1, NOT_POSSIBLE = 5, NO_ASSOCIATORS = 4, INVALID = 8,
    }
}

/// The TYPE of the Fibre Channel Protocol.
const FCP: u8 = 0x08;

impl Prli {
    /// A request, or an acceptance, with these parameters.
    #[must_use]
    pub fn new(command: Els, flags: u8, parameters: u32) -> Self {
        let page = PrliPage {
            protocol: FCP,
            extension: 0,
            flags,
            reserved: 0,
            associators: [0.into(), 0.into()],
            parameters: parameters.into(),
        };
        Self { command: command.0, page_len: 16, len: 20.into(), page }
    }

    /// The request in a payload; `None`: its lengths are wrong, or it is for another protocol than FCP.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<&Self> {
        let (prli, _) = Self::ref_from_prefix(payload).ok()?;
        let is_right = prli.page_len >= 16 && prli.page_len.is_multiple_of(4);
        (is_right && usize::from(prli.len.get()) <= payload.len() && prli.page.protocol == FCP).then_some(prli)
    }

    /// The answer of a target: the page, and whether the requester is an initiator now.
    #[must_use]
    pub fn answer(&self) -> (PrliResponse, bool) {
        let (flags, parameters) = (self.page.flags, self.page.parameters.get());
        match () {
            () if flags & ASSOCIATORS != 0 => (PrliResponse::NO_ASSOCIATORS, false),
            () if parameters & (INITIATOR | TARGET) == 0 => (PrliResponse::INVALID, false),
            () if flags & ESTABLISH == 0 => (PrliResponse::EXECUTED, false),
            () if parameters & INITIATOR == 0 => (PrliResponse::NOT_POSSIBLE, false),
            () => (PrliResponse::EXECUTED, true),
        }
    }
}

/// The header of a short service (FC-LS): only the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Bare {
    /// The command.
    pub command: u8,
    reserved: [u8; 3],
}

impl Bare {
    /// A service without further fields.
    #[must_use]
    pub fn new(command: Els) -> Self {
        Self { command: command.0, reserved: [0; 3] }
    }
}

/// LS_RJT (FC-LS).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Reject {
    head: Bare,
    reserved: u8,
    /// The reason.
    pub reason: u8,
    /// The explanation.
    pub explanation: u8,
    vendor: u8,
}

impl Reject {
    /// A rejection.
    #[must_use]
    pub fn new(reason: Reason, explanation: Explanation) -> Self {
        let head = Bare::new(Els::LS_RJT);
        Self { head, reserved: 0, reason: reason.0, explanation: explanation.0, vendor: 0 }
    }
}

/// LOGO (FC-LS).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Logo {
    head: Bare,
    reserved: u8,
    id: [u8; 3],
    port: [u8; 8],
}

impl Logo {
    /// LOGO of a port.
    #[must_use]
    pub fn new(id: PortId, port: Wwn) -> Self {
        Self { head: Bare::new(Els::LOGO), reserved: 0, id: id.bytes(), port: port.bytes() }
    }
}

/// ADISC, or its acceptance (FC-LS).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Adisc {
    head: Bare,
    hard_address: [u8; 4],
    port: [u8; 8],
    node: [u8; 8],
    reserved: u8,
    id: [u8; 3],
}

impl Adisc {
    /// The service with this command, of a port with these names.
    #[must_use]
    pub fn new(command: Els, (port, node): (Wwn, Wwn), id: PortId) -> Self {
        let (head, port, node) = (Bare::new(command), port.bytes(), node.bytes());
        Self { head, hard_address: [0; 4], port, node, reserved: 0, id: id.bytes() }
    }

    /// The names: N_Port_Name, Node_Name.
    #[must_use]
    pub fn names(&self) -> (Wwn, Wwn) {
        (Wwn::from_bytes(self.port), Wwn::from_bytes(self.node))
    }
}

/// The acceptance of RTV (FC-LS).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RtvAccept {
    head: Bare,
    r_a_tov: U32,
    e_d_tov: U32,
    qualifier: U32,
}

impl RtvAccept {
    /// The times of this port.
    #[must_use]
    pub fn new() -> Self {
        Self { head: Bare::new(Els::LS_ACC), r_a_tov: R_A_TOV.into(), e_d_tov: E_D_TOV.into(), qualifier: 0.into() }
    }
}

impl Default for RtvAccept {
    fn default() -> Self {
        Self::new()
    }
}

/// RRQ and REC (FC-LS): an exchange of the port of this identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExchangeQuery {
    head: Bare,
    reserved: u8,
    /// The originator of the exchange.
    pub originator: [u8; 3],
    /// OX_ID.
    pub ox_id: U16,
    /// RX_ID.
    pub rx_id: U16,
}

impl ExchangeQuery {
    /// The service with this command for an exchange.
    #[must_use]
    pub fn new(command: Els, originator: PortId, ox_id: u16, rx_id: u16) -> Self {
        let (head, originator) = (Bare::new(command), originator.bytes());
        Self { head, reserved: 0, originator, ox_id: ox_id.into(), rx_id: rx_id.into() }
    }
}

/// The acceptance of REC (FC-LS).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RecAccept {
    head: Bare,
    ox_id: U16,
    /// RX_ID.
    pub rx_id: U16,
    reserved: u8,
    originator: [u8; 3],
    reserved2: u8,
    responder: [u8; 3],
    /// The bytes that were transferred.
    pub transferred: U32,
    /// E_STAT.
    pub status: U32,
}

/// E_STAT: the answering port is the responder of the exchange.
pub const RESPONDER: u32 = 1 << 31;
/// E_STAT: the answering port has the sequence initiative.
pub const HAS_INITIATIVE: u32 = 1 << 30;
/// E_STAT: the exchange is complete.
pub const COMPLETE: u32 = 1 << 29;

impl RecAccept {
    /// The state of an exchange: its parties are originator and responder.
    #[must_use]
    pub fn new(query: &ExchangeQuery, rx_id: u16, responder: PortId, (transferred, status): (u32, u32)) -> Self {
        Self {
            head: Bare::new(Els::LS_ACC),
            ox_id: query.ox_id,
            rx_id: rx_id.into(),
            reserved: 0,
            originator: query.originator,
            reserved2: 0,
            responder: responder.bytes(),
            transferred: transferred.into(),
            status: status.into(),
        }
    }
}

/// SRR (FCP-4): the peer is asked to send a sequence again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Srr {
    head: Bare,
    /// OX_ID.
    pub ox_id: U16,
    /// RX_ID.
    pub rx_id: U16,
    /// The relative offset from which on.
    pub offset: U32,
    /// R_CTL of the sequence.
    pub routing: u8,
    reserved: [u8; 3],
}

impl Srr {
    /// The request for a sequence of an exchange.
    #[must_use]
    pub fn new(ox_id: u16, rx_id: u16, offset: u32, routing: u8) -> Self {
        let head = Bare::new(Els::SRR);
        Self { head, ox_id: ox_id.into(), rx_id: rx_id.into(), offset: offset.into(), routing, reserved: [0; 3] }
    }
}

/// BA_ACC (FC-FS): an exchange was aborted as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BasicAccept {
    sequence_valid: u8,
    sequence: u8,
    reserved: [u8; 2],
    ox_id: U16,
    rx_id: U16,
    low: U16,
    high: U16,
}

impl BasicAccept {
    /// The answer to ABTS for an exchange.
    #[must_use]
    pub fn new(ox_id: u16, rx_id: u16) -> Self {
        Self {
            sequence_valid: 0,
            sequence: 0,
            reserved: [0; 2],
            ox_id: ox_id.into(),
            rx_id: rx_id.into(),
            // All sequences of the exchange: the initiator does not use its identifier until RRQ.
            low: 0.into(),
            high: u16::MAX.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fip::Message;
    use crate::wire::frame::Received;
    use crate::wire::golden;

    const TARGET_NAMES: (Wwn, Wwn) = (Wwn(0x2000_5254_0012_3401), Wwn(0x1000_5254_0012_3401));
    const INITIATOR_NAMES: (Wwn, Wwn) = (Wwn(0x2000_5254_0012_3402), Wwn(0x1000_5254_0012_3402));

    fn payload(text: &str) -> Vec<u8> {
        Received::parse(&golden::frame(text)[14..]).expect("a frame of Linux").payload.to_vec()
    }

    fn port(low: u8) -> PortId {
        PortId::from_bytes([0, 0x34, low])
    }

    #[test]
    fn logins_are_those_of_linux() {
        assert_eq!(LoginParameters::plogi(Els::PLOGI, INITIATOR_NAMES, 1452).as_bytes(), payload(golden::PLOGI));
        assert_eq!(LoginParameters::plogi(Els::LS_ACC, TARGET_NAMES, 1452).as_bytes(), payload(golden::PLOGI_ACCEPT));
        let flogi = golden::frame(golden::FLOGI);
        let Some(Message::LinkService(_, service)) = Message::parse(&flogi[14..]) else { panic!("it is right") };
        assert_eq!(LoginParameters::flogi(Els::FLOGI, TARGET_NAMES, 1452).as_bytes(), &service.frame[24..]);
        let bytes = payload(golden::PLOGI);
        let login = LoginParameters::ref_from_bytes(&bytes).expect("whole");
        assert_eq!((login.names(), login.payload(), login.is_fabric()), (INITIATOR_NAMES, 1452, false));
    }

    #[test]
    fn services_are_those_of_linux() {
        let own = RETRY | 0x80 | INITIATOR | READ_WITHOUT_READY;
        assert_eq!(Prli::new(Els::PRLI, ESTABLISH, own).as_bytes(), payload(golden::PRLI));
        // The recorded target is an initiator as well, and confirms.
        let accepted = Prli::new(Els::LS_ACC, ESTABLISH | 1, 0x80 | INITIATOR | TARGET | READ_WITHOUT_READY);
        assert_eq!(accepted.as_bytes(), payload(golden::PRLI_ACCEPT));
        assert_eq!(Bare::new(Els::RTV).as_bytes(), payload(golden::RTV));
        assert_eq!(RtvAccept::new().as_bytes(), payload(golden::RTV_ACCEPT));
        let rejected = Reject::new(Reason::LOGICAL_ERROR, Explanation::INVALID_EXCHANGE);
        assert_eq!(rejected.as_bytes(), payload(golden::REC_REJECT));
        let logo = golden::frame(golden::LOGO);
        let Some(Message::LinkService(_, service)) = Message::parse(&logo[14..]) else { panic!("it is right") };
        assert_eq!(Logo::new(port(2), INITIATOR_NAMES.0).as_bytes(), &service.frame[24..]);
        let accepted = golden::frame(golden::LOGO_ACCEPT);
        let Some(Message::LinkService(_, service)) = Message::parse(&accepted[14..]) else { panic!("it is right") };
        assert_eq!(Bare::new(Els::LS_ACC).as_bytes(), &service.frame[24..]);
        for text in [golden::ADISC, golden::ADISC_ACCEPT, golden::REC] {
            let bytes = payload(text);
            let is_whole = Adisc::ref_from_bytes(&bytes).is_ok() || ExchangeQuery::ref_from_bytes(&bytes).is_ok();
            assert!(is_whole, "{bytes:x?}");
        }
        let bytes = payload(golden::REC);
        let rec = ExchangeQuery::ref_from_bytes(&bytes).expect("whole");
        assert_eq!(ExchangeQuery::new(Els::REC, port(2), rec.ox_id.get(), rec.rx_id.get()), *rec);
    }

    #[test]
    fn process_logins_are_answered_as_a_target_does() {
        let answer = |flags, parameters| Prli::new(Els::PRLI, flags, parameters).answer();
        assert_eq!(answer(ESTABLISH, INITIATOR), (PrliResponse::EXECUTED, true));
        assert_eq!(answer(0, INITIATOR), (PrliResponse::EXECUTED, false));
        assert_eq!(answer(ESTABLISH, TARGET), (PrliResponse::NOT_POSSIBLE, false));
        assert_eq!(answer(ESTABLISH, 0), (PrliResponse::INVALID, false));
        assert_eq!(answer(ESTABLISH | 0x80, INITIATOR), (PrliResponse::NO_ASSOCIATORS, false));
        let good = payload(golden::PRLI);
        assert!(Prli::parse(&good).is_some() && Prli::parse(&good[..19]).is_none());
        for (at, value) in [(1, 12), (1, 17), (3, 21), (4, 0x28)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert!(Prli::parse(&bytes).is_none(), "byte {at} is {value}");
        }
    }
}
