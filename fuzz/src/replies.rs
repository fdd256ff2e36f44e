//! What a server sends: whole connections through the memcached store, byte for byte. The input is
//! how fast time passes, a program of operations with its length before it, and the server's side:
//! text in which the byte 0 ends a packet, 1 ends a connection, 2 stands for a good handshake, and
//! 3 for that of a server that refuses to store when it is full.
//!
//! Whatever comes, a batch that succeeds has the very replies that a slow and simple reader finds
//! in the same bytes, and the requests on the wire are the operations and nothing else.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::input::Input;
use super::time::Time;
use super::wire::{Peer, connection, next_replies};
use memlock_core::clock::Clock;
use memlock_core::fuzzing::dial_these;
use memlock_core::name::{Key, Keyspace};
use memlock_core::store::memcached::Life;
use memlock_core::store::{Epoch, Expiry, Op, Reply, Returns, Route, Version, schemes};

const HANDSHAKE: &[u8] =
    b"STAT pid 5\r\nSTAT uptime 100\r\nSTAT time 1795170000\r\nSTAT version 1.6.18\r\nEND\r\n\
    STAT cas_enabled yes\r\nEND\r\nEN O0\r\n";
const REFUSING: &[u8] =
    b"STAT pid 5\r\nSTAT uptime 100\r\nSTAT time 1795170000\r\nSTAT version 1.6.45\r\nEND\r\n\
    STAT evictions off\r\nSTAT cas_enabled yes\r\nEND\r\nEN O0\r\n";
const LIFE: Life = Life { boot: 1_795_169_900, pid: 5 };
/// Above what a client writes in one go.
static LARGE: [u8; 20_000] = [b'x'; 20_000];

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let step = [1, 1000, 60_000, 700_000][usize::from(input.byte() % 4)];
    let program = input.chunk();
    let clock: Arc<dyn Clock> = Time::new(Duration::from_micros(step));
    let (mut peers, streams): (Vec<Peer>, Vec<OwnedFd>) = input
        .0
        .split(|&byte| byte == 1)
        .take(4)
        .map(|script| {
            let packets = script.split(|&byte| byte == 0);
            connection(packets.map(|packet| {
                let Some(at) = packet.iter().position(|&byte| byte == 2 || byte == 3) else {
                    return packet.to_vec();
                };
                let greeting = if packet[at] == 2 { HANDSHAKE } else { REFUSING };
                [&packet[..at], greeting, &packet[at + 1..]].concat()
            }))
        })
        .unzip();
    dial_these(streams.into_iter().map(std::net::TcpStream::from));
    // The client is refused once the scripts are used up.
    let store = schemes::connect("memcached://127.0.0.1:1?connect_timeout=10ms", &clock)
        .expect("a good URL");
    let keys = [Keyspace::default().lock(b"a"), Keyspace::default().lock(b"b c").waiters()];
    let route = Route::of(&keys[0]);
    let mut versions = vec![LIFE.version(7)];
    for batch in program.split(|byte| byte % 8 == 7).take(8) {
        let ops: Vec<Op<'_>> = batch.iter().map(|&byte| op(byte, &keys, &versions)).collect();
        let result = store.run(route, &ops);
        let sent: Vec<usize> = peers.iter_mut().map(|peer| peer.take_requests()).collect();
        match result {
            Ok(replies) => {
                assert_eq!(replies.len(), ops.len());
                // Where nothing was written, nothing was read.
                let served = sent.iter().rposition(|&length| length > 0);
                let mut served = served.map(|place| &mut peers[place]);
                if let Some(peer) = &mut served {
                    peer.life();
                    assert!(peer.is_between_packets(), "what was there before is no reply to this");
                }
                check(&ops, &replies, served);
                versions.extend(replies.iter().filter_map(|reply| match reply {
                    Reply::Stored(stored) => Some(stored.version),
                    Reply::Value(item) => Some(item.version),
                    _ => None,
                }));
            }
            Err(failure) => {
                let said = failure.error.to_string();
                let arrived = sent.iter().any(|&length| length > 0);
                let changing = ops.iter().filter(|op| op.changes()).count();
                let was_refused = changing < 2 && said.contains("refused");
                assert!(failure.sent || !arrived || was_refused, "{said}");
                let served = sent.iter().rposition(|&length| length > 0);
                if let Some(place) = served
                    && step == 1
                {
                    assert!(!all_was_well(&ops, &mut peers[place]), "{said}");
                }
            }
        }
    }
    dial_these([]);
}

fn op<'a>(byte: u8, keys: &'a [Key; 2], versions: &[Version]) -> Op<'a> {
    let more = byte >> 3;
    let key = &keys[usize::from(more % 2)];
    let value: &[u8] = [&b""[..], b"value\r\nEN\r\n", b"v", &LARGE][usize::from(more / 2 % 4)];
    let expiry = Expiry::After(Duration::from_secs(
        [1, 30, 31 * 86_400, 366 * 86_400][usize::from(more / 8)],
    ));
    let version = match more / 8 {
        0 => Version::new(Epoch::new(1, 1), 7),
        back => versions[versions.len().saturating_sub(back.into())],
    };
    let returns = if more.is_multiple_of(3) { Returns::Fence } else { Returns::Version };
    match byte % 8 {
        1 if more > 1 => {
            // The servers that are met speak of November 2026.
            let expiry = [
                expiry,
                Expiry::At(Duration::from_secs(1_795_170_000)),
                Expiry::At(Duration::from_secs(5)),
                Expiry::Never,
            ][usize::from(more / 2 % 4)];
            let returns = Returns::Nothing;
            if more / 8 == 1 {
                Op::add(key, value, expiry, returns)
            } else {
                let version = version.with_note([0, 5, u32::MAX, 1][usize::from(more / 2 % 4)]);
                Op::CompareAndSet { key, version, value, expiry, returns }
            }
        }
        1 => Op::Get { key, fence: true },
        0 => Op::add(key, value, expiry, returns),
        2 => Op::CompareAndSet { key, version, value, expiry, returns },
        3 => Op::Delete { key, version },
        4 => Op::Append { key, value },
        5 => Op::Prepend { key, value },
        6 => Op::Increment {
            key,
            by: u64::from(more),
            initial: (more % 4 > 1).then_some((u64::MAX, expiry)),
        },
        _ => Op::get(key),
    }
}

/// Whether each of these operations was answered, plainly and in time.
fn all_was_well(ops: &[Op<'_>], peer: &mut Peer) -> bool {
    peer.life();
    peer.is_between_packets() && next_replies(ops, peer, true).is_some()
}

/// Whether the replies are those which the server gave to these very requests.
fn check(ops: &[Op<'_>], replies: &[Reply], served: Option<&mut Peer>) {
    let Some(peer) = served else {
        let unsent = |op: &Op<'_>| matches!(op, Op::CompareAndSet { .. } | Op::Delete { .. });
        assert!(ops.iter().all(unsent), "a reply needs a server");
        assert!(
            replies.iter().all(|reply| *reply == Reply::VersionMismatch),
            "a version of another life changes nothing"
        );
        return;
    };
    let expected = next_replies(ops, peer, false);
    assert_eq!(Some(replies), expected.as_deref(), "the replies are those to the requests");
}
