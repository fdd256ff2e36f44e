//! One connection: a batch to requests of several statements, and their replies back.

use std::sync::Arc;
use std::time::Duration;

use super::handshake::{self, Introduction, Life};
use super::packets::{Answer, Refusal, Wire};
use super::prepared::{Kind, Prepared};
use super::schema::Engine;
use super::settings::Settings;
use super::sweep::{self, Sweeper};
use super::{errors, statements};
use crate::error::{Error, Result};
use crate::name::Key;
use crate::store::remote::{self, Patience, Reading, Socket};
use crate::store::{Epoch, Failure, Op, Replies, Reply};

/// A request is ended when it is as long as this, so that its replies come in time.
const LONG_REQUEST: usize = 1024 * 1024;
/// The most statements of a request: each may wait for the disk, and all of them have to be done in
/// time.
const MOST_STATEMENTS: usize = 50;
/// The longest pause before a statement is sent again.
const LONGEST_PAUSE: Duration = Duration::from_millis(8);

/// A connection that is logged in.
#[derive(Debug)]
pub(in crate::store) struct Connection {
    wire: Wire,
    introduction: Introduction,
    settings: Arc<Settings>,
    io_timeout: Duration,
    /// Whether nothing is left of an earlier request.
    is_idle: bool,
    /// See [`remote::Connection::was_refused`].
    was_refused: bool,
    sweeper: Sweeper,
    prepared: Prepared,
}

impl Connection {
    /// Sets up the session of a connection that is logged in.
    pub(super) fn introduce(
        mut wire: Wire,
        settings: &Arc<Settings>,
        io_timeout: Duration,
    ) -> Result<Connection> {
        let introduction = handshake::introduce(&mut wire, settings, io_timeout)?;
        let settings = Arc::clone(settings);
        let (is_idle, sweeper) = (true, Sweeper::new(wire.clock(), settings.engine));
        Ok(Connection {
            wire,
            introduction,
            settings,
            io_timeout,
            is_idle,
            was_refused: false,
            sweeper,
            prepared: Prepared::default(),
        })
    }

    fn epoch(&self) -> Epoch {
        self.introduction.life.epoch()
    }

    /// Carries the rest of the operations out, in as many requests as it takes: usually one.
    /// `sent`: the first one.
    fn run_batch(&mut self, ops: &[Op<'_>], mut sent: Option<Part>) -> Replies {
        let mut batch = Batch::new(ops, self.epoch());
        let engine = self.settings.engine;
        let mut deadline = None;
        let mut tries = 0;
        let (mut is_table_new, mut has_room) = (false, false);
        while let Some(refusal) = self.attempt(&mut batch, sent.take())? {
            let refused = batch.next();
            if refusal.code == errors::NO_TABLE && !is_table_new {
                match refused {
                    Some(Op::Get { .. }) => batch.push(Reply::Missing),
                    _ => {
                        self.create_table().map_err(|error| batch.failure(error, false))?;
                        is_table_new = true;
                    }
                }
                continue;
            }
            if errors::is_forgotten(refusal.code) {
                self.prepared.forget();
                continue;
            }
            if refusal.code == errors::FULL && engine == Engine::Memory && !has_room {
                sweep::make_room(&mut self.wire, engine)
                    .map_err(|error| batch.failure(error, false))?;
                has_room = true;
                continue;
            }
            if errors::is_row_locked(refusal.code)
                && let Some(Op::Add { key, .. }) = refused
                && self.has(key).map_err(|error| batch.failure(error, false))?
            {
                batch.push(Reply::Exists);
                continue;
            }
            let now = self.wire.clock().now();
            let deadline = *deadline.get_or_insert(now + self.io_timeout);
            if !errors::is_to_be_repeated(refusal.code) || now >= deadline {
                self.was_refused = errors::is_row_locked(refusal.code);
                let error = errors::of_refusal(&refusal, engine);
                let was_sent = refused.is_some_and(|op| op.changes())
                    && !errors::was_not_carried_out(refusal.code);
                return Err(batch.failure(error, was_sent));
            }
            tries += 1;
            self.pause(tries, deadline.since(now));
        }
        Ok(batch.replies)
    }

    /// Whether there is such an item, by what was committed last: reading does not wait for a row.
    fn has(&mut self, key: &Key) -> Result<bool> {
        let read = [Op::Get { key, fence: false }];
        let mut batch = Batch::new(&read, self.epoch());
        let refusal = self.attempt(&mut batch, None).map_err(Failure::of_read)?;
        Ok(refusal.is_none() && matches!(batch.replies[..], [Reply::Value(_)]))
    }

    /// Sends the rest of the batch, unless it was `sent`, and reads the replies. Returns the
    /// refusal of the first operation that the server refused, if there is one.
    fn attempt(
        &mut self,
        batch: &mut Batch<'_, '_>,
        sent: Option<Part>,
    ) -> std::result::Result<Option<Refusal>, Failure> {
        let mut next = match sent {
            Some(part) => Some(part),
            None => self.send_part(batch)?,
        };
        while let Some(part) = next {
            if let Some(refusal) = self.receive_part(batch, part)? {
                return Ok(Some(refusal));
            }
            next = self.send_part(batch)?;
        }
        Ok(None)
    }

    /// Sends the next operations of the batch. Returns `None` if none is left.
    fn send_part(&mut self, batch: &Batch<'_, '_>) -> std::result::Result<Option<Part>, Failure> {
        let Some(op) = batch.next() else { return Ok(None) };
        let is_alone = batch.ops.len() == 1;
        let is_prepared =
            is_alone && self.prepared.execute(op, self.settings.engine, &mut self.wire);
        let mut part = Part { count: 1, prepares: None };
        if !is_prepared {
            part.count = self.encode(batch)?;
            part.prepares = Kind::of(op).filter(|&kind| is_alone && self.prepared.is_due(kind));
        }
        if let Some(kind) = part.prepares {
            Prepared::request(kind, &mut self.wire);
        }
        self.wire.send_output().map_err(|failure| Failure {
            sent: failure.sent && batch.left().any(Op::changes) || batch.has_changed,
            ..failure
        })?;
        Ok(Some(part))
    }

    /// Reads the replies to them, up to the first refusal.
    fn receive_part(
        &mut self,
        batch: &mut Batch<'_, '_>,
        Part { count, prepares }: Part,
    ) -> std::result::Result<Option<Refusal>, Failure> {
        let mut patience = Patience::default();
        for left in (0..count).rev() {
            let Some(op) = batch.next() else { break };
            let lost = |error| Failure {
                error,
                sent: batch.has_changed || batch.left().take(left + 1).any(Op::changes),
            };
            let answer = self.wire.answer(left == 0, &mut patience).map_err(lost)?;
            if let Some(kind) = prepares {
                self.prepared.read(kind, &mut self.wire, &mut patience).map_err(lost)?;
            }
            match answer {
                Answer::Refused(refusal) => return Ok(Some(refusal)),
                answer => {
                    let reply = statements::decode(op, answer, batch.epoch).map_err(lost)?;
                    batch.push(reply);
                }
            }
        }
        Ok(None)
    }

    /// Writes the statements of the next operations into a request. Returns how many.
    fn encode(&mut self, batch: &Batch<'_, '_>) -> std::result::Result<usize, Failure> {
        let longest = self.introduction.longest;
        let engine = self.settings.engine;
        let output = self.wire.begin_query();
        let (start, mut count) = (output.len(), 0);
        for op in batch.left().filter(|op| op.is_of(batch.epoch)) {
            let end = output.len();
            if end > start {
                output.push(b';');
            }
            statements::encode(op, engine, output);
            if output.len() >= longest.min(LONG_REQUEST) || count == MOST_STATEMENTS {
                if count > 0 {
                    output.truncate(end);
                    break;
                }
                if output.len() >= longest {
                    return Err(batch.failure(errors::too_large(), false));
                }
            }
            count += 1;
        }
        Ok(count)
    }

    fn create_table(&mut self) -> Result<()> {
        let created = handshake::create_table(&mut self.wire, &self.settings);
        // A table is no lock.
        created.map_err(|error| Failure::unsent(error).error)
    }

    fn pause(&self, tries: u32, left: Duration) {
        let clock = self.wire.clock();
        let mut random = [0];
        // Without chance the pause is as long as it can be.
        let share = clock.random(&mut random).map_or(256, |()| u32::from(random[0]));
        let longest = Duration::from_micros(250).saturating_mul(1 << tries.min(5));
        clock.sleep((longest.min(LONGEST_PAUSE) * share / 256).min(left));
    }
}

/// The operations of one request.
#[derive(Debug)]
pub(in crate::store) struct Part {
    count: usize,
    /// The statement that it prepares.
    prepares: Option<Kind>,
}

/// A batch that is being carried out.
struct Batch<'a, 'b> {
    ops: &'a [Op<'b>],
    epoch: Epoch,
    /// The replies so far, also to operations of another life that are next.
    replies: Vec<Reply>,
    /// Whether one of its operations may have changed something.
    has_changed: bool,
}

impl<'a, 'b> Batch<'a, 'b> {
    fn new(ops: &'a [Op<'b>], epoch: Epoch) -> Batch<'a, 'b> {
        let replies = Vec::with_capacity(ops.len());
        let mut batch = Batch { ops, epoch, replies, has_changed: false };
        batch.pass_over();
        batch
    }

    /// Answers operations of another life, which are not sent.
    fn pass_over(&mut self) {
        while self.next().is_some_and(|op| !op.is_of(self.epoch)) {
            self.replies.push(Reply::VersionMismatch);
        }
    }

    fn next(&self) -> Option<&'a Op<'b>> {
        self.ops.get(self.replies.len())
    }

    fn left(&self) -> impl Iterator<Item = &'a Op<'b>> + use<'a, 'b> {
        self.ops.iter().skip(self.replies.len())
    }

    fn push(&mut self, reply: Reply) {
        self.has_changed |=
            matches!(reply, Reply::Stored(_) | Reply::Written | Reply::Deleted | Reply::Number(_));
        self.replies.push(reply);
        self.pass_over();
    }

    fn failure(&self, error: Error, sent: bool) -> Failure {
        Failure { error, sent }.behind(self.has_changed)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.is_idle {
            return;
        }
        // A connection that is not used again sweeps to the end.
        while self.wire.socket.has_last_reply() {
            let swept = self.sweeper.receive(&mut self.wire);
            if swept.and_then(|()| self.sweeper.send(&mut self.wire)).is_err() {
                return;
            }
        }
        self.wire.quit();
    }
}

impl remote::Connection for Connection {
    type Life = Life;
    type Time = Reading;

    /// `None` if all operations are of another life.
    type Sent = Option<Part>;

    fn send(&mut self, ops: &[Op<'_>]) -> std::result::Result<Option<Part>, Failure> {
        (self.is_idle, self.was_refused) = (false, false);
        self.send_part(&Batch::new(ops, self.epoch()))
    }

    fn receive(&mut self, ops: &[Op<'_>], sent: Option<Part>) -> Replies {
        let ran = self.run_batch(ops, sent);
        self.is_idle = ran.is_ok() || self.was_refused;
        if let Ok(replies) = &ran {
            self.sweeper.note(ops, replies);
            // A failure concerns this connection alone, and nothing that was answered.
            self.is_idle = self.sweeper.send(&mut self.wire).is_ok();
        }
        ran
    }

    fn socket(&self) -> &Socket {
        &self.wire.socket
    }

    fn socket_mut(&mut self) -> &mut Socket {
        &mut self.wire.socket
    }

    fn was_closed(&mut self) -> bool {
        let socket = &mut self.wire.socket;
        let was_closed = socket.was_closed()
            || (socket.owes_reply() && self.sweeper.receive(&mut self.wire).is_err());
        self.is_idle &= !was_closed;
        was_closed
    }

    fn is_quiet(&self) -> bool {
        self.is_idle && self.wire.socket.unread().is_empty()
    }

    fn was_refused(&self) -> bool {
        self.was_refused
    }

    fn is_read_only(&self) -> bool {
        self.introduction.is_read_only
    }

    fn life(&self) -> Life {
        self.introduction.life
    }

    fn epoch(&self) -> Epoch {
        self.introduction.life.epoch()
    }

    fn time(&self) -> Reading {
        self.introduction.time
    }
}
