//! Memory that a peer shares by a descriptor: a guest's pages, or a page of Lunar that the peer may map.
//!
//! A peer that shares a file may truncate it, and an access to the lost pages raises SIGBUS: then the region is
//! replaced by private zeroed memory, and the process continues; the same happens if the file system has no room for a
//! page, or a page is broken. Accesses to such a region have no meaning any more: see [`is_lost`]. Only file systems
//! in memory are mapped: a page fault on any other one waits for its server.
//!
//! * [`quota`]: how much one peer may have mapped
//! * `unmap`: removes mappings, which takes time

pub mod quota;
mod unmap;

use lunar_core::mem::Region;
use quota::{ALL, Amount, Quota};
use rustix::fs::{
    FileType, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use unmap::Mapping;

/// Most mapped regions of the process: the kernel allows twice as many mappings of all kinds by default (65,530).
pub const REGIONS_MAX: usize = 32768;
const _: () = assert!(ALL.regions <= REGIONS_MAX / 4 * 3, "a quarter is for memory that Lunar shares itself");
/// Of linux/magic.h.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;
const HUGETLBFS: rustix::fs::FsWord = 0x9584_58f6;

/// The mapped regions, for the signal handler: address and bytes, or zeroes.
static MAPPED: [(AtomicUsize, AtomicUsize); REGIONS_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; REGIONS_MAX];

/// Which regions were replaced by private memory: a bit for each place. All users look for theirs after each loss, so
/// few words have to be read.
static LOST: [AtomicU64; REGIONS_MAX / 64] = [const { AtomicU64::new(0) }; REGIONS_MAX / 64];
static LOSSES: AtomicUsize = AtomicUsize::new(0);

/// The word and the bit of a place.
fn lost_bit(place: usize) -> (&'static AtomicU64, u64) {
    (&LOST[place / 64], 1 << (place % 64))
}

/// The region of this place was replaced.
fn set_lost(place: usize) {
    let (word, bit) = lost_bit(place);
    word.fetch_or(bit, Ordering::SeqCst);
    LOSSES.fetch_add(1, Ordering::SeqCst);
}

/// How often any region was replaced by private memory: a reader that sees a new number checks [`is_lost`].
#[must_use]
pub fn losses() -> usize {
    LOSSES.load(Ordering::SeqCst)
}

/// Whether one of these regions is not shared any more: reads do not return the peer's data, and the peer does not see
/// writes.
#[must_use]
pub fn is_lost<'a>(mut regions: impl Iterator<Item = &'a Region>) -> bool {
    if losses() == 0 {
        return false;
    }
    let words = (0..).zip(&LOST).map(|(number, word)| (number * 64, word.load(Ordering::SeqCst)));
    let places = words.filter(|(_, word)| *word != 0).flat_map(|(first, word)| {
        let is_set = move |bit: &usize| word & 1 << bit != 0;
        (0..64).filter(is_set).map(move |bit| first + bit)
    });
    let ends = |place: usize| {
        let (base, len) = &MAPPED[place];
        (base.load(Ordering::SeqCst), len.load(Ordering::SeqCst))
    };
    let lost: Vec<(usize, usize)> = places.map(ends).collect();
    let holds = |at: usize| lost.iter().any(|(base, len)| at.wrapping_sub(*base) < *len);
    !lost.is_empty() && regions.any(|region| region.slice(0, 1).is_some_and(|first| holds(first.as_ptr().addr())))
}

/// Says that a region was lost, without a fault.
#[cfg(any(test, feature = "testing"))]
pub fn lose(region: &Region) {
    let at = region.slice(0, 1).map_or(0, |first| first.as_ptr().addr());
    let holds = |(base, len): &(AtomicUsize, AtomicUsize)| {
        at.wrapping_sub(base.load(Ordering::SeqCst)) < len.load(Ordering::SeqCst)
    };
    if let Some(place) = MAPPED.iter().position(holds) {
        set_lost(place);
    }
}

/// Keeps a mapping.
struct Keeper(Option<Mapping>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(unmap::remove);
    }
}

/// Maps `len` bytes of `file` from `offset` on, for Lunar itself.
///
/// # Errors
/// `InvalidInput` when the file has fewer, or its file system is not in memory; `OutOfMemory` when there are
/// [`REGIONS_MAX`]; else the error of the operating system.
pub fn map(file: &OwnedFd, offset: u64, len: usize, is_writable: bool) -> io::Result<Region> {
    map_counted(None, file, (offset, len), is_writable)
}

/// The same, for a peer with this quota.
///
/// # Errors
/// Those of [`map`]; `QuotaExceeded` when it has too much.
pub fn map_within(quota: &Quota, file: &OwnedFd, offset: u64, len: usize, is_writable: bool) -> io::Result<Region> {
    map_counted(Some(quota), file, (offset, len), is_writable)
}

fn map_counted(
    quota: Option<&Quota>,
    file: &OwnedFd,
    (offset, len): (u64, usize),
    is_writable: bool,
) -> io::Result<Region> {
    guard()?;
    // Only memory has seals: any other file system might delay the following calls.
    fcntl_get_seals(file).map_err(|_| io::ErrorKind::InvalidInput)?;
    let stat = fstat(file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_there =
        offset.checked_add(len as u64).is_some_and(|end| u64::try_from(stat.st_size).is_ok_and(|size| end <= size));
    let kind = fstatfs(file)?;
    if !is_file || !is_there || len == 0 || !matches!(kind.f_type, TMPFS | HUGETLBFS) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Huge pages are mapped, replaced and unmapped as a whole.
    let page = if kind.f_type == HUGETLBFS { u64::try_from(kind.f_bsize).unwrap_or(1).max(1) } else { 1 };
    let (wanted, before) = (len, (offset % page) as usize);
    let page = page as usize;
    let whole = (before + len).checked_next_multiple_of(page).ok_or(io::ErrorKind::InvalidInput)?;
    let (offset, len) = (offset - before as u64, whole);
    let share = quota.map(|quota| quota.take(Amount::region(len))).transpose()?;
    let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let null = std::ptr::null_mut();
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let base = unsafe { mmap(null, len, protection, MapFlags::SHARED, file, offset) }?;
    let Some(base) = NonNull::new(base.cast::<u8>()) else { return Err(io::ErrorKind::OutOfMemory.into()) };
    let place = MAPPED.iter().position(|(free, _)| {
        free.load(Ordering::Relaxed) == 0
            && free.compare_exchange(0, base.as_ptr().addr(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
    });
    let Some(place) = place else {
        // SAFETY: mapped just now, and no other code knows the address.
        let _ = unsafe { munmap(base.as_ptr().cast(), len) };
        return Err(io::ErrorKind::OutOfMemory.into());
    };
    MAPPED[place].1.store(len, Ordering::SeqCst);
    // A guest's memory does not belong into a core dump. Advice may be ignored. SAFETY: the mapping belongs to this
    // module; its contents stay.
    let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontDump) };
    let keeper = Box::new(Keeper(Some(Mapping { base, len, page, place, share })));
    // SAFETY: within a mapping that is readable, and writable if stated, and that the keeper unmaps; there is never a
    // reference to it.
    Ok(unsafe { Region::new(base.add(before), wanted, is_writable, keeper) })
}

/// Memory of Lunar, `len` bytes of zeroes, whose descriptor a peer may map. The peer cannot truncate it.
///
/// # Errors
/// The error of the operating system.
pub fn share(name: &str, len: usize) -> io::Result<(OwnedFd, Region)> {
    share_counted(None, name, len)
}

/// The same, for a peer with this quota.
///
/// # Errors
/// `QuotaExceeded` when it has too much; else the error of the operating system.
pub fn share_within(quota: &Quota, name: &str, len: usize) -> io::Result<(OwnedFd, Region)> {
    share_counted(Some(quota), name, len)
}

fn share_counted(quota: Option<&Quota>, name: &str, len: usize) -> io::Result<(OwnedFd, Region)> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let region = map_counted(quota, &file, (0, len), true)?;
    Ok((file, region))
}

/// The previous action for SIGBUS.
static BEFORE: OnceLock<io::Result<libc::sigaction>> = OnceLock::new();

/// Installs the handler of SIGBUS.
fn guard() -> io::Result<()> {
    match BEFORE.get_or_init(install) {
        Ok(_) => Ok(()),
        Err(why) => Err(why.kind().into()),
    }
}

fn install() -> io::Result<libc::sigaction> {
    // SAFETY: zeroes are a sigaction without flags and with an empty mask.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handle;
    new.sa_sigaction = handler as usize;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both live until the call is over, and the handler calls only what a signal handler may.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const new, &raw mut old) } {
        0 => Ok(old),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel gives a siginfo that lives until the handler is over; SIGBUS has an address.
    let at = unsafe { (*info).si_addr() }.addr();
    for (place, (base, len)) in MAPPED.iter().enumerate() {
        let (start, len) = (base.load(Ordering::SeqCst), len.load(Ordering::SeqCst));
        // Both belong to one mapping if the first is unchanged.
        if start == 0 || at.wrapping_sub(start) >= len || base.load(Ordering::SeqCst) != start {
            continue;
        }
        // No space is reserved for it: it may be larger than the memory of the machine.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let address = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: it replaces a mapping of this module, which exists meanwhile; there are no references into it. The
        // handler makes only a system call.
        if unsafe { libc::mmap(address, len, protection, flags, -1, 0) } != libc::MAP_FAILED {
            set_lost(place);
            return;
        }
    }
    // The fault has another cause: the previous action applies when the fault occurs again. SAFETY: zeroes stand for
    // the default action; both live until the call is over.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        let before = BEFORE.get().and_then(|before| before.as_ref().ok()).unwrap_or(&default);
        libc::sigaction(signal, before, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn memory_is_shared_until_it_is_let_go() {
        let (file, region) = share("test", 8192).expect("a memfd");
        let other = map(&file, 4096, 4096, false).expect("a part of it");
        assert!(region.write(4096, b"hello") && !other.write(0, b"x"));
        let mut read = [0; 5];
        assert!(other.read(0, &mut read) && &read == b"hello");
        assert!(map(&file, 4096, 8192, false).is_err() && map(&file, 0, 0, false).is_err());
        assert!(ftruncate(file.as_fd(), 0).is_err(), "sealed");
    }

    #[test]
    fn a_truncated_file_reads_as_zeroes() {
        let file = memfd_create("cut", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&file, 8192).expect("room");
        let (region, other) = (map(&file, 0, 8192, true).expect("mapped"), map(&file, 0, 4096, true).expect("mapped"));
        assert!(region.write(4096, b"here"));
        let before = losses();
        ftruncate(&file, 0).expect("it is gone");
        let mut read = [1; 4];
        assert!(region.read(4096, &mut read) && read == [0; 4]);
        assert!(region.write(0, b"again"));
        assert!(losses() > before && is_lost([&other, &region].into_iter()) && !is_lost([&other].into_iter()));
        drop(region);
        ftruncate(&file, 8192).expect("room");
        assert!(
            !is_lost([&map(&file, 0, 8192, true).expect("mapped")].into_iter()),
            "its place belongs to another region"
        );
    }

    #[test]
    fn more_than_there_is_may_be_cut_off_too() {
        const LEN: usize = 1 << 43;
        let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2");
        let file = memfd_create("cut", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&file, LEN as u64).expect("it is sparse");
        match map(&file, 0, LEN, true) {
            Ok(region) if !strict => {
                ftruncate(&file, 0).expect("it is gone");
                let mut read = [1; 4];
                assert!(region.read(LEN - 4, &mut read) && read == [0; 4]);
            }
            // Where all mapped pages must exist it is not mapped in the first place.
            mapped => assert!(strict, "{:?}", mapped.err()),
        }
    }

    /// The mappings of this process that have a file of this name.
    fn mappings(name: &str) -> usize {
        let all = std::fs::read_to_string("/proc/self/maps").expect("it is there");
        all.lines().filter(|line| line.contains(name)).count()
    }

    #[test]
    fn a_large_region_is_unmapped_elsewhere_and_counts_until_then() {
        // More than one step, which is not a multiple of it.
        for len in [4096, (200 << 20) + 4096] {
            let quota = Quota::default();
            let (file, region) = share_within(&quota, "elsewhere", len).expect("a memfd");
            let other = map_within(&quota, &file, 4096, 0, true);
            assert_eq!(other.expect_err("no bytes").kind(), io::ErrorKind::InvalidInput);
            assert!(region.write(len - 1, b"x") && quota.is_settled());
            assert_eq!(mappings("memfd:elsewhere"), 1);
            drop(region);
            let begun = std::time::Instant::now();
            while !quota.is_settled() {
                assert!(begun.elapsed().as_secs() < 60, "it is not unmapped");
                std::thread::yield_now();
            }
            assert_eq!(mappings("memfd:elsewhere"), 0);
            let place = map_within(&quota, &file, 0, 4096, false).expect("there is room again");
            assert!(!is_lost([&place].into_iter()));
        }
    }

    #[test]
    fn a_peer_cannot_have_all_of_the_address_space() {
        let _alone = quota::alone();
        let (quota, mut regions) = (Quota::default(), Vec::new());
        let file = memfd_create("much", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&file, 1 << 50).expect("it is sparse");
        let refused = loop {
            match map_within(&quota, &file, 0, 1 << 36, false) {
                Ok(region) => regions.push(region),
                Err(why) => break why,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded, "{refused}");
        assert!(map(&file, 0, 1 << 36, false).is_ok(), "there is room for others");
        drop(regions);
        while !quota.is_settled() {
            std::thread::yield_now();
        }
        assert!(map_within(&quota, &file, 0, 1 << 36, false).is_ok());
    }

    #[test]
    fn only_memory_is_mapped() {
        let pipe = io::pipe().expect("a pipe").0.into();
        assert!(map(&pipe, 0, 4096, false).is_err());
    }
}
