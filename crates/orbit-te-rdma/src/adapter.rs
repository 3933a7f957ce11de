//! The rails of this side: open ports of open devices. Rule: opened once, numbered for the life of the process, and shared by all that
//! registers, connects and serves; what could not be used is kept with its reason.

use crate::config::RdmaConfig;
use crate::device::{DeviceLimits, LinkLayer, PortState};
use crate::error::VerbsError;
use crate::handle::{Context, Pd, Retention};
use crate::sys::Verbs;
use orbit_te_wire::rdma::{self, Features, MAX_GIDS, MAX_RAILS, Rail, Side, SideLimits};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Why no rail can be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoRails {
    /// A device was named that is not there.
    #[error("there is no RDMA device `{named}`; there are: {there}")]
    UnknownDevice {
        /// What was named.
        named: String,
        /// Those that there are.
        there: String,
    },
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
    first: bool,
}

/// All rails of this side.
#[derive(Debug)]
pub struct Adapters {
    adapters: Vec<Adapter>,
    refused: Vec<String>,
    config: RdmaConfig,
    /// Counts what has happened to them.
    changes: AtomicU64,
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
        let there = devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
        let wanted: Vec<(String, Option<u8>)> = match config.devices.as_slice() {
            [] => devices.iter().map(|device| (device.name.clone(), None)).collect(),
            named => named.iter().map(|named| name_and_port(named)).collect(),
        };
        let (mut adapters, mut refused) = (Vec::<Adapter>::new(), Vec::new());
        for (name, only) in wanted {
            let Some(device) = devices.iter().find(|device| device.name == name) else {
                return Err(NoRails::UnknownDevice { named: name, there });
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
            for port in (1..=limits.ports).filter(|port| only.is_none_or(|only| only == *port)) {
                if adapters.len() == MAX_RAILS {
                    refused.push(format!("{name} port {port}: there are {MAX_RAILS} rails already"));
                    continue;
                }
                let (number, guid) = (adapters.len() as u8, device.guid);
                let first = adapters.last().is_none_or(|last| last.device() != name);
                adapters.push(Adapter { number, port, guid, pd: pd.clone(), limits, first });
            }
        }
        refused.iter().for_each(|reason| tracing::warn!(reason, "an RDMA rail can't be used"));
        if adapters.is_empty() {
            return Err(NoRails::None { reasons: refused.join("; ") });
        }
        Ok(Arc::new(Adapters {
            adapters,
            refused,
            config,
            changes: AtomicU64::new(0),
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

    /// A count that changes whenever something has happened to a rail or a device.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Takes what devices have to say, unless another thread does just now. Everybody else sees by [`Adapters::changes`] that there was something.
    pub(crate) fn take_events(&self) {
        let Some(_taking) = self.taking.try_lock() else { return };
        for adapter in self.adapters.iter().filter(|adapter| adapter.is_first_of_device()) {
            let context = adapter.pd.context();
            loop {
                match context.next_event() {
                    Ok(Some(event)) => {
                        tracing::info!(device = adapter.device(), %event, "an RDMA device tells");
                        self.changes.fetch_add(1, Ordering::AcqRel);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(%error, "an RDMA device can't be heard");
                        break;
                    }
                }
            }
        }
    }

    pub(crate) fn get(&self, number: u8) -> Option<&Adapter> {
        self.adapters.get(usize::from(number))
    }

    /// What this side has right now: rails that are up and have an address, with all that a peer must know of them.
    pub fn side(&self) -> Side {
        let least =
            |of: fn(&DeviceLimits) -> u32| self.adapters.iter().map(|a| of(&a.limits)).min().unwrap_or(0);
        let config = &self.config;
        Side {
            features: Features::empty(),
            limits: SideLimits {
                send_depth: config.send_depth.min(least(|limits| limits.max_qp_wr)).max(1),
                receive_depth: 0,
                read_depth: config.reads,
                inline_bytes: 0,
                message_bytes: config.chunk_bytes,
            },
            rails: self.adapters.iter().filter_map(|adapter| adapter.describe(config)).collect(),
        }
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

    /// The port, from 1.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// What a peer must know; none while it can't be used, which is logged with its reason.
    fn describe(&self, config: &RdmaConfig) -> Option<Rail> {
        let context = self.pd.context();
        let cant = |reason: String| {
            tracing::debug!(device = self.device(), port = self.port, reason, "an RDMA rail is not offered");
            None
        };
        let (port, gids) = match (context.port(self.port), context.gid_table()) {
            (Ok(port), Ok(gids)) => (port, gids),
            (Err(error), _) | (_, Err(error)) => return cant(error.to_string()),
        };
        if port.state != PortState::Active {
            return cant(format!("the port is {:?}", port.state));
        }
        let ethernet = port.link_layer == LinkLayer::Ethernet;
        let layer = if ethernet { rdma::LinkLayer::Ethernet } else { rdma::LinkLayer::InfiniBand };
        let gid = |entry: &crate::GidEntry| {
            let kind = match entry.kind {
                crate::GidKind::Ib => rdma::GidKind::InfiniBand,
                crate::GidKind::RoceV1 => rdma::GidKind::RoceV1,
                crate::GidKind::RoceV2 => rdma::GidKind::RoceV2,
                crate::GidKind::Other(_) => return None,
            };
            // The address of a QP holds one byte of it.
            let index = u16::from(u8::try_from(entry.index).ok()?);
            (entry.port == self.port).then_some(rdma::Gid { index, bytes: entry.gid, kind })
        };
        let mut gids: Vec<rdma::Gid> = gids.iter().filter_map(gid).collect();
        gids.sort_by_key(|gid| crate::gid::reach(gid, layer).map_or(u8::MAX, |reach| reach as u8));
        if let Some(index) = config.gid_index {
            gids.retain(|gid| gid.index == index);
        }
        gids.truncate(MAX_GIDS);
        if gids.is_empty() {
            return cant("the port has no GID that can be used".to_string());
        }
        Some(Rail {
            number: self.number,
            device: self.device().to_string(),
            guid: self.guid,
            port: self.port,
            layer,
            lid: if ethernet { 0 } else { port.lid },
            grh_required: port.grh_required,
            gids,
            mtu: rdma::Mtu::from_number(port.active_mtu.number())?,
            speed: 0,
            width: 0,
            p_key: context.pkey(self.port, 0).unwrap_or(0xffff),
            reads_served: self.limits.max_qp_rd_atom,
            reads_asked: self.limits.max_qp_init_rd_atom,
            numa: context.numa_node().and_then(|node| u16::try_from(node).ok()),
        })
    }
}

/// `mlx5_0` or `mlx5_0:1`.
fn name_and_port(named: &str) -> (String, Option<u8>) {
    match named.rsplit_once(':').map(|(name, port)| (name, port.parse())) {
        Some((name, Ok(port))) => (name.to_string(), Some(port)),
        _ => (named.to_string(), None),
    }
}
