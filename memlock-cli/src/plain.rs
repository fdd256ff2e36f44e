//! A server spoken to past the library, for what only tools want to know: `stats`, all keys, the bare round trip.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use memlock_core::Client;
use memlock_core::store::{Address, Route};

use crate::exit::{Status, Trouble};

/// No line of memcached's is longer: a key has 250 bytes, each of which may be written as three.
const LONGEST_LINE: u64 = 64 * 1024;
/// The largest value that is read: memcached stores no larger ones by default.
const LARGEST_VALUE: u64 = 1024 * 1024;
/// How many items are asked for at once.
const BATCH: usize = 100;
/// How long another one may walk through the keys before we do.
const DUMP_PATIENCE: Duration = Duration::from_secs(10);

pub(crate) type Stats = HashMap<String, String>;

/// One connection.
#[derive(Debug)]
pub(crate) struct Plain {
    stream: BufReader<TcpStream>,
    address: Address,
}

/// An item's value, and for how many of the server's seconds it is kept yet; `None`: for ever.
pub(crate) type Value = (Vec<u8>, Option<Duration>);

impl Plain {
    pub(crate) fn connect(address: &Address) -> Result<Plain, Trouble> {
        let dial = || {
            let mut last = io::Error::from(io::ErrorKind::NotFound);
            for socket in (address.host.as_str(), address.port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&socket, address.connect_timeout) {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        stream.set_read_timeout(Some(address.io_timeout))?;
                        stream.set_write_timeout(Some(address.io_timeout))?;
                        return Ok(stream);
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        };
        let stream = dial().map_err(|error| {
            Trouble::new(
                Status::UNREACHABLE,
                format!(
                    "memcached at {} cannot be connected to ({error}). Is it running there?",
                    address.name
                ),
            )
        })?;
        Ok(Plain { stream: BufReader::new(stream), address: address.clone() })
    }

    /// `stats`, or `stats settings`.
    pub(crate) fn stats(&mut self, command: &str) -> Result<Stats, Trouble> {
        self.send(&format!("{command}\r\n"))?;
        let mut stats = Stats::new();
        loop {
            let line = self.line()?;
            let mut words = line.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("STAT"), Some(name), value) => {
                    stats.insert(name.to_owned(), value.unwrap_or_default().to_owned());
                }
                (Some("END"), None, None) => return Ok(stats),
                _ => return Err(self.nonsense(command, &line)),
            }
        }
    }

    /// How long the shortest question takes.
    pub(crate) fn round_trip(&mut self) -> Result<Duration, Trouble> {
        let sent = Instant::now();
        self.send("mn\r\n")?;
        let line = self.line()?;
        if line == "MN" { Ok(sent.elapsed()) } else { Err(self.nonsense("mn", &line)) }
    }

    /// The keys of all items that `wanted` wants.
    pub(crate) fn keys(&mut self, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, Trouble> {
        let began = Instant::now();
        loop {
            self.send("lru_crawler metadump all\r\n")?;
            let mut keys = Vec::new();
            let refused = loop {
                let line = self.line()?;
                if line == "END" {
                    return Ok(keys);
                }
                match line.strip_prefix("key=") {
                    Some(rest) => {
                        let key = rest.split(' ').next().and_then(decoded).unwrap_or_default();
                        if wanted(&key) {
                            keys.push(key);
                        }
                    }
                    None => break line,
                }
            };
            if !refused.starts_with("BUSY") || began.elapsed() > DUMP_PATIENCE {
                return Err(self.no_dump(&refused));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn no_dump(&self, refused: &str) -> Trouble {
        let why = if refused.contains("not allowed") {
            "it was started with -X: start it without".to_owned()
        } else if refused.contains("disabled") {
            "it was started with -o no_lru_crawler: start it without".to_owned()
        } else {
            format!("it answered {refused:?}")
        };
        Trouble::new(
            Status::PROTOCOL,
            format!(
                "memcached at {} does not list its keys (lru_crawler metadump): {why}.",
                self.address.name
            ),
        )
    }

    /// The items of these keys, in their order.
    pub(crate) fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>, Trouble> {
        let mut values = Vec::with_capacity(keys.len());
        for batch in keys.chunks(BATCH) {
            self.send(&batch.iter().map(|key| format!("mg {key} t v\r\n")).collect::<String>())?;
            for _ in batch {
                values.push(self.value()?);
            }
        }
        Ok(values)
    }

    fn value(&mut self) -> Result<Option<Value>, Trouble> {
        let line = self.line()?;
        let mut words = line.split(' ');
        let length = match (words.next(), words.next().map(str::parse::<u64>)) {
            (Some("EN"), None) => return Ok(None),
            (Some("VA"), Some(Ok(length))) if length <= LARGEST_VALUE => length,
            _ => return Err(self.nonsense("mg", &line)),
        };
        let seconds = words.find_map(|word| word.strip_prefix('t')).and_then(|ttl| ttl.parse().ok());
        let mut value = Vec::new();
        let read = (&mut self.stream).take(length + 2).read_to_end(&mut value);
        match read {
            Ok(_) if value.ends_with(b"\r\n") => value.truncate(value.len() - 2),
            Ok(_) => return Err(self.nonsense("mg", "a value of another length")),
            Err(error) => return Err(self.silent(&error)),
        }
        Ok(Some((value, seconds.map(Duration::from_secs))))
    }

    fn send(&mut self, request: &str) -> Result<(), Trouble> {
        self.stream.get_mut().write_all(request.as_bytes()).map_err(|error| self.silent(&error))
    }

    fn line(&mut self) -> Result<String, Trouble> {
        let mut line = Vec::new();
        match (&mut self.stream).take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
            Ok(_) => Err(self.silent(&io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.silent(&error)),
        }
    }

    fn silent(&self, error: &io::Error) -> Trouble {
        let why = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("did not answer within {:?}", self.address.io_timeout)
            }
            io::ErrorKind::UnexpectedEof => "closed the connection".to_owned(),
            _ => format!("does not answer ({error})"),
        };
        Trouble::new(Status::UNREACHABLE, format!("memcached at {} {why}.", self.address.name))
    }

    fn nonsense(&self, question: &str, line: &str) -> Trouble {
        if line.contains("Too many open connections") {
            let more = "takes no more connections: raise its -c, or use fewer";
            return Trouble::new(Status::UNREACHABLE, format!("memcached at {} {more}.", self.address.name));
        }
        let line: String = line.chars().take(80).collect();
        Trouble::new(
            Status::PROTOCOL,
            format!(
                "The server at {} answered {line:?} to {question:?}: it is not a memcached that memlock can use.",
                self.address.name
            ),
        )
    }
}

/// The key that metadump wrote.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let (code, tail) = rest.split_at_checked(2)?;
            rest = tail;
            bytes.push(u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// The servers of a client; an error where there are none to look at.
pub(crate) fn servers(client: &Client) -> Result<Vec<Address>, Trouble> {
    let servers = client.servers();
    if servers.is_empty() {
        return Err(Trouble::new(
            Status::CONFIG,
            "The URL names no server: give one with memcached://host:port.",
        ));
    }
    Ok(servers)
}

/// A name for a lock on this one of the client's servers, that nobody else uses.
pub(crate) fn name_on(client: &Client, place: usize, what: &str) -> String {
    let host = std::process::id();
    let now = crate::when::unix_now().as_nanos();
    let names = (0_u32..).map(|number| format!("memlock-{what}-{host}-{now}-{number}"));
    let is_there = |name: &String| client.server_of(Route::of(&client.keys().lock(name.as_bytes()))) == place;
    names.take(10_000).find(is_there).unwrap_or_default()
}

/// The time below which this share of them is.
pub(crate) fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_decoded() {
        assert_eq!(decoded("lock%3Aa%2520b").as_deref(), Some("lock:a%20b"));
        assert_eq!((decoded("%4"), decoded("%zz")), (None, None));
    }

    #[test]
    fn quantiles_are_of_what_there_is() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(quantile(&times, 0.99), Duration::from_millis(99));
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }
}
