//! x
fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>().unwrap());
    let (from, count) = (args.next().unwrap(), args.next().unwrap());
    let t = std::time::Instant::now();
    let mut c = [0u64; 7];
    for seed in from..from + count {
        let o = orbit_te_sim::run(seed, &Default::default());
        if count == 1 {
            println!("{o:#?}");
        }
        let k = o.counts;
        for (a, b) in c.iter_mut().zip([
            k.transfers,
            k.succeeded,
            k.failed,
            k.notifications,
            k.opened,
            k.withdrawn,
            k.disturbances,
        ]) {
            *a += b;
        }
        for v in &o.violations {
            println!("seed {seed}: {v}");
        }
    }
    println!("{:?} {:?} per seed {:?}", c, t.elapsed(), t.elapsed() / count as u32);
}
