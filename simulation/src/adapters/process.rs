//! Which process this is, and where it listens.

use std::net::{Ipv4Addr, SocketAddr};

use crate::world::with;

/// The current process: the one in which the client was made, or a child that inherited it.
pub(super) fn current_process(made_in: usize) -> usize {
    with(|world| world.current.map_or(made_in, |task| world.tasks[task].process))
}

pub(super) fn address_of(process: usize, listener: usize) -> SocketAddr {
    let [high, low] = (process as u16).to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(10, 1, high, low), 1 + listener as u16))
}
