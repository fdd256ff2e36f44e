//! One connection: a batch to commands, their replies back, and the fence.
//!
//! The commands of a batch are sent in one packet. If a reply has to contain a fence, the packet
//! ends with an `INCR` of the counter of fences. It is carried out after the item was stored, so the
//! number is greater than those that were drawn while others held the lock.
//!
//! The counter is raised when a connection is opened. Meanwhile the server may have become a replica of
//! an older copy, and a primary again, which closes no connection: the counter is raised once more in
//! front of an `INCR` that follows the last raise after a second or more.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Parser, ServerError, Value};

use super::handshake::{self, Introduction, Life};
use super::retention::MEND;
use super::settings::Settings;
use super::{errors, replies, request};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::mix;
use crate::name::Key;
use crate::store::remote::{self, Patience, Reading, Socket};
use crate::store::{Epoch, Expiry, Failure, Op, Replies, Reply};

/// How often the script is loaded again within one batch.
const RELOADS: usize = 2;

/// After so long, the counter is raised again before the next fence is drawn.
const UNRAISED: Duration = Duration::from_secs(1);

/// A connection that is logged in.
pub(in crate::store) struct Connection {
    socket: Socket,
    parser: Parser,
    introduction: Introduction,
    /// When the request for the server's policy was sent.
    retention_read: Moment,
    /// When the counter of fences was last raised.
    last_raise: Moment,
    settings: Arc<Settings>,
    /// The number from which the next version is made.
    next_version: u64,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("socket", &self.socket)
            .field("introduction", &self.introduction)
            .finish_non_exhaustive()
    }
}

/// How the packet names the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    /// By its hash: the server knows it.
    Known,
    /// The packet loads it, and its first call has the text.
    Reloaded,
    /// Each call has the text: the server forgets the script again and again.
    Spelled,
}

/// A packet whose replies have to be read.
#[derive(Debug)]
pub(in crate::store) struct Sent {
    script: Script,
    versions: Vec<u64>,
    draws: bool,
    raises: bool,
}

impl Connection {
    /// Logs in, and examines the server. No lock is changed there.
    pub(super) fn introduce(mut socket: Socket, settings: &Arc<Settings>) -> Result<Connection> {
        let mut parser = Parser::new();
        let introduction = handshake::introduce(&mut socket, &mut parser, settings)?;
        let mut start = [0; 8];
        socket.clock().random(&mut start).map_err(|error| {
            let text = format!("The operating system gives no random numbers: {error}.");
            Error::new(ErrorKind::Unreachable, text)
        })?;
        let next_version = u64::from_ne_bytes(start);
        let settings = Arc::clone(settings);
        let sent = introduction.time.sent;
        Ok(Connection {
            socket,
            parser,
            introduction,
            retention_read: sent,
            last_raise: sent,
            settings,
            next_version,
        })
    }

    fn epoch(&self) -> Epoch {
        self.introduction.life.epoch()
    }

    fn send_batch(&mut self, ops: &[Op<'_>], script: Script) -> std::result::Result<Sent, Failure> {
        let versions = self.new_versions(ops.len());
        self.encode(ops, &versions, script);
        let draws = ops.iter().any(Op::wants_fence);
        let raises = draws && self.encode_draw(false);
        if !self.socket.output.is_empty() {
            self.socket.write_out()?;
        }
        Ok(Sent { script, versions, draws, raises })
    }

    /// Reads the replies. `None`: the server did not know the script, and the operation was not
    /// carried out.
    fn receive_batch(
        &mut self,
        ops: &[Op<'_>],
        Sent { script, versions, draws, raises }: Sent,
    ) -> std::result::Result<Vec<Option<Reply>>, Failure> {
        let mut patience = Patience::default();
        if script == Script::Reloaded {
            let sent = ops.iter().any(Op::changes);
            self.next(&mut patience).map_err(|error| Failure { error, sent })?;
        }
        let mut replies: Vec<Option<Reply>> = Vec::with_capacity(ops.len());
        let mut refused: Option<(&Op<'_>, ServerError)> = None;
        for (place, (op, &version)) in ops.iter().zip(&versions).enumerate() {
            if !op.is_of(self.epoch()) {
                replies.push(Some(Reply::VersionMismatch));
                continue;
            }
            let may_have_changed = |replies: &[Option<Reply>]| {
                any_changed(replies) || ops[place..].iter().any(Op::changes)
            };
            match self.next(&mut patience) {
                Ok(Value::ServerError(error)) => {
                    if error.code() != errors::FORGOTTEN || script == Script::Spelled {
                        refused = refused.or(Some((op, error)));
                    }
                    replies.push(None);
                }
                Ok(value) => match request::decode(op, version, value, self.epoch()) {
                    Ok(reply) => replies.push(Some(reply)),
                    Err(error) => {
                        return Err(Failure { error, sent: may_have_changed(&replies) });
                    }
                },
                Err(error) => return Err(Failure { error, sent: may_have_changed(&replies) }),
            }
        }
        // A command that was refused was not carried out, but others may have been.
        let changed = any_changed(&replies);
        let drawn = if draws {
            let drawn = self.read_draw(raises, &mut patience);
            Some(drawn.map_err(|error| Failure { error, sent: changed })?)
        } else {
            None
        };
        if let Some((op, error)) = refused {
            let (code, text) = (error.code(), error.details().unwrap_or_default());
            let error = request::refused(op, code, text, self.settings.password.as_ref());
            return Err(Failure { error, sent: changed });
        }
        if let Some(drawn) = drawn {
            let fence = self.fence(drawn).map_err(|error| Failure { error, sent: changed })?;
            fill_in(ops, &mut replies, fence);
        }
        Ok(replies)
    }

    /// Carries out what the server did not, because it had forgotten the script: `SCRIPT FLUSH`, or
    /// a failover behind a proxy. From the first such operation on, all those that changed nothing
    /// are run again, so that an operation that reads still follows those before it. Each packet
    /// carries out at least one operation.
    fn complete(
        &mut self,
        ops: &[Op<'_>],
        replies: &mut [Option<Reply>],
    ) -> std::result::Result<(), Failure> {
        for round in 0.. {
            let Some(first) = replies.iter().position(Option::is_none) else { break };
            let places: Vec<usize> = (first..ops.len())
                .filter(|&place| !replies[place].as_ref().is_some_and(has_changed))
                .collect();
            let again: Vec<Op<'_>> = places.iter().map(|&place| ops[place]).collect();
            let script = if round < RELOADS { Script::Reloaded } else { Script::Spelled };
            let sent = self.send_batch(&again, script);
            let later =
                sent.and_then(|sent| self.receive_batch(&again, sent)).map_err(|failure| {
                    let sent = failure.sent || any_changed(replies);
                    Failure { sent, ..failure }
                })?;
            for (place, reply) in places.into_iter().zip(later) {
                replies[place] = reply;
            }
        }
        Ok(())
    }

    /// Versions are a permutation of consecutive numbers that begin at random: none occurs twice.
    fn new_versions(&mut self, count: usize) -> Vec<u64> {
        let first = self.next_version;
        self.next_version = first.wrapping_add(count as u64);
        (0..count as u64).map(|place| mix(first.wrapping_add(place))).collect()
    }

    fn encode(&mut self, ops: &[Op<'_>], versions: &[u64], script: Script) {
        let epoch = self.epoch();
        let output = &mut self.socket.output;
        output.clear();
        if script == Script::Reloaded {
            handshake::load().write_packed_command(output);
        }
        let mut is_spelled = script != Script::Known;
        for (op, &version) in ops.iter().zip(versions).filter(|(op, _)| op.is_of(epoch)) {
            let hash = Some(self.introduction.script.as_str()).filter(|_| !is_spelled);
            request::encode(op, version, hash, output);
            if !matches!(op, Op::Add { .. }) {
                is_spelled = script == Script::Spelled;
            }
        }
    }

    /// Appends the drawing of a fence to the packet. Returns whether the raise is in front of it, which may
    /// be due in any case.
    fn encode_draw(&mut self, must_raise: bool) -> bool {
        let now = self.socket.clock().now();
        let floor = self.introduction.floor;
        let raises = must_raise || floor.is_none() || now.since(self.last_raise) >= UNRAISED;
        let (key, output) = (&self.settings.fence, &mut self.socket.output);
        if raises {
            self.last_raise = now;
            handshake::raise(key, floor.unwrap_or(0)).write_packed_command(output);
        }
        request::draw(key, output);
        raises
    }

    /// The replies to the raise, if there was one, and to the drawing of a fence.
    fn read_draw(
        &mut self,
        raises: bool,
        patience: &mut Patience,
    ) -> Result<(Option<Value>, Value)> {
        let raised = if raises { Some(self.next(patience)?) } else { None };
        Ok((raised, self.next(patience)?))
    }

    /// The fence that was drawn. A number that is not greater than earlier ones shows that the
    /// server has lost its counter, for example by `FLUSHALL`: the counter is then raised, and
    /// another fence is drawn, while this client holds what the fence is for.
    fn fence(&mut self, drawn: (Option<Value>, Value)) -> Result<u64> {
        let mut fence = fence_of(&self.settings, drawn)?;
        let floor = self.introduction.floor.unwrap_or(0);
        if fence <= floor {
            self.socket.output.clear();
            let raises = self.encode_draw(true);
            self.socket.write_out().map_err(|failure| failure.error)?;
            let drawn = self.read_draw(raises, &mut Patience::default())?;
            fence = fence_of(&self.settings, drawn)?;
            if fence <= floor {
                return Err(Error::protocol("The server's counter of fences does not rise."));
            }
        }
        self.introduction.floor = Some(fence);
        Ok(fence)
    }

    fn next(&mut self, patience: &mut Patience) -> Result<Value> {
        replies::next(&mut self.socket, &mut self.parser, patience)
    }
}

fn any_changed(replies: &[Option<Reply>]) -> bool {
    replies.iter().flatten().any(has_changed)
}

/// Whether the reply says that the item was changed.
fn has_changed(reply: &Reply) -> bool {
    matches!(reply, Reply::Stored(_) | Reply::Written | Reply::Deleted | Reply::Number(_))
}

fn fence_of(settings: &Settings, drawn: (Option<Value>, Value)) -> Result<u64> {
    let key = &settings.fence;
    match drawn {
        (Some(Value::ServerError(error)), _) | (_, Value::ServerError(error)) => {
            Err(handshake::no_fence(settings, &error).during(format_args!("drawing a fence")))
        }
        (_, Value::Int(number)) => {
            u64::try_from(number).map_err(|_| handshake::not_the_counter(key))
        }
        _ => Err(Error::protocol("The server's reply to the drawing of a fence is no number.")),
    }
}

fn fill_in(ops: &[Op<'_>], replies: &mut [Option<Reply>], drawn: u64) {
    for (op, reply) in ops.iter().zip(replies) {
        let fence = match reply {
            Some(Reply::Stored(stored)) => &mut stored.fence,
            Some(Reply::Value(item)) => &mut item.fence,
            _ => continue,
        };
        if op.wants_fence() {
            *fence = drawn;
        }
    }
}

impl remote::Connection for Connection {
    type Life = Life;
    type Time = Reading;

    type Sent = Sent;

    fn send(&mut self, ops: &[Op<'_>]) -> std::result::Result<Sent, Failure> {
        self.send_batch(ops, Script::Known)
    }

    fn receive(&mut self, ops: &[Op<'_>], sent: Sent) -> Replies {
        let mut replies = self.receive_batch(ops, sent)?;
        if replies.iter().any(Option::is_none) {
            self.complete(ops, &mut replies)?;
        }
        Ok(replies.into_iter().flatten().collect())
    }

    fn socket(&self) -> &Socket {
        &self.socket
    }

    fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    fn life(&self) -> Life {
        self.introduction.life
    }

    fn epoch(&self) -> Epoch {
        self.introduction.life.epoch()
    }

    fn age(&self) -> Option<(Duration, Moment)> {
        Some(self.introduction.age)
    }

    fn config(&mut self) -> Option<Vec<u8>> {
        self.introduction.config.take()
    }

    fn time(&self) -> Reading {
        self.introduction.time
    }

    fn may_evict(&self) -> Option<&'static str> {
        self.introduction.retention.evicts().then_some(MEND)
    }

    fn keeps(&self, key: &Key, _expiry: Expiry) -> Result<()> {
        self.introduction.retention.check(key)
    }

    fn retention_read(&self) -> Option<Moment> {
        Some(self.retention_read)
    }

    fn read_retention(&mut self) -> Result<()> {
        let sent = self.socket.clock().now();
        self.socket.output.clear();
        handshake::memory().write_packed_command(&mut self.socket.output);
        self.socket.write_out().map_err(|failure| failure.error)?;
        let answer = self.next(&mut Patience::default())?;
        self.introduction.retention = handshake::retention(answer, &self.settings)?;
        self.retention_read = sent;
        if self.socket.unread().is_empty() { Ok(()) } else { Err(handshake::unasked()) }
    }
}
