//! One connection: a batch to commands, their replies back, and the fence.
//!
//! The commands of a batch are sent in one packet. If a reply has to contain a fence, the packet
//! ends with an `INCR` of the counter of fences. It is carried out after the item was stored, so the
//! number is greater than those that were drawn while others held the lock.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use redis::{Parser, ServerError, Value, cmd};

use super::handshake::{self, Introduction, Life, ServerTime};
use super::settings::Settings;
use super::{errors, replies, request};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;
use crate::hash::mix;
use crate::store::remote::{self, Patience, Socket};
use crate::store::{Epoch, Failure, Op, Reply};

/// A connection that is logged in.
pub(in crate::store) struct Connection {
    socket: Socket,
    parser: Parser,
    introduction: Introduction,
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

/// The outcome of a packet.
enum Outcome {
    Done(Vec<Reply>),
    /// The server has forgotten the script, and nothing was changed.
    Forgotten,
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
        Ok(Connection { socket, parser, introduction, settings, next_version })
    }

    fn epoch(&self) -> Epoch {
        self.introduction.life.epoch()
    }

    /// Sends the batch and reads the replies.
    fn attempt(
        &mut self,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Outcome, Failure> {
        let versions = self.new_versions(ops.len());
        let draws = ops.iter().any(Op::wants_fence);
        self.encode(ops, &versions, draws);
        if !self.socket.output.is_empty() {
            self.socket.write_out()?;
            let process = fork::generation();
            meanwhile();
            // A child that `meanwhile` forked must not read its parent's replies.
            if fork::generation() != process {
                return Err(Failure { error: fork::astray(), sent: false });
            }
        }
        let mut patience = Patience::default();
        let mut replies = Vec::with_capacity(ops.len());
        let mut refused: Option<(&Op<'_>, ServerError)> = None;
        let may_have_changed = ops.iter().any(Op::changes);
        for (op, &version) in ops.iter().zip(&versions) {
            if !op.is_of(self.epoch()) {
                replies.push(Reply::VersionMismatch);
                continue;
            }
            let lost = |error| Failure { error, sent: may_have_changed };
            match self.next(&mut patience).map_err(lost)? {
                Value::ServerError(error) => refused = refused.or(Some((op, error))),
                value => {
                    replies.push(request::decode(op, version, value, self.epoch()).map_err(lost)?)
                }
            }
        }
        // A command that was refused was not carried out, but others may have been.
        let changed = replies.iter().any(has_changed);
        let fence = if draws {
            let drawn = self.next(&mut patience);
            Some(drawn.map_err(|error| Failure { error, sent: changed })?)
        } else {
            None
        };
        if let Some((op, error)) = refused {
            if error.code() == errors::FORGOTTEN && !changed {
                return Ok(Outcome::Forgotten);
            }
            let error = request::refused(op, error.code(), error.details().unwrap_or_default());
            return Err(Failure { error, sent: changed });
        }
        if let Some(drawn) = fence {
            let fence = self.fence(drawn).map_err(|error| Failure { error, sent: changed })?;
            fill_in(ops, &mut replies, fence);
        }
        Ok(Outcome::Done(replies))
    }

    /// Versions are a permutation of consecutive numbers that begin at random: none occurs twice.
    fn new_versions(&mut self, count: usize) -> Vec<u64> {
        let first = self.next_version;
        self.next_version = first.wrapping_add(count as u64);
        (0..count as u64).map(|place| mix(first.wrapping_add(place))).collect()
    }

    fn encode(&mut self, ops: &[Op<'_>], versions: &[u64], draws: bool) {
        let epoch = self.epoch();
        let output = &mut self.socket.output;
        output.clear();
        for (op, &version) in ops.iter().zip(versions).filter(|(op, _)| op.is_of(epoch)) {
            request::encode(op, version, &self.introduction.script, output);
        }
        if draws {
            cmd("INCR").arg(self.settings.fence.as_str()).write_packed_command(output);
        }
    }

    /// The fence that was drawn. A number that is not greater than earlier ones shows that the
    /// server has lost its counter, for example by `FLUSHALL`: the counter is then raised, and
    /// another fence is drawn, while this client holds what the fence is for.
    fn fence(&mut self, drawn: Value) -> Result<u64> {
        let floor = self.introduction.floor;
        let mut fence = fence_of(drawn)?;
        if fence <= floor {
            let key = &self.settings.fence;
            let output = &mut self.socket.output;
            output.clear();
            handshake::raise(key, floor).write_packed_command(output);
            cmd("INCR").arg(key.as_str()).write_packed_command(output);
            self.socket.write_out().map_err(|failure| failure.error)?;
            let mut patience = Patience::default();
            self.next(&mut patience)?;
            fence = fence_of(self.next(&mut patience)?)?;
            if fence <= floor {
                return Err(Error::protocol("The server's counter of fences does not rise."));
            }
        }
        self.introduction.floor = fence;
        Ok(fence)
    }

    /// Loads the script again.
    fn load(&mut self) -> Result<()> {
        self.socket.output.clear();
        handshake::load().write_packed_command(&mut self.socket.output);
        self.socket.write_out().map_err(|failure| failure.error)?;
        match self.next(&mut Patience::default())? {
            Value::ServerError(error) => {
                Err(errors::of_reply(error.code(), error.details().unwrap_or_default()))
            }
            _ => Ok(()),
        }
    }

    fn next(&mut self, patience: &mut Patience) -> Result<Value> {
        replies::next(&mut self.socket, &mut self.parser, patience)
    }
}

/// Whether the reply says that the item was changed.
fn has_changed(reply: &Reply) -> bool {
    matches!(reply, Reply::Stored(_) | Reply::Written | Reply::Deleted | Reply::Number(_))
}

fn fence_of(drawn: Value) -> Result<u64> {
    match drawn {
        Value::Int(number) => u64::try_from(number).ok(),
        Value::ServerError(error) => {
            let error = errors::of_reply(error.code(), error.details().unwrap_or_default());
            return Err(error.during(format_args!("drawing a fence")));
        }
        _ => None,
    }
    .ok_or_else(|| Error::protocol("The server's counter of fences is not a number."))
}

fn fill_in(ops: &[Op<'_>], replies: &mut [Reply], drawn: u64) {
    for (op, reply) in ops.iter().zip(replies) {
        let fence = match reply {
            Reply::Stored(stored) => &mut stored.fence,
            Reply::Value(item) => &mut item.fence,
            _ => continue,
        };
        if op.wants_fence() {
            *fence = drawn;
        }
    }
}

impl remote::Connection for Connection {
    type Life = Life;
    type Time = ServerTime;

    fn run(
        &mut self,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Vec<Reply>, Failure> {
        if let Outcome::Done(replies) = self.attempt(ops, meanwhile)? {
            return Ok(replies);
        }
        // `SCRIPT FLUSH`, or a failover behind a proxy.
        let unsent = |error| Failure { error, sent: false };
        self.load().map_err(|error| Failure { error, sent: false }.of_read()).map_err(unsent)?;
        match self.attempt(ops, &|| {})? {
            Outcome::Done(replies) => Ok(replies),
            Outcome::Forgotten => Err(unsent(errors::of_reply(errors::FORGOTTEN, ""))),
        }
    }

    fn ends(&self) -> (Option<IpAddr>, Option<SocketAddr>) {
        self.socket.ends()
    }

    fn last_used(&self) -> Moment {
        self.socket.last_used()
    }

    fn was_closed(&mut self) -> bool {
        self.socket.was_closed()
    }

    fn is_quiet(&self) -> bool {
        self.socket.unread().is_empty()
    }

    fn life(&self) -> Life {
        self.introduction.life
    }

    fn time(&self) -> ServerTime {
        self.introduction.time
    }
}
