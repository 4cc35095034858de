//! Discard, write zeroes, extents.

use super::{READS, WRITES, only};
use crate::limits::{DISCARD_BYTES_MAX, DISCARD_RANGES_MAX, WRITE_ZEROES_BYTES_MAX};
use crate::request::{ByteRange, Error, Request};
use crate::table::{CommandType, Context, Flow, Plan, Policy};
use lunar_core::step::Step;

/// Discard
#[derive(Clone, Copy, Debug)]
pub struct Discard;

impl CommandType for Discard {
    const POLICY: Policy = Policy {
        name: "discard",
        ranges: 1..=DISCARD_RANGES_MAX,
        bytes_max: DISCARD_BYTES_MAX,
        flow: Flow::None,
        admission: WRITES,
    };

    fn run(request: &Request<'_>, context: &Context<'_>) -> Result<Plan, Error> {
        if context.unit.traits().unmap_granularity == 0 {
            return Err(Error::Unsupported);
        }
        let ranges = request.ranges.iter().filter(|range| range.len > 0);
        Ok(Plan::Do(Step::Unmap(ranges.map(|range| (range.offset, range.len)).collect())))
    }
}

/// Write zeroes
#[derive(Clone, Copy, Debug)]
pub struct WriteZeroes;

impl CommandType for WriteZeroes {
    const POLICY: Policy = Policy {
        name: "write zeroes",
        ranges: 1..=1,
        bytes_max: WRITE_ZEROES_BYTES_MAX,
        flow: Flow::None,
        admission: WRITES,
    };

    fn run(request: &Request<'_>, _context: &Context<'_>) -> Result<Plan, Error> {
        let ByteRange { offset, len } = only(request)?;
        let step = Step::Fill { offset, len, pattern: Vec::new(), unmap: request.unmap };
        Ok(if len > 0 { Plan::Do(step) } else { Plan::Done })
    }
}

/// Extents
#[derive(Clone, Copy, Debug)]
pub struct Extents;

impl CommandType for Extents {
    const POLICY: Policy =
        Policy { name: "extents", ranges: 1..=1, bytes_max: u64::MAX, flow: Flow::None, admission: READS };

    fn run(request: &Request<'_>, _context: &Context<'_>) -> Result<Plan, Error> {
        Ok(Plan::Survey(only(request)?))
    }
}
