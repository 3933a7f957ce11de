//! A peer that is written by hand: it can say anything on a connection.

use orbit_te_memory::Region;
use orbit_te_wire::hello::PRELUDE_BYTES;
use orbit_te_wire::{
    AuthSlot, FRAME_BYTES, Features, Frame, FrameOp, Hello, HelloReply, Incarnation, Limits, PeerId, Role,
    SessionId, Status,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub const SESSION: SessionId = SessionId(77);

pub fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

pub fn hello(session: SessionId, lane: u32) -> Hello {
    Hello {
        role: Role::Lane { session, lane },
        peer: PeerId(1),
        incarnation: Incarnation(1),
        features: Features::OURS,
        limits: Limits::default(),
        auth: AuthSlot::default(),
    }
}

/// The answer to a hello.
pub fn reply(stream: &mut TcpStream) -> HelloReply {
    let mut prelude = [0; PRELUDE_BYTES];
    stream.read_exact(&mut prelude).unwrap();
    let prelude = HelloReply::decode_prelude(&prelude).unwrap();
    let mut body = vec![0; prelude.body_bytes as usize];
    stream.read_exact(&mut body).unwrap();
    HelloReply::decode_body(&body).unwrap()
}

/// The reason of a refusal.
pub fn refusal(stream: &mut TcpStream) -> String {
    match reply(stream) {
        HelloReply::Refused { reason } => reason,
        other => panic!("not refused: {other:?}"),
    }
}

/// Whether the other side has ended the connection, with or without a last word.
pub fn is_closed(stream: &mut TcpStream) -> bool {
    let mut byte = [0; 256];
    loop {
        match stream.read(&mut byte) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return false,
            Err(_) => return true,
        }
    }
}

/// An established lane.
pub struct RawLane {
    pub stream: TcpStream,
    next: u64,
}

impl RawLane {
    pub fn open(at: SocketAddr, session: SessionId, lane: u32) -> RawLane {
        let mut stream = connect(at);
        stream.write_all(&hello(session, lane).encode().unwrap()).unwrap();
        match reply(&mut stream) {
            HelloReply::Accepted { session: same, .. } => assert_eq!(same, session),
            HelloReply::Refused { reason } => panic!("refused: {reason}"),
        }
        RawLane { stream, next: 1 }
    }

    /// A request for this region that the target grants.
    pub fn request(&mut self, op: FrameOp, region: &Region, offset: u64, length: u64) -> Frame {
        self.next += 1;
        Frame {
            op,
            status: Status::Ok,
            id: self.next,
            region: region.id(),
            generation: region.generation(),
            key: region.key(),
            offset,
            length,
            payload_crc: 0,
            trailer: false,
        }
    }

    pub fn send(&mut self, frame: &Frame, payload: &[u8]) {
        self.stream.write_all(&[&frame.encode()[..], payload].concat()).unwrap();
    }

    pub fn answer(&mut self) -> Frame {
        let mut header = [0; FRAME_BYTES];
        self.stream.read_exact(&mut header).unwrap();
        Frame::decode(&header).unwrap()
    }

    /// Writes and waits for the answer.
    pub fn write(&mut self, region: &Region, offset: u64, bytes: &[u8]) -> Status {
        let frame = self.request(FrameOp::Write, region, offset, bytes.len() as u64);
        self.send(&frame, bytes);
        let answer = self.answer();
        assert_eq!((answer.op, answer.id), (FrameOp::WriteDone, frame.id));
        answer.status
    }

    /// Reads and waits for the bytes.
    pub fn read(&mut self, region: &Region, offset: u64, length: usize) -> Result<Vec<u8>, Status> {
        let frame = self.request(FrameOp::Read, region, offset, length as u64);
        self.send(&frame, &[]);
        let answer = self.answer();
        assert_eq!((answer.op, answer.id), (FrameOp::ReadDone, frame.id));
        if answer.status != Status::Ok {
            return Err(answer.status);
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        Ok(bytes)
    }

    pub fn is_closed(&mut self) -> bool {
        is_closed(&mut self.stream)
    }
}
