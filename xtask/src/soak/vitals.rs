//! What a process holds, as the kernel counts it. Rule: read from outside, so that a worker can't be mistaken about itself.

use serde::Serialize;
use std::fs;

/// What a process holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Vitals {
    pub(super) descriptors: u64,
    pub(super) threads: u64,
    pub(super) resident_kib: u64,
}

impl Vitals {
    /// None when the process is gone.
    pub(super) fn of(pid: u32) -> Option<Vitals> {
        let entries = |what: &str| Some(fs::read_dir(format!("/proc/{pid}/{what}")).ok()?.count() as u64);
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let resident_kib = resident.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(Vitals { descriptors: entries("fd")?, threads: entries("task")?, resident_kib })
    }

    /// Whether it holds no more descriptors and threads than before.
    pub(super) fn is_back_at(&self, before: &Vitals) -> bool {
        self.descriptors <= before.descriptors && self.threads <= before.threads
    }
}
