//! Which routes moved the bytes, added up over receipts. Rule: what is told here was done; plans and expectations are `verdict.rs`'s.

use orbit_te::Receipt;
use orbit_te::route::{MAX_ROUTES, RouteId};
use serde::Serialize;

/// Bytes by route, and tries that failed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Taken {
    bytes: [u64; MAX_ROUTES],
    pub(crate) retries: u64,
}

/// The part of one route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Share {
    pub(crate) route: &'static str,
    pub(crate) bytes: u64,
}

impl Taken {
    pub(crate) fn add(&mut self, receipt: &Receipt) {
        for (route, bytes) in receipt.routes.iter() {
            self.bytes[route.index()] += bytes;
        }
        self.retries += u64::from(receipt.retries);
    }

    pub(crate) fn join(&mut self, other: &Taken) {
        self.bytes.iter_mut().zip(other.bytes).for_each(|(sum, bytes)| *sum += bytes);
        self.retries += other.retries;
    }

    /// The routes that moved something.
    pub(crate) fn shares(&self) -> Vec<Share> {
        let all = RouteId::all().map(|route| Share { route: route.name(), bytes: self.bytes[route.index()] });
        all.filter(|share| share.bytes > 0).collect()
    }

    /// The route that moved most; none where nothing was moved.
    pub(crate) fn main(&self) -> Option<RouteId> {
        // Of equals the first.
        let most = RouteId::all().reduce(|most, next| {
            if self.bytes[next.index()] > self.bytes[most.index()] { next } else { most }
        });
        most.filter(|route| self.bytes[route.index()] > 0)
    }
}
