//! What registering memory costs over the bare call: `register DEVICE MIB ROUNDS` registers the same memory by the verbs' own call and as a region, by
//! turns, and prints the milliseconds of each round as a line of JSON.

#![allow(missing_docs)]

use orbit_te_memory::{Access, Domain, HostBuffer, Registration, Registry};
use orbit_te_rdma::handle::Context;
use orbit_te_rdma::sys::{SystemVerbs, Verbs};
use orbit_te_rdma::{Adapters, MrAccess, RdmaConfig, RdmaDomain};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, mib, rounds] = &words[..] else { return Err("register DEVICE MIB ROUNDS".into()) };
    let (bytes, rounds) = (mib.parse::<usize>()? << 20, rounds.parse::<usize>()?);
    let verbs: Arc<dyn Verbs> = Arc::new(SystemVerbs::load()?);
    let mut buffer = HostBuffer::new(bytes)?;
    // Its pages are there before anything is measured.
    buffer.as_mut_slice().fill(1);
    let base = buffer.as_mut_slice().as_mut_ptr();
    let backing = Arc::new(buffer.into_backing());

    let context = Context::open(&verbs, device)?;
    let pd = context.alloc_pd()?;
    let config = RdmaConfig { devices: vec![device.clone()], ..RdmaConfig::default() };
    let domain = RdmaDomain::new(Adapters::open(&verbs, &config)?);
    let (registry, domains) = (Registry::new(), vec![Arc::new(domain) as Arc<dyn Domain>]);
    let flags = MrAccess::LOCAL_WRITE | MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    // The first round warms both up.
    for round in 0..=rounds {
        let start = Instant::now();
        // SAFETY: the range is that of the backing, which the MR keeps.
        let mr = unsafe { pd.register(base, bytes, base as u64, flags, backing.clone())? };
        let bare = start.elapsed();
        mr.deregister()?;
        let start = Instant::now();
        let entry = Registration::new(backing.clone(), Access::SHARED);
        let made = registry.register_all(&[entry], &domains)?;
        let ours = start.elapsed();
        for (region, _) in made {
            registry.retire(&region, Duration::from_secs(5))?;
        }
        if round > 0 {
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            println!("{{\"bare_ms\":{:.3},\"ours_ms\":{:.3}}}", ms(bare), ms(ours));
        }
    }
    Ok(())
}
