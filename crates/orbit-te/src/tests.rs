//! Tests of engines from inside: with a transport of the tests' own, which users can't add, and with peers that say what engines do not.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but not in their helpers

mod foreign;
mod letters;
mod notices;
mod renewal;

use crate::{Access, Batch, Config, Engine, HostBuffer, OpKind, Receipt, Region, Segment, TransferError};
use foreign::{Fabric, Foreign};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
const SIZE: usize = 10_000;

/// Looks until something holds.
#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < until, "not after {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn region(engine: &Engine, access: Access) -> Region {
    engine.register(HostBuffer::new(SIZE).unwrap().into_backing(), access).unwrap()
}

/// Two engines that have the transport of the tests beside TCP, and nothing of one host.
struct Met {
    fabric: Arc<Fabric>,
    engine: Engine,
    segment: Segment,
    remote: Region,
    target: Engine,
}

fn config(fabric: &Arc<Fabric>) -> Config {
    Config { shm: None, extras: vec![Arc::new(Foreign(fabric.clone()))], ..Config::default() }
}

fn meet(fabric: Arc<Fabric>) -> Met {
    let target = Engine::builder().config(config(&fabric)).start().unwrap();
    let remote = region(&target, Access::SHARED);
    target.expose("pool", &remote).unwrap();
    let engine = Engine::builder().config(Config { listen: None, ..config(&fabric) }).start().unwrap();
    let segment = engine.open(&format!("{}/pool", target.address().unwrap())).wait(SOON).unwrap();
    Met { fabric, engine, segment, remote, target }
}

impl Met {
    /// One request over all of the segment, with bytes that are compared.
    fn carry(&self, kind: OpKind, fill: u8, set: impl FnOnce(&mut Batch)) -> Result<Receipt, TransferError> {
        let local = region(&self.engine, Access::LOCAL);
        let mut batch = Batch::new();
        let (from, into) = match kind {
            OpKind::Write => (&local, &self.remote),
            OpKind::Read => (&self.remote, &local),
        };
        from.write_at(0, &[fill; SIZE]).unwrap();
        match kind {
            OpKind::Write => batch.write(&self.segment, 0, &local.whole()),
            OpKind::Read => batch.read(&self.segment, 0, &local.whole()),
        };
        set(&mut batch);
        let receipt = self.engine.submit(batch).unwrap().wait()?;
        let mut found = vec![0; SIZE];
        into.read_at(0, &mut found).unwrap();
        assert!(found == [fill; SIZE], "wrong bytes");
        Ok(receipt)
    }
}
