//! Revocations at an engine and its domains.

use super::foreign::{Fabric, ROUTE};
use super::{SOON, meet};
use crate::{Error, MemoryError, OpKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn a_revocation_renews_at_each_domain() {
    let met = meet(Arc::default());
    met.target.revoke(&met.remote, SOON).unwrap();
    assert_eq!(met.fabric.count("renewed"), 1);
    let stale = met.carry(OpKind::Write, 1, |batch| _ = batch.route(ROUTE)).unwrap_err();
    assert!(stale.to_string().contains("open the segment again"), "{stale}");
    // At the limit nothing is renewed.
    let lease = met.remote.raw().lease().unwrap();
    met.target.revoke(&met.remote, Duration::from_millis(20)).unwrap_err();
    assert_eq!(met.fabric.count("renewed"), 1);
    drop(lease);
    met.target.retire(&met.remote, SOON).unwrap();
    assert_eq!((met.fabric.count("renewed"), met.fabric.count("deregistered")), (1, 1));
}

#[test]
fn a_domain_that_can_not_renew_is_told_of() {
    let fabric = Arc::<Fabric>::default();
    fabric.refuses_renewal.store(true, Ordering::Release);
    let met = meet(fabric);
    let error = met.target.revoke(&met.remote, SOON).unwrap_err();
    assert!(matches!(error, Error::Memory(MemoryError::Refused { domain: "rdma", .. })), "{error}");
    assert!(met.remote.raw().lease().is_ok(), "the region goes on");
}
