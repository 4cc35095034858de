//! Text exchanges of the full-feature phase (RFC 7143 11.10, 11.11, appendix C): SendTargets, and the keys that may be
//! declared again. Long texts take several PDUs in both directions.

use super::Session;
use super::action::{Action, SendTargetsQuery, TargetAddresses};
use super::exchange::{ExchangeState, TextExchange};
use crate::config::{PAIRS_MAX, TEXT_MAX};
use crate::keys::{PairResult, Phase};
use crate::text::{self, REJECT, TextBuffer};
use crate::wire::{Bhs, CONTINUE, FINAL, NO_TAG, Pdu, RejectReason, TextRequest, TextResponse};
use lunar_core::mem::Sg;
use lunar_core::wire::be::U32;

impl Session {
    pub(super) fn text_request(&mut self, header: &Bhs, data: &Sg, actions: &mut Vec<Action>) {
        let request = TextRequest::of(header);
        let (continues, last) = (request.flags & CONTINUE != 0, request.flags & FINAL != 0);
        let exchange = self.exchange.take();
        let step = match (exchange, request.ttt.get()) {
            (Some(waiting @ TextExchange { step: ExchangeState::AwaitingTargets { .. }, .. }), _) => {
                self.exchange = Some(waiting);
                return self.reject(RejectReason::PROTOCOL_ERROR, header);
            }
            // A request without a target transfer tag begins a new exchange and drops an unfinished one.
            (_, NO_TAG) => ExchangeState::Receiving(TextBuffer::default()),
            (Some(TextExchange { itt, ttt, step }), tag) if tag == ttt && itt == request.itt => step,
            _ => return self.reject(RejectReason::INVALID_FIELD, header),
        };
        if request.itt.get() == NO_TAG || continues && last {
            return self.reject(RejectReason::INVALID_FIELD, header);
        }
        match step {
            ExchangeState::Sending { answer, at } => self.send_text(request.itt, answer, at, true),
            ExchangeState::Receiving(mut gather) => {
                // Reject a text that is too long before it is copied.
                if data.len() > TEXT_MAX || gather.add(&data.to_vec(), TEXT_MAX).is_err() {
                    return self.reject(RejectReason::PROTOCOL_ERROR, header);
                }
                if continues {
                    let ttt = self.tag();
                    self.exchange =
                        Some(TextExchange { itt: request.itt, ttt: ttt.get(), step: ExchangeState::Receiving(gather) });
                    return self.emit_text(request.itt, 0, ttt, &[]);
                }
                self.take_text(request, &gather.take(), last, actions);
            }
            // Handled above.
            ExchangeState::AwaitingTargets { .. } => {}
        }
    }

    /// Handles a complete text.
    fn take_text(&mut self, request: &TextRequest, text: &[u8], last: bool, actions: &mut Vec<Action>) {
        let mut answer = Vec::new();
        self.negotiation.resume(&self.parameters);
        let Some(send_targets) = self.take_pairs(text, &mut answer) else {
            return self.reject(RejectReason::PROTOCOL_ERROR, request.bhs());
        };
        self.parameters = self.negotiation.parameters;
        match send_targets.and_then(|value| self.query(&value, &mut answer)) {
            Some(query) => {
                let step = ExchangeState::AwaitingTargets { answer, last };
                self.exchange = Some(TextExchange { itt: request.itt, ttt: NO_TAG, step });
                actions.push(Action::SendTargets(query));
            }
            None => self.send_text(request.itt, answer, 0, last),
        }
    }

    /// Negotiates all pairs of a text. Returns the value of SendTargets, if present; `None` if the text is invalid.
    fn take_pairs(&mut self, text: &[u8], answer: &mut Vec<u8>) -> Option<Option<String>> {
        let mut send_targets = None;
        for (count, pair) in text::pairs(text).enumerate() {
            let (key, value) = pair.ok()?;
            if count == PAIRS_MAX {
                return None;
            }
            // SendTargets is the only key that the table leaves to the session.
            if self.negotiation.take(Phase::FullFeature, key, value, answer).ok()? == PairResult::ForCaller {
                send_targets = Some(value.to_owned());
            }
        }
        Some(send_targets)
    }

    /// The query of a SendTargets value (RFC 7143 appendix C). A normal session gets only its own target. The
    /// standard has `All` rejected there, but initiators send it and expect that answer.
    fn query(&self, value: &str, answer: &mut Vec<u8>) -> Option<SendTargetsQuery> {
        let own = self.candidate.as_ref().and_then(|candidate| candidate.target.clone());
        let name = value.to_lowercase();
        let query = match (value, own) {
            ("All", _) if self.is_discovery() => Some(SendTargetsQuery::All),
            ("All" | "", Some(own)) if !self.is_discovery() => Some(SendTargetsQuery::One(own)),
            ("All" | "", _) => None,
            (_, Some(own)) if !self.is_discovery() => (*own == *name).then_some(SendTargetsQuery::One(own)),
            _ => Some(SendTargetsQuery::One(name.into())),
        };
        if query.is_none() {
            text::put(answer, "SendTargets", REJECT);
        }
        query
    }

    /// The answer to [`Action::SendTargets`].
    pub fn targets(&mut self, targets: &[TargetAddresses]) {
        let Some(TextExchange { itt, step: ExchangeState::AwaitingTargets { mut answer, last }, .. }) =
            self.exchange.take_if(|exchange| matches!(exchange.step, ExchangeState::AwaitingTargets { .. }))
        else {
            return;
        };
        for TargetAddresses { name, portals } in targets {
            text::put(&mut answer, "TargetName", name);
            for (address, group) in portals {
                // RFC 7143 13.8: IPv6 addresses are in brackets, as `SocketAddr` writes them.
                text::put(&mut answer, "TargetAddress", format_args!("{address},{group}"));
            }
        }
        self.send_text(itt, answer, 0, last);
    }

    /// Sends a text from byte `at` on, as much as fits one PDU. `last`: the initiator has sent all of its text.
    fn send_text(&mut self, itt: U32, answer: Vec<u8>, at: usize, last: bool) {
        let end = answer.len().min(at + self.parameters.max_send_segment as usize);
        let more = end < answer.len();
        let (flags, ttt) = match (more, last) {
            (true, _) => (CONTINUE, self.tag()),
            (false, true) => (FINAL, U32::new(NO_TAG)),
            (false, false) => (0, self.tag()),
        };
        self.emit_text(itt, flags, ttt, &answer[at..end]);
        let step = match (more, last) {
            (true, _) => ExchangeState::Sending { answer, at: end },
            (false, false) => ExchangeState::Receiving(TextBuffer::default()),
            (false, true) => return,
        };
        self.exchange = Some(TextExchange { itt, ttt: ttt.get(), step });
    }

    fn emit_text(&mut self, itt: U32, flags: u8, ttt: U32, text: &[u8]) {
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = self.numbers.with_status();
        let header = TextResponse { flags, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn, ..TextResponse::blank() };
        self.out.short(header, &[text]);
    }
}

#[cfg(test)]
#[path = "text_request_tests.rs"]
mod tests;
