//! The text format of a semaphore's item: the number of permits, and their holders with the end of
//! each lease.
//!
//! ```text
//! memlock-semaphore/1 5c0f…32 hex digits… 5 1795256400 86400 7      the semaphore
//! 0d5c7a…32 hex digits… 2 1795170042 web-3 4711 1795170000          a holder of 2 of its permits
//! ```
//!
//! The first line has a token of this semaphore, the number of permits, when the item expires, for
//! how many seconds it is stored unused, and how often it was written. It may have the word
//! `gathering=<token>:<priority>:<until>`: the reservation of a waiter that requests several
//! permits at once, or that may be unreachable, and that new callers must not overtake. Each holder
//! has a line: its token, the number of its permits, and their end; and for people its host, its
//! pid and since when it has held them, in Unix seconds of the holder's own clock.
//!
//! `expires` and `until` are in the server's own seconds. memcached returns for how many more
//! seconds it stores an item, and the item itself contains the end of that time; the difference is
//! **what the server's clock shows**. The clock of a client is thus never compared with another
//! clock, and each read of the item returns the time.
//!
//! Words at the ends of lines are reserved for later versions, and preserved. This module does no
//! I/O.

use crate::mutation::{self, Mutation};
use crate::name::{percent_decode, push_number};
use crate::owner::Token;

const FORMAT: &str = "memlock-semaphore/1";
const RESERVATION: &str = "gathering=";
/// A reservation is for a few seconds. One that ends later than this was not made by memlock, and
/// would keep out all callers that do not wait.
const LONGEST_RESERVATION: u64 = 60;
/// The longest host name that is written, so that the lines of [`MOST_HOLDERS`] holders fit into
/// one item.
const LONGEST_HOST: usize = 32;
/// The maximum number of concurrent holders: more do not fit into an item of 1 MiB, the largest
/// that memcached stores by default.
pub(super) const MOST_HOLDERS: usize = 10_000;

/// The content of the item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Identifies this semaphore, from its set-up until it is gone.
    pub(crate) token: Token,
    /// The number of permits.
    pub(crate) permits: u32,
    /// When the item expires on the server.
    pub(crate) expires: u64,
    /// For how many seconds an unused item is stored.
    pub(crate) life: u64,
    /// How often the item was written.
    pub(crate) serial: u64,
    pub(crate) reservation: Option<Reservation>,
    pub(crate) holdings: Vec<Holding>,
    /// What a later version wrote after the fields of the first line.
    more: String,
}

/// A waiter that new callers must not overtake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) token: Token,
    pub(crate) priority: i64,
    pub(crate) until: u64,
}

impl Reservation {
    fn counts(&self, now: u64) -> bool {
        self.until > now && self.until - now <= LONGEST_RESERVATION
    }
}

/// The permits of one holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) token: Token,
    pub(crate) permits: u32,
    /// From this second of the server's clock on, the permits have no owner.
    pub(crate) until: u64,
    /// Host, pid and start of the hold; and what a later version wrote after them.
    who: String,
}

impl Holding {
    /// `host` is percent-encoded.
    pub(crate) fn new(
        token: Token,
        permits: u32,
        until: u64,
        host: &str,
        pid: u32,
        since: u64,
    ) -> Holding {
        let host = host.get(..LONGEST_HOST).unwrap_or(host);
        Holding { token, permits, until, who: format!("{host} {pid} {since}") }
    }

    /// The holder's host and pid, and the start of the hold.
    pub(crate) fn who(&self) -> (String, u32, u64) {
        let mut words = self.who.split(' ');
        let host = words.next().unwrap_or_default();
        let name = percent_decode(host).and_then(|name| String::from_utf8(name).ok());
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0_u64);
        let (pid, since) = (number(), number());
        (name.unwrap_or_else(|| host.to_owned()), u32::try_from(pid).unwrap_or(0), since)
    }
}

impl Record {
    /// A record without holders.
    pub(crate) fn new(token: Token, permits: u32, life: u64, expires: u64) -> Record {
        let (reservation, holdings) = (None, Vec::new());
        Record {
            token,
            permits,
            expires,
            life,
            serial: 1,
            reservation,
            holdings,
            more: String::new(),
        }
    }

    /// Parses an item's value; `None` if it is not a semaphore's.
    pub(crate) fn parse(value: &[u8]) -> Option<Record> {
        let mut lines = std::str::from_utf8(value).ok()?.split_terminator('\n');
        let mut words = lines.next()?.splitn(7, ' ');
        if words.next()? != FORMAT {
            return None;
        }
        let token = words.next()?.parse().ok()?;
        let permits = words.next()?.parse().ok()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let (expires, life, serial) = (number()?, number()?, number()?);
        // If there are several reservations, the first one applies: the next write removes the
        // others.
        let mut reservation = None;
        let mut is_more =
            |word: &&str| match word.strip_prefix(RESERVATION).and_then(Reservation::parse) {
                Some(said) => {
                    reservation.get_or_insert(said);
                    false
                }
                None => true,
            };
        let more = words.next().into_iter().flat_map(|more| more.split(' '));
        let more = more.filter(&mut is_more).fold(String::new(), |more, word| more + " " + word);
        let holdings = lines.map(holding).collect::<Option<Vec<_>>>()?;
        Some(Record { token, permits, expires, life, serial, reservation, holdings, more })
    }

    /// The item's value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Record { token, permits, expires, life, serial, more, .. } = self;
        let mut value =
            format!("{FORMAT} {token} {permits} {expires} {life} {serial}{more}").into_bytes();
        if let Some(Reservation { token, priority, until }) = &self.reservation {
            value.extend(format!(" {RESERVATION}{token}:{priority}:{until}").into_bytes());
        }
        value.push(b'\n');
        for Holding { token, permits, until, who } in &self.holdings {
            token.push_to(&mut value);
            for number in [u64::from(*permits), *until] {
                value.push(b' ');
                push_number(number, &mut value);
            }
            value.push(b' ');
            value.extend_from_slice(who.as_bytes());
            value.push(b'\n');
        }
        value
    }

    /// The permits of this acquisition.
    pub(crate) fn held_by(&self, token: Token) -> Option<&Holding> {
        self.holdings.iter().find(|holding| holding.token == token)
    }

    /// How many permits have no holder when the server's clock shows `now`. Whether they can be
    /// acquired depends on the server, too: see `Snapshot`.
    pub(crate) fn available(&self, now: u64) -> u32 {
        let kept = mutation::has(Mutation::KeepExpired);
        let live = self.holdings.iter().filter(|holding| holding.until > now || kept);
        let held: u64 = live.map(|holding| u64::from(holding.permits)).sum();
        u32::try_from(u64::from(self.permits).saturating_sub(held)).unwrap_or(0)
    }

    /// Whether there is room for one holder more.
    pub(crate) fn has_room(&self, now: u64) -> bool {
        self.holdings.len() < MOST_HOLDERS
            || self.holdings.iter().filter(|holding| holding.until > now).count() < MOST_HOLDERS
    }

    /// How many permits a waiter can acquire: none while the number of holders is at its maximum.
    pub(crate) fn capacity(&self, now: u64) -> u32 {
        if self.has_room(now) { self.available(now) } else { 0 }
    }

    /// When so many permits will be available at the latest, as leases end.
    pub(crate) fn available_at(&self, wanted: u32, now: u64) -> Option<u64> {
        let mut live: Vec<&Holding> =
            self.holdings.iter().filter(|holding| holding.until > now).collect();
        live.sort_unstable_by_key(|holding| holding.until);
        let held: i64 = live.iter().map(|holding| i64::from(holding.permits)).sum();
        let mut free = i64::from(self.permits) - held;
        live.into_iter().find_map(|holding| {
            free += i64::from(holding.permits);
            (free >= i64::from(wanted)).then_some(holding.until)
        })
    }

    /// Whether a new caller has to wait because of another waiter's reservation.
    pub(crate) fn is_reserved_from(&self, now: u64, token: Token, priority: i64) -> bool {
        self.reservation.is_some_and(|other| {
            other.counts(now) && other.token != token && priority <= other.priority
        })
    }

    /// Adds the permits of a holder, and drops holders whose lease is over. Drops the reservation
    /// if it is the holder's, or over.
    pub(crate) fn take(&mut self, now: u64, holding: Holding) {
        let early = u64::from(mutation::has(Mutation::DropTooEarly));
        self.holdings.retain(|other| other.until > now + early);
        if self.reservation.is_some_and(|other| other.token == holding.token || !other.counts(now))
        {
            self.reservation = None;
        }
        self.holdings.push(holding);
    }

    /// Removes a holder's permits.
    pub(crate) fn give_back(&mut self, token: Token) {
        self.holdings.retain(|holding| holding.token != token);
    }

    /// Sets the end of a holder's permits. A clock that may have been stopped does not move the end
    /// earlier, because the holder relies on it.
    pub(crate) fn renew(&mut self, token: Token, until: u64, may_stand: bool) {
        for holding in self.holdings.iter_mut().filter(|holding| holding.token == token) {
            holding.until = if may_stand { holding.until.max(until) } else { until };
        }
    }

    /// To be called before each write: counts the write, and prolongs the item's life.
    pub(crate) fn touch(&mut self, now: u64) {
        self.serial = self.serial.wrapping_add(1);
        let last = self.holdings.iter().map(|holding| holding.until).max().unwrap_or(0);
        self.expires = now.saturating_add(self.life).max(last);
    }
}

impl Reservation {
    fn parse(text: &str) -> Option<Reservation> {
        let mut parts = text.split(':');
        let token = parts.next()?.parse().ok()?;
        Some(Reservation {
            token,
            priority: parts.next()?.parse().ok()?,
            until: parts.next()?.parse().ok()?,
        })
    }
}

fn holding(line: &str) -> Option<Holding> {
    let mut words = line.splitn(4, ' ');
    let token = words.next()?.parse().ok()?;
    let permits = words.next()?.parse().ok()?;
    let until = words.next()?.parse().ok()?;
    Some(Holding { token, permits, until, who: words.next().unwrap_or_default().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn held(token: u128, permits: u32, until: u64) -> Holding {
        Holding::new(Token::from_bits(token), permits, until, "web%203", 4711, 1_795_170_000)
    }

    #[test]
    fn a_semaphore_can_be_read_by_a_person() {
        let mut record = Record::new(Token::from_bits(10), 5, 86_400, 1_795_256_400);
        record.holdings.push(held(11, 2, 1_795_170_042));
        let text = "memlock-semaphore/1 0000000000000000000000000000000a 5 1795256400 86400 1\n\
            0000000000000000000000000000000b 2 1795170042 web%203 4711 1795170000\n";
        assert_eq!(String::from_utf8(record.encode()).unwrap(), text);
        assert_eq!(Record::parse(text.as_bytes()), Some(record.clone()));
        assert_eq!(record.holdings[0].who(), ("web 3".to_owned(), 4711, 1_795_170_000));
        record.reservation =
            Some(Reservation { token: Token::from_bits(12), priority: -3, until: 7 });
        assert_eq!(Record::parse(&record.encode()), Some(record));
    }

    /// Otherwise, all waiters would be woken in vain each time.
    #[test]
    fn there_is_no_room_for_more_holders_than_there_may_be() {
        let mut record = Record::new(Token::from_bits(10), 20_000, 86_400, 100);
        let most = MOST_HOLDERS as u128;
        record.holdings.extend((1..=most).map(|token| held(token, 1, 50)));
        assert_eq!((record.available(49), record.capacity(49)), (10_000, 0));
        assert_eq!(record.capacity(50), 20_000, "their leases are over");
        let _ = record.holdings.pop();
        assert_eq!(record.capacity(49), 10_001);
    }

    #[test]
    fn what_a_later_version_adds_is_kept() {
        let text = "memlock-semaphore/1 0000000000000000000000000000000a 5 9 8 7 more words\n\
            0000000000000000000000000000000b 2 6 web 1 2 and more\n";
        assert_eq!(Record::parse(text.as_bytes()).unwrap().encode(), text.as_bytes());
        let between =
            text.replace("more words", "more gathering=0000000000000000000000000000000c:1:2 words");
        let record = Record::parse(between.as_bytes()).unwrap();
        assert_eq!(record.reservation.unwrap().priority, 1);
        assert_eq!(Record::parse(&record.encode()), Some(record));
    }

    #[test]
    fn a_reservation_that_memlock_did_not_make_keeps_nobody_out() {
        let mut record = Record::new(Token::from_bits(1), 5, 60, 100);
        for (until, counts) in [(6, false), (7, false), (8, true), (67, true), (68, false)] {
            let token = Token::from_bits(12);
            record.reservation = Some(Reservation { token, priority: i64::MAX, until });
            assert_eq!(record.is_reserved_from(7, Token::from_bits(2), 0), counts, "{until}");
        }
    }

    #[test]
    fn what_others_wrote_does_not_hide_who_gathers() {
        let [ours, other] = [12, 13].map(Token::from_bits);
        let text = format!(
            "memlock-semaphore/1 {} 5 9 8 7 gathering=later gathering={ours}:1:2 gathering={other}:3:4\n",
            ours
        );
        let record = Record::parse(text.as_bytes()).unwrap();
        assert_eq!(record.reservation, Some(Reservation { token: ours, priority: 1, until: 2 }));
        assert_eq!(Record::parse(&record.encode()), Some(record));
        let text = format!("memlock-semaphore/1 {ours} 5 9 8 7\n{other} 1 2 web\r\r\n");
        let record = Record::parse(text.as_bytes()).unwrap();
        assert_eq!(
            record.encode(),
            text.as_bytes(),
            "what a later version adds is kept, whatever it is"
        );
    }

    #[test]
    fn what_is_not_a_semaphore_is_not_taken_for_one() {
        for value in [
            &b""[..],
            b"5",
            b"memlock/1 x",
            b"memlock-semaphore/1 x",
            b"memlock-semaphore/2 0 1 2 3 4\n",
            b"\xff",
        ] {
            assert_eq!(Record::parse(value), None);
        }
    }

    proptest! {
        #[test]
        fn permits_are_never_more_than_there_are(
            permits in 1_u32..20, steps in vec((1_u32..4, 0_u64..40, 0_u64..5, any::<bool>()), 0..40),
        ) {
            let mut record = Record::new(Token::from_bits(1), permits, 60, 1000);
            let mut now = 100;
            for (number, (wanted, lease, passed, goes)) in steps.into_iter().enumerate() {
                now += passed;
                if record.available(now) >= wanted {
                    let expected = record.available(now) - wanted;
                    record.take(now, held(number as u128, wanted, now + lease + 1));
                    prop_assert_eq!(record.available(now), expected);
                } else if let Some(at) = record.available_at(wanted, now) {
                    prop_assert!(at > now && record.available(at) >= wanted && record.available(at - 1) < wanted);
                } else {
                    prop_assert!(wanted > permits);
                }
                if goes && let Some(first) = record.holdings.first().map(|holding| holding.token) {
                    record.give_back(first);
                    prop_assert!(record.held_by(first).is_none());
                }
                let live: u32 =
                    record.holdings.iter().filter(|holding| holding.until > now).map(|holding| holding.permits).sum();
                prop_assert_eq!(record.available(now) + live, permits);
                prop_assert_eq!(Record::parse(&record.encode()), Some(record.clone()));
            }
        }

        #[test]
        fn any_bytes_can_be_parsed(value: Vec<u8>, tail in "[ -~\n]{0,120}") {
            let _ = Record::parse(&value);
            let text = format!("memlock-semaphore/1 0000000000000000000000000000000a 5 1 2 3{tail}");
            if let Some(record) = Record::parse(text.as_bytes()) {
                prop_assert_eq!(Record::parse(&record.encode()), Some(record.clone()));
                let _ = (record.available(0), record.available_at(3, 0));
            }
        }
    }
}
