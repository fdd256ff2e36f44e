//! The text of a queue: who waits, in which order, and where each can be rung.
//!
//! ```text
//! 10.0.0.7:40123#9f8e7d6c5b4a3210#0      one waiter a line, the first one is next
//! [fd00::7]:40123#0123456789abcdef#0
//! -#00000000000000aa#0                   a waiter without a bell
//! -#00000000000000ab#0#7                 another one, whose turn has come, and that 7 releases have waited for
//! address        wait-id          priority, 0 for now
//! ```
//!
//! Further fields are a later version's business and are kept. A line that cannot be read is dropped
//! by whoever writes the item next. Nothing here does any I/O.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// A queue that is this long takes no further waiters.
pub const MOST_WAITERS: usize = 512;

/// Beyond this an address is not one.
const LONGEST_ADDRESS: usize = 64;

/// Names one stand in a queue: drawn at random, and never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WaitId(pub u64);

impl fmt::Display for WaitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for WaitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl WaitId {
    /// Reads sixteen lower-case hexadecimal digits, and nothing else.
    pub fn parse(text: &[u8]) -> Option<WaitId> {
        let digits = text.len() == 16 && text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let text = std::str::from_utf8(text).ok().filter(|_| digits)?;
        u64::from_str_radix(text, 16).ok().map(WaitId)
    }
}

/// One waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where it can be rung, if it can.
    pub bell: Option<SocketAddr>,
    /// Which waiter it is.
    pub id: WaitId,
    /// How many releases have waited for it in vain.
    pub passed: u32,
    line: &'a [u8],
}

/// The line of a new entry.
pub fn line(bell: Option<SocketAddr>, id: WaitId) -> Vec<u8> {
    match bell {
        Some(address) => format!("{address}#{id}#0\n"),
        None => format!("-#{id}#0\n"),
    }
    .into_bytes()
}

/// The waiters in their order.
pub fn waiters(queue: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    queue.split_inclusive(|&byte| byte == b'\n').filter_map(entry)
}

/// The queue without these waiters, and without what cannot be read.
pub fn without(queue: &[u8], gone: &[WaitId]) -> Vec<u8> {
    waiters(queue).filter(|entry| !gone.contains(&entry.id)).flat_map(|entry| entry.line).copied().collect()
}

/// The queue without these waiters, and with one release more that has waited for that one in vain.
pub fn passing(queue: &[u8], gone: &[WaitId], passed: WaitId) -> Vec<u8> {
    let count = |entry: Entry<'_>| {
        let count = entry.passed.saturating_add(1).to_string();
        let line = entry.line.strip_suffix(b"\n").unwrap_or(entry.line);
        let mut fields: Vec<&[u8]> = line.split(|&byte| byte == b'#').collect();
        match fields.get_mut(3) {
            Some(field) => *field = count.as_bytes(),
            None => fields.push(count.as_bytes()),
        }
        [&fields.join(&b'#')[..], b"\n"].concat()
    };
    let left = waiters(queue).filter(|entry| !gone.contains(&entry.id));
    left.flat_map(|entry| if entry.id == passed { count(entry) } else { entry.line.to_vec() }).collect()
}

fn entry(line: &[u8]) -> Option<Entry<'_>> {
    let mut fields = line.strip_suffix(b"\n")?.split(|&byte| byte == b'#');
    let bell = match fields.next()? {
        b"-" => None,
        text if text.len() <= LONGEST_ADDRESS => {
            let address = std::str::from_utf8(text).ok()?.parse().ok()?;
            Some(address).filter(can_be_rung).map(Some)?
        }
        _ => return None,
    };
    let id = WaitId::parse(fields.next()?)?;
    std::str::from_utf8(fields.next()?).ok()?.parse::<i64>().ok()?;
    let passed = fields.next().and_then(|field| std::str::from_utf8(field).ok()?.parse().ok()).unwrap_or(0);
    Some(Entry { bell, id, passed, line })
}

/// One program's own address, and no crowd's.
fn can_be_rung(address: &SocketAddr) -> bool {
    address.port() != 0 && is_one_hosts(address.ip())
}

/// Whether it may be one host's own address, and not a crowd's.
pub(crate) fn is_one_hosts(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let crowd = match ip {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    !crowd && !ip.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_queue_can_be_read_by_a_person() {
        let bells = ["10.0.0.7:40123", "[fd00::7]:40123"].map(|text| text.parse().ok());
        assert_eq!(line(bells[0], WaitId(10)), b"10.0.0.7:40123#000000000000000a#0\n");
        assert_eq!(line(bells[1], WaitId(10)), b"[fd00::7]:40123#000000000000000a#0\n");
        assert_eq!(line(None, WaitId(u64::MAX)), b"-#ffffffffffffffff#0\n");
    }

    #[test]
    fn only_a_well_formed_address_of_one_program_is_rung() {
        for bad in [
            "10.0.0.7#000000000000000a#0\n",
            "10.0.0.7:0#000000000000000a#0\n",
            "0.0.0.0:9#000000000000000a#0\n",
            "255.255.255.255:9#000000000000000a#0\n",
            "224.0.0.1:9#000000000000000a#0\n",
            "[ff02::1]:9#000000000000000a#0\n",
            "[::ffff:224.0.0.1]:9#000000000000000a#0\n",
            "[::ffff:0.0.0.0]:9#000000000000000a#0\n",
            "localhost:9#000000000000000a#0\n",
            "10.0.0.7:9#00000000000000A0#0\n",
            "10.0.0.7:9#a#0\n",
            "10.0.0.7:9#000000000000000a\n",
            "10.0.0.7:9#000000000000000a#high\n",
            "10.0.0.7:9#000000000000000a#0",
            "\n",
        ] {
            assert_eq!(waiters(bad.as_bytes()).count(), 0, "{bad:?}");
            assert_eq!(without(bad.as_bytes(), &[]), b"", "{bad:?}");
        }
        let later = b"10.0.0.7:9#000000000000000a#-7#more\n";
        assert_eq!(waiters(later).count(), 1);
        assert_eq!(without(later, &[]), later, "what a later version adds is kept");
    }

    #[test]
    fn releases_that_wait_for_one_in_vain_are_counted() {
        let queue = b"-#00000000000000aa#0\n-#00000000000000bb#-3#7\n".to_vec();
        let once = passing(&queue, &[], WaitId(0xaa));
        assert_eq!(once, b"-#00000000000000aa#0#1\n-#00000000000000bb#-3#7\n");
        let twice = passing(&once, &[WaitId(0xaa)], WaitId(0xbb));
        assert_eq!(twice, b"-#00000000000000bb#-3#8\n");
        assert_eq!(waiters(&twice).map(|entry| entry.passed).collect::<Vec<_>>(), [8]);
        let later = passing(b"-#00000000000000aa#0#7#and#more\n", &[], WaitId(0xaa));
        assert_eq!(later, b"-#00000000000000aa#0#8#and#more\n", "what a later version adds is kept");
    }

    proptest! {
        #[test]
        fn waiters_come_back_in_their_order(ids in vec(any::<u64>(), 0..20), ports in vec(1_u16.., 20), gone: u64) {
            let bell = |at: usize| (!at.is_multiple_of(3)).then(|| SocketAddr::from(([10, 0, 0, 7], ports[at])));
            let queue: Vec<u8> = ids.iter().enumerate().flat_map(|(at, &id)| line(bell(at), WaitId(id))).collect();
            let read: Vec<_> = waiters(&queue).map(|entry| (entry.bell, entry.id.0)).collect();
            let written: Vec<_> = ids.iter().enumerate().map(|(at, &id)| (bell(at), id)).collect();
            prop_assert_eq!(read, written);
            let gone = ids.first().copied().unwrap_or(gone);
            let left = without(&queue, &[WaitId(gone)]);
            let left: Vec<u64> = waiters(&left).map(|entry| entry.id.0).collect();
            prop_assert_eq!(left, ids.into_iter().filter(|&id| id != gone).collect::<Vec<_>>());
        }

        #[test]
        fn a_release_in_vain_changes_one_count_and_nothing_else(
            lines in vec("-#[0-9a-f]{16}#-?[0-9]{1,3}(#[ -\"$-~]{0,9}){0,3}\n", 1..6), chosen: usize,
        ) {
            let queue = lines.concat().into_bytes();
            let before: Vec<Entry<'_>> = waiters(&queue).collect();
            prop_assert_eq!(before.len(), lines.len());
            let passed = before[chosen % before.len()].id;
            let counted = passing(&queue, &[], passed);
            let after: Vec<Entry<'_>> = waiters(&counted).collect();
            prop_assert_eq!(after.len(), lines.len());
            let fields = |entry: &Entry<'_>| -> Vec<Vec<u8>> {
                entry.line.strip_suffix(b"\n").unwrap().split(|&byte| byte == b'#').map(<[u8]>::to_vec).collect()
            };
            for (before, after) in before.iter().zip(&after) {
                let (mut expected, after) = (fields(before), fields(after));
                if before.id == passed {
                    expected.resize(expected.len().max(4), Vec::new());
                    expected[3] = before.passed.saturating_add(1).to_string().into_bytes();
                }
                prop_assert_eq!(expected, after);
            }
        }

        #[test]
        fn any_bytes_can_be_read(queue in vec(any::<u8>(), 0..200), text in "([0-9.:\\[\\]#a-f-]{0,40}\n){0,4}") {
            for queue in [&queue[..], text.as_bytes()] {
                let clean = without(queue, &[]);
                prop_assert_eq!(without(&clean, &[]), clean.clone());
                prop_assert_eq!(waiters(queue).collect::<Vec<_>>().len(), waiters(&clean).count());
            }
        }
    }
}
