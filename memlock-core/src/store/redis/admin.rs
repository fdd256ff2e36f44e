//! The requests of tools.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Parser, Value, cmd};

use super::settings::Settings;
use super::{errors, handshake, health, replies, request};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Failure;
use crate::store::admin::{Admin, Content, Finding, Value as Shown};
use crate::store::remote::{Patience, Socket};

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
    title: String,
}

impl Tool {
    /// Logs in. `title`: the server in messages.
    pub(super) fn introduce(
        socket: Socket,
        title: String,
        settings: &Arc<Settings>,
    ) -> Result<Tool> {
        let mut tool = Tool { socket, parser: Parser::new(), title };
        tool.ask_all(&handshake::login(settings))?;
        Ok(tool)
    }

    /// Sends the requests in one packet. An error reply is one of the replies.
    fn ask(&mut self, questions: &[Cmd]) -> Result<Vec<Value>> {
        let asked = self.try_to_ask(questions);
        // These requests change nothing.
        asked.map_err(|error| {
            let error = Failure { error, sent: false }.of_read();
            error.during(format_args!("{}", self.title))
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
                let error = errors::of_reply(error.code(), error.details().unwrap_or_default());
                return Err(error.during(format_args!("{}", self.title)));
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
        Ok(health::all(&self.info()?))
    }
}
