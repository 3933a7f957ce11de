//! How a lane's socket is set up. Rule: what the kernel refuses is logged and lived without, except what correctness needs.

use crate::config::TcpConfig;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// Sets a connected or connecting socket up for lane traffic with this peer.
pub(crate) fn prepare(socket: &impl AsFd, peer: &SocketAddr, config: &TcpConfig) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    let probe = config.keepalive.max(std::time::Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(probe).with_interval(probe / 3).with_retries(3);
    advise("keep-alive", socket.set_tcp_keepalive(&keepalive));
    advise("user time-out", socket.set_tcp_user_timeout(Some(2 * probe)));
    if peer.ip().is_loopback() {
        // There is no network to be fair to, and pacing (bbr) slowed small writes down here.
        advise("congestion control", socket.set_tcp_congestion(b"reno"));
    }
    if let Some(bytes) = config.socket_buffer_bytes {
        // The kernel doubles what it is given, for its own bookkeeping.
        advise("send buffer", socket.set_send_buffer_size(bytes / 2));
        advise("receive buffer", socket.set_recv_buffer_size(bytes / 2));
    }
    Ok(())
}

fn advise(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(what, %error, "socket option not taken");
    }
}
