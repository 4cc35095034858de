//! FEATURE: requests of a client that migrates the guest, and their replies.

use crate::wire::{
    DeviceState, Errno, FEATURE_GET, FEATURE_INDEX, FEATURE_PROBE, FEATURE_SET, Feature, FeatureCode, Logging,
    MIGRATION_STOP_COPY, Report, Span, State,
};
use lunar_core::wire::Cursor;
use lunar_guest::Range;
use lunar_guest::dirty::{DirtyLog, RANGES_MAX, bitmap_len};
use lunar_guest::memory::Memory;
use zerocopy::IntoBytes;

/// A request of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FeatureRequest {
    /// Whether a feature can be read or set. It can.
    Probe,
    /// MIGRATION: how the device migrates.
    Migration,
    /// STATE: the state of the device.
    State,
    /// STATE: another state of the device.
    SetState(State),
    /// LOGGING_START: bytes of a page, and the ranges of interest.
    StartLogging(u64, Vec<Range>),
    /// LOGGING_STOP.
    StopLogging,
    /// LOGGING_REPORT.
    Report(Report),
}

/// Whether a feature can be read and set: [`FEATURE_GET`], [`FEATURE_SET`]. `None` for an unknown one.
fn methods(code: FeatureCode) -> Option<u32> {
    match code {
        FeatureCode::MIGRATION | FeatureCode::LOGGING_REPORT => Some(FEATURE_GET),
        FeatureCode::STATE => Some(FEATURE_GET | FEATURE_SET),
        FeatureCode::LOGGING_START | FeatureCode::LOGGING_STOP => Some(FEATURE_SET),
        _ => None,
    }
}

/// Parses the payload of FEATURE.
///
/// # Errors
/// [`Errno::INVAL`] for a malformed message, and for one whose reply has no room; [`Errno::NOTSUP`] for an unknown
/// feature, and for one that cannot be read or set so.
pub fn parse(bytes: &[u8]) -> Result<(Feature, FeatureRequest), Errno> {
    let mut cursor = Cursor::new(bytes);
    let feature: Feature = *cursor.take().map_err(|_| Errno::INVAL)?;
    let (argsz, flags) = (feature.argsz.get() as usize, feature.flags.get());
    let method = flags & (FEATURE_GET | FEATURE_SET);
    let code = FeatureCode((flags & FEATURE_INDEX) as u16);
    let can = methods(code).ok_or(Errno::NOTSUP)?;
    if flags & !(FEATURE_INDEX | FEATURE_GET | FEATURE_SET | FEATURE_PROBE) != 0 || argsz < size_of::<Feature>() {
        return Err(Errno::INVAL);
    }
    if method & !can != 0 {
        return Err(Errno::NOTSUP);
    }
    if flags & FEATURE_PROBE != 0 {
        return Ok((feature, FeatureRequest::Probe));
    }
    let room = argsz - size_of::<Feature>();
    let request = match (code, method) {
        (FeatureCode::MIGRATION, FEATURE_GET) if room >= size_of::<u64>() => FeatureRequest::Migration,
        (FeatureCode::STATE, FEATURE_GET) if room >= size_of::<DeviceState>() => FeatureRequest::State,
        (FeatureCode::STATE, FEATURE_SET) => {
            let state: &DeviceState = cursor.take().map_err(|_| Errno::INVAL)?;
            FeatureRequest::SetState(State(state.state.get()))
        }
        (FeatureCode::LOGGING_START, FEATURE_SET) => {
            let logging: &Logging = cursor.take().map_err(|_| Errno::INVAL)?;
            let count = logging.count.get() as usize;
            if count > RANGES_MAX {
                return Err(Errno::INVAL);
            }
            let spans: Result<Vec<Range>, _> = (0..count).map(|_| cursor.take::<Span>().map(Span::range)).collect();
            FeatureRequest::StartLogging(logging.page_size.get(), spans.map_err(|_| Errno::INVAL)?)
        }
        (FeatureCode::LOGGING_STOP, FEATURE_SET) => FeatureRequest::StopLogging,
        (FeatureCode::LOGGING_REPORT, FEATURE_GET) => {
            let report: Report = *cursor.take().map_err(|_| Errno::INVAL)?;
            let bitmap = bitmap_len(report.span.range(), report.page_size.get()).ok_or(Errno::INVAL)?;
            if room < size_of::<Report>() + bitmap {
                return Err(Errno::INVAL);
            }
            FeatureRequest::Report(report)
        }
        _ => return Err(Errno::INVAL),
    };
    Ok((feature, request))
}

/// The reply with this data.
#[must_use]
pub fn answer(feature: &Feature, data: &[&[u8]]) -> Vec<u8> {
    let bytes = size_of::<Feature>() + data.iter().map(|part| part.len()).sum::<usize>();
    // The longest data is a bitmap of 256 KiB.
    let head = Feature { argsz: (bytes as u32).into(), flags: feature.flags };
    [&[head.as_bytes()], data].concat().concat()
}

/// The bitmap of the dirty pages in `asked`, with pages of `page_size` bytes.
///
/// # Errors
/// [`Errno::INVAL`] when there is no log, and for a range and a page size that cannot be reported.
pub fn dirty_pages(memory: &Memory, asked: Range, page_size: u64) -> Result<Vec<u8>, Errno> {
    match memory.log().as_deref_mut() {
        Some(DirtyLog::Pages(pages)) => Ok(pages.report(asked, page_size)?),
        _ => Err(Errno::INVAL),
    }
}

/// The reply to MIGRATION: the state is read while the device is stopped.
#[must_use]
pub fn migration(feature: &Feature) -> Vec<u8> {
    answer(feature, &[&MIGRATION_STOP_COPY.to_le_bytes()])
}

/// The reply to STATE.
#[must_use]
pub fn state(feature: &Feature, state: State) -> Vec<u8> {
    let state = DeviceState { state: state.0.into(), descriptor: 0.into() };
    answer(feature, &[state.as_bytes()])
}

/// Puts the page size that is used into the reply to LOGGING_START, which is the payload of the request otherwise.
pub fn set_page_size(payload: &mut [u8], page_size: u64) {
    let at = size_of::<Feature>();
    if let Some(field) = payload.get_mut(at..at + size_of::<u64>()) {
        field.copy_from_slice(&page_size.to_le_bytes());
    }
}

/// A step between two states (linux/vfio.h, `enum vfio_device_mig_state`). All of them lead from or to `STOP`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transition {
    /// `RUNNING` to `STOP`.
    Stop,
    /// `STOP` to `RUNNING`.
    Run,
    /// `STOP` to `STOP_COPY`.
    StartCopy,
    /// `STOP_COPY` to `STOP`.
    EndCopy,
    /// `STOP` to `RESUMING`.
    StartResume,
    /// `RESUMING` to `STOP`.
    EndResume,
}

/// The steps from one state to another. `None` when no steps lead there.
#[must_use]
pub fn transitions(from: State, to: State) -> Option<impl Iterator<Item = Transition>> {
    let leave = match from {
        State::STOP => None,
        State::RUNNING => Some(Transition::Stop),
        State::STOP_COPY => Some(Transition::EndCopy),
        State::RESUMING => Some(Transition::EndResume),
        _ => return None,
    };
    let enter = match to {
        State::STOP => None,
        State::RUNNING => Some(Transition::Run),
        State::STOP_COPY => Some(Transition::StartCopy),
        State::RESUMING => Some(Transition::StartResume),
        _ => return None,
    };
    Some([leave, enter].into_iter().flatten().filter(move |_| from != to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(argsz: u32, flags: u32, code: FeatureCode, data: &[u8]) -> Result<FeatureRequest, Errno> {
        let feature = Feature { argsz: argsz.into(), flags: (flags | u32::from(code.0)).into() };
        parse(&[feature.as_bytes(), data].concat()).map(|(_, operation)| operation)
    }

    #[test]
    fn a_probe_tells_which_features_can_be_read_and_set() {
        const BOTH: u32 = FEATURE_GET | FEATURE_SET;
        let codes = [1, 2, 3, 6, 7, 8, 0xffff].map(FeatureCode);
        let can =
            codes.map(|code| [FEATURE_GET, FEATURE_SET, BOTH].map(|how| asked(8, how | FEATURE_PROBE, code, &[])));
        let (yes, no) = (Ok(FeatureRequest::Probe), Err(Errno::NOTSUP));
        let [get, set] = [[&yes, &no, &no], [&no, &yes, &no]].map(|row| row.map(Clone::clone));
        let all = |what: &Result<FeatureRequest, Errno>| [0; 3].map(|_| what.clone());
        assert_eq!(can, [get.clone(), all(&yes), all(&no), set.clone(), set, get, all(&no)]);
        assert_eq!(asked(8, 1 << 19, FeatureCode::STATE, &[]), Err(Errno::INVAL));
        assert_eq!(asked(8, BOTH, FeatureCode::STATE, &[0; 8]), Err(Errno::INVAL), "one after the other");
        assert_eq!(asked(8, 0, FeatureCode::STATE, &[0; 8]), Err(Errno::INVAL));
    }

    #[test]
    fn requests_whose_reply_has_no_room_are_refused() {
        assert_eq!(asked(16, FEATURE_GET, FeatureCode::MIGRATION, &[]), Ok(FeatureRequest::Migration));
        assert_eq!(asked(15, FEATURE_GET, FeatureCode::MIGRATION, &[]), Err(Errno::INVAL));
        assert_eq!(asked(15, FEATURE_GET, FeatureCode::STATE, &[]), Err(Errno::INVAL));
        assert_eq!(asked(7, FEATURE_SET, FeatureCode::LOGGING_STOP, &[]), Err(Errno::INVAL));
        assert_eq!(asked(8, FEATURE_SET, FeatureCode::STATE, &[0; 7]), Err(Errno::INVAL));
        let state = asked(8, FEATURE_SET, FeatureCode::STATE, &[3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(state, Ok(FeatureRequest::SetState(State::STOP_COPY)));
        let span = Span { address: 0.into(), len: 0x10_0000.into() };
        let report = Report { span, page_size: 4096.into() };
        let room = |argsz| asked(argsz, FEATURE_GET, FeatureCode::LOGGING_REPORT, report.as_bytes());
        assert_eq!((room(8 + 24 + 32), room(8 + 24 + 31)), (Ok(FeatureRequest::Report(report)), Err(Errno::INVAL)));
    }

    #[test]
    fn a_request_has_as_many_ranges_as_it_says() {
        let start = |count: u32, spans: usize| {
            let logging = Logging { page_size: 4096.into(), count: count.into(), reserved: 0.into() };
            asked(8, FEATURE_SET, FeatureCode::LOGGING_START, &[logging.as_bytes(), &vec![1; spans * 16]].concat())
        };
        assert_eq!(start(0, 0), Ok(FeatureRequest::StartLogging(4096, vec![])));
        assert!(matches!(start(2, 2), Ok(FeatureRequest::StartLogging(4096, spans)) if spans.len() == 2));
        assert_eq!([start(2, 1), start(u32::MAX, 3), start(65, 65)], [const { Err(Errno::INVAL) }; 3]);
        let mut payload = vec![0xa5; 24];
        set_page_size(&mut payload, 4096);
        assert_eq!((payload[7], &payload[8..17]), (0xa5, &[0, 0x10, 0, 0, 0, 0, 0, 0, 0xa5][..]));
    }

    #[test]
    fn replies_tell_their_length() {
        let feature = Feature { argsz: 99.into(), flags: (FEATURE_GET | 2).into() };
        assert_eq!(state(&feature, State::RESUMING), [16, 0, 0, 0, 2, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(migration(&feature)[8..], [1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn all_transitions_lead_through_a_stop() {
        use Transition::{EndCopy, EndResume, Run, StartCopy, StartResume, Stop};
        let steps = |from, to| transitions(from, to).map(Iterator::collect::<Vec<_>>);
        let [stop, running, copy, resuming] = [State::STOP, State::RUNNING, State::STOP_COPY, State::RESUMING];
        for (from, to, wanted) in [
            (running, stop, vec![Stop]),
            (running, copy, vec![Stop, StartCopy]),
            (running, resuming, vec![Stop, StartResume]),
            (copy, running, vec![EndCopy, Run]),
            (copy, resuming, vec![EndCopy, StartResume]),
            (resuming, running, vec![EndResume, Run]),
            (resuming, copy, vec![EndResume, StartCopy]),
            (stop, running, vec![Run]),
            (stop, copy, vec![StartCopy]),
            (stop, resuming, vec![StartResume]),
            (copy, copy, vec![]),
        ] {
            assert_eq!(steps(from, to), Some(wanted), "{from:?} {to:?}");
        }
        for odd in [State::ERROR, State::RUNNING_P2P, State::PRE_COPY, State::PRE_COPY_P2P, State(8)] {
            assert_eq!((steps(odd, running), steps(stop, odd), steps(odd, odd)), (None, None, None), "{odd:?}");
        }
    }
}
