//! What this process has used, as the kernel counts it.

use anyhow::Context;
use nix::time::{ClockId, clock_gettime};

/// CPU seconds of this process so far, user and system, all threads.
pub(super) fn cpu_seconds() -> anyhow::Result<f64> {
    let t = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).context("CPU clock of the process")?;
    Ok(t.tv_sec() as f64 + t.tv_nsec() as f64 / 1e9)
}

/// The most memory that this process ever had resident, in bytes.
pub(super) fn peak_resident_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .context("no VmHWM in /proc/self/status")?;
    Ok(kib * 1024)
}
