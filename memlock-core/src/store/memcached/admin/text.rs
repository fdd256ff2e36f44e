//! A tool's connection: `stats`, all keys, the bare round trip, by the text protocol.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::time::Duration;

use super::keys::{can_be_asked_for, decoded};
use crate::clock::{Clock, Moment, SystemClock, brief};
use crate::error::{Error, ErrorKind, Result};
use crate::store::admin::{Content, Value};
use crate::store::remote::{Address, Stream, connect};

/// The longest line that memcached sends.
const LONGEST_LINE: usize = 64 * 1024;
/// The largest value that is kept: memlock writes no larger ones, and memcached stores none by
/// default.
const LARGEST_VALUE: usize = 1024 * 1024;
/// The longest reply to `stats` that is accepted.
const LONGEST_STATS: usize = 1024 * 1024;
/// The most bytes of keys, and of values, that are kept, with this overhead for each of them:
/// enough for a million locks.
const MOST_BYTES: usize = 256 * 1024 * 1024;
const OVERHEAD: usize = 64;
/// This many received bytes extend the deadline of a reply by its original length.
const SLOWEST: usize = 64 * 1024;
/// How many items are requested at once.
const BATCH: usize = 100;
/// How long a dump of all keys may take for each 64 KiB, and how long to wait for another dump to
/// finish first.
const DUMP_PATIENCE: Duration = Duration::from_secs(10);

pub(super) type Stats = HashMap<String, String>;

/// A connection to one server.
#[derive(Debug)]
pub(in crate::store) struct Text {
    stream: BufReader<Stream>,
    address: Address,
    question: Question,
}

/// The reply in progress. It has one deadline, which is extended only by the number of bytes
/// received: a server that answers byte by byte, or line by line, is treated as silent.
#[derive(Debug)]
struct Question {
    asked: Moment,
    patience: Duration,
    answered: usize,
}

impl Question {
    fn new(patience: Duration) -> Question {
        Question { asked: SystemClock.now(), patience, answered: 0 }
    }

    fn is_late(&self) -> bool {
        let share = 1.0 + self.answered as f64 / SLOWEST as f64;
        SystemClock.now().since(self.asked).as_secs_f64() > self.patience.as_secs_f64() * share
    }
}

impl Text {
    pub(in crate::store::memcached) fn connect(address: &Address) -> Result<Text> {
        let name = |error: Error| error.at(address.title("memcached"));
        let io_timeout = address.settings.io_timeout;
        let stream = connect(address, "memcached", &SystemClock).map_err(name)?;
        stream.set_timeouts(io_timeout).map_err(|error| {
            name(Error::new(
                ErrorKind::Unreachable,
                format!("The socket cannot be set up: {error}."),
            ))
        })?;
        Ok(Text::over(stream, address))
    }

    /// Uses an existing connection.
    pub(in crate::store::memcached) fn over(stream: Stream, address: &Address) -> Text {
        let question = Question::new(address.settings.io_timeout);
        Text { stream: BufReader::new(stream), address: address.clone(), question }
    }

    /// Sends `stats`, or `stats settings`.
    pub(super) fn stats(&mut self, command: &str) -> Result<Stats> {
        self.send(&format!("{command}\r\n"))?;
        let (mut stats, mut length) = (Stats::new(), 0);
        loop {
            let line = self.line()?;
            length += line.len() + OVERHEAD;
            let mut words = line.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("STAT"), Some(name), value) if length < LONGEST_STATS => {
                    stats.insert(name.to_owned(), value.unwrap_or_default().to_owned());
                }
                (Some("END"), None, None) => return Ok(stats),
                _ => return Err(self.nonsense(command, &line)),
            }
        }
    }

    /// Measures the shortest round trip.
    pub(super) fn round_trip(&mut self) -> Result<Duration> {
        let sent = SystemClock.now();
        self.send("mn\r\n")?;
        let line = self.line()?;
        if line == "MN" {
            Ok(SystemClock.now().since(sent))
        } else {
            Err(self.nonsense("mn", &line))
        }
    }

    /// The keys of all items that `wanted` selects.
    pub(super) fn keys(&mut self, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let began = SystemClock.now();
        loop {
            // Not "all", which walks the LRU lists, and misses items that are moved in them
            // meanwhile.
            self.send("lru_crawler metadump hash\r\n")?;
            self.question.patience = self.address.settings.io_timeout.max(DUMP_PATIENCE);
            let (mut keys, mut bytes, mut begun) = (Vec::new(), 0, false);
            let refused = loop {
                let line = self.line()?;
                if line == "END" {
                    return Ok(keys);
                }
                // Servers from 1.6.45 on send this line first.
                if line == "OK" && !std::mem::replace(&mut begun, true) {
                    continue;
                }
                match line.strip_prefix("key=") {
                    Some(rest) => {
                        let key = rest.split(' ').next().and_then(decoded).unwrap_or_default();
                        if can_be_asked_for(&key) && wanted(&key) {
                            bytes += key.len() + OVERHEAD;
                            keys.push(key);
                            self.is_little(bytes)?;
                        }
                    }
                    None => break line,
                }
            };
            if !refused.starts_with("BUSY") || SystemClock.now().since(began) > DUMP_PATIENCE {
                return Err(self.no_dump(&refused));
            }
            SystemClock.sleep(Duration::from_millis(100));
        }
    }

    fn no_dump(&self, refused: &str) -> Error {
        let why = if refused.contains("not allowed") {
            "it was started with -X: start it without".to_owned()
        } else if refused.contains("disabled") {
            "it was started with -o no_lru_crawler: start it without".to_owned()
        } else {
            format!("it answered {refused:?}")
        };
        let text = format!("The server does not list its keys (lru_crawler metadump): {why}.");
        self.said(Error::protocol(text))
    }

    /// The items with these keys, in the same order.
    pub(super) fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        let (mut values, mut bytes) = (Vec::with_capacity(keys.len()), 0);
        for batch in keys.chunks(BATCH) {
            self.send(&batch.iter().map(|key| format!("mg {key} t v\r\n")).collect::<String>())?;
            for _ in batch {
                let value = self.value()?;
                bytes += value.as_ref().and_then(|(value, _)| value.bytes()).map_or(0, <[u8]>::len)
                    + OVERHEAD;
                values.push(value);
                self.is_little(bytes)?;
            }
        }
        Ok(values)
    }

    fn value(&mut self) -> Result<Option<Value>> {
        let line = self.line()?;
        let mut words = line.split(' ');
        let length = match (words.next(), words.next().map(str::parse::<usize>)) {
            (Some("EN"), None) => return Ok(None),
            (Some("VA"), Some(Ok(length))) => length,
            _ => return Err(self.nonsense("mg", &line)),
        };
        let seconds =
            words.find_map(|word| word.strip_prefix('t')).and_then(|ttl| ttl.parse().ok());
        let left = seconds.map(Duration::from_secs);
        if length > LARGEST_VALUE {
            self.skip(length)?;
        }
        let all = length.min(LARGEST_VALUE) + 2;
        let mut value =
            self.read(all, |read, piece| (read + piece.len() >= all).then(|| all - read))?;
        if !value.ends_with(b"\r\n") {
            return Err(self.nonsense("mg", "a value of another length"));
        }
        value.truncate(all - 2);
        Ok(Some(match length {
            ..=LARGEST_VALUE => (Content::Bytes(value), left),
            _ => (Content::TooLarge(length), left),
        }))
    }

    /// Skips the part of a value that is not read. If a server announces an endless value, the
    /// deadline ends the reply: skipped bytes extend it by no more than `LARGEST_VALUE` bytes do.
    fn skip(&mut self, length: usize) -> Result<()> {
        let mut more = length - LARGEST_VALUE;
        let answered = self.question.answered;
        while more > 0 {
            more -= self.piece(|piece| piece.len().min(more))?.len();
            self.question.answered = answered + LARGEST_VALUE;
        }
        Ok(())
    }

    fn send(&mut self, request: &str) -> Result<()> {
        self.question = Question::new(self.address.settings.io_timeout);
        self.stream.get_mut().write_all(request.as_bytes()).map_err(|error| self.silent(&error))
    }

    fn line(&mut self) -> Result<String> {
        let end =
            |_, piece: &[u8]| piece.iter().position(|&byte| byte == b'\n').map(|place| place + 1);
        let line = self.read(LONGEST_LINE, end)?;
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Reads until `end` returns where to stop. `end` is given the number of bytes read before, and
    /// the new bytes.
    fn read(
        &mut self,
        most: usize,
        end: impl Fn(usize, &[u8]) -> Option<usize>,
    ) -> Result<Vec<u8>> {
        let mut read = Vec::new();
        loop {
            let mut is_whole = false;
            let piece = self.piece(|piece| {
                let at = end(read.len(), piece);
                is_whole = at.is_some();
                at.unwrap_or(piece.len())
            })?;
            read.extend(piece);
            if read.len() > most {
                return Err(self.nonsense("a request", "a line without an end"));
            }
            if is_whole {
                return Ok(read);
            }
        }
    }

    /// The received bytes, as many of them as `take` returns.
    fn piece(&mut self, take: impl FnOnce(&[u8]) -> usize) -> Result<Vec<u8>> {
        // Checked before each read, which itself ends after `io_timeout`. Bytes that are already in
        // the buffer cannot be late.
        if self.stream.buffer().is_empty() && self.question.is_late() {
            return Err(self.silent(&io::ErrorKind::TimedOut.into()));
        }
        let piece = loop {
            match self.stream.fill_buf() {
                Ok([]) => return Err(self.silent(&io::ErrorKind::UnexpectedEof.into())),
                Ok(piece) => break piece,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.silent(&error)),
            }
        };
        let taken = take(piece);
        let piece = piece[..taken].to_vec();
        self.stream.consume(taken);
        self.question.answered += taken;
        Ok(piece)
    }

    /// More than this is an error of the server, or too much to show as a list.
    fn is_little(&self, bytes: usize) -> Result<()> {
        if bytes <= MOST_BYTES {
            return Ok(());
        }
        Err(self.said(Error::protocol("The server has more keys than can be listed.")))
    }

    fn silent(&self, error: &io::Error) -> Error {
        let silent = |patience| {
            let text = format!("The server did not answer within {}.", brief(patience));
            Error::silent(ErrorKind::Unreachable, text)
        };
        self.said(match error.kind() {
            io::ErrorKind::WouldBlock => silent(self.address.settings.io_timeout),
            io::ErrorKind::TimedOut => silent(self.question.patience),
            io::ErrorKind::UnexpectedEof => {
                Error::new(ErrorKind::Unreachable, "The server closed the connection.")
            }
            _ => {
                Error::new(ErrorKind::Unreachable, format!("The server does not answer ({error})."))
            }
        })
    }

    fn nonsense(&self, question: &str, line: &str) -> Error {
        if line.contains("Too many open connections") {
            let text = "The server takes no more connections: raise its -c, or use fewer.";
            return self.said(Error::new(ErrorKind::Unreachable, text));
        }
        let line: String = line.chars().take(80).collect();
        self.said(Error::protocol(format!(
            "The server answered {line:?} to {question:?}: it is not a memcached that memlock can use."
        )))
    }

    fn said(&self, error: Error) -> Error {
        error.at(self.address.title("memcached"))
    }
}

#[cfg(test)]
pub(in crate::store::memcached) mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::store::remote::{Place, Settings};

    /// For a busy machine.
    pub(in crate::store::memcached) const PATIENCE: Duration = Duration::from_secs(60);

    /// A server that sends these pieces, whatever the request: the first one at once, and each of
    /// the others after a pause.
    pub(in crate::store::memcached) fn server_that_says(
        pieces: impl IntoIterator<Item = Vec<u8>> + Send + 'static,
        pause: Duration,
        io_timeout: Duration,
    ) -> Text {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let place = Place::Tcp(address.ip().to_string(), address.port());
        let connect_timeout = PATIENCE;
        let address = Address::new(place, Settings { connect_timeout, io_timeout, pool: 1 });
        thread::spawn(move || {
            let mut client = listener.accept().unwrap().0;
            for piece in pieces {
                // The client may have closed the connection.
                if client.write_all(&piece).is_err() {
                    return;
                }
                thread::sleep(pause);
            }
        });
        Text::connect(&address).unwrap()
    }

    #[test]
    fn a_server_that_answers_byte_by_byte_is_not_waited_for_for_ever() {
        let bytes = (0..).map(|_| b"x".to_vec());
        let io_timeout = Duration::from_millis(300);
        let mut text = server_that_says(bytes, Duration::from_millis(20), io_timeout);
        let error = text.round_trip().unwrap_err();
        assert!(error.to_string().contains("did not answer within 300 ms"), "{error:?}");
    }

    #[test]
    fn a_server_that_never_comes_to_an_end_is_told_from_a_memcached() {
        let stats =
            (0..).map(|number: u64| format!("STAT s{number} 1\r\n").repeat(1000).into_bytes());
        let mut text = server_that_says(stats, Duration::ZERO, PATIENCE);
        assert_eq!(text.stats("stats").unwrap_err().kind(), ErrorKind::Protocol);
        let line = (0..).map(|_: u64| vec![b'x'; 1000]);
        let mut text = server_that_says(line, Duration::ZERO, PATIENCE);
        let error = text.round_trip().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error:?}");
    }
}
