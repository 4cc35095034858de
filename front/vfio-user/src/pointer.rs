//! Where the data of a command lies: PRP lists (NVMe Base 2.0 4.1.1) and scatter-gather lists (4.1.2). Each entry is
//! read once, and checked: later writes of the guest have no effect.

use crate::config::{LISTS_MAX, SEGMENTS_MAX};
use lunar_guest::Range;
use lunar_guest::memory::Memory;
use lunar_guest::scatter::ScatterList;
use lunar_nvme::command::Sgl;
use lunar_nvme::{Sqe, Status};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of a page: the only size that there is (CAP.MPSMIN and CAP.MPSMAX).
pub const PAGE: u64 = 4096;
/// Flags of an entry: PRP or SGL for data transfer (PSDT).
const POINTER: u8 = 0xc0;
/// PSDT: scatter-gather lists, with a contiguous metadata buffer or with one of several segments.
const SEGMENTS: [u8; 2] = [0x40, 0x80];

/// Where the `bytes` of a command lie.
///
/// # Errors
/// The status of the command: [`Status::PRP_OFFSET`], [`Status::SGL_SEGMENT`], [`Status::SGL_COUNT`],
/// [`Status::SGL_LENGTH`], [`Status::SGL_TYPE`]; [`Status::TRANSFER_ERROR`] when a list is not in guest memory;
/// [`Status::INVALID_FIELD`] for more bytes than a command may move.
pub fn resolve(sqe: &Sqe, bytes: u64, memory: &Memory) -> Result<ScatterList, Status> {
    if bytes == 0 {
        return Ok(ScatterList::new());
    }
    if bytes > lunar_nvme::execute::TRANSFER_BYTES_MAX {
        return Err(Status::INVALID_FIELD);
    }
    match sqe.flags & POINTER {
        0 => pages(sqe, bytes, memory),
        kind if SEGMENTS.contains(&kind) => segments(sqe.sgl, bytes, memory),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn pages(sqe: &Sqe, bytes: u64, memory: &Memory) -> Result<ScatterList, Status> {
    let [first, second] = sqe.prp();
    if !first.is_multiple_of(4) {
        return Err(Status::PRP_OFFSET);
    }
    let mut ranges = ScatterList::new();
    let count = bytes.min(PAGE - first % PAGE);
    ranges.push(Range { address: first, len: count });
    let left = bytes - count;
    if left == 0 {
        return Ok(ranges);
    }
    if left > PAGE {
        list(&mut ranges, second, left, memory)?;
    } else if second.is_multiple_of(PAGE) {
        ranges.push(Range { address: second, len: left });
    } else {
        return Err(Status::PRP_OFFSET);
    }
    Ok(ranges)
}

/// Appends the pages of a PRP list, from its entry at `at` on.
fn list(ranges: &mut ScatterList, mut at: u64, mut left: u64, memory: &Memory) -> Result<(), Status> {
    const ENTRY: u64 = 8;
    for _ in 0..LISTS_MAX {
        if !at.is_multiple_of(ENTRY) {
            return Err(Status::PRP_OFFSET);
        }
        let room = (PAGE - at % PAGE) / ENTRY;
        let wanted = left.div_ceil(PAGE);
        let count = wanted.min(room) as usize;
        let mut entries = [0_u64; (PAGE / ENTRY) as usize];
        let entries = &mut entries[..count];
        if !memory.read(at, entries.as_mut_bytes()) {
            return Err(Status::TRANSFER_ERROR);
        }
        // When the list continues, the last entry of its page is the address of the next page.
        let pages = if wanted > room { count - 1 } else { count };
        for entry in &entries[..pages] {
            let page = u64::from_le(*entry);
            if !page.is_multiple_of(PAGE) {
                return Err(Status::PRP_OFFSET);
            }
            let count = left.min(PAGE);
            ranges.push(Range { address: page, len: count });
            left -= count;
        }
        if left == 0 {
            return Ok(());
        }
        at = u64::from_le(entries[count - 1]);
    }
    Err(Status::PRP_OFFSET)
}

/// Types of SGL descriptors, with the subtype "address".
mod kind {
    pub(super) const DATA: u8 = 0x00;
    pub(super) const SEGMENT: u8 = 0x20;
    pub(super) const LAST_SEGMENT: u8 = 0x30;
}

fn segments(first: Sgl, bytes: u64, memory: &Memory) -> Result<ScatterList, Status> {
    let (mut ranges, mut left) = (ScatterList::new(), bytes);
    let mut next = Some(first);
    if first.kind == kind::DATA {
        data(&mut ranges, &first, &mut left)?;
        next = None;
    }
    let mut seen = 0;
    let mut buffer = Vec::new();
    while let Some(segment) = next.take() {
        let len = segment.length.get() as usize;
        let count = len / size_of::<Sgl>();
        if !matches!(segment.kind, kind::SEGMENT | kind::LAST_SEGMENT) {
            return Err(Status::SGL_TYPE);
        }
        if count == 0 || !len.is_multiple_of(size_of::<Sgl>()) {
            return Err(Status::SGL_SEGMENT);
        }
        seen += count;
        if seen > SEGMENTS_MAX {
            return Err(Status::SGL_COUNT);
        }
        buffer.resize(count, Sgl::new_zeroed());
        if !memory.read(segment.address.get(), buffer.as_mut_slice().as_mut_bytes()) {
            return Err(Status::TRANSFER_ERROR);
        }
        for (at, descriptor) in buffer.iter().enumerate() {
            match descriptor.kind {
                kind::DATA => data(&mut ranges, descriptor, &mut left)?,
                kind::SEGMENT | kind::LAST_SEGMENT => {
                    if at + 1 < count || segment.kind == kind::LAST_SEGMENT {
                        return Err(Status::SGL_SEGMENT);
                    }
                    next = Some(*descriptor);
                }
                _ => return Err(Status::SGL_TYPE),
            }
        }
        // Descriptors beyond the data are not looked at.
        if left == 0 {
            break;
        }
    }
    if left > 0 { Err(Status::SGL_LENGTH) } else { Ok(ranges) }
}

fn data(ranges: &mut ScatterList, descriptor: &Sgl, left: &mut u64) -> Result<(), Status> {
    let count = u64::from(descriptor.length.get()).min(*left);
    let address = descriptor.address.get();
    if address.checked_add(count).is_none() {
        return Err(Status::TRANSFER_ERROR);
    }
    if count > 0 {
        ranges.push(Range { address, len: count });
        *left -= count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::entry;
    use lunar_core::mem::Region;

    const BASE: u64 = 0x10_0000;

    fn memory() -> Memory {
        let mut memory = Memory::default();
        memory.map(BASE, 0x10_0000, Some(Region::zeroed(0x10_0000))).expect("free");
        memory
    }

    fn found(sqe: &Sqe, bytes: u64, memory: &Memory) -> Result<Vec<(u64, u64)>, Status> {
        resolve(sqe, bytes, memory).map(|ranges| ranges.iter().map(|range| (range.address, range.len)).collect())
    }

    fn put(memory: &Memory, at: u64, entries: &[u64]) {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        assert!(memory.write(at, &bytes));
    }

    #[test]
    fn one_page_or_two_need_no_list() {
        let memory = memory();
        assert_eq!(found(&entry(0x5000, 0), 4096, &memory), Ok(vec![(0x5000, 4096)]));
        assert_eq!(found(&entry(0x5800, 0x9000), 4096, &memory), Ok(vec![(0x5800, 2048), (0x9000, 2048)]));
        assert_eq!(found(&entry(0x5800, 0x6000), 4096, &memory), Ok(vec![(0x5800, 4096)]), "neighbours are one");
        assert_eq!(found(&entry(0x5802, 0), 512, &memory), Err(Status::PRP_OFFSET));
        assert_eq!(found(&entry(0x5000, 0x9200), 8192, &memory), Err(Status::PRP_OFFSET));
        assert_eq!(found(&entry(0, 0), 0, &memory), Ok(vec![]));
        assert_eq!(found(&entry(0, 0), 1 << 40, &memory), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn lists_continue_at_their_last_entry() {
        let memory = memory();
        put(&memory, BASE + 0xff0, &[0x20_0000, BASE + 0x3000]);
        put(&memory, BASE + 0x3000, &[0x30_0000, 0x30_1000, 0x40_0000]);
        let sqe = entry(0x5000, BASE + 0xff0);
        let wanted = vec![(0x5000, 4096), (0x20_0000, 4096), (0x30_0000, 8192), (0x40_0000, 512)];
        assert_eq!(found(&sqe, 4 * 4096 + 512, &memory), Ok(wanted));
        // No more entries are needed, so the last one is a page.
        put(&memory, BASE + 0xff0, &[0x20_0000, 0x50_0000]);
        let wanted = vec![(0x5000, 4096), (0x20_0000, 4096), (0x50_0000, 4096)];
        assert_eq!(found(&sqe, 3 * 4096, &memory), Ok(wanted));
        put(&memory, BASE + 0xff0, &[0x20_0001]);
        assert_eq!(found(&sqe, 3 * 4096, &memory), Err(Status::PRP_OFFSET));
        assert_eq!(found(&entry(0x5000, BASE + 4), 3 * 4096, &memory), Err(Status::PRP_OFFSET));
        assert_eq!(found(&entry(0x5000, 0x77_0000), 3 * 4096, &memory), Err(Status::TRANSFER_ERROR));
    }

    #[test]
    fn a_list_that_continues_in_itself_ends() {
        let memory = memory();
        put(&memory, BASE + 0xff8, &[BASE + 0xff8]);
        assert_eq!(found(&entry(0x5000, BASE + 0xff8), 1 << 20, &memory), Err(Status::PRP_OFFSET));
    }

    fn sgl(address: u64, length: u32, kind: u8) -> Sgl {
        Sgl { address: address.into(), length: length.into(), reserved: [0; 3], kind }
    }

    fn by_segments(first: Sgl) -> Sqe {
        let mut sqe = Sqe::new_zeroed();
        (sqe.flags, sqe.sgl) = (0x40, first);
        sqe
    }

    #[test]
    fn segments_are_followed() {
        let memory = memory();
        let put = |at, list: &[Sgl]| assert!(memory.write(at, list.as_bytes()));
        assert_eq!(found(&by_segments(sgl(0x5001, 700, 0)), 512, &memory), Ok(vec![(0x5001, 512)]));
        assert_eq!(found(&by_segments(sgl(0x5001, 500, 0)), 512, &memory), Err(Status::SGL_LENGTH));
        assert_eq!(found(&by_segments(sgl(u64::MAX, 512, 0)), 512, &memory), Err(Status::TRANSFER_ERROR));
        put(BASE, &[sgl(0x5000, 100, 0), sgl(0x7000, 0, 0), sgl(BASE + 0x100, 32, 0x30)]);
        put(BASE + 0x100, &[sgl(0x6000, 100, 0), sgl(0x8000, 312, 0)]);
        let first = by_segments(sgl(BASE, 48, 0x20));
        assert_eq!(found(&first, 512, &memory), Ok(vec![(0x5000, 100), (0x6000, 100), (0x8000, 312)]));
        assert_eq!(found(&by_segments(sgl(BASE, 40, 0x20)), 512, &memory), Err(Status::SGL_SEGMENT));
        assert_eq!(found(&by_segments(sgl(BASE, 48, 0x30)), 512, &memory), Err(Status::SGL_SEGMENT));
        assert_eq!(found(&by_segments(sgl(BASE, 48, 0x10)), 512, &memory), Err(Status::SGL_TYPE));
        // A segment that continues in itself.
        put(BASE, &[sgl(BASE, 16, 0x20)]);
        assert_eq!(found(&by_segments(sgl(BASE, 16, 0x20)), 512, &memory), Err(Status::SGL_COUNT));
    }
}
