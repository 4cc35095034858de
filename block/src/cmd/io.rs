//! Read, write, flush.

use super::{READS, WRITES, only};
use crate::limits::TRANSFER_BYTES_MAX;
use crate::request::{ByteRange, Error, Request};
use crate::table::{Admission, CommandType, Context, Flow, Gate, Plan, Policy, Reservation};
use lunar_core::step::Step;

/// Read
#[derive(Clone, Copy, Debug)]
pub struct Read;

impl CommandType for Read {
    const POLICY: Policy =
        Policy { name: "read", ranges: 1..=1, bytes_max: TRANSFER_BYTES_MAX, flow: Flow::In, admission: READS };

    #[inline]
    fn run(request: &Request<'_>, _context: &Context<'_>) -> Result<Plan, Error> {
        let ByteRange { offset, len } = only(request)?;
        Ok(if len > 0 { Plan::Do(Step::Read { offset, len }) } else { Plan::Done })
    }
}

/// Write
#[derive(Clone, Copy, Debug)]
pub struct Write;

impl CommandType for Write {
    const POLICY: Policy =
        Policy { name: "write", ranges: 1..=1, bytes_max: TRANSFER_BYTES_MAX, flow: Flow::Out, admission: WRITES };

    #[inline]
    fn run(request: &Request<'_>, context: &Context<'_>) -> Result<Plan, Error> {
        let ByteRange { offset, len } = only(request)?;
        let durable = request.durable || !context.caches_writes;
        Ok(if len > 0 { Plan::Do(Step::Write { offset, len, durable }) } else { Plan::Done })
    }
}

/// Verify: reads, and drops what was read.
#[derive(Clone, Copy, Debug)]
pub struct Verify;

impl CommandType for Verify {
    const POLICY: Policy =
        Policy { name: "verify", ranges: 1..=1, bytes_max: TRANSFER_BYTES_MAX, flow: Flow::None, admission: READS };

    fn run(request: &Request<'_>, _context: &Context<'_>) -> Result<Plan, Error> {
        let ByteRange { offset, len } = only(request)?;
        Ok(if len > 0 { Plan::Do(Step::Verify { offset, len }) } else { Plan::Done })
    }
}

/// Flush
#[derive(Clone, Copy, Debug)]
pub struct Flush;

impl CommandType for Flush {
    const POLICY: Policy = Policy {
        name: "flush",
        ranges: 0..=0,
        bytes_max: 0,
        flow: Flow::None,
        // Under the reservation of another client this client has no data to flush, as for SCSI and NVMe.
        admission: Admission {
            reservation: Reservation::Conflict,
            inaccessible: Gate::Stops,
            removed: Gate::Stops,
            rewrite: Gate::Stops,
            unformatted: Gate::Stops,
            write_protect: Gate::Passes,
        },
    };

    fn run(_request: &Request<'_>, _context: &Context<'_>) -> Result<Plan, Error> {
        Ok(Plan::Do(Step::Flush))
    }
}
