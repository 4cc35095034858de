//! PREVENT ALLOW MEDIUM REMOVAL: Lunar counts it for each nexus, and the device gets the sum.

use crate::admit::{Refusal, pass};
use crate::command::Status;
use crate::context::Call;
use crate::device_server::ForwardedData;
use crate::fault;
use crate::lu::{Forwarded, LogicalUnit};
use crate::nexus::ItlNexus;
use crate::policy::Policy;
use crate::sense::{Sense, SenseData};
use crate::target::Target;
use lunar_unit::UnitChange;
use lunar_unit::removal::request::RemovalChange;
use lunar_unit::reserve::Held;

/// PREVENT; the second bit, for changers, is obsolete.
const PREVENT: u8 = 0x01;
/// Offset of PREVENT.
const PREVENT_AT: usize = 4;

impl Target {
    /// Executes PREVENT ALLOW MEDIUM REMOVAL. Returns status and sense data.
    pub(crate) async fn prevent(
        &self,
        call: Call<'_>,
        (itl, device): (&ItlNexus, &Forwarded),
        policy: &Policy,
    ) -> Result<(Status, SenseData), Refusal> {
        pass(policy, itl)?;
        let prevent = call.command.cdb.bytes().get(PREVENT_AT).copied().unwrap_or(0);
        let name = call.nexus.name.clone();
        let change = match prevent {
            0 => RemovalChange::Allow(name.clone()),
            PREVENT if itl.held() != Held::None => return Err(Refusal::bare(Status::RESERVATION_CONFLICT)),
            PREVENT => RemovalChange::Prevent(name.clone()),
            _ => return Err(Sense::bit_in_cdb(PREVENT_AT, 1).into()),
        };
        self.propose(call.nexus, call.command.tag, &itl.lu, UnitChange::Removal(change)).await?;
        let settled = self.settle_prevention((&itl.lu, device)).await;
        if settled.as_ref().is_some_and(|(status, _)| *status != Status::GOOD) && prevent == PREVENT {
            // The device does not prevent it, so this nexus does not.
            let allow = UnitChange::Removal(RemovalChange::Allow(name));
            self.propose(call.nexus, call.command.tag, &itl.lu, allow).await?;
        }
        Ok(settled.unwrap_or_else(|| (Status::GOOD, SenseData::default())))
    }

    /// Tells the device whether any nexus prevents removal, if it was told something else. Returns its last reply.
    pub(crate) async fn settle_prevention(
        &self,
        (lu, device): (&LogicalUnit, &Forwarded),
    ) -> Option<(Status, SenseData)> {
        let facts = device.unit.device.facts();
        let wanted = || lu.shared.state().is_removal_prevented();
        let (mut last, mut told) = (None, None);
        // Another core may tell the device the contrary at the same time: the one that tells last looks again.
        while told.unwrap_or_else(|| facts.is_removal_prevented()) != wanted() {
            let value = wanted();
            facts.set_removal_prevented(value);
            let cdb = [0x1e, 0, 0, 0, u8::from(value), 0];
            let own = self.execute_own((lu, device), &cdb, || Some(ForwardedData::None));
            let (status, sense) = match own.await {
                Ok(reply) => (reply.status, reply.sense),
                Err(fault) => {
                    let refusal = fault::transfer(fault);
                    let sense = refusal.sense.map(|sense| sense.data(facts.is_descriptor_sense()));
                    (refusal.status, sense.unwrap_or_default())
                }
            };
            if status != Status::GOOD && value {
                facts.set_removal_prevented(false);
                return Some((status, sense));
            }
            (told, last) = (Some(value), Some((status, sense)));
        }
        last
    }

    /// After nexuses ended or logical units were reset.
    pub(crate) async fn settle_preventions(&self) {
        for lu in self.units() {
            if let Some(device) = lu.forwarded() {
                self.settle_prevention((&lu, device)).await;
            }
        }
    }
}
