//! The server's side of a connection whose bytes are known beforehand, and a simple reader of them.

use std::cell::Cell;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use memlock_core::fuzzing::Command;
use memlock_core::name::{Key, Keyspace};
use memlock_core::store::memcached::{Life, Ttl};
use memlock_core::store::{Item, Op, Reply, Returns, Stored};

/// What memcached takes for so many seconds from now; what is more is a time in Unix seconds.
const LONGEST_RELATIVE: u64 = 30 * 24 * 3600;

/// What the client asks every server first.
const QUESTION: &[u8] = b"stats\r\nstats settings\r\nmg memlock%config v c t f h O0\r\n";

thread_local! {
    static PACKET: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The server's end.
pub struct Peer {
    socket: UnixStream,
    /// What was sent, where its packets end, and how much of it the reader has read.
    sent: Vec<u8>,
    ends: Vec<usize>,
    read: usize,
    /// What the client wrote behind its first question, and how much of that was looked at.
    requests: Vec<u8>,
    looked_at: usize,
    asked: usize,
}

/// What a server said of itself.
struct Greeting {
    life: Life,
    /// Whether it refuses to store when it is full.
    refuses: bool,
    /// Whether its versions rise in the order of the stores.
    ordered: bool,
}

/// A pair of sockets: the server's, which has sent these packets and says no more, and the
/// client's. Every read of the client's gives one packet at most.
pub fn connection(packets: impl Iterator<Item = Vec<u8>>) -> (Peer, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors is given; nothing else owns them.
    let (ours, client) = unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        assert_eq!(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    let socket = UnixStream::from(ours);
    socket.set_nonblocking(true).expect("a socket of ours");
    let (mut sent, mut packet_ends) = (Vec::new(), Vec::new());
    'packets: for packet in packets {
        // The client has room for a whole chunk always, but for no more.
        for packet in packet.chunks(8 * 1024) {
            // SAFETY: the bytes are readable, and an error is looked at.
            let done = unsafe {
                libc::send(
                    socket.as_raw_fd(),
                    packet.as_ptr().cast(),
                    packet.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            if done < 0 {
                break 'packets;
            }
            sent.extend_from_slice(packet);
            packet_ends.push(sent.len());
        }
    }
    socket.shutdown(Shutdown::Write).expect("a socket of ours");
    let peer = Peer {
        socket,
        sent,
        ends: packet_ends,
        read: 0,
        requests: Vec::new(),
        looked_at: 0,
        asked: 0,
    };
    (peer, client)
}

/// The same for a client that asks nothing of its own accord.
pub fn plain_connection(packets: impl Iterator<Item = Vec<u8>>) -> (Peer, OwnedFd) {
    let (mut peer, client) = connection(packets);
    peer.asked = QUESTION.len();
    (peer, client)
}

impl Peer {
    /// All that the client has written so far.
    pub fn take_all(&mut self) -> Vec<u8> {
        self.take_requests();
        std::mem::take(&mut self.requests)
    }

    /// Takes in what the client has written; the number of new bytes other than its first question.
    pub fn take_requests(&mut self) -> usize {
        let before = self.requests.len();
        // As large as a packet can be, and filled once only: that takes time.
        let mut packet = PACKET.take();
        packet.resize(256 * 1024, 0);
        loop {
            let length = match self.socket.read(&mut packet) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The client closed without having read all: that is said once, before what it
                // wrote.
                Err(_) => continue,
            };
            let asking = QUESTION.len().saturating_sub(self.asked).min(length);
            assert_eq!(packet[..asking], QUESTION[self.asked..self.asked + asking]);
            self.asked += asking;
            self.requests.extend_from_slice(&packet[asking..length]);
        }
        PACKET.set(packet);
        self.requests.len() - before
    }

    /// The life that this server said to be in. To be asked only where the client was content with
    /// it.
    pub fn life(&mut self) -> Life {
        self.greeting().life
    }

    fn greeting(&mut self) -> Greeting {
        let mut position = 0;
        let mut numbers = [0; 3];
        let (mut refuses, mut ordered) = (false, false);
        let mut ends = 0;
        while ends < 2 {
            let line = line(&self.sent, &mut position).expect("the handshake was whole");
            ends += usize::from(line == b"END");
            let text = String::from_utf8_lossy(line);
            let words: Vec<&str> = text.split(' ').collect();
            refuses |= matches!(
                words[..],
                ["STAT", "evictions", "off", ..] | ["STAT", "temp_lru", "yes", ..]
            );
            if let ["STAT", "version", version, ..] = words[..] {
                let digits = |part: &str| {
                    let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
                    part[..end].parse::<u64>().unwrap_or(0)
                };
                ordered = version.splitn(3, '.').map(digits).lt([1, 6, 24]);
            }
            for (number, name) in numbers.iter_mut().zip(["pid", "time", "uptime"]) {
                if words.len() > 1 && words[1] == name {
                    *number = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(0);
                }
            }
        }
        // The item in which clients agree.
        let config = line(&self.sent, &mut position).expect("the handshake was whole");
        if let Some(rest) = config.strip_prefix(b"VA ") {
            let digits = rest.split(|&byte| byte == b' ').next().unwrap_or_default();
            let length: usize = String::from_utf8_lossy(digits).parse().expect("it was read");
            position += length + 2;
        }
        self.read = self.read.max(position);
        let [pid, time, uptime]: [u64; 3] = numbers;
        Greeting { life: Life { boot: time.saturating_sub(uptime), pid }, refuses, ordered }
    }

    /// Whether nothing was left of the last packet that the client read. To be asked after
    /// [`Peer::life`].
    pub fn is_between_packets(&self) -> bool {
        self.ends.contains(&self.read)
    }

    /// Whether the next line is one that every reader must accept.
    fn is_plain(&self) -> bool {
        let Some(line) = line(&self.sent, &mut self.read.clone()) else { return false };
        let Ok(text) = std::str::from_utf8(line) else { return false };
        let is_number = |text: &str| {
            (1..10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        let mut words = text.split(' ');
        let first = words.next().unwrap_or_default();
        let starts = match first {
            "VA" => words.next().is_some_and(is_number),
            _ => ["HD", "NS", "EX", "NF", "EN", "STORED", "NOT_STORED", "EXISTS", "NOT_FOUND"]
                .contains(&first),
        };
        starts
            && text.len() < 2000
            && words.all(|word| word.starts_with(['c', 't', 'f', 'O']) && is_number(&word[1..]))
    }

    /// The next request, which must be this command and nothing else; its opaque.
    fn next_request(&mut self, command: &Command<'_>) -> Option<u64> {
        let rest = &self.requests[self.looked_at..];
        let end = rest.windows(2).position(|two| two == b"\r\n").expect("a whole line");
        let text = std::str::from_utf8(&rest[..end]).expect("a line of text");
        assert!(end < 2048, "memcached takes no longer ones");
        let words: Vec<&str> = text.split(' ').collect();
        let (verb, key, value): (&str, &Key, Option<&[u8]>) = match *command {
            Command::Add { key, value, .. } | Command::CompareAndSet { key, value, .. } => {
                ("ms", key, Some(value))
            }
            Command::Classic { key, cas: None, value, .. } => ("add", key, Some(value)),
            Command::Classic { key, value, .. } => ("cas", key, Some(value)),
            Command::Append { key, value } => ("append", key, Some(value)),
            Command::Prepend { key, value } => ("prepend", key, Some(value)),
            Command::Get { key } => ("mg", key, None),
            Command::Delete { key, .. } => ("md", key, None),
            Command::Increment { key, .. } | Command::Stamp { key } => ("ma", key, None),
        };
        assert_eq!((words[0], words[1]), (verb, key.as_str()));
        if let Command::Classic { cas, flags, value, ttl, .. } = *command {
            let cas = cas.map(|cas| cas.to_string());
            assert_eq!(words.get(5).copied(), cas.as_deref());
            assert_eq!(
                (words.len(), words[2]),
                (5 + usize::from(cas.is_some()), flags.to_string().as_str())
            );
            assert_eq!(words[4], value.len().to_string());
            let time: u64 = words[3].parse().expect("a number");
            match ttl {
                Ttl::Never => assert_eq!(time, 0),
                Ttl::For(seconds) | Ttl::Left(seconds) if seconds <= LONGEST_RELATIVE => {
                    assert_eq!(time, seconds)
                }
                // From the server's own time, which is not known exactly.
                Ttl::For(seconds) | Ttl::Left(seconds) => {
                    assert!(time > seconds.max(LONGEST_RELATIVE))
                }
                Ttl::Until(moment) => assert_eq!(time, moment.max(LONGEST_RELATIVE + 1)),
            }
        }
        let mut length = end + 2;
        if let Some(value) = value {
            let announced = words[if verb == "ms" { 2 } else { 4 }];
            assert_eq!(announced, value.len().to_string());
            assert_eq!(rest[length..][..value.len() + 2], [value, b"\r\n"].concat());
            length += value.len() + 2;
        }
        let opaque = words
            .last()
            .and_then(|word| word.strip_prefix('O'))
            .map(|number| number.parse().expect("a number"));
        let classic = ["append", "prepend", "add", "cas"].contains(&verb);
        assert_eq!(opaque.is_none(), classic);
        self.looked_at += length;
        opaque
    }
}

/// The next line without its end.
fn line<'a>(bytes: &'a [u8], position: &mut usize) -> Option<&'a [u8]> {
    let rest = &bytes[*position..];
    let end = rest.iter().position(|&byte| byte == b'\n')?;
    *position += end + 1;
    Some(rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]))
}

/// The command of an operation; and, of one that is sent as a classic command and whose version is
/// needed, the value that is looked for behind it.
fn command<'a>(op: &Op<'a>, refuses: bool) -> (Command<'a>, Option<&'a [u8]>) {
    match *op {
        Op::Add { key, value, expiry, returns, .. } => {
            let ttl = Ttl::of(expiry);
            if returns == Returns::Nothing || refuses {
                let look = (returns != Returns::Nothing).then_some(value);
                (Command::Classic { key, cas: None, flags: 0, value, ttl }, look)
            } else {
                (Command::Add { key, value, ttl }, None)
            }
        }
        Op::CompareAndSet { key, version, value, expiry, returns } => {
            let (ttl, cas) = (Ttl::of(expiry), version.number());
            if returns == Returns::Nothing || refuses {
                let look = (returns != Returns::Nothing).then_some(value);
                let flags = version.note();
                (Command::Classic { key, cas: Some(cas), flags, value, ttl }, look)
            } else {
                (Command::CompareAndSet { key, cas, value, ttl }, None)
            }
        }
        Op::Get { key, .. } => (Command::Get { key }, None),
        Op::Delete { key, version } => (Command::Delete { key, cas: version.number() }, None),
        Op::Append { key, value } => (Command::Append { key, value }, None),
        Op::Prepend { key, value } => (Command::Prepend { key, value }, None),
        Op::Increment { key, by, initial } => {
            let initial = initial.map(|(first, expiry)| (first, Ttl::of(expiry)));
            (Command::Increment { key, by, initial }, None)
        }
    }
}

/// What the server answered to these operations, which must be the next ones that were asked;
/// `None` where it answered anything but replies to them. `plainly`: nor in a form that a reader
/// may refuse.
pub fn next_replies(ops: &[Op<'_>], peer: &mut Peer, plainly: bool) -> Option<Vec<Reply>> {
    let Greeting { life, ordered, .. } = peer.greeting();
    let mut replies = Vec::new();
    for op in ops {
        replies.push(if op.is_of(life.epoch()) {
            next_reply(op, peer, plainly)?
        } else {
            Reply::VersionMismatch
        });
    }
    let stamp = if !ordered && ops.iter().any(Op::wants_fence) {
        let key = Keyspace::default().internal("stamp");
        match next_answer(&Command::Stamp { key: &key }, peer, plainly)? {
            Reply::Stored(stamp) => Some(stamp.version.number()),
            other => panic!("{other:?}"),
        }
    } else {
        None
    };
    life.fill_in_fences(ops, &mut replies, stamp);
    Some(replies)
}

fn next_answer(command: &Command<'_>, peer: &mut Peer, plainly: bool) -> Option<Reply> {
    let opaque = peer.next_request(command);
    if plainly && !peer.is_plain() { None } else { expected_reply(command, opaque, peer) }
}

fn next_reply(op: &Op<'_>, peer: &mut Peer, plainly: bool) -> Option<Reply> {
    let Greeting { life, refuses, .. } = peer.greeting();
    let (first, value) = command(op, refuses);
    let reply = next_answer(&first, peer, plainly)?;
    let Some(value) = value else { return Some(reply) };
    let stored = |version| Reply::Stored(Stored { version, fence: 0 });
    Some(match (reply, next_answer(&Command::Get { key: op.key() }, peer, plainly)?) {
        (Reply::Written, Reply::Value(item)) if item.value == value => stored(item.version),
        (Reply::Written, Reply::Value(item))
            if value.is_empty() || item.value.windows(value.len()).any(|part| part == value) =>
        {
            stored(life.version(item.version.number().saturating_sub(1).max(1)))
        }
        (Reply::Written, _) if matches!(op, Op::Add { .. }) => Reply::Exists,
        (Reply::Written, Reply::Missing) => Reply::Missing,
        (Reply::Written, _) => Reply::VersionMismatch,
        (reply, _) => reply,
    })
}

/// What the server answered to this command.
fn expected_reply(command: &Command<'_>, opaque: Option<u64>, peer: &mut Peer) -> Option<Reply> {
    let life = peer.life();
    let mut position = peer.read;
    let line = line(&peer.sent, &mut position)?;
    if opaque.is_none() {
        peer.read = position;
        return match (command, line) {
            (_, b"STORED") => Some(Reply::Written),
            (Command::Classic { cas: None, .. }, b"NOT_STORED") => Some(Reply::Exists),
            (Command::Classic { cas: Some(_), .. }, b"EXISTS") => Some(Reply::VersionMismatch),
            (Command::Classic { cas: Some(_), .. }, b"NOT_FOUND") => Some(Reply::Missing),
            (Command::Append { .. } | Command::Prepend { .. }, b"NOT_STORED") => {
                Some(Reply::Missing)
            }
            _ => None,
        };
    }
    let words: Vec<&[u8]> =
        line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
    let flag = |letter: u8| {
        let flag = words.iter().skip(1).rfind(|word| word[0] == letter);
        flag.and_then(|word| std::str::from_utf8(&word[1..]).ok())
    };
    if flag(b'O')?.parse().ok() != opaque {
        return None;
    }
    let mut value = None;
    if words[0] == b"VA" {
        let length: usize = std::str::from_utf8(words.get(1)?).ok()?.parse().ok()?;
        value = Some(peer.sent.get(position..position.checked_add(length)?)?.to_vec());
        if peer.sent.get(position + length..position + length + 2)? != b"\r\n" {
            return None;
        }
        position += length + 2;
    }
    peer.read = position;
    let cas = flag(b'c').and_then(|cas| cas.parse().ok()).filter(|&cas| cas != 0);
    let flags = flag(b'f').and_then(|flags| flags.parse().ok()).unwrap_or(0);
    let version = || cas.map(|cas| life.version(cas).with_note(flags));
    Some(match (command, words[0], value) {
        (
            Command::Add { .. } | Command::CompareAndSet { .. } | Command::Stamp { .. },
            b"HD",
            None,
        ) => Reply::Stored(Stored { version: version()?, fence: 0 }),
        (Command::Add { .. }, b"NS", None) => Reply::Exists,
        (Command::Get { .. }, b"EN", None) => Reply::Missing,
        (Command::Get { .. }, b"VA", Some(value)) => {
            let seconds = flag(b't').and_then(|ttl| ttl.parse::<i64>().ok());
            let remaining =
                seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
            Reply::Value(Item { value, version: version()?, remaining, fence: 0 })
        }
        (Command::Delete { .. }, b"HD", None) => Reply::Deleted,
        (Command::CompareAndSet { .. } | Command::Delete { .. }, b"EX", None) => {
            Reply::VersionMismatch
        }
        (
            Command::CompareAndSet { .. } | Command::Delete { .. } | Command::Increment { .. },
            b"NF",
            None,
        ) => Reply::Missing,
        (Command::Increment { .. }, b"VA", Some(value)) => {
            Reply::Number(std::str::from_utf8(&value).ok()?.trim_end().parse().ok()?)
        }
        _ => return None,
    })
}
