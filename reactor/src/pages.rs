//! Memory of volumes in memory: pages of 64 KiB, shared by all cores of the process.
//!
//! Pages are cut out of slabs of 2 MiB, which the kernel can back with one huge page each: a random access to 4 KiB
//! pages costs a walk of the page tables on nearly every request. Slabs are filled one after the other, so a few
//! written pages of a large volume take little memory. The process keeps the memory of some free pages for the next
//! writes and returns the memory of others to the kernel, that of an empty slab with its addresses.

use lunar_core::io::Fault;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, without_provenance_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a page: what is taken and freed at once. Large enough that a lock per page costs nothing beside the copy,
/// small enough that a file system's discards free whole ones.
pub const PAGE_BYTES: usize = 64 << 10;
/// Bytes of a slab: a huge page of x86-64, and of other processors with base pages of 4 KiB.
const SLAB_BYTES: usize = 2 << 20;
/// Pages of a slab, one bit of a mask each.
const SLAB_PAGES: usize = SLAB_BYTES / PAGE_BYTES;
const _: () = assert!(SLAB_PAGES == u32::BITS as usize);
/// Free pages whose memory the process keeps: 8 MiB, so that volumes that free and write again rarely need the kernel.
/// The slab that was mapped last may have 31 more, which were never handed out.
const IDLE_MAX: u32 = 128;
// The slab that a page was just freed in is not emptied, so that there must be another one.
const _: () = assert!(IDLE_MAX as usize >= SLAB_PAGES);

static POOL: Mutex<Pool> = Mutex::new(Pool::new(map_slab));

// Every change of the pool is complete before a call that could panic.
fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A page of memory with one owner.
pub struct Page(NonNull<u8>);

// SAFETY: the page is the only handle to its bytes, which belong to no thread.
unsafe impl Send for Page {}
// SAFETY: a shared page only lends shared references to its bytes.
unsafe impl Sync for Page {}

impl Page {
    /// A page of zeroes.
    ///
    /// # Errors
    /// `NoSpace` when the process cannot have more memory.
    pub fn zeroed() -> Result<Self, Fault> {
        let (start, is_used) = pool().take()?;
        let mut page = Self(start);
        if is_used {
            page.fill(0);
        }
        Ok(page)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        pool().give(self.0);
    }
}

impl Deref for Page {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the pool has handed these bytes out to this page alone, and keeps them mapped until it drops. They
        // are initialised: the kernel maps zeroes, and owners of the past wrote bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), PAGE_BYTES) }
    }
}

impl DerefMut for Page {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and `&mut self` of the only handle to them.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), PAGE_BYTES) }
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({:?})", self.0)
    }
}

/// A mapping of [`SLAB_BYTES`], aligned to its size.
struct Slab {
    base: NonNull<u8>,
    /// A bit for each page that is handed out.
    taken: u32,
    /// A bit for each free page that still has the bytes of its last owner.
    idle: u32,
}

// SAFETY: a slab is only the address and the state of its pages; the pool hands each page out once.
unsafe impl Send for Slab {}

/// Maps a slab of zeroes, at this address if possible, and as one huge page if that is wanted and possible.
type Map = fn(usize, bool) -> io::Result<NonNull<u8>>;

struct Pool {
    map: Map,
    /// By address.
    slabs: BTreeMap<usize, Slab>,
    /// Slabs with a free page.
    open: BTreeSet<usize>,
    /// Slabs with an idle page.
    worn: BTreeSet<usize>,
    /// Pages handed out.
    taken: usize,
    /// Idle pages of all slabs.
    idle: u32,
}

impl Pool {
    const fn new(map: Map) -> Self {
        Self { map, slabs: BTreeMap::new(), open: BTreeSet::new(), worn: BTreeSet::new(), taken: 0, idle: 0 }
    }

    /// A page, and whether it has the bytes of a former owner. Slabs are used in the order of their addresses, so that
    /// those at one end become empty.
    fn take(&mut self) -> Result<(NonNull<u8>, bool), Fault> {
        let base = match self.open.last() {
            Some(base) => *base,
            None => self.grow()?,
        };
        let slab = self.slabs.get_mut(&base).expect("a slab with a free page exists");
        // Idle pages first: they have memory.
        let free = if slab.idle == 0 { !slab.taken } else { slab.idle };
        let (number, bit) = (free.trailing_zeros() as usize, free & free.wrapping_neg());
        let is_idle = slab.idle & bit != 0;
        slab.taken |= bit;
        slab.idle &= !bit;
        self.taken += 1;
        self.idle -= u32::from(is_idle);
        if slab.taken == u32::MAX {
            self.open.remove(&base);
        }
        if slab.idle == 0 {
            self.worn.remove(&base);
        }
        // SAFETY: a slab has this page.
        Ok((unsafe { slab.base.add(number * PAGE_BYTES) }, is_idle))
    }

    /// Takes a page back.
    fn give(&mut self, page: NonNull<u8>) {
        let base = page.addr().get() & !(SLAB_BYTES - 1);
        let bit = 1 << ((page.addr().get() - base) / PAGE_BYTES);
        let slab = self.slabs.get_mut(&base).expect("a page lies in a slab");
        assert!(slab.taken & bit != 0, "a page is freed once");
        slab.taken &= !bit;
        slab.idle |= bit;
        let is_empty = slab.taken == 0;
        self.taken -= 1;
        self.idle += 1;
        self.open.insert(base);
        self.worn.insert(base);
        if self.taken == 0 {
            // No volume has data in memory any more: no free slab is kept.
            while let Some((base, _)) = self.slabs.first_key_value() {
                self.unmap(*base);
            }
        } else if self.idle > IDLE_MAX && is_empty {
            self.unmap(base);
        } else if self.idle > IDLE_MAX {
            self.empty_another(base);
        }
    }

    /// Maps another slab; returns its address. The first one takes only what is used of it, for small volumes.
    #[cold]
    fn grow(&mut self) -> Result<usize, Fault> {
        let below = self.slabs.first_key_value().map_or(0, |(lowest, _)| lowest.saturating_sub(SLAB_BYTES));
        let base = (self.map)(below, !self.slabs.is_empty()).map_err(|_| Fault::NoSpace)?;
        let address = base.addr().get();
        self.slabs.insert(address, Slab { base, taken: 0, idle: 0 });
        self.open.insert(address);
        Ok(address)
    }

    /// Returns an empty slab.
    fn unmap(&mut self, base: usize) {
        let slab = self.slabs.remove(&base).expect("the slab exists");
        assert!(slab.taken == 0, "pages of the slab are in use");
        self.open.remove(&base);
        self.worn.remove(&base);
        self.idle -= slab.idle.count_ones();
        // SAFETY: mapped with this length by `map`, and there is no page in it.
        unsafe { unmap(slab.base.as_ptr(), SLAB_BYTES) }
    }

    /// Returns the memory of all idle pages of one slab, but not of `spared`, from which more pages may be freed. The
    /// kernel takes parts of a huge page back when it is short of memory.
    fn empty_another(&mut self, spared: usize) {
        let Some(base) = self.worn.iter().copied().find(|base| *base != spared) else { return };
        let slab = self.slabs.get_mut(&base).expect("a slab with idle pages exists");
        if slab.taken == 0 {
            return self.unmap(base);
        }
        while slab.idle != 0 {
            let first = slab.idle.trailing_zeros();
            let count = (slab.idle >> first).trailing_ones();
            let (at, len) = (first as usize * PAGE_BYTES, count as usize * PAGE_BYTES);
            // SAFETY: pages of this slab that nobody owns: that they become zeroes is what the pool notes.
            if unsafe { madvise(slab.base.as_ptr().add(at).cast(), len, Advice::LinuxDontNeed) }.is_err() {
                // Their bytes stay, and so does their mark.
                return;
            }
            slab.idle &= !((u32::MAX >> (u32::BITS - count)) << first);
            self.idle -= count;
        }
        self.worn.remove(&base);
    }
}

fn map_slab(near: usize, is_huge: bool) -> io::Result<NonNull<u8>> {
    let base = map_aligned(near)?;
    let advise = |advice| {
        // SAFETY: the mapping belongs to the caller, and its contents stay.
        unsafe { madvise(base.as_ptr().cast(), SLAB_BYTES, advice) }
    };
    // All advice may be refused. The data of volumes does not belong into a core dump.
    let _ = advise(Advice::LinuxDontDump);
    // The kernel shall not fill up what is returned later. And the slabs become one mapping, of which a process may
    // only have so many: they have the same advice, and had it before the first access.
    let _ = advise(Advice::LinuxNoHugepage);
    if is_huge && advise(Advice::LinuxHugepage).is_ok() {
        // SAFETY: within the mapping, which has no other owner. The first access decides about the size of the page.
        unsafe { base.as_ptr().write_volatile(0) };
        let _ = advise(Advice::LinuxNoHugepage);
    }
    Ok(base)
}

/// Maps a slab, beside another one, if the kernel has room `near` it.
fn map_aligned(near: usize) -> io::Result<NonNull<u8>> {
    let map = |near: usize, len| {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which replaces none.
        unsafe { mmap_anonymous(without_provenance_mut(near), len, protection, MapFlags::PRIVATE) }
    };
    let place = map(near, SLAB_BYTES)?;
    if place.addr() % SLAB_BYTES == 0 {
        return NonNull::new(place.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into());
    }
    // SAFETY: mapped just now.
    unsafe { unmap(place.cast(), SLAB_BYTES) };
    let place = map(0, 2 * SLAB_BYTES)?.cast::<u8>();
    let skip = place.addr().next_multiple_of(SLAB_BYTES) - place.addr();
    // SAFETY: mapped just now; both ends are not needed, and between them lies a slab.
    let base = unsafe {
        unmap(place, skip);
        unmap(place.add(skip + SLAB_BYTES), SLAB_BYTES - skip);
        place.add(skip)
    };
    NonNull::new(base).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Unmaps `len` bytes, if there are any.
///
/// # Safety
/// They are mapped, and nothing refers to them.
unsafe fn unmap(start: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: promised by the caller.
    if let Err(why) = unsafe { munmap(start.cast(), len) } {
        // A hole in a mapping makes two of it, and there may be too many: at least the memory is returned.
        // SAFETY: as above.
        let result = unsafe { madvise(start.cast(), len, Advice::LinuxDontNeed) };
        let what = if result.is_ok() { "addresses of memory are" } else { "memory is" };
        crate::log!(warning, "{what} not returned to the kernel: {why}; vm.max_map_count may be too low");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Bytes of the slab at `base` that have memory.
    fn resident(base: usize) -> usize {
        let mut pages = [0_u8; SLAB_BYTES / 4096];
        // SAFETY: the kernel writes one byte for each page of the slab.
        let result = unsafe { libc::mincore(without_provenance_mut(base), SLAB_BYTES, pages.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 != 0).count() * 4096
    }

    fn slab_of(page: NonNull<u8>) -> usize {
        page.addr().get() & !(SLAB_BYTES - 1)
    }

    fn fill(page: NonNull<u8>, value: u8) {
        // SAFETY: the page is taken.
        unsafe { page.as_ptr().write_bytes(value, PAGE_BYTES) }
    }

    fn is_all(page: NonNull<u8>, value: u8) -> bool {
        // SAFETY: the page is taken, and no reference to it can change.
        unsafe { std::slice::from_raw_parts(page.as_ptr(), PAGE_BYTES) }.iter().all(|byte| *byte == value)
    }

    /// Takes `count` pages and writes them.
    fn take(pool: &mut Pool, count: usize) -> Vec<NonNull<u8>> {
        let mut taken = Vec::new();
        for number in 0..count {
            let (page, is_used) = pool.take().expect("memory");
            assert!(is_used || is_all(page, 0), "a page from the kernel is not zero");
            fill(page, number as u8 | 1);
            taken.push(page);
        }
        taken
    }

    #[test]
    fn slabs_are_filled_one_after_the_other() {
        let mut pool = Pool::new(map_slab);
        let pages = take(&mut pool, 2 * SLAB_PAGES + 1);
        let different: HashSet<_> = pages.iter().collect();
        assert_eq!((different.len(), pool.slabs.len()), (pages.len(), 3));
        assert_eq!(pages.iter().map(|page| slab_of(*page)).collect::<HashSet<_>>().len(), 3);
        assert_eq!(slab_of(pages[0]), slab_of(pages[SLAB_PAGES - 1]));
        pages.into_iter().for_each(|page| pool.give(page));
        assert!(pool.slabs.is_empty() && pool.idle == 0, "without pages no memory is kept");
    }

    #[test]
    fn slabs_share_their_mappings() {
        const SLABS: usize = 64;
        let mut pool = Pool::new(map_slab);
        let pages = take(&mut pool, SLABS * SLAB_PAGES);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings of this process");
        let is_ours = |line: &&str| {
            let (from, rest) = line.split_once('-').expect("two addresses");
            let to = rest.split(' ').next().expect("the end");
            let [from, to] = [from, to].map(|digits| usize::from_str_radix(digits, 16).expect("hexadecimal"));
            pool.slabs.range(from..to).next().is_some()
        };
        let count = maps.lines().filter(is_ours).count();
        assert!((1..SLABS / 2).contains(&count), "{count} mappings");
        pages.into_iter().for_each(|page| pool.give(page));
    }

    #[test]
    fn a_small_volume_takes_what_it_uses() {
        let mut pool = Pool::new(map_slab);
        let page = take(&mut pool, 1)[0];
        assert_eq!(resident(slab_of(page)), PAGE_BYTES);
        pool.give(page);
    }

    #[test]
    fn a_freed_page_is_the_next_one_and_is_marked() {
        let mut pool = Pool::new(map_slab);
        let pages = take(&mut pool, 3);
        pool.give(pages[1]);
        assert_eq!(pool.take(), Ok((pages[1], true)));
        assert!(is_all(pages[1], 1));
        pages.into_iter().for_each(|page| pool.give(page));
    }

    #[test]
    fn an_empty_slab_beyond_the_limit_is_returned() {
        let mut pool = Pool::new(map_slab);
        let slabs = IDLE_MAX as usize / SLAB_PAGES + 3;
        let pages = take(&mut pool, slabs * SLAB_PAGES);
        // In the order of a volume that is unmapped from its start.
        for page in &pages[..pages.len() - 1] {
            pool.give(*page);
            assert!(pool.idle <= IDLE_MAX);
        }
        assert!(pool.slabs.len() <= IDLE_MAX as usize / SLAB_PAGES + 1, "{} slabs", pool.slabs.len());
        let last = pages[pages.len() - 1];
        assert!(is_all(last, (pages.len() - 1) as u8 | 1));
        pool.give(last);
        assert!(pool.slabs.is_empty());
    }

    #[test]
    fn the_memory_of_free_pages_between_others_is_bounded() {
        let mut pool = Pool::new(map_slab);
        let slabs = 2 * IDLE_MAX as usize / (SLAB_PAGES - 1) + 1;
        let pages = take(&mut pool, slabs * SLAB_PAGES);
        let (kept, freed): (Vec<_>, Vec<_>) = pages.iter().enumerate().partition(|(at, _)| at % SLAB_PAGES == 7);
        freed.iter().for_each(|(_, page)| pool.give(**page));
        assert!(pool.idle <= IDLE_MAX && pool.slabs.len() == slabs);
        let memory: usize = pool.slabs.keys().map(|base| resident(*base)).sum();
        assert!(memory <= (kept.len() + IDLE_MAX as usize) * PAGE_BYTES, "{memory} bytes");
        assert!(kept.iter().all(|(at, page)| is_all(**page, *at as u8 | 1)), "a page in use has changed");
        // Returned memory is zero now, and other memory is marked: `take` checks both.
        let again = take(&mut pool, freed.len());
        assert_eq!((pool.slabs.len(), pool.idle), (slabs, 0));
        again.into_iter().chain(kept.into_iter().map(|(_, page)| *page)).for_each(|page| pool.give(page));
    }

    #[test]
    fn without_memory_there_is_no_page() {
        let mut pool = Pool::new(map_slab);
        let pages = take(&mut pool, SLAB_PAGES);
        pool.map = |_, _| Err(io::ErrorKind::OutOfMemory.into());
        assert_eq!(pool.take(), Err(Fault::NoSpace));
        pool.give(pages[5]);
        assert_eq!(pool.take(), Ok((pages[5], true)), "a free page needs no more memory");
        pages.into_iter().for_each(|page| pool.give(page));
        assert_eq!(pool.take(), Err(Fault::NoSpace));
    }

    #[test]
    fn slabs_are_aligned_where_the_kernel_aligns_nothing() {
        for near in [0, 4096, usize::MAX & !4095, 0x7fff_0000_1000] {
            let base = map_aligned(near).expect("memory");
            assert_eq!(base.addr().get() % SLAB_BYTES, 0);
            // SAFETY: mapped just now, and written to its end.
            unsafe {
                base.as_ptr().write(1);
                base.as_ptr().add(SLAB_BYTES - 1).write(1);
                unmap(base.as_ptr(), SLAB_BYTES);
            }
        }
    }

    #[test]
    fn any_thread_frees_what_another_one_took() {
        const THREADS: u8 = 4;
        let (send, receive) = std::sync::mpsc::channel::<(u8, Page)>();
        let threads = (1..=THREADS).map(|own| {
            let send = send.clone();
            std::thread::spawn(move || {
                let mut kept = Vec::new();
                for round in 0..500_usize {
                    let mut page = Page::zeroed().expect("memory");
                    assert!(page.iter().all(|byte| *byte == 0), "not zero");
                    page.fill(own);
                    kept.push(page);
                    if round % 3 == 0 {
                        let page = kept.swap_remove(round % kept.len());
                        assert!(page.iter().all(|byte| *byte == own), "another thread has this page, too");
                        send.send((own, page)).expect("the receiver waits");
                    }
                    if round % 7 == 0 {
                        kept.truncate(kept.len() / 2);
                    }
                }
                assert!(kept.iter().all(|page| page.iter().all(|byte| *byte == own)));
            })
        });
        let threads: Vec<_> = threads.collect();
        drop(send);
        for (own, page) in receive {
            assert!(page.iter().all(|byte| *byte == own));
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no assertion failed"));
    }
}
