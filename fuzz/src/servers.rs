//! What servers of other protocols than memcached's send: whole connections through the store, byte
//! for byte. The input is the server, what is requested, how fast time passes, a program of
//! operations with its length before it, and the server's side: in it the byte 0xf5 ends a
//! connection, 0xf6 ends a packet, and 0xf7 stands for a good handshake.
//!
//! Whatever comes, nothing panics, hangs or grows; a batch that succeeds has a reply to each
//! operation; and an error is a sentence that can be shown, without the password.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::input::Input;
use super::time::Time;
use super::wire::{Peer, plain_connection};
use memlock_core::clock::Clock;
use memlock_core::error::Result;
use memlock_core::fuzzing::dial_these;
use memlock_core::name::{Key, Keyspace};
use memlock_core::store::{Epoch, Expiry, Op, Reply, Returns, Route, Store, Version, schemes};

/// A URL, at whose port the client is refused once the scripts are used up; and the handshake of a
/// suitable server.
const SERVERS: [(&str, &[u8]); 3] = [(
    "redis://:secret@127.0.0.1:1?connect_timeout=10ms",
    b"+OK\r\n$72\r\n# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrun_id:0123456789ab\r\n\r\n\
    *2\r\n$10\r\n1795170000\r\n$1\r\n5\r\n$4\r\nname\r\n$16\r\n1795170000000005\r\n$-1\r\n",
), (
    "postgresql://u:secret@127.0.0.1:1/d?connect_timeout=10ms&sslmode=disable",
    b"R\0\0\0\x08\0\0\0\0K\0\0\0\x0c\0\0\0\x07\0\0\0\x01Z\0\0\0\x05I\
    D\0\0\0=\0\x07\0\0\0\x017\0\0\0\x01f\0\0\0\x06150018\0\0\0\x03off\0\0\0\x0eread committed\0\0\0\x01u\0\0\0\x01tC\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I\
    C\0\0\0\x0aBEGIN\0D\0\0\x007\0\x06\0\0\0\x015\0\0\0\x101795170000000000\0\0\0\x03750\0\0\0\x02rc\0\0\0\x03off\xff\xff\xff\xffC\0\0\0\x0dSELECT 1\0C\0\0\0\x0bCOMMIT\0Z\0\0\0\x05I",
), (
    "mysql://u:secret@127.0.0.1:1/d?connect_timeout=10ms",
    b"Z\0\0\0\n5.5.5-10.11.19-MariaDB\0\x06\0\0\0b2nXN_p6\0\xfe\xf7\x08\x02\0\xff\x81\x15\0\0\0\0\0\0\x1d\0\0\0[J?<MP)xE-R5\0mysql_native_password\0\
    \x07\0\0\x02\0\0\0\x02\0\0\0\
    \x07\0\0\x01\0\0\0\n\0\0\0\x07\0\0\x02\0\0\0\n\0\0\0\x07\0\0\x03\0\0\0\n\0\0\0\x07\0\0\x04\0\0\0\n\0\0\0\
    \x01\0\0\x05\x03\x01\0\0\x06\0\x01\0\0\x07\0\x01\0\0\x08\0\x05\0\0\x09\xfe\0\0\n\0%\0\0\n\n6090582712\x101795170000000000\x0816777216\x05\0\0\x0b\xfe\0\0\n\0\
    \x01\0\0\x0c\x02\x01\0\0\x0d\0\x01\0\0\x0e\0\x05\0\0\x0f\xfe\0\0\n\0\x0c\0\0\x10\x07log_bin\x03OFF\x05\0\0\x11\xfe\0\0\n\0\
    \x01\0\0\x12\x01\x01\0\0\x13\0\x05\0\0\x14\xfe\0\0\x02\0\x07\0\0\x15\x06InnoDB\x05\0\0\x16\xfe\0\0\x02\0",
)];

/// They occur in no text in UTF-8.
const END_OF_CONNECTION: u8 = 0xf5;
const END_OF_PACKET: u8 = 0xf6;
const HANDSHAKE: u8 = 0xf7;

const PASSWORD: &[u8] = b"secret";

pub fn run(data: &[u8]) {
    // What the server itself says may be shown.
    if data.windows(PASSWORD.len()).any(|bytes| bytes == PASSWORD) {
        return;
    }
    let mut input = Input(data);
    let (url, handshake) = SERVERS[usize::from(input.byte()) % SERVERS.len()];
    let question = input.byte();
    let step = [1, 1000, 60_000, 700_000][usize::from(input.byte() % 4)];
    let program = input.chunk();
    let clock: Arc<dyn Clock> = Time::new(Duration::from_micros(step));
    let (_peers, streams): (Vec<Peer>, Vec<OwnedFd>) = input
        .0
        .split(|&byte| byte == END_OF_CONNECTION)
        .take(4)
        .map(|script| {
            let packets = script.split(|&byte| byte == END_OF_PACKET);
            plain_connection(packets.map(|packet| {
                let Some(at) = packet.iter().position(|&byte| byte == HANDSHAKE) else {
                    return packet.to_vec();
                };
                [&packet[..at], handshake, &packet[at + 1..]].concat()
            }))
        })
        .unzip();
    dial_these(streams.into_iter().map(std::net::TcpStream::from));
    let store = schemes::connect(url, &clock).expect("a good URL");
    if question == 0 {
        run_batches(&store, program);
    } else {
        ask(&store, question);
    }
    dial_these([]);
}

/// Runs the batches of the program.
fn run_batches(store: &Arc<dyn Store>, program: &[u8]) {
    let keys = Keyspace::default();
    let keys =
        [keys.lock(b"a"), keys.lock(b"b c").waiters(), keys.exact(b"number").expect("a key")];
    let route = Route::of(&keys[0]);
    let mut versions = vec![Version::new(Epoch::new(1, 1), 7)];
    for batch in program.split(|byte| byte % 8 == 7).take(8) {
        let ops: Vec<Op<'_>> = batch.iter().map(|&byte| op(byte, &keys, &versions)).collect();
        match store.run(route, &ops) {
            Ok(replies) => {
                assert_eq!(replies.len(), ops.len());
                for (op, reply) in ops.iter().zip(&replies) {
                    assert!(fits(op, reply), "{op:?}: {reply:?}");
                }
                versions.extend(replies.iter().filter_map(|reply| match reply {
                    Reply::Stored(stored) => Some(stored.version),
                    Reply::Value(item) => Some(item.version),
                    _ => None,
                }));
            }
            Err(failure) => shown(&failure.error.to_string()),
        }
    }
}

/// Whether an operation can have this reply.
fn fits(op: &Op<'_>, reply: &Reply) -> bool {
    match op {
        Op::Add { .. } => matches!(reply, Reply::Stored(_) | Reply::Written | Reply::Exists),
        Op::Get { .. } => matches!(reply, Reply::Value(_) | Reply::Missing),
        Op::CompareAndSet { .. } => matches!(
            reply,
            Reply::Stored(_) | Reply::Written | Reply::VersionMismatch | Reply::Missing
        ),
        Op::Delete { .. } => {
            matches!(reply, Reply::Deleted | Reply::VersionMismatch | Reply::Missing)
        }
        Op::Append { .. } | Op::Prepend { .. } => matches!(reply, Reply::Written | Reply::Missing),
        Op::Increment { .. } => matches!(reply, Reply::Number(_) | Reply::Missing),
    }
}

/// What a tool requests.
fn ask(store: &Arc<dyn Store>, question: u8) {
    let mut tool = match store.admin(0) {
        Ok(tool) => tool,
        Err(error) => return shown(&error.to_string()),
    };
    let keys = ["lock:a", "lock:b%wait"].map(str::to_owned);
    fn said<T>(result: Result<T>) {
        if let Err(error) = result {
            shown(&error.to_string());
        }
    }
    match question % 4 {
        0 => said(tool.keys(&|_| true)),
        1 => said(tool.values(&keys).inspect(|values| assert_eq!(values.len(), keys.len()))),
        2 => said(tool.health(Duration::from_secs(30)).inspect(|findings| {
            for finding in findings {
                shown(&finding.said);
            }
        })),
        _ => said(tool.round_trip()),
    }
}

fn shown(text: &str) {
    assert!(!text.as_bytes().windows(PASSWORD.len()).any(|bytes| bytes == PASSWORD), "{text}");
    assert!(text.len() < 4096, "{text}");
}

fn op<'a>(byte: u8, keys: &'a [Key; 3], versions: &[Version]) -> Op<'a> {
    let more = byte >> 3;
    let key = &keys[usize::from(more % 3)];
    let value: &[u8] = [&b""[..], b"value\r\n+OK\r\n", b"v"][usize::from(more % 3)];
    let expiry = [
        Expiry::After(Duration::from_secs(30)),
        Expiry::At(Duration::from_secs(1_795_170_000)),
        Expiry::Never,
        Expiry::Unchanged(None),
    ][usize::from(more % 4)];
    let returns = [Returns::Nothing, Returns::Version, Returns::Fence][usize::from(more / 4) % 3];
    let version = versions[versions.len().saturating_sub(1 + usize::from(more / 8))];
    match byte % 8 {
        0 => Op::add(key, value, expiry, returns),
        1 => Op::Get { key, fence: more.is_multiple_of(2) },
        2 => Op::CompareAndSet { key, version, value, expiry, returns },
        3 => Op::Delete { key, version },
        4 => Op::Append { key, value },
        5 => Op::Prepend { key, value },
        _ => Op::Increment {
            key,
            by: u64::from(more),
            initial: (more.is_multiple_of(2)).then_some((u64::MAX, expiry)),
        },
    }
}
