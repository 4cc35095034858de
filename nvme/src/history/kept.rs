//! The saved format of a history: a version, numbers, self-tests, and events, each with its length.

use super::{Event, State, TestResult};
use std::collections::VecDeque;

const VERSION: u8 = 1;

/// The saved form of a history.
pub(super) fn of(state: &State) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&state.cycles.to_le_bytes());
    out.extend_from_slice(&[state.sanitized.is_some().into(), state.sanitizes.into(), state.snapshot.is_some().into()]);
    out.extend_from_slice(&state.sanitized.unwrap_or(0).to_le_bytes());
    out.extend_from_slice(&state.snapshot.unwrap_or(0).to_le_bytes());
    out.push(state.tests.len() as u8);
    for test in &state.tests {
        let (namespace, block) = test.failed.unwrap_or((0, 0));
        out.extend_from_slice(&[test.code, test.failed.is_some().into()]);
        out.extend_from_slice(&test.named.to_le_bytes());
        out.extend_from_slice(&namespace.to_le_bytes());
        out.extend_from_slice(&block.to_le_bytes());
        out.extend_from_slice(&test.when.to_le_bytes());
    }
    out.extend_from_slice(&(state.events.len() as u32).to_le_bytes());
    for event in &state.events {
        out.push(event.kind);
        out.extend_from_slice(&event.controller.to_le_bytes());
        out.extend_from_slice(&event.when.to_le_bytes());
        out.extend_from_slice(&(event.data.len() as u16).to_le_bytes());
        out.extend_from_slice(&event.data);
    }
    out
}

/// The bytes that are not parsed yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        self.take(LEN)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn word(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn dword(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().map(|byte| byte > 0)
    }
}

/// Parses a saved history; `None` if the format is unknown.
pub(super) fn parse(bytes: &[u8]) -> Option<State> {
    let mut rest = Rest(bytes);
    if rest.byte()? != VERSION {
        return None;
    }
    let cycles = rest.long()?;
    let [was_sanitized, sanitizes, has_snapshot] = [rest.flag()?, rest.flag()?, rest.flag()?];
    let sanitized = Some(rest.dword()?).filter(|_| was_sanitized);
    let snapshot = Some(rest.long()?).filter(|_| has_snapshot);
    let mut tests = VecDeque::new();
    for _ in 0..rest.byte()? {
        let (code, has_failed) = (rest.byte()?, rest.flag()?);
        let (named, failed) = (rest.dword()?, (rest.dword()?, rest.long()?));
        tests.push_back(TestResult { code, named, failed: Some(failed).filter(|_| has_failed), when: rest.long()? });
    }
    let mut state = State { sanitized, sanitizes, tests, cycles, snapshot, ..State::default() };
    for _ in 0..rest.dword()? {
        let (kind, controller, when, len) = (rest.byte()?, rest.word()?, rest.long()?, rest.word()?);
        let event = Event { kind, controller, when, data: rest.take(len.into())?.into() };
        state.bytes += event.len();
        state.events.push_back(event);
    }
    rest.0.is_empty().then_some(state)
}
