//! One connection: requests to calls of a function in one packet, and their replies back.

mod batch;

use std::sync::Arc;
use std::time::Duration;

use postgres_protocol::message::frontend;

use super::errors;
use super::introduction::{self, Introduction, Life};
use super::login::login;
use super::request::{self, Answer, Request, Terms};
use super::settings::Settings;
use super::wire::{Complaint, Wire, columns, nonsense, unwritable};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::store::remote::{self, Address, Patience, Reading, Socket, SweepCounter};
use crate::store::{Epoch, Failure, Op, Replies};

/// After so long, a packet looks whether it is still in the life in which the connection was opened: an
/// older copy may have been restored, which closes no connection. Behind a pooler, each one does.
const UNCOMPARED: Duration = Duration::from_secs(1);

/// The name of the prepared statement. Behind a pooler there is none: a pooler passes the requests of
/// several clients to one session.
const NAME: &str = "memlock_apply_1";

/// An open connection to a suitable server.
#[derive(Debug)]
pub(in crate::store) struct Connection {
    wire: Wire,
    settings: Arc<Settings>,
    introduction: Introduction,
    /// When the packet was sent that has last looked for another life.
    compared: Moment,
    /// For how many milliseconds a row may be locked by others.
    row_patience: i32,
    /// Whether [`NAME`] is prepared.
    is_prepared: bool,
    sweeps: SweepCounter,
    /// Whether the server waits for a request, apart from a sweep.
    is_ready: bool,
    /// See [`remote::Connection::was_refused`].
    was_refused: bool,
}

/// A packet that was sent.
#[derive(Debug)]
pub(in crate::store) struct Packet {
    /// How many operations it has.
    count: usize,
    sent: Moment,
    /// Whether it looks for another life.
    compares: bool,
}

impl Connection {
    pub(super) fn open(
        socket: Socket,
        address: &Address,
        settings: &Arc<Settings>,
    ) -> Result<Connection> {
        let mut wire = Wire::new(socket, settings.secret());
        let process = login(&mut wire, address, settings)?;
        // Less than this client waits for the reply, which then says why.
        let patience = address.settings.io_timeout.mul_f64(0.75).as_millis().max(1);
        let row_patience = i32::try_from(patience).unwrap_or(i32::MAX);
        let introduction =
            introduction::introduce(&mut wire, settings, process, row_patience, address)?;
        let sweeps = SweepCounter::new(wire.socket.clock());
        Ok(Connection {
            wire,
            settings: Arc::clone(settings),
            compared: introduction.time.sent,
            introduction,
            row_patience,
            is_prepared: false,
            sweeps,
            is_ready: true,
            was_refused: false,
        })
    }

    /// The requests of those operations that can be carried out in this life.
    fn requests<'a>(&self, ops: &'a [Op<'a>]) -> Vec<Request<'a>> {
        let epoch = self.introduction.life.epoch();
        ops.iter().filter(|op| op.is_of(epoch)).map(Request::of).collect()
    }

    /// Receives one answer; or what the server says that has refused the request, and kept nothing of it.
    fn receive_answer(
        &mut self,
        patience: &mut Patience,
    ) -> std::result::Result<std::result::Result<Answer, Complaint>, Failure> {
        let unread = |error| Failure { error, sent: true };
        self.is_ready = false;
        let (mut answer, mut refused) = (None, None);
        loop {
            let frame = self.wire.next(patience).map_err(unread)?;
            let body = self.wire.body(frame);
            match frame.tag {
                b'D' => {
                    let record = columns(body).as_deref().and_then(request::record);
                    answer = Some(record.ok_or_else(|| unread(nonsense()))?);
                }
                b'E' => {
                    let said = Complaint::parse(body, self.wire.secret.as_ref());
                    if said.is_fatal {
                        return Err(self.ended(&said));
                    }
                    refused = Some(said);
                }
                b'Z' => {
                    let is_idle = body == b"I";
                    self.wire.done(frame);
                    if !is_idle {
                        return Err(unread(nonsense()));
                    }
                    self.is_ready = true;
                    return match (refused, answer) {
                        (Some(said), _) => Ok(Err(said)),
                        (None, Some(answer)) => Ok(Ok(answer)),
                        (None, None) => Err(unread(nonsense())),
                    };
                }
                // Parsed.
                b'1' => self.is_prepared = self.introduction.is_direct,
                // Bound, completed.
                b'2' | b'C' => {}
                _ => return Err(unread(nonsense())),
            }
            self.wire.done(frame);
        }
    }

    /// The server ends the session: it may have carried the request out before.
    fn ended(&self, said: &Complaint) -> Failure {
        let error = errors::of(said, &self.settings.schema, &self.settings.user);
        if errors::is_not_passed_on(said) {
            return Failure { error, sent: false };
        }
        Failure { error: Error::new(ErrorKind::Unknown, error.to_string()), sent: true }
    }

    /// Waits until the disk has what was changed.
    fn sync(&mut self) -> std::result::Result<(), Failure> {
        let commits =
            if self.introduction.is_direct { "" } else { "SET LOCAL synchronous_commit = on;" };
        let schema = self.settings.schema.quoted();
        self.is_ready = false;
        let synced =
            self.wire.query(&format!("{commits}UPDATE {schema}.life SET swept = swept"))?;
        self.is_ready = synced.is_ok();
        synced.map(drop).map_err(|said| {
            let error = errors::of(&said, &self.settings.schema, &self.settings.user);
            Failure { error, sent: true }
        })
    }

    /// Sends a sweep if one is due. If that fails, the connection is not ready for another request,
    /// and not used again.
    fn sweep(&mut self) {
        if let Some(rows) = self.sweeps.take()
            && self.send_requests(&[Request::sweep(rows as i64)], false).is_ok()
        {
            self.wire.socket.defer_reply();
            self.is_ready = true;
        }
    }

    /// Reads the reply to the last sweep.
    fn end_sweep(&mut self) -> Result<()> {
        let swept = self.receive_answer(&mut Patience::default());
        if let Err(said) = swept.map_err(|failure| failure.error)? {
            log::debug!("Rows that have ended could not be deleted: {}", said.text.shown());
        }
        self.wire.socket.end_deferral()
    }

    /// Sends requests in one packet. Each is a transaction of its own.
    fn send_requests(
        &mut self,
        requests: &[Request<'_>],
        compares: bool,
    ) -> std::result::Result<(), Failure> {
        let last_change = requests.iter().rposition(Request::changes);
        for (place, request) in requests.iter().enumerate() {
            let is_synced = !request.changes() || Some(place) == last_change;
            let is_first = place == 0;
            self.write(request, is_first, is_synced, compares).map_err(Failure::unsent)?;
        }
        self.is_ready = false;
        self.wire.send()
    }

    /// `is_synced`: whether its commit waits for the disk, if the schema is durable.
    fn write(
        &mut self,
        request: &Request<'_>,
        is_first: bool,
        is_synced: bool,
        compares: bool,
    ) -> Result<()> {
        let schema = &self.settings.schema;
        let is_direct = self.introduction.is_direct;
        let name = if is_direct { NAME } else { "" };
        // Behind a pooler, each transaction may be in another session.
        if !is_direct || (is_first && !self.is_prepared) {
            let (text, types) = request::apply(&schema.quoted());
            frontend::parse(name, &text, types, &mut self.wire.out).map_err(|_| unwritable())?;
        }
        let commits = match (schema.is_durable, is_synced, is_direct) {
            (true, false, _) | (false, _, false) => Some("off"),
            (true, true, false) => Some("on"),
            // As the session has it.
            (_, _, true) => None,
        };
        let life = self.introduction.life.0;
        let terms = Terms {
            patience: (!is_direct).then_some(self.row_patience),
            commits,
            life: (compares || !is_direct).then_some(life),
        };
        request::bind(name, request, &terms, &mut self.wire.out)?;
        frontend::sync(&mut self.wire.out);
        Ok(())
    }
}

/// Says goodbye to a server that waits for a request: it, or a pooler, might log that a client
/// vanished. Nothing is said if the program has closed the socket, and may have another one with its
/// number.
impl Drop for Connection {
    fn drop(&mut self) {
        if !self.is_ready || !self.wire.socket.is_ours() {
            return;
        }
        if self.wire.socket.has_last_reply() && self.end_sweep().is_err() {
            return;
        }
        self.wire.out.clear();
        frontend::terminate(&mut self.wire.out);
        let _ = self.wire.send();
    }
}

impl remote::Connection for Connection {
    type Life = Life;
    type Time = Reading;

    /// `None` if all operations are of another life.
    type Sent = Option<Packet>;

    fn send(&mut self, ops: &[Op<'_>]) -> std::result::Result<Option<Packet>, Failure> {
        self.was_refused = false;
        self.send_packet(&self.requests(ops))
    }

    fn receive(&mut self, ops: &[Op<'_>], packet: Option<Packet>) -> Replies {
        let replies = self.receive_batch(ops, packet)?;
        self.sweep();
        Ok(replies)
    }

    fn socket(&self) -> &Socket {
        &self.wire.socket
    }

    fn socket_mut(&mut self) -> &mut Socket {
        &mut self.wire.socket
    }

    fn was_closed(&mut self) -> bool {
        let socket = &mut self.wire.socket;
        socket.was_closed() || (socket.owes_reply() && self.end_sweep().is_err())
    }

    fn is_quiet(&self) -> bool {
        self.is_ready && self.wire.socket.unread().is_empty()
    }

    fn was_refused(&self) -> bool {
        self.was_refused
    }

    fn life(&self) -> Life {
        self.introduction.life
    }

    fn epoch(&self) -> Epoch {
        self.introduction.life.epoch()
    }

    fn config(&mut self) -> Option<Vec<u8>> {
        self.introduction.config.take()
    }

    fn time(&self) -> Reading {
        self.introduction.time
    }
}
