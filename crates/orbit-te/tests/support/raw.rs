//! A peer that is written by hand: it opens segments as others do, and then does on its lanes what it likes.

use orbit_te_wire::control::LENGTH_BYTES;
use orbit_te_wire::hello::PRELUDE_BYTES;
use orbit_te_wire::{
    AuthSlot, Control, FRAME_BYTES, Features, Frame, FrameOp, Hello, HelloReply, Incarnation, Limits, PeerId,
    RefusalCode, RegionDescriptor, Role, SessionId, Status,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const CONTROL_BYTES: usize = 1 << 20;

/// A control link.
pub struct RawPeer {
    at: SocketAddr,
    id: PeerId,
    control: TcpStream,
    pub session: SessionId,
}

fn say_hello(at: SocketAddr, peer: PeerId, role: Role) -> (TcpStream, SessionId) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(super::SOON)).unwrap();
    let (features, limits) = (Features::OURS, Limits::default());
    let hello =
        Hello { role, peer, incarnation: Incarnation(1), features, limits, auth: AuthSlot::default() };
    stream.write_all(&hello.encode().unwrap()).unwrap();
    let mut prelude = [0; PRELUDE_BYTES];
    stream.read_exact(&mut prelude).unwrap();
    let prelude = HelloReply::decode_prelude(&prelude).unwrap();
    let mut body = vec![0; prelude.body_bytes as usize];
    stream.read_exact(&mut body).unwrap();
    match HelloReply::decode_body(&body).unwrap() {
        HelloReply::Accepted { session, .. } => (stream, session),
        HelloReply::Refused { reason } => panic!("refused: {reason}"),
    }
}

impl RawPeer {
    pub fn connect(at: SocketAddr, id: u128) -> RawPeer {
        let (control, session) = say_hello(at, PeerId(id), Role::Control);
        RawPeer { at, id: PeerId(id), control, session }
    }

    /// Asks for a segment.
    pub fn open(&mut self, name: &str) -> Result<RegionDescriptor, RefusalCode> {
        let question = Control::OpenSegment { request: 7, name: name.to_string() };
        self.control.write_all(&question.encode(CONTROL_BYTES).unwrap()).unwrap();
        loop {
            let mut length = [0; LENGTH_BYTES];
            self.control.read_exact(&mut length).unwrap();
            let mut body = vec![0; Control::decode_length(length, CONTROL_BYTES).unwrap()];
            self.control.read_exact(&mut body).unwrap();
            match Control::decode_body(&body).unwrap() {
                Control::Segment { descriptor, .. } => return Ok(descriptor),
                Control::Refused { code, .. } => return Err(code),
                _ => {}
            }
        }
    }

    pub fn lane(&self, number: u32) -> RawLane {
        let (stream, _) = say_hello(self.at, self.id, Role::Lane { session: self.session, lane: number });
        RawLane { stream }
    }
}

/// A request for what a descriptor describes.
pub fn request(op: FrameOp, of: &RegionDescriptor, offset: u64, length: u64) -> Frame {
    let key = u64::from_le_bytes(of.key("tcp").unwrap().try_into().unwrap());
    let (region, generation) = (of.region, of.generation);
    Frame {
        op,
        status: Status::Ok,
        id: 9,
        region,
        generation,
        key,
        offset,
        length,
        payload_crc: 0,
        trailer: false,
    }
}

/// A data lane.
pub struct RawLane {
    pub stream: TcpStream,
}

impl RawLane {
    /// Sends a request with as much of its payload as is given; false when the lane is closed.
    pub fn send(&mut self, frame: &Frame, payload: &[u8]) -> bool {
        self.stream.write_all(&[&frame.encode()[..], payload].concat()).is_ok()
    }

    /// Sends what is left of a payload; the lane may be closed by now.
    pub fn send_rest(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The status of the next answer, whose payload is read and thrown away.
    pub fn status(&mut self) -> Status {
        let mut header = [0; FRAME_BYTES];
        self.stream.read_exact(&mut header).unwrap();
        let frame = Frame::decode(&header).unwrap();
        let mut payload = vec![0; frame.payload_bytes() as usize];
        self.stream.read_exact(&mut payload).unwrap();
        frame.status
    }

    /// Sends a request and gives the status of its answer.
    pub fn ask(&mut self, frame: &Frame, payload: &[u8]) -> Status {
        assert!(self.send(frame, payload), "the lane is closed");
        self.status()
    }

    /// Whether the target closes the lane, within this time.
    pub fn is_closed_within(&mut self, limit: Duration) -> bool {
        self.stream.set_read_timeout(Some(limit)).unwrap();
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return false,
                Err(_) => return true,
            }
        }
    }
}
