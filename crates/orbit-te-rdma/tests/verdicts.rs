//! What statuses of completions and asynchronous events mean: each number of verbs, row by row.

use orbit_te_rdma::handle::AsyncKind;
use orbit_te_rdma::reaction::{self, ROWS, Reaction};
use orbit_te_rdma::status::{Cause, Kind, RootCause, WcStatus};
use orbit_te_transport::{ErrorClass, OpErrorCode};

#[test]
fn statuses() {
    use ErrorClass as Class;
    use Kind::*;
    use OpErrorCode as Code;
    let check = |number: u32, kind: Kind, class, code: Option<Code>| {
        let status = WcStatus::from_number(number);
        assert_eq!(status.number(), number);
        assert_eq!((status.kind(), status.class(), status.op_error()), (kind, class, code), "{status}");
    };
    check(0, Success, Class::Op, None);
    check(1, Local, Class::Op, Some(Code::BadLength));
    check(2, Local, Class::Link, Some(Code::LinkBroken));
    check(4, Local, Class::Op, Some(Code::LocalMemoryFault));
    check(5, Flushed, Class::Link, Some(Code::LinkBroken));
    check(6, Local, Class::Op, Some(Code::LocalMemoryFault));
    check(8, Local, Class::Op, Some(Code::LocalMemoryFault));
    check(9, RemoteFault, Class::Op, Some(Code::Protocol));
    check(10, RemoteAccess, Class::Op, Some(Code::StaleGeneration));
    check(11, RemoteFault, Class::Op, Some(Code::RemoteMemoryFault));
    check(12, RetryExceeded, Class::Link, Some(Code::LinkBroken));
    check(13, NotReady, Class::Link, Some(Code::LinkBroken));
    check(16, RemoteFault, Class::Op, Some(Code::RemoteMemoryFault));
    check(20, RetryExceeded, Class::Link, Some(Code::LinkBroken));
    for number in [3, 7, 14, 15, 17, 18, 19, 21, 22, 23, 24, 999] {
        check(number, Fatal, Class::Device, Some(Code::LinkBroken));
    }
    let numbers: Vec<u32> = WcStatus::ALL.iter().map(|status| status.number()).collect();
    assert_eq!(numbers, (0..24).collect::<Vec<_>>(), "each number has its row");
    assert_eq!(WcStatus::from_number(24), WcStatus::Unknown(24));
    use orbit_te_rdma::sys::ffi::ibv_wc_status as verbs;
    for (status, number) in [
        (WcStatus::LocalLength, verbs::IBV_WC_LOC_LEN_ERR),
        (WcStatus::LocalQueueOperation, verbs::IBV_WC_LOC_QP_OP_ERR),
        (WcStatus::LocalProtection, verbs::IBV_WC_LOC_PROT_ERR),
        (WcStatus::Flushed, verbs::IBV_WC_WR_FLUSH_ERR),
        (WcStatus::WindowBind, verbs::IBV_WC_MW_BIND_ERR),
        (WcStatus::BadResponse, verbs::IBV_WC_BAD_RESP_ERR),
        (WcStatus::LocalAccess, verbs::IBV_WC_LOC_ACCESS_ERR),
        (WcStatus::RemoteInvalidRequest, verbs::IBV_WC_REM_INV_REQ_ERR),
        (WcStatus::RemoteAccess, verbs::IBV_WC_REM_ACCESS_ERR),
        (WcStatus::RemoteOperation, verbs::IBV_WC_REM_OP_ERR),
        (WcStatus::RetryExceeded, verbs::IBV_WC_RETRY_EXC_ERR),
        (WcStatus::RnrRetryExceeded, verbs::IBV_WC_RNR_RETRY_EXC_ERR),
        (WcStatus::RemoteAbort, verbs::IBV_WC_REM_ABORT_ERR),
        (WcStatus::Fatal, verbs::IBV_WC_FATAL_ERR),
        (WcStatus::ResponseTimeout, verbs::IBV_WC_RESP_TIMEOUT_ERR),
        (WcStatus::General, verbs::IBV_WC_GENERAL_ERR),
    ] {
        assert_eq!(status.number(), number, "{status}");
    }
}

#[test]
fn one_failure_flushes_many() {
    let check = |statuses: &[u32], want: Option<Cause<usize>>, consequences: u32| {
        let mut root = RootCause::default();
        statuses.iter().enumerate().for_each(|(at, s)| root.note(at, WcStatus::from_number(*s)));
        assert_eq!((root.cause(), root.consequences()), (want, consequences), "{statuses:?}");
    };
    let by = |at, status| Some(Cause::Request(at, status));
    check(&[], None, 0);
    check(&[0, 0], None, 0);
    check(&[0, 12, 5, 5, 5], by(1, WcStatus::RetryExceeded), 3);
    check(&[5, 5, 10, 5], by(2, WcStatus::RemoteAccess), 3);
    check(&[12, 11, 5], by(0, WcStatus::RetryExceeded), 2);
    check(&[5, 5, 5], Some(Cause::Elsewhere), 3);
    check(&[0, 0, 5], Some(Cause::Elsewhere), 1);
}

#[test]
fn each_event_has_its_row() {
    let check = |number: u32, want: Reaction| {
        let kind = AsyncKind::from_number(number);
        assert_eq!((reaction::reaction(kind), kind.number()), (want, number), "{kind}");
    };
    check(0, Reaction::RebuildCompletionQueue);
    check(1, Reaction::RebuildQueue);
    check(2, Reaction::RebuildQueue);
    check(3, Reaction::RebuildQueue);
    check(8, Reaction::DropDevice);
    check(9, Reaction::RailAgain);
    check(10, Reaction::RailDown);
    check(11, Reaction::RequeryLid);
    check(12, Reaction::RequeryPartitions);
    check(14, Reaction::RebuildReceiveQueue);
    check(17, Reaction::RequeryPort);
    check(18, Reaction::RequeryGids);
    check(19, Reaction::RebuildReceiveQueue);
    for number in [4, 5, 6, 7, 13, 15, 16, 20, 999] {
        check(number, Reaction::Note);
    }
    assert_eq!(ROWS.iter().map(|row| row.kind.number()).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    for row in ROWS {
        assert_eq!(AsyncKind::from_number(row.kind.number()), row.kind);
        assert_eq!(reaction::row(row.kind), Some(row));
        assert!(row.why.len() > 20 && row.kind.to_string().len() > 10);
    }
    assert!(AsyncKind::from_number(77).to_string().contains("77"));
    assert!(Reaction::RailDown.breaks_ops() && !Reaction::Note.breaks_ops());
}
