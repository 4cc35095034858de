//! Identify.

use crate::request::{Error, Request};
use crate::table::{Admission, CommandType, Context, Flow, Gate, Plan, Policy, Reservation};

/// Identify
#[derive(Clone, Copy, Debug)]
pub struct Identify;

impl CommandType for Identify {
    const POLICY: Policy = Policy {
        name: "identify",
        ranges: 0..=0,
        bytes_max: 0,
        flow: Flow::None,
        admission: Admission {
            reservation: Reservation::Passes,
            inaccessible: Gate::Passes,
            removed: Gate::Passes,
            rewrite: Gate::Passes,
            unformatted: Gate::Passes,
            write_protect: Gate::Passes,
        },
    };

    fn run(_request: &Request<'_>, _context: &Context<'_>) -> Result<Plan, Error> {
        Ok(Plan::Identify)
    }
}
