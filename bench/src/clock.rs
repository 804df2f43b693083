//! The two facts of the host that std does not expose: the absolute monotonic clock, and the kernel's tick.

/// CLOCK_MONOTONIC in nanoseconds: comparable between processes of one host, unlike `Instant`.
#[expect(unsafe_code, reason = "std's Instant has no absolute value to send to another process")]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid, writable timespec, and CLOCK_MONOTONIC exists on every supported kernel.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    debug_assert_eq!(code, 0, "CLOCK_MONOTONIC cannot fail");
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Ticks per second of the CPU times in `/proc/PID/stat`.
#[expect(unsafe_code, reason = "sysconf has no safe wrapper in std")]
pub fn ticks_per_second() -> f64 {
    // SAFETY: sysconf takes no pointer and _SC_CLK_TCK is always known.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks as f64 } else { 100.0 }
}
