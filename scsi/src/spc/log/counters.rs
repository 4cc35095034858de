//! Log pages with counters: errors, bytes and commands.

use crate::context::Context;
use crate::lu::Emulated;
use crate::page::{LogPage, LogParameters};
use crate::policy::Capability;
use lunar_core::tally::{Direction, Event};

/// Parameter code of the error counter pages: total bytes processed.
const TOTAL_BYTES: u16 = 0x0005;
/// Parameter code of the error counter pages: total uncorrected errors. Stores report no corrected errors.
const UNCORRECTED: u16 = 0x0006;

/// Write error counters.
pub(crate) struct WriteErrors;

impl LogPage for WriteErrors {
    const PAGE: u8 = 0x02;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Write Error Counters";
    const CLAUSE: &'static str = "SPC-4 7.3";
    const NEEDS: Option<&'static Capability> = None;
    const MEASURES: bool = false;
    const SAVES: bool = false;

    fn write(_cx: &Context<'_>, lu: &Emulated, out: &mut LogParameters<'_, '_>) {
        out.counter(TOTAL_BYTES, lu.unit.tally.moved(Direction::Write).bytes);
        out.counter(UNCORRECTED, lu.unit.tally.total(Event::WriteError));
    }
}

/// Read error counters.
pub(crate) struct ReadErrors;

impl LogPage for ReadErrors {
    const PAGE: u8 = 0x03;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Read Error Counters";
    const CLAUSE: &'static str = "SPC-4 7.3";
    const NEEDS: Option<&'static Capability> = None;
    const MEASURES: bool = false;
    const SAVES: bool = false;

    fn write(_cx: &Context<'_>, lu: &Emulated, out: &mut LogParameters<'_, '_>) {
        out.counter(TOTAL_BYTES, lu.unit.tally.moved(Direction::Read).bytes);
        out.counter(UNCORRECTED, lu.unit.tally.total(Event::ReadError));
    }
}

/// Verify error counters.
pub(crate) struct VerifyErrors;

impl LogPage for VerifyErrors {
    const PAGE: u8 = 0x05;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Verify Error Counters";
    const CLAUSE: &'static str = "SPC-4 7.3";
    const NEEDS: Option<&'static Capability> = None;
    const MEASURES: bool = false;
    const SAVES: bool = false;

    fn write(_cx: &Context<'_>, lu: &Emulated, out: &mut LogParameters<'_, '_>) {
        out.counter(UNCORRECTED, lu.unit.tally.total(Event::VerifyError));
    }
}

/// General statistics and performance.
pub(crate) struct Performance;

/// Parameter code: general access statistics and performance.
const ACCESS: u16 = 0x0001;
/// Parameter code: idle time.
const IDLE: u16 = 0x0002;
/// Parameter code: time interval. Its value is zero, because no time is counted.
const INTERVAL: u16 = 0x0003;

impl LogPage for Performance {
    const PAGE: u8 = 0x19;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "General Statistics and Performance";
    const CLAUSE: &'static str = "SPC-4 7.3";
    const NEEDS: Option<&'static Capability> = None;
    const MEASURES: bool = false;
    const SAVES: bool = false;

    fn write(_cx: &Context<'_>, lu: &Emulated, out: &mut LogParameters<'_, '_>) {
        let [read, written] = [Direction::Read, Direction::Write].map(|direction| lu.unit.tally.moved(direction));
        let block = u64::from(lu.block_size());
        let counted = [
            read.commands,
            written.commands,
            written.bytes / block,
            read.bytes / block,
            // Read and write processing intervals, weighted commands and weighted intervals: not counted.
            0,
            0,
            0,
            0,
        ];
        let values: Vec<u8> = counted.into_iter().flat_map(|value| out.value(value).to_be_bytes()).collect();
        out.list(ACCESS, &values);
        out.list(IDLE, &[0; 8]);
        out.list(INTERVAL, &[0; 8]);
    }
}
