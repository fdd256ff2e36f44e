//! The requests of tools.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Parser, Value, cmd};

use super::replicas::{self, Replica};
use super::{Redis, errors, handshake, health, replies, request};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Failure;
use crate::store::admin::skew::{self, Skew, timed};
use crate::store::admin::{Admin, Content, Finding, Value as Shown};
use crate::store::remote::{Address, Patience, Place, Protocol, Socket};

/// The largest value that is read.
const LARGEST_VALUE: usize = 1024 * 1024;
/// How many keys are requested at once, and how many values.
const KEYS_AT_ONCE: usize = 1000;
const VALUES_AT_ONCE: usize = 100;
/// The most bytes of keys that are listed, and what each key takes beyond its own: enough for a million
/// locks.
const MOST_BYTES: usize = 256 * 1024 * 1024;
const OVERHEAD: usize = 64;

/// A tool's own connection.
pub(super) struct Tool {
    socket: Socket,
    parser: Parser,
    /// The server in messages.
    title: String,
    redis: Redis,
    address: Address,
}

impl Tool {
    /// Connects and logs in.
    pub(super) fn connect(redis: &Redis, address: &Address) -> Result<Tool> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let title = address.title(Redis::SERVER);
        let socket = redis.connect(address, &clock);
        let socket = socket.map_err(|error| error.at(&title))?;
        let (redis, address) = (redis.clone(), address.clone());
        let mut tool = Tool { socket, parser: Parser::new(), title, redis, address };
        tool.ask_all(&handshake::login(&tool.redis.settings))?;
        Ok(tool)
    }

    /// Sends the requests in one packet. An error reply is one of the replies.
    fn ask(&mut self, questions: &[Cmd]) -> Result<Vec<Value>> {
        let asked = self.try_to_ask(questions);
        // These requests change nothing.
        asked.map_err(|error| {
            let error = Failure::unsent(error).error;
            error.at(&self.title)
        })
    }

    fn try_to_ask(&mut self, questions: &[Cmd]) -> Result<Vec<Value>> {
        self.socket.output.clear();
        for question in questions {
            question.write_packed_command(&mut self.socket.output);
        }
        if questions.is_empty() {
            return Ok(Vec::new());
        }
        self.socket.write_out().map_err(|failure| failure.error)?;
        let mut patience = Patience::default();
        questions
            .iter()
            .map(|_| replies::next(&mut self.socket, &mut self.parser, &mut patience))
            .collect()
    }

    /// As [`Tool::ask`], but fails with the first error reply.
    fn ask_all(&mut self, questions: &[Cmd]) -> Result<Vec<Value>> {
        let answers = self.ask(questions)?;
        for answer in &answers {
            if let Value::ServerError(error) = answer {
                let (code, text) = (error.code(), error.details().unwrap_or_default());
                let error = errors::of_reply(code, text, self.redis.settings.password.as_ref());
                return Err(error.at(&self.title));
            }
        }
        Ok(answers)
    }

    fn info(&mut self) -> Result<HashMap<String, String>> {
        let answers = self.ask_all(&[cmd("INFO")])?;
        let Some(Value::BulkString(text)) = answers.into_iter().next() else {
            return Err(self.nonsense());
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let fields = text.lines().filter_map(|line| line.trim().split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// The time since 1970 by the server's clock.
    fn time(&mut self) -> Result<Duration> {
        let answer = self.ask_all(&[cmd("TIME")])?.into_iter().next().unwrap_or(Value::Nil);
        handshake::unix_time(answer).ok_or_else(|| self.nonsense())
    }

    /// Compares the clocks of the server's replicas with its own. Fails only if this server does.
    fn replicas(&mut self, info: &HashMap<String, String>) -> Result<Vec<Replica>> {
        let places = replicas::places(info);
        places.into_iter().map(|(name, place)| self.replica(info, name, place)).collect()
    }

    fn replica(
        &mut self,
        info: &HashMap<String, String>,
        name: String,
        place: Option<Place>,
    ) -> Result<Replica> {
        let Some(place) = place else {
            return Ok(Replica::unknown(name, "the server names no address and port"));
        };
        let address = Address::new(place, self.address.settings);
        let skew = match self.dial_replica(info, &address) {
            Ok(replica) => self.skew_of(replica)?,
            Err(error) => Err(error),
        };
        Ok(Replica::new(&address, skew, self.redis.settings.password.as_ref()))
    }

    fn dial_replica(&self, info: &HashMap<String, String>, address: &Address) -> Result<Tool> {
        if matches!(self.address.place, Place::Unix(_)) {
            // A password for a Unix socket is not for the network.
            return Err(Error::config("it is not dialled where the URL names a Unix socket"));
        }
        let mut replica = Tool::connect(&self.redis, address)?;
        // The address may mean another server on this host than on the primary's.
        if replica.info()?.get("master_replid") != info.get("master_replid") {
            return Err(Error::protocol("the server there is not, or not yet, its replica"));
        }
        Ok(replica)
    }

    /// How far the clock of a replica is from that of this server; or why the replica did not tell.
    fn skew_of(&mut self, mut replica: Tool) -> Result<Result<Skew>> {
        let before = self.time()?;
        let theirs = replica.time();
        let after = self.time()?;
        Ok(theirs.map(|theirs| Skew::new(theirs, [before, after], skew::FINE)))
    }

    fn nonsense(&self) -> Error {
        Error::protocol(format!("{} sent a reply that does not belong to its request.", self.title))
    }
}

impl Admin for Tool {
    fn round_trip(&mut self) -> Result<Duration> {
        let sent = SystemClock.now();
        self.ask_all(&[cmd("PING")])?;
        Ok(SystemClock.now().since(sent))
    }

    fn keys(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<String>> {
        let (mut cursor, mut bytes) = ("0".to_owned(), 0);
        let mut keys = HashSet::new();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("COUNT").arg(KEYS_AT_ONCE);
            let answer = self.ask_all(&[scan])?.into_iter().next();
            let Some(Value::Array(parts)) = answer else { return Err(self.nonsense()) };
            let Ok([Value::BulkString(next), Value::Array(found)]) = <[Value; 2]>::try_from(parts)
            else {
                return Err(self.nonsense());
            };
            for key in found {
                let Value::BulkString(key) = key else { return Err(self.nonsense()) };
                let Ok(key) = String::from_utf8(key) else { continue };
                let key = request::key_of(&key);
                if wanted(&key) && keys.insert(key.clone().into_owned()) {
                    bytes += key.len() + OVERHEAD;
                }
            }
            if bytes > MOST_BYTES {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    format!("{} has more keys than can be listed.", self.title),
                ));
            }
            cursor = String::from_utf8(next).map_err(|_| self.nonsense())?;
            if cursor == "0" {
                return Ok(keys.into_iter().collect());
            }
        }
    }

    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Shown>>> {
        let mut values = Vec::with_capacity(keys.len());
        for some in keys.chunks(VALUES_AT_ONCE) {
            let mut questions = Vec::with_capacity(3 * some.len());
            for key in some {
                let key = request::wire_key(key);
                let (mut length, mut left, mut value) =
                    (cmd("STRLEN"), cmd("PTTL"), cmd("GETRANGE"));
                length.arg(&*key);
                left.arg(&*key);
                value.arg(&*key).arg(0).arg(LARGEST_VALUE - 1);
                questions.extend([length, left, value]);
            }
            // For a key of another type the reply is an error, and there is no value here.
            for answers in self.ask(&questions)?.chunks(3) {
                values.push(match answers {
                    [Value::Int(length), Value::Int(left @ -1..), Value::BulkString(value)] => {
                        let length = usize::try_from(*length).unwrap_or(0);
                        let content = if length > LARGEST_VALUE {
                            Content::TooLarge(length)
                        } else {
                            Content::Bytes(request::value_of(value).to_vec())
                        };
                        Some((content, u64::try_from(*left).ok().map(Duration::from_millis)))
                    }
                    _ => None,
                });
            }
        }
        Ok(values)
    }

    fn health(&mut self, _lease: Duration) -> Result<Vec<Finding>> {
        let info = self.info()?;
        let (theirs, ours) = timed(|| self.time())?;
        let mut findings = health::all(&info, &self.replicas(&info)?);
        findings.push(Skew::new(theirs, ours, skew::FINE).finding(skew::WITH_REPLICAS));
        Ok(findings)
    }
}
