//! What a worker counts. Rule: a life's counts only grow, so that the last report of a life is all that is known of it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Problems that are described, of each worker; the others are only counted.
const EXAMPLES: usize = 5;

/// Counts of one life of a worker, or of all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Transfers that ended.
    pub(super) transfers: u64,
    /// Of them those that succeeded.
    pub(super) succeeded: u64,
    /// The others, by what they ended with.
    pub(super) failed: BTreeMap<String, u64>,
    /// Opens, submissions and notifications that were refused or failed, by their error.
    pub(super) refused: BTreeMap<String, u64>,
    /// Requests in the transfers.
    pub(super) requests: u64,
    /// Bytes of transfers that succeeded.
    pub(super) bytes: u64,
    /// Bytes in place by the route that moved them, also those of transfers that failed.
    #[serde(default)]
    pub(super) by_route: BTreeMap<String, u64>,
    /// Tries of requests that failed and were followed by another.
    #[serde(default)]
    pub(super) tried_again: u64,
    /// Bytes that the receiving side compared.
    pub(super) checked_bytes: u64,
    /// Bytes of given-up memory that were found untouched.
    pub(super) guarded_bytes: u64,
    pub(super) notifications: u64,
    pub(super) cancels: u64,
    /// Handles dropped before their transfers ended.
    pub(super) drops: u64,
    /// Regions retired, at both sides.
    pub(super) retires: u64,
    pub(super) revokes: u64,
    /// Retirements and revocations that found leases left at their limit, and were tried again.
    pub(super) still_leased: u64,

    /// Ranges with a byte that does not belong there, and receipts that say another length.
    pub(super) wrong_bytes: u64,
    /// Notifications that came twice, were lost, or overtook one that was acknowledged.
    pub(super) wrong_notifications: u64,
    /// Transfers, opens and retirements that had not ended long after they should have.
    pub(super) hangs: u64,
    /// The first problems in words.
    pub(super) problems: Vec<String>,
}

impl Tally {
    pub(super) fn wrong_bytes(&mut self, what: String) {
        self.wrong_bytes += 1;
        self.problem(what);
    }

    pub(super) fn wrong_notification(&mut self, what: String) {
        self.wrong_notifications += 1;
        self.problem(what);
    }

    pub(super) fn hang(&mut self, what: String) {
        self.hangs += 1;
        self.problem(what);
    }

    pub(super) fn refused(&mut self, error: &str) {
        *self.refused.entry(error.to_string()).or_default() += 1;
    }

    fn problem(&mut self, what: String) {
        if self.problems.len() < EXAMPLES {
            self.problems.push(what);
        }
    }

    pub(super) fn add(&mut self, other: &Tally) {
        for (sum, part) in [
            (&mut self.transfers, other.transfers),
            (&mut self.succeeded, other.succeeded),
            (&mut self.requests, other.requests),
            (&mut self.bytes, other.bytes),
            (&mut self.tried_again, other.tried_again),
            (&mut self.checked_bytes, other.checked_bytes),
            (&mut self.guarded_bytes, other.guarded_bytes),
            (&mut self.notifications, other.notifications),
            (&mut self.cancels, other.cancels),
            (&mut self.drops, other.drops),
            (&mut self.retires, other.retires),
            (&mut self.revokes, other.revokes),
            (&mut self.still_leased, other.still_leased),
            (&mut self.wrong_bytes, other.wrong_bytes),
            (&mut self.wrong_notifications, other.wrong_notifications),
            (&mut self.hangs, other.hangs),
        ] {
            *sum += part;
        }
        for (sums, parts) in [
            (&mut self.failed, &other.failed),
            (&mut self.refused, &other.refused),
            (&mut self.by_route, &other.by_route),
        ] {
            parts.iter().for_each(|(kind, count)| *sums.entry(kind.clone()).or_default() += count);
        }
        other.problems.iter().for_each(|what| self.problem(what.clone()));
    }
}
