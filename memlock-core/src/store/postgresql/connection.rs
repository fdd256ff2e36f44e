//! One connection: a batch to calls of functions, and their replies back.

use std::sync::Arc;
use std::time::Duration;

use postgres_protocol::message::frontend;

use super::errors;
use super::introduction::{self, Introduction, Life};
use super::login::login;
use super::request::{self, ANOTHER_LIFE, Answer, Request, Terms};
use super::settings::Settings;
use super::wire::{Complaint, Wire, columns, nonsense, unwritable};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::store::remote::{self, Address, EXAMINED, Patience, Reading, Socket, SweepCounter};
use crate::store::{Epoch, Failure, Op, Replies, Reply};

/// A call has no more operations than this, and no more bytes of values, about: the server builds
/// the reply to a call in memory.
const MOST_OPS: usize = 256;
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// How often a transaction that fell victim to others is tried again.
const TRIES: usize = 20;

/// After so long, a call looks whether it is still in the life in which the connection was opened: an
/// older copy may have been restored, which closes no connection. Behind a pooler, each call does.
const UNCOMPARED: Duration = Duration::from_secs(1);

/// The name of a prepared statement. Behind a pooler there is none: a pooler passes the requests of
/// several clients to one session.
const NAMES: [&str; 2] = ["memlock_apply_1", "memlock_run_1"];

/// An open connection to a suitable server.
#[derive(Debug)]
pub(in crate::store) struct Connection {
    wire: Wire,
    settings: Arc<Settings>,
    introduction: Introduction,
    /// When a call was sent that has last looked for another life.
    compared: Moment,
    /// For how many milliseconds a row may be locked by others.
    row_patience: i32,
    /// Which of [`NAMES`] are prepared.
    prepared: [bool; 2],
    sweeps: SweepCounter,
    /// Whether the server waits for a request, apart from a sweep.
    is_ready: bool,
    /// See [`remote::Connection::was_refused`].
    was_refused: bool,
}

/// A call that was sent.
#[derive(Debug)]
pub(in crate::store) struct Call {
    /// How many operations it has.
    count: usize,
    sent: Moment,
    /// Whether it looks for another life.
    compares: bool,
}

/// Why a call was not carried out.
enum Stop {
    /// By the server, in words: nothing of it was kept.
    Refused(Complaint),
    Failed(Failure),
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
            prepared: [false; 2],
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

    /// Sends as many of these requests as one call has. `None` if there are none.
    fn send_call(
        &mut self,
        requests: &[Request<'_>],
    ) -> std::result::Result<Option<Call>, Failure> {
        let mut bytes = 0;
        let fits = |request: &&Request<'_>| {
            bytes += request.size();
            bytes <= MOST_BYTES
        };
        let count = requests.iter().take(MOST_OPS).take_while(fits).count().max(1);
        let Some((part, _)) = requests.split_at_checked(count) else { return Ok(None) };
        let sent = self.wire.socket.clock().now();
        let compares = sent.since(self.compared) >= UNCOMPARED;
        self.send_requests(part, compares)?;
        Ok(Some(Call { count, sent, compares }))
    }

    /// Receives the answers to a call that was sent, and to further calls for the rest.
    fn receive_calls(
        &mut self,
        requests: &[Request<'_>],
        mut call: Option<Call>,
    ) -> std::result::Result<Vec<Answer>, Failure> {
        let changes = requests.iter().any(Request::changes);
        let mut answers = Vec::with_capacity(requests.len());
        while let Some(sent) = call {
            let earlier = answers.len();
            // What earlier calls have changed stays changed.
            let kept = |failure: Failure| Failure {
                sent: failure.sent || (earlier > 0 && changes),
                ..failure
            };
            let part = &requests[earlier..earlier + sent.count];
            answers.extend(self.receive_call(part, &sent).map_err(kept)?);
            call = self.send_call(&requests[answers.len()..]).map_err(kept)?;
        }
        Ok(answers)
    }

    fn receive_batch(&mut self, ops: &[Op<'_>], call: Option<Call>) -> Replies {
        let epoch = self.introduction.life.epoch();
        let changes = ops.iter().filter(|op| op.changes() && op.is_of(epoch)).count();
        let answers = self.receive_calls(&self.requests(ops), call)?;
        let mut answers = answers.into_iter();
        let mut replies = Vec::with_capacity(ops.len());
        for op in ops {
            if !op.is_of(epoch) {
                replies.push(Reply::VersionMismatch);
                continue;
            }
            let answer =
                answers.next().ok_or_else(|| Failure { error: nonsense(), sent: changes > 0 })?;
            if answer.code == ANOTHER_LIFE {
                let text = "The server has lost its locks meanwhile, in a crash or a failover, or an older copy was \
                            restored.";
                let error = Error::new(ErrorKind::Unreachable, text);
                return Err(Failure { error, sent: changes > 0 && !replies.is_empty() });
            }
            let reply = request::decode(op, answer, epoch).map_err(|failure| Failure {
                // If this one was not carried out, others may have been.
                sent: failure.sent || changes > usize::from(op.changes()),
                ..failure
            });
            replies.push(reply?);
        }
        self.sweeps.add(changes);
        Ok(replies)
    }

    /// Sends a sweep if one is due. If that fails, the connection is not ready for another request,
    /// and not used again.
    fn sweep(&mut self) {
        let sweep = [Request::sweep(EXAMINED as i64)];
        if self.sweeps.take() && self.send_requests(&sweep, false).is_ok() {
            self.wire.socket.defer_reply();
            self.is_ready = true;
        }
    }

    /// Reads the reply to the last sweep.
    fn end_sweep(&mut self) -> std::result::Result<(), Failure> {
        if !self.wire.socket.owes_reply() {
            return Ok(());
        }
        self.is_ready = false;
        let ended = match self.receive_answers(true) {
            Ok(_) => self.wire.socket.end_deferral(),
            Err(Stop::Refused(said)) => {
                log::debug!("Rows that have ended could not be deleted: {}", said.text.shown());
                self.wire.socket.end_deferral()
            }
            Err(Stop::Failed(failure)) => Err(failure.error),
        };
        ended.map_err(Failure::unsent)
    }

    /// Receives the answers to a call, and repeats it if it fell victim to others.
    fn receive_call(
        &mut self,
        requests: &[Request<'_>],
        call: &Call,
    ) -> std::result::Result<Vec<Answer>, Failure> {
        for tries in 1.. {
            let said = match self.receive_answers(requests.len() == 1) {
                Ok(answers) => {
                    if call.compares {
                        self.compared = call.sent;
                    }
                    return Ok(answers);
                }
                Err(Stop::Failed(failure)) => return Err(failure),
                Err(Stop::Refused(said)) => said,
            };
            if errors::is_of_another_session(&said.code) && self.introduction.is_direct {
                (self.introduction.is_direct, self.prepared) = (false, [false; 2]);
                self.send_requests(requests, call.compares)?;
                continue;
            }
            // The transactions of a batch before the one that failed were kept.
            let changes = requests.iter().filter(|request| request.changes()).count();
            let is_last = requests.last().is_some_and(Request::changes);
            let nothing_kept = changes == usize::from(is_last)
                || (changes == 1 && errors::is_of_a_change(&said.code));
            if nothing_kept && errors::is_victim(&said.code) && tries < TRIES {
                self.send_requests(requests, call.compares)?;
                continue;
            }
            self.was_refused = errors::is_of_the_request(&said.code);
            let error = errors::of(&said, &self.settings.schema, &self.settings.user);
            let error = match error.kind() {
                ErrorKind::Unreachable if !nothing_kept => {
                    Error::new(ErrorKind::Unknown, error.to_string())
                }
                _ => error,
            };
            return Err(Failure { error, sent: !nothing_kept });
        }
        Err(Failure { error: nonsense(), sent: true })
    }

    fn send_requests(
        &mut self,
        requests: &[Request<'_>],
        compares: bool,
    ) -> std::result::Result<(), Failure> {
        self.write(requests, compares).map_err(|error| Failure { error, sent: false })?;
        self.is_ready = false;
        self.wire.send()
    }

    /// `is_alone`: whether one operation was sent.
    fn receive_answers(&mut self, is_alone: bool) -> std::result::Result<Vec<Answer>, Stop> {
        let unread = |error| Stop::Failed(Failure { error, sent: true });
        let mut patience = Patience::default();
        let mut answers = None;
        let mut refused = None;
        loop {
            let frame = self.wire.next(&mut patience).map_err(unread)?;
            let body = self.wire.body(frame);
            match frame.tag {
                b'D' => {
                    let columns = columns(body).ok_or_else(|| unread(nonsense()))?;
                    let parsed = if is_alone {
                        request::record(&columns).map(|answer| vec![answer])
                    } else {
                        request::arrays(&columns)
                    };
                    answers = Some(parsed.ok_or_else(|| unread(nonsense()))?);
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
                    return match (refused, answers) {
                        (Some(said), _) => Err(Stop::Refused(said)),
                        (None, Some(answers)) => {
                            let kind = usize::from(!is_alone);
                            self.prepared = match (self.introduction.is_direct, kind) {
                                (false, _) => [false; 2],
                                (true, 0) => [true, self.prepared[1]],
                                (true, _) => [self.prepared[0], true],
                            };
                            Ok(answers)
                        }
                        (None, None) => Err(unread(nonsense())),
                    };
                }
                // Parsed, bound, completed.
                b'1' | b'2' | b'C' => {}
                _ => return Err(unread(nonsense())),
            }
            self.wire.done(frame);
        }
    }

    /// The server ends the session: it may have carried the call out before.
    fn ended(&self, said: &Complaint) -> Stop {
        let error = errors::of(said, &self.settings.schema, &self.settings.user);
        if errors::is_not_passed_on(said) {
            return Stop::Failed(Failure { error, sent: false });
        }
        let error = Error::new(ErrorKind::Unknown, error.to_string());
        Stop::Failed(Failure { error, sent: true })
    }

    fn write(&mut self, requests: &[Request<'_>], compares: bool) -> Result<()> {
        let kind = usize::from(requests.len() != 1);
        let schema = &self.settings.schema;
        let (name, is_prepared) = if self.introduction.is_direct {
            (NAMES[kind], self.prepared[kind])
        } else {
            ("", false)
        };
        if !is_prepared {
            let quoted = schema.quoted();
            let (text, types) =
                if kind == 0 { request::apply(&quoted) } else { request::run(&quoted) };
            frontend::parse(name, &text, types, &mut self.wire.out).map_err(|_| unwritable())?;
        }
        let life = self.introduction.life.0;
        let terms = if self.introduction.is_direct {
            Terms { life: compares.then_some(life), ..Terms::default() }
        } else {
            Terms {
                patience: Some(self.row_patience),
                commits: Some(if schema.is_durable { "on" } else { "off" }),
                life: Some(life),
            }
        };
        request::bind(name, requests, &terms, &mut self.wire.out)?;
        frontend::sync(&mut self.wire.out);
        Ok(())
    }
}

/// Says goodbye to a server that waits for a request: it, or a pooler, might log that a client
/// vanished.
impl Drop for Connection {
    fn drop(&mut self) {
        if !self.is_ready || !self.wire.socket.begin_goodbye() {
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
    type Sent = Option<Call>;

    fn send(&mut self, ops: &[Op<'_>]) -> std::result::Result<Option<Call>, Failure> {
        self.was_refused = false;
        self.end_sweep()?;
        self.send_call(&self.requests(ops))
    }

    fn receive(&mut self, ops: &[Op<'_>], call: Option<Call>) -> Replies {
        let replies = self.receive_batch(ops, call)?;
        self.sweep();
        Ok(replies)
    }

    fn socket(&self) -> &Socket {
        &self.wire.socket
    }

    fn socket_mut(&mut self) -> &mut Socket {
        &mut self.wire.socket
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
