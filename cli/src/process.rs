//! What only the operating system can do for a process: limits, priority, and dying with one's parent.

use std::{io, os::unix::process::CommandExt, process::Command};

/// Raises the soft limit of open files to the hard one: every client and every upstream connection takes one.
#[expect(unsafe_code, reason = "getrlimit and setrlimit have no safe wrapper in std")]
pub fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only read or write the struct they are given, which lives on this stack.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))?;
    }
    Ok(limit.rlim_cur)
}

/// Makes `command` start a child that ends when the calling thread does, yields to its parent when both want the
/// processor, and does not hear the Ctrl-C of the terminal: the parent decides when it ends.
#[expect(unsafe_code, reason = "pre_exec is the only place from which prctl reaches the child")]
pub fn subordinate(command: &mut Command, niceness: i32) {
    let parent = std::process::id();
    command.process_group(0);
    let prepare = move || {
        die_with_parent(parent)?;
        // SAFETY: plain system call on the calling process.
        check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) })
    };
    // SAFETY: between fork and exec only async-signal-safe calls are made: prctl, getppid and setpriority.
    unsafe { command.pre_exec(prepare) };
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "prctl has no safe wrapper in std")]
fn die_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: plain system calls on the calling process.
    let still_there = unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        libc::getppid()
    };
    // A parent that died before the call above will send no signal any more.
    if u32::try_from(still_there) == Ok(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_parent: u32) -> io::Result<()> {
    Ok(())
}

/// Asks a child to finish what it does and end.
#[expect(unsafe_code, reason = "std can only kill")]
pub fn terminate(child: &std::process::Child) -> io::Result<()> {
    let id = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    // SAFETY: plain system call; the id is that of a child not yet waited for, so it belongs to no other process.
    check(unsafe { libc::kill(id, libc::SIGTERM) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
