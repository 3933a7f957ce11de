//! `orbit-te serve`: memory or a file as a segment. Rule: the one line on stdout comes when peers can connect, and a signal ends it
//! with everything written.

use crate::console;
use crate::failure::Failure;
use crate::routing::Meeting;
use crate::signals::Ending;
use crate::size::{Size, nonzero};
use crate::stream;
use crate::sys::MappedFile;
use clap::Args;
use orbit_te::{Access, Backing, Engine, HostBuffer, Notifications};
use serde::Serialize;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Offer memory, or a file, as a named segment that peers read and write.
///
/// Prints one line when peers can connect:
///
///   serving HOST:PORT/NAME BYTES read-write|read-only TOKEN
///
/// `put`, `get` and `bench` take HOST:PORT/NAME or TOKEN. The log on stderr
/// tells of peers that come and go and of every `put` and `get` that finished,
/// as those tell it; -v tells more, RUST_LOG sets it in detail. SIGINT or
/// SIGTERM ends it with exit code 0, a served file's bytes written to the disk.
///
/// Whoever reaches the address may read the segment and, unless it is
/// read-only, write it. Hence an address other than a loopback one needs
/// --trust-network.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Serve {
    /// Where to listen; port 0 takes a free one, 0.0.0.0 or [::] all interfaces.
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// The segment's name; 1 to 255 bytes, without `@`.
    #[arg(long)]
    name: String,
    /// Serve so many bytes of zeroed memory.
    #[arg(long, value_name = "SIZE", value_parser = nonzero, required_unless_present = "file", conflicts_with = "file")]
    bytes: Option<Size>,
    /// Serve an existing file, not empty: what peers write is written to it. It gets all its disk blocks at the start, and is
    /// locked against a second `serve`.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Peers may only read the file; several `serve --read-only` may share it.
    #[arg(long, requires = "file")]
    read_only: bool,
    /// Every machine that reaches the address may be trusted with the bytes.
    #[arg(long)]
    trust_network: bool,
    #[command(flatten)]
    meeting: Meeting,
    /// Print the line as JSON: address, name, bytes, access, token, pid.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct Served<'a> {
    address: SocketAddr,
    name: &'a str,
    bytes: u64,
    access: &'static str,
    token: &'a str,
    pid: u32,
}

impl Serve {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let ending = Ending::block()?;
        let at = resolve(&self.listen)?;
        let file = match &self.file {
            Some(path) => Some(Arc::new(MappedFile::open(path, !self.read_only)?)),
            None => None,
        };
        let (backing, access): (Backing, Access) = match (&file, self.bytes) {
            (Some(file), _) if self.read_only => (file.backing()?, Access::REMOTE_READ),
            (Some(file), _) => (file.backing()?, Access::REMOTE_READ | Access::REMOTE_WRITE),
            (None, size) => {
                (HostBuffer::new(size.map_or(0, |s| s.0) as usize)?.into_backing(), Access::SHARED)
            }
        };
        let builder = Engine::builder().listen(at).trust_network(self.trust_network);
        // Its words are not about the address.
        self.meeting.check_all()?;
        let engine = self
            .meeting
            .apply(builder)?
            .start()
            .map_err(|e| Failure::from(e).while_doing(format_args!("can't listen at {at}")))?;
        let region = engine.register(backing, access)?;
        let token = engine.expose(&self.name, &region)?.to_token().map_err(orbit_te::Error::from)?;
        let served = Served {
            address: engine.address().unwrap_or(at),
            name: &self.name,
            bytes: file.as_ref().map_or(region.len(), |f| f.len()),
            access: if access.contains(Access::REMOTE_WRITE) { "read-write" } else { "read-only" },
            token: &token,
            pid: std::process::id(),
        };
        self.announce(&served)?;

        let stop = Arc::new(AtomicBool::new(false));
        let log = engine.notifications().map(|queue| {
            let stop = stop.clone();
            std::thread::spawn(move || log_transfers(queue, &stop))
        });
        let signal = ending.wait()?;
        tracing::info!(%signal, "stopping");
        stop.store(true, Ordering::Release);
        engine.shutdown();
        if let Some(log) = log {
            let _ = log.join();
        }
        if let Some(file) = &file {
            file.flush().map_err(|e| Failure::local("writing the served file to the disk", e))?;
        }
        Ok(())
    }

    fn announce(&self, served: &Served<'_>) -> Result<(), Failure> {
        if self.json {
            let line = serde_json::to_string(served).map_err(|e| Failure::local("the line of JSON", e))?;
            return console::say(line);
        }
        let Served { address, name, bytes, access, token, .. } = served;
        console::say(format_args!("serving {address}/{name} {bytes} {access} {token}"))
    }
}

fn resolve(text: &str) -> Result<SocketAddr, Failure> {
    let bad = |why: &dyn std::fmt::Display| {
        Failure::Usage(format!(
            "`{text}` is no address to listen at: {why}; write HOST:PORT, as 127.0.0.1:7411"
        ))
    };
    text.to_socket_addrs().map_err(|e| bad(&e))?.next().ok_or_else(|| bad(&"the name has no address"))
}

/// Logs what peers tell of their transfers.
fn log_transfers(mut queue: Notifications, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let Some(notice) = queue.recv_for(Duration::from_millis(200)) else { continue };
        if notice.name == stream::DONE {
            // Printed as a quoted string: the words are a stranger's.
            let what: String = String::from_utf8_lossy(&notice.payload).chars().take(400).collect();
            tracing::info!(peer = %notice.peer, ?what, "transfer finished");
        } else {
            tracing::debug!(peer = %notice.peer, name = ?notice.name, "notification");
        }
    }
}
