//! Servers that answer, but so slowly that they never come to an end: each question has one
//! deadline.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::sentences::ALL;
use crate::tool::{Running, memlock_at};

/// Between two pieces of an answer: less than `io_timeout`, so that none is late by itself.
const PACE: Duration = Duration::from_millis(50);

/// How a server answers a command line; `None`: as it likes, piece by piece without end.
type Answers = fn(&str) -> Option<&'static str>;

/// Starts a server that answers some commands, and drips `piece` at the others. It ends with the
/// test process.
fn dripping(piece: &'static str, answers: Answers) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("memcached://{}?io_timeout=600ms&outage=1s", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            thread::spawn(move || serve(&client, piece, answers));
        }
    });
    url
}

fn serve(mut client: &TcpStream, piece: &str, answers: Answers) {
    let commands = BufReader::new(client.try_clone().unwrap());
    for command in commands.lines().map_while(Result::ok) {
        match answers(&command) {
            Some(answer) => {
                if client.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
            // Until the other end closes the connection.
            None => {
                while client.write_all(piece.as_bytes()).is_ok() {
                    thread::sleep(PACE);
                }
            }
        }
    }
}

const STATS: &str = "STAT pid 1\r\nSTAT uptime 100\r\nSTAT time 1795170000\r\nSTAT version 1.6.38\r\n\
    STAT max_connections 1024\r\nSTAT curr_connections 1\r\nSTAT limit_maxbytes 67108864\r\nEND\r\n";
const SETTINGS: &str = "STAT cas_enabled yes\r\nSTAT evictions off\r\nEND\r\n";

fn nothing(_: &str) -> Option<&'static str> {
    None
}

fn stats_only(command: &str) -> Option<&'static str> {
    match command {
        "stats" => Some(STATS),
        "stats settings" => Some(SETTINGS),
        _ => None,
    }
}

fn keys_too(command: &str) -> Option<&'static str> {
    match command {
        "lru_crawler metadump hash" => {
            Some("key=lock%3Am exp=-1 la=1 cas=1 fetch=no cls=1 size=70\r\nEND\r\n")
        }
        _ => stats_only(command),
    }
}

const KEY: &str = "key=lock%3Am exp=-1 la=1 cas=1 fetch=no cls=1 size=70\r\n";

/// Lines, bytes, keys and values.
const DRIPS: [(&str, Answers); 4] = [
    ("STAT a 1\r\n", nothing),
    ("x", nothing),
    (KEY, stats_only),
    ("EN\r\nVA 9000000 t1\r\nx", keys_too),
];

#[test]
fn every_command_ends_at_a_server_that_drips() {
    thread::scope(|scope| {
        for (piece, answers) in DRIPS {
            let url = dripping(piece, answers);
            for args in ALL {
                let command = memlock_at(&url, args);
                scope.spawn(move || {
                    // It is given up after a time, and killed.
                    let said = Running::start(command).ends();
                    assert!(!matches!(said.code, Some(0) | None), "{piece:?} {args:?}: {said:?}");
                });
            }
        }
    });
}
