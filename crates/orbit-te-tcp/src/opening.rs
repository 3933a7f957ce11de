//! The opening of a connection: reading a hello or its answer without blocking. Rule: reads not one byte more than the
//! message, and never more than its limit.

use orbit_te_wire::hello::{PRELUDE_BYTES, Prelude};
use orbit_te_wire::limits::MAX_HELLO_BYTES;
use orbit_te_wire::{Hello, HelloReply, WireError};
use std::io::{self, Read};

/// Which message is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Hello,
    Reply,
}

/// What has come of a message so far.
#[derive(Debug)]
pub(crate) struct OpeningReader {
    expect: Expect,
    bytes: Vec<u8>,
    got: usize,
    prelude: Option<Prelude>,
}

/// Why an opening failed.
#[derive(Debug)]
pub(crate) enum OpeningError {
    Io(io::Error),
    Closed,
    Wire(WireError),
}

impl OpeningReader {
    pub(crate) fn new(expect: Expect) -> OpeningReader {
        OpeningReader { expect, bytes: vec![0; PRELUDE_BYTES], got: 0, prelude: None }
    }

    /// Reads what is there. `Ok(None)`: not complete yet.
    pub(crate) fn read(&mut self, stream: &mut impl Read) -> Result<Option<(Prelude, &[u8])>, OpeningError> {
        loop {
            while self.got < self.bytes.len() {
                match stream.read(&mut self.bytes[self.got..]) {
                    Ok(0) => return Err(OpeningError::Closed),
                    Ok(n) => self.got += n,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(OpeningError::Io(e)),
                }
            }
            if let Some(prelude) = self.prelude {
                return Ok(Some((prelude, &self.bytes[PRELUDE_BYTES..])));
            }
            let mut head = [0u8; PRELUDE_BYTES];
            head.copy_from_slice(&self.bytes);
            let prelude = match self.expect {
                Expect::Hello => Hello::decode_prelude(&head),
                Expect::Reply => HelloReply::decode_prelude(&head),
            }
            .map_err(OpeningError::Wire)?;
            debug_assert!(
                prelude.body_bytes as usize <= MAX_HELLO_BYTES,
                "the prelude's decoder bounds the body"
            );
            self.bytes.resize(PRELUDE_BYTES + prelude.body_bytes as usize, 0);
            self.prelude = Some(prelude);
        }
    }
}

impl From<OpeningError> for orbit_te_transport::TransportError {
    fn from(error: OpeningError) -> Self {
        let io = |source| orbit_te_transport::TransportError::Io {
            what: "the peer's first message".into(),
            source,
        };
        match error {
            OpeningError::Io(source) => io(source),
            OpeningError::Closed => io(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection was closed before it was complete; is there an OrbitTE process at that address?",
            )),
            OpeningError::Wire(error) => error.into(),
        }
    }
}
