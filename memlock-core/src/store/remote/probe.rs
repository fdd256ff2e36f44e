//! Whether a server that was silent answers again: a request on a connection of its own, whose reply
//! nobody waits for.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use super::dial::{Pin, connect};
use super::settings::{Address, Place};
use super::stream::Stream;
use crate::clock::{Clock, Moment};

/// How long connecting may take where the address is not known: the call in which that happens has
/// other servers to ask.
const CONNECTING: Duration = Duration::from_millis(20);
/// For how long a server that accepts no connection is not asked again.
const PAUSE: Duration = Duration::from_secs(1);
/// For how long a reply is expected.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request under way.
#[derive(Debug)]
pub(super) struct Probe {
    /// `None`: the server accepted no connection.
    stream: Option<Stream>,
    /// What is to be sent yet.
    request: Vec<u8>,
    began: Moment,
}

/// What is known of the reply.
pub(super) enum Answered {
    Yes,
    /// None has come, or none will.
    NotYet,
    No,
}

impl Probe {
    /// Connects, and sends the request as soon as that is possible.
    pub(super) fn begin(
        address: &Address,
        pinned: Option<Pin>,
        request: &[u8],
        clock: &dyn Clock,
    ) -> Probe {
        let stream = match (&address.place, &pinned) {
            (Place::Tcp(host, port), Some(pin)) => {
                // Nobody waits for a lookup: the next probe has its result.
                Stream::begin(pin.present((host, *port), Duration::ZERO, clock)).ok()
            }
            _ => {
                let limit = CONNECTING.min(address.settings.connect_timeout);
                let connected = connect(&address.place, "server", pinned, limit, clock).ok();
                connected.filter(|stream| stream.set_nonblocking(true).is_ok())
            }
        };
        let mut probe = Probe { stream, request: request.to_vec(), began: clock.now() };
        let _ = probe.send();
        probe
    }

    /// Sends the request, if the connection is open and it was not sent yet.
    fn send(&mut self) -> std::io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        while !self.request.is_empty() {
            let written = stream.write(&self.request)?;
            self.request.drain(..written);
        }
        Ok(())
    }

    /// How long ago it began.
    pub(super) fn age(&self, now: Moment) -> Duration {
        now.since(self.began)
    }

    /// Looks for the reply.
    pub(super) fn answer(&mut self, now: Moment) -> Answered {
        let waited = now.since(self.began);
        let sent = self.send();
        let Some(stream) = &mut self.stream else {
            return if waited < PAUSE { Answered::NotYet } else { Answered::No };
        };
        match sent.and_then(|()| stream.read(&mut [0; 64])) {
            Ok(1..) => Answered::Yes,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::NotConnected | ErrorKind::Interrupted
                ) && waited < PATIENCE =>
            {
                Answered::NotYet
            }
            // It was closed: it is asked anew after a pause.
            Ok(_) | Err(_) => {
                self.stream = None;
                if waited < PAUSE { Answered::NotYet } else { Answered::No }
            }
        }
    }
}
