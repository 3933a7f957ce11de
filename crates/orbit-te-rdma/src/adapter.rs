//! The rails of this side: open ports of open devices. Rule: opened once, numbered for the life of the process, and shared by all that
//! registers, connects and serves; what could not be used is kept with its reason.

use crate::attributes;
use crate::config::RdmaConfig;
use crate::device::{DeviceLimits, GidEntry, GidKind, LinkLayer, Mtu, PortState};
use crate::error::VerbsError;
use crate::gid::NoGid;
use crate::handle::{About, AsyncEvent, Context, InitStep, Pd, Retention};
use crate::notices::{Notice, Notices};
use crate::rails::{BadName, RailName};
use crate::reaction::{Reaction, reaction};
use crate::sys::Verbs;
use nix::sys::epoll::Epoll;
use orbit_te_wire::rdma::{self, Features, MAX_GIDS, MAX_RAILS, Rail, Side, SideLimits};
use parking_lot::Mutex;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use thiserror::Error;

/// Why no rail can be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoRails {
    /// A name in the settings is that of nothing.
    #[error(transparent)]
    Name(#[from] BadName),
    /// No port that is up has the GID index in the settings.
    #[error("{0}; `ibv_devinfo -v` shows the tables; without an index the best address is taken")]
    Gid(NoGid),
    /// None of the ports can be used.
    #[error("no port of an RDMA device can be used: {reasons}")]
    None {
        /// Each with its reason.
        reasons: String,
    },
    /// The list can't be had.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// One rail: a port of an open device.
#[derive(Debug)]
pub struct Adapter {
    /// How this side numbers it.
    pub(crate) number: u8,
    pub(crate) port: u8,
    guid: u64,
    pub(crate) pd: Pd,
    pub(crate) limits: DeviceLimits,
    /// The number of its device, of those that are open.
    device_number: u8,
    first: bool,
    /// Its device is lost: nothing is asked of it any more.
    lost: AtomicBool,
}

/// What a connection uses of a rail, as the peer was told.
#[derive(Debug, Clone)]
pub(crate) struct Used {
    rail: Rail,
    p_key_index: u16,
    /// The index of its GID; none: not chosen yet.
    pub(crate) gid: Option<u16>,
}

/// What this side has at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Now {
    /// As the peer is told.
    pub(crate) side: Side,
    /// Where the P_Key of each of its rails is in the table of the port.
    p_key_indices: Vec<u16>,
}

impl Used {
    /// The number of the rail.
    pub(crate) fn rail(&self) -> u8 {
        self.rail.number
    }

    /// Whether the rail is at this NUMA node; not where none is named.
    pub(crate) fn is_at(&self, node: Option<u16>) -> bool {
        node.is_some() && self.rail.numa == node
    }

    /// The first step of a QP over it. `serves`: the peer reads and writes by it.
    pub(crate) fn init(&self, serves: bool) -> InitStep {
        attributes::init(&self.rail, self.p_key_index, serves)
    }
}

impl Now {
    /// What a connection over this rail uses of it.
    pub(crate) fn used(&self, rail: u8) -> Option<Used> {
        let at = self.side.rails.iter().position(|known| known.number == rail)?;
        Some(Used { rail: self.side.rails[at].clone(), p_key_index: self.p_key_indices[at], gid: None })
    }
}

/// All rails of this side.
#[derive(Debug)]
pub struct Adapters {
    adapters: Vec<Adapter>,
    refused: Vec<String>,
    config: RdmaConfig,
    /// What has happened to them.
    notices: Notices,
    /// Held by whoever takes events.
    taking: Mutex<()>,
}

impl Adapters {
    /// Opens the devices that the settings name, or all. Ports that are down are rails too: they may come up.
    ///
    /// # Errors
    /// [`NoRails`].
    pub fn open(verbs: &Arc<dyn Verbs>, config: &RdmaConfig) -> Result<Arc<Adapters>, NoRails> {
        let config = config.clone().bounded();
        let list = |errno| VerbsError::new(crate::Verb::GetDeviceList, "all devices", errno);
        let devices = verbs.devices().map_err(list)?;
        let there =
            || devices.iter().map(|device| RailName { device: device.name.clone(), port: None }).collect();
        let wanted: Vec<RailName> = match config.devices.as_slice() {
            [] => there(),
            named => named.iter().map(|named| named.parse()).collect::<Result<_, _>>()?,
        };
        let (mut adapters, mut refused) = (Vec::<Adapter>::new(), Vec::new());
        for wanted in wanted {
            let (name, only) = (wanted.device.clone(), wanted.port);
            let Some(device) = devices.iter().find(|device| device.name == name) else {
                return Err(BadName::Unknown { name: wanted, there: there() }.into());
            };
            let opened = Context::open(verbs, &name).and_then(|context| {
                let limits = context.limits()?;
                Ok((context.alloc_pd()?, limits))
            });
            let (pd, limits) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    refused.push(error.to_string());
                    continue;
                }
            };
            if only.is_some_and(|only| only > limits.ports) {
                let port = |port| RailName { device: name.clone(), port: Some(port) };
                return Err(
                    BadName::Unknown { name: wanted, there: (1..=limits.ports).map(port).collect() }.into()
                );
            }
            for port in (1..=limits.ports).filter(|port| only.is_none_or(|only| only == *port)) {
                if adapters.len() == MAX_RAILS {
                    refused.push(format!("{name} port {port}: there are {MAX_RAILS} rails already"));
                    continue;
                }
                let (number, guid) = (adapters.len() as u8, device.guid);
                let last = adapters.last().map(|last| (last.device() == name, last.device_number));
                let (first, device_number) = match last {
                    None => (true, 0),
                    Some((true, number)) => (false, number),
                    Some((false, number)) => (true, number + 1),
                };
                let (pd, lost) = (pd.clone(), AtomicBool::new(false));
                adapters.push(Adapter { number, port, guid, pd, limits, device_number, first, lost });
            }
        }
        if adapters.is_empty() {
            let reasons =
                if refused.is_empty() { "there is no device".to_string() } else { refused.join("; ") };
            return Err(NoRails::None { reasons });
        }
        if let Some(index) = config.gid_index {
            refused.extend(without_index(&adapters, index)?);
        }
        refused.iter().for_each(|reason| tracing::warn!(reason, "an RDMA rail can't be used"));
        Ok(Arc::new(Adapters {
            adapters,
            refused,
            config,
            notices: Notices::default(),
            taking: Mutex::default(),
        }))
    }

    /// The rails, by number.
    pub fn all(&self) -> &[Adapter] {
        &self.adapters
    }

    /// Ports and devices that can't be used, each with its reason.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// What could not be freed, of each device; to be swept now and then. Each list outlives its device where it is kept.
    pub fn retentions(&self) -> Vec<Arc<Retention>> {
        let first = self.adapters.iter().filter(|adapter| adapter.is_first_of_device());
        first.map(|adapter| adapter.pd.context().retention().clone()).collect()
    }

    /// The settings by which they were opened.
    pub fn config(&self) -> &RdmaConfig {
        &self.config
    }

    /// Has lost devices watched no more: what they would be watched by is readable for ever.
    pub(crate) fn unwatch_lost(&self, epoll: &Epoll) {
        for adapter in self.adapters.iter().filter(|adapter| adapter.first && adapter.is_lost()) {
            // Fails where that was done before.
            let _ = epoll.delete(adapter.pd.context().as_fd());
        }
    }

    /// What has happened to the rails.
    pub(crate) fn notices(&self) -> &Notices {
        &self.notices
    }

    /// Takes what devices have to say, unless another thread does just now. Everybody learns of it by [`Adapters::notices`].
    pub(crate) fn take_events(&self) {
        let Some(_taking) = self.taking.try_lock() else { return };
        for adapter in self.adapters.iter().filter(|adapter| adapter.is_watched()) {
            loop {
                match adapter.pd.context().next_event() {
                    Ok(Some(event)) => self.happened(adapter, event),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(%error, "an RDMA device can't be heard");
                        break;
                    }
                }
            }
        }
    }

    /// Tells everybody what an event means to them, by the table of [`crate::reaction`].
    fn happened(&self, adapter: &Adapter, event: AsyncEvent) {
        let reaction = reaction(event.kind);
        tracing::info!(device = adapter.device(), %event, ?reaction, "an RDMA device tells");
        let device = adapter.device_number;
        let of_device = |other: &&Adapter| other.device_number == device;
        let at_port = |notice: fn(u8) -> Notice| {
            let About::Port(port) = event.about else { return };
            let rails = self.adapters.iter().filter(of_device).filter(|other| other.port == port);
            rails.for_each(|rail| self.notices.add(notice(rail.number)));
        };
        match (reaction, event.about) {
            // There is no receive queue that QPs share.
            (Reaction::Note | Reaction::RebuildReceiveQueue, _) => {}
            (Reaction::RailDown, _) => at_port(|rail| Notice::RailDown { rail }),
            (Reaction::RailAgain, _) => at_port(|rail| Notice::RailAgain { rail }),
            (
                Reaction::RequeryGids
                | Reaction::RequeryLid
                | Reaction::RequeryPartitions
                | Reaction::RequeryPort,
                _,
            ) => at_port(|rail| Notice::Addresses { rail }),
            (Reaction::RebuildQueue, About::Qp(number)) => {
                self.notices.add(Notice::Queue { device, number });
            }
            (Reaction::RebuildCompletionQueue, About::Cq(cookie)) => {
                self.notices.add(Notice::Completions { cookie });
            }
            (Reaction::RebuildQueue | Reaction::RebuildCompletionQueue, _) => {}
            (Reaction::DropDevice, _) => {
                tracing::error!(
                    device = adapter.device(),
                    "an RDMA device is lost; its rails are out of use"
                );
                self.adapters
                    .iter()
                    .filter(of_device)
                    .for_each(|rail| rail.lost.store(true, Ordering::Release));
                self.notices.add(Notice::DeviceLost { device });
            }
        }
    }

    pub(crate) fn get(&self, number: u8) -> Option<&Adapter> {
        self.adapters.get(usize::from(number))
    }

    /// What this side has right now: rails that are up and have an address, with all that a peer must know of them.
    pub fn side(&self) -> Side {
        self.now().side
    }

    /// As [`Adapters::side`], with what the peer need not know.
    pub(crate) fn now(&self) -> Now {
        let least =
            |of: fn(&DeviceLimits) -> u32| self.adapters.iter().map(|a| of(&a.limits)).min().unwrap_or(0);
        let config = &self.config;
        let described = self.adapters.iter().filter_map(|adapter| match adapter.describe(config) {
            Ok(described) => Some(described),
            Err(reason) => {
                let (device, port) = (adapter.device(), adapter.port);
                tracing::debug!(device, port, reason, "an RDMA rail is not offered");
                None
            }
        });
        let (rails, p_key_indices) = described.unzip();
        let limits = SideLimits {
            send_depth: config.send_depth.min(least(|limits| limits.max_qp_wr)).max(1),
            receive_depth: 0,
            read_depth: config.reads,
            inline_bytes: 0,
            message_bytes: config.chunk_bytes,
        };
        Now { side: Side { features: Features::empty(), limits, rails }, p_key_indices }
    }
}

/// The ports that are up and have no GID at an index, in words, where others have one. Ports that are down may get one.
///
/// # Errors
/// All that are up have none: the first of them.
fn without_index(adapters: &[Adapter], index: u16) -> Result<Vec<String>, NoRails> {
    let (mut without, mut with) = (Vec::new(), 0);
    for adapter in adapters {
        let context = adapter.pd.context();
        let (Ok(port), Ok(entries)) = (context.port(adapter.port), context.gid_table()) else { continue };
        if port.state != PortState::Active {
            continue;
        }
        let layer = wire_layer(port.link_layer);
        let of_port = entries.iter().filter(|entry| entry.port == adapter.port);
        let usable = of_port.filter_map(wire_gid).filter(|gid| crate::gid::reach(gid, layer).is_some());
        let there: Vec<u16> = usable.map(|gid| gid.index).collect();
        match there.contains(&index) {
            true => with += 1,
            false => {
                let device = adapter.device().to_string();
                without.push(NoGid::WrongIndex { index, device, port: adapter.port, there });
            }
        }
    }
    match (with, without.first()) {
        (0, Some(first)) => Err(NoRails::Gid(first.clone())),
        _ => Ok(without.iter().map(NoGid::to_string).collect()),
    }
}

impl Adapter {
    /// The device's name.
    pub fn device(&self) -> &str {
        self.pd.context().name()
    }

    /// Whether it is the first rail of its device, of which there is one for each that is watched.
    pub(crate) fn is_first_of_device(&self) -> bool {
        self.first
    }

    /// Whether it is the one by which its device is watched.
    pub(crate) fn is_watched(&self) -> bool {
        self.first && !self.is_lost()
    }

    /// The port, from 1.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// The number of its device, of those that are open.
    pub(crate) fn device_number(&self) -> u8 {
        self.device_number
    }

    /// Whether its device is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether all that a connection uses of the rail is as it was. A rail that can't be asked is not.
    pub(crate) fn is_still(&self, used: &Used, config: &RdmaConfig) -> bool {
        let Ok((now, p_key_index)) = self.describe(config) else { return false };
        let before = &used.rail;
        let same_gid = match used.gid {
            Some(index) => now.gid(index) == before.gid(index),
            None => now.gids == before.gids,
        };
        let partition = (p_key_index, now.p_key) == (used.p_key_index, before.p_key);
        same_gid && partition && now.lid == before.lid && now.grh_required == before.grh_required
    }

    /// What a peer must know, and where the P_Key is in the port's table.
    ///
    /// # Errors
    /// Why the rail can't be used now.
    fn describe(&self, config: &RdmaConfig) -> Result<(Rail, u16), String> {
        if self.is_lost() {
            return Err("the device is lost".to_string());
        }
        let context = self.pd.context();
        let port = context.port(self.port).map_err(|error| error.to_string())?;
        if port.state != PortState::Active {
            return Err(format!("the port is {:?}", port.state));
        }
        let entries = context.gid_table().map_err(|error| error.to_string())?;
        let layer = wire_layer(port.link_layer);
        let of_port = entries.iter().filter(|entry| entry.port == self.port);
        let mut gids: Vec<rdma::Gid> = of_port.filter_map(wire_gid).collect();
        gids.sort_by_key(|gid| crate::gid::reach(gid, layer).map_or(u8::MAX, |reach| reach as u8));
        if let Some(index) = config.gid_index {
            gids.retain(|gid| gid.index == index);
        }
        gids.truncate(MAX_GIDS);
        if gids.is_empty() {
            return Err("the port has no GID that can be used".to_string());
        }
        let (p_key_index, p_key) = self.p_key(port.pkeys, config.p_key)?;
        let rail = Rail {
            number: self.number,
            device: self.device().to_string(),
            guid: self.guid,
            port: self.port,
            layer,
            lid: if layer == rdma::LinkLayer::Ethernet { 0 } else { port.lid },
            grh_required: port.grh_required,
            gids,
            mtu: wire_mtu(port.active_mtu),
            speed: 0,
            width: 0,
            p_key,
            reads_served: self.limits.max_qp_rd_atom,
            reads_asked: self.limits.max_qp_init_rd_atom,
            numa: context.numa_node().and_then(|node| u16::try_from(node).ok()),
        };
        Ok((rail, p_key_index))
    }

    /// The place and the value of the P_Key to talk in: the one that is wanted, or else the first that there is.
    fn p_key(&self, places: u16, wanted: Option<u16>) -> Result<(u16, u16), String> {
        let context = self.pd.context();
        let Some(wanted) = wanted else {
            let first = (0..places).find_map(|at| match context.pkey(self.port, at) {
                Ok(key) if key & 0x7fff != 0 => Some((at, key)),
                _ => None,
            });
            // A port without such a table is in the default partition.
            return Ok(first.unwrap_or((0, 0xffff)));
        };
        let table: Result<Vec<u16>, _> = (0..places).map(|at| context.pkey(self.port, at)).collect();
        let table = table.map_err(|error| error.to_string())?;
        let index = attributes::p_key_index(&table, wanted)
            .ok_or_else(|| format!("the port is not in the partition {wanted:#06x}"))?;
        Ok((index, table[usize::from(index)]))
    }
}

// What verbs say by number, as peers are told, and back: the one place where it is translated.

/// A driver that does not say is of InfiniBand, by convention.
fn wire_layer(layer: LinkLayer) -> rdma::LinkLayer {
    match layer {
        LinkLayer::Ethernet => rdma::LinkLayer::Ethernet,
        LinkLayer::InfiniBand | LinkLayer::Unspecified => rdma::LinkLayer::InfiniBand,
    }
}

/// None for a kind that no peer knows, and for a place that the address of a QP can't name: it holds one byte of it.
fn wire_gid(entry: &GidEntry) -> Option<rdma::Gid> {
    let kind = match entry.kind {
        GidKind::Ib => rdma::GidKind::InfiniBand,
        GidKind::RoceV1 => rdma::GidKind::RoceV1,
        GidKind::RoceV2 => rdma::GidKind::RoceV2,
        GidKind::Other(_) => return None,
    };
    let index = u16::from(u8::try_from(entry.index).ok()?);
    Some(rdma::Gid { index, bytes: entry.gid, kind })
}

fn wire_mtu(mtu: Mtu) -> rdma::Mtu {
    match mtu {
        Mtu::B256 => rdma::Mtu::B256,
        Mtu::B512 => rdma::Mtu::B512,
        Mtu::B1024 => rdma::Mtu::B1024,
        Mtu::B2048 => rdma::Mtu::B2048,
        Mtu::B4096 => rdma::Mtu::B4096,
    }
}

impl From<rdma::Mtu> for Mtu {
    fn from(mtu: rdma::Mtu) -> Mtu {
        match mtu {
            rdma::Mtu::B256 => Mtu::B256,
            rdma::Mtu::B512 => Mtu::B512,
            rdma::Mtu::B1024 => Mtu::B1024,
            rdma::Mtu::B2048 => Mtu::B2048,
            rdma::Mtu::B4096 => Mtu::B4096,
        }
    }
}
