//! A link: the connection to one peer's door, from meeting it to losing it. Rule: a link is up only when each side has shown the other
//! what the control link told it, and when a trial has shown that memory can be reached.

use crate::config::ShmConfig;
use crate::domain::name;
use crate::entry::Entries;
use crate::ops::OpSlot;
use crate::sys::{self, Gates, Process, Socket};
use orbit_te_transport::{Barrier, TransportError};
use orbit_te_wire::same_host::{Place, SameHost, SameHostAddress, VERSION, Way};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A peer, and how far the way to it is.
pub(crate) struct Link {
    pub(crate) address: SameHostAddress,
    pub(crate) state: State,
    pub(crate) entries: Entries,
    /// Ops that wait until it is up.
    pub(crate) waiting: Vec<OpSlot>,
    /// Since when it has been down.
    pub(crate) down_since: Instant,
    pause: Duration,
    pub(crate) last_request: u32,
}

pub(crate) enum State {
    /// It is tried at this time.
    Down { again: Instant },
    /// The peer's door has been knocked at.
    Knocked { socket: Socket, due: Instant },
    /// Regions can be entered.
    Up(Up),
}

pub(crate) struct Up {
    pub(crate) socket: Socket,
    pub(crate) gates: Gates,
    /// For [`Way::Kernel`].
    pub(crate) process: Option<Process>,
}

impl Link {
    pub(crate) fn new(address: SameHostAddress, config: &ShmConfig, now: Instant) -> Link {
        Link {
            address,
            state: State::Down { again: now },
            entries: Entries::default(),
            waiting: Vec::new(),
            down_since: now,
            pause: config.reconnect_pause.0,
            last_request: 0,
        }
    }

    pub(crate) fn socket(&self) -> Option<&Socket> {
        match &self.state {
            State::Down { .. } => None,
            State::Knocked { socket, .. } => Some(socket),
            State::Up(up) => Some(&up.socket),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Meets the peer and knocks at its door.
    pub(crate) fn knock(&mut self, config: &ShmConfig, way: Way, now: Instant) -> Result<(), TransportError> {
        let transport = name(way);
        let io =
            |source: io::Error| TransportError::Io { what: format!("{transport}: meeting the peer"), source };
        let socket = self.address.places.iter().find_map(|place| meet(place).transpose());
        let barred = |barrier| TransportError::Barred { transport, barrier };
        let socket = socket.ok_or_else(|| barred(Barrier::OtherHost))?.map_err(io)?;
        let user = socket.credentials().map_err(io)?.uid();
        if user != nix::unistd::geteuid().as_raw() && !config.users.contains(&user) {
            return Err(barred(Barrier::OtherUser { user }));
        }
        let SameHostAddress { session, ask, .. } = self.address;
        let knock = SameHost::Knock { version: VERSION, session, ask, way };
        match socket.send(&knock.encode()?, None) {
            // It has turned this process away already, and its words are still to be heard.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)) => {}
            sent => sent.map_err(io)?,
        }
        self.state = State::Knocked { socket, due: now + config.answer_timeout };
        Ok(())
    }

    /// The peer has opened: takes its gates, and tries whether its memory can be reached.
    pub(crate) fn welcome(
        &mut self,
        way: Way,
        (answer, gates, proof_address): (u128, u32, u64),
        file: Option<OwnedFd>,
        config: &ShmConfig,
    ) -> Result<(), TransportError> {
        let transport = name(way);
        let io = |what: &str| {
            let what = format!("{transport}: {what}");
            move |source: io::Error| TransportError::Io { what, source }
        };
        let State::Knocked { socket, .. } = &self.state else {
            return Err(TransportError::RefusedByPeer("a welcome that nobody asked for".to_string()));
        };
        let stranger =
            || TransportError::RefusedByPeer("somebody else answers in the peer's place".to_string());
        if answer != self.address.answer {
            return Err(stranger());
        }
        let file = file.ok_or_else(|| TransportError::RefusedByPeer("it shows no gates".to_string()))?;
        let gates = Gates::of_peer(&file, gates).map_err(io("the peer's gates"))?;
        let process = match way {
            Way::Mapping => None,
            Way::Kernel => {
                let barred = |barrier| TransportError::Barred { transport, barrier };
                let pid = socket.credentials().map_err(io("who the peer is"))?.pid();
                if pid == 0 {
                    return Err(barred(Barrier::NotVisible));
                }
                let process = Process::new(pid, socket.process());
                // What is at the address there proves that it is the peer's, and that the kernel copies.
                match process.word(proof_address) {
                    Ok(word) if word == answer => Some(process),
                    Ok(_) => return Err(stranger()),
                    Err(error) => {
                        return Err(barred(Barrier::Forbidden { os: error.raw_os_error().unwrap_or(0) }));
                    }
                }
            }
        };
        let down = State::Down { again: self.down_since };
        if let State::Knocked { socket, .. } = std::mem::replace(&mut self.state, down) {
            self.state = State::Up(Up { socket, gates, process });
        }
        self.pause = config.reconnect_pause.0;
        Ok(())
    }

    /// It is down, and tried again after a pause that doubles. All that was entered is left: what was mapped is unmapped before the
    /// connection closes, which is how the peer learns of it.
    pub(crate) fn fall(&mut self, config: &ShmConfig, now: Instant) {
        self.entries = Entries::default();
        if self.is_up() {
            self.down_since = now;
        }
        self.state = State::Down { again: now + self.pause };
        self.pause = (self.pause * 2).min(config.reconnect_pause.1);
    }
}

/// A connection to a place; none where nobody is met.
fn meet(place: &Place) -> io::Result<Option<Socket>> {
    match sys::connect(place) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ECONNREFUSED | libc::ENOENT | libc::ENOTDIR | libc::EACCES) => Ok(None),
            _ => Err(error),
        },
    }
}
