//! The log page of the space that a thin disk uses and of the available space.

use crate::context::Context;
use crate::lu::Emulated;
use crate::page::{LogPage, LogParameters};
use crate::policy::Capability;
use crate::sbc::thin::{is_counted, set_bytes};
use crate::sbc::threshold::Resource;

/// Logical block provisioning.
pub(crate) struct Provisioning;

/// Logical units whose used space is measured.
static COUNTED: Capability = Capability { name: "stores that measure space", is_met: |lu| is_counted(&lu.unit) };

/// SCOPE: the resource is dedicated to this logical unit.
const DEDICATED: u8 = 1;
/// SCOPE: other logical units may use the resource.
const SHARED: u8 = 2;

impl LogPage for Provisioning {
    const PAGE: u8 = 0x0c;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Logical Block Provisioning";
    const CLAUSE: &'static str = "SBC-3 6.4";
    const NEEDS: Option<&'static Capability> = Some(&COUNTED);
    const MEASURES: bool = true;
    const SAVES: bool = false;

    fn write(_cx: &Context<'_>, lu: &Emulated, out: &mut LogParameters<'_, '_>) {
        // No parameters if the store could not measure its space.
        let Some(space) = lu.device.disk().and_then(|disk| disk.space.get()) else { return };
        for resource in Resource::ALL {
            let scope = if resource == Resource::Used { DEDICATED } else { SHARED };
            let [a, b, c, d] = resource.sets(space, set_bytes(&lu.unit)).to_be_bytes();
            out.list(resource as u16, &[a, b, c, d, scope, 0, 0, 0]);
        }
    }
}
