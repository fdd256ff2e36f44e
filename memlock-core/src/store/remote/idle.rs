//! The idle connections to a server, and what is known of it.

use std::net::{IpAddr, SocketAddr};

use super::dial::Pin;
use super::probe::Probe;
use super::protocol::Connection;
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::store::recovery::Observed;

/// Idle connections. A failure raises the epoch: a connection that was opened before is suspect,
/// and not reused.
#[derive(Debug)]
pub(super) struct Idle<C: Connection> {
    pub(super) epoch: u64,
    /// The address of the name that answered first.
    pub(super) pinned: Option<Pin>,
    /// The local address of the last connection.
    pub(super) local: Option<IpAddr>,
    /// The server's time when the last connection was opened.
    pub(super) time: Option<C::Time>,
    /// The life of the server in which the last connection was opened.
    pub(super) life: Option<C::Life>,
    /// With a guard: what was seen of its recovery.
    pub(super) observed: Observed,
    /// Whether the server was unreachable in the last batch.
    pub(super) is_down: bool,
    /// Whether the last batch was refused, for reasons of its own. If the next one is, too, those may be
    /// reasons of all: a locked table.
    pub(super) was_refused: bool,
    /// Set if the last batch timed out: the server counts as silent until then.
    pub(super) silent_until: Option<Moment>,
    /// Asks a silent server whether it answers again.
    pub(super) probe: Option<Probe>,
    /// Whether it has answered such a question since its last batch.
    pub(super) was_probed: bool,
    /// How often in a row it did, and then did not answer a batch in time.
    pub(super) relapses: u32,
    /// Until when it is not even asked, for that.
    pub(super) rests_until: Option<Moment>,
    pub(super) connections: Vec<Box<C>>,
}

impl<C: Connection> Default for Idle<C> {
    fn default() -> Idle<C> {
        Idle {
            epoch: 0,
            pinned: None,
            local: None,
            time: None,
            life: None,
            observed: Observed::default(),
            is_down: false,
            was_refused: false,
            silent_until: None,
            probe: None,
            was_probed: false,
            relapses: 0,
            rests_until: None,
            connections: Vec::new(),
        }
    }
}

impl<C: Connection> Idle<C> {
    /// Notes the address of a connection that was opened when it was `known` to be another one, or none.
    /// If the server was moved, returns its old address, and the connections to it.
    pub(super) fn pin(
        &mut self,
        known: Option<&Pin>,
        address: Option<SocketAddr>,
    ) -> Result<Option<(SocketAddr, Vec<Box<C>>)>> {
        let Some(address) = address else { return Ok(None) };
        let before = self.pinned.as_ref().map(|pin| pin.address);
        let left = match before {
            Some(before) if before != address => {
                // Another call has found it elsewhere meanwhile. They must not use two servers.
                if known.map(|pin| pin.address) != Some(before) {
                    let text = format!("Its name leads to {address} and to {before}: try again.");
                    return Err(Error::unreachable(text));
                }
                self.epoch += 1;
                Some((before, std::mem::take(&mut self.connections)))
            }
            _ => None,
        };
        self.pinned = Some(Pin::new(address));
        Ok(left)
    }
}
