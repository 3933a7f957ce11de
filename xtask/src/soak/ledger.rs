//! The ledger of a run: what was done, what was found, and whether all is back where it began. Rule: it is clean or not by
//! the same rows that are printed.

use super::fault::Fault;
use super::tally::Tally;
use super::vitals::Vitals;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// What a survivor may hold more of resident memory than after its warm-up.
pub(super) const RESIDENT_SLACK_KIB: u64 = 24 << 10;

/// A process that lived through it all.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Survivor {
    pub(super) name: String,
    /// When it had started, and had done nothing yet.
    pub(super) began: Vitals,
    /// Resident memory when it had worked for a while, in KiB.
    pub(super) warm_resident_kib: u64,
    /// When its work and its peers were gone.
    pub(super) ended: Vitals,
    /// Requests that still hold memory.
    pub(super) leases: u64,
    /// Allocations that should have been dropped with their regions, and were not.
    pub(super) backings: u64,
}

/// All of a run.
#[derive(Debug, Serialize)]
pub(super) struct Ledger {
    pub(super) seed: u64,
    pub(super) seconds: f64,
    /// By fault; parts that were left out are missing here and named in `skipped`.
    #[serde(serialize_with = "by_name")]
    pub(super) faults: BTreeMap<Fault, u64>,
    pub(super) kills: u64,
    pub(super) skipped: Vec<String>,
    pub(super) tally: Tally,
    pub(super) survivors: Vec<Survivor>,
    /// What a clean run has none of, beside what `tally` and `survivors` say: processes that died by themselves or did not
    /// end, and peers that could not be reached again.
    pub(super) broken: Vec<String>,
}

fn by_name<S: serde::Serializer>(faults: &BTreeMap<Fault, u64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(faults.iter().map(|(fault, count)| (format!("{fault:?}"), count)))
}

impl Survivor {
    fn problems(&self) -> Vec<String> {
        let Survivor { name, began, ended, warm_resident_kib, leases, backings } = self;
        let mut problems = Vec::new();
        let mut more = |what: &str, before: u64, now: u64, slack: u64| {
            if now > before + slack {
                problems.push(format!("{name}: {now} {what}, {before} when it began"));
            }
        };
        more("file descriptors", began.descriptors, ended.descriptors, 0);
        more("threads", began.threads, ended.threads, 0);
        more("KiB resident", *warm_resident_kib, ended.resident_kib, RESIDENT_SLACK_KIB);
        more("leases", 0, *leases, 0);
        more("allocations", 0, *backings, 0);
        problems
    }
}

impl Ledger {
    /// All that a clean run has none of.
    pub(super) fn problems(&self) -> Vec<String> {
        let Tally { wrong_bytes, wrong_notifications, hangs, problems, .. } = &self.tally;
        let mut all = self.broken.clone();
        let counted =
            [(*wrong_bytes, "wrong bytes"), (*wrong_notifications, "wrong notifications"), (*hangs, "hangs")];
        all.extend(counted.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
        all.extend(problems.iter().cloned());
        all.extend(self.survivors.iter().flat_map(Survivor::problems));
        if self.tally.succeeded == 0 || self.tally.checked_bytes == 0 {
            all.push("no transfer succeeded, so nothing was shown".to_string());
        }
        all
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = &self.tally;
        let mut row = |what: &str, value: String| writeln!(f, "{what:34}  {value:>16}");
        row("seed", self.seed.to_string())?;
        row("seconds", format!("{:.1}", self.seconds))?;
        row("transfers", tally.transfers.to_string())?;
        row("  succeeded", tally.succeeded.to_string())?;
        for (kind, count) in &tally.failed {
            row(&format!("  {kind}"), count.to_string())?;
        }
        row("requests in them", tally.requests.to_string())?;
        row("  tried again", tally.tried_again.to_string())?;
        row("bytes moved", tally.bytes.to_string())?;
        for (route, bytes) in &tally.by_route {
            row(&format!("  {route}"), bytes.to_string())?;
        }
        row("bytes compared by their receivers", tally.checked_bytes.to_string())?;
        row("given-up bytes watched", tally.guarded_bytes.to_string())?;
        row("notifications received", tally.notifications.to_string())?;
        row("cancels", tally.cancels.to_string())?;
        row("dropped handles", tally.drops.to_string())?;
        row("retirements", tally.retires.to_string())?;
        row("revocations", tally.revokes.to_string())?;
        row("  that found leases at their limit", tally.still_leased.to_string())?;
        for (kind, count) in &tally.refused {
            row(&format!("refused: {kind}"), count.to_string())?;
        }
        row("faults", self.faults.values().sum::<u64>().to_string())?;
        for (fault, count) in &self.faults {
            row(&format!("  {fault}"), count.to_string())?;
        }
        row("kills and restarts", self.kills.to_string())?;
        row("wrong bytes", tally.wrong_bytes.to_string())?;
        row("wrong notifications", tally.wrong_notifications.to_string())?;
        row("hangs", tally.hangs.to_string())?;
        let mut survivors = String::new();
        for Survivor { name, began, warm_resident_kib, ended, leases, backings } in &self.survivors {
            writeln!(
                survivors,
                "{name}: descriptors {} -> {}, threads {} -> {}, resident KiB {} (started) {warm_resident_kib} (warm) -> \
                 {}, leases {leases}, allocations left {backings}",
                began.descriptors,
                ended.descriptors,
                began.threads,
                ended.threads,
                began.resident_kib,
                ended.resident_kib
            )?;
        }
        f.write_str(&survivors)?;
        for skip in &self.skipped {
            writeln!(f, "skipped: {skip}")?;
        }
        let problems = self.problems();
        for problem in &problems {
            writeln!(f, "problem: {problem}")?;
        }
        let verdict = if problems.is_empty() { "clean" } else { "NOT CLEAN" };
        write!(f, "the ledger is {verdict}")
    }
}
