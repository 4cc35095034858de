//! The clock of real drivers: nanoseconds since boot, the same on all cores.

use lunar_core::time::Instant;

/// The time now. No system call: the kernel maps its clock into every process.
#[must_use]
pub fn now() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that the call may write; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    // Both are positive: time since boot.
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
