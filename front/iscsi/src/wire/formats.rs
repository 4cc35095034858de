//! The formats themselves, in the order of clause 11.

use super::{
    AsyncEvent, BHS_LEN, First, FunctionResponse, LogoutOutcome, Opcode, Pdu, RejectReason, Response, Stage, TRANSIT,
    U24,
};
use lunar_core::wire::be::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! pdu {
    ($(#[$meta:meta])* $name:ident = $opcode:ident {
        $($(#[$fmeta:meta])* $special:ident: $sty:ty),+ ;
        $($(#[$rmeta:meta])* $rest:ident: $rty:ty),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub struct $name {
            /// Byte 0.
            pub first: First,
            /// Byte 1.
            pub flags: u8,
            $($(#[$fmeta])* pub $special: $sty,)+
            /// Words of additional header segments.
            pub ahs_words: u8,
            /// Bytes of the data segment, without padding.
            pub data_len: U24,
            $($(#[$rmeta])* pub $rest: $rty,)+
        }
        const _: () = assert!(size_of::<$name>() == BHS_LEN && align_of::<$name>() == 1);
        impl Pdu for $name {
            const OPCODE: Opcode = Opcode::$opcode;
        }
    };
}

pdu! {
    /// 11.3.
    ScsiCommand = SCSI_COMMAND {
        /// Zero.
        reserved: [u8; 2];
        /// The logical unit.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Bytes that the initiator expects to move.
        expected_len: U32,
        /// The command's number.
        cmd_sn: U32,
        /// The next status number that the initiator expects.
        exp_stat_sn: U32,
        /// The first 16 bytes of the CDB.
        cdb: [u8; 16],
    }
}
pdu! {
    /// 11.4.
    ScsiResponse = SCSI_RESPONSE {
        /// What became of the command.
        response: Response,
        /// Its status, if it completed.
        status: u8;
        /// Zero.
        reserved: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Of a resegmentation; zero.
        snack_tag: U32,
        /// The status number.
        stat_sn: U32,
        /// The next command number that the target expects.
        exp_cmd_sn: U32,
        /// The last command number that the target takes.
        max_cmd_sn: U32,
        /// PDUs of Data-In that were sent for the command.
        exp_data_sn: U32,
        /// Of the read half of a bidirectional command.
        bidi_residual: U32,
        /// Bytes that were expected and not moved, or the reverse.
        residual: U32,
    }
}
pdu! {
    /// 11.5.
    TaskManagementRequest = TASK_MANAGEMENT_REQUEST {
        /// Zero.
        reserved: [u8; 2];
        /// The logical unit, where the function has one.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// The task that is meant (RTT).
        referenced_tag: U32,
        /// The request's number.
        cmd_sn: U32,
        /// The next status number that the initiator expects.
        exp_stat_sn: U32,
        /// The number of the command that is meant.
        ref_cmd_sn: U32,
        /// For TASK REASSIGN.
        exp_data_sn: U32,
        /// Zero.
        reserved2: [u8; 8],
    }
}
pdu! {
    /// 11.6.
    TaskManagementResponse = TASK_MANAGEMENT_RESPONSE {
        /// What became of it.
        response: FunctionResponse,
        /// Zero.
        reserved: u8;
        /// What RFC 7144's functions tell besides: Additional Response Information (SAM-5 7.9).
        information: [u8; 3],
        /// Zero.
        reserved2: [u8; 5],
        /// Initiator task tag.
        itt: U32,
        /// Zero.
        reserved3: [u8; 4],
        /// The status number.
        stat_sn: U32,
        /// The next command number that the target expects.
        exp_cmd_sn: U32,
        /// The last command number that the target takes.
        max_cmd_sn: U32,
        /// Zero.
        reserved4: [u8; 12],
    }
}
pdu! {
    /// 11.7.
    DataOut = DATA_OUT {
        /// Zero.
        reserved: [u8; 2];
        /// The logical unit, if there is a target transfer tag.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Of the R2T that it answers; [`NO_TAG`](super::NO_TAG) if unsolicited.
        ttt: U32,
        /// Zero.
        reserved2: [u8; 4],
        /// The next status number that the initiator expects.
        exp_stat_sn: U32,
        /// Zero.
        reserved3: [u8; 4],
        /// Its number in the sequence.
        data_sn: U32,
        /// Where in the command's data it belongs.
        offset: U32,
        /// Zero.
        reserved4: [u8; 4],
    }
}
pdu! {
    /// 11.7.
    DataIn = DATA_IN {
        /// Zero.
        reserved: u8,
        /// The command's status, with S.
        status: u8;
        /// The logical unit, with A.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// For acknowledgements, with A; else [`NO_TAG`](super::NO_TAG).
        ttt: U32,
        /// The status number, with S.
        stat_sn: U32,
        /// The next command number that the target expects.
        exp_cmd_sn: U32,
        /// The last command number that the target takes.
        max_cmd_sn: U32,
        /// Its number in the command.
        data_sn: U32,
        /// Where in the command's data it belongs.
        offset: U32,
        /// As in a response, with S.
        residual: U32,
    }
}
pdu! {
    /// 11.8.
    R2t = R2T {
        /// Zero.
        reserved: [u8; 2];
        /// The logical unit.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// What the data shall carry.
        ttt: U32,
        /// The next status number; it is not taken.
        stat_sn: U32,
        /// The next command number that the target expects.
        exp_cmd_sn: U32,
        /// The last command number that the target takes.
        max_cmd_sn: U32,
        /// Its number in the command.
        r2t_sn: U32,
        /// Where in the command's data.
        offset: U32,
        /// Bytes that are asked for.
        desired_len: U32,
    }
}
pdu! {
    /// 11.9.
    AsyncMessage = ASYNC_MESSAGE {
        /// Zero.
        reserved: [u8; 2];
        /// The logical unit, of SCSI events.
        lun: [u8; 8],
        /// [`NO_TAG`](super::NO_TAG).
        itt: U32,
        /// Zero.
        reserved2: [u8; 4],
        /// The status number.
        stat_sn: U32,
        /// The next command number that the target expects.
        exp_cmd_sn: U32,
        /// The last command number that the target takes.
        max_cmd_sn: U32,
        /// What happened.
        event: AsyncEvent,
        /// The vendor's.
        vendor_code: u8,
        /// As the event has it.
        parameter1: U16,
        /// As the event has it.
        parameter2: U16,
        /// As the event has it.
        parameter3: U16,
        /// Zero.
        reserved3: [u8; 4],
    }
}
pdu! {
    /// 11.10.
    TextRequest = TEXT_REQUEST {
        /// Zero.
        reserved: [u8; 2];
        /// As the target gave it with its tag.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// As the target gave it; [`NO_TAG`](super::NO_TAG) in the first of an exchange.
        ttt: U32,
        /// The request's number.
        cmd_sn: U32,
        /// The next status number that the initiator expects.
        exp_stat_sn: U32,
        /// Zero.
        reserved2: [u8; 16],
    }
}
pdu! {
    /// 11.11.
    TextResponse = TEXT_RESPONSE {
        /// Zero.
        reserved: [u8; 2];
        /// For the target's own use, with its tag.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// What the next request of the exchange shall carry; [`NO_TAG`](super::NO_TAG) if there is none.
        ttt: U32,
        /// The status number.
        stat_sn: U32,
        /// The next command number that the target expects.
        exp_cmd_sn: U32,
        /// The last command number that the target takes.
        max_cmd_sn: U32,
        /// Zero.
        reserved2: [u8; 12],
    }
}
pdu! {
    /// 11.12.
    LoginRequest = LOGIN_REQUEST {
        /// The highest version.
        version_max: u8,
        /// The lowest version.
        version_min: u8;
        /// The initiator's part of the session identifier.
        isid: [u8; 6],
        /// The target's part; zero for a new session.
        tsih: U16,
        /// Initiator task tag.
        itt: U32,
        /// Connection identifier.
        cid: U16,
        /// Zero.
        reserved: [u8; 2],
        /// The first command number.
        cmd_sn: U32,
        /// The next status number that the initiator expects.
        exp_stat_sn: U32,
        /// Zero.
        reserved2: [u8; 16],
    }
}
pdu! {
    /// 11.13.
    LoginResponse = LOGIN_RESPONSE {
        /// The highest version.
        version_max: u8,
        /// The version that is used.
        version_active: u8;
        /// The initiator's part of the session identifier.
        isid: [u8; 6],
        /// The target's part; set in the last response.
        tsih: U16,
        /// Initiator task tag.
        itt: U32,
        /// Zero.
        reserved: [u8; 4],
        /// The status number.
        stat_sn: U32,
        /// The next command number that the target expects.
        exp_cmd_sn: U32,
        /// The last command number that the target takes.
        max_cmd_sn: U32,
        /// [`LoginStatus`](super::LoginStatus).
        status: U16,
        /// Zero.
        reserved2: [u8; 10],
    }
}
pdu! {
    /// 11.14.
    LogoutRequest = LOGOUT_REQUEST {
        /// Zero.
        reserved: [u8; 2];
        /// Zero.
        reserved2: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// The connection that is meant.
        cid: U16,
        /// Zero.
        reserved3: [u8; 2],
        /// The request's number.
        cmd_sn: U32,
        /// The next status number that the initiator expects.
        exp_stat_sn: U32,
        /// Zero.
        reserved4: [u8; 16],
    }
}
pdu! {
    /// 11.15.
    LogoutResponse = LOGOUT_RESPONSE {
        /// What became of it.
        response: LogoutOutcome,
        /// Zero.
        reserved: u8;
        /// Zero.
        reserved2: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Zero.
        reserved3: [u8; 4],
        /// The status number.
        stat_sn: U32,
        /// The next command number that the target expects.
        exp_cmd_sn: U32,
        /// The last command number that the target takes.
        max_cmd_sn: U32,
        /// Zero.
        reserved4: [u8; 4],
        /// Seconds.
        time_to_wait: U16,
        /// Seconds.
        time_to_retain: U16,
        /// Zero.
        reserved5: [u8; 4],
    }
}
pdu! {
    /// 11.16.
    Snack = SNACK {
        /// Zero.
        reserved: [u8; 2];
        /// The logical unit.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Target transfer tag or SNACK tag.
        ttt: U32,
        /// Zero.
        reserved2: [u8; 4],
        /// The next status number that the initiator expects.
        exp_stat_sn: U32,
        /// Zero.
        reserved3: [u8; 8],
        /// The first number that is missing.
        first_missing: U32,
        /// How many are missing.
        run_len: U32,
    }
}
pdu! {
    /// 11.17. Its data segment is the header that is rejected.
    Reject = REJECT {
        /// Why.
        reason: RejectReason,
        /// Zero.
        reserved: u8;
        /// Zero.
        reserved2: [u8; 8],
        /// [`NO_TAG`](super::NO_TAG).
        itt: U32,
        /// Zero.
        reserved3: [u8; 4],
        /// The status number.
        stat_sn: U32,
        /// The next command number that the target expects.
        exp_cmd_sn: U32,
        /// The last command number that the target takes.
        max_cmd_sn: U32,
        /// The next DataSN or R2TSN, of a rejected SNACK.
        data_sn: U32,
        /// Zero.
        reserved4: [u8; 8],
    }
}
pdu! {
    /// 11.18.
    NopOut = NOP_OUT {
        /// Zero.
        reserved: [u8; 2];
        /// As the target gave it with its tag.
        lun: [u8; 8],
        /// [`NO_TAG`](super::NO_TAG) if no answer is wanted.
        itt: U32,
        /// Of the NOP-In that it answers; else [`NO_TAG`](super::NO_TAG).
        ttt: U32,
        /// The request's number.
        cmd_sn: U32,
        /// The next status number that the initiator expects.
        exp_stat_sn: U32,
        /// Zero.
        reserved2: [u8; 16],
    }
}
pdu! {
    /// 11.19.
    NopIn = NOP_IN {
        /// Zero.
        reserved: [u8; 2];
        /// For the target's own use, with its tag.
        lun: [u8; 8],
        /// Of the NOP-Out that it answers; else [`NO_TAG`](super::NO_TAG).
        itt: U32,
        /// What the answer shall carry; [`NO_TAG`](super::NO_TAG) if none is wanted.
        ttt: U32,
        /// The status number.
        stat_sn: U32,
        /// The next command number that the target expects.
        exp_cmd_sn: U32,
        /// The last command number that the target takes.
        max_cmd_sn: U32,
        /// Zero.
        reserved2: [u8; 12],
    }
}

impl LoginRequest {
    /// The stage that the initiator is in (CSG).
    #[must_use]
    pub fn stage(&self) -> Stage {
        current_stage(self.flags)
    }

    /// The stage that it asks for (NSG); means something with [`TRANSIT`] only.
    #[must_use]
    pub fn next_stage(&self) -> Stage {
        next_stage(self.flags)
    }
}

impl LoginResponse {
    /// The stage that it answers in (CSG).
    #[must_use]
    pub fn stage(&self) -> Stage {
        current_stage(self.flags)
    }

    /// The stage that it grants (NSG); means something with [`TRANSIT`] only.
    #[must_use]
    pub fn next_stage(&self) -> Stage {
        next_stage(self.flags)
    }
}

/// Bits of byte 1 of login PDUs that name the stages.
const STAGE_MASK: u8 = 0x03;
/// Where CSG lies above NSG.
const CURRENT_STAGE_SHIFT: u32 = 2;

fn current_stage(flags: u8) -> Stage {
    Stage((flags >> CURRENT_STAGE_SHIFT) & STAGE_MASK)
}

fn next_stage(flags: u8) -> Stage {
    Stage(flags & STAGE_MASK)
}

/// Byte 1 of a login PDU: CSG and, for a transition, T and NSG.
#[must_use]
pub fn login_flags(current: Stage, transit: Option<Stage>) -> u8 {
    let next = transit.map_or(0, |next| TRANSIT | next.0);
    (current.0 & STAGE_MASK) << CURRENT_STAGE_SHIFT | next
}
