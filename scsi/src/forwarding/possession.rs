//! A device for one nexus at a time: two writers would ruin a tape.
//!
//! A nexus takes the device with its first command that accesses the medium, as if it had sent RESERVE(6), so that the
//! rules for all other nexuses are those of reservations: RESERVATION CONFLICT. It gives the device back when it
//! unloads the medium, releases it (RELEASE), or ends. Persistent reservations take precedence: while nexuses are
//! registered, they decide.

use crate::admit::Refusal;
use crate::context::Call;
use crate::lu::Forwarded;
use crate::nexus::ItlNexus;
use crate::peripheral::PeripheralType;
use crate::policy::{Effect, Gate, Policy};
use crate::target::Target;
use lunar_unit::UnitChange;
use lunar_unit::reserve::Request;

impl Target {
    /// Takes the device for the nexus, if this command needs that.
    pub(crate) async fn possess(
        &self,
        call: Call<'_>,
        (itl, device): (&ItlNexus, &Forwarded),
        policy: &Policy,
    ) -> Result<(), Refusal> {
        let is_needed = policy.effect != Effect::None && policy.admission.spc2 == Gate::Stops;
        if !device.unit.device.terms().exclusive || !is_needed {
            return Ok(());
        }
        {
            let state = itl.lu.shared.state();
            let reservations = state.reservations();
            if reservations.spc2() == Some(&call.nexus.name) || reservations.registrants().next().is_some() {
                return Ok(());
            }
        }
        self.reserve(call, itl, Request::Reserve).await?;
        itl.possesses.set(true);
        Ok(())
    }

    /// The nexus has unloaded the medium: it gives the device back, unless it has reserved it by a command.
    pub(crate) async fn give_back(&self, call: Call<'_>, itl: &ItlNexus) {
        if itl.possesses.replace(false) {
            // The holder may always release.
            let _ = self.reserve(call, itl, Request::Release).await;
        }
    }

    async fn reserve(&self, call: Call<'_>, itl: &ItlNexus, request: Request) -> Result<(), Refusal> {
        let change = UnitChange::Reservations { nexus: call.nexus.name.clone(), request };
        self.propose(call.nexus, call.command.tag, &itl.lu, change).await
    }
}

/// Whether the CDB unloads the medium of a drive.
pub(crate) fn unloads(device: PeripheralType, cdb: &[u8]) -> bool {
    /// LOAD.
    const LOAD: u8 = 0x01;
    device == PeripheralType::TAPE && matches!(cdb, [0x1b, _, _, _, flags, ..] if flags & LOAD == 0)
}
