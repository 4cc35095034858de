//! Changes of configuration strings, MAC mask lists and reservations: each is durable before it is answered. Those of a
//! volume take turns, and each is decided about in its turn.

use super::endpoint::{Counted, Endpoint};
use crate::limits::CHANGES_MAX;
use crate::slot::SlotState;
use crate::target::{
    Request, Target, Verdict, config_answer, decide, error_answer, mask_answer, mask_part, reserve_answer,
};
use crate::wire::{Address, ErrorCode, MaskError, mac_of};
use lunar_blk::reserve::Refusal;
use lunar_core::unit::UnitId;
use lunar_link::{Frame, MacAddress};
use std::rc::Rc;

impl Endpoint {
    /// Carries out a change that a verdict demands, and answers it. A change beyond the limit is dropped, and the
    /// station requests it again.
    pub(super) fn change(
        self: &Rc<Self>,
        frame: &Frame,
        request: &Request<'_>,
        (address, unit): (Address, UnitId),
        verdict: &Verdict,
    ) {
        if *verdict == Verdict::ReadReservation {
            return self.send(request.source, &reserve_answer(request, address, &self.reserving(unit), None));
        }
        let changes = &self.core.changes;
        if changes.get() >= CHANGES_MAX {
            return;
        }
        changes.set(changes.get() + 1);
        let (endpoint, frame) = (self.clone(), frame.clone());
        self.core.reactor().spawn(async move {
            let _counted = Counted(&endpoint.core.changes);
            let Some(request) = Request::parse(frame.header.source, &frame.payload) else { return };
            let Some(volume) = endpoint.core.volume(unit) else { return };
            let _turn = volume.changes.take().await;
            let answer = endpoint.in_turn(&request, (address, unit)).await;
            answer.iter().for_each(|answer| endpoint.send(request.source, answer));
        });
    }

    /// Decides about a change again, now that it has its turn, and carries it out: an earlier change may have set the
    /// string that it tests, or have hidden the slot from its station.
    async fn in_turn(&self, request: &Request<'_>, (address, unit): (Address, UnitId)) -> Option<Vec<u8>> {
        if !self.shows(request.source, address, unit) {
            return None;
        }
        let slot = self.core.volume(unit)?.slot(address)?;
        let verdict = decide(request, &Target { address, state: &slot.borrow(), sectors: self.sectors() });
        match verdict {
            Verdict::SetString(string) => self.set_string(request, (address, unit), string).await,
            Verdict::SetMasks(masks) => self.set_masks(request, (address, unit), masks).await,
            Verdict::Reserve { stations, force } => {
                Some(self.reserve(request, (address, unit), &stations, force).await)
            }
            Verdict::Answer(answer) => Some(answer),
            Verdict::Ignore | Verdict::ReadReservation | Verdict::Ata(_) => None,
        }
    }

    async fn set_string(
        &self,
        request: &Request<'_>,
        (address, unit): (Address, UnitId),
        string: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let volume = self.core.volume(unit)?;
        let before = volume.slot(address)?.borrow().clone();
        let state = SlotState { string, ..before };
        let target = Target { address, state: &state, sectors: self.sectors() };
        Some(match volume.set_slot(address, state.clone()).await {
            true => config_answer(Some(request), &target, &state.string),
            false => error_answer(request.header, address, ErrorCode::DEVICE_UNAVAILABLE),
        })
    }

    async fn set_masks(
        &self,
        request: &Request<'_>,
        (address, unit): (Address, UnitId),
        masks: Vec<MacAddress>,
    ) -> Option<Vec<u8>> {
        let volume = self.core.volume(unit)?;
        let before = volume.slot(address)?.borrow().clone();
        let state = SlotState { masks, ..before };
        let saved = volume.set_slot(address, state.clone()).await;
        let result = if saved { Ok(&state) } else { Err(MaskError::UNSPECIFIED) };
        Some(mask_answer(request.header, address, mask_part(request.body)?, result))
    }

    /// The stations for which a volume is reserved.
    fn reserving(&self, unit: UnitId) -> Vec<MacAddress> {
        self.core.set.reserving_clients(unit).iter().filter_map(|name| mac_of(name)).collect()
    }

    async fn reserve(
        &self,
        request: &Request<'_>,
        (address, unit): (Address, UnitId),
        stations: &[MacAddress],
        force: bool,
    ) -> Vec<u8> {
        let names: Vec<String> = stations.iter().map(ToString::to_string).collect();
        let by = request.source.to_string();
        let error = match self.core.set.reserve_for(unit, &by, &names, force).await {
            Ok(()) => None,
            Err(Refusal::Reserved) => Some(ErrorCode::TARGET_RESERVED),
            Err(Refusal::Unavailable) => Some(ErrorCode::DEVICE_UNAVAILABLE),
        };
        reserve_answer(request, address, &self.reserving(unit), error)
    }
}
