//! The floor, not a product: plain blocking sockets, one connection, one request and its reply at a time, nothing tuned
//! but TCP_NODELAY. A submission of many blocks is a raw stream: all blocks back to back, one acknowledgement at the end.

use super::engine::{Engine, Role};
use super::plan::{Case, Op};
use anyhow::{Context, bail};
use orbit_te_memory::{HostBuffer, HostOptions, PageSize, Sharing};
use serde_json::{Value, json};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Op, three bytes of nothing, blocks left in this submission, offset, length; little-endian.
const HEAD_BYTES: usize = 24;
type Head = [u8; HEAD_BYTES];

fn encode(op: Op, left: u32, offset: u64, length: u64) -> Head {
    let mut head = [0; HEAD_BYTES];
    head[0] = matches!(op, Op::Read).into();
    head[4..8].copy_from_slice(&left.to_le_bytes());
    head[8..16].copy_from_slice(&offset.to_le_bytes());
    head[16..24].copy_from_slice(&length.to_le_bytes());
    head
}

fn word(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

/// The buffer. The lock is never contended while bytes move: it costs nanoseconds.
#[derive(Clone)]
struct Shared(Arc<Mutex<HostBuffer>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HostBuffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Raw {
    buffer: Shared,
    port: Option<u16>,
    peer: Option<TcpStream>,
    op: Op,
    block: usize,
    offsets: Vec<Vec<usize>>,
    heads: Vec<Vec<Head>>,
}

impl Raw {
    pub(super) fn new(role: Role, bytes: usize) -> anyhow::Result<Raw> {
        // Huge pages where the system gives them, as the other engines' workers get.
        let options = HostOptions { pages: PageSize::Huge, prefault_threads: 1, sharing: Sharing::Never };
        let buffer = Shared(Arc::new(Mutex::new(HostBuffer::with_options(bytes, options)?)));
        let port = match role {
            Role::Initiator => None,
            Role::Target => Some(listen(buffer.clone())?),
        };
        Ok(Raw { buffer, port, peer: None, op: Op::Write, block: 0, offsets: Vec::new(), heads: Vec::new() })
    }
}

fn listen(buffer: Shared) -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    std::thread::Builder::new().name("raw-target".into()).spawn(move || {
        let served = listener.accept().and_then(|(stream, _)| serve(stream, &buffer));
        if let Err(e) = served {
            eprintln!("raw target: {e}");
        }
    })?;
    Ok(port)
}

fn serve(mut stream: TcpStream, buffer: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head: Head = [0; HEAD_BYTES];
    loop {
        match stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        }
        let (left, offset, length) = (word(&head[4..8]), word(&head[8..16]), word(&head[16..24]));
        let mut buffer = buffer.lock();
        let Some(end) = offset.checked_add(length).filter(|end| *end <= buffer.as_slice().len()) else {
            return Err(io::Error::other("a request beyond the buffer"));
        };
        if head[0] == 0 {
            stream.read_exact(&mut buffer.as_mut_slice()[offset..end])?;
            if left == 0 {
                stream.write_all(b"k")?;
            }
        } else {
            stream.write_all(&buffer.as_slice()[offset..end])?;
        }
    }
}

/// Header and block in one call; what that leaves, in as many as it takes.
fn send(mut stream: &TcpStream, head: &[u8], block: &[u8]) -> io::Result<()> {
    let sent = stream.write_vectored(&[IoSlice::new(head), IoSlice::new(block)])?;
    if sent < head.len() {
        stream.write_all(&head[sent..])?;
    }
    stream.write_all(&block[sent.saturating_sub(head.len())..])
}

impl Engine for Raw {
    fn version(&self) -> String {
        "std::net".into()
    }

    fn endpoint(&self) -> anyhow::Result<Value> {
        Ok(json!({ "port": self.port }))
    }

    fn connect(&mut self, endpoint: &Value) -> anyhow::Result<()> {
        let port = endpoint["port"].as_u64().and_then(|p| u16::try_from(p).ok());
        let port = port.context("the endpoint has no port")?;
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        self.peer = Some(stream);
        Ok(())
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) -> anyhow::Result<()> {
        self.buffer.lock().as_mut_slice()[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn load(&mut self, offset: usize, into: &mut [u8]) -> anyhow::Result<()> {
        into.copy_from_slice(&self.buffer.lock().as_slice()[offset..offset + into.len()]);
        Ok(())
    }

    fn prepare(&mut self, case: &Case) -> anyhow::Result<()> {
        if !case.is_plain() {
            bail!("plain sockets move blocks, one submission at a time");
        }
        let (op, plan) = (case.op, case.plan());
        (self.op, self.block) = (op, plan.block);
        let offsets = |slot| (0..plan.batch).map(|i| plan.offset(slot, i)).collect();
        self.offsets = (0..plan.slots).map(offsets).collect();
        let head = |(i, offset): (usize, &usize)| {
            encode(op, (plan.batch - 1 - i) as u32, *offset as u64, plan.block as u64)
        };
        self.heads = self.offsets.iter().map(|slot| slot.iter().enumerate().map(head).collect()).collect();
        Ok(())
    }

    fn submit(&mut self, slot: usize) -> anyhow::Result<()> {
        let mut stream = self.peer.as_ref().context("not connected")?;
        let (offsets, heads, block) = (&self.offsets[slot], &self.heads[slot], self.block);
        let mut buffer = self.buffer.lock();
        match self.op {
            Op::Write => {
                for (head, offset) in heads.iter().zip(offsets) {
                    send(stream, head, &buffer.as_slice()[*offset..offset + block])?;
                }
                let mut acknowledgement = [0];
                stream.read_exact(&mut acknowledgement)?;
            }
            Op::Read => {
                stream.write_all(heads.as_flattened())?;
                for offset in offsets {
                    stream.read_exact(&mut buffer.as_mut_slice()[*offset..offset + block])?;
                }
            }
        }
        Ok(())
    }
}
