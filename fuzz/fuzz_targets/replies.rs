//! What a server sends: whole connections through the memcached store, byte for byte. The input is
//! how fast time passes, a program of operations with its length before it, and the server's side:
//! text in which the byte 0 ends a packet, 1 ends a connection, 2 stands for a good handshake, and
//! 3 for that of a server that refuses to store when it is full.
//!
//! Whatever comes, a batch that succeeds has the very replies that a slow and simple reader finds
//! in the same bytes, and the requests on the wire are the operations and nothing else.

#![no_main]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use memlock_core::clock::Clock;
use memlock_core::fuzzing::dial_these;
use memlock_core::lease::Ttl;
use memlock_core::name::{Key, Keyspace};
use memlock_core::store::{self, Incarnation, Op, Reply, Route, Version};
use memlock_fuzz::wire::{Peer, connection, next_reply};
use memlock_fuzz::{Input, Time};

const HANDSHAKE: &[u8] =
    b"STAT pid 5\r\nSTAT uptime 100\r\nSTAT time 1795170000\r\nSTAT version 1.6.18\r\nEND\r\n\
    STAT cas_enabled yes\r\nEND\r\n";
const REFUSING: &[u8] =
    b"STAT pid 5\r\nSTAT uptime 100\r\nSTAT time 1795170000\r\nSTAT version 1.6.45\r\nEND\r\n\
    STAT evictions off\r\nSTAT cas_enabled yes\r\nEND\r\n";
const LIFE: Incarnation = Incarnation { boot: 1_795_169_900, pid: 5 };
/// Above what a client writes in one go.
static LARGE: [u8; 20_000] = [b'x'; 20_000];

fuzz_target!(|data: &[u8]| {
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
    // Nobody listens at port 1, where the client dials for real once the scripts are used up.
    let store =
        store::connect("memcached://127.0.0.1:1?connect_timeout=10ms", &clock).expect("a good URL");
    let keys = [Keyspace::default().lock(b"a"), Keyspace::default().lock(b"b c").waiters()];
    let route = Route::of(&keys[0]);
    let mut versions = vec![Version { incarnation: LIFE, cas: 7 }];
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
                for (op, reply) in ops.iter().zip(&replies) {
                    check(op, reply, served.as_deref_mut());
                }
                versions.extend(replies.iter().filter_map(|reply| match reply {
                    Reply::Stored(version) => Some(*version),
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
});

fn op<'a>(byte: u8, keys: &'a [Key; 2], versions: &[Version]) -> Op<'a> {
    let more = byte >> 3;
    let key = &keys[usize::from(more % 2)];
    let value: &[u8] = [&b""[..], b"value\r\nEN\r\n", b"v", &LARGE][usize::from(more / 2 % 4)];
    let ttl = Ttl::covering(Duration::from_secs(
        [1, 30, 31 * 86_400, 366 * 86_400][usize::from(more / 8)],
    ));
    let version = match more / 8 {
        0 => Version { incarnation: Incarnation { boot: 1, pid: 1 }, cas: 7 },
        back => versions[versions.len().saturating_sub(back.into())],
    };
    match byte % 8 {
        1 if more > 1 => {
            // The servers that are met speak of November 2026.
            let ttl = [ttl, Ttl::Until(1_795_170_000), Ttl::Until(5), Ttl::Never]
                [usize::from(more / 2 % 4)];
            let version = Some(version).filter(|_| more / 8 != 1);
            Op::Put {
                key,
                version,
                flags: [0, 5, u32::MAX, 1][usize::from(more / 2 % 4)],
                value,
                ttl,
            }
        }
        0 => Op::Add { key, value, ttl },
        2 => Op::CompareAndSet { key, version, value, ttl },
        3 => Op::Delete { key, version },
        4 => Op::Append { key, value },
        5 => Op::Prepend { key, value },
        6 => Op::Increment {
            key,
            by: u64::from(more),
            initial: (more % 4 > 1).then_some((u64::MAX, ttl)),
        },
        _ => Op::Get { key },
    }
}

/// Whether each of these operations was answered, plainly and in time.
fn all_was_well(ops: &[Op<'_>], peer: &mut Peer) -> bool {
    let life = peer.life();
    peer.is_between_packets()
        && ops.iter().all(|op| match op {
            op if !op.is_of(life) => true,
            op => next_reply(op, peer, true).is_some(),
        })
}

/// Whether the reply is that which the server gave to this very request.
fn check(op: &Op<'_>, reply: &Reply, mut served: Option<&mut Peer>) {
    let life = served.as_mut().map(|peer| peer.life());
    let has_version = matches!(
        op,
        Op::CompareAndSet { .. } | Op::Delete { .. } | Op::Put { version: Some(_), .. }
    );
    if has_version && life.is_none_or(|life| !op.is_of(life)) {
        return assert_eq!(
            *reply,
            Reply::VersionMismatch,
            "a version of another life changes nothing"
        );
    }
    let peer = served.expect("a reply needs a server");
    assert_eq!(
        Some(reply),
        next_reply(op, peer, false).as_ref(),
        "the reply is that to the request"
    );
}
