//! A wake-up message, and the datagram that carries it.
//!
//! ```text
//! memlock/1 9f8e7d6c5b4a3210                                             try
//! memlock/1 9f8e7d6c5b4a3210 2000                                        try in 2000 microseconds
//! memlock/1 9f8e7d6c5b4a3210 0 10.0.0.7:40123#00000000000000aa [fd00::7]:40123#00000000000000ab
//!           wait-id          delay, and the waiters behind this one, as in the queue
//! ```

use std::fmt::Write as _;
use std::time::Duration;

use super::address::{LONGEST, WakeAddress};
use crate::wait_id::WaitId;

/// The prefix of every message.
const GREETING: &[u8] = b"memlock/1 ";
/// The length of the longest message. Longer datagrams are dropped.
pub(super) const LENGTH: usize =
    GREETING.len() + 16 + 6 + Successors::MOST * (1 + LONGEST + 1 + 16);
/// The longest delay of a wake-up.
const LATEST: Duration = Duration::from_millis(50);

/// The content of a wake-up message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeMessage {
    /// The delay after which the waiter is to try.
    pub after: Duration,
    /// The waiters behind it.
    pub successors: Successors,
}

/// The waiters behind the recipient, the next one first: their ids, and where each can be woken.
/// The list may be incomplete, and was read some time ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Successors([Option<(WakeAddress, WaitId)>; Successors::MOST]);

impl Successors {
    /// The most waiters that a message lists. A datagram has room for them on every network.
    pub const MOST: usize = 7;

    /// The first waiters of the list, at most `most`.
    pub fn first(self, most: usize) -> Successors {
        self.0.into_iter().flatten().take(most).collect()
    }

    /// The next waiter, and those behind it.
    pub fn split(self) -> Option<(WakeAddress, WaitId, Successors)> {
        let (address, id) = self.0[0]?;
        Some((address, id, self.0.into_iter().skip(1).flatten().collect()))
    }
}

impl FromIterator<(WakeAddress, WaitId)> for Successors {
    fn from_iter<T: IntoIterator<Item = (WakeAddress, WaitId)>>(waiters: T) -> Successors {
        let mut successors = Successors::default();
        for (place, waiter) in successors.0.iter_mut().zip(waiters) {
            *place = Some(waiter);
        }
        successors
    }
}

impl WakeMessage {
    /// The datagram that wakes the waiter `id`.
    pub(crate) fn datagram(&self, id: WaitId) -> Vec<u8> {
        let mut text = format!("memlock/1 {id}");
        let (micros, waiters) = (self.after.as_micros(), self.successors.0.iter().flatten());
        if micros > 0 || waiters.clone().next().is_some() {
            let _ = write!(text, " {micros}");
        }
        for (address, id) in waiters {
            let _ = write!(text, " {address}#{id}");
        }
        text.into_bytes()
    }

    /// The recipient and the message of a datagram; `None` if it is not a message of memlock. The
    /// list of waiters ends before the first unreadable one.
    pub(super) fn read(datagram: &[u8]) -> Option<(WaitId, WakeMessage)> {
        if datagram.len() > LENGTH {
            return None;
        }
        let mut fields = datagram.strip_prefix(GREETING)?.split(|&byte| byte == b' ');
        let id = WaitId::parse(fields.next()?)?;
        let after = match fields.next() {
            None => 0,
            // The standard library would accept a sign.
            Some(micros) if micros.len() <= 5 && micros.iter().all(u8::is_ascii_digit) => {
                std::str::from_utf8(micros).ok()?.parse().ok()?
            }
            Some(_) => return None,
        };
        let after = Duration::from_micros(after);
        let successors = fields.map_while(|field| {
            let place = field.iter().position(|&byte| byte == b'#')?;
            Some((WakeAddress::parse(&field[..place])?, WaitId::parse(&field[place + 1..])?))
        });
        (after <= LATEST).then(|| (id, WakeMessage { after, successors: successors.collect() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_message_can_be_read_by_a_person() {
        let next = [("10.0.0.7:40123", 0xaa), ("[fd00::7]:40123", 0xab)];
        let successors = next
            .iter()
            .map(|&(address, id)| (WakeAddress::parse(address.as_bytes()).unwrap(), WaitId(id)))
            .collect();
        let message =
            |micros, successors| WakeMessage { after: Duration::from_micros(micros), successors };
        let text = |message: WakeMessage| String::from_utf8(message.datagram(WaitId(7))).unwrap();
        assert_eq!(text(WakeMessage::default()), "memlock/1 0000000000000007");
        assert_eq!(text(message(2000, Successors::default())), "memlock/1 0000000000000007 2000");
        assert_eq!(
            text(message(0, successors)),
            "memlock/1 0000000000000007 0 10.0.0.7:40123#00000000000000aa [fd00::7]:40123#00000000000000ab"
        );
    }

    #[test]
    fn what_is_no_message_is_dropped() {
        for bad in [
            "",
            "memlock/1 ",
            "memlock/1 7",
            "memlock/1 000000000000000g",
            "memlock/1 0000000000000007 ",
            "memlock/1 0000000000000007 50001",
            "memlock/1 0000000000000007 +5",
            "memlock/1 0000000000000007 000005",
            "memlock/1 0000000000000007 10.0.0.7:9#00000000000000aa",
            "memlock/2 0000000000000007",
        ] {
            assert_eq!(WakeMessage::read(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(
            WakeMessage::read(&[b"memlock/1 0000000000000007 0 ", &[b'x'; LENGTH][..]].concat()),
            None
        );
    }

    #[test]
    fn nobody_is_woken_behind_what_cannot_be_read() {
        for bad in [
            "0.0.0.0:9#00000000000000ab",
            "10.0.0.8:9",
            "-#00000000000000ab",
            "",
            "224.0.0.1:9#00000000000000ab",
        ] {
            let text = format!(
                "memlock/1 0000000000000007 0 10.0.0.7:9#00000000000000aa {bad} 10.0.0.9:9#00000000000000ac"
            );
            let (_, message) = WakeMessage::read(text.as_bytes()).unwrap();
            let (address, id, rest) = message.successors.split().unwrap();
            assert_eq!((address.to_string().as_str(), id), ("10.0.0.7:9", WaitId(0xaa)), "{bad:?}");
            assert_eq!(rest, Successors::default(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_written(
            id: u64, micros in 0_u64..=50_000, waiters in vec((any::<bool>(), 1_u16.., any::<u64>()), 0..10),
        ) {
            let address = |six: bool, port: u16| WakeAddress::udp(match six {
                true => ([0xfd00, 1, 2, 3, 4, 5, 6, 0xffff], port).into(),
                false => ([255, 255, 255, 254], port).into(),
            }).unwrap();
            let successors = waiters.iter().map(|&(six, port, id)| (address(six, port), WaitId(id))).collect();
            let message = WakeMessage { after: Duration::from_micros(micros), successors };
            prop_assert!(message.datagram(WaitId(id)).len() <= LENGTH);
            prop_assert_eq!(WakeMessage::read(&message.datagram(WaitId(id))), Some((WaitId(id), message)));
            let (mut left, mut read) = (successors, 0);
            while let Some((at, id, rest)) = left.split() {
                prop_assert_eq!((at, id.0), (address(waiters[read].0, waiters[read].1), waiters[read].2));
                (left, read) = (rest, read + 1);
            }
            prop_assert_eq!(read, waiters.len().min(Successors::MOST));
        }

        #[test]
        #[cfg_attr(miri, ignore = "hundreds of cases of safe code take Miri too long")]
        fn any_datagram_can_be_read(datagram: Vec<u8>, tail in "[0-9a-f.:# ]{0,80}") {
            let _ = WakeMessage::read(&datagram);
            let _ = WakeMessage::read(format!("memlock/1 {tail}").as_bytes());
            let _ = WakeMessage::read(format!("memlock/1 0000000000000007 0 {tail}").as_bytes());
        }
    }
}
