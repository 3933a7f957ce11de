//! What devices tell while bytes are under way: for each row of the table of reactions, every op ends, what is reported complete is right, and
//! the link comes back where it should, or goes on where nothing happened to it.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod sides;

use orbit_te_memory::{Access, LocalKey, Region, RemoteKey};
use orbit_te_rdma::RdmaConfig;
use orbit_te_rdma::fake::{Carrier, DeviceId, DeviceSpec, FakeFabric, GidSpec, Mode, PortSpec};
use orbit_te_rdma::handle::{About, AsyncEvent, AsyncKind};
use orbit_te_rdma::reaction::{ROWS, Reaction};
use orbit_te_transport::{LinkId, OpErrorCode, OpKind, RemoteSpan, Token, Transport};
use sides::{Memory, Sides, quick};
use std::time::{Duration, Instant};

const PIECE: u64 = 20_000;
const PIECES: u64 = 12;

/// One whose QPs try for long: what ends sooner than [`SOON`] ends by what was told.
fn patient() -> RdmaConfig {
    RdmaConfig { ack_budget: Duration::from_secs(5), ..quick() }
}

const SOON: Duration = Duration::from_secs(2);

/// Two sides with a link that is up, and memory at both.
struct Scene {
    sides: Sides,
    fabric: FakeFabric,
    devices: [Vec<DeviceId>; 2],
    ours: (Region, LocalKey),
    theirs: (Region, LocalKey),
    key: RemoteKey,
    link: LinkId,
    rounds: u8,
}

fn roce(host: u32, device: u8) -> DeviceSpec {
    DeviceSpec::roce(&format!("mlx5_{device}"), [10, 0, device, host as u8 + 1]).on_host(host)
}

fn infiniband(host: u32, _: u8) -> DeviceSpec {
    DeviceSpec::infiniband("mlx5_0", host as u16 + 5).on_host(host)
}

impl Scene {
    fn new(spec: fn(u32, u8) -> DeviceSpec, devices: u8, config: &RdmaConfig) -> Scene {
        let fabric = FakeFabric::new(7);
        let of = |host| (0..devices).map(|device| fabric.add_device(spec(host, device))).collect();
        let devices = [of(0), of(1)];
        let mut sides = Sides::new(&fabric, config).unwrap();
        let ours = sides.here.region((PIECES * PIECE) as usize, 1, Access::LOCAL).unwrap();
        let theirs = sides.there.region((PIECES * PIECE) as usize, 2, Access::SHARED).unwrap();
        let key = sides.there.key(&theirs.0, theirs.0.key()).unwrap();
        let link = sides.connect();
        sides.until("the link is up", |sides| sides.ups == 1);
        let mut scene = Scene { sides, fabric, devices, ours, theirs, key, link, rounds: 2 };
        scene.works();
        scene
    }

    /// Writes a piece of new bytes, and reads it back.
    fn works(&mut self) {
        self.rounds += 1;
        let bytes = vec![self.rounds; PIECE as usize];
        self.ours.0.write_at(0, &bytes).unwrap();
        for (kind, local) in [(OpKind::Write, 0), (OpKind::Read, PIECE)] {
            let remote = RemoteSpan { offset: PIECE, key: self.key };
            let token = self.sides.op(kind, self.link, &self.ours, local, remote, PIECE);
            assert_eq!(self.sides.end(token).result, Ok(()), "{:?}", self.sides.fallen);
        }
        assert_eq!(Memory::contents(&self.theirs.0, PIECE, PIECE as usize), bytes);
        assert_eq!(Memory::contents(&self.ours.0, PIECE, PIECE as usize), bytes);
    }

    /// Writes that are posted and stay under way, until the fabric works again.
    fn traffic(&mut self) -> Vec<Token> {
        self.rounds += 1;
        self.ours.0.write_at(0, &vec![self.rounds; (PIECES * PIECE) as usize]).unwrap();
        self.fabric.set_mode(Mode::ByHand);
        let ops = (0..PIECES).map(|piece| {
            let (at, key) = (piece * PIECE, self.key);
            self.sides.op(OpKind::Write, self.link, &self.ours, at, RemoteSpan { offset: at, key }, PIECE)
        });
        let tokens = ops.collect();
        (0..3).for_each(|_| _ = self.sides.poll());
        self.fabric.step(3);
        assert!(self.fabric.in_flight() > 0, "they are under way");
        tokens
    }

    /// All of them end, each well or by the link. How many were well.
    fn all_end(&mut self, tokens: Vec<Token>) -> usize {
        self.fabric.set_mode(Mode::AtPoll);
        let (mut good, begin) = (0, Instant::now());
        for (token, piece) in tokens.into_iter().zip(0..) {
            match self.sides.end(token).result {
                Ok(()) => {
                    good += 1;
                    let there = Memory::contents(&self.theirs.0, piece * PIECE, PIECE as usize);
                    assert_eq!(there, vec![self.rounds; PIECE as usize]);
                }
                Err(error) => assert!(
                    matches!(
                        error.code,
                        OpErrorCode::LinkBroken | OpErrorCode::LinkBrokenUnfenced | OpErrorCode::Unreachable
                    ),
                    "{error:?}"
                ),
            }
        }
        assert!(begin.elapsed() < SOON, "by what was told, and not by time: {:?}", self.sides.fallen);
        good
    }

    /// Something happens under traffic: all ops end, and the link is made anew.
    fn anew(&mut self, what: &str, happens: impl FnOnce(&mut Scene)) {
        let good = self.anew_after(what, happens);
        assert!(good < PIECES as usize, "{what}: nothing was under way");
    }

    /// The same where ops may be done before it is noticed. How many were.
    fn anew_after(&mut self, what: &str, happens: impl FnOnce(&mut Scene)) -> usize {
        let tokens = self.traffic();
        let ups = self.sides.ups;
        happens(self);
        let good = self.all_end(tokens);
        self.sides.until(what, |sides| sides.ups == ups + 1);
        assert!(!self.sides.fallen.is_empty(), "{what}");
        self.works();
        assert_eq!(self.sides.ups, ups + 1, "{what}");
        good
    }

    /// Something happens under traffic that is of no matter to the link.
    fn goes_on(&mut self, what: &str, happens: impl FnOnce(&mut Scene)) {
        let tokens = self.traffic();
        let (ups, fallen) = (self.sides.ups, self.sides.fallen.len());
        happens(self);
        assert_eq!(self.all_end(tokens), PIECES as usize, "{what}");
        self.pass(Duration::from_millis(20));
        self.works();
        assert_eq!(
            (self.sides.ups, self.sides.fallen.len()),
            (ups, fallen),
            "{what}: {:?}",
            self.sides.fallen
        );
    }

    fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        self.sides.until("time passes", |_| Instant::now() >= end);
    }

    /// How long it takes until the link is up once more.
    fn comes_back(&mut self, what: &str) -> Duration {
        let (begin, ups) = (Instant::now(), self.sides.ups);
        self.sides.until(what, |sides| sides.ups > ups);
        let took = begin.elapsed();
        self.works();
        took
    }

    fn ends(mut self, what: &str) {
        self.sides.transport.close(Instant::now());
        self.sides.until("all ops have ended", |sides| sides.transport.is_drained());
        let Scene { fabric, sides, ours, theirs, .. } = self;
        let lists = sides.retentions();
        let domains = [(&sides.here, &ours), (&sides.there, &theirs)];
        for (side, (region, key)) in domains {
            side.domains[0].deregister(region, *key).unwrap();
        }
        drop((sides, ours, theirs));
        lists.iter().for_each(|list| drop(list.sweep()));
        assert_eq!(fabric.violations(), Vec::<String>::new(), "{what}");
        assert!(fabric.counts().is_empty(), "{what}: left behind: {:?}", fabric.counts());
    }
}

/// Both sides, and which is which in words.
const BOTH: [(usize, &str); 2] = [(0, "here"), (1, "at the peer")];

fn at_port(kind: AsyncKind) -> AsyncEvent {
    AsyncEvent { kind, about: About::Port(1) }
}

#[test]
fn a_rail_that_goes_down_fails_its_links_and_one_that_is_back_has_them_tried_at_once() {
    for (side, what) in BOTH {
        for how in [Carrier::Retried, Carrier::Flushed, Carrier::Stuck] {
            let mut scene = Scene::new(roce, 1, &patient());
            let device = scene.devices[side][0];
            let tokens = scene.traffic();
            scene.fabric.carrier_down(device, 1, how);
            scene.all_end(tokens);
            // The pauses grow meanwhile: by itself it would come back after a second, and at the peer's fault after ten.
            scene.pass(Duration::from_millis(1400));
            assert_eq!(scene.sides.ups, 1, "{what}, {how:?}");
            scene.fabric.carrier_up(device, 1);
            let took = scene.comes_back("the rail is back");
            assert!(took < Duration::from_millis(800), "{what}, {how:?}: after {took:?}");
            scene.ends(what);
        }
    }
}

#[test]
fn a_link_goes_by_another_rail_when_its_own_is_down() {
    for (side, what) in BOTH {
        let mut scene = Scene::new(roce, 2, &patient());
        let device = scene.devices[side][0];
        scene.anew(what, |scene| scene.fabric.carrier_down(device, 1, Carrier::Stuck));
        scene.goes_on(what, |scene| scene.fabric.carrier_up(device, 1));
        scene.ends(what);
    }
}

#[test]
fn addresses_that_are_used_and_change_make_a_connection_anew() {
    for (side, what) in BOTH {
        let mut scene = Scene::new(roce, 1, &patient());
        let device = scene.devices[side][0];
        let used = DeviceSpec::ROCE_V2;
        let spec = PortSpec::roce([10, 0, 0, side as u8 + 1]).gids[usize::from(used)];
        let other =
            spec.map(|spec| GidSpec { gid: PortSpec::roce([10, 0, 0, 77]).gids[2].unwrap().gid, ..spec });
        scene.anew(what, |scene| scene.fabric.set_gid(device, 1, used, other));
        // It goes by the address that is there now.
        scene.goes_on(what, |scene| scene.fabric.set_gid(device, 1, 4, spec));
        scene.anew(what, |scene| scene.fabric.set_gid(device, 1, used, None));
        scene.ends(what);
    }
}

#[test]
fn addresses_by_which_nothing_comes_through_are_left_for_the_next() {
    let fabric = FakeFabric::new(1);
    // Somebody else has the routable address of the second host, so that packets go there.
    for (host, address) in [(2, 2), (0, 1), (1, 2)] {
        let mut spec = DeviceSpec::roce("mlx5_0", [10, 0, 0, address]).on_host(host);
        if host == 2 {
            (spec.ports[0].gids[0], spec.ports[0].gids[1]) = (None, None);
        }
        fabric.add_device(spec);
    }
    let config = RdmaConfig { unreachable_after: Duration::from_secs(10), ..quick() };
    let mut sides = Sides::new(&fabric, &config).unwrap();
    let ours = sides.here.region(PIECE as usize, 1, Access::LOCAL).unwrap();
    let theirs = sides.there.region(PIECE as usize, 2, Access::SHARED).unwrap();
    let key = sides.there.key(&theirs.0, theirs.0.key()).unwrap();
    let link = sides.connect();
    let tries = (1..10).find(|_| {
        let write = sides.op(OpKind::Write, link, &ours, 0, RemoteSpan { offset: 0, key }, PIECE);
        sides.end(write).result.is_ok()
    });
    assert_eq!(tries, Some(2), "{:?}", sides.fallen);
    assert_eq!(Memory::contents(&theirs.0, 0, PIECE as usize), vec![1; PIECE as usize]);
}

#[test]
fn lids_that_change_make_a_connection_anew() {
    for (side, what) in BOTH {
        let mut scene = Scene::new(infiniband, 1, &patient());
        let device = scene.devices[side][0];
        scene.anew(what, |scene| scene.fabric.set_lid(device, 1, 20 + side as u16));
        let told =
            [AsyncKind::LidChange, AsyncKind::PkeyChange, AsyncKind::GidChange, AsyncKind::ClientReregister];
        for kind in told {
            scene.goes_on("nothing changed", |scene| scene.fabric.tell(device, at_port(kind)));
        }
        // The subnet manager has begun anew, and said only that.
        scene.anew(what, |scene| {
            scene.fabric.set_lid(device, 1, 30 + side as u16);
            scene.fabric.tell(device, at_port(AsyncKind::ClientReregister));
        });
        scene.ends(what);
    }
}

#[test]
fn a_partition_is_used_where_it_is_in_the_table() {
    fn spec(host: u32, device: u8) -> DeviceSpec {
        let mut spec = infiniband(host, device);
        spec.ports[0].pkeys = vec![0xffff, 0x8001, 0, 0];
        spec
    }
    let config = RdmaConfig { p_key: Some(0x8001), ..patient() };
    for (side, what) in BOTH {
        let mut scene = Scene::new(spec, 1, &config);
        let device = scene.devices[side][0];
        assert_eq!(scene.sides.here.domain.adapters().side().rails[0].p_key, 0x8001);
        // What is not used may change.
        scene.goes_on(what, |scene| scene.fabric.set_pkey(device, 1, 0, 0x8002));
        scene.goes_on(what, |scene| scene.fabric.set_pkey(device, 1, 3, 0x8001));
        scene.anew(what, |scene| scene.fabric.set_pkey(device, 1, 1, 0x8003));
        // The partition is nowhere: no link, until it is there again.
        let tokens = scene.traffic();
        scene.fabric.set_pkey(device, 1, 3, 0);
        scene.all_end(tokens);
        assert!(
            scene.sides.there.domain.adapters().side().rails.len()
                + scene.sides.here.domain.adapters().side().rails.len()
                == 1
        );
        scene.pass(Duration::from_millis(1400));
        scene.fabric.set_pkey(device, 1, 2, 0x8001);
        let took = scene.comes_back("the partition is back");
        assert!(took < Duration::from_millis(800), "{what}: after {took:?}");
        scene.ends(what);
    }
}

#[test]
fn queues_that_break_make_their_connection_anew() {
    for (side, what) in BOTH {
        let mut scene = Scene::new(roce, 1, &patient());
        let device = scene.devices[side][0];
        scene.anew(what, |scene| scene.fabric.qp_fatal(device, scene.fabric.qps(device)[0]));
        for kind in [AsyncKind::QpFatal, AsyncKind::QpRequestError, AsyncKind::QpAccessError] {
            // Nothing but the event shows it.
            scene.anew_after(what, |scene| {
                let about = About::Qp(*scene.fabric.qps(device).last().unwrap());
                scene.fabric.tell(device, AsyncEvent { kind, about });
            });
        }
        scene.ends(what);
    }
}

#[test]
fn a_cq_that_breaks_is_made_anew_with_its_queues() {
    for (side, what) in BOTH {
        let mut scene = Scene::new(roce, 1, &patient());
        let device = scene.devices[side][0];
        let before = scene.fabric.cqs(device);
        assert_eq!(before.len(), 1);
        scene.anew(what, |scene| scene.fabric.cq_fatal(scene.fabric.cqs(device)[0]));
        let after = scene.fabric.cqs(device);
        assert!(after.len() == 1 && after != before, "{what}: {before:?}, then {after:?}");
        scene.ends(what);
    }
}

#[test]
fn a_device_that_is_lost_is_left_alone_and_links_go_by_others() {
    for (side, what) in BOTH {
        let mut scene = Scene::new(roce, 2, &patient());
        let device = scene.devices[side][0];
        scene.anew(what, |scene| scene.fabric.device_fatal(device));
        let memory = if side == 0 { &scene.sides.here } else { &scene.sides.there };
        assert_eq!(memory.domain.adapters().side().rails.len(), 1);
        // Memory is registered where it can be.
        let (more, key) = memory.region(4096, 3, Access::SHARED).unwrap();
        memory.domains[0].deregister(&more, key).unwrap();
        scene.works();
        scene.ends(what);
    }
}

#[test]
fn without_any_device_ops_end_and_nothing_is_left() {
    for (side, what) in BOTH {
        let mut scene = Scene::new(roce, 1, &patient());
        let device = scene.devices[side][0];
        let tokens = scene.traffic();
        scene.fabric.remove_device(device);
        assert!(scene.all_end(tokens) < PIECES as usize);
        let remote = RemoteSpan { offset: 0, key: scene.key };
        let late = scene.sides.op(OpKind::Write, scene.link, &scene.ours, 0, remote, PIECE);
        assert_eq!(scene.sides.end(late).result.unwrap_err().code, OpErrorCode::Unreachable, "{what}");
        scene.ends(what);
    }
}

#[test]
fn what_is_only_noted_changes_nothing() {
    for (side, what) in BOTH {
        let mut scene = Scene::new(roce, 1, &patient());
        let device = scene.devices[side][0];
        for row in ROWS.iter().filter(|row| row.reaction == Reaction::Note) {
            let about = match row.kind {
                AsyncKind::SmChange => About::Port(1),
                AsyncKind::SrqLimit => continue,
                _ => About::Qp(scene.fabric.qps(device)[0]),
            };
            let event = AsyncEvent { kind: row.kind, about };
            scene.goes_on(&format!("{what}: {event}"), |scene| scene.fabric.tell(device, event));
        }
        scene.ends(what);
    }
}

#[test]
fn a_flood_of_events_is_outlived() {
    for (side, what) in BOTH {
        let mut scene = Scene::new(roce, 1, &patient());
        let device = scene.devices[side][0];
        let tokens = scene.traffic();
        (0..1000).for_each(|_| scene.fabric.tell(device, at_port(AsyncKind::GidChange)));
        scene.all_end(tokens);
        scene.pass(Duration::from_millis(100));
        scene.works();
        scene.ends(what);
    }
}
