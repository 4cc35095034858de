//! Abort, Keep Alive, Asynchronous Event Request.

use super::{ADMIN, admin};
use crate::command::{Refusal, Sqe};
use crate::context::Context;
use crate::log::look;
use crate::plan::Plan;
use crate::policy::{Effect, Policy};
use crate::row::{CommandType, Data};

/// Abort
#[derive(Clone, Copy, Debug)]
pub struct Abort;

impl CommandType for Abort {
    const POLICY: Policy = Policy {
        name: "Abort",
        clause: "NVMe Base 2.0 5.1",
        code: admin(0x08),
        effect: Effect::None,
        admission: ADMIN,
    };
    const DATA: Data = Data::None;

    fn run(sqe: &Sqe, _cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let [low, high] = [sqe.cdw(10) as u16, (sqe.cdw(10) >> 16) as u16];
        Ok(Plan::Abort { queue: low, command: high })
    }
}

/// Asynchronous Event Request
#[derive(Clone, Copy, Debug)]
pub struct AsynchronousEventRequest;

impl CommandType for AsynchronousEventRequest {
    const POLICY: Policy = Policy {
        name: "Asynchronous Event Request",
        clause: "NVMe Base 2.0 5.2",
        code: admin(0x0c),
        effect: Effect::None,
        admission: ADMIN,
    };
    const DATA: Data = Data::None;

    fn run(_sqe: &Sqe, _cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        Ok(Plan::Park)
    }
}

/// Keep Alive
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive;

impl CommandType for KeepAlive {
    const POLICY: Policy = Policy {
        name: "Keep Alive",
        clause: "NVMe Base 2.0 5.18",
        code: admin(0x18),
        effect: Effect::None,
        admission: ADMIN,
    };
    const DATA: Data = Data::None;

    fn run(_sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        // The transport tells the controller of every command. A command that arrives repeatedly can check the time,
        // too.
        look(cx);
        Ok(Plan::Done(0))
    }
}
