//! Text exchanges of the full-feature phase (RFC 7143 11.10, 11.11, Appendix C): SendTargets, and what little may
//! be declared again. Long texts go over several PDUs, both ways.

use super::Session;
use super::action::{Action, SendTargetsQuery, TargetAddresses};
use super::exchange::{Exchange, Step};
use crate::config::{PAIRS_MAX, TEXT_MAX};
use crate::keys::{Phase, Taken};
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
            (Some(waiting @ Exchange { step: Step::Asking { .. }, .. }), _) => {
                self.exchange = Some(waiting);
                return self.reject(RejectReason::PROTOCOL_ERROR, header);
            }
            // Without a tag a new exchange begins, whatever became of the last.
            (_, NO_TAG) => Step::Gathering(TextBuffer::default()),
            (Some(Exchange { itt, ttt, step }), tag) if tag == ttt && itt == request.itt => step,
            _ => return self.reject(RejectReason::INVALID_FIELD, header),
        };
        if request.itt.get() == NO_TAG || continues && last {
            return self.reject(RejectReason::INVALID_FIELD, header);
        }
        match step {
            Step::Sending { answer, at } => self.send_text(request.itt, answer, at, true),
            Step::Gathering(mut gather) => {
                // Too long is refused before it is copied.
                if data.len() > TEXT_MAX || gather.add(&data.to_vec(), TEXT_MAX).is_err() {
                    return self.reject(RejectReason::PROTOCOL_ERROR, header);
                }
                if continues {
                    let ttt = self.tag();
                    self.exchange = Some(Exchange { itt: request.itt, ttt: ttt.get(), step: Step::Gathering(gather) });
                    return self.emit_text(request.itt, 0, ttt, &[]);
                }
                self.take_text(request, &gather.take(), last, actions);
            }
            // Dealt with above.
            Step::Asking { .. } => {}
        }
    }

    /// A text is complete.
    fn take_text(&mut self, request: &TextRequest, text: &[u8], last: bool, actions: &mut Vec<Action>) {
        let mut answer = Vec::new();
        self.negotiation.resume(&self.parameters);
        let Some(wanted) = self.take_pairs(text, &mut answer) else {
            return self.reject(RejectReason::PROTOCOL_ERROR, request.bhs());
        };
        self.parameters = self.negotiation.parameters;
        match wanted.and_then(|value| self.query(&value, &mut answer)) {
            Some(query) => {
                let step = Step::Asking { answer, last };
                self.exchange = Some(Exchange { itt: request.itt, ttt: NO_TAG, step });
                actions.push(Action::SendTargets(query));
            }
            None => self.send_text(request.itt, answer, 0, last),
        }
    }

    /// Takes all pairs of a text. Returns the value of SendTargets, if that was there, or `None` if the text is bad.
    fn take_pairs(&mut self, text: &[u8], answer: &mut Vec<u8>) -> Option<Option<String>> {
        let mut wanted = None;
        for (count, pair) in text::pairs(text).enumerate() {
            let (key, value) = pair.ok()?;
            if count == PAIRS_MAX {
                return None;
            }
            // SendTargets is the only key that is looked at here.
            if self.negotiation.take(Phase::FullFeature, key, value, answer).ok()? == Taken::Elsewhere {
                wanted = Some(value.to_owned());
            }
        }
        Some(wanted)
    }

    /// Appendix C: what may be asked in which kind of session. A normal session learns of its own target alone. The
    /// standard would have `All` refused there; initiators ask it all the same, and expect that answer.
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
        let Some(Exchange { itt, step: Step::Asking { mut answer, last }, .. }) =
            self.exchange.take_if(|exchange| matches!(exchange.step, Step::Asking { .. }))
        else {
            return;
        };
        for TargetAddresses { name, portals } in targets {
            text::put(&mut answer, "TargetName", name);
            for (address, group) in portals {
                // 13.8: IPv6 addresses in brackets, as `SocketAddr` writes them.
                text::put(&mut answer, "TargetAddress", format_args!("{address},{group}"));
            }
        }
        self.send_text(itt, answer, 0, last);
    }

    /// Sends a text from `at` on, as much of it as the initiator takes at once. `last`: the initiator has said all.
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
            (true, _) => Step::Sending { answer, at: end },
            (false, false) => Step::Gathering(TextBuffer::default()),
            (false, true) => return,
        };
        self.exchange = Some(Exchange { itt, ttt: ttt.get(), step });
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
