//! One socket to one server.
//!
//! Timeouts are set on the socket once, when it is opened, so that a round trip costs two system
//! calls: one write, one read. A whole batch has a deadline, too, but the deadline is checked only
//! if the replies do not arrive in one piece; a batch therefore ends within three times the
//! timeout. Any error closes the connection: a late reply must never be taken for the reply to the
//! next command.

use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use super::codec;
use super::command::Command;
use super::dial::{connect, unreachable};
use super::handshake::{Handshake, Introduction, REQUEST, ServerTime};
use super::life::Life;
use super::settings::Settings;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::fork;
use crate::name::Key;
use crate::store::{Failure, Op, Reply, Stored};

/// The longest reply line that is read before the connection is given up.
const LONGEST_LINE: usize = 2048;
/// The largest value that is read.
const LARGEST_VALUE: usize = 1024 * 1024;
/// How many bytes are read at once.
const CHUNK: usize = 16 * 1024;
/// A request up to this size is written in one piece. A longer one is written while its replies are
/// read, because a server that cannot deliver its replies stops reading.
const SMALL_REQUEST: usize = 16 * 1024;
/// The most bytes of replies that are buffered while a long request is still being written.
const LARGEST_BACKLOG: usize = 64 * 1024 * 1024;

/// An open connection to a suitable server.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    clock: Arc<dyn Clock>,
    io_timeout: Duration,
    introduction: Introduction,
    introduced: Moment,
    /// When the connection was last taken into use.
    last_used: Moment,
    last_opaque: u32,
    output: Vec<u8>,
    input: Input,
}

/// A connection that was idle for longer than this is checked before it is used again.
const IDLE: Duration = Duration::from_millis(100);

/// The bytes that were received and not consumed: `buffer[start..end]`.
#[derive(Debug, Default)]
struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// The time limit for a batch's replies. In the common case, with all of them in the first read,
/// the clock is not read. From the second read on there is a limit; otherwise a server that sends
/// byte by byte could block the call forever.
#[derive(Debug, Default)]
struct Patience {
    reads: usize,
    limit: Option<Moment>,
}

impl Connection {
    /// Connects, and reads the server's identity. Nothing is changed on the server.
    pub(super) fn dial(
        host: &str,
        port: u16,
        pinned: Option<SocketAddr>,
        settings: &Settings,
        clock: &Arc<dyn Clock>,
    ) -> Result<Connection> {
        let stream = connect(host, port, pinned, settings.connect_timeout, clock.as_ref())?;
        let prepared = stream
            .set_read_timeout(Some(settings.io_timeout))
            .and_then(|()| stream.set_write_timeout(Some(settings.io_timeout)));
        prepared.map_err(|error| unreachable(format!("The socket cannot be set up: {error}.")))?;
        let mut connection = Connection {
            stream,
            clock: Arc::clone(clock),
            io_timeout: settings.io_timeout,
            introduction: Introduction {
                life: Life { boot: 0, pid: 0 },
                time: 0,
                ordered: false,
                refuses: false,
            },
            introduced: clock.now(),
            last_used: clock.now(),
            last_opaque: 0,
            output: REQUEST.to_vec(),
            input: Input::default(),
        };
        // Reading the server's identity changes nothing, so a failure is never worse than
        // "unreachable".
        connection.introduction = connection.introduce().map_err(|error| match error.kind() {
            ErrorKind::Unknown => unreachable(error.to_string()),
            _ => error,
        })?;
        Ok(connection)
    }

    fn introduce(&mut self) -> Result<Introduction> {
        let mut patience = Patience::default();
        self.write_small()?;
        let mut handshake = Handshake::default();
        loop {
            let (from, to) = self.line(&mut patience)?;
            if handshake.line(&self.input.buffer[from..to])? {
                // A surplus might be taken for the first reply.
                return if self.is_quiet() { handshake.finish() } else { Err(unasked()) };
            }
        }
    }

    /// Runs a batch, and calls `meanwhile` between the request and the replies. `stamp`: the item
    /// from which stamps are drawn. After a failure the connection must be dropped.
    pub(super) fn run(
        &mut self,
        ops: &[Op<'_>],
        stamp: &Key,
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Vec<Reply>, Failure> {
        let Introduction { life, ordered, refuses, .. } = self.introduction;
        let stamp =
            (!ordered && ops.iter().any(Op::wants_fence)).then_some(Command::Stamp { key: stamp });
        let first_opaque = self.last_opaque.wrapping_add(1);
        self.output.clear();
        for op in ops.iter().filter(|op| op.is_of(life.epoch())) {
            let (command, back) = Command::of(op, refuses);
            self.write([Some(command), back])?;
        }
        self.write([stamp, None])?;
        if !self.output.is_empty() {
            self.write_out()?;
            let process = fork::generation();
            meanwhile();
            // A child that `meanwhile` forked must not read its parent's replies.
            if fork::generation() != process {
                return Err(Failure { error: fork::astray(), sent: false });
            }
        }
        let mut opaque = first_opaque;
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
        let mut output = std::mem::take(&mut self.output);
        let commands = commands.iter().flatten();
        let mut encoded = Ok(());
        for (number, command) in commands.enumerate() {
            if number == 0 {
                self.last_opaque = self.last_opaque.wrapping_add(1);
            }
            let time = |bound| self.time().at(self.clock.now(), bound);
            encoded =
                encoded.and_then(|()| codec::encode(command, self.last_opaque, time, &mut output));
        }
        self.output = output;
        encoded.map_err(|error| Failure { error, sent: false })
    }

    /// Whether nothing is left unread. Otherwise the server sent more than requested, and the
    /// connection cannot be trusted with another request.
    pub(super) fn is_quiet(&self) -> bool {
        self.input.unread().is_empty()
    }

    /// The local address, and the server's.
    pub(super) fn ends(&self) -> (Option<IpAddr>, Option<SocketAddr>) {
        (self.stream.local_addr().ok().map(|local| local.ip()), self.stream.peer_addr().ok())
    }

    /// When the connection was last taken into use.
    pub(super) fn last_used(&self) -> Moment {
        self.last_used
    }

    /// Takes the connection into use again. True if the server has closed it meanwhile, or sent
    /// unrequested bytes. Checked only after a pause, since the check costs a system call.
    pub(super) fn was_closed(&mut self) -> bool {
        let now = self.clock.now();
        let idle = now.since(self.last_used);
        self.last_used = now;
        if idle < IDLE {
            return false;
        }
        let mut byte = 0_u8;
        // SAFETY: one writable byte is given for one byte.
        let peeked = unsafe {
            libc::recv(
                self.stream.as_raw_fd(),
                std::ptr::from_mut(&mut byte).cast(),
                1,
                libc::MSG_PEEK | libc::MSG_DONTWAIT,
            )
        };
        // Nothing to read is the good case; 0 is the end of the stream, and a byte was not
        // requested.
        peeked >= 0 || std::io::Error::last_os_error().kind() != IoKind::WouldBlock
    }

    /// The life of the server in which the connection was opened.
    pub(super) fn life(&self) -> Life {
        self.introduction.life
    }

    /// The reading of the server's clock when the connection was opened.
    pub(super) fn time(&self) -> ServerTime {
        ServerTime { shown: self.introduction.time, at: self.introduced }
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
        let (from, to) = self.line(patience).map_err(unread)?;
        if let Some(reply) = codec::parse_classic(command, &self.input.buffer[from..to]) {
            return Ok(reply);
        }
        let head = codec::parse(&self.input.buffer[from..to])?;
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
            Some(length) => {
                return Err(unread(Error::protocol(format!(
                    "The item has a value of {length} bytes, and memlock reads no more than 1 MiB: it is not \
                     memlock's. Use another name, or delete the item."
                ))));
            }
        };
        codec::decode(command, head, value, self.introduction.life).map_err(unread)
    }

    /// The position of the next line in the input, without its line end.
    fn line(&mut self, patience: &mut Patience) -> Result<(usize, usize)> {
        let mut searched = 0;
        loop {
            let unread = self.input.unread();
            if let Some(place) = unread[searched..].iter().position(|&byte| byte == b'\n') {
                let (from, mut to) = (self.input.start, self.input.start + searched + place);
                self.input.start = to + 1;
                if to > from && self.input.buffer[to - 1] == b'\r' {
                    to -= 1;
                }
                return Ok((from, to));
            }
            searched = unread.len();
            if searched > LONGEST_LINE {
                return Err(Error::protocol("The server answered a line longer than 2 KiB."));
            }
            self.read_more(patience)?;
        }
    }

    fn value(&mut self, length: usize, patience: &mut Patience) -> Result<Vec<u8>> {
        while self.input.unread().len() < length + 2 {
            self.read_more(patience)?;
        }
        let value = match self.input.unread()[..length + 2].strip_suffix(b"\r\n") {
            Some(value) => value.to_vec(),
            None => {
                return Err(Error::protocol(
                    "The server's value has not the length that it announced.",
                ));
            }
        };
        self.input.start += length + 2;
        Ok(value)
    }

    fn read_more(&mut self, patience: &mut Patience) -> Result<()> {
        loop {
            if patience.reads > 0 {
                let now = self.clock.now();
                if now > *patience.limit.get_or_insert(now + self.io_timeout) {
                    return Err(self.too_late());
                }
            }
            patience.reads += 1;
            match self.input.fill(&mut self.stream) {
                Ok(0) => return Err(lost("The server closed the connection.")),
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) if matches!(error.kind(), IoKind::WouldBlock | IoKind::TimedOut) => {
                    return Err(self.too_late());
                }
                Err(error) => return Err(lost(format!("The connection broke: {error}."))),
            }
        }
    }

    fn too_late(&self) -> Error {
        lost(format!("The server did not answer within {:?}.", self.io_timeout))
    }

    fn write_out(&mut self) -> std::result::Result<(), Failure> {
        let written = if self.output.len() <= SMALL_REQUEST {
            self.write_small()
        } else {
            self.write_large()
        };
        written.map_err(|error| Failure { sent: error.kind() == ErrorKind::Unknown, error })
    }

    fn write_small(&mut self) -> Result<()> {
        let mut written = 0;
        while written < self.output.len() {
            match self.stream.write(&self.output[written..]) {
                Ok(more) if more > 0 => written += more,
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) => return Err(self.unwritten(written, &error)),
                Ok(_) => return Err(self.unwritten(written, &IoKind::WriteZero.into())),
            }
        }
        Ok(())
    }

    /// Writes and reads, whichever the socket allows.
    fn write_large(&mut self) -> Result<()> {
        self.stream.set_nonblocking(true).map_err(|error| self.unwritten(0, &error))?;
        let mut deadline = self.clock.now() + self.io_timeout;
        let mut written = 0;
        while written < self.output.len() {
            match self.stream.write(&self.output[written..]) {
                Ok(more) if more > 0 => {
                    written += more;
                    deadline = self.clock.now() + self.io_timeout;
                    continue;
                }
                Ok(_) => return Err(self.unwritten(written, &IoKind::WriteZero.into())),
                Err(error) if matches!(error.kind(), IoKind::WouldBlock | IoKind::Interrupted) => {}
                Err(error) => return Err(self.unwritten(written, &error)),
            }
            match self.input.fill(&mut self.stream) {
                Ok(0) => return Err(self.unwritten(written, &IoKind::UnexpectedEof.into())),
                Ok(_) if self.input.unread().len() > LARGEST_BACKLOG => {
                    return Err(Error::new(
                        ErrorKind::Unknown,
                        "The server answers more than was asked.",
                    ));
                }
                Err(error) if !matches!(error.kind(), IoKind::WouldBlock | IoKind::Interrupted) => {
                    return Err(self.unwritten(written, &error));
                }
                Ok(_) | Err(_) => {}
            }
            let left = deadline.since(self.clock.now());
            if left.is_zero() {
                return Err(self.unwritten(written, &IoKind::TimedOut.into()));
            }
            wait_until_ready(&self.stream, left);
        }
        self.stream.set_nonblocking(false).map_err(|error| self.unwritten(written, &error))
    }

    fn unwritten(&self, written: usize, error: &std::io::Error) -> Error {
        let text = format!("The request could not be written: {error}.");
        if written == 0 { unreachable(text) } else { lost(text) }
    }
}

impl Input {
    fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads once, and appends to the unread bytes.
    fn fill(&mut self, stream: &mut TcpStream) -> std::io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > CHUNK {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.buffer.len() < self.end + CHUNK {
            self.buffer.resize(self.end + CHUNK, 0);
        }
        let read = stream.read(&mut self.buffer[self.end..])?;
        self.end += read;
        Ok(read)
    }
}

fn contains(whole: &[u8], part: &[u8]) -> bool {
    part.is_empty() || whole.windows(part.len()).any(|window| window == part)
}

fn wait_until_ready(stream: &TcpStream, limit: Duration) {
    let mut socket =
        libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    let millis = limit.as_millis().clamp(1, 60_000) as libc::c_int;
    // SAFETY: one valid pollfd is given. The result is not needed: the caller tries both directions
    // again.
    unsafe { libc::poll(&mut socket, 1, millis) };
}

fn unasked() -> Error {
    Error::protocol(
        "The server said more than it was asked: it is not a memcached that memlock can use.",
    )
}

fn lost(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unknown, text)
}
