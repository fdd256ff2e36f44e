//! The private parts that the targets in `fuzz/` need. `cargo fuzz` gives `--cfg fuzzing`; in any other build
//! this file is not there.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::name::{Key, Keyspace};
use crate::owner::Token;
use crate::wait::bell::udp::{self, UdpBells};
use crate::wait::bell::{Bells, Setting};
use crate::wait::entries::WaitId;

thread_local! {
    static STREAMS: RefCell<VecDeque<TcpStream>> = const { RefCell::new(VecDeque::new()) };
}

/// The sockets that this thread's next connections to a memcached get, in their order; afterwards it dials for real.
pub fn dial_these(streams: impl IntoIterator<Item = TcpStream>) {
    STREAMS.with_borrow_mut(|waiting| *waiting = streams.into_iter().collect());
}

pub(crate) fn dialled() -> Option<TcpStream> {
    STREAMS.with_borrow_mut(VecDeque::pop_front)
}

/// Whether a lock's value was written by the acquisition that `token` names.
pub fn is_ours(value: &[u8], token: Token) -> bool {
    crate::owner::is_ours(value, token)
}

/// Everything but visible ASCII, and `%`, as `%XX`.
pub fn percent_encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    crate::name::percent_encode(bytes, &mut text);
    text
}

/// The bytes of such a text.
pub fn percent_decode(text: &str) -> Option<Vec<u8>> {
    crate::name::percent_decode(text)
}

/// The key of one item of a distinct list.
pub fn list_item(keys: &Keyspace, kind: char, generation: &str, rest: &[u8]) -> Key {
    keys.list_item(kind, generation, rest)
}

/// What the URL's `bell` asks for: an address and its ports, or `None` for `off`.
///
/// # Errors
/// When it cannot be read.
pub fn bell(text: &str) -> Result<Option<(IpAddr, (u16, u16))>> {
    Ok(match Setting::parse(text)? {
        Setting::At(address, ports) => Some((address, ports.unwrap_or((0, 0)))),
        Setting::Off | Setting::Near => None,
    })
}

/// The bells that a client rings and hears by UDP.
pub fn bells() -> Arc<dyn Bells> {
    Arc::new(UdpBells::new(Setting::Near))
}

/// The datagram that rings a bell.
pub fn ring(id: WaitId, after: Duration) -> Vec<u8> {
    udp::ring(id, after)
}
