//! DEVICE_FEATURE: what a client asks for that moves the guest to another machine, and how it is answered.

use crate::wire::{
    DeviceState, Errno, FEATURE_GET, FEATURE_INDEX, FEATURE_PROBE, FEATURE_SET, Feature, FeatureCode, Logging,
    MIGRATION_STOP_COPY, Report, Span, State,
};
use lunar_core::wire::Cursor;
use lunar_guest::Range;
use lunar_guest::dirty::{DirtyLog, RANGES_MAX, bitmap_len};
use lunar_guest::memory::Memory;
use zerocopy::IntoBytes;

/// What is wanted of a feature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wish {
    /// To know whether there is what was asked about.
    Probe,
    /// How the device moves.
    Migration,
    /// Whether it runs.
    State,
    /// That it runs, or stands still.
    SetState(State),
    /// That writes to memory are remembered: in pages of so many bytes, and which.
    StartLogging(u64, Vec<Range>),
    /// That they are forgotten.
    StopLogging,
    /// What was written.
    Report(Report),
}

/// What can be done with a feature.
fn methods(code: FeatureCode) -> Option<u32> {
    match code {
        FeatureCode::MIGRATION | FeatureCode::LOGGING_REPORT => Some(FEATURE_GET),
        FeatureCode::STATE => Some(FEATURE_GET | FEATURE_SET),
        FeatureCode::LOGGING_START | FeatureCode::LOGGING_STOP => Some(FEATURE_SET),
        _ => None,
    }
}

/// Takes a message apart.
///
/// # Errors
/// [`Errno::INVAL`] for one that is malformed, or whose answer has no room; [`Errno::NOTSUP`] for a feature, or
/// something to be done with it, that is not known.
pub fn parse(bytes: &[u8]) -> Result<(Feature, Wish), Errno> {
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
        return Ok((feature, Wish::Probe));
    }
    let room = argsz - size_of::<Feature>();
    let wish = match (code, method) {
        (FeatureCode::MIGRATION, FEATURE_GET) if room >= size_of::<u64>() => Wish::Migration,
        (FeatureCode::STATE, FEATURE_GET) if room >= size_of::<DeviceState>() => Wish::State,
        (FeatureCode::STATE, FEATURE_SET) => {
            let state: &DeviceState = cursor.take().map_err(|_| Errno::INVAL)?;
            Wish::SetState(State(state.state.get()))
        }
        (FeatureCode::LOGGING_START, FEATURE_SET) => {
            let logging: &Logging = cursor.take().map_err(|_| Errno::INVAL)?;
            let count = logging.count.get() as usize;
            if count > RANGES_MAX {
                return Err(Errno::INVAL);
            }
            let spans: Result<Vec<Range>, _> = (0..count).map(|_| cursor.take::<Span>().map(Span::range)).collect();
            Wish::StartLogging(logging.page_size.get(), spans.map_err(|_| Errno::INVAL)?)
        }
        (FeatureCode::LOGGING_STOP, FEATURE_SET) => Wish::StopLogging,
        (FeatureCode::LOGGING_REPORT, FEATURE_GET) => {
            let report: Report = *cursor.take().map_err(|_| Errno::INVAL)?;
            let bitmap = bitmap_len(report.span.range(), report.page_size.get()).ok_or(Errno::INVAL)?;
            if room < size_of::<Report>() + bitmap {
                return Err(Errno::INVAL);
            }
            Wish::Report(report)
        }
        _ => return Err(Errno::INVAL),
    };
    Ok((feature, wish))
}

/// The answer to what was asked for: the head of the question, and what there is.
#[must_use]
pub fn answer(feature: &Feature, data: &[&[u8]]) -> Vec<u8> {
    let bytes = size_of::<Feature>() + data.iter().map(|part| part.len()).sum::<usize>();
    // What is told at most fits.
    let head = Feature { argsz: (bytes as u32).into(), flags: feature.flags };
    [&[head.as_bytes()], data].concat().concat()
}

/// The bitmap of the pages that were written, of those in `asked`.
///
/// # Errors
/// [`Errno::INVAL`] when there is no log, or when it cannot be told so.
pub fn dirty_pages(memory: &Memory, asked: Range, page_size: u64) -> Result<Vec<u8>, Errno> {
    match memory.log().as_deref_mut() {
        Some(DirtyLog::Pages(pages)) => Ok(pages.report(asked, page_size)?),
        _ => Err(Errno::INVAL),
    }
}

/// How the device moves: while it stands still.
#[must_use]
pub fn migration(feature: &Feature) -> Vec<u8> {
    answer(feature, &[&MIGRATION_STOP_COPY.to_le_bytes()])
}

/// Whether it runs.
#[must_use]
pub fn state(feature: &Feature, state: State) -> Vec<u8> {
    let state = DeviceState { state: state.0.into(), descriptor: 0.into() };
    answer(feature, &[state.as_bytes()])
}

/// The answer to LOGGING_START is the question, with the size of pages that was chosen.
pub fn choose_page_size(question: &mut [u8], page_size: u64) {
    let at = size_of::<Feature>();
    if let Some(field) = question.get_mut(at..at + size_of::<u64>()) {
        field.copy_from_slice(&page_size.to_le_bytes());
    }
}

/// The states that lead from one to another, in their order (struct vfio_device_mig_state of Linux); `None`: none do.
/// All ways lead through a device that stands still and neither tells nor is told its state.
#[must_use]
pub fn way(from: State, to: State) -> Option<&'static [State]> {
    const STOP: State = State::STOP;
    let is_known = |state| matches!(state, State::STOP | State::RUNNING | State::STOP_COPY | State::RESUMING);
    if !is_known(from) || !is_known(to) {
        return None;
    }
    Some(match (from, to) {
        _ if from == to => &[],
        (STOP, State::RUNNING) => &[State::RUNNING],
        (STOP, State::STOP_COPY) => &[State::STOP_COPY],
        (STOP, _) => &[State::RESUMING],
        (_, State::RUNNING) => &[STOP, State::RUNNING],
        (_, State::STOP_COPY) => &[STOP, State::STOP_COPY],
        (_, State::RESUMING) => &[STOP, State::RESUMING],
        _ => &[STOP],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(argsz: u32, flags: u32, code: FeatureCode, data: &[u8]) -> Result<Wish, Errno> {
        let feature = Feature { argsz: argsz.into(), flags: (flags | u32::from(code.0)).into() };
        parse(&[feature.as_bytes(), data].concat()).map(|(_, wish)| wish)
    }

    #[test]
    fn what_can_be_done_is_told_before_it_is_done() {
        const BOTH: u32 = FEATURE_GET | FEATURE_SET;
        let codes = [1, 2, 3, 6, 7, 8, 0xffff].map(FeatureCode);
        let can =
            codes.map(|code| [FEATURE_GET, FEATURE_SET, BOTH].map(|how| asked(8, how | FEATURE_PROBE, code, &[])));
        let (yes, no) = (Ok(Wish::Probe), Err(Errno::NOTSUP));
        let [get, set] = [[&yes, &no, &no], [&no, &yes, &no]].map(|row| row.map(Clone::clone));
        let all = |what: &Result<Wish, Errno>| [0; 3].map(|_| what.clone());
        assert_eq!(can, [get.clone(), all(&yes), all(&no), set.clone(), set, get, all(&no)]);
        assert_eq!(asked(8, 1 << 19, FeatureCode::STATE, &[]), Err(Errno::INVAL));
        assert_eq!(asked(8, BOTH, FeatureCode::STATE, &[0; 8]), Err(Errno::INVAL), "one after the other");
        assert_eq!(asked(8, 0, FeatureCode::STATE, &[0; 8]), Err(Errno::INVAL));
    }

    #[test]
    fn what_has_no_room_is_refused() {
        assert_eq!(asked(16, FEATURE_GET, FeatureCode::MIGRATION, &[]), Ok(Wish::Migration));
        assert_eq!(asked(15, FEATURE_GET, FeatureCode::MIGRATION, &[]), Err(Errno::INVAL));
        assert_eq!(asked(15, FEATURE_GET, FeatureCode::STATE, &[]), Err(Errno::INVAL));
        assert_eq!(asked(7, FEATURE_SET, FeatureCode::LOGGING_STOP, &[]), Err(Errno::INVAL));
        assert_eq!(asked(8, FEATURE_SET, FeatureCode::STATE, &[0; 7]), Err(Errno::INVAL));
        let state = asked(8, FEATURE_SET, FeatureCode::STATE, &[3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(state, Ok(Wish::SetState(State::STOP_COPY)));
        let span = Span { address: 0.into(), len: 0x10_0000.into() };
        let report = Report { span, page_size: 4096.into() };
        let room = |argsz| asked(argsz, FEATURE_GET, FeatureCode::LOGGING_REPORT, report.as_bytes());
        assert_eq!((room(8 + 24 + 32), room(8 + 24 + 31)), (Ok(Wish::Report(report)), Err(Errno::INVAL)));
    }

    #[test]
    fn ranges_are_as_many_as_are_said() {
        let start = |count: u32, spans: usize| {
            let logging = Logging { page_size: 4096.into(), count: count.into(), reserved: 0.into() };
            asked(8, FEATURE_SET, FeatureCode::LOGGING_START, &[logging.as_bytes(), &vec![1; spans * 16]].concat())
        };
        assert_eq!(start(0, 0), Ok(Wish::StartLogging(4096, vec![])));
        assert!(matches!(start(2, 2), Ok(Wish::StartLogging(4096, spans)) if spans.len() == 2));
        assert_eq!([start(2, 1), start(u32::MAX, 3), start(65, 65)], [const { Err(Errno::INVAL) }; 3]);
        let mut question = vec![0xa5; 24];
        choose_page_size(&mut question, 4096);
        assert_eq!((question[7], &question[8..17]), (0xa5, &[0, 0x10, 0, 0, 0, 0, 0, 0, 0xa5][..]));
    }

    #[test]
    fn answers_say_how_long_they_are() {
        let feature = Feature { argsz: 99.into(), flags: (FEATURE_GET | 2).into() };
        assert_eq!(state(&feature, State::RESUMING), [16, 0, 0, 0, 2, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(migration(&feature)[8..], [1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn all_ways_lead_through_a_stop() {
        let [stop, running, copy, resuming] = [State::STOP, State::RUNNING, State::STOP_COPY, State::RESUMING];
        for (from, to, wanted) in [
            (running, stop, vec![stop]),
            (running, copy, vec![stop, copy]),
            (running, resuming, vec![stop, resuming]),
            (copy, running, vec![stop, running]),
            (resuming, running, vec![stop, running]),
            (resuming, copy, vec![stop, copy]),
            (stop, running, vec![running]),
            (stop, copy, vec![copy]),
            (stop, resuming, vec![resuming]),
            (copy, copy, vec![]),
        ] {
            assert_eq!(way(from, to), Some(&*wanted), "{from:?} {to:?}");
        }
        for odd in [State::ERROR, State::RUNNING_P2P, State::PRE_COPY, State::PRE_COPY_P2P, State(8)] {
            assert_eq!((way(odd, running), way(stop, odd), way(odd, odd)), (None, None, None), "{odd:?}");
        }
    }
}
