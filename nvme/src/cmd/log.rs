//! Get Log Page.

use super::{ADMIN, admin};
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::log::{self, ACCESS, Asked, PAGES, PERSISTENT, begin_persistent};
use crate::namespace::ALL;
use crate::plan::Plan;
use crate::policy::{Effect, Policy};
use crate::row::{CommandType, Data};

/// Get Log Page
#[derive(Clone, Copy, Debug)]
pub struct GetLogPage;

/// Dword 10: retain the asynchronous event of this page (RAE).
const RETAIN: u32 = 1 << 15;
/// Dword 14: the offset is an index.
const BY_INDEX: u32 = 1 << 23;

/// Number of dwords, in two halves; 0-based.
fn length(sqe: &Sqe) -> u64 {
    let dwords = u64::from(sqe.cdw(11) & 0xffff) << 16 | u64::from(sqe.cdw(10) >> 16);
    (dwords + 1) * 4
}

impl CommandType for GetLogPage {
    const POLICY: Policy = Policy {
        name: "Get Log Page",
        clause: "NVMe Base 2.0 5.16",
        code: admin(0x02),
        effect: Effect::None,
        admission: ADMIN,
    };
    const DATA: Data = Data::Answer(length);

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let [id, specific, ..] = sqe.cdw(10).to_le_bytes();
        let kind = cx.controller().kind;
        let row = PAGES.iter().find(|row| row.id == id && row.kinds.contains(&kind)).ok_or(Status::INVALID_LOG_PAGE)?;
        // All log pages have the scope of the controller; some hosts set a namespace identifier nevertheless.
        let nsid = sqe.nsid.get();
        if ![0, ALL].contains(&nsid) && cx.queue.attached(nsid).is_none() {
            return Err(Status::INVALID_NAMESPACE.into());
        }
        let offset = sqe.cdw_pair(12);
        if sqe.cdw(14) & BY_INDEX != 0 || !offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD.into());
        }
        if id == PERSISTENT {
            begin_persistent(cx, specific)?;
        }
        let asked = Asked { specific: specific & 0x7f, retains: sqe.cdw(10) & RETAIN != 0 };
        cx.controller().read_page(id, asked.retains, || (row.write)(cx, asked));
        if id == ACCESS {
            log::pad_access(cx, offset.saturating_add(length(sqe)));
        }
        let offset = usize::try_from(offset).ok().filter(|offset| *offset <= cx.out.len());
        cx.out.drain(..offset.ok_or(Status::INVALID_FIELD)?);
        Ok(Plan::Answer)
    }
}
