//! Datagrams that reach a listener: any host may send them. The input is split at `|` into
//! datagrams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use memlock_core::fuzzing::{datagram, notifier};
use memlock_core::notify::{Listener, Notifier, Reach, Successors, WakeAddress, WakeMessage};
use memlock_core::wait_id::WaitId;

struct ListenerPool {
    notifier: Arc<dyn Notifier>,
    listener: Arc<dyn Listener>,
    address: WakeAddress,
    stranger: UdpSocket,
}

/// Two waits go on.
const LIVE: [WaitId; 2] = [WaitId(7), WaitId(0xfeed_face_0123_4567)];

static POOL: LazyLock<ListenerPool> = LazyLock::new(|| {
    let notifier = notifier();
    let listener = notifier.take();
    let address = listener
        .address(Some(Ipv4Addr::LOCALHOST.into()), WaitId(1))
        .expect("a listener on the loopback");
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket on the loopback");
    ListenerPool { notifier, listener, address, stranger }
});

pub fn run(data: &[u8]) {
    let ListenerPool { notifier, listener, address, stranger } = &*POOL;
    let datagrams: Vec<&[u8]> = data.split(|&byte| byte == b'|').take(24).collect();
    for datagram in &datagrams {
        if stranger.send_to(datagram, address.socket()).is_err() {
            // Longer than a datagram can be.
            return drain(listener);
        }
    }
    // Those for us come in their order; all else is passed over.
    for expected in datagrams.iter().filter_map(|datagram| reference(datagram)) {
        assert_eq!(listener.heard(&LIVE), Some(expected), "{:?}", String::from_utf8_lossy(data));
        assert_eq!(notifier.reach(), Reach::Proven);
    }
    assert_eq!(listener.heard(&LIVE), None, "{:?}", String::from_utf8_lossy(data));

    // What we write is such a datagram.
    let micros = data
        .iter()
        .fold(data.len() as u64, |hash, &byte| hash.wrapping_mul(31).wrapping_add(byte.into()))
        % 50_001;
    let known =
        (0..data.first().map_or(0, |&byte| byte % 9)).map(|next| (*address, WaitId(next.into())));
    let message = WakeMessage { after: Duration::from_micros(micros), successors: known.collect() };
    assert_eq!(reference(&datagram(LIVE[1], message)), Some(message));
    assert!(notifier.send(*address, LIVE[1], message), "somebody has that listener");
    assert_eq!(listener.heard(&LIVE), Some(message));
}

fn drain(listener: &Arc<dyn Listener>) {
    while listener.heard(&LIVE).is_some() {}
}

/// What a datagram tells one of ours: `memlock/1 <16 hex digits>[ <microseconds up to 50,000>[
/// <address>#<16 hex digits>]...]`.
fn reference(datagram: &[u8]) -> Option<WakeMessage> {
    // The longest: eight ids, a number and seven addresses of 64 bytes.
    let datagram = Some(datagram).filter(|datagram| datagram.len() <= 10 + 16 + 6 + 7 * 82)?;
    let mut fields =
        datagram.strip_prefix(b"memlock/1 ")?.split(|&byte| byte == b' ').map(str::from_utf8);
    let id = fields.next()?.ok()?;
    let micros = fields.next().unwrap_or(Ok("0")).ok()?;
    let is_live = LIVE.iter().any(|live| live.to_string() == id);
    let is_number =
        (1..=5).contains(&micros.len()) && micros.bytes().all(|byte| byte.is_ascii_digit());
    let micros = micros.parse().ok().filter(|&micros| is_live && is_number && micros <= 50_000)?;
    let successors = fields.map_while(|field| {
        let (address, id) = field.ok()?.split_once('#')?;
        let is_id =
            id.len() == 16 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let id = u64::from_str_radix(id, 16).ok().filter(|_| is_id)?;
        let address = address.parse().ok().filter(|_| address.len() <= 64).filter(can_be_woken)?;
        Some((WakeAddress::udp(address)?, WaitId(id)))
    });
    Some(WakeMessage {
        after: Duration::from_micros(micros),
        successors: successors.collect::<Successors>(),
    })
}

/// Whether it is one program's own address.
fn can_be_woken(address: &SocketAddr) -> bool {
    let crowd = match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_multicast() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_multicast() || ip.is_unspecified(),
    };
    address.port() != 0 && !crowd
}
