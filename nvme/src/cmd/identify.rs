//! Identify.

use super::{ADMIN, admin};
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::controller::Controller;
use crate::identify::{self, IDENTIFY_LEN, Page};
use crate::namespace::{ALL, Attached};
use crate::path::Kind;
use crate::plan::Plan;
use crate::policy::{Effect, Policy};
use crate::row::{CommandType, Data};
use std::rc::Rc;

/// Controller or Namespace Structure (CNS).
mod cns {
    pub(super) const NAMESPACE: u8 = 0x00;
    pub(super) const CONTROLLER: u8 = 0x01;
    pub(super) const ACTIVE: u8 = 0x02;
    pub(super) const DESCRIPTORS: u8 = 0x03;
    pub(super) const SET_NAMESPACE: u8 = 0x05;
    pub(super) const SET_CONTROLLER: u8 = 0x06;
    pub(super) const SET_ACTIVE: u8 = 0x07;
    pub(super) const INDEPENDENT: u8 = 0x08;
    pub(super) const ALLOCATED: u8 = 0x10;
    pub(super) const ALLOCATED_NAMESPACE: u8 = 0x11;
    pub(super) const ATTACHED_CONTROLLERS: u8 = 0x12;
    pub(super) const CONTROLLERS: u8 = 0x13;
    pub(super) const GRANULARITY: u8 = 0x16;
    pub(super) const COMMAND_SETS: u8 = 0x1c;
}

/// Identify
#[derive(Clone, Copy, Debug)]
pub struct Identify;

impl CommandType for Identify {
    const POLICY: Policy = Policy {
        name: "Identify",
        clause: "NVMe Base 2.0 5.17",
        code: admin(0x06),
        effect: Effect::None,
        admission: ADMIN,
    };
    const DATA: Data = Data::Answer(|_| IDENTIFY_LEN as u64);

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let [what, _, low, high] = sqe.cdw(10).to_le_bytes();
        // Dword 11: the command set, of which there is one.
        let command_set = (sqe.cdw(11) >> 24) as u8;
        let takes_set = (cns::SET_NAMESPACE..=cns::SET_ACTIVE).contains(&what);
        if takes_set && command_set != 0 {
            return Err(Status::INVALID_FIELD.into());
        }
        if cx.controller().kind == Kind::Discovery && what != cns::CONTROLLER {
            return Err(Status::INVALID_FIELD.into());
        }
        let first = u16::from_le_bytes([low, high]);
        let page = page(what, first, sqe.nsid.get(), cx)?;
        cx.out.extend_from_slice(page.bytes());
        Ok(Plan::Answer)
    }
}

fn page(what: u8, first: u16, nsid: u32, cx: &Context<'_>) -> Result<Page, Status> {
    let controllers = |has: &dyn Fn(&Controller) -> bool| -> Vec<u16> {
        let all = cx.controllers();
        all.iter().filter(|one| one.kind == Kind::Io && has(one)).map(|controller| controller.id).collect()
    };
    Ok(match what {
        // The common capabilities of all namespaces. Without a pool there are none: each namespace has its own format.
        cns::NAMESPACE if nsid == ALL && cx.pool().is_some() => identify::common_namespace(),
        cns::NAMESPACE if nsid == ALL => Page::default(),
        // Inactive namespaces have a data structure of zeroes; namespaces outside the host's map, too.
        cns::NAMESPACE => {
            known(nsid, cx)?;
            cx.controller().size_read(nsid);
            cx.queue.attached(nsid).map_or_else(Page::default, |found| identify::namespace(&found))
        }
        cns::ALLOCATED_NAMESPACE => {
            known(nsid, cx)?;
            cx.queue.allocated(nsid).map_or_else(Page::default, |found| identify::namespace(&found))
        }
        cns::CONTROLLER => identify::controller(cx),
        cns::ACTIVE | cns::SET_ACTIVE | cns::ALLOCATED => {
            // No namespace identifiers follow these.
            const LAST: u32 = 0xffff_fffe;
            if nsid >= LAST {
                return Err(Status::INVALID_NAMESPACE);
            }
            let all: Vec<u32> = match what {
                cns::ALLOCATED => cx.queue.all_allocated().iter().map(|seen| seen.id).collect(),
                _ => cx.queue.namespaces().iter().map(|seen| seen.id).collect(),
            };
            identify::namespaces(&all, nsid)
        }
        cns::DESCRIPTORS => identify::descriptors(&there(nsid, cx)?.namespace),
        cns::SET_NAMESPACE => there(nsid, cx).map(|_| identify::nvm_namespace())?,
        cns::SET_CONTROLLER => identify::nvm_controller(),
        cns::INDEPENDENT => identify::independent_namespace(&*there(nsid, cx)?),
        cns::ATTACHED_CONTROLLERS => {
            let unit = cx.queue.allocated(nsid).ok_or(Status::INVALID_NAMESPACE)?.namespace.unit.id;
            let has = |one: &Controller| cx.subsystem.space.ids_of(one, unit).contains(&nsid);
            identify::controllers(&controllers(&has), first)
        }
        cns::CONTROLLERS => identify::controllers(&controllers(&|_| true), first),
        cns::GRANULARITY if cx.pool().is_some() => identify::granularity(),
        cns::COMMAND_SETS => identify::command_sets(),
        _ => return Err(Status::INVALID_FIELD),
    })
}

fn known(nsid: u32, cx: &Context<'_>) -> Result<(), Status> {
    if (1..=cx.queue.last_namespace()).contains(&nsid) { Ok(()) } else { Err(Status::INVALID_NAMESPACE) }
}

fn there(nsid: u32, cx: &Context<'_>) -> Result<Rc<Attached>, Status> {
    cx.queue.attached(nsid).ok_or(Status::INVALID_NAMESPACE)
}
