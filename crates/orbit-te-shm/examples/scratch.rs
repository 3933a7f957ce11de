#![allow(clippy::unwrap_used, missing_docs)]
use orbit_te_memory::*;
use orbit_te_shm::*;
use orbit_te_transport::*;
use orbit_te_wire::*;
use std::sync::Arc;
use std::time::*;

fn main() {
    let way = if std::env::args().nth(1).as_deref() == Some("kernel") { Way::Kernel } else { Way::Mapping };
    let config = ShmConfig { folder: SocketFolder::None, ..ShmConfig::default() };
    let reg = Registry::new();
    let door = Door::open(config.clone(), &reg).unwrap();
    let domain = ShmDomain::new(way, false);
    let size = 512usize << 20;
    let opts = HostOptions { prefault_threads: 1, ..HostOptions::default() };
    let theirs =
        reg.register(HostBuffer::with_options(size, opts).unwrap().into_backing(), Access::SHARED).unwrap();
    let mine_reg = Registry::new();
    let mine = mine_reg
        .register(HostBuffer::with_options(size, opts).unwrap().into_backing(), Access::SHARED)
        .unwrap();
    let mut raw_a = HostBuffer::with_options(size, opts).unwrap();
    let mut raw_b = HostBuffer::with_options(size, opts).unwrap();
    let key = theirs.key();
    let desc = theirs.describe(vec![TransportKey {
        transport: domain.name().into(),
        bytes: domain.remote_key(&theirs, key),
    }]);
    let remote = domain.import(&desc).unwrap();
    let mut t = ShmTransport::new(config, way).unwrap();
    let addr = door.admit(SessionId(1), PeerId(2)).unwrap();
    let link = t.connect(PeerId(1), &addr.encode().unwrap(), Instant::now()).unwrap();
    let base = mine.as_ptr().as_ptr() as u64;
    let mut p = Progress::with_capacity(64);
    let mut run = |t: &mut ShmTransport, kind, off: u64, len: u64| {
        let op = Op {
            kind,
            link,
            local: LocalSpan { address: base + off, length: len, key: LocalKey(0) },
            remote: RemoteSpan { offset: off, key: remote },
            pieces: None,
            token: Token(1),
            priority: Priority::Normal,
            verify: Verify::Off,
        };
        let now = Instant::now();
        assert_eq!(unsafe { t.submit(&[op], now) }, 1);
        loop {
            p.clear();
            t.poll(Instant::now(), 16, &mut p);
            if let Some(c) = p.completions.first() {
                c.result.unwrap();
                break;
            }
            if !matches!(t.arm(now), Arm::Ready) {
                door.poll(Instant::now());
            }
        }
    };
    // warm all pages
    for off in (0..size as u64).step_by(1 << 20) {
        run(&mut t, OpKind::Write, off, 1 << 20);
    }
    let mut seed = 1u64;
    let mut rnd = |n: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % n
    };
    for len in [4096u64, 16384, 32768, 65536, 131072, 262144, 524288, 1 << 20, 4 << 20, 16 << 20, 64 << 20] {
        let slots = size as u64 / len;
        let n = ((1u64 << 30) / len).clamp(24, 20000);
        let mut res: [Vec<f64>; 3] = Default::default();
        for i in 0..n * 3 {
            let which = (i + i / 3 * rnd(3)) % 3;
            let off = if std::env::var_os("HOT").is_some() { 0 } else { rnd(slots) * len };
            let s = Instant::now();
            match which {
                0 => run(&mut t, OpKind::Write, off, len),
                1 => run(&mut t, OpKind::Read, off, len),
                _ => unsafe {
                    libc::memcpy(
                        raw_a.as_mut_slice()[off as usize..].as_mut_ptr().cast(),
                        raw_b.as_mut_slice()[off as usize..].as_ptr().cast(),
                        len as usize,
                    );
                },
            }
            res[which as usize].push(s.elapsed().as_nanos() as f64);
        }
        let med: Vec<f64> = res
            .iter_mut()
            .map(|v| {
                v.sort_by(f64::total_cmp);
                v[v.len() / 2]
            })
            .collect();
        println!(
            "{len:>9}: write {:>9.0} ns ({:.2} GB/s) read {:>9.0} ({:.2}) memcpy {:>9.0} ({:.2}) ratio w {:.3} r {:.3}",
            med[0],
            len as f64 / med[0],
            med[1],
            len as f64 / med[1],
            med[2],
            len as f64 / med[2],
            med[2] / med[0],
            med[2] / med[1]
        );
    }
    let _ = Arc::new(());
}
