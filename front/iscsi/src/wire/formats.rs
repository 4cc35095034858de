//! The PDU formats, in the order of RFC 7143 clause 11.

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
            /// Byte 0: opcode and the I bit.
            pub first: First,
            /// Byte 1: flags of the opcode.
            pub flags: u8,
            $($(#[$fmeta])* pub $special: $sty,)+
            /// TotalAHSLength, in words of four bytes.
            pub ahs_words: u8,
            /// DataSegmentLength, in bytes, without padding.
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
    /// SCSI Command (RFC 7143 11.3).
    ScsiCommand = SCSI_COMMAND {
        /// Reserved.
        reserved: [u8; 2];
        /// LUN.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Expected Data Transfer Length, in bytes.
        expected_len: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// The first 16 bytes of the CDB.
        cdb: [u8; 16],
    }
}
pdu! {
    /// SCSI Response (RFC 7143 11.4).
    ScsiResponse = SCSI_RESPONSE {
        /// Response: whether the command completed at the target.
        response: Response,
        /// SCSI status, if the command completed.
        status: u8;
        /// Reserved.
        reserved: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// SNACK tag; zero without resegmentation.
        snack_tag: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// ExpDataSN: the number of Data-In and R2T PDUs sent for the command.
        exp_data_sn: U32,
        /// Residual count of the read half of a bidirectional command.
        bidi_residual: U32,
        /// Residual count, in bytes.
        residual: U32,
    }
}
pdu! {
    /// Task Management Function Request (RFC 7143 11.5).
    TaskManagementRequest = TASK_MANAGEMENT_REQUEST {
        /// Reserved.
        reserved: [u8; 2];
        /// LUN, for functions that have one.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Referenced task tag.
        referenced_tag: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// RefCmdSN: the CmdSN of the referenced command.
        ref_cmd_sn: U32,
        /// ExpDataSN, for TASK REASSIGN.
        exp_data_sn: U32,
        /// Reserved.
        reserved2: [u8; 8],
    }
}
pdu! {
    /// Task Management Function Response (RFC 7143 11.6).
    TaskManagementResponse = TASK_MANAGEMENT_RESPONSE {
        /// Response.
        response: FunctionResponse,
        /// Reserved.
        reserved: u8;
        /// Additional Response Information of the functions of RFC 7144 (SAM-5 7.9).
        information: [u8; 3],
        /// Reserved.
        reserved2: [u8; 5],
        /// Initiator task tag.
        itt: U32,
        /// Reserved.
        reserved3: [u8; 4],
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved4: [u8; 12],
    }
}
pdu! {
    /// SCSI Data-Out (RFC 7143 11.7).
    DataOut = DATA_OUT {
        /// Reserved.
        reserved: [u8; 2];
        /// LUN, if the target transfer tag is valid.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Target transfer tag of the R2T; [`NO_TAG`](super::NO_TAG) for unsolicited data.
        ttt: U32,
        /// Reserved.
        reserved2: [u8; 4],
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved3: [u8; 4],
        /// DataSN: the number of the PDU in its sequence.
        data_sn: U32,
        /// Buffer offset.
        offset: U32,
        /// Reserved.
        reserved4: [u8; 4],
    }
}
pdu! {
    /// SCSI Data-In (RFC 7143 11.7).
    DataIn = DATA_IN {
        /// Reserved.
        reserved: u8,
        /// SCSI status, with the S bit.
        status: u8;
        /// LUN, with the A bit.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Target transfer tag for an acknowledgement, with the A bit; else [`NO_TAG`](super::NO_TAG).
        ttt: U32,
        /// StatSN, with the S bit.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// DataSN.
        data_sn: U32,
        /// Buffer offset.
        offset: U32,
        /// Residual count, with the S bit.
        residual: U32,
    }
}
pdu! {
    /// Ready To Transfer (RFC 7143 11.8).
    R2t = R2T {
        /// Reserved.
        reserved: [u8; 2];
        /// LUN.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Target transfer tag, which the requested data carries.
        ttt: U32,
        /// StatSN of the next status; an R2T does not use it.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// R2TSN.
        r2t_sn: U32,
        /// Buffer offset.
        offset: U32,
        /// Desired Data Transfer Length, in bytes.
        desired_len: U32,
    }
}
pdu! {
    /// Asynchronous Message (RFC 7143 11.9).
    AsyncMessage = ASYNC_MESSAGE {
        /// Reserved.
        reserved: [u8; 2];
        /// LUN, for SCSI events.
        lun: [u8; 8],
        /// [`NO_TAG`](super::NO_TAG).
        itt: U32,
        /// Reserved.
        reserved2: [u8; 4],
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// AsyncEvent.
        event: AsyncEvent,
        /// AsyncVCode: vendor specific.
        vendor_code: u8,
        /// Parameter1; its meaning depends on the event.
        parameter1: U16,
        /// Parameter2; its meaning depends on the event.
        parameter2: U16,
        /// Parameter3; its meaning depends on the event.
        parameter3: U16,
        /// Reserved.
        reserved3: [u8; 4],
    }
}
pdu! {
    /// Text Request (RFC 7143 11.10).
    TextRequest = TEXT_REQUEST {
        /// Reserved.
        reserved: [u8; 2];
        /// LUN that the target sent with its transfer tag.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Target transfer tag of the last response; [`NO_TAG`](super::NO_TAG) in the first request of an exchange.
        ttt: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved2: [u8; 16],
    }
}
pdu! {
    /// Text Response (RFC 7143 11.11).
    TextResponse = TEXT_RESPONSE {
        /// Reserved.
        reserved: [u8; 2];
        /// LUN that the initiator returns with the transfer tag.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Target transfer tag that the next request of the exchange carries; [`NO_TAG`](super::NO_TAG) in the last
        /// response.
        ttt: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved2: [u8; 12],
    }
}
pdu! {
    /// Login Request (RFC 7143 11.12).
    LoginRequest = LOGIN_REQUEST {
        /// Version-max.
        version_max: u8,
        /// Version-min.
        version_min: u8;
        /// ISID: the initiator's part of the session identifier.
        isid: [u8; 6],
        /// TSIH: the target's part; zero for a new session.
        tsih: U16,
        /// Initiator task tag.
        itt: U32,
        /// CID.
        cid: U16,
        /// Reserved.
        reserved: [u8; 2],
        /// CmdSN: the first of the session.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved2: [u8; 16],
    }
}
pdu! {
    /// Login Response (RFC 7143 11.13).
    LoginResponse = LOGIN_RESPONSE {
        /// Version-max.
        version_max: u8,
        /// Version-active.
        version_active: u8;
        /// ISID: the initiator's part of the session identifier.
        isid: [u8; 6],
        /// TSIH: the target's part; set in the last response.
        tsih: U16,
        /// Initiator task tag.
        itt: U32,
        /// Reserved.
        reserved: [u8; 4],
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Status-Class and Status-Detail: a [`LoginStatus`](super::LoginStatus).
        status: U16,
        /// Reserved.
        reserved2: [u8; 10],
    }
}
pdu! {
    /// Logout Request (RFC 7143 11.14).
    LogoutRequest = LOGOUT_REQUEST {
        /// Reserved.
        reserved: [u8; 2];
        /// Reserved.
        reserved2: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// CID of the connection to close.
        cid: U16,
        /// Reserved.
        reserved3: [u8; 2],
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved4: [u8; 16],
    }
}
pdu! {
    /// Logout Response (RFC 7143 11.15).
    LogoutResponse = LOGOUT_RESPONSE {
        /// Response.
        response: LogoutOutcome,
        /// Reserved.
        reserved: u8;
        /// Reserved.
        reserved2: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Reserved.
        reserved3: [u8; 4],
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved4: [u8; 4],
        /// Time2Wait, in seconds.
        time_to_wait: U16,
        /// Time2Retain, in seconds.
        time_to_retain: U16,
        /// Reserved.
        reserved5: [u8; 4],
    }
}
pdu! {
    /// SNACK Request (RFC 7143 11.16).
    Snack = SNACK {
        /// Reserved.
        reserved: [u8; 2];
        /// LUN.
        lun: [u8; 8],
        /// Initiator task tag.
        itt: U32,
        /// Target transfer tag or SNACK tag.
        ttt: U32,
        /// Reserved.
        reserved2: [u8; 4],
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved3: [u8; 8],
        /// BegRun: the first missing number.
        first_missing: U32,
        /// RunLength: how many are missing.
        run_len: U32,
    }
}
pdu! {
    /// Reject (RFC 7143 11.17). Its data segment is the header of the rejected PDU.
    Reject = REJECT {
        /// Reason.
        reason: RejectReason,
        /// Reserved.
        reserved: u8;
        /// Reserved.
        reserved2: [u8; 8],
        /// [`NO_TAG`](super::NO_TAG).
        itt: U32,
        /// Reserved.
        reserved3: [u8; 4],
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// The next DataSN or R2TSN, for a rejected SNACK.
        data_sn: U32,
        /// Reserved.
        reserved4: [u8; 8],
    }
}
pdu! {
    /// NOP-Out (RFC 7143 11.18).
    NopOut = NOP_OUT {
        /// Reserved.
        reserved: [u8; 2];
        /// LUN that the target sent with its transfer tag.
        lun: [u8; 8],
        /// Initiator task tag; [`NO_TAG`](super::NO_TAG) if no response is requested.
        itt: U32,
        /// Target transfer tag of the NOP-In that it answers; else [`NO_TAG`](super::NO_TAG).
        ttt: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved2: [u8; 16],
    }
}
pdu! {
    /// NOP-In (RFC 7143 11.19).
    NopIn = NOP_IN {
        /// Reserved.
        reserved: [u8; 2];
        /// LUN that the initiator returns with the transfer tag.
        lun: [u8; 8],
        /// Initiator task tag of the NOP-Out that it answers; else [`NO_TAG`](super::NO_TAG).
        itt: U32,
        /// Target transfer tag that the answer carries; [`NO_TAG`](super::NO_TAG) if no answer is requested.
        ttt: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved2: [u8; 12],
    }
}

impl LoginRequest {
    /// The current stage of the initiator (CSG).
    #[must_use]
    pub fn stage(&self) -> Stage {
        current_stage(self.flags)
    }

    /// The next stage that the initiator requests (NSG). Valid with [`TRANSIT`] only.
    #[must_use]
    pub fn next_stage(&self) -> Stage {
        next_stage(self.flags)
    }
}

impl LoginResponse {
    /// The current stage (CSG).
    #[must_use]
    pub fn stage(&self) -> Stage {
        current_stage(self.flags)
    }

    /// The next stage (NSG). Valid with [`TRANSIT`] only.
    #[must_use]
    pub fn next_stage(&self) -> Stage {
        next_stage(self.flags)
    }
}

/// Bits of a stage in byte 1 of login PDUs.
const STAGE_MASK: u8 = 0x03;
/// The shift of CSG above NSG.
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
