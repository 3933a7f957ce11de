//! What a peer's door says. Rule: what it says is believed as far as it was asked; the rest ends the link.

use crate::domain::name;
use crate::entry::{Entry, Open};
use crate::sys::{Received, Window};
use crate::transport::{ShmTransport, say};
use orbit_te_memory::Access;
use orbit_te_transport::{Event, LinkId, OpError, OpErrorCode, TransportError};
use orbit_te_wire::Status;
use orbit_te_wire::same_host::{MAX_BYTES, NoEntry, SameHost, Way};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

impl ShmTransport {
    /// Takes one message of a peer; false when there is none.
    pub(crate) fn hear(&mut self, id: LinkId, now: Instant) -> Result<bool, TransportError> {
        let transport = name(self.way);
        let (way, config) = (self.way, self.config.clone());
        let Some(link) = self.find(id) else { return Ok(false) };
        let Some(socket) = link.socket() else { return Ok(false) };
        let mut bytes = [0; MAX_BYTES];
        let what = || format!("{transport}: the connection to the peer's door");
        let received =
            socket.receive(&mut bytes).map_err(|source| TransportError::Io { what: what(), source })?;
        let (message, file) = match received {
            Received::Nothing => return Ok(false),
            Received::End => {
                let source =
                    io::Error::new(io::ErrorKind::UnexpectedEof, "the peer has closed it, or has ended");
                return Err(TransportError::Io { what: what(), source });
            }
            Received::Message(count, file) => (SameHost::decode(&bytes[..count])?, file),
        };
        match message {
            SameHost::Welcome { answer, gates, proof_address } => {
                link.welcome(way, (answer, gates, proof_address), file, &config)?;
                let waiting = std::mem::take(&mut link.waiting);
                self.news.push(Event::LinkUp { link: id });
                waiting.into_iter().for_each(|slot| self.place(slot, now));
            }
            SameHost::Entered { request, gate, begin, length, access, expires_ns } => {
                let Some(key) = link.entries.asked(request) else {
                    return Err(TransportError::RefusedByPeer("an answer to nothing".to_string()));
                };
                let access = Access::from_bits_truncate(access);
                let window = match way {
                    Way::Kernel => Ok(None),
                    Way::Mapping => map(file, begin, length, access).map(Some),
                };
                let Some(Entry::Asked { waiting, since, .. }) = link.entries.remove(&key) else {
                    return Ok(true);
                };
                // From when it was asked on: the owner answered later, so that the right does not end later here than there.
                let expires = match expires_ns {
                    0 => None,
                    left => since.checked_add(Duration::from_nanos(left)),
                };
                match window {
                    Ok(window) => {
                        let open = Open { gate, begin, length, access, expires, window };
                        link.entries.insert(key, Entry::Open(open));
                        waiting.into_iter().for_each(|slot| self.place(slot, now));
                    }
                    Err(error) => {
                        // This side can't map it, which says nothing of other regions.
                        tracing::warn!(%error, "{transport}: a region of a peer can't be mapped");
                        say(link, &SameHost::Left { gate })?;
                        let error = OpError::io(OpErrorCode::Unsupported, &error);
                        waiting.into_iter().for_each(|slot| self.ops.end(slot, Err(error)));
                    }
                }
            }
            SameHost::Refused { request, why } => {
                let key = link.entries.asked(request);
                if let Some(Entry::Asked { waiting, .. }) = key.and_then(|key| link.entries.remove(&key)) {
                    let error = refusal(why);
                    waiting.into_iter().for_each(|slot| self.ops.end(slot, Err(error)));
                }
            }
            SameHost::Farewell { reason } => return Err(TransportError::RefusedByPeer(reason)),
            SameHost::Knock { .. } | SameHost::Enter { .. } | SameHost::Left { .. } => {
                return Err(TransportError::RefusedByPeer("it says what only this side may say".to_string()));
            }
        }
        Ok(true)
    }
}

fn map(file: Option<OwnedFd>, begin: u64, length: u64, access: Access) -> io::Result<Window> {
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "the peer sent no file");
    Window::map(&file.ok_or_else(missing)?, begin, length, access.contains(Access::REMOTE_WRITE))
}

/// The error that a refusal means.
fn refusal(why: NoEntry) -> OpError {
    match why {
        NoEntry::Admission(status) => match Status::from_u16(status).map(OpError::from_status) {
            Ok(Some(error)) => error,
            Ok(None) | Err(_) => OpError::new(OpErrorCode::Protocol),
        },
        NoEntry::NotShareable | NoEntry::PartOfBuffer | NoEntry::Full => {
            OpError::new(OpErrorCode::Unsupported)
        }
        NoEntry::System(os) => OpError { os: Some(os), ..OpError::new(OpErrorCode::Unsupported) },
    }
}
