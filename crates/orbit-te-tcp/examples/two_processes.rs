//! Two processes move verified bytes with nothing above `Transport` and `Domain`: no facade, no control link, no runtime.
//!
//! `cargo run -p orbit-te-tcp --example two_processes [MIB]` starts a second process of itself as the target, writes a pattern
//! into its memory, reads it back into other memory and compares every byte. The target's descriptor travels over a pipe as a
//! printable token, as any application could do it.

use orbit_te_memory::{Access, Domain, HostBuffer, LocalSpan, Region, Registry};
use orbit_te_tcp::{Identity, Incoming, Listener, TcpAddress, TcpConfig, TcpDomain, TcpTransport};
use orbit_te_transport::{Arm, LinkId, Op, OpKind, Priority, Progress, RemoteSpan, Token, Transport, Verify};
use orbit_te_wire::{SegmentToken, SessionId, TransportKey};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Without a control link there is no session to prove; both sides of this example use a fixed one.
const SESSION: SessionId = SessionId(7);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    match words.get(1).map(String::as_str) {
        Some("target") => target(words[2].parse()?),
        Some(mib) => initiator(mib.parse()?),
        None => initiator(64),
    }
}

/// Serves one region until the initiator's lanes are gone.
fn target(mib: usize) -> Result<()> {
    let (registry, domain, me) = (Registry::new(), TcpDomain, Identity::random()?);
    let region = registry.register(HostBuffer::new(mib << 20)?.into_backing(), Access::SHARED)?;
    domain.register(&region)?;

    let mut listener = Listener::bind("127.0.0.1:0".parse()?, &TcpConfig::default())?;
    let mut transport = TcpTransport::new(TcpConfig::default(), me, &registry)?;
    let key = TransportKey {
        transport: domain.name().to_string(),
        bytes: domain.remote_key(&region, region.key()),
    };
    let token = SegmentToken {
        peer: me.peer,
        incarnation: me.incarnation,
        addresses: vec![listener.address()?],
        name: "example".to_string(),
        descriptor: region.describe(vec![key]),
    };
    println!("{}", token.to_token()?);

    let (mut incoming, mut progress): (Vec<Incoming>, _) = (Vec::new(), Progress::with_capacity(64));
    let started = Instant::now();
    let mut had_lanes = false;
    while started.elapsed() < Duration::from_secs(60) && (transport.answering_lanes() > 0 || !had_lanes) {
        had_lanes |= transport.answering_lanes() > 0;
        if !transport.poll(Instant::now(), 64, &mut progress) {
            // One loop does both: it sleeps at the listener, and only for a moment while there are lanes to serve.
            let nap = if had_lanes { Duration::from_micros(100) } else { Duration::from_millis(20) };
            listener.accept(nap, &mut incoming)?;
        }
        for lane in incoming.drain(..) {
            transport.adopt(lane)?;
        }
        progress.clear();
    }
    Ok(())
}

/// Writes, reads back and compares.
fn initiator(mib: usize) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["target", &mib.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("the target has no output")?).read_line(&mut line)?;
    let token: SegmentToken = line.trim().parse()?;

    let (registry, domain) = (Registry::new(), TcpDomain);
    let bytes = mib << 20;
    let mut source = HostBuffer::new(bytes)?;
    for (at, byte) in source.as_mut_slice().iter_mut().enumerate() {
        *byte = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7];
    }
    let source = registry.register(source.into_backing(), Access::LOCAL)?;
    let sink = registry.register(HostBuffer::new(bytes)?.into_backing(), Access::LOCAL)?;

    let mut transport = TcpTransport::new(TcpConfig::default(), Identity::random()?, &registry)?;
    let address = TcpAddress { addresses: token.addresses.clone(), session: SESSION }.encode()?;
    let link = transport.connect(token.peer, &address, Instant::now())?;
    let remote = RemoteSpan { offset: token.descriptor.base_offset, key: domain.import(&token.descriptor)? };

    let written = run(&mut transport, link, OpKind::Write, &domain, &source, remote)?;
    let read = run(&mut transport, link, OpKind::Read, &domain, &sink, remote)?;
    compare(&source, &sink)?;
    transport.close(Instant::now());
    drop(transport);
    let status = child.wait()?;

    let rate = |t: Duration| (bytes as f64 / (1u64 << 30) as f64) / t.as_secs_f64();
    println!("write {mib} MiB: {:.2} GiB/s", rate(written));
    println!("read  {mib} MiB: {:.2} GiB/s", rate(read));
    println!("verified: {bytes} bytes, target ended with {status}");
    if status.success() { Ok(()) } else { Err("the target failed".into()) }
}

/// One op over all of a region, driven to its completion.
fn run(
    transport: &mut TcpTransport,
    link: LinkId,
    kind: OpKind,
    domain: &TcpDomain,
    region: &Region,
    remote: RemoteSpan,
) -> Result<Duration> {
    let key = domain.register(region)?;
    let lease = region.lease()?;
    let local: LocalSpan = region.whole().span(key);
    let op = Op {
        kind,
        link,
        local,
        remote,
        pieces: None,
        token: Token(1),
        priority: Priority::Normal,
        verify: Verify::Off,
    };
    let started = Instant::now();
    // SAFETY: the span is of a live region whose lease is held until the completion below, and no other op has its token.
    let taken = unsafe { transport.submit(&[op], started) };
    if taken != 1 {
        return Err("an empty transport took no op".into());
    }
    let mut progress = Progress::with_capacity(16);
    while progress.completions.is_empty() {
        if started.elapsed() > Duration::from_secs(30) {
            transport.cancel(Token(1)..=Token(1), Instant::now());
        }
        transport.poll(Instant::now(), 16, &mut progress);
        if let Arm::Sleep { .. } = transport.arm(Instant::now()) {
            std::thread::yield_now();
        }
        for event in progress.events.drain(..) {
            eprintln!("{event:?}");
        }
    }
    drop(lease);
    progress.completions[0].result?;
    Ok(started.elapsed())
}

fn compare(a: &Region, b: &Region) -> Result<()> {
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for offset in (0..a.len()).step_by(1 << 20) {
        a.read_at(offset, &mut left)?;
        b.read_at(offset, &mut right)?;
        if left != right {
            return Err(format!("bytes differ in the MiB at {offset}").into());
        }
    }
    Ok(())
}
