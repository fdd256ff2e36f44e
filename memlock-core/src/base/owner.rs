//! The owner of a lock: the value of the lock's item, one human-readable line.
//!
//! ```text
//! memlock/1 0d5c7a…32 hex digits… web-3 4711 1795170000
//!           token                 host  pid  since (Unix seconds, the holder's own clock)
//! ```
//!
//! The token alone determines which process is the owner. Host, pid and time are for humans. The
//! word `rings` may follow, appended by a waiter or written by the holder itself: the holder then
//! reads the queue at its release. The word `for=<wait-id>` makes the record a reservation: the
//! lock has no holder, and it is that waiter's turn.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::name::{hex, percent_decode, percent_encode, push_hex, push_number};
use crate::wait_id::WaitId;

const FORMAT: &str = "memlock/1";
const RESERVED_FOR: &str = "for=";
/// The word that a waiter appends to the record of a holder that does not know of the queue. It
/// changes the item's version, so the holder notices at its release.
pub(crate) const NOTIFIES: &[u8] = b" rings";

/// 128 bits that identify one acquisition, or one session, and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u128);

impl Token {
    /// A token with these bits.
    pub const fn from_bits(bits: u128) -> Token {
        Token(bits)
    }

    /// Appends the token to a text.
    pub(crate) fn push_to(self, text: &mut Vec<u8>) {
        push_hex(&self.0.to_be_bytes(), text);
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0.to_be_bytes()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Token {
    type Err = Error;
    fn from_str(text: &str) -> Result<Token> {
        let digits =
            text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match u128::from_str_radix(text, 16) {
            Ok(bits) if digits => Ok(Token(bits)),
            // It is not quoted: another text may be a secret in the place of a token.
            _ => Err(Error::invalid(
                "What was given is not a token: a token is 32 lower-case hex digits.",
            )),
        }
    }
}

/// The record that a holder writes into the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerRecord {
    /// Identifies this acquisition.
    pub token: Token,
    /// The holder's host name.
    pub host: String,
    /// The holder's process id on that host.
    pub pid: u32,
    /// When the lock was acquired, in Unix seconds of the holder's own clock.
    pub since: u64,
    /// Whether the holder knows that others may be waiting, and wakes the next waiter at its
    /// release.
    pub notifies: bool,
    /// The waiter that the lock is reserved for; `None` if the lock is held.
    pub reserved_for: Option<WaitId>,
}

impl OwnerRecord {
    /// Parses a lock's value; `None` if it is not a record of memlock, such as the `1` of a plain
    /// memcached client.
    pub fn parse(value: &[u8]) -> Option<OwnerRecord> {
        let mut fields = std::str::from_utf8(value).ok()?.split(' ');
        if fields.next()? != FORMAT {
            return None;
        }
        let token = fields.next()?.parse().ok()?;
        let host = String::from_utf8(percent_decode(fields.next()?)?).ok()?;
        let pid = fields.next()?.parse().ok()?;
        let since = fields.next()?.parse().ok()?;
        // Other words belong to later versions.
        let (mut notifies, mut reserved_for) = (false, None);
        for word in fields {
            notifies |= word == "rings";
            let waiter =
                word.strip_prefix(RESERVED_FOR).and_then(|id| WaitId::parse(id.as_bytes()));
            reserved_for = reserved_for.or(waiter);
        }
        Some(OwnerRecord { token, host, pid, since, notifies, reserved_for })
    }
}

impl fmt::Display for OwnerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut host = String::new();
        percent_encode(self.host.as_bytes(), &mut host);
        write!(f, "{FORMAT} {} {host} {} {}", self.token, self.pid, self.since)?;
        if self.notifies {
            f.write_str(" rings")?;
        }
        self.reserved_for.map_or(Ok(()), |waiter| write!(f, " {RESERVED_FOR}{waiter}"))
    }
}

/// The first bytes of each value that the acquisition with this token writes.
pub(crate) fn value_start(token: Token) -> Vec<u8> {
    format!("{FORMAT} {token} ").into_bytes()
}

/// Whether this value was written by the acquisition with this token.
pub(crate) fn is_ours(value: &[u8], token: Token) -> bool {
    OwnerRecord::parse(value).is_some_and(|record| record.token == token)
}

/// Whether this is the record of a holder that wakes waiters at its release.
pub(crate) fn notifies(value: &[u8]) -> bool {
    OwnerRecord::parse(value).is_some_and(|record| record.notifies)
}

/// The identity of this process as an owner: its host and pid, and tokens that no other process
/// has.
///
/// Tokens are drawn without a system call: 128 random bits once per process, of which the lower
/// half is walked through a permutation of all 64-bit numbers. Two tokens of one process are never
/// equal; tokens of two processes are equal with a chance of 2^-64 per pair of processes.
pub(crate) struct Identity {
    /// ` <host> <pid> `, as it appears in the middle of every record.
    place: String,
    seed: u128,
    drawn: AtomicU64,
}

impl Identity {
    pub(crate) fn new(clock: &dyn Clock) -> Result<Identity> {
        let mut seed = [0; 16];
        clock.random(&mut seed).map_err(|error| {
            Error::new(
                crate::error::ErrorKind::Internal,
                format!("The operating system gives no randomness: {error}."),
            )
        })?;
        let mut place = String::from(" ");
        percent_encode(host_name().as_bytes(), &mut place);
        Ok(Identity {
            place: format!("{place} {} ", std::process::id()),
            seed: u128::from_le_bytes(seed),
            drawn: AtomicU64::new(0),
        })
    }

    /// A token that was never drawn before.
    pub(crate) fn token(&self) -> Token {
        let high = self.seed & !u128::from(u64::MAX);
        Token(high | u128::from(self.draw()))
    }

    /// A number that was never drawn before.
    pub(crate) fn number(&self) -> u64 {
        self.draw()
    }

    /// A number in [0, 1), for jitter.
    pub(crate) fn fraction(&self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// This process's host, percent-encoded.
    pub(crate) fn host(&self) -> &str {
        self.place.trim().split(' ').next().unwrap_or_default()
    }

    /// The value to store in a lock: an [`OwnerRecord`] as text.
    pub(crate) fn record(&self, token: Token, clock: &dyn Clock) -> Vec<u8> {
        let mut value = Vec::with_capacity(128);
        value.extend_from_slice(FORMAT.as_bytes());
        value.push(b' ');
        token.push_to(&mut value);
        value.extend_from_slice(self.place.as_bytes());
        push_number(clock.unix_seconds(), &mut value);
        value
    }

    /// The value of a lock that is reserved for a waiter.
    pub(crate) fn reservation(&self, waiter: WaitId, clock: &dyn Clock) -> Vec<u8> {
        let mut value = self.record(self.token(), clock);
        value.extend_from_slice(NOTIFIES);
        value.extend_from_slice(format!(" {RESERVED_FOR}{waiter}").as_bytes());
        value
    }

    fn draw(&self) -> u64 {
        let step = self.drawn.fetch_add(1, Ordering::Relaxed);
        crate::hash::mix((self.seed as u64).wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

fn host_name() -> String {
    // Miri, which runs the tests of the C boundary, does not support the call.
    if cfg!(miri) {
        return "miri".to_owned();
    }
    let mut buffer = [0_u8; 256];
    // SAFETY: the buffer is writable, and its length is given, less one so that a NUL remains at
    // its end.
    let failed = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    let name = buffer.split(|&byte| byte == 0).next().unwrap_or_default();
    if failed != 0 || name.is_empty() {
        return "unknown-host".to_owned();
    }
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn a_record_can_be_read_by_a_person() {
        let record = OwnerRecord {
            token: Token(10),
            host: "web 3".into(),
            pid: 4711,
            since: 1_795_170_000,
            reserved_for: None,
            notifies: false,
        };
        let text = "memlock/1 0000000000000000000000000000000a web%203 4711 1795170000";
        assert_eq!(record.to_string(), text);
        let marked = OwnerRecord::parse(&[text.as_bytes(), NOTIFIES, NOTIFIES].concat());
        assert_eq!(marked, Some(OwnerRecord { notifies: true, ..record }));
    }

    #[test]
    fn what_a_process_writes_is_its_record() {
        let identity = Identity::new(&SystemClock).unwrap();
        let token = identity.token();
        let value = identity.record(token, &SystemClock);
        let record = OwnerRecord::parse(&value).unwrap();
        assert_eq!(
            (record.token, record.pid, record.host.clone()),
            (token, std::process::id(), host_name())
        );
        assert_eq!(record.to_string().into_bytes(), value);
    }

    #[test]
    fn a_plain_clients_value_is_not_a_record() {
        for value in [&b"1"[..], b"", b"memlock/1", b"memlock/2 x", b"\xff\xfe"] {
            assert_eq!(OwnerRecord::parse(value), None);
        }
    }

    #[test]
    fn tokens_are_never_drawn_twice() {
        let identity = Identity::new(&SystemClock).unwrap();
        let drawn: HashSet<Token> = (0..10_000).map(|_| identity.token()).collect();
        assert_eq!(drawn.len(), 10_000);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&identity.fraction())));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(bits: u128, host in "\\PC{1,60}", pid: u32, since: u64, notifies: bool, reserved: Option<u64>) {
            let record = OwnerRecord { token: Token(bits), host, pid, since, notifies, reserved_for: reserved.map(WaitId) };
            prop_assert_eq!(OwnerRecord::parse(record.to_string().as_bytes()), Some(record));
        }

        #[test]
        fn any_bytes_can_be_parsed(value: Vec<u8>, tail in "[ -~]{0,90}") {
            let _ = OwnerRecord::parse(&value);
            let _ = OwnerRecord::parse(format!("memlock/1 {tail}").as_bytes());
        }

        #[test]
        fn tokens_survive_their_text(bits: u128) {
            prop_assert_eq!(Token(bits).to_string().parse::<Token>(), Ok(Token(bits)));
        }
    }
}
