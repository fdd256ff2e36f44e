//! What a server sends to the command's tools, which look past the library: `stats`, all keys,
//! values. The input is what is asked, with a number, and the server's side, in which the byte 0
//! ends a packet.
//!
//! Whatever comes, the result is what a slow and simple reader finds in the same bytes; an error is
//! a sentence that can be shown; and what is sent are the requests and nothing else, also for keys
//! that the server has named.

use std::collections::HashMap;
use std::net::TcpStream;
use std::time::Duration;

use super::input::Input;
use super::wire::{Peer, plain_connection};
use memlock_core::fuzzing::Tool;
use memlock_core::name::Keyspace;
use memlock_core::store::admin::{Content, Value};

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (question, number) = (input.byte(), input.byte());
    let packets: Vec<&[u8]> = input.0.split(|&byte| byte == 0).collect();
    let sent = packets.concat();
    // It is waited for, by sleeping.
    if sent.windows(4).filter(|four| four == b"BUSY").count() > 1 {
        return;
    }
    let (mut peer, client) = plain_connection(packets.iter().map(|packet| packet.to_vec()));
    let mut tool = Tool::over(TcpStream::from(client)).expect("an open socket");
    match question % 5 {
        0 => {
            if let Some(stats) = succeeded(tool.stats("stats")) {
                assert_eq!(Some(stats), expected_stats(&sent));
            }
            assert_eq!(peer.take_all(), b"stats\r\n");
        }
        1 => {
            if succeeded(tool.admin().round_trip()).is_some() {
                assert!(sent.starts_with(b"MN"));
            }
            assert_eq!(peer.take_all(), b"mn\r\n");
        }
        2 => {
            if let Some(keys) =
                succeeded(tool.admin().keys(&|key| Keyspace::default().read(key).is_some()))
            {
                assert!(keys.len() <= sent.split(|&byte| byte == b'\n').count());
                ask_for(&keys);
            }
            let asked = String::from_utf8(peer.take_all()).expect("text");
            assert_eq!(asked.replace("lru_crawler metadump hash\r\n", ""), "");
        }
        3 => {
            let keys: Vec<String> = (0..number).map(|number| format!("lock:{number}")).collect();
            if let Some(values) = succeeded(tool.admin().values(&keys)) {
                let mut rest = &sent[..];
                for value in &values {
                    assert_eq!(Some(value), expected_value(&mut rest).as_ref());
                }
                assert_eq!(values.len(), keys.len());
            }
            check_asked(&keys, &mut peer, false);
        }
        _ => {
            let findings =
                succeeded(tool.admin().health(Duration::from_secs(number.max(1).into())));
            for finding in findings.into_iter().flatten() {
                can_be_shown(&finding.said);
            }
        }
    }
}

/// What was understood; what was not has a sentence.
fn succeeded<T>(answer: memlock_core::Result<T>) -> Option<T> {
    answer
        .inspect_err(|error| {
            let said = error.to_string();
            assert!(said.ends_with('.'), "{said}");
            can_be_shown(&said);
        })
        .ok()
}

fn can_be_shown(said: &str) {
    assert!(said.chars().all(|c| !c.is_control()), "{said:?} would spoil a terminal");
}

/// A key that a server has named is asked for as it is, one request for each.
fn ask_for(keys: &[String]) {
    let (mut peer, client) = plain_connection(std::iter::empty());
    let mut tool = Tool::over(TcpStream::from(client)).expect("an open socket");
    let _ = tool.admin().values(keys);
    check_asked(keys, &mut peer, true);
}

fn check_asked(keys: &[String], peer: &mut Peer, may_be_whole: bool) {
    let asked = peer.take_all();
    let all: Vec<u8> =
        keys.iter().flat_map(|key| format!("mg {key} t v\r\n").into_bytes()).collect();
    assert!(all.starts_with(&asked), "{:?}", String::from_utf8_lossy(&asked));
    let lines = asked.split_inclusive(|&byte| byte == b'\n').count();
    assert!(!may_be_whole || lines == keys.len().min(100), "a batch of them");
}

fn expected_stats(mut sent: &[u8]) -> Option<HashMap<String, String>> {
    let mut stats = HashMap::new();
    loop {
        let text = String::from_utf8_lossy(line(&mut sent)?).trim_end().to_owned();
        if text == "END" {
            return Some(stats);
        }
        let (name, value) = match text.strip_prefix("STAT ")?.split_once(' ') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => (text["STAT ".len()..].to_owned(), String::new()),
        };
        stats.insert(name, value);
    }
}

/// Larger ones are passed over.
const LARGEST_VALUE: usize = 1024 * 1024;

fn expected_value(rest: &mut &[u8]) -> Option<Option<Value>> {
    let text = String::from_utf8_lossy(line(rest)?).trim_end().to_owned();
    let words: Vec<&str> = text.split(' ').collect();
    if words == ["EN"] {
        return Some(None);
    }
    let ("VA", length) = (words[0], words.get(1)?.parse::<usize>().ok()?) else { return None };
    let value = rest.get(..length)?;
    let value = if length <= LARGEST_VALUE {
        Content::Bytes(value.to_vec())
    } else {
        Content::TooLarge(length)
    };
    *rest = rest[length..].strip_prefix(b"\r\n")?;
    let ttl = words[2..].iter().find_map(|word| word.strip_prefix('t'));
    Some(Some((value, ttl.and_then(|ttl| ttl.parse().ok()).map(Duration::from_secs))))
}

fn line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|&byte| byte == b'\n')?;
    let (line, tail) = rest.split_at(end + 1);
    *rest = tail;
    Some(line)
}
