//! The heap of the process.

/// Returns free memory of the heap to the kernel, where the allocator offers that (glibc). It takes some milliseconds
/// of the calling thread, so it is for the end of rare work that needed much memory.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no memory of ours, and may be made by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
