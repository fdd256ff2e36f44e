//! The plain text protocol, to look at a server past the library.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long to wait for a reply unless another time is given.
const REPLY_LIMIT: Duration = Duration::from_secs(20);

/// A plain text-protocol client on one connection.
#[derive(Debug)]
pub struct MemcachedText {
    stream: BufReader<TcpStream>,
}

impl MemcachedText {
    /// Connects to `host:port`.
    pub fn connect(address: &str) -> MemcachedText {
        MemcachedText::try_connect(address)
            .unwrap_or_else(|why| panic!("no plain connection to {address}: {why}"))
    }

    /// [`MemcachedText::connect`] for tests where it may fail.
    pub fn try_connect(address: &str) -> io::Result<MemcachedText> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(MemcachedText { stream: BufReader::new(stream) })
    }

    /// How long to wait for each reply; twenty seconds at first.
    pub fn set_reply_limit(&mut self, limit: Duration) {
        self.stream
            .get_ref()
            .set_read_timeout(Some(limit))
            .expect("a read timeout above zero can be set");
    }

    /// Sends one command and returns the first line of its reply, without the line end. A data
    /// block goes into `line` after a `\r\n`.
    pub fn command(&mut self, line: &str) -> String {
        self.try_command(line).unwrap_or_else(|why| panic!("no reply to {line:?}: {why}"))
    }

    /// [`MemcachedText::command`] for tests where the connection may fail.
    pub fn try_command(&mut self, line: &str) -> io::Result<String> {
        self.send(line.as_bytes())?;
        self.line()
    }

    /// Stores if the key is free; `ttl` in seconds, 0 for ever.
    pub fn add(&mut self, key: &str, value: impl AsRef<[u8]>, ttl: u32) -> bool {
        self.store("add", key, value.as_ref(), ttl)
    }

    /// Stores in any case; `ttl` in seconds, 0 for ever.
    pub fn set(&mut self, key: &str, value: impl AsRef<[u8]>, ttl: u32) -> bool {
        self.store("set", key, value.as_ref(), ttl)
    }

    /// The value, if the server has one.
    pub fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.read("get", key).map(|(_, value)| value)
    }

    /// The value, its flags and its cas id, if the server has one.
    pub fn gets(&mut self, key: &str) -> Option<(Vec<u8>, u32, u64)> {
        let (head, value) = self.read("gets", key)?;
        let words: Vec<&str> = head.split(' ').collect();
        let [_, _, flags, _, cas] = words[..] else {
            panic!("gets {key:?} was answered with {head:?}")
        };
        Some((
            value,
            flags.parse().expect("flags are a number"),
            cas.parse().expect("a cas id is a number"),
        ))
    }

    /// Stores for ever if the item has that cas id.
    pub fn cas(&mut self, key: &str, value: &str, flags: u32, cas: u64) -> bool {
        let line = format!("cas {key} {flags} 0 {} {cas}\r\n{value}", value.len());
        match self.command(&line).as_str() {
            "STORED" => true,
            "EXISTS" | "NOT_FOUND" => false,
            other => panic!("cas {key:?} was answered with {other:?}"),
        }
    }

    /// Deletes; false when there was nothing.
    pub fn delete(&mut self, key: &str) -> bool {
        match self.command(&format!("delete {key}")).as_str() {
            "DELETED" => true,
            "NOT_FOUND" => false,
            other => panic!("delete {key:?} was answered with {other:?}"),
        }
    }

    /// Empties the server.
    pub fn flush_all(&mut self) {
        assert_eq!(self.command("flush_all"), "OK", "flush_all was refused");
    }

    /// What `stats` says.
    pub fn stats(&mut self) -> HashMap<String, String> {
        self.stats_reply("stats").unwrap_or_else(|why| panic!("no stats: {why}"))
    }

    /// What `stats <topic>` says, such as `settings` or `items`.
    pub fn stats_of(&mut self, topic: &str) -> HashMap<String, String> {
        self.stats_reply(&format!("stats {topic}"))
            .unwrap_or_else(|why| panic!("no stats {topic}: {why}"))
    }

    /// How many commands on items the server has seen, from all clients and meta or not.
    ///
    /// Every `ms` counts in `cmd_set` (a `cas_*` beside it tells only how it went), `mg` in
    /// `cmd_get`, or with `T` and a hit in `cmd_touch`, `md` in `delete_*` (a changed version
    /// counts as a miss), `ma` in `incr_*` or `decr_*`. The server itself does not count `mn`,
    /// `version`, `stats`, an `ma` that creates its item (`N`), and commands that it refuses with
    /// `CLIENT_ERROR`.
    pub fn commands(&mut self) -> u64 {
        const COUNTERS: [&str; 11] = [
            "cmd_get",
            "cmd_set",
            "cmd_touch",
            "cmd_flush",
            "cmd_meta",
            "delete_hits",
            "delete_misses",
            "incr_hits",
            "incr_misses",
            "decr_hits",
            "decr_misses",
        ];
        let stats = self.stats();
        let count = |name: &&str| stats.get(*name).and_then(|value| value.parse::<u64>().ok());
        COUNTERS
            .iter()
            .map(|name| count(name).unwrap_or_else(|| panic!("stats has no counter {name}")))
            .sum()
    }

    fn read(&mut self, verb: &str, key: &str) -> Option<(String, Vec<u8>)> {
        let head = self.command(&format!("{verb} {key}"));
        if head == "END" {
            return None;
        }
        let length = head.split(' ').nth(3).and_then(|word| word.parse().ok());
        let length: usize =
            length.unwrap_or_else(|| panic!("{verb} {key:?} was answered with {head:?}"));
        let mut value = vec![0; length + "\r\nEND\r\n".len()];
        self.stream
            .read_exact(&mut value)
            .unwrap_or_else(|why| panic!("the value of {key:?} broke off: {why}"));
        value.truncate(length);
        Some((head, value))
    }

    fn store(&mut self, verb: &str, key: &str, value: &[u8], ttl: u32) -> bool {
        let mut request = format!("{verb} {key} 0 {ttl} {}\r\n", value.len()).into_bytes();
        request.extend_from_slice(value);
        let reply = self.send(&request).and_then(|()| self.line());
        match reply.as_deref() {
            Ok("STORED") => true,
            Ok("NOT_STORED") => false,
            other => panic!("{verb} {key:?} was answered with {other:?}"),
        }
    }

    /// The values of a request such as `stats`.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn stats_reply(&mut self, request: &str) -> io::Result<HashMap<String, String>> {
        self.send(request.as_bytes())?;
        let mut stats = HashMap::new();
        loop {
            let line = self.line()?;
            match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
                ["STAT", name, value] => stats.insert(name.to_string(), value.to_string()),
                ["END"] => return Ok(stats),
                _ => return Err(io::Error::other(format!("stats was answered with {line:?}"))),
            };
        }
    }

    fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(&[request, b"\r\n"].concat())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the reply ended after {line:?}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::server::Memcached;

    #[test]
    fn every_command_on_an_item_is_counted_once() {
        let server = Memcached::start();
        let mut plain = server.plain();
        let counted = [
            ("ms k 1 ME T60 c\r\na", "HD"),
            ("ms k 1 ME T60\r\na", "NS"),
            ("ms k 1 C999\r\na", "EX"),
            ("ms none 1 C1\r\na", "NF"),
            ("ms k 0 MA\r\n", "HD"),
            ("mg k c t", "HD"),
            ("mg k T60", "HD"),
            ("mg none v", "EN"),
            ("md k C999", "EX"),
            ("md k", "HD"),
            ("md k", "NF"),
            ("ma none", "NF"),
            ("ma none MD", "NF"),
            ("set n 0 0 1\r\n1", "STORED"),
            ("ma n", "HD"),
            ("ma n MD", "HD"),
            ("touch n 60", "TOUCHED"),
            ("get none", "END"),
        ];
        for (line, reply) in counted {
            let before = server.commands();
            let answer = plain.command(line);
            assert!(answer.starts_with(reply), "{line:?} was answered with {answer:?}");
            assert_eq!(server.commands(), before + 1, "{line:?} counts once");
        }
        for line in ["mn", "version", "ma new N60 J1", "ms k bad\r\n"] {
            let before = server.commands();
            plain.command(line);
            assert_eq!(server.commands(), before, "{line:?} does not count");
        }
    }
}
