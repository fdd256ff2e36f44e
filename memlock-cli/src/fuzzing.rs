//! The private parts that the targets in `fuzz/` need. `cargo fuzz` gives `--cfg fuzzing`; in any
//! other build this file is not there.
#![allow(missing_docs, clippy::expect_used)]

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::TcpStream;
use std::time::Duration;

use clap::Parser;
use memlock_core::name::Keyspace;

use crate::args::{Args, Command};
use crate::exit::CliError;
use crate::memcached_text::MemcachedText;
use crate::{doctor, duration, list};

/// An item's value, if it is not too large, and for how long it is kept yet.
pub type Value = (Option<Vec<u8>>, Option<Duration>);

/// A server that was dialled already. What goes wrong is told by the sentence that the user would
/// read.
pub struct Server(MemcachedText);

impl Server {
    pub fn over(stream: TcpStream) -> Server {
        let client = memlock_core::Client::connect("memcached://server:1").expect("a good URL");
        let address = client.servers().pop().expect("it names a server");
        Server(MemcachedText::over(stream, &address))
    }

    pub fn stats(&mut self, command: &str) -> Result<HashMap<String, String>, String> {
        self.0.stats(command).map_err(sentence)
    }

    pub fn round_trip(&mut self) -> Result<(), String> {
        self.0.round_trip().map(|_| ()).map_err(sentence)
    }

    /// The keys that `memlock ls` asks for.
    pub fn keys(&mut self) -> Result<Vec<String>, String> {
        let space = Keyspace::default();
        self.0.keys(|key| space.read(key).is_some()).map_err(sentence)
    }

    pub fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>, String> {
        let values = self.0.values(keys).map_err(sentence)?;
        let kept = |(content, left): crate::memcached_text::Value| {
            (content.bytes().map(<[u8]>::to_vec), left)
        };
        Ok(values.into_iter().map(|value| value.map(kept)).collect())
    }

    /// What the doctor says of this server.
    pub fn examined(&mut self, lease: Duration) -> Result<Vec<String>, String> {
        let findings = doctor::numbers(&mut self.0, lease).map_err(sentence)?;
        Ok(findings.into_iter().map(|finding| finding.said).collect())
    }
}

fn sentence(trouble: CliError) -> String {
    trouble.message
}

pub fn duration(text: &str) -> Option<Duration> {
    duration::parse(text).ok()
}

pub fn brief(duration: Duration) -> String {
    duration::brief(duration)
}

pub fn date(unix_seconds: u64) -> String {
    duration::date(unix_seconds)
}

pub fn shown(name: &[u8]) -> String {
    crate::text::shown(name)
}

/// The keys that `memlock list` reads from its standard input, and how many bytes each took.
pub fn keys(input: &[u8], end: u8) -> Result<Vec<(Vec<u8>, u64)>, String> {
    let mut input = input;
    let mut keys = Vec::new();
    while let Some(key) = list::input::key(&mut input, end).map_err(sentence)? {
        keys.push(key);
    }
    Ok(keys)
}

/// Whether such a command line is understood; and of `run`, until when its command would be told
/// that it may count on the lock.
pub fn command_line(words: &[OsString]) -> Option<u64> {
    match Args::try_parse_from(words).ok()?.command {
        Command::Run(run) => Some(duration::after(run.max_hold.unwrap_or(run.lease))),
        _ => Some(0),
    }
}
