//! Authentication Send and Authentication Receive: messages of hosts that authenticate.

use super::fabrics::policy;
use crate::auth::wire::MESSAGE_MAX;
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::row::{CommandType, Data};

/// Dword 10: security protocol, and what is specific to it: NVMe's own, with the one value it has.
const PROTOCOL: u32 = 0xe901_0100;
const PROTOCOL_FIELDS: u32 = 0xffff_ff00;

/// Bytes of the message, or bytes that there is room for.
fn length(sqe: &Sqe) -> Result<u32, Status> {
    if sqe.cdw(10) & PROTOCOL_FIELDS != PROTOCOL {
        return Err(Status::INVALID_FIELD);
    }
    // A larger buffer is harmless.
    if sqe.cdw(11) == 0 { Err(Status::INVALID_FIELD) } else { Ok(sqe.cdw(11)) }
}

/// Authentication Send
#[derive(Clone, Copy, Debug)]
pub struct AuthenticationSend;

impl CommandType for AuthenticationSend {
    const POLICY: Policy = policy("Authentication Send", "NVMe Base 2.0 6.2", 0x05);
    const DATA: Data = Data::List(|sqe| sqe.cdw(11).min(MESSAGE_MAX as u32));

    fn run(sqe: &Sqe, _cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal> {
        if length(sqe)? as usize > MESSAGE_MAX {
            return Err(Status::INVALID_FIELD.into());
        }
        Ok(Plan::AuthSend(list.into()))
    }
}

/// Authentication Receive
#[derive(Clone, Copy, Debug)]
pub struct AuthenticationReceive;

impl CommandType for AuthenticationReceive {
    const POLICY: Policy = policy("Authentication Receive", "NVMe Base 2.0 6.1", 0x06);
    const DATA: Data = Data::Answer(|sqe| sqe.cdw(11).into());

    fn run(sqe: &Sqe, _cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        length(sqe)?;
        Ok(Plan::AuthReceive)
    }
}
