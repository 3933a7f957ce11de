//! The side that answers, for notifications: takes their bytes, and hands them to the mailbox. Rule: answered once the mailbox has
//! spoken, so that whoever sent one knows what became of it.

use crate::conn::Conn;
use crate::error::ConnError;
use crate::lane::{Answering, Landing};
use crate::net::Net;
use crate::transport::TcpTransport;
use orbit_te_transport::{Undelivered, Verify};
use orbit_te_wire::limits::MAX_NAME_BYTES;
use orbit_te_wire::{Frame, FrameOp, Status, notification};

impl<N: Net> TcpTransport<N> {
    /// Begins to receive a notification.
    pub(crate) fn take_notification(
        &self,
        frame: Frame,
        answering: &mut Answering,
        conn: &mut Conn<N::Stream>,
    ) -> Result<(), ConnError> {
        let most = 1 + MAX_NAME_BYTES as u64 + u64::from(answering.limits.notification_bytes);
        if frame.length == 0 || frame.length > most.min(notification::MAX_BYTES as u64) {
            return Err(ConnError::Unexpected("a notification has no bytes, or more than was agreed"));
        }
        // Kept for the next one. It stays where it is until the payload is complete or the lane is gone.
        answering.notification.resize(frame.length as usize, 0);
        conn.expect_payload(answering.notification.as_mut_ptr() as u64, frame.length, Verify::Off);
        answering.landing = Some(Landing { frame, status: Status::Ok, lease: None, piece: None });
        Ok(())
    }

    /// The answer to a notification whose bytes have come.
    pub(crate) fn notified(&self, frame: &Frame, answering: &Answering) -> Result<Frame, ConnError> {
        let (name, payload) = notification::decode(&answering.notification).map_err(ConnError::Wire)?;
        let delivered = match &self.mailbox {
            Some(mailbox) => mailbox.deliver(answering.session, frame.region.0, name, payload),
            None => Err(Undelivered::NobodyListens),
        };
        let status = match delivered {
            Ok(()) => Status::Ok,
            Err(Undelivered::QueueFull) => Status::QueueFull,
            Err(Undelivered::NobodyListens) => Status::NobodyListens,
            Err(Undelivered::ShuttingDown) => Status::ShuttingDown,
        };
        Ok(frame.answer(FrameOp::NotifyDone, status))
    }
}
