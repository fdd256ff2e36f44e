//! Logging in, what a server tells about itself, and whether it is suitable for locks.

use std::time::Duration;

use redis::{Cmd, Parser, ServerError, Value, cmd};

use super::retention::Retention;
use super::settings::Settings;
use super::{errors, replies, request};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::hash::fnv1a;
use crate::name::Key;
use crate::store::Epoch;
use crate::store::remote::{Patience, Reading, Socket};

/// The oldest version with all that is needed: `PXAT` came with it.
const OLDEST: (u64, u64) = (6, 2);

/// The first byte of an alert of TLS.
const TLS_ALERT: u8 = 0x15;

/// The script that raises the counter of fences.
const RAISE: &str = include_str!("fence.lua");

/// One life of a server: its `run_id`, hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Life(u64);

impl Life {
    pub(super) fn epoch(self) -> Epoch {
        Epoch::new(self.0, 0)
    }
}

/// The result of the handshake.
#[derive(Clone, Debug)]
pub(super) struct Introduction {
    pub(super) life: Life,
    /// How old the server was at least, and when it had told. It counts the seconds of its host's
    /// clock that have begun.
    pub(super) age: (Duration, Moment),
    pub(super) time: Reading,
    /// What all clients of the server have agreed on.
    pub(super) config: Option<Vec<u8>>,
    /// What the server does when its memory is full.
    pub(super) retention: Retention,
    /// The name of the script on the server.
    pub(super) script: String,
    /// The counter of fences after it was raised; `None` if the server refused that, as it refuses
    /// all writes.
    pub(super) floor: Option<u64>,
}

/// The commands that log in.
pub(super) fn login(settings: &Settings) -> Vec<Cmd> {
    let mut commands = Vec::new();
    if let Some(password) = &settings.password {
        let mut auth = cmd("AUTH");
        if let Some(user) = &settings.user {
            auth.arg(user);
        }
        auth.arg(&password.0);
        commands.push(auth);
    }
    if settings.database != 0 {
        let mut select = cmd("SELECT");
        select.arg(settings.database);
        commands.push(select);
    }
    commands
}

/// Logs in and examines the server, in one packet.
pub(super) fn introduce(
    socket: &mut Socket,
    parser: &mut Parser,
    settings: &Settings,
) -> Result<Introduction> {
    let accepted = |answer| accepted(answer, settings);
    let sent = socket.clock().now();
    let mut requests = login(settings);
    let logged_in = requests.len();
    let mut server = cmd("INFO");
    server.arg("server");
    let mut config = cmd("GET");
    config.arg(settings.config.as_str());
    let of_memory = memory();
    let raise = raise(&settings.fence, 0);
    let call = unknown_script(&settings.fence);
    requests.extend([server, cmd("TIME"), load(), call, raise, config, of_memory]);
    for request in &requests {
        request.write_packed_command(&mut socket.output);
    }
    socket.write_out().map_err(|failure| failure.error)?;
    let mut answers = Answers { socket, parser, patience: Patience::default() };
    let mut first = Some(());
    let mut next = || match first.take() {
        Some(()) => answers.first(settings),
        None => answers.next(),
    };
    for _ in 0..logged_in {
        accepted(next()?)?;
    }
    // What it is comes before what it refuses.
    let about = text(accepted(next()?)?).ok_or_else(nonsense)?;
    let life = examine(&about)?;
    let uptime = field(&about, "uptime_in_seconds").and_then(|text| text.parse::<u64>().ok());
    let age = Duration::from_secs(uptime.unwrap_or(0).saturating_sub(1));
    let shown = unix_time(accepted(next()?)?).ok_or_else(nonsense)?;
    let script = text(accepted(next()?)?).ok_or_else(nonsense)?;
    match next()? {
        Value::ServerError(error) if error.code() == errors::FORGOTTEN => {}
        answer => return accepted(answer).and(Err(nonsense())),
    }
    let floor = match next()? {
        // Locks can be examined and released nevertheless.
        Value::ServerError(error) if errors::is_of_writes(error.code()) => None,
        Value::ServerError(error) => return Err(no_fence(settings, &error)),
        answer => Some(number(answer).ok_or_else(nonsense)?),
    };
    let config = match next()? {
        Value::BulkString(bytes) => Some(request::value_of(&bytes).to_vec()),
        // A user without a guard needs no right to this key, and with one the item cannot be added.
        Value::ServerError(error) if error.code() == "NOPERM" => None,
        answer => {
            let reading = format_args!("Reading {}", settings.config);
            accepted(answer).map(|_| None).map_err(|error| error.during(reading))?
        }
    };
    let retention = retention(next()?, settings)?;
    if !socket.unread().is_empty() {
        return Err(unasked());
    }
    let age = (age, socket.clock().now());
    let time = Reading { shown, sent };
    Ok(Introduction { life, age, time, config, retention, script, floor })
}

/// The replies to the handshake.
struct Answers<'a> {
    socket: &'a mut Socket,
    parser: &'a mut Parser,
    patience: Patience,
}

impl Answers<'_> {
    fn next(&mut self) -> Result<Value> {
        replies::next(self.socket, self.parser, &mut self.patience)
    }

    /// The first one: where a server expects TLS, it closes the connection, or sends an alert.
    fn first(&mut self, settings: &Settings) -> Result<Value> {
        let answer = self.next();
        let is_alert = self.socket.unread().first() == Some(&TLS_ALERT);
        answer.map_err(|error| {
            if !settings.is_encrypted && (is_alert || errors::is_of_closing(&error)) {
                let text = format!("{error} Does it expect TLS (rediss://)?");
                return Error::new(error.kind(), text);
            }
            error
        })
    }
}

/// The reply, unless it is an error.
fn accepted(answer: Value, settings: &Settings) -> Result<Value> {
    match answer {
        Value::ServerError(error) => {
            let text = error.details().unwrap_or_default();
            Err(errors::of_reply(error.code(), text, settings.password.as_ref()))
        }
        answer => Ok(answer),
    }
}

/// The error of a fence that the server does not give.
pub(super) fn no_fence(settings: &Settings, error: &ServerError) -> Error {
    let fence = &settings.fence;
    let (code, text) = (error.code(), error.details().unwrap_or_default());
    if errors::is_no_counter(error) {
        not_the_counter(fence)
    } else if code == request::FOREIGN && keys(fence).iter().any(|key| key == text) {
        request::foreign(text)
    } else {
        errors::of_reply(code, text, settings.password.as_ref())
    }
}

/// The error of an item that is in the way of the counter of fences.
pub(super) fn not_the_counter(fence: &Key) -> Error {
    Error::protocol(format!(
        "The item {fence} is not memlock's counter of fences: another program stores something there. Delete it, \
         or choose another prefix."
    ))
}

/// Asks for the policy of a server whose memory is full.
pub(super) fn memory() -> Cmd {
    let mut info = cmd("INFO");
    info.arg("memory");
    info
}

/// What the server replies to [`memory`].
pub(super) fn retention(answer: Value, settings: &Settings) -> Result<Retention> {
    if matches!(&answer, Value::ServerError(error) if error.code() == "NOPERM") {
        return Ok(Retention::Unknown);
    }
    let info = text(accepted(answer, settings)?).ok_or_else(nonsense)?;
    let of = |name| field(&info, name).unwrap_or_default();
    Ok(Retention::of(of("maxmemory_policy"), of("maxmemory")))
}

/// Loads the script.
pub(super) fn load() -> Cmd {
    let mut load = cmd("SCRIPT");
    load.arg("LOAD").arg(request::SCRIPT);
    load
}

/// Calls a script that no server knows, as scripts are called later: whether the user may do that.
fn unknown_script(fence: &Key) -> Cmd {
    let mut call = cmd("EVALSHA");
    let [_, _, item, queue] = keys(fence);
    call.arg("0".repeat(40)).arg(2).arg(item).arg(queue);
    call
}

/// The keys that `fence.lua` uses: the counter of fences, its note, and one of each form that items
/// have, at which nothing is stored.
fn keys(fence: &Key) -> [String; 4] {
    let queue = request::wire_key(fence.waiters().as_str()).into_owned();
    [fence.to_string(), format!("{fence}%life"), format!("{fence}%rights"), queue]
}

/// Raises the counter of fences above `floor`, and above all numbers of earlier lives of the server; and
/// fails if the user lacks a right that locks need.
pub(super) fn raise(fence: &Key, floor: u64) -> Cmd {
    let keys = keys(fence);
    let mut raise = cmd("EVAL");
    raise.arg(RAISE).arg(keys.len()).arg(&keys).arg(floor);
    raise
}

/// A number that was sent as text.
pub(super) fn number(answer: Value) -> Option<u64> {
    text(answer)?.parse().ok()
}

fn text(answer: Value) -> Option<String> {
    match answer {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// The reply to `TIME`.
pub(super) fn unix_time(answer: Value) -> Option<Duration> {
    let Value::Array(parts) = answer else { return None };
    let [seconds, micros] = <[Value; 2]>::try_from(parts).ok()?;
    let micros = number(micros).filter(|&micros| micros < 1_000_000)?;
    Some(Duration::new(number(seconds)?, micros as u32 * 1000))
}

/// A field of the reply to `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Checks that the server is suitable for locks.
fn examine(info: &str) -> Result<Life> {
    let version = field(info, "redis_version").unwrap_or_default();
    let mut numbers = version.split('.').map(str::parse::<u64>);
    let is_new = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= OLDEST,
        _ => false,
    };
    if !is_new {
        let is_version =
            version.len() <= 20 && version.bytes().all(|byte| b"0123456789.".contains(&byte));
        let version = if is_version { version } else { "of an unknown version" };
        return Err(Error::protocol(format!(
            "The server is Redis {version:?}, and memlock needs 6.2 or later: upgrade it."
        )));
    }
    // Valkey calls it `server_mode`.
    match field(info, "server_mode").or_else(|| field(info, "redis_mode")) {
        Some("cluster") => return Err(errors::of_reply("MOVED", "", None)),
        Some("sentinel") => {
            return Err(Error::config(
                "The server is a Sentinel: name the primary that it watches.",
            ));
        }
        _ => {}
    }
    let run = field(info, "run_id").ok_or_else(nonsense)?;
    Ok(Life(fnv1a(run.as_bytes())))
}

/// The surplus might be taken for the next reply.
pub(super) fn unasked() -> Error {
    Error::protocol(
        "The server said more than it was asked: it is not a Redis that memlock can use.",
    )
}

fn nonsense() -> Error {
    Error::protocol("The server's introduction is not that of a Redis.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsuitable_servers_are_refused_with_a_reason() {
        let info = |version: &str, mode: &str| {
            format!("# Server\r\nredis_version:{version}\r\nredis_mode:{mode}\r\nrun_id:abc\r\n")
        };
        assert!(examine(&info("7.0.15", "standalone")).is_ok());
        assert!(examine(&info("6.2.0", "standalone")).is_ok());
        for (version, mode, why) in [
            ("6.0.16", "standalone", "6.2"),
            ("x", "standalone", "\"of an unknown version\", and memlock needs 6.2"),
            ("", "standalone", "6.2"),
            ("7.0.15", "cluster", "Cluster"),
            ("7.0.15", "sentinel", "Sentinel"),
        ] {
            let error = examine(&info(version, mode)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let valkey = "redis_version:7.2.4\r\nserver_mode:cluster\r\nrun_id:abc\r\n";
        assert!(examine(valkey).unwrap_err().to_string().contains("Cluster"));
        assert!(examine("redis_version:7.0.0\r\n").is_err());
    }
}
