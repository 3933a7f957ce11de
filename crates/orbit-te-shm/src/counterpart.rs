//! The door as the counterpart of both ways. Rule: all that the two sides say passes the door's own sockets; over the control link goes
//! nothing but the address.

use crate::domain::name;
use crate::door::Door;
use orbit_te_transport::{Arm, Counterpart, Say, TransportError};
use orbit_te_wire::same_host::Way;
use orbit_te_wire::{PeerId, SessionId};
use std::sync::Arc;
use std::time::Instant;

const NAMES: [&str; 2] = [name(Way::Mapping), name(Way::Kernel)];

/// The answer to bytes over the control link, at either side.
pub(crate) fn no_letters() -> TransportError {
    TransportError::RefusedByPeer("this transport takes no bytes over the control link".to_string())
}

impl Counterpart for Door {
    fn names(&self) -> &[&'static str] {
        &NAMES
    }

    fn admit(
        &self,
        session: SessionId,
        peer: PeerId,
        _say: Arc<dyn Say>,
    ) -> Result<Vec<(&'static str, Vec<u8>)>, TransportError> {
        let address = Door::admit(self, session, peer)?.encode()?;
        Ok(NAMES.map(|name| (name, address.clone())).to_vec())
    }

    fn deliver(&self, _session: SessionId, _bytes: &[u8], _now: Instant) -> Result<(), TransportError> {
        Err(no_letters())
    }

    fn drop_session(&self, session: SessionId) {
        Door::drop_session(self, session);
    }

    fn arm(&self, now: Instant) -> Option<Arm> {
        Some(Door::arm(self, now))
    }

    fn poll(&self, now: Instant) -> bool {
        Door::poll(self, now)
    }

    fn close(&self) {
        Door::close(self);
    }

    fn held(&self) -> usize {
        Door::held(self)
    }
}

#[cfg(test)]
mod tests {
    use super::NAMES;
    use crate::config::ShmConfig;
    use crate::door::Door;
    use orbit_te_memory::Registry;
    use orbit_te_transport::{Arm, Counterpart, Say};
    use orbit_te_wire::same_host::SameHostAddress;
    use orbit_te_wire::{PeerId, SessionId};
    use std::sync::Arc;
    use std::time::Instant;

    struct Nobody;

    impl Say for Nobody {
        fn say(&self, _: Vec<u8>) -> bool {
            panic!("a door says nothing over the control link")
        }
    }

    #[test]
    fn a_door_is_announced_for_both_ways_and_takes_no_letters() {
        let door: Arc<dyn Counterpart> = Door::open(ShmConfig::default(), &Registry::new()).unwrap();
        let session = SessionId(7);
        let met = door.admit(session, PeerId(8), Arc::new(Nobody)).unwrap();
        assert_eq!(met.iter().map(|(name, _)| *name).collect::<Vec<_>>(), NAMES);
        assert_eq!(met[0].1, met[1].1);
        assert_eq!(SameHostAddress::decode(&met[0].1).unwrap().session, session);
        assert!(door.deliver(session, b"anything", Instant::now()).is_err());
        assert!(matches!(door.arm(Instant::now()), Some(Arm::Sleep { fd: Some(_), .. })));
        door.drop_session(session);
        door.close();
        assert_eq!(door.held(), 0);
    }
}
