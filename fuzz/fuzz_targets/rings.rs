//! Datagrams that reach a bell: anybody may send them. The input is split at `|` into datagrams.

#![no_main]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use memlock_core::fuzzing::{bells, ring};
use memlock_core::wait::bell::{Bell, Bells};
use memlock_core::wait::entries::WaitId;

struct Tower {
    bells: Arc<dyn Bells>,
    bell: Arc<dyn Bell>,
    address: SocketAddr,
    stranger: UdpSocket,
}

/// Two waits go on.
const LIVE: [WaitId; 2] = [WaitId(7), WaitId(0xfeed_face_0123_4567)];

static TOWER: LazyLock<Tower> = LazyLock::new(|| {
    let bells = bells();
    let bell = bells.take(Some(Ipv4Addr::LOCALHOST.into()));
    let address = bell.address(WaitId(1)).expect("a bell on the loopback");
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket on the loopback");
    Tower { bells, bell, address, stranger }
});

fuzz_target!(|data: &[u8]| {
    let Tower { bells, bell, address, stranger } = &*TOWER;
    let datagrams: Vec<&[u8]> = data.split(|&byte| byte == b'|').take(24).collect();
    for datagram in &datagrams {
        if stranger.send_to(datagram, address).is_err() {
            // Longer than a datagram can be.
            return drain(bell);
        }
    }
    // Those for us come in their order; all else is passed over.
    for expected in datagrams.iter().filter_map(|datagram| reference(datagram)) {
        assert_eq!(bell.heard(&LIVE), Some(expected), "{:?}", String::from_utf8_lossy(data));
        assert!(bells.are_heard());
    }
    assert_eq!(bell.heard(&LIVE), None, "{:?}", String::from_utf8_lossy(data));

    // What we write is such a datagram.
    let micros =
        data.iter().fold(data.len() as u64, |hash, &byte| hash.wrapping_mul(31).wrapping_add(byte.into()))
            % 50_001;
    let after = Duration::from_micros(micros);
    assert_eq!(reference(&ring(LIVE[1], after)), Some(after));
    assert!(bells.ring(*address, LIVE[1], after), "somebody has that bell");
    assert_eq!(bell.heard(&LIVE), Some(after));
});

fn drain(bell: &Arc<dyn Bell>) {
    while bell.heard(&LIVE).is_some() {}
}

/// When a datagram tells one of ours to come: `memlock/1 <16 hex digits>[ <microseconds up to 50,000>]`.
fn reference(datagram: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(datagram).ok()?.strip_prefix("memlock/1 ")?;
    let (id, micros) = text.split_once(' ').unwrap_or((text, "0"));
    let is_live = LIVE.iter().any(|live| live.to_string() == id);
    // A datagram has room for five digits.
    let is_number = (1..=5).contains(&micros.len()) && micros.bytes().all(|byte| byte.is_ascii_digit());
    let micros = micros.parse().ok().filter(|&micros| is_live && is_number && micros <= 50_000)?;
    Some(Duration::from_micros(micros))
}
