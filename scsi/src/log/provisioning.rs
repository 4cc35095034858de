//! How much space a thin disk takes and may take yet.

use super::{LogPage, Parameters};
use crate::lu::LogicalUnit;
use crate::thin::{Resource, is_counted, set_bytes};

/// Logical block provisioning.
pub(super) struct Provisioning;

/// SCOPE: the resource is this disk's alone.
const DEDICATED: u8 = 1;
/// SCOPE: others may take of it as well.
const SHARED: u8 = 2;

impl LogPage for Provisioning {
    const PAGE: u8 = 0x0c;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Logical Block Provisioning";
    const CLAUSE: &'static str = "SBC-3 6.4";
    const MEASURES: bool = true;

    fn is_of(lu: &LogicalUnit) -> bool {
        is_counted(&lu.unit)
    }

    fn write(lu: &LogicalUnit, out: &mut Parameters<'_, '_>) {
        // A store that cannot tell just now tells nothing.
        let Some(space) = lu.space() else { return };
        for resource in Resource::ALL {
            let scope = if resource == Resource::Used { DEDICATED } else { SHARED };
            let [a, b, c, d] = resource.sets(space, set_bytes(&lu.unit)).to_be_bytes();
            out.list(resource as u16, &[a, b, c, d, scope, 0, 0, 0]);
        }
    }
}
