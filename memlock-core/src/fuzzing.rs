//! The private parts that the targets in `fuzz/` need, which run by `cargo fuzz` and in unit tests.
//! In any other build this file is not there.

use std::net::IpAddr;
use std::sync::Arc;

use crate::error::Result;
use crate::name::{Key, Keyspace};
use crate::notify::udp::UdpNotifier;
use crate::notify::{Notifier, NotifySetting, WakeMessage};
use crate::owner::Token;
use crate::semaphore::record::{Holding, Record};
use crate::wait_id::WaitId;

#[cfg(feature = "admin")]
pub use crate::store::memcached::Tool;
pub use crate::store::memcached::{Command, dial_these};

/// The targets, and the tests that replay their corpora.
#[cfg(test)]
#[cfg(all(feature = "admin", feature = "mysql", feature = "postgresql", feature = "redis"))]
#[allow(unreachable_pub, missing_docs, reason = "they are a library of their own")]
#[path = "../../fuzz/src/lib.rs"]
mod targets;

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

/// What the URL's `notify_setting` asks for: an address and its ports, or `None` for `off`.
///
/// # Errors
/// When it cannot be read.
pub fn notify_setting(text: &str) -> Result<Option<(IpAddr, (u16, u16))>> {
    Ok(match NotifySetting::parse(text)? {
        NotifySetting::At(address, ports) => Some((address, ports.unwrap_or((0, 0)))),
        NotifySetting::Off | NotifySetting::Near => None,
    })
}

/// The wake-up messages of a client, by UDP.
pub fn notifier() -> Arc<dyn Notifier> {
    Arc::new(UdpNotifier::new(NotifySetting::Near))
}

/// The datagram of a wake-up message.
pub fn datagram(id: WaitId, wake: WakeMessage) -> Vec<u8> {
    wake.datagram(id)
}

/// What a semaphore's item says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreRecord(Record);

/// One of the holders of its permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreHolder {
    /// Names the acquisition.
    pub token: Token,
    /// How many it has.
    pub permits: u32,
    /// From this second of the server's on it has no owner.
    pub until: u64,
    /// Host, pid and since when.
    pub who: (String, u32, u64),
}

impl SemaphoreRecord {
    /// Reads an item's value; `None` when it is not a semaphore's.
    pub fn parse(value: &[u8]) -> Option<SemaphoreRecord> {
        Record::parse(value).map(SemaphoreRecord)
    }

    /// The item's value.
    pub fn encode(&self) -> Vec<u8> {
        self.0.encode()
    }

    /// Names this semaphore from when it was set up until it is gone.
    pub fn token(&self) -> Token {
        self.0.token
    }

    /// How many permits there are.
    pub fn permits(&self) -> u32 {
        self.0.permits
    }

    /// When the item expires on the server, for how long it is stored unused, and how often it was
    /// written.
    pub fn life(&self) -> (u64, u64, u64) {
        (self.0.expires, self.0.life, self.0.serial)
    }

    /// The reservation of a waiter for several: its token, priority, and until when.
    pub fn reservation(&self) -> Option<(Token, i64, u64)> {
        self.0
            .reservation
            .map(|reservation| (reservation.token, reservation.priority, reservation.until))
    }

    /// The holders of its permits, those of the past included.
    pub fn holders(&self) -> Vec<SemaphoreHolder> {
        let holder = |holding: &Holding| {
            let Holding { token, permits, until, .. } = *holding;
            SemaphoreHolder { token, permits, until, who: holding.who() }
        };
        self.0.holdings.iter().map(holder).collect()
    }

    /// How many permits have no holder when the server's clock shows `now`.
    pub fn available(&self, now: u64) -> u32 {
        self.0.available(now)
    }

    /// When so many will be available at the latest.
    pub fn available_at(&self, wanted: u32, now: u64) -> Option<u64> {
        self.0.available_at(wanted, now)
    }

    /// Whether an acquisition is to come after a waiter that has a reservation.
    pub fn is_reserved_from(&self, now: u64, token: Token, priority: i64) -> bool {
        self.0.is_reserved_from(now, token, priority)
    }

    /// Gives permits to a holder. `host` is percent-encoded.
    pub fn take(&mut self, now: u64, token: Token, permits: u32, until: u64, host: &str) {
        self.0.take(now, Holding::new(token, permits, until, host, 4711, 1_795_170_000));
    }

    /// Takes a holder's permits back.
    pub fn give_back(&mut self, token: Token) {
        self.0.give_back(token);
    }

    /// A holder has its permits until then; or for longer, if the server's clock may stand still.
    pub fn renew(&mut self, token: Token, until: u64, may_stand: bool) {
        self.0.renew(token, until, may_stand);
    }

    /// What is done to it before each time it is written.
    pub fn touch(&mut self, now: u64) {
        self.0.touch(now);
    }
}
