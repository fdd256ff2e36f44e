//! The rate of pairs of one Rust process on one server or SQLite file: of lock and unlock, or of
//! acquire and release.
//!
//! ```text
//! memlock-bench CONTENDER URL seconds=T   warm up for T/4, then run for T seconds
//! memlock-bench CONTENDER URL count=N     exactly N pairs and no warm-up, for counting commands
//! ```
//!
//! Prints one line for `benches/run`, in the form that `pairs.c` describes.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program's one line of result goes there"
)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use memlock_core::{Client, Release};

mod raw_sqlite;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Pair = Box<dyn FnMut() -> Result<()>>;

const LEASE: Duration = Duration::from_secs(30);
const PERMITS: u32 = 5;

/// How often the clock is read: rarely enough to cost little.
const PAIRS_PER_LOOK: u64 = 16;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match race(&arguments) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("memlock-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn race(arguments: &[String]) -> Result<String> {
    let [name, url, limit] = arguments else {
        return Err(
            "usage: memlock-bench raw|memlock|semaphore|raw-sqlite URL seconds=T|count=N".into()
        );
    };
    let mut pair = match name.as_str() {
        "raw" => raw(url)?,
        "memlock" => memlock(url)?,
        "semaphore" => semaphore(url)?,
        "raw-sqlite" => raw_sqlite::pair(url)?,
        other => return Err(format!("no contender is called '{other}'").into()),
    };
    let limit = Limit::parse(limit)?;
    if let Limit::Time(time) = limit {
        run(&mut pair, Limit::Time(time / 4))?;
    }
    let begin = Instant::now();
    let pairs = run(&mut pair, limit)?;
    let took = begin.elapsed().as_secs_f64();
    // The cast is exact far beyond any number of pairs that a run can reach.
    let rate = pairs as f64 / took;
    Ok(format!("contender={name} unit=pair units={pairs} seconds={took:.6} per_second={rate:.1}"))
}

#[derive(Clone, Copy)]
enum Limit {
    Count(u64),
    Time(Duration),
}

impl Limit {
    fn parse(text: &str) -> Result<Self> {
        match text.split_once('=') {
            Some(("count", number)) => Ok(Self::Count(number.parse()?)),
            Some(("seconds", number)) => {
                Ok(Self::Time(Duration::try_from_secs_f64(number.parse()?)?))
            }
            _ => Err(format!("'{text}' is neither seconds=T nor count=N").into()),
        }
    }
}

/// Runs pairs up to `limit` and returns their number.
fn run(pair: &mut Pair, limit: Limit) -> Result<u64> {
    let begin = Instant::now();
    let mut pairs = 0;
    loop {
        let look = match limit {
            Limit::Count(count) => count,
            Limit::Time(_) => PAIRS_PER_LOOK,
        };
        for _ in 0..look {
            pair()?;
        }
        pairs += look;
        match limit {
            Limit::Time(time) if begin.elapsed() < time => {}
            _ => return Ok(pairs),
        }
    }
}

/// The floor: the minimum of bytes and system calls for a lock and a delete of only that lock, with
/// every reply checked and no library in between. The same commands as `raw` in `pairs.c`.
fn raw(url: &str) -> Result<Pair> {
    let mut stream =
        TcpStream::connect(url.strip_prefix("memcached://").ok_or("raw wants a memcached")?)?;
    stream.set_nodelay(true)?;
    // About as long as memlock's value, which contains the host name; TTL = lease + 1, as there.
    let value = "0123456789abcdef".repeat(5);
    let add = format!("ms lock:bench {} ME T{} c\r\n{value}\r\n", value.len(), LEASE.as_secs() + 1);
    let mut delete = Vec::with_capacity(64);
    Ok(Box::new(move || {
        let mut reply = [0; 64];
        let line = ask(&mut stream, add.as_bytes(), &mut reply)?;
        let cas = line.strip_prefix(b"HD c").ok_or_else(|| unexpected("ms", line))?;
        delete.clear();
        delete.extend_from_slice(b"md lock:bench C");
        delete.extend_from_slice(cas);
        delete.extend_from_slice(b"\r\n");
        let line = ask(&mut stream, &delete, &mut reply)?;
        if line == b"HD" { Ok(()) } else { Err(unexpected("md", line)) }
    }))
}

/// Sends one command and reads its reply line, without the CR LF.
fn ask<'r>(stream: &mut TcpStream, command: &[u8], reply: &'r mut [u8]) -> Result<&'r [u8]> {
    stream.write_all(command)?;
    let mut len = 0;
    // One reply is outstanding, so the end of the line is the end of the data.
    while !reply[..len].ends_with(b"\r\n") {
        match stream.read(&mut reply[len..])? {
            0 => return Err("the server hung up, or answered a line that is too long".into()),
            got => len += got,
        }
    }
    Ok(&reply[..len - 2])
}

fn unexpected(command: &str, line: &[u8]) -> Box<dyn Error> {
    format!("{command} answered '{}'", line.escape_ascii()).into()
}

/// memlock as a Rust program uses it.
fn memlock(url: &str) -> Result<Pair> {
    let client = Client::connect(url)?;
    let mutex = client.mutex("bench", LEASE)?;
    Ok(Box::new(move || match mutex.lock()?.unlock()? {
        Release::Released => Ok(()),
        other => Err(format!("unlock answered {other:?}").into()),
    }))
}

/// One permit of a semaphore without contention.
fn semaphore(url: &str) -> Result<Pair> {
    let client = Client::connect(url)?;
    let semaphore = client.semaphore("bench", PERMITS, LEASE)?;
    Ok(Box::new(move || match semaphore.acquire()?.release()? {
        Release::Released => Ok(()),
        other => Err(format!("release answered {other:?}").into()),
    }))
}
