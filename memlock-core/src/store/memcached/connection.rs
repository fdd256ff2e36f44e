//! One connection: a batch to commands, and their replies back.

use std::sync::Arc;
use std::time::Duration;

use super::codec;
use super::command::Command;
use super::handshake::{Handshake, Introduction, REQUEST, ServerTime};
use super::life::Life;
use super::limit;
use super::retention::{MEND, Retention};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::name::Key;
use crate::store::remote::{self, Address, Patience, Socket};
use crate::store::{Epoch, Expiry, Failure, Op, Replies, Reply, Stored};

/// The largest value that is read.
const LARGEST_VALUE: usize = 1024 * 1024;
/// An open connection to a suitable server.
#[derive(Debug)]
pub(in crate::store) struct Connection {
    socket: Socket,
    introduction: Introduction,
    /// When its description was requested, and when it had come.
    introduced: (Moment, Moment),
    /// What all clients of the server have agreed on, as read with the description.
    config: Option<Vec<u8>>,
    /// The item from which stamps are drawn.
    stamp: Arc<Key>,
    last_opaque: u32,
}

/// The error of a reply that is longer than any that memlock stores.
fn too_large(command: &Command<'_>, length: usize) -> Error {
    let key = if let Command::Get { key } = command { format!(" {key}") } else { String::new() };
    Error::protocol(format!(
        "The item{key} has a value of {length} bytes, and memlock reads no more than 1 MiB: it is not \
         memlock's. Use another name, or delete the item."
    ))
}

impl Connection {
    /// Connects, and reads the server's identity and what its clients have agreed on, in one packet.
    /// Nothing is changed on the server.
    pub(super) fn dial(
        address: &Address,
        clock: &Arc<dyn Clock>,
        stamp: &Arc<Key>,
        config: &Key,
    ) -> Result<Connection> {
        let mut socket = Socket::connect(address, "memcached", clock)?;
        let (sent, opaque) = (clock.now(), 0);
        let read = Command::Get { key: config };
        socket.output.extend_from_slice(REQUEST);
        codec::encode(&read, opaque, |_| 0, &mut socket.output)?;
        socket.write_out().map_err(|failure| failure.error)?;
        let mut patience = Patience::default();
        let introduction = introduce(&mut socket, &mut patience)?;
        let mut connection = Connection {
            socket,
            introduction,
            introduced: (sent, clock.now()),
            config: None,
            stamp: Arc::clone(stamp),
            last_opaque: opaque,
        };
        let found = connection.reply(&read, opaque, &mut patience);
        let found = found.map_err(|(error, _)| error.during(format_args!("Reading {config}")))?;
        if let Reply::Value(item) = found {
            connection.config = Some(item.value);
        }
        // A surplus might be taken for the first reply.
        if connection.socket.unread().is_empty() { Ok(connection) } else { Err(unasked()) }
    }

    /// Whether the batch ends with a command that gives its fence.
    fn is_stamped(&self, ops: &[Op<'_>]) -> bool {
        !self.introduction.ordered && ops.iter().any(Op::wants_fence)
    }

    /// Sends the batch. Returns its first opaque.
    fn send_batch(&mut self, ops: &[Op<'_>]) -> std::result::Result<u32, Failure> {
        let Introduction { life, refuses, .. } = self.introduction;
        let key = Arc::clone(&self.stamp);
        let stamp = self.is_stamped(ops).then_some(Command::Stamp { key: &key });
        let first_opaque = self.last_opaque.wrapping_add(1);
        self.socket.output.clear();
        for op in ops.iter().filter(|op| op.is_of(life.epoch())) {
            let (command, back) = Command::of(op, refuses);
            self.write([Some(command), back])?;
        }
        self.write([stamp, None])?;
        if !self.socket.output.is_empty() {
            self.socket.write_out()?;
        }
        Ok(first_opaque)
    }

    fn receive_batch(&mut self, ops: &[Op<'_>], mut opaque: u32) -> Replies {
        let life = self.introduction.life;
        let key = Arc::clone(&self.stamp);
        let stamp = self.is_stamped(ops).then_some(Command::Stamp { key: &key });
        let mut patience = Patience::default();
        let mut replies = Vec::with_capacity(ops.len());
        for (place, op) in ops.iter().enumerate() {
            if !op.is_of(life.epoch()) {
                replies.push(Reply::VersionMismatch);
                continue;
            }
            let reply = self.replies(op, opaque, &mut patience);
            opaque = opaque.wrapping_add(1);
            replies.push(reply.map_err(|(error, refused)| {
                // A command that the server refused with an error line was not carried out, but
                // other commands of the batch may have been.
                let mut others = ops.iter().enumerate().filter(|&(other, _)| other != place);
                Failure { error, sent: !refused || others.any(|(_, op)| op.changes()) }
            })?);
        }
        let drawn = match stamp.map(|stamp| self.reply(&stamp, opaque, &mut patience)) {
            Some(Ok(Reply::Stored(Stored { version, .. }))) => Some(version.number()),
            Some(Err((error, refused))) => {
                let sent = !refused || ops.iter().any(Op::changes);
                return Err(Failure { error, sent });
            }
            _ => None,
        };
        life.fill_in_fences(ops, &mut replies, drawn);
        Ok(replies)
    }

    /// Appends the commands of one operation to the output, with one new opaque.
    fn write(&mut self, commands: [Option<Command<'_>>; 2]) -> std::result::Result<(), Failure> {
        let mut output = std::mem::take(&mut self.socket.output);
        let commands = commands.iter().flatten();
        let mut encoded = Ok(());
        for (number, command) in commands.enumerate() {
            if number == 0 {
                self.last_opaque = self.last_opaque.wrapping_add(1);
            }
            let time = |bound| self.server_time().at(self.socket.clock().now(), bound);
            encoded =
                encoded.and_then(|()| codec::encode(command, self.last_opaque, time, &mut output));
        }
        self.socket.output = output;
        encoded.map_err(|error| Failure { error, sent: false })
    }

    /// Reads the replies to the commands of one operation, as [`Connection::reply`] does.
    fn replies(
        &mut self,
        op: &Op<'_>,
        opaque: u32,
        patience: &mut Patience,
    ) -> std::result::Result<Reply, (Error, bool)> {
        let (first, back) = Command::of(op, self.introduction.refuses);
        let reply = self.reply(&first, opaque, patience)?;
        let Some(back) = back else { return Ok(reply) };
        let found = self.reply(&back, opaque, patience)?;
        Ok(match (op, reply, found) {
            (
                Op::Add { value, .. } | Op::CompareAndSet { value, .. },
                Reply::Written,
                Reply::Value(item),
            ) if contains(&item.value, value) => {
                let mut version = item.version;
                if item.value != *value {
                    // A waiter has appended to the value since. The returned version is one that
                    // the item no longer has, so that the next step detects this.
                    let cas = version.number().saturating_sub(1).max(1);
                    version = self.introduction.life.version(cas);
                }
                Reply::Stored(Stored { version, fence: 0 })
            }
            // The stored item was removed or replaced before it was read back.
            (Op::Add { .. }, Reply::Written, _) => Reply::Exists,
            (_, Reply::Written, Reply::Missing) => Reply::Missing,
            (_, Reply::Written, _) => Reply::VersionMismatch,
            (_, reply, _) => reply,
        })
    }

    /// Reads one reply. The second part of an error states whether the server refused the command
    /// with an error line.
    fn reply(
        &mut self,
        command: &Command<'_>,
        opaque: u32,
        patience: &mut Patience,
    ) -> std::result::Result<Reply, (Error, bool)> {
        let unread = |error| (error, false);
        let line = self.socket.line(patience).map_err(unread)?;
        if let Some(reply) = codec::parse_classic(command, self.socket.at(line)) {
            return Ok(reply);
        }
        let head = codec::parse(self.socket.at(line))?;
        if head.opaque != Some(opaque) {
            return Err(unread(Error::protocol(
                "A reply does not belong to its request: the connection is out of step.",
            )));
        }
        let value = match head.length {
            None => None,
            Some(length) if length <= LARGEST_VALUE => {
                Some(self.value(length, patience).map_err(unread)?)
            }
            Some(length) => return Err(unread(too_large(command, length))),
        };
        codec::decode(command, head, value, self.introduction.life).map_err(unread)
    }

    fn value(&mut self, length: usize, patience: &mut Patience) -> Result<Vec<u8>> {
        while self.socket.unread().len() < length + 2 {
            self.socket.read_more(patience)?;
        }
        let value = match self.socket.unread()[..length + 2].strip_suffix(b"\r\n") {
            Some(value) => value.to_vec(),
            None => {
                return Err(Error::protocol(
                    "The server's value has not the length that it announced.",
                ));
            }
        };
        self.socket.consume(length + 2);
        Ok(value)
    }

    fn server_time(&self) -> ServerTime {
        ServerTime { shown: self.introduction.time, at: self.introduced.0 }
    }
}

impl remote::Connection for Connection {
    type Life = Life;
    type Time = ServerTime;

    type Sent = u32;

    fn send(&mut self, ops: &[Op<'_>]) -> std::result::Result<u32, Failure> {
        self.send_batch(ops)
    }

    fn receive(&mut self, ops: &[Op<'_>], first_opaque: u32) -> Replies {
        self.receive_batch(ops, first_opaque)
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
        Some((self.introduction.age, self.introduced.1))
    }

    fn config(&mut self) -> Option<Vec<u8>> {
        self.config.take()
    }

    fn time(&self) -> ServerTime {
        self.server_time()
    }

    fn may_evict(&self) -> Option<&'static str> {
        (self.introduction.retention == Retention::Nothing).then_some(MEND)
    }

    fn keeps(&self, key: &Key, expiry: Expiry) -> Result<()> {
        let now = self.socket.clock().now();
        let time = |bound| self.server_time().at(now, bound);
        limit::check(self.introduction.retention, key, expiry, time)
    }

    fn retention_read(&self) -> Option<Moment> {
        // No command changes `-M`.
        (self.introduction.retention != Retention::All).then_some(self.introduced.0)
    }

    fn read_retention(&mut self) -> Result<()> {
        self.socket.output.clear();
        self.socket.output.extend_from_slice(REQUEST);
        let sent = self.socket.clock().now();
        self.socket.write_out().map_err(|failure| failure.error)?;
        let introduction = introduce(&mut self.socket, &mut Patience::default())?;
        if introduction.life != self.introduction.life {
            return Err(Error::protocol(
                "Another server answers on the same connection: memlock needs one without a proxy.",
            ));
        }
        self.introduction = introduction;
        self.introduced = (sent, self.socket.clock().now());
        if self.socket.unread().is_empty() { Ok(()) } else { Err(unasked()) }
    }
}

fn introduce(socket: &mut Socket, patience: &mut Patience) -> Result<Introduction> {
    let mut handshake = Handshake::default();
    loop {
        let line = socket.line(patience)?;
        if handshake.line(socket.at(line))? {
            return handshake.finish();
        }
    }
}

fn contains(whole: &[u8], part: &[u8]) -> bool {
    part.is_empty() || whole.windows(part.len()).any(|window| window == part)
}

fn unasked() -> Error {
    Error::protocol(
        "The server said more than it was asked: it is not a memcached that memlock can use.",
    )
}
