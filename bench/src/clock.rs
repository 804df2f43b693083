//! The facts of the host that std does not expose: the absolute monotonic clock, the time that a thread has run, and the
//! kernel's tick.

/// CLOCK_MONOTONIC in nanoseconds: comparable between processes of one host, unlike `Instant`.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The time that this thread has run, so that a busy machine does not matter. The kernel's files tell it too, but only
/// as of the last tick.
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[expect(unsafe_code, reason = "std has neither absolute times nor those of a thread")]
fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid, writable timespec, and both clocks exist on every supported kernel.
    let code = unsafe { libc::clock_gettime(clock, &mut now) };
    debug_assert_eq!(code, 0, "a clock that exists can be read");
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Ticks per second of the CPU times in `/proc/PID/stat`.
#[expect(unsafe_code, reason = "sysconf has no safe wrapper in std")]
pub fn ticks_per_second() -> f64 {
    // SAFETY: sysconf takes no pointer and _SC_CLK_TCK is always known.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks as f64 } else { 100.0 }
}
